"""The server as its operator meets it: keys, tenants and budgets, draining, signals, TLS, Unix sockets, supervisors,
resumable streams, restarts."""
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time

import openai
import pytest

from cli_models import quern_bin
from server_quern import TINY, Quern, events, read_all, status_of

HELLO = [{"role": "user", "content": "x"}]


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def stream_body(n=480, **kw):
    return {"messages": HELLO, "max_tokens": n, "ignore_eos": True, "stream": True, **kw}


def open_stream(q, body, headers=""):
    """A socket on which a stream has begun."""
    text = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", q.port), timeout=30)
    s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}"
              f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
    first = s.recv(4096)
    assert status_of(first) == 200, first
    return s, first


# ---- keys and tenants ----

@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys.json"

    def write(tenants):
        path.write_text(json.dumps({"tenants": tenants}))
        return path
    return write


def test_tenants_have_keys_models_and_numbers(key_file):
    path = key_file([{"name": "red", "keys": [digest("r1"), digest("r2")], "weight": 2},
                     {"name": "blue", "keys": [digest("b")], "models": ["other"], "priority": 3}])
    with Quern("--key-file", path, "--api-key", "boss") as q:
        def ask(key):
            return q.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "ignore_eos": True},
                          {"Authorization": "Bearer " + key})
        assert ask("r1")[0] == ask("r2")[0] == ask("boss")[0] == 200
        assert ask("b")[0] == 403 and ask("b")[2]["error"]["param"] == "model"
        assert ask("nobody")[0] == 401
        assert q.call("/v1/models", headers={"Authorization": "Bearer b"})[2]["data"] == []
        stats = q.call("/stats", headers={"Authorization": "Bearer boss"})[2]
        shares = {t["name"]: t for t in stats["tenants"]}
        assert shares["red"]["output_tokens"] == 6 and shares["red"]["weight"] == 2
        assert shares["default"]["output_tokens"] == 3 and shares["blue"]["output_tokens"] == 0
        metrics = q.call("/metrics", headers={"Authorization": "Bearer boss"})[2].decode()
        assert 'quern_tenant_tokens_total{tenant="red",kind="output"} 6' in metrics


def test_budgets_cannot_be_overshot(key_file):
    path = key_file([{"name": "a", "keys": [digest("a")], "requests_per_min": 3},
                     {"name": "b", "keys": [digest("b")], "tokens_per_min": 200}])
    with Quern("--key-file", path) as q:
        def ask(key, n=10):
            return q.call("/v1/completions", {"prompt": "one two three", "max_tokens": n, "ignore_eos": True},
                          {"Authorization": "Bearer " + key})
        assert [ask("a")[0] for _ in range(4)] == [200, 200, 200, 429]
        status, head, body = ask("a")
        assert status == 429 and 1 <= int(head["Retry-After"]) <= 60 and head["x-should-retry"] == "true"
        assert body["error"]["type"] == "rate_limit_error" and "3 requests" in body["error"]["message"]
        assert ask("b", 300)[0] == 429  # can never fit
        spent, refused = 0, 0
        for _ in range(30):
            status, _, body = ask("b", 40)
            if status == 200:
                spent += body["usage"]["total_tokens"]
            else:
                refused += 1
        assert refused > 0 and 150 < spent <= 205  # a little refills meanwhile
        # what was reserved and not used comes back: asking for much and using little goes on
    path = key_file([{"name": "b", "keys": [digest("b")], "tokens_per_min": 400}])
    with Quern("--key-file", path) as q:
        for _ in range(6):
            asked = {"prompt": "x", "max_tokens": 300, "stop": [" ", "e", "a", "\n"]}
            status, _, body = q.call("/v1/completions", asked, {"Authorization": "Bearer b"})
            assert status == 200, body


