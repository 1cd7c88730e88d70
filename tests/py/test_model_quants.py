"""Every weight type of GGUF: a small Llama and a small mixture of random blocks against the float64 reference on the
dequantised numbers (the package `gguf` dequantises).

Float types leave only float rounding: 1e-5. Quantised weights are multiplied with inputs in 8 bits, so two bars hold:
- against exact inputs, the noise of 8 bits: measured 0.4% to 2% of the logits for the dense model (up to 5% for the
  mixture, where noise now and then changes an expert);
- against a reference that rounds its inputs in the documented way, token by token: 1e-5 again, for most tokens (an
  input on the edge between two steps may fall either way, and then its token differs).
"""
import numpy as np
import pytest

import reference_models
import reference_quants
from quern_model import Model
from reference import Reference, error, noise, row_errors

BAR = 1e-5
NOISE_BAR = {"llama": 0.03, "qwen3moe": 0.10}
MORE = {"llama": {}, "qwen3moe": dict(moe_intermediate_size=256)}
TOKENS = 48
MIXTURE_TYPES = ["F16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4"]
ALL = [("llama", kind) for kind in reference_quants.FLOAT_TYPES + reference_quants.BLOCK_TYPES] + [
    ("qwen3moe", kind) for kind in MIXTURE_TYPES]


class Quantised:
    def __init__(self, case, kind, folder):
        self.config, self.values, packed = reference_quants.make_quantised(case, kind, **MORE[case])
        self.path = reference_models.write_gguf(folder / "model.gguf", self.config, self.values, packed=packed)
        self.ids = reference_models.make_ids(self.config, TOKENS)

    def reference(self, **options):
        return Reference(self.config, options.pop("values", self.values), context=TOKENS, **options)

    def run(self):
        """(logits of the whole text, logits of each token alone at position 0)."""
        with Model(self.path, kv_dtype="F32", context=TOKENS) as model:
            return model.logits(self.ids), np.concatenate([model.logits(self.ids[i:i + 1]) for i in range(16)])


def alone(reference, ids):
    return np.concatenate([reference.logits(ids[i:i + 1]) for i in range(16)])


@pytest.mark.parametrize("case,kind", ALL)
def test_weight_type_equals_the_reference(tmp_path, case, kind):
    q = Quantised(case, kind, tmp_path)
    text, tokens = q.run()
    exact = q.reference().logits(q.ids)
    wrong = q.reference(values=reference_quants.halves_swapped(q.values)).logits(q.ids)
    if kind in reference_quants.FLOAT_TYPES:
        assert error(text, exact) < BAR < error(text, wrong)
        return
    assert noise(text, exact) < NOISE_BAR[case] < noise(text, wrong)
    rounded = alone(q.reference(eight_bit=True), q.ids)
    assert np.median(row_errors(tokens, rounded)) < BAR < np.median(row_errors(tokens, alone(q.reference(), q.ids)))


@pytest.mark.parametrize("fault", ["swapped_heads", "position"])
def test_noise_bar_notices_a_planted_error(tmp_path, fault):
    q = Quantised("llama", "Q8_0", tmp_path)
    text, _ = q.run()
    assert noise(text, q.reference(faults=[fault]).logits(q.ids)) > NOISE_BAR["llama"]


def test_type_that_is_only_described_is_refused_by_name(tmp_path):
    q = Quantised("llama", "F16", tmp_path)
    packed = {"blk.0.ffn_up.weight": ("IQ2_S", np.zeros((512, 82), np.uint8))}
    path = reference_models.write_gguf(tmp_path / "described.gguf", q.config, q.values, packed=packed)
    with pytest.raises(RuntimeError, match=r"blk\.0\.ffn_up\.weight.*IQ2_S"):
        Model(path)
