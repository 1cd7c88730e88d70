"""The end-to-end equality suite on the CPU, where the same request always has the same tokens, and what it says when
something is wrong. On a card: bench/device_check.py --only requests. Then bench/cuda --row, which has the same door."""
import re
import sys

import pytest

import quern_requests
from quern_model import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import cuda  # noqa: E402

SMALL = dict(device="cpu", shape="small-64", weights="BF16", kv="BF16", fp8=0, deterministic=1)


def small(**change):
    return quern_requests.Suite(8, 32, 8, 8, **(SMALL | change))


@pytest.mark.parametrize("weights, kv, late, drawn", [("BF16", "BF16", 0, 0), ("Q8_0", "Q8_0", 1, 0),
                                                      ("BF16", "BF16", 0, 1)])  # late: one step ahead
def test_tokens_are_the_same_whichever_way_requests_are_run(weights, kv, late, drawn):
    suite = quern_requests.Suite(24, 48, 24, 24, **(SMALL | dict(weights=weights, kv=kv)))
    lines = list(suite.run(late=late, drawn=drawn))
    assert [name for name, _, _, _ in lines] == ["from one another", *suite.ways(), "the twin"]
    for name, differ, counts, ok in lines:
        assert ok, f"{name}: {differ} of {suite.n} differ, {quern_requests.show(counts)}"


def test_as_few_requests_as_the_sanitizers_have_are_enough():
    assert all(ok for _, _, _, ok in small().run())


def test_tokens_of_another_are_found():
    with quern_requests.Model(**small().shape) as model:
        (want,), _ = model.run(small().prompts(model.vocab), small().n_out, **small().usual)
    assert quern_requests.count_differing([want], want) == 0
    assert quern_requests.count_differing([want, [want[1], *want[1:]]], want) == 1


@pytest.mark.parametrize("way", list(small().ways()))
def test_what_did_not_happen_is_no_proof(monkeypatch, way):
    """A run in the usual way, called by another name."""
    suite, ways = small(), small().ways()
    ways[way] = ({"streams": 1} if way == "together" else {}, ways[way][1])
    monkeypatch.setattr(suite, "ways", lambda: ways)
    assert [name for name, _, _, ok in suite.run() if not ok] == [way]


def test_what_cannot_be_is_said():
    with pytest.raises(RuntimeError, match="KV cache of type F8_E4M3"):
        quern_requests.Model(**small(kv="F8_E4M3").shape)
    with quern_requests.Model(**small().shape) as model:
        prompts = small().prompts(model.vocab)
        with pytest.raises(RuntimeError, match="8 streams, 9999 rows"):
            model.run(prompts, small().n_out, **(small().usual | dict(rows=9999)))
        with pytest.raises(RuntimeError, match="tokens"):  # the second has no room for its prompt
            model.run(prompts, small().n_out, **(small().usual | dict(blocks=3)))
        (answers,), _ = model.run(prompts, small().n_out, **small().usual)  # and the model is as good as before
    assert [len(a) for a in answers] == small().n_out


def test_a_row_of_the_table_is_answered_whole(monkeypatch, capsys):
    monkeypatch.setattr(cuda, "LOAD_TOKENS", 320)
    monkeypatch.setattr(cuda, "LOAD_ROWS", 64)
    assert cuda.run_row("90/10", 7, **SMALL) == 0
    said = capsys.readouterr().out
    assert "7 requests, 3 at a time" in said and int(re.search(r"(\d+) steps", said)[1]) >= 7 * (90 + 9) / 64
    assert cuda.run_row("90/10", 7, **(SMALL | dict(fp8=1))) == 1
    assert "F8 weights are not supported on cpu" in capsys.readouterr().out
