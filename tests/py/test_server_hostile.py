"""Nothing a client sends can hurt the server. Tests carry the number of the class of attack they stand for:

 1 unbounded n            2 odd prompts           3 prompt fan-out        4 NaN and Inf         7 bad schemas
11 templates             12 injected tokens      13 quadratic work       14 header and body    15 smuggling
16 routes without a key  18 URLs in content      19 paths                23 leaks in errors    26 broken text
27 every integer         34 web origins          35 links in text

After each of them the server still answers, and at the end its memory is where it was."""
import json
import re
import socket
import threading
import time

import pytest

from server_quern import Quern, read_all, status_of

HELLO = [{"role": "user", "content": "x"}]
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def quern():
    with Quern("--max-body-size", "1MiB") as q:
        yield q


@pytest.fixture(autouse=True)
def still_answers(quern):
    yield
    status, answer = quern.post("/v1/chat/completions", messages=HELLO, max_tokens=1)
    assert status == 200, answer


def refused(quern, path="/v1/completions", **body):
    status, answer = quern.post(path, **body)
    assert status == 400, (status, answer)
    assert answer["error"]["message"]
    return answer["error"]


def raw_post(body, extra="", path="/v1/completions", length=None):
    body = body if isinstance(body, bytes) else body.encode()
    n = len(body) if length is None else length
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{extra}Content-Length: {n}\r\n\r\n".encode() + body


@pytest.mark.parametrize("text, status", [
    ("GET\r\n\r\n", 400), ("GET / HTTP/9.9\r\n\r\n", 400), ("\x16\x03\x01\x02\r\n\r\n", 400),
    ("GET / FTP/1.1\r\nHost: localhost\r\n\r\n", 400), ("BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", None),
    (POST + "no colon\r\n\r\n", 400), (POST + "Content-Length: -1\r\n\r\n", 400),
    (POST + "A" * 40000 + ": b\r\n\r\n", None)])
def test_14_what_is_no_request_is_answered_like_any_other_error(quern, text, status):
    answer = quern.raw(text)
    head, _, body = answer.partition(b"\r\n\r\n")
    if status is None and not answer:
        return  # cut without a word
    assert status_of(answer) in ((status,) if status else (400, 405, 413, 501)), answer[:200]
    assert b"application/json" in head and b"html" not in answer.lower()
    error = json.loads(body)["error"]
    assert error["message"] and error["type"] == "invalid_request_error" and set(error) == {
        "message", "type", "param", "code"}
    assert re.search(rb"Content-Length: %d\b" % len(body), head) and b"close" in head


@pytest.mark.parametrize("n", [2**31, 10**9, 129, -1, 0, 2**63, 1.5, "4"])
def test_01_n_is_bounded(quern, n):
    before = quern.rss()
    status, answer = quern.post("/v1/chat/completions", messages=HELLO, n=n)
    assert status == 400
    assert quern.rss() - before < 8 << 20


@pytest.mark.parametrize("prompt", ["", [], [[]], [-1], [2**63 - 1], [2048], [1.5], [True], [None], [[1], "a"],
                                    ["a", [1]], [[[1]]], {}, 7, None, [{"a": 1}], [[1, "x"]], ["a", None]])
def test_02_odd_prompts(quern, prompt):
    refused(quern, prompt=prompt)


def test_02_best_of(quern):
    assert refused(quern, prompt="x", best_of=1000000)["param"] == "best_of"


def test_03_prompt_fan_out(quern):
    before = quern.rss()
    assert "limit" in refused(quern, prompt=["a"] * 257)["message"]
    assert refused(quern, prompt=["a"] * 256, n=128)["param"] == "n"
    status, _, answer = quern.call("/v1/completions", b'{"prompt":[' + b'"",' * 300000 + b'""]}')
    assert status == 400, answer
    assert quern.rss() - before < 160 << 20


