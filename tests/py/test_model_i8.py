"""Checkpoints in INT8 with scales against the float64 reference on the numbers they stand for, and a sentence for what
cannot be read.

Scales of BF16 are the same in f16, so what is left is what Q8_0 leaves: inputs in 16 bits. Scales of F32 are rounded to
f16, by 2^-11 of themselves at most: measured 1.3e-3 to 1.6e-3 of a row of logits, where 16-bit inputs alone make 1e-4.
"""
import json

import numpy as np
import pytest

import i8_models
import reference_models
from cli_models import quern
from quern_model import Model
from reference import Reference, error

BARS = {"BF16": 3e-4, "F32": 4e-3}
TOKENS = 48
NAME = "model.layers.1.mlp.up_proj.weight"


def make(folder, case="llama", scale_type="BF16", **more):
    config = reference_models.make_config(case, **more.pop("config", {}))
    weights = reference_models.make_weights(config, case)
    return config, *i8_models.write(folder, config, weights, scale_type, **more)


def logits(path, ids, variant=None):
    with Model(path, kv_dtype="F32", context=TOKENS, variant=variant) as model:
        return model.logits(ids)


@pytest.mark.parametrize("variant", [None, "cpu-ref"])
@pytest.mark.parametrize("scale_type", list(BARS))
@pytest.mark.parametrize("case", ["llama", "phi3", "qwen3moe"])
def test_int8_equals_the_reference(tmp_path, case, scale_type, variant):
    wide = reference_models.WIDE
    config, path, values = make(tmp_path / "model", case, scale_type, config=wide)
    ids = reference_models.make_ids(config, TOKENS)
    got, want = logits(path, ids, variant), Reference(config, values, context=TOKENS).logits(ids)
    assert error(got, want) < BARS[scale_type]

    def twin(tensors):  # one scale of a matrix is another
        name = next(n for n, (_, shape, _) in tensors.items() if n.endswith("_scale") and len(shape) == 2)
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[2 if dtype == "BF16" else 4:] + data[:2 if dtype == "BF16" else 4])

    _, other, _ = make(tmp_path / "twin", case, scale_type, change=twin, config=wide)
    assert error(logits(other, ids, variant), want) > 3 * BARS[scale_type]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("kind", i8_models.KINDS)
def test_every_shape_of_scales_by_itself(tmp_path, kind, pack):
    config, path, values = make(tmp_path, kind=kind, pack=pack)
    ids = reference_models.make_ids(config, TOKENS)
    assert error(logits(path, ids), Reference(config, values, context=TOKENS).logits(ids)) < BARS["BF16"]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("more", [dict(sizes={"up_proj": 2.0 ** -25, "down_proj": 2.0 ** 25}),
                                  dict(config=dict(intermediate_size=100))])
def test_what_f16_or_blocks_cannot_hold_is_computed_as_bf16(tmp_path, more, pack):
    config, path, values = make(tmp_path, kind="channel", pack=pack, **more)
    ids = reference_models.make_ids(config, TOKENS)
    want = Reference(config, values, context=TOKENS).logits(ids)
    off = {name: w * 1.02 if "down_proj" in name else w for name, w in values.items()}
    wrong = Reference(config, off, context=TOKENS).logits(ids)
    got = logits(path, ids)  # weights of two kinds of matrices off by 2^-9 at most
    assert error(got, want) < 1e-2 < error(got, wrong)


def refusal(folder, **more):
    _, path, _ = make(folder, **more)
    with pytest.raises(RuntimeError) as e:
        Model(path, context=TOKENS)
    return str(e.value)


def put(name, dtype, shape, values):
    def change(tensors):
        tensors[name] = (dtype, shape, values.tobytes())

    return change


ONES = np.ones(96 * 64, np.float32)
TENSORS = {
    "missing": (lambda t: t.pop(NAME + "_scale"), f"{NAME} is INT8 and tensor {NAME}_scale is missing"),
    "too few": (put(NAME + "_scale", "F32", [95], ONES[:95]),
                f"{NAME}_scale is neither one scale nor one for each of 96 rows or for each group of a multiple of 32"),
    "groups of 16": (put(NAME + "_scale", "F32", [96, 4], ONES[:384]), f"{NAME}_scale is neither one scale nor"),
    "not finite": (put(NAME + "_scale", "F32", [1], ONES[:1] * np.nan), f"{NAME}_scale: scale 0 is not finite"),
    "integers": (put(NAME + "_scale", "I32", [1], np.ones(1, np.int32)), f"{NAME}_scale has type I32"),
    "zero points": (put(NAME + "_zero_point", "I8", [96, 1], np.zeros(96, np.int8)),
                    f"{NAME}_zero_point is not supported: quern reads INT8 without zero points"),
    "order": (put(NAME + "_g_idx", "I32", [64], np.zeros(64, np.int32)), f"{NAME}_g_idx is not supported"),
    "packed shape": (put(NAME + "_packed", "I32", [96, 15], np.zeros(96 * 15, np.int32)),
                     f"{NAME}_packed has shape 96 x 15 instead of 96 x 16"),
    "packed type": (put(NAME + "_packed", "F32", [96, 16], ONES[:96 * 16]), f"{NAME}_packed has type F32 instead"),
    "bytes": (put(NAME, "U8", [96, 64], np.zeros(96 * 64, np.uint8)), f"{NAME} has type U8, which is not supported"),
    "vector": (put("model.norm.weight", "I8", [64], np.ones(64, np.int8)), "model.norm.weight has type I8"),
}


