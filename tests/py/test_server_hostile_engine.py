"""What a client could do to the engine behind the server, by the number of the class of attack (the others are in
test_server_hostile.py):

 5 penalties and guesses   6 guesses that never hold  8 costly expressions     9 grammar bombs       10 grammar caches
17 guessing keys by time  22 vectors as prompts      24 other people's data   28 other ports         30 routes that rule
33 names of shared memory"""
import itertools
import json
import os
import re
import time

import pytest

from server_quern import Quern

HELLO = [{"role": "user", "content": "x"}]
REPEATING = "the mill by the river and the mill by the river and the mill by the "


@pytest.fixture(scope="module")
def quern():
    with Quern("--speculative", "ngram", "--max-num-seqs", "16") as q:
        yield q


@pytest.fixture(autouse=True)
def still_answers(quern):
    yield
    status, answer = quern.post("/v1/chat/completions", messages=HELLO, max_tokens=1)
    assert status == 200, answer


def test_05_every_penalty_beside_guesses(quern):
    """The same text with guesses as without, whatever is sampled how."""
    values = {"temperature": [0, 0.9], "repetition_penalty": [1, 1.3], "presence_penalty": [0, -2],
              "frequency_penalty": [0, 2], "logit_bias": [{}, {"5": 5}], "min_tokens": [0, 20]}
    for i, picked in enumerate(itertools.product(*values.values())):
        body = dict(zip(values, picked), prompt=REPEATING, max_tokens=24, seed=i, top_k=(0, 3)[i % 2],
                    n=1 + i % 3 // 2, logprobs=(None, 2)[i // 2 % 2])
        said = []
        for method in ("ngram", "none"):
            status, answer = quern.post("/v1/completions", **body, speculative={"method": method, "k": 1 + i % 8})
            assert status == 200, (body, answer)
            said.append([c["text"] for c in answer["choices"]])
        assert said[0] == said[1], body


def test_06_guesses_that_never_hold(quern):
    """Prompts that promise a continuation which is then forbidden: each guess is wrong, and nothing comes of it."""
    _, ids = quern.post("/tokenize", prompt=REPEATING, add_special_tokens=False)
    ban = {str(t): -100 for t in set(ids["tokens"])}
    bodies = [{"prompt": REPEATING, "logit_bias": ban}, {"prompt": ids["tokens"] * 3, "allowed_token_ids": [7]},
              {"prompt": [0] * 64}, {"prompt": [2047] * 64, "temperature": 5}]
    for body in bodies:
        got = [quern.post("/v1/completions", **body, max_tokens=32, seed=1, ignore_eos=True, return_token_ids=True,
                          speculative={"method": m, "k": 8}) for m in ("ngram", "none")]
        assert got[0][0] == got[1][0] == 200, got
        assert got[0][1]["choices"][0]["token_ids"] == got[1][1]["choices"][0]["token_ids"]


@pytest.mark.parametrize("pattern", [
    "(a+)+b", "(a|a)*b", "(a*)*", "(.*){50}x", "a{1,1000000}", "((a{1,99}){1,99}){1,99}", "(?=a)b", "\\1",
    "(" * 5000 + "a" + ")" * 5000, "[a-z]" * 20000, "a{9999999999}"])
def test_08_costly_expressions_are_bounded(quern, pattern):
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for body in [{"guided_regex": pattern}, {"structured_outputs": {"json": schema}},
                 {"tools": [tool], "tool_choice": "required"}]:
        start = time.process_time()
        status, answer = quern.post("/v1/chat/completions", messages=HELLO, max_tokens=4, **body)
        assert status in (200, 400), answer
        assert time.process_time() - start < 10


@pytest.mark.parametrize("body", [
    {"guided_json": {"type": "array", "minItems": 2**63, "maxItems": 2**63}},
    {"guided_json": {"type": "integer", "minimum": -2**63, "maximum": 2**63}},
    {"guided_json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}},
    {"guided_json": {"not": {}}}, {"guided_json": False}, {"guided_json": ""}, {"guided_grammar": ""},
    {"guided_grammar": 'root ::= a\na ::= b\nb ::= a'}, {"guided_grammar": 'root ::= ("a"*)*'},
    {"guided_grammar": "root ::= " + "(" * 100000}, {"guided_choice": []}, {"guided_choice": [""]},
    {"guided_choice": ["x" * 1000] * 5000},
    {"guided_json": {"properties": {str(i): {"$ref": f"#/properties/{i + 1}"} for i in range(5000)}}}])
def test_09_grammar_bombs(quern, body):
    status, answer = quern.post("/v1/chat/completions", messages=HELLO, max_tokens=4, **body)
    assert status in (200, 400), answer


def test_09_schemas_as_deep_as_a_body_may_be(quern):
    for n in (60, 120, 100000):
        body = b'{"prompt":"x","max_tokens":2,"guided_json":' + b'{"items":' * n + b"{}" + b"}" * n + b"}"
        status, _, answer = quern.call("/v1/completions", body)
        assert status in (200, 400), (n, answer)


def test_10_unique_grammars_do_not_pile_up(quern):
    """The cache of grammars is bounded, and nothing is written anywhere."""
    def flood(first, n):
        for i in range(first, first + n):
            status, answer = quern.post("/v1/completions", prompt="x", max_tokens=1, guided_choice=[f"k{i}", f"{i}x"])
            assert status == 200, answer
    flood(0, 300)
    before = quern.rss()
    flood(1000, 600)
    assert quern.rss() - before < 64 << 20
    text = quern.call("/metrics")[2].decode()
    assert float(re.search(r"^quern_grammar_cache_bytes\S* (\S+)", text, re.M).group(1)) <= 256 << 20
    written = [os.readlink(f"/proc/{quern.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{quern.pid}/fd")]
    assert not [name for name in written if name.startswith("/tmp") or name.startswith("/var")], written


def test_17_a_refusal_says_nothing_about_a_key():
    """Nearly right or far off, the answer is the same to the byte; digests are compared, all of them, in full."""
    key = "a" * 48
    with Quern("--api-key", key) as q:
        answers = set()
        for guess in ["b" + "a" * 47, "a" * 47 + "b", "a", "a" * 49, "A" * 48, "a" * 900]:
            status, head, answer = q.call("/v1/models", headers={"Authorization": "Bearer " + guess})
            assert status == 401 and head["WWW-Authenticate"] == "Bearer"
            answers.add(json.dumps(answer))
        assert len(answers) == 1 and key not in q.log()


def test_22_vectors_are_not_taken_as_prompts(quern):
    for path, body in [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": HELLO})]:
        for value in ["AAAA", ["AAAA"], [[0.5]], {"a": 1}]:
            status, answer = quern.post(path, **body, prompt_embeds=value)
            assert status == 400 and answer["error"]["param"] == "prompt_embeds"
    for value in [[[0.5]], [0.5], "", [[]], {"x": 1}]:
        assert quern.post("/v1/embeddings", input=value)[0] == 400


def test_24_a_salt_keeps_prompts_of_others_apart(quern):
    """Whether somebody else has asked the same cannot be seen, neither in the numbers nor in what is computed."""
    prompt = "A secret that nobody else may find in the cache. " * 8
    def cached(**body):
        _, answer = quern.post("/v1/completions", prompt=prompt, max_tokens=1, **body)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached(cache_salt="alice") == 0 and cached(cache_salt="alice") > 0
    assert cached(cache_salt="bob") == 0 and cached() == 0 and cached(cache_salt="alic") == 0


def test_28_there_is_one_port_and_it_is_this_machines(quern):
    inodes = {os.readlink(f"/proc/{quern.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{quern.pid}/fd")}
    listening = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/{quern.pid}/net/{table}", encoding="ascii") as f:
            for line in list(f)[1:]:
                words = line.split()
                if f"socket:[{words[9]}]" in inodes and (words[3] == "0A" or table.startswith("udp")):
                    listening.append((table, words[1]))
    assert listening == [("tcp", f"0100007F:{quern.port:04X}")]


@pytest.mark.parametrize("path", ["/update_weights", "/v1/load_lora_adapter", "/load_lora_adapter", "/sleep", "/pause",
                                  "/wake_up", "/reset_prefix_cache", "/invocations", "/collective_rpc", "/shutdown",
                                  "/terminate", "/slots", "/props", "/lora-adapters", "/start_profile", "/admin",
                                  "/v2/systemsharedmemory/region/x/register", "/abort_request", "/flush_cache"])
def test_30_33_no_route_rules_the_server(quern, path):
    for body in (None, b"{}", json.dumps({"path": "/etc/passwd", "key": "/dev/shm/x"}).encode()):
        assert quern.call(path, body)[0] == 404