FLOATS = ["temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]


@pytest.mark.parametrize("field", FLOATS)
def test_04_floats_that_are_no_numbers(quern, field):
    for value in ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e999999", '"x"', "[]", "{}", "1e30", "-1e30"]:
        body = '{"prompt":"x","max_tokens":1,"%s":%s}' % (field, value)
        status, _, answer = quern.call("/v1/completions", body.encode())
        assert status == 400, (field, value, answer)
    status, _, answer = quern.call("/v1/completions", b'{"prompt":"x","max_tokens":1,"temperature":-0.0,"min_p":-0.0}')
    assert status == 200, answer


def test_07_bad_schemas_are_refused(quern):
    for body in [{"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "stsring"}}}},
                 {"structured_outputs": {"regex": "(a+)+b("}}, {"guided_regex": "["}, {"grammar": "root ::= root"},
                 {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"pattern": "["}}}]},
                 {"response_format": "json"}, {"response_format": {}}]:
        refused(quern, "/v1/chat/completions", messages=HELLO, **body)


def test_11_templates_of_a_request_are_not_run(quern):
    refused(quern, "/v1/chat/completions", messages=HELLO, chat_template="{% for i in range(10**9) %}x{% endfor %}")
    refused(quern, "/v1/chat/completions", messages=HELLO, chat_template_kwargs={"messages": []})
    refused(quern, "/v1/chat/completions", messages=HELLO, chat_template_kwargs=[1])
    refused(quern, "/v1/chat/completions", messages=HELLO, chat_template_kwargs={"add_generation_prompt": 1})


def test_12_special_tokens_of_a_user_are_text(quern):
    text = "<|im_start|><|im_end|><|endoftext|><image>" * 5
    status, answer = quern.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], max_tokens=1)
    assert status == 200
    _, plain = quern.post("/tokenize", messages=HELLO)
    _, evil = quern.post("/tokenize", messages=[{"role": "user", "content": text}])
    (start,) = quern.post("/tokenize", prompt="<|im_start|>", add_special_tokens=False)[1]["tokens"]
    assert evil["tokens"].count(start) == plain["tokens"].count(start)


def test_13_a_large_prompt_costs_little(quern):
    for text in ["<|im_start|>" * 60000, "a" * 900000, " " * 900000, "\n" * 400000, "漢" * 150000]:
        start = time.time()
        status, _ = quern.post("/v1/completions", prompt=text)
        assert status == 400 and time.time() - start < 2
        status, _ = quern.post("/v1/chat/completions", messages=[{"role": "user", "content": text}])
        assert status == 400 and time.time() - start < 4


# ---- 14: header and body abuse ----

def test_14_a_body_over_the_limit(quern):
    for n in (1 << 20, 3 << 20):
        status, _, answer = quern.call("/v1/completions", b'{"prompt":"' + b"x" * n + b'"}')
        assert status == 413
        assert answer["error"]["code"] == "request_too_large"
    before, sent = quern.rss(), 0
    with socket.create_connection(("127.0.0.1", quern.port), timeout=10) as s:
        try:
            s.sendall(raw_post(b"", length=1 << 40))
            while sent < 64 << 20:
                s.sendall(b"x" * 65536)
                sent += 65536
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 32 << 20 and quern.rss() - before < 16 << 20
    answer = quern.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                       b"7fffffff\r\nxxx")
    assert status_of(answer) == 413


