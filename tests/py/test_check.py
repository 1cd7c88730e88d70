"""Models whose tensors are not what the architecture needs: inspect and plan say so, from the headers alone, and say
the same as loading would."""
import json

import numpy as np
import pytest

import reference_models
from cli_models import F32, hf_tensors, llama_fields, llama_tensors, quern, write_gguf, write_hf_dir
from quern_model import Model


def inspect(path):
    r = quern("inspect", "--json", path)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def refusal(path):
    """The sentence with which loading refuses."""
    with pytest.raises(RuntimeError) as caught:
        Model(path, context=64)
    return str(caught.value).split(": ", 1)[1]  # after the name of the code


@pytest.mark.parametrize("case", sorted(reference_models.CASES))
def test_every_architecture_is_found_whole(tmp_path, case):
    c = reference_models.make_config(case)
    weights = reference_models.make_weights(c, case)
    x = inspect(reference_models.write_gguf(tmp_path / "m.gguf", c, weights))
    assert x["supported"] and x["reasons"] == [], x["verdict"]
    x = inspect(reference_models.write_hf(tmp_path / "m", c, weights))
    assert x["reasons"] == ["there is no tokenizer"]  # these folders have none


@pytest.mark.parametrize("case", ["llama-bias", "qwen3", "gemma2", "phi3", "mixtral"])
def test_each_tensor_that_is_missing_is_missed(tmp_path, case):
    c = reference_models.make_config(case)
    weights = reference_models.make_weights(c, case)
    optional = [n for n in weights if n.endswith("o_proj.bias")]
    for name in weights:
        path = reference_models.write_hf(tmp_path / "m", c, {n: w for n, w in weights.items() if n != name})
        reasons = inspect(path)["reasons"]
        if name in optional:
            assert reasons == ["there is no tokenizer"]
        else:
            assert reasons == [f"tensor {name} is missing", "there is no tokenizer"]
    assert len(optional) == (c["num_hidden_layers"] if case == "llama-bias" else 0)


@pytest.mark.parametrize("name", [n for n, _, _ in llama_tensors(layers=1)])
@pytest.mark.parametrize("change", ["transposed", "longer", "flat"])
def test_each_misshaped_tensor_is_refused_with_both_shapes(tmp_path, name, change):
    def bend(shape):
        if change == "longer":
            return (*shape[:-1], shape[-1] + 32)
        return tuple(reversed(shape)) if change == "transposed" else (*shape, 1)
    tensors = [(n, F32, bend(s) if n == name else s) for n, _, s in llama_tensors(layers=1)]
    path = write_gguf(tmp_path / "m.gguf", llama_fields(layers=1), tensors)
    x = inspect(path)
    was, is_now = next((s, bend(s)) for n, _, s in llama_tensors(layers=1) if n == name)
    if was == is_now:  # a square matrix or a vector, transposed
        assert x["supported"]
        return
    assert not x["supported"] and f"tensor {name} has shape" in x["verdict"]
    assert " x ".join(map(str, reversed(is_now))) + " instead of " + " x ".join(map(str, reversed(was))) in x["verdict"]


@pytest.mark.parametrize("form", ["gguf", "hf"])
def test_plan_and_run_refuse_what_inspect_refuses_and_say_the_same(tmp_path, form):
    if form == "gguf":
        tensors = [t for t in llama_tensors() if t[0] != "blk.1.ffn_up.weight"]
        path = write_gguf(tmp_path / "m.gguf", llama_fields(), tensors)
        whole = write_gguf(tmp_path / "whole.gguf", llama_fields(), llama_tensors())
    else:
        tensors = {n: t for n, t in hf_tensors().items() if n != "model.layers.1.mlp.up_proj.weight"}
        path = write_hf_dir(tmp_path / "m", tensors)
        whole = write_hf_dir(tmp_path / "whole", hf_tensors())
    reason = inspect(path)["reasons"][0]
    assert "up" in reason and reason.endswith("is missing") and reason == refusal(path)
    assert f"quern cannot run this model: {reason}." in quern("inspect", path).stdout
    for verb in (["plan"], ["run", "-p", "hello"]):
        r = quern(*verb, path)
        assert r.returncode == 1 and r.stdout == "" and r.stderr.count("\n") == 1, r
        assert f"this model cannot run: {reason}" in r.stderr
    assert "It fits." in quern("plan", whole).stdout


def test_experts_of_two_types_are_refused(tmp_path):
    c = reference_models.make_config("mixtral")
    weights = reference_models.make_weights(c, "mixtral")
    odd = next(n for n in weights if ".experts.1.w1" in n)
    mixed = {n: w.astype(np.float16) if n == odd else w for n, w in weights.items()}
    path = reference_models.write_hf(tmp_path / "m", c, mixed)
    reason = inspect(path)["reasons"][0]
    assert odd in reason and "F16 while expert 0 is F32" in reason and reason == refusal(path)
