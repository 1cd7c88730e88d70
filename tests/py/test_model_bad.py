"""Models that cannot run are refused before any work, in one sentence that names what is wrong."""
import json

import numpy as np
import pytest

import reference_models
from quern_model import Model


def make(tmp_path, form="hf", change=None, case="llama", **config):
    """A small model with something done to its weights or its configuration."""
    c = reference_models.make_config(case, **config)
    weights = reference_models.make_weights(reference_models.make_config(case), case)
    if change:
        change(weights)
    if form == "hf":
        return reference_models.write_hf(tmp_path / "model", c, weights)
    return reference_models.write_gguf(tmp_path / "model.gguf", c, weights)


def refusal(path, **options):
    with pytest.raises(RuntimeError) as caught:
        Model(path, **options)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def test_the_models_of_this_file_are_good_without_the_change(tmp_path):
    for form in ("hf", "gguf"):
        with Model(make(tmp_path, form), context=64) as model:
            assert np.isfinite(model.logits([3, 4, 5])).all()


@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_unknown_architecture_is_named(tmp_path, form):
    path = make(tmp_path, form)
    if form == "hf":
        config = json.loads((path / "config.json").read_text())
        config |= dict(model_type="strange", architectures=["StrangeForCausalLM"])
        (path / "config.json").write_text(json.dumps(config))
        assert "StrangeForCausalLM" in refusal(path)
    else:
        path.write_bytes(path.read_bytes().replace(b"llama", b"lamma"))
        assert "lamma" in refusal(path)


@pytest.mark.parametrize("form,name", [("hf", "model.layers.1.mlp.up_proj.weight"), ("gguf", "blk.1.ffn_up.weight")])
def test_missing_tensor_is_named(tmp_path, form, name):
    text = refusal(make(tmp_path, form, lambda w: w.pop("model.layers.1.mlp.up_proj.weight")))
    assert name in text and "missing" in text


@pytest.mark.parametrize("form,name", [("hf", "model.layers.2.self_attn.k_proj.weight"),
                                       ("gguf", "blk.2.attn_k.weight")])
def test_misshaped_tensor_is_named_with_both_shapes(tmp_path, form, name):
    def change(w):
        w["model.layers.2.self_attn.k_proj.weight"] = np.ones((48, 64), np.float32)

    text = refusal(make(tmp_path, form, change))
    assert name in text and "48 x 64" in text and "32 x 64" in text


@pytest.mark.parametrize("form", ["hf", "gguf"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.down_proj.weight"])
def test_weight_that_is_no_number_is_found(tmp_path, form, value, name):
    def change(w):
        w[name].flat[w[name].size // 2] = value

    assert "not finite" in refusal(make(tmp_path, form, change))


def test_context_beyond_the_models_is_refused(tmp_path):
    text = refusal(make(tmp_path), context=513)
    assert "513" in text and "512" in text


def test_cache_of_a_weight_only_type_is_refused(tmp_path):
    assert "Q4_K" in refusal(make(tmp_path), kv_dtype="Q4_K", context=64)


def test_blocks_that_are_no_multiple_of_16_are_refused(tmp_path):
    assert "20" in refusal(make(tmp_path), block_tokens=20, context=64)


def test_checkpoint_quantised_by_another_tool_is_refused(tmp_path):
    assert "gptq" in refusal(make(tmp_path, quantization_config=dict(quant_method="gptq", bits=4)))


def test_cache_larger_than_any_memory_is_refused(tmp_path):
    text = refusal(make(tmp_path, max_position_embeddings=1 << 27), context=1 << 27, kv_dtype="F32",
                   block_tokens=1 << 20)
    assert "memory" in text.lower()


def test_experts_of_different_types_are_refused(tmp_path):
    def change(w):
        name = "model.layers.0.block_sparse_moe.experts.3.w1.weight"
        w[name] = w[name].astype(np.float16)

    text = refusal(make(tmp_path, "hf", change, case="mixtral"))
    assert "experts.3.w1" in text and "F16" in text


def test_step_outside_the_model_is_an_error_and_not_a_crash(tmp_path):
    with Model(make(tmp_path), context=64) as model:
        for ids, first in (([-1], 0), ([160], 0), ([1 << 30], 0)):
            with pytest.raises(RuntimeError):
                model.logits(ids, first=first)
        assert np.isfinite(model.logits([3])).all()