def test_14_a_head_over_the_limit(quern):
    assert status_of(quern.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40000 + b"\r\n\r\n")) == 400
    assert status_of(quern.raw(b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 400
    many = b"".join(b"X%d: 1\r\n" % i for i in range(101))
    assert status_of(quern.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")) == 400
    assert status_of(quern.raw(b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 400


def test_14_an_endless_head_is_cut(quern):
    sent = 0
    with socket.create_connection(("127.0.0.1", quern.port), timeout=10) as s:
        try:
            while sent < 64 << 20:
                s.sendall(b"X" * 65536)
                sent += 65536
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 16 << 20


def test_14_an_endless_chunk_size_is_cut(quern):
    before = quern.rss()
    sent = 0
    with socket.create_connection(("127.0.0.1", quern.port), timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while sent < 64 << 20:
                s.sendall(b"0" * 65536)
                sent += 65536
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 32 << 20 and quern.rss() - before < 48 << 20


def test_14_chunks_of_one_byte(quern):
    body = json.dumps({"prompt": "x" * 4000, "max_tokens": 1}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % c for c in body) + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", quern.port), timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        assert status_of(read_all(s, quiet=1)) in (200, 400)


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"0x10\r\n", b"ffffffffffffffffff\r\n", b"1;" + b"a" * 70000])
def test_14_broken_chunks(quern, chunk):
    answer = quern.raw(CHUNKED + chunk, timeout=2)
    assert status_of(answer) in (0, 400, 413)


def test_14_no_content_length_is_an_empty_body(quern):
    answer = quern.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n{}")
    assert status_of(answer) == 400


def test_14_depth_and_duplicates(quern):
    for text in [b"[" * 100000, b'{"a":' * 100000, b'{"prompt":' + b"[" * 200 + b"]" * 200 + b"}",
                 b'{"prompt":"a","prompt":"b"}', b"", b"null", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"prompt":"\xff"}',
                 b'{"prompt":"\\ud800"}', b"\x00"]:
        status, _, answer = quern.call("/v1/completions", text)
        assert status == 400, (text[:40], answer)


def test_14_slowloris_is_cut_and_others_go_on(quern):
    """A sender slower than any modem gets 10 s and a bit; meanwhile a stream beside it flows."""
    sockets = []
    for _ in range(50):
        s = socket.create_connection(("127.0.0.1", quern.port), timeout=30)
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        sockets.append(s)
    start = time.time()
    alive = True
    while alive and time.time() - start < 20:
        alive = False
        for s in sockets:
            try:
                s.sendall(b"X-A: b\r\n")
                alive = True
            except OSError:
                pass
        status, answer = quern.post("/v1/completions", prompt="x", max_tokens=2)
        assert status == 200
        time.sleep(0.25)
    assert not alive, "slow senders are still connected after 20 s"
    assert time.time() - start > 8
    for s in sockets:
        s.close()


# ---- 15: smuggling and path tricks ----

@pytest.mark.parametrize("head", [
    POST + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    POST + "Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}",
    POST + "Content-Length: +2\r\n\r\n{}",
    POST + "Content-Length: -2\r\n\r\n{}",
    POST + "Content-Length: 2, 2\r\n\r\n{}",
    POST + "Content-Length: 0x2\r\n\r\n{}",
    POST + "Content-Length: \r\n\r\n{}",
    POST + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    POST + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n folded\r\n\r\n",
    "GET /health HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "GET /health HTTP/1.1\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\nX\x00Y: a\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x0bb\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\nX(): a\r\n\r\n",
    "GET /health HTTP/1.1\nHost: localhost\n\n",
    "GET /health HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "GET /health HTTP/1.1\r\nHost: localhost\r\n: empty\r\n\r\n",
    "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET //health HTTP/1.1 x\r\nHost: localhost\r\n\r\n",
    "GET /health\r\n\r\n",
    "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "HEAD /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
])
def test_15_smuggling_is_refused_and_the_connection_closed(quern, head):
    answer = quern.raw(head + "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", timeout=3)
    assert status_of(answer) == 400, answer[:200]
    assert answer.count(b"HTTP/1.1 ") + answer.count(b"HTTP/1.0 ") <= 1  # what follows is not answered


def test_15_pipelined_requests_are_answered_one_and_closed(quern):
    one = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = quern.raw(one * 3, timeout=3)
    assert status_of(answer) == 200 and answer.count(b"HTTP/1.1 ") == 1 and b"Connection: close" in answer


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models", "/v1/models/", "/v1%2fmodels", "/V1/models",
                                  "/v1/./models", "/v1/../v1/models", "/v1/models;x", "/v1/models%00",
                                  "/./v1/models", "/v1/models\\x",
                                  "/%76%31/models"])
def test_15_only_the_exact_path_is_the_route(quern, path):
    answer = quern.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", timeout=3)
    assert status_of(answer) in (400, 404), answer[:200]


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PUT", "PATCH", "BREW", "get", "G"])
def test_15_other_methods(quern, method):
    answer = quern.raw(f"{method} /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", timeout=3)
    assert status_of(answer) in (400, 405, 501), answer[:200]


def test_16_every_route_needs_a_key_once_there_are_keys():
    open_paths = {"/health", "/livez", "/readyz", "/startupz"}
    with Quern("--api-key", "secret,second") as q:
        auth = {"Authorization": "Bearer secret"}
        doc = q.call("/openapi.json", headers=auth)[2]
        for path, methods in doc["paths"].items():
            for method in methods:
                real = path.replace("{id}", "x")
                body = b"{}" if method == "post" else None
                want = 200 if path in open_paths else 401
                assert q.call(real, body)[0] == want, path
                for bad in ["secre", "secretx", "Secret", "", "x" * 2000, "secret,second"]:
                    assert q.call(real, body, {"Authorization": "Bearer " + bad})[0] == want, (path, bad)
                assert q.call(real, body, auth)[0] not in (401, 403), path
        for path in ["/nothing", "/v1", "/v1/chat/completions/", "//v1/models", "/V1/models"]:
            assert q.call(path)[0] == 401, path
        assert q.call("/v1/models", headers={"x-api-key": "second"})[0] == 200
        twice = ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n"
                 "Authorization: Bearer secret\r\n\r\n")
        assert status_of(q.raw(twice, timeout=3)) == 400
        assert "secret" not in q.log()