def test_sighup_reads_keys_again_and_keeps_them_when_they_are_wrong(key_file):
    path = key_file([{"name": "a", "keys": [digest("old")]}])
    with Quern("--key-file", path) as q:
        def works(key):
            return q.call("/v1/models", headers={"Authorization": "Bearer " + key})[0] == 200

        def hup(text):
            n = len(q.lines)
            os.kill(q.pid, signal.SIGHUP)
            end = time.time() + 10
            while text not in "".join(q.lines[n:]) and time.time() < end:
                time.sleep(0.02)
            assert text in "".join(q.lines[n:])
        assert works("old") and not works("new")
        key_file([{"name": "a", "keys": [digest("new")]}])
        hup("read again")
        assert works("new") and not works("old")
        path.write_text("{")
        hup("reload failed")
        assert works("new")


def test_sighup_reads_the_log_level_again(tmp_path):
    config = tmp_path / "quern.conf"
    config.write_text("[serve]\nlog-level = info\n")

    def lines(q):
        n = len(q.lines)
        assert q.call("/version")[0] == 200
        time.sleep(0.3)
        return "".join(q.lines[n:])

    def hup(q):
        os.kill(q.pid, signal.SIGHUP)
        time.sleep(0.5)
    with Quern("--config", config) as q:
        assert re.search(r"^cpu-\S+, \d+ threads?: .* products .*; attention .* cache$", q.log(), re.M)
        assert "path=/version" in lines(q)
        config.write_text("[serve]\nlog-level = warn\n")
        hup(q)
        assert lines(q) == ""
        config.write_text("[serve]\nlog-level = loud\n")
        hup(q)
        assert "reload failed" in q.log() and "loud" in q.log() and lines(q) == ""
        config.write_text("log-level = debug\n")
        hup(q)
        assert "path=/version" in lines(q)
    with Quern("--config", config, "--log-level", "info") as q:  # the command line stays stronger
        config.write_text("log-level = error\n")
        hup(q)
        assert "path=/version" in lines(q)


def test_a_stuck_step_turns_live_red_until_it_is_over():
    with Quern("--fake-step", 3000000, "--stuck-after", 1) as q:
        assert q.call("/livez")[0] == 200
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(q.post, "/v1/completions", prompt="x", max_tokens=1)
            time.sleep(0.5)
            assert q.call("/livez")[0] == 200  # a step under way is no reason yet
            end = time.time() + 2.4
            while q.call("/livez")[0] == 200 and time.time() < end:
                time.sleep(0.05)
            status, _, body = q.call("/livez")
            assert status == 503 and body["status"] == "stuck" and q.call("/readyz")[0] == 503
            assert answer.result()[0] == 200
        q.wait_idle()
        assert q.call("/livez")[0] == q.call("/readyz")[0] == 200


@pytest.mark.parametrize("text, says", [
    ("{", "JSON"), ("[]", "tenants"), ("{}", "tenants"), ('{"tenants":[{"keys":[]}]}', "name"),
    ('{"tenants":[{"name":"a","keys":["zz"]}]}', "SHA-256"), ('{"tenants":[{"name":"a","weight":-1}]}', "weight"),
    ('{"tenants":[{"name":"a","tokens_per_min":"x"}]}', "tokens_per_min"), ('{"tenants":[5]}', "objects")])
def test_a_wrong_key_file_is_refused_with_its_reason(tmp_path, text, says):
    path = tmp_path / "keys.json"
    path.write_text(text)
    q = Quern("--key-file", path, wait=False)
    assert q.process.wait(20) == 1
    q.reader.join(5)
    assert says in q.log() and "error" in q.log()


# ---- stopping ----

def test_sigterm_lets_streams_finish_and_takes_nothing_new():
    with Quern("--fake-step", 4000) as q:  # about 1 s for the stream below
        s, first = open_stream(q, stream_body(200))
        os.kill(q.pid, signal.SIGTERM)
        time.sleep(0.1)
        status, head, body = q.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})
        assert status == 503 and head["Retry-After"] and body["error"]["type"] == "unavailable_error"
        assert q.call("/readyz")[0] == q.call("/health")[0] == 503 and q.call("/livez")[0] == 200
        assert q.call("/readyz")[2]["status"] == "draining"
        text = (first + read_all(s)).decode()
        assert events(text.replace("\r\n", "\n"))[-1] == "[DONE]" and '"finish_reason":"length"' in text
        assert q.process.wait(10) == 0


