"""Guesses through the server: the same answers with any of them, counted in usage and metrics; what is not there is
refused by name; a draft that speaks another vocabulary is refused at the start."""
import json
import re
import shutil
import subprocess

import pytest

from cli_models import REPO, quern_bin
from server_quern import Quern

TINY = REPO / "tests" / "data" / "tiny"
PROMPTS = ["First Citizen: speak, speak, speak, speak. All: speak,", "To be, or not to be, that is", "KING HENRY:",
           "All: We know't, we know't. First Citizen: Let us kill him, and we'll have corn at our own price. All:"]
WAYS = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}, {"temperature": 1, "top_p": 0.9, "seed": 4, "n": 2},
        {"temperature": 0.7, "top_k": 20, "presence_penalty": 0.5, "repetition_penalty": 1.1, "seed": 5},
        {"temperature": 0.9, "min_p": 0.05, "logprobs": 2, "seed": 6, "stop": [":"], "min_tokens": 6},
        {"temperature": 0.9, "seed": 7, "structured_outputs": {"regex": "(the (king|duke|queen) and )+the end"}},
        {"temperature": 0, "logprobs": 1, "structured_outputs": {"regex": "(to be, or not to (be|have), )+"}},
        {"temperature": 1, "seed": 8, "n": 2, "structured_outputs": {
            "json": {"type": "array", "items": {"enum": ["alas", "woe"]}, "minItems": 4, "maxItems": 9}}}]


@pytest.fixture(scope="module")
def server():
    with Quern("--speculative", f"draft:{TINY / 'tiny-1m-q8_0.gguf'}", "--speculative-k", "6",
               model=TINY / "tiny-4m-q8_0.gguf") as q:
        yield q


def ask(q, prompt, way, speculative):
    body = {"model": q.model, "prompt": prompt, "max_tokens": 40, **way}
    if speculative is not None:
        body["speculative"] = speculative
    status, _, answer = q.call("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"], answer["usage"]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_guesses_change_no_answer(server, way):
    for prompt in PROMPTS:
        plain, usage = ask(server, prompt, WAYS[way], {"method": "none"})
        assert "completion_tokens_details" not in usage
        for speculative in (None, {"method": "ngram", "k": 4}, {"method": "draft", "k": 8}, {"k": 1}):
            choices, usage = ask(server, prompt, WAYS[way], speculative)
            assert choices == plain, speculative
            details = usage["completion_tokens_details"]
            assert 0 <= details["accepted_prediction_tokens"] <= usage["completion_tokens"]
            assert details["rejected_prediction_tokens"] >= 0


def metric(q, name):
    found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\d+)$", q.call("/metrics")[2].decode(), re.M)
    return [int(x) for x in found]


def test_metrics_and_stats_agree(server):
    for prompt in PROMPTS:
        ask(server, prompt, {"temperature": 0}, {"method": "ngram", "k": 8})
    [drafts], [tokens], [accepted] = (metric(server, f"vllm:spec_decode_num_{name}_total")
                                      for name in ("drafts", "draft_tokens", "accepted_tokens"))
    per_pos = metric(server, "vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert 0 < drafts <= tokens and accepted <= tokens and sum(per_pos) == accepted and len(per_pos) == 8
    spec = server.call("/stats")[2]["spec"]
    assert (spec["drafts"], spec["tokens"], spec["accepted"]) == (drafts, tokens, accepted)
    assert spec["tried_pos"][0] == drafts and all(a <= b for a, b in zip(spec["per_pos"], spec["tried_pos"]))


@pytest.mark.parametrize("field,says", [
    ({"method": "medusa"}, "none of none, ngram and draft"), ({"method": "ngram", "k": 0}, "'k'"),
    ({"method": "ngram", "k": 9}, "'k'"), ("ngram", "speculative"), ({"method": 7}, "method")])
def test_wrong_fields_are_refused_by_name(server, field, says):
    status, _, answer = server.call("/v1/completions", {"model": server.model, "prompt": "x", "speculative": field})
    assert status == 400 and says in answer["error"]["message"], answer


def test_a_draft_that_is_not_there_is_refused():
    with Quern(model=TINY / "tiny-1m-q8_0.gguf") as q:
        body = {"model": q.model, "prompt": "x", "max_tokens": 4, "speculative": {"method": "draft"}}
        status, _, answer = q.call("/v1/completions", body)
        assert status == 400 and answer["error"]["param"] == "speculative"
        assert "no draft model" in answer["error"]["message"]
        body["speculative"] = {"method": "ngram"}
        assert q.call("/v1/completions", body)[0] == 200


def start(*args):
    argv = [quern_bin(), "serve", str(TINY / "tiny-4m-q8_0.gguf"), "--port", "0", *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_a_draft_of_another_tokenizer_is_refused_at_the_start(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(TINY / "tiny-1m-hf", other)
    doc = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = doc["model"]["vocab"]
    names = sorted(vocab, key=vocab.get)
    one, two = names[1500], names[1501]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (other / "tokenizer.json").write_text(json.dumps(doc, ensure_ascii=False), encoding="utf-8")
    code, said = start("--speculative", f"draft:{other}")
    assert code != 0 and "tokenizer is another one: token" in said, said


@pytest.mark.parametrize("args,says", [
    (("--speculative", "medusa"), "none of none, ngram and draft:MODEL"), (("--speculative", "draft:"), "draft:MODEL"),
    (("--speculative-k", "9"), "speculative-k"),
    (("--speculative-ngram-min", "9", "--speculative-ngram-max", "3"), "speculative-ngram-min"),
    (("--speculative", "draft:/nowhere/at/all", "--offline"), "nowhere")])
def test_wrong_options_are_refused(args, says):
    code, said = start(*args)
    assert code != 0 and says in said, said