def test_18_19_35_nothing_is_fetched_or_opened(quern):
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.settimeout(0.3)
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/x.png"
        for where in [url, "file:///etc/passwd"]:
            part = {"type": "image_url", "image_url": {"url": where}}
            refused(quern, "/v1/chat/completions", messages=[{"role": "user", "content": [part]}])
        status, _ = quern.post("/v1/chat/completions", max_tokens=2,
                               messages=[{"role": "user", "content": f"![x]({url}) {url} file:///etc/passwd"}])
        assert status == 200
        with pytest.raises(TimeoutError):
            trap.accept()
    for path in ["/web/../../../etc/passwd", "/../../etc/passwd", "/web/%2e%2e/x", "/etc/passwd"]:
        assert quern.call(path)[0] in (400, 404)
    for name in ["../../etc/passwd", "/etc/passwd", "a\x00b", "x" * 3000]:
        status, answer = quern.post("/v1/completions", model=name, prompt="x")
        assert status == 404, answer


def test_23_errors_tell_no_addresses_paths_or_places(quern):
    bodies = [{"prompt": 5}, {"prompt": "x", "model": "nope"}, {"prompt": "x", "n": 10**18}, {"prompt": "x" * 900000},
              {"prompt": [99999999]}, {"prompt": "x", "stop": [""] * 3}]
    for body in bodies:
        _, answer = quern.post("/v1/completions", **body)
        text = json.dumps(answer)
        assert not re.search(r"0x[0-9a-f]{6,}|/work|/home|/usr|\.c:\d|src/", text), text
    assert "/" not in quern.call("/v1/completions", b"{")[2]["error"]["message"].replace("a/b", "")


def test_26_broken_text(quern):
    for text in [b'{"prompt":"\\u0000\\u0001","max_tokens":1}',
                 '{"prompt":"\U0010ffff\u200d\u202e","max_tokens":1}'.encode()]:
        assert quern.call("/v1/completions", text)[0] == 200
    for text in [b'{"prompt":"\xc3\x28"}', b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\\udc00x"}',
                 b'{"prompt":"\xf5\x80\x80\x80"}']:
        assert quern.call("/v1/completions", text)[0] == 400


INTEGERS = ["n", "max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs", "truncate_prompt_tokens",
            "priority", "stream_interval", "seed"]


@pytest.mark.parametrize("field", INTEGERS)
def test_27_every_integer(quern, field):
    for value in [-1, -2**31, 2**31, 2**32, -2**63, 2**63 - 1, 2**64, 10**30, 0.5, True, "1", [1], {}]:
        status, _, answer = quern.call("/v1/completions", {"prompt": "x", "max_tokens": 1, field: value})
        assert status in (200, 400), (field, value, answer)