def test_a_second_sigterm_ends_streams_with_a_terminal_event():
    with Quern("--fake-step", 20000) as q:
        s, first = open_stream(q, stream_body(400))
        os.kill(q.pid, signal.SIGTERM)
        time.sleep(0.2)
        start = time.time()
        os.kill(q.pid, signal.SIGTERM)
        text = (first + read_all(s)).decode().replace("\r\n", "\n")
        assert time.time() - start < 5
        got = events(text)
        assert got[-1] == "[DONE]" and "stopping" in json.loads(got[-2])["error"]["message"]
        assert q.process.wait(10) == 0


def test_the_shutdown_timeout_ends_the_drain():
    with Quern("--fake-step", 20000, "--shutdown-timeout", 1) as q:
        s, first = open_stream(q, stream_body(480))
        start = time.time()
        os.kill(q.pid, signal.SIGTERM)
        text = (first + read_all(s)).decode().replace("\r\n", "\n")
        assert 0.8 < time.time() - start < 6 and events(text)[-1] == "[DONE]"
        assert q.process.wait(10) == 0


def test_kill_and_restart_serves_again_at_once():
    with Quern() as q:
        assert q.post("/v1/completions", prompt="x", max_tokens=1)[0] == 200
        q.process.kill()
        q.process.wait()
        start = time.time()
        with Quern() as again:
            assert again.post("/v1/completions", prompt="x", max_tokens=1)[0] == 200
        assert time.time() - start < 5
        q.process.returncode = 0


def test_retries_of_the_openai_package_outlive_a_restart(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=8)
    result = []
    thread = threading.Thread(target=lambda: result.append(client.chat.completions.create(
        model="tiny-1m-q8_0", messages=HELLO, max_tokens=2)))
    thread.start()
    time.sleep(0.5)
    with Quern("--port", port):
        thread.join(60)
        assert result and result[0].choices[0].finish_reason


# ---- where it listens ----

def test_a_unix_socket(tmp_path):
    path = tmp_path / "q.sock"

    class Connection(http.client.HTTPConnection):
        def connect(self):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(path))
    for _ in range(2):  # the second time over a socket file left by a killed process
        q = Quern("--uds", str(path))
        assert q.url == f"unix:{path}"
        c = Connection("localhost")
        c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1}))
        assert c.getresponse().status == 200
        q.process.kill()
        q.process.wait()
        assert path.exists()
    with Quern("--uds", str(path)):
        pass
    assert not path.exists()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def test_tls(certificate):
    cert, key = certificate
    with Quern("--ssl-certfile", cert, "--ssl-keyfile", key) as q:
        assert q.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))

        def ask(body):
            c = http.client.HTTPSConnection("127.0.0.1", q.port, context=context, timeout=20)
            c.request("POST", "/v1/chat/completions", json.dumps(body))
            r = c.getresponse()
            return r.status, r.read().decode()
        assert ask({"messages": HELLO, "max_tokens": 2})[0] == 200
        status, text = ask(stream_body(100))
        assert status == 200 and events(text)[-1] == "[DONE]"
        with socket.create_connection(("127.0.0.1", q.port), timeout=5) as s:  # plain HTTP is no TLS
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" not in read_all(s)
        raw = context.wrap_socket(socket.create_connection(("127.0.0.1", q.port)), server_hostname="localhost")
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n")  # the guard sees inside
        assert status_of(raw.recv(1000)) == 400
        raw.close()
        os.kill(q.pid, signal.SIGHUP)
        assert ask({"messages": HELLO, "max_tokens": 2})[0] == 200


