"""quern score: log-probabilities that agree with what run reports, windows, and the summary."""
import json
import math

from cli_models import REPO, quern

TEXT = "Good morrow, cousin. What news from the king, and when shall we three meet again?"


def score(*args, text=TEXT, model="tiny"):
    r = quern("score", model, "--json", *args, input=text)
    assert r.returncode == 0, r.stderr
    lines = [json.loads(line) for line in r.stdout.splitlines()]
    return lines[:-1], lines[-1]


def test_tokens_and_summary_agree():
    tokens, summary = score()
    assert b"".join(bytes(t["bytes"]) for t in tokens).decode() == TEXT
    scored = [t["logprob"] for t in tokens if t["logprob"] is not None]
    assert summary["scored"] == len(scored) and all(p < 0 for p in scored)
    assert math.isclose(summary["nll"], -sum(scored), rel_tol=1e-5)
    assert math.isclose(summary["perplexity"], math.exp(-sum(scored) / len(scored)), rel_tol=1e-4)


def test_score_agrees_with_the_logprobs_of_run():
    args = ["--raw", "-p", TEXT, "-n", "6", "--temp", "0", "--json", "--logprobs", "0"]
    answer = json.loads(quern("run", "tiny", *args).stdout)
    tokens, _ = score(text=TEXT + answer["text"])
    if [t["id"] for t in tokens[-6:]] == [t["id"] for t in answer["tokens"]]:  # the text is cut as it was made
        for a, b in zip(tokens[-6:], answer["tokens"]):
            assert abs(a["logprob"] - b["logprob"]) < 1e-4
    worse, _ = score(text=TEXT + " zebra xylophone")
    assert worse[-1]["logprob"] < -3


def test_a_shuffled_text_is_less_likely():
    shuffled = " ".join(sorted(TEXT.split()))
    assert score(text=shuffled)[1]["perplexity"] > score()[1]["perplexity"]


def test_a_text_longer_than_the_context_is_scored_in_windows():
    text = (REPO / "tests" / "data" / "tiny" / "README.md").read_text()
    whole, all_at_once = score(text=text)
    assert all_at_once["tokens"] < 512
    tokens, summary = score("-c", "64", text=text)
    assert [t["id"] for t in tokens] == [t["id"] for t in whole] and summary["scored"] == all_at_once["scored"]
    for a, b in list(zip(tokens, whole))[1:64]:
        assert a["logprob"] == b["logprob"], "the first window sees what the whole text shows"
    assert summary["perplexity"] != all_at_once["perplexity"]
    for stride in (7, 64):
        again, other = score("-c", "64", "--stride", stride, text=text)
        assert [t["id"] for t in again] == [t["id"] for t in whole] and other["scored"] == summary["scored"]
    # Without overlap the first token of the second window sees one token; with it, many.
    assert again[65]["logprob"] != tokens[65]["logprob"]


def test_text_for_people_and_mistakes():
    r = quern("score", "tiny", input="Good morrow")
    assert r.returncode == 0 and r.stdout.splitlines()[-1].startswith("perplexity ")
    assert quern("score", "tiny", input="").returncode == 1
    r = quern("score", "tiny", "--stride", "600", input=TEXT)
    assert r.returncode == 1 and "--stride" in r.stderr
    assert quern("score", "tiny", input="G").returncode == 0


def test_same_bytes_with_any_number_of_threads():
    assert quern("score", "tiny", "-t", "1", input=TEXT).stdout == quern("score", "tiny", "-t", "3", input=TEXT).stdout