def test_34_pages_from_elsewhere_may_not_ask(quern):
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    for origin in ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1.evil.example"]:
        status, head, _ = quern.call("/v1/completions", body, {"Origin": origin})
        assert status == 403 and head["Access-Control-Allow-Origin"] is None
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        status, head, _ = quern.call("/v1/completions", headers=asks, method="OPTIONS")
        assert status == 403 and head["Access-Control-Allow-Origin"] is None
    assert quern.call("/v1/completions", body, {"Origin": quern.url})[0] == 200
    for host in ["evil.example", "evil.example:8000", "localhost.evil.example"]:  # DNS rebinding
        assert quern.call("/v1/models", headers={"Host": host})[0] == 403
    for host in ["localhost", "127.0.0.1:99", "[::1]:8000", "10.0.0.1"]:
        assert quern.call("/v1/models", headers={"Host": host})[0] == 200


def test_34_an_allowed_origin_is_told_so():
    with Quern("--allowed-origins", "https://chat.example", "--allowed-hosts", "box.lan") as q:
        _, head, _ = q.call("/v1/models", headers={"Origin": "https://chat.example"})
        assert head["Access-Control-Allow-Origin"] == "https://chat.example" and head["Vary"] == "Origin"
        assert head["Access-Control-Allow-Credentials"] is None
        status, head, _ = q.call("/v1/chat/completions", method="OPTIONS", headers={
            "Origin": "https://chat.example", "Access-Control-Request-Method": "POST"})
        assert status == 204 and "authorization" in head["Access-Control-Allow-Headers"]
        assert q.call("/v1/models", headers={"Origin": "https://evil.example"})[0] == 403
        assert q.call("/v1/models", headers={"Host": "box.lan"})[0] == 200


def test_random_bytes_leave_the_server_alone(quern):
    import random
    rng = random.Random(1)
    good = raw_post(json.dumps({"prompt": "The king", "max_tokens": 1, "stop": ["a"], "logit_bias": {"5": 1}}))
    for i in range(300):
        text = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            kind = rng.randrange(3)
            at = rng.randrange(len(text))
            if kind == 0:
                text[at] = rng.randrange(256)
            elif kind == 1:
                del text[at:at + rng.randrange(1, 8)]
            else:
                text[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 8)))
        with socket.create_connection(("127.0.0.1", quern.port), timeout=5) as s:
            s.sendall(bytes(text))
            if i % 3 == 0:
                s.settimeout(0.02)
                try:
                    s.recv(1000)
                except (TimeoutError, ConnectionResetError):
                    pass


def test_clients_that_do_not_read_stop_only_themselves(quern):
    """A stream whose reader sleeps is paused; others go on, and nothing piles up."""
    body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 4, "logprobs": 20})
    sleepers = []
    for _ in range(4):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", quern.port))
        s.sendall(raw_post(body))
        sleepers.append(s)
    time.sleep(0.5)
    for _ in range(5):
        assert quern.post("/v1/completions", prompt="y", max_tokens=4)[0] == 200
    for s in sleepers:
        s.close()
    quern.wait_idle()


def test_memory_returns_after_a_storm(quern):
    def storm(n):
        def one():
            for i in range(n):
                try:
                    with socket.create_connection(("127.0.0.1", quern.port), timeout=5) as s:
                        body = {"prompt": "a " * 100, "max_tokens": 40, "stream": i % 2 == 0}
                        s.sendall(raw_post(json.dumps(body)))
                        if i % 3:
                            s.recv(100)
                except OSError:
                    pass
        threads = [threading.Thread(target=one) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        quern.wait_idle(30)
    storm(30)
    before = quern.rss()
    storm(60)
    assert quern.rss() - before < 16 << 20
    stats = quern.wait_idle()
    assert stats["kv"]["held"] == 0


def test_memory_of_large_bodies_goes_back(quern):
    """What several large bodies took at the same time is not kept: the C library would, after the first of them."""
    body = b'{"prompt":"' + b"a" * 900000 + b'"}'

    def flood(n):
        threads = [threading.Thread(target=lambda: [quern.call("/v1/completions", body) for _ in range(4)])
                   for _ in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        quern.wait_idle()
        time.sleep(1.2)  # free pages are given back once a second, when nobody is served
    flood(1)
    before = quern.rss()
    flood(8)
    assert quern.rss() - before < 1 << 20