def test_a_wrong_certificate_is_refused(tmp_path, certificate):
    bad = tmp_path / "bad.pem"
    bad.write_text("nothing")
    q = Quern("--ssl-certfile", bad, "--ssl-keyfile", certificate[1], wait=False)
    assert q.process.wait(20) == 1
    q = Quern("--ssl-certfile", certificate[0], wait=False)
    assert q.process.wait(20) == 2


def test_a_port_in_use_is_told():
    with Quern() as q:
        other = Quern("--port", q.port, wait=False)
        assert other.process.wait(20) == 1
        other.reader.join(5)
        assert "in use" in other.log()


def test_a_supervisors_socket_and_its_messages(tmp_path):
    """Socket activation and readiness, as systemd does them."""
    notify = tmp_path / "notify"
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(notify))
    told.settimeout(20)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        fd = s.fileno()
        argv = ["sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh", quern_bin(), "serve", str(TINY)]
        p = subprocess.Popen(argv, close_fds=False, preexec_fn=lambda: os.dup2(fd, 3), stderr=subprocess.DEVNULL,
                             env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NOTIFY_SOCKET": str(notify)})
    try:
        assert told.recv(100) == b"READY=1"
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        c.request("GET", "/health")
        assert c.getresponse().status == 200
        p.send_signal(signal.SIGTERM)
        assert told.recv(100) == b"STOPPING=1"
        assert p.wait(20) == 0
    finally:
        p.kill()


def test_probes_answer_while_the_model_loads(tmp_path):
    """A FIFO is refused as a model; a model that is missing ends the start. In between, probes say how far it is."""
    q = Quern(model=tmp_path / "missing.gguf", wait=False)
    assert q.process.wait(20) == 1
    q.reader.join(5)
    assert "missing.gguf" in q.log()


# ---- streams that break ----

def test_a_resumable_stream_goes_on_and_is_read_again():
    with Quern("--fake-step", 5000) as q:
        s, first = open_stream(q, stream_body(100, resumable=True, seed=5))
        text = first.decode().replace("\r\n", "\n")
        stream_id = json.loads(events(text)[0])["id"]
        assert "id: 0\n" in text
        s.close()  # it breaks
        time.sleep(0.1)
        whole = q.call(f"/v1/streams/{stream_id}")[2].decode()
        rest = q.call(f"/v1/streams/{stream_id}?from=7")[2].decode()
        got = events(whole)
        assert got[-1] == "[DONE]" and json.loads(got[-2])["choices"][0]["finish_reason"] == "length"
        ids = [int(line[4:]) for line in whole.split("\n") if line.startswith("id: ")]
        assert ids == list(range(len(ids)))
        assert events(rest) == got[7:]
        assert q.call("/stats")[2]["ended"]["abort"] == 0
        assert q.call("/v1/streams/nothing")[0] == 404
        assert q.call(f"/v1/streams/{stream_id}?from=x")[0] == 400
        s, first = open_stream(q, stream_body(200))  # without the word it ends with its client
        s.close()
        q.wait_idle()
        assert q.call("/stats")[2]["ended"]["abort"] == 1


def test_silent_streams_are_pinged():
    with Quern("--fake-step", 2500000, "--ping-interval", 1) as q:
        start = time.time()
        s, first = open_stream(q, stream_body(2))
        text = (first + read_all(s)).decode()
        assert time.time() - start > 3
        assert text.count(": waiting") >= 2 and events(text.replace("\r\n", "\n"))[-1] == "[DONE]"


def test_a_full_queue_answers_429_with_a_time():
    with Quern("--fake-step", 20000, "--max-num-seqs", 1, "--queue-max", 2) as q:
        streams = []
        deadline = time.time() + 10
        while not re.search(rb"^vllm:num_requests_waiting\{\S* 2(\.0)?$", q.call("/metrics")[2], re.M):
            assert time.time() < deadline, "the queue does not fill"
            streams.append(open_stream_quietly(q))
            time.sleep(0.05)
        asked = {"messages": HELLO, "max_tokens": 400}
        status, head, body = q.call("/v1/chat/completions", asked)
        assert status == 429 and body["error"]["type"] == "rate_limit_error"
        assert int(head["Retry-After"]) >= 1
        for s in streams:
            s.close()


def open_stream_quietly(q):
    text = json.dumps(stream_body(400)).encode()
    s = socket.create_connection(("127.0.0.1", q.port), timeout=30)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
    s.sendall(head.encode() + text)
    return s


def test_when_descriptors_run_out_the_server_waits_and_recovers():
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    with Quern(preexec_fn=limit) as q:
        idle = [socket.create_connection(("127.0.0.1", q.port)) for _ in range(100)]
        time.sleep(0.3)

        def cpu_s():
            fields = open(f"/proc/{q.pid}/stat").read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        before = cpu_s()
        time.sleep(1.5)
        assert cpu_s() - before < 0.5  # it does not spin
        for s in idle:
            s.close()
        end = time.time() + 20
        status = 0
        while status != 200 and time.time() < end:
            try:
                status = q.post("/v1/completions", prompt="x", max_tokens=1)[0]
            except OSError:
                time.sleep(0.2)
        assert status == 200 and "no descriptor" in q.log()


def test_two_network_threads_serve_alike():
    with Quern("--net-threads", 2, "--fake-step", 200) as q:
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(
            q.post("/v1/completions", prompt="The king", max_tokens=20, seed=3)[1]["choices"][0]["text"]))
            for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(answers) == 16 and len(set(answers)) == 1


