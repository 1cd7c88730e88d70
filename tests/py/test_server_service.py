"""What those who run a server count on: a log of what was asked, numbers that never wait for the engine, tenants that
do not crowd each other out, clients whose patience ends, and limits that are told by name."""
import hashlib
import json
import threading
import time

import openai
import pytest

from server_quern import Quern

HELLO = [{"role": "user", "content": "x"}]


def test_a_client_whose_time_is_over_frees_its_request():
    with Quern("--fake-step", 20000) as q:
        client = openai.OpenAI(base_url=q.url + "/v1", api_key="none", timeout=0.5, max_retries=0)
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model=q.model, messages=HELLO, max_tokens=400,
                                           extra_body={"ignore_eos": True})
        stats = q.wait_idle(2)
        assert sum(stats["ended"].values()) == stats["requests"] == 1 and stats["kv"]["held"] == 0


def lines_of(q):
    return [json.loads(line) for line in q.log().split("\n") if line.startswith("{")]


def test_the_log_has_a_line_for_every_request_and_none_for_probes():
    with Quern("--log-format", "json") as q:
        q.call("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}, {"X-Request-Id": "mine-1"})
        q.call("/v1/completions", {"prompt": 5}, {"X-Request-Id": "mine-2"})
        for path in ("/health", "/metrics", "/stats", "/livez"):
            q.call(path)
        q.call("/v1/models", headers={"X-Request-Id": "mine-3"})
        end = time.time() + 5
        while time.time() < end and not [x for x in lines_of(q) if x.get("id") == "mine-3"]:
            time.sleep(0.02)
        seen = {x["id"]: x for x in lines_of(q) if x.get("msg") == "request" or "path" in x}
    assert seen["mine-1"]["status"] == 200 and seen["mine-1"]["path"] == "/v1/chat/completions"
    assert seen["mine-1"]["bytes"] > 100 and seen["mine-1"]["ms"] > 0 and seen["mine-1"]["left"] is False
    assert seen["mine-2"]["status"] == 400 and seen["mine-3"]["status"] == 200 and len(seen) == 3
    with Quern("--no-access-log") as q:
        q.call("/v1/models")
        assert "/v1/models" not in q.log()


def test_numbers_do_not_wait_for_a_step():
    """A step takes two seconds; scrapes in the middle of it are answered all the same."""
    with Quern("--fake-step", 2000000) as q:
        asked = threading.Thread(target=q.post, args=("/v1/completions",), kwargs={
            "prompt": "x", "max_tokens": 2, "ignore_eos": True})
        asked.start()
        end = time.time() + 10
        while q.call("/stats")[2]["running"] == 0 and time.time() < end:
            time.sleep(0.01)
        steps = q.call("/stats")[2]["steps"]
        for path in ("/metrics", "/stats?map=1") * 10:
            assert q.call(path)[0] == 200
        assert q.call("/stats")[2]["steps"] <= steps + 1  # twenty scrapes, and hardly a step has passed
        asked.join()


def finished_before(order, tmp_path):
    """Of twelve requests of one tenant, how many ended before the one that another tenant sent after them."""
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"tenants": [
        {"name": name, "keys": [hashlib.sha256(name.encode()).hexdigest()]} for name in ("heavy", "light")]}))
    ends = []

    def ask(q, name):
        status, _, answer = q.call("/v1/completions", {"prompt": "x", "max_tokens": 40, "ignore_eos": True},
                                   {"Authorization": "Bearer " + name})
        assert status == 200, answer
        ends.append(name)
    with Quern("--key-file", path, "--order", order, "--fake-step", 4000, "--max-num-seqs", 2) as q:
        threads = [threading.Thread(target=ask, args=(q, "heavy")) for _ in range(12)]
        for t in threads:
            t.start()
        light = {"Authorization": "Bearer light"}
        end = time.time() + 10
        while q.call("/stats", headers=light)[2]["waiting"] < 8 and time.time() < end:
            time.sleep(0.005)
        ask(q, "light")
        for t in threads:
            t.join()
    return ends.index("light")


def test_a_tenant_that_floods_does_not_hold_up_another(tmp_path):
    assert finished_before("vtc", tmp_path) <= 6
    assert finished_before("fcfs", tmp_path) >= 10  # what it is about


@pytest.mark.parametrize("field, value", [
    ("logit_bias", {str(i): 1 for i in range(1025)}), ("stop", ["x"] * 65), ("stop", ["x" * 5000]),
    ("stop_token_ids", [5] * 257), ("allowed_token_ids", [5] * (256 * 1024 + 1)), ("cache_salt", "x" * 1025),
    ("request_id", "x" * 65), ("n", 129)])
def test_limits_are_told_by_the_name_of_the_field(field, value, quern):
    status, answer = quern.post("/v1/completions", prompt="x", max_tokens=1, **{field: value})
    assert status == 400 and answer["error"]["param"] == field, answer


@pytest.fixture(scope="module")
def quern():
    with Quern() as q:
        yield q
