"""Against llama.cpp, whose numbers lie in tests/golden (made by `make goldens`), and real models.

The default model has 4-bit weights. llama.cpp as it comes rounds the inputs of their products to 8 bits; built with
OpenBLAS it takes the weights as f32 numbers and rounds no inputs. quern rounds them to 16 bits. Exact here is llama.cpp
on the same weights written out as f32 (a float64 reference in numpy gives the same). Measured over 8,192 choices of the
next token:

                             the same choice as exact    the others within    perplexity (exact: 33.267)
    quern                    99.99%                      0.003 nat            33.267
    llama.cpp, OpenBLAS      99.96%                      0.001 nat            33.267
    llama.cpp as it comes    96.02%                      0.540 nat            33.342

So quern is held to llama.cpp with OpenBLAS, on the model's own file (measured: 99.95%, 0.008 nat, 0.0004%), and to
exact arithmetic: 99.5%, 0.02 nat and 0.05%, which the choices of llama.cpp as it comes must miss. With that one quern
agrees as often as it agrees with itself, 96.0%: no program can do better than by making the same rounding errors, and
rounding by its rule (scales in f16 too) gave 95.9%, since every later difference in the order of additions is magnified
as well. Bars there, a little above its own distance from exact: 95%, 0.6 nat and 0.3%.
The first window of 2,048 tokens is checked here; all four when QUERN_GOLDEN_ALL is set, which `make goldens` does.
"""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import reference_models
import reference_quants
from golden_cases import (DEFAULT_SAMPLE, FRANCE_IDS, LLAMA_CASES, TINY_ROWS, TINY_TOKENS, WINDOW, WINDOWS,
                          best_and_margin, log_probabilities, sample_rows)
from quern_model import Model
from reference import Reference, noise

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
QUERN = os.environ.get("QUERN_BIN", str(ROOT / "build/release/quern"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared/data"))

# llama.cpp looks GELU up in a table of 16-bit floats, and rounds the inputs of F16 and BF16 weights to those types.
TINY_BAR = 1e-5
TINY_BARS = dict.fromkeys(["gemma2", "gemma3", "gemma3-linear"], 1e-3) | {"F16": 2e-3, "BF16": 1e-2}
QUANT_BAR = 0.05  # llama.cpp rounds inputs to 8 bits; measured 0.3% to 2.8%


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


class Window:
    """One window of the text: what llama.cpp and exact arithmetic make of it, and what we do."""

    def __init__(self, path, i):
        at = slice(i * WINDOW, (i + 1) * WINDOW)
        llama = np.load(GOLDEN / "llama_default.npz")
        self.ids, self.sample = llama["ids"][at], llama["sample"][i]
        self.best_of, self.margin_of, self.log_prob_of = {}, {}, {}
        for name in ("llama", "blas", "exact"):
            golden = np.load(GOLDEN / f"{name}_default.npz")
            self.best_of[name], self.margin_of[name] = golden["best"][at].astype(np.int64), golden["margin"][at]
            self.log_prob_of[name] = golden["log_prob"][i]
        with Model(path, context=WINDOW) as model:
            self.logits = model.logits(self.ids)
        self.best = best_and_margin(self.logits)[0]
        self.log_prob = log_probabilities(self.logits[:-1], self.ids[1:])


def check_exact(window, best, oracle):
    """That these choices are those of an oracle that rounds no inputs, but for ties."""
    differ = np.nonzero(best != window.best_of[oracle])[0]
    assert len(differ) <= 0.005 * WINDOW, f"{len(differ)} of {WINDOW} choices are not those of {oracle}"
    assert (window.margin_of[oracle][differ] <= 0.02).all()


def check_llama(window, best, logits):
    differ = np.nonzero(best != window.best_of["llama"])[0]
    assert len(differ) <= 0.05 * WINDOW, f"{len(differ)} of {WINDOW} choices are not those of llama.cpp"
    ours = logits[differ, best[differ]] - logits[differ, window.best_of["llama"][differ]]
    assert (ours <= 0.6).all() and (window.margin_of["llama"][differ] <= 0.6).all()
    assert noise(logits[sample_rows()][:, ::DEFAULT_SAMPLE], window.sample) < 0.08


def perplexity_ratio(ours, theirs):
    return np.exp(np.mean(theirs, dtype=np.float64) - np.mean(ours, dtype=np.float64))


@pytest.fixture(scope="module")
def windows(default_model):
    return [Window(default_model, i) for i in range(WINDOWS if os.environ.get("QUERN_GOLDEN_ALL") else 1)]


@pytest.mark.parametrize("oracle", ["blas", "exact"])
def test_default_model_agrees_with_oracles_that_round_no_inputs(windows, oracle):
    for window in windows:
        check_exact(window, window.best, oracle)
        for wrong in (np.roll(window.best, 1), window.best_of["llama"]):  # a shifted text; inputs in 8 bits
            with pytest.raises(AssertionError):
                check_exact(window, wrong, oracle)
    ratio = perplexity_ratio([w.log_prob for w in windows], [w.log_prob_of[oracle] for w in windows])
    assert abs(ratio - 1) < 0.0005, f"perplexity differs by {100 * (ratio - 1):.3f}%"


def test_default_model_agrees_with_llama_as_it_comes(windows):
    for window in windows:
        check_llama(window, window.best, window.logits)
        with pytest.raises(AssertionError):
            check_llama(window, np.roll(window.best, 1), np.roll(window.logits, 1, axis=0))
    ratio = perplexity_ratio([w.log_prob for w in windows], [w.log_prob_of["llama"] for w in windows])
    assert abs(ratio - 1) < 0.003, f"perplexity differs by {100 * (ratio - 1):.3f}%"


def variants():
    """The sets of kernels that this machine can run."""
    return ["cpu-ref", *(name for name, flag in (("cpu-avx2", "f16c"), ("cpu-avx512", "avx512_vnni"))
                         if flag in pathlib.Path("/proc/cpuinfo").read_text())]


@pytest.mark.parametrize("variant", variants())
def test_default_model_knows_the_capital_of_france(default_model, variant):
    asked = subprocess.run([QUERN, "run", default_model, "-p", "What is the capital of France?", "--temp", "0",
                            "--max-tokens", "24", "--cpu-variant", variant], capture_output=True, text=True,
                           timeout=300, check=False)
    assert asked.returncode == 0, asked.stderr
    assert "Paris" in asked.stdout


@pytest.mark.parametrize("variant", variants())
def test_near_tie_in_front_of_the_answer_is_that_of_exact_arithmetic(default_model, variant):
    """Two words nearly tie there, and only one of them leads to Paris: inputs in 8 bits move them by ten times the
    bar."""
    exact = np.load(GOLDEN / "exact_default.npz")
    with Model(default_model, context=256, variant=variant) as model:
        ours = model.logits(FRANCE_IDS)[-1]
    found = ours[exact["france_ids"].astype(np.int64)]
    assert np.abs((found - found[0]) - (exact["france"] - exact["france"][0])).max() < 0.02
    assert ours.argmax() == exact["france_ids"][0]


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