@pytest.mark.parametrize("n", [40, 520, 600, 700, 850])
def test_an_allocation_that_fails_is_an_answer(n):
    """The Nth allocation of our own fails: the start is refused in a sentence, or a request is told 503."""
    q = Quern("--fault", f"alloc:{n}", wait=False)
    assert q.ready.wait(30)
    if q.url is None:
        assert q.process.wait(20) == 1 and "error" in q.log()
        return
    with q:
        for i in range(6):
            asked = {"messages": HELLO, "max_tokens": 3, "stream": i % 2 == 0}
            status, _, answer = q.call("/v1/chat/completions", asked)
            assert status in (200, 503), answer
        assert q.post("/v1/completions", prompt="x", max_tokens=1)[0] == 200


def test_calls_that_were_let_in_before_the_device_failed_hear_of_it():
    """Large bodies are parsed one after the other: when the first one's step fails, others still wait for that."""
    q = Quern("--fault", "device:9")
    body = json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "ids": list(range(300000))}).encode()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: q.call("/v1/completions", body), range(8)))
    assert q.process.wait(20) == 1
    said = {(status, answer["error"]["message"]) for status, _, answer in ends}
    assert (503, "the engine has failed") in said and said <= {(503, "the engine has failed"),
                                                               (503, "the server is stopping")}, said


def test_a_device_that_fails_answers_everybody_and_ends_the_process():
    """Streams that run get an error event, requests that run or wait a 503; probes say so; the exit status is for the
    supervisor."""
    q = Quern("--fault", "device:60", "--max-num-seqs", 2)
    ends, health = [], []

    def ask(stream):
        body = {"prompt": "The king", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": stream}
        try:
            status, _, answer = q.call("/v1/completions", body)
        except OSError as e:
            ends.append((stream, None, str(e)))
            return
        ends.append((stream, status, answer.decode() if isinstance(answer, bytes) else json.dumps(answer)))

    def probe():
        with contextlib.suppress(OSError):
            while True:
                status, _, answer = q.call("/health")
                health.append((status, answer["status"]))

    threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(6)] + [threading.Thread(target=probe)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    code = q.process.wait(20)
    assert len(ends) == 6
    for stream, status, text in ends:
        assert status == 503 or (stream and status == 200), (stream, status, text)
        assert "the engine has failed" in text or (status == 503 and "stopping" in text), (stream, status, text)
        assert status == 503 or text.rstrip().endswith("data: [DONE]"), text
    assert (503, "failed") in health and set(health) <= {(200, "ready"), (503, "failed")}, set(health)
    assert code == 1
    assert "the device failed, as it was told to" in q.log()
