"""Against llama.cpp, whose numbers lie in tests/golden (made by `make goldens`), and real models.

The default model has 4-bit weights, and both programs round the inputs of its products to 8 bits, each in its own way:
that alone moves logits by 2% (quern against float64 over 64 tokens: 2.2%), and where two tokens are nearly equal the
choice flips. Measured over the 8,192 tokens: the same choice at 96.0% of the positions, the others within 0.84 nat,
perplexity 29.433 against 29.411 (0.07%). Bars: 95%, 1 nat, 0.3% over what was run. The tiny models above, whose F32
weights leave no such noise, agree to 1e-5. The first window of 2,048 tokens is checked here; all four, 8,192 tokens,
when QUERN_GOLDEN_ALL is set, which `make goldens` does.
"""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import reference_models
import reference_quants
from golden_cases import (DEFAULT_SAMPLE, LLAMA_CASES, TINY_ROWS, TINY_TOKENS, WINDOW, WINDOWS, best_and_margin,
                          log_probabilities, sample_rows)
from quern_model import Model
from reference import Reference, noise

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
QUERN = os.environ.get("QUERN_BIN", str(ROOT / "build/release/quern"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared/data"))

# llama.cpp looks GELU up in a table of 16-bit floats, and rounds the inputs of F16 and BF16 weights to those types.
TINY_BAR = 1e-5
TINY_BARS = dict.fromkeys(["gemma2", "gemma3", "gemma3-linear"], 1e-3) | {"F16": 2e-3, "BF16": 1e-2}
QUANT_BAR = 0.05  # both round their inputs to 8 bits, each in its own way; measured 0.4% to 3.3%


def run_tiny(tmp_path, name):
    """(config, weights, our logits at the rows of the golden)"""
    if name in reference_models.CASES:
        config = reference_models.make_config(name)
        weights, packed = reference_models.make_weights(config, name), None
    else:
        config, weights, packed = reference_quants.make_quantised("llama", name)
    path = reference_models.write_gguf(tmp_path / "model.gguf", config, weights, packed=packed)
    ids = reference_models.make_ids(config, TINY_TOKENS)
    with Model(path, kv_dtype="F32", context=256) as model:
        return config, weights, ids, model.logits(ids)[TINY_ROWS]


@pytest.mark.parametrize("name", LLAMA_CASES + reference_quants.FLOAT_TYPES + reference_quants.BLOCK_TYPES)
def test_tiny_models_equal_llama(tmp_path, name):
    _, _, _, got = run_tiny(tmp_path, name)
    bar = QUANT_BAR if name in reference_quants.BLOCK_TYPES else TINY_BARS.get(name, TINY_BAR)
    assert noise(got, np.load(GOLDEN / "llama_tiny.npz")[name]) < bar


@pytest.mark.parametrize("name,bar", [("llama", TINY_BAR), ("gemma3", 1e-3), ("Q8_0", QUANT_BAR)])
def test_bars_against_llama_notice_a_planted_error(tmp_path, name, bar):
    config, weights, ids, _ = run_tiny(tmp_path, name)
    golden = np.load(GOLDEN / "llama_tiny.npz")[name]
    for fault in ("swapped_heads", "position"):
        wrong = Reference(config, weights, context=256, faults=[fault]).logits(ids)[TINY_ROWS]
        assert noise(wrong, golden) > bar, fault


# ---- the default model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def default_model():
    """The file in the cache; a clone without a network has none."""
    path = os.environ.get("QUERN_DEFAULT_MODEL")
    if not path:
        found = subprocess.run([QUERN, "inspect", "smollm2-135m-instruct", "--json"], capture_output=True, text=True,
                               check=False)
        path = json.loads(found.stdout)["path"] if found.returncode == 0 else None
    if not path or not pathlib.Path(path).exists():
        pytest.skip("the default model is not in the cache; `quern pull` gets it")
    return path


def window_results(path, i):
    golden = np.load(GOLDEN / "llama_default.npz")
    ids = golden["ids"][i * WINDOW:(i + 1) * WINDOW]
    with Model(path, context=WINDOW) as model:
        return golden, ids, model.logits(ids)


def check_window(golden, i, ids, logits):
    best, margin = best_and_margin(logits)
    theirs = golden["best"][i * WINDOW:(i + 1) * WINDOW]
    differ = np.nonzero(best != theirs)[0]
    assert len(differ) <= 0.05 * WINDOW, f"{len(differ)} of {WINDOW} choices differ"
    ours = logits[differ, best[differ]] - logits[differ, theirs[differ].astype(np.int64)]
    assert (ours <= 1.0).all() and (golden["margin"][i * WINDOW:(i + 1) * WINDOW][differ] <= 1.0).all()
    assert noise(logits[sample_rows()][:, ::DEFAULT_SAMPLE], golden["sample"][i]) < 0.08
    return log_probabilities(logits[:-1], ids[1:])


def test_default_model_agrees_with_llama(default_model):
    windows = WINDOWS if os.environ.get("QUERN_GOLDEN_ALL") else 1
    found = []
    for i in range(windows):
        golden, ids, logits = window_results(default_model, i)
        found.append(check_window(golden, i, ids, logits))
        if i == 0:  # the same bars on a text that is off by one position must fail
            with pytest.raises(AssertionError):
                check_window(golden, i, ids, np.roll(logits, 1, axis=0))
    theirs = golden["log_prob"][:windows]
    ratio = np.exp(theirs.mean() - np.stack(found).mean())
    assert abs(ratio - 1) < 0.003, f"perplexity differs by {100 * (ratio - 1):.3f}%"


@pytest.mark.xfail(reason="8-bit inputs: exact arithmetic prefers 'The' to 'L' by 0.08 nat, quern and "
                          "llama.cpp both say 'L'")
def test_default_model_knows_the_capital_of_france(default_model):
    asked = subprocess.run([QUERN, "run", default_model, "-p", "What is the capital of France?", "--temp", "0",
                            "--max-tokens", "24"], capture_output=True, text=True, timeout=300, check=False)
    assert asked.returncode == 0, asked.stderr
    assert "Paris" in asked.stdout


# ---- real models with golden logits of their own -------------------------------------------------------------------


@pytest.mark.parametrize("name,file,vocab,bar", [("stories260K", "stories260K-f32.gguf", 512, 1e-5),
                                                 ("stories15M", "stories15M-q8_0.gguf", 32000, 0.04)])
def test_stories_equal_their_golden_logits(name, file, vocab, bar):
    folder = SHARED / "models" / name
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    about = json.loads((folder / "golden_logits.json").read_text())
    ids = about["ids"][:16]
    want = np.fromfile(folder / f"golden_logits_16x{vocab}_f32le.bin", dtype="<f4").reshape(16, vocab)
    with Model(folder / file, kv_dtype="F32") as model:
        got = model.logits(ids)
    assert noise(got, want) < bar < noise(np.roll(got, 1, axis=0), want)
