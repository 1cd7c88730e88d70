"""Checkpoints in F8 with scales: the bits of the same model in BF16, and a sentence for what cannot be read."""
import numpy as np
import pytest

import f8_models
import reference_models
from quern_model import Model

COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}


def make(folder, case="llama", change=None, method=None):
    config = reference_models.make_config(case)
    return f8_models.write_pair(folder, config, reference_models.make_weights(config, case), change, method)


def logits(path, variant=None):
    with Model(path, kv_dtype="F32", context=64, variant=variant) as model:
        return model.logits([3, 7, 11, 100, 42, 9] * 4)


@pytest.mark.parametrize("variant", [None, "cpu-ref"])
@pytest.mark.parametrize("case", ["llama", "phi3", "mixtral"])
def test_f8_with_scales_gives_the_bits_of_bf16(tmp_path, case, variant):
    f8, plain = make(tmp_path, case, method=COMPRESSED if case == "phi3" else None)
    want = logits(plain, variant)
    assert np.isfinite(want).all() and np.array_equal(logits(f8, variant), want)

    def twin(tensors):  # one scale is another
        name = next(n for n in tensors if n.endswith("_scale"))
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, (np.frombuffer(data, np.float32) * np.float32(1.01)).tobytes())

    assert not np.array_equal(logits(make(tmp_path / "twin", case, twin)[0], variant), want)


def refusal(path):
    with pytest.raises(RuntimeError) as e:
        Model(path, context=64).__exit__()
    return str(e.value)


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"

    def without(tensors):
        del tensors[name + "_scale"]

    def in_blocks(tensors):
        tensors[name + "_scale"] = ("F32", [3, 2], np.ones(6, np.float32).tobytes())

    def infinite(tensors):
        tensors[name + "_scale"] = ("F32", [1], np.array([np.inf], np.float32).tobytes())

    text = refusal(make(tmp_path / "a", change=without)[0])
    assert name + "_scale is missing" in text
    text = refusal(make(tmp_path / "b", change=in_blocks)[0])
    assert name + "_scale is neither one scale nor one for each of 96 rows" in text
    assert "not finite" in refusal(make(tmp_path / "c", change=infinite)[0])
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert "'quantization_config.weight_block_size' is there" in refusal(make(tmp_path / "d", method=blocks)[0])
    int4 = {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel"}}}}
    assert "'weights.num_bits' is 4; quern reads 8" in refusal(make(tmp_path / "e", method=int4)[0])
