"""Every architecture against the float64 reference, from safetensors and from GGUF, and the reference against
transformers (tests/golden/transformers.npz, made by `make goldens`).

Models are tiny and random, F32, with F32 keys and values: what is left is the rounding of float arithmetic. The bar is
1e-5 (reference.error). Each bar is shown to be narrow enough: the same comparison with an error planted in the
reference must fail, for every error that the architecture can have.
"""
import functools
import pathlib

import numpy as np
import pytest

import reference_models
from quern_model import Model
from reference import Reference, error, layer_kinds, noise

BAR = 1e-5
GOLDEN_BAR = 2e-5  # transformers computes rope angles in float32
TOKENS = 200  # over the window of 40, three tiles of 64 and a dozen blocks
GOLDEN_ROWS = [0, 39, 40, 41, 64, 128, 199]
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/transformers.npz"
CASES = list(reference_models.CASES)
# GGUF cannot say that only the later layers of Qwen 2 slide.
FORMS = [(case, form) for case in CASES for form in ("hf", "gguf") if (case, form) != ("qwen2-window", "gguf")]


class Case:
    def __init__(self, name, scratch):
        self.config = reference_models.make_config(name)
        self.weights = reference_models.make_weights(self.config, name)
        self.ids = reference_models.make_ids(self.config, TOKENS)
        self.paths = {"hf": reference_models.write_hf(scratch / name, self.config, self.weights),
                      "gguf": reference_models.write_gguf(scratch / f"{name}.gguf", self.config, self.weights)}
        self.want = self.reference()

    def reference(self, n=TOKENS, faults=()):
        return Reference(self.config, self.weights, context=TOKENS, faults=faults).logits(self.ids[:n])


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("reference")
    return functools.cache(lambda name: Case(name, scratch))


def run(path, ids, **options):
    chunk = options.pop("chunk", 512)
    with Model(path, context=TOKENS, **({"kv_dtype": "F32"} | options)) as model:
        return model.logits(ids, chunk=chunk)


@pytest.mark.parametrize("name,form", FORMS)
def test_logits_equal_the_reference(case_of, name, form):
    case = case_of(name)
    got = run(case.paths[form], case.ids)
    assert error(got, case.want) < BAR


def possible_faults(c):
    faults = ["swapped_heads", "position", "rope_base", "eps"]
    rules = {"window": "local" in layer_kinds(c), "attn_softcap": c.get("attn_logit_softcapping"),
             "final_softcap": c.get("final_logit_softcapping"), "plus_one": reference_models.is_gemma(c),
             "experts": reference_models.is_mixture(c), "norm_topk": reference_models.is_mixture(c),
             "qk_norm": c["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"),
             "bias": c["model_type"] == "qwen2" or c.get("attention_bias"), "rope_scaling": c.get("rope_scaling"),
             "query_scale": True, "local_rope": c["model_type"] == "gemma3_text",
             "rotary_dims": "partial_rotary_factor" in c}
    return faults + [name for name, there in rules.items() if there]


@pytest.mark.parametrize("name", CASES)
def test_every_planted_error_is_noticed(case_of, name):
    case, n = case_of(name), 96  # enough for the window; attention is causal, so rows do not depend on later ones
    got = run(case.paths["hf"], case.ids)[:n]
    for fault in possible_faults(case.config):
        measured = error(got, case.reference(n, [fault]))
        assert measured > 2 * BAR, f"{fault} changes the logits by only {measured:.1e}"


@pytest.mark.parametrize("name", CASES)
def test_no_cut_of_the_work_changes_a_bit(case_of, name):
    case = case_of(name)
    path = case.paths["hf"]
    whole = run(path, case.ids)
    for cut in (dict(chunk=1), dict(chunk=37), dict(chunk=64, block_tokens=64), dict(threads=1, block_tokens=48)):
        assert run(path, case.ids, **cut).tobytes() == whole.tobytes(), cut


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe"])
def test_plain_kernels_meet_the_bar_too(case_of, name):
    case = case_of(name)
    assert error(run(case.paths["gguf"], case.ids, variant="cpu-ref"), case.want) < BAR


@pytest.mark.parametrize("name", CASES)
def test_reference_equals_transformers(case_of, name):
    case = case_of(name)
    golden = np.load(GOLDEN)[name]
    assert error(case.want[GOLDEN_ROWS], golden) < GOLDEN_BAR


def test_a_longer_context_of_longrope_takes_the_long_factors(case_of):
    """The choice is made by the context a model is opened with, not by the length of a prompt."""
    case = case_of("phi3-longrope-short")
    with Model(case.paths["gguf"], kv_dtype="F32", context=257) as model:
        long = model.logits(case.ids)
    want = Reference(case.config, case.weights, context=257).logits(case.ids)
    assert error(long, want) < BAR
    assert error(long, case.want) > 0.01


# What a KV cache in fewer bits costs (reference.noise against exact keys and values). Measured on the worst of the
# three models: F16 5.9e-4, BF16 5.0e-3, Q8_0 1.5e-2, Q4_0 0.24. These models attend far more sharply than trained
# ones do, so that the cache shows. The next coarser cache breaks each bar.
KV_BARS = {"F16": 1.2e-3, "BF16": 8e-3, "Q8_0": 2.5e-2, "Q4_0": 0.4}
KV_WORSE = {"F16": "BF16", "BF16": "Q8_0", "Q8_0": "Q4_0"}
KV_CASES = ["llama-head-dim", "qwen3", "gemma3", "llama"]  # heads of 32; of 16, half a quantised group


@pytest.mark.parametrize("name", KV_CASES)
@pytest.mark.parametrize("dtype", KV_BARS)
def test_smaller_cache_stays_near_the_reference(case_of, name, dtype):
    case = case_of(name)
    got = run(case.paths["hf"], case.ids, kv_dtype=dtype)
    assert noise(got, case.want) < KV_BARS[dtype]
    assert noise(got, case.want) > BAR, "the cache was not rounded at all"
    assert got.tobytes() == run(case.paths["hf"], case.ids, kv_dtype=dtype, chunk=23, block_tokens=32).tobytes()


@pytest.mark.parametrize("dtype", KV_WORSE)
def test_cache_bar_notices_a_cache_of_fewer_bits(case_of, dtype):
    case = case_of("llama-head-dim")
    assert noise(run(case.paths["hf"], case.ids, kv_dtype=KV_WORSE[dtype]), case.want) > KV_BARS[dtype]


@pytest.mark.parametrize("fault", ["swapped_heads", "position"])
def test_cache_bar_of_four_bits_notices_a_planted_error(case_of, fault):
    case = case_of("llama-head-dim")
    got = run(case.paths["hf"], case.ids, kv_dtype="Q4_0")
    assert noise(got, case.reference(TOKENS, [fault])) > KV_BARS["Q4_0"]
