"""quern plan: memory counted exactly, speed of the right order, advice that holds."""
import json
import re

import pytest

from cli_models import quern


def plan(*args):
    r = quern("plan", *args, "--json")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def dummy(name, *args):
    return plan("--load-format", "dummy", name, *args)


def test_weights_and_cache_are_counted_as_inspect_counts_them():
    p = plan("tiny")
    seen = json.loads(quern("inspect", "tiny", "--json").stdout)
    assert p["memory"]["weights_bytes"] == seen["memory"]["weights_bytes"]
    assert p["memory"]["kv_token_bytes"] * 512 == seen["memory"]["kv_cache_bytes"]
    assert p["memory"]["fits"] and p["sequences_that_fit"] > 100
    assert plan("tiny", "--kv-cache-dtype", "f32")["memory"]["kv_token_bytes"] == 2 * p["memory"]["kv_token_bytes"]


def test_measuring_is_quick_and_the_prediction_is_of_the_right_order():
    p = plan("tiny")
    assert p["measured"]["seconds"] < 2.0  # half a second on a machine that does nothing else
    assert all(v > 0 for v in p["predicted"].values())
    assert p["predicted"]["decode_full_context_tok_s"] < p["predicted"]["decode_tok_s"]
    assert p["measured"]["read_bytes_s"] > 0 and isinstance(p["gpus"], list)
    assert p["predicted"]["prefill_tok_s"] > p["predicted"]["decode_tok_s"]


@pytest.mark.parametrize("name, params, active", [("smollm2-135m", 134.5e6, 134.5e6), ("llama-3.1-8b", 8.03e9, 7.5e9),
                                                  ("mixtral-8x7b", 46.7e9, 12.75e9), ("qwen3-30b-a3b", 30.5e9, 3.03e9)])
def test_built_in_shapes_have_the_published_sizes(name, params, active):
    p = dummy(name, "-c", "1024")
    assert abs(p["parameters"] / params - 1) < 0.01
    assert abs(p["active_parameters"] / active - 1) < 0.03


def test_advice_when_it_does_not_fit_holds():
    args = ["llama-3.2-1b", "--dtype", "q4_0", "--memory", "2GiB"]
    p = dummy(*args)
    assert not p["memory"]["fits"]
    length = int(re.search(r"--max-model-len (\d+)", p["advice"])[1])
    assert dummy(*args, "-c", str(length))["memory"]["fits"]
    assert not dummy(*args, "-c", str(length + 1024))["memory"]["fits"]
    assert "weights alone" in dummy("llama-3.1-8b", "--memory", "2GiB")["advice"]
    r = dummy("llama-3.2-1b", "-c", "8192", "--max-num-seqs", "64", "--memory", "4GiB")
    n = int(re.search(r"--max-num-seqs (\d+)", r["advice"])[1])
    assert dummy("llama-3.2-1b", "-c", "8192", "--max-num-seqs", str(n), "--memory", "4GiB")["memory"]["fits"]


def test_text_and_mistakes():
    r = quern("plan", "tiny")
    assert r.returncode == 0 and "It fits." in r.stdout and r.stderr == ""
    assert max(map(len, r.stdout.splitlines())) <= 120
    assert quern("plan", "tiny", "-c", "1000").returncode == 1
    r = quern("plan", "--cache-dir", "/nonexistent/cache")
    assert r.returncode == 1 and "quern: error: " in r.stderr