@pytest.mark.parametrize("what", list(TENSORS))
def test_tensors_that_cannot_be_read_are_named(tmp_path, what):
    change, text = TENSORS[what]
    assert text in refusal(tmp_path, change=change, kind="channel", pack=False)


def test_int8_without_a_word_in_the_config_is_refused(tmp_path):
    text = refusal(tmp_path, method={"quant_method": "fp8"}, kind="channel", pack=False)
    assert "q_proj.weight has type I8, which is not supported" in text


def test_experts_with_groups_of_two_sizes_are_refused(tmp_path):
    name = "model.layers.0.mlp.experts.3.up_proj.weight_scale"
    change = put(name, "F32", [32, 1], np.ones(32, np.float32))
    text = refusal(tmp_path, case="qwen3moe", change=change, kind=32)
    assert f"{name} has 1 scales a row while expert 0 has 2" in text


GROUPS = {
    "num_bits": (dict(num_bits=4), "field 'weights.num_bits' is 4; quern reads 8"),
    "type": (dict(type="posit"), "field 'weights.type' is 'posit'; quern reads int and float"),
    "strategy": (dict(strategy="block"), "field 'weights.strategy' is 'block'; quern reads tensor, channel and"),
    "F8 in groups": (dict(type="float"), "field 'weights.strategy' is 'group'; quern reads tensor, channel and"),
    "symmetric": (dict(symmetric=False), "field 'weights.symmetric' is false; quern reads int without zero points"),
    "wrong type": (dict(num_bits="eight"), "field 'num_bits' must"),
}


@pytest.mark.parametrize("what", list(GROUPS))
def test_fields_that_cannot_be_read_are_named(tmp_path, what):
    weights, text = GROUPS[what]
    got = refusal(tmp_path, method=i8_models.method(**weights))
    assert "quantization_config, group_0: " + text in got


@pytest.mark.parametrize("key", ["input_activations", "output_activations"])
def test_scales_of_activations_are_refused(tmp_path, key):
    method = i8_models.method()
    method["config_groups"]["group_0"][key] = dict(num_bits=8, type="int", strategy="tensor", dynamic=False)
    assert f"field '{key}' has scales of its own; quern reads int with dynamic" in refusal(tmp_path, method=method)


def test_groups_that_say_nothing_of_weights_are_refused(tmp_path):
    for groups, text in (({}, "config_groups' is empty"), ({"a": {"targets": ["Linear"]}}, "'weights' is missing")):
        assert text in refusal(tmp_path, method={"quant_method": "compressed-tensors", "config_groups": groups})


def test_weights_without_activations_are_read(tmp_path):  # W8A16, and the older name of the field
    method = i8_models.method()
    method["config_groups"]["group_0"]["input_activations"] = None
    config, path, _ = make(tmp_path, method=method)
    ids = reference_models.make_ids(config, 8)
    want = logits(path, ids)
    text = (path / "config.json").read_text()
    (path / "config.json").write_text(text.replace("quantization_config", "compression_config"))
    assert np.isfinite(want).all() and np.array_equal(logits(path, ids), want)


def test_plan_counts_what_it_becomes_and_inspect_what_is_stored(tmp_path):
    _, path, values = make(tmp_path, config=reference_models.WIDE | dict(intermediate_size=500), kind="channel")
    matrices = [w for name, w in values.items() if w.dtype == np.float64]
    plain = sum(4 * w.size for w in values.values() if w.dtype != np.float64)
    beside = sum(2 * len(w) for w in matrices)  # scales of BF16
    beside += 16 * sum(i % 2 for i in range(len(matrices)))  # and shapes of what is packed
    made = sum(w.size // 32 * 34 if w.shape[1] % 32 == 0 else 2 * w.size for w in matrices)
    seen = json.loads(quern("inspect", path, "--json").stdout)
    assert seen["memory"]["weights_bytes"] == plain + beside + sum(w.size for w in matrices)
    assert seen["reasons"] == ["there is no tokenizer"] and all(t["supported"] for t in seen["tensor_types"])
    said = quern("plan", path, "--json")
    assert said.returncode == 0, said.stderr
    plan = json.loads(said.stdout)
    assert plan["memory"]["weights_bytes"] == plain + beside + made and plan["weights_dtype"] == "Q8_0"
