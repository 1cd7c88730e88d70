"""Every weight type of GGUF: a small Llama and a small mixture of random blocks against the float64 reference on the
dequantised numbers (the package `gguf` dequantises).

Float types leave only float rounding: 1e-5. Quantised weights are multiplied with inputs in 16 bits: measured 2e-5 to
1.2e-4 of a row of logits, where 8 bits make 4e-3 to 6e-2 (and must miss the bar).
"""
import numpy as np
import pytest

import reference_models
import reference_quants
from quern_model import Model
from reference import Reference, error

BAR = 1e-5
QUANT_BAR = 3e-4
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
        with Model(self.path, kv_dtype="F32", context=TOKENS) as model:
            return model.logits(self.ids)


@pytest.mark.parametrize("case,kind", ALL)
def test_weight_type_equals_the_reference(tmp_path, case, kind):
    q = Quantised(case, kind, tmp_path)
    text, exact = q.run(), q.reference().logits(q.ids)
    bar = BAR if kind in reference_quants.FLOAT_TYPES else QUANT_BAR
    wrong = q.reference(values=reference_quants.halves_swapped(q.values)).logits(q.ids)
    assert error(text, exact) < bar < error(text, wrong)
    if bar == QUANT_BAR:
        assert error(q.reference(bits=8).logits(q.ids), exact) > 5 * bar


@pytest.mark.parametrize("fault", ["swapped_heads", "position"])
def test_bar_of_quantised_weights_notices_a_planted_error(tmp_path, fault):
    q = Quantised("llama", "Q8_0", tmp_path)
    assert error(q.run(), q.reference(faults=[fault]).logits(q.ids)) > 100 * QUANT_BAR


def test_type_that_is_only_described_is_refused_by_name(tmp_path):
    q = Quantised("llama", "F16", tmp_path)
    packed = {"blk.0.ffn_up.weight": ("IQ2_S", np.zeros((512, 82), np.uint8))}
    path = reference_models.write_gguf(tmp_path / "described.gguf", q.config, q.values, packed=packed)
    with pytest.raises(RuntimeError, match=r"blk\.0\.ffn_up\.weight.*IQ2_S"):
        Model(path)
