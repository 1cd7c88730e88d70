"""src/format against the packages that define the formats: files written by `gguf` and `safetensors` are read back
value for value, byte for byte; files from the wild are read as those packages read them."""
import json
import math
import os
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import make_models
from format_quern import ROOT, SHARED, Model, Refused

ERR_INVALID, ERR_FORMAT, ERR_UNSUPPORTED, ERR_NOT_FOUND = 1, 2, 3, 5
ARCHS = list(make_models.ARCHS)


def as_bytes(array):
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0"])
def test_gguf_tensors_equal_what_was_written(tmp_path, arch, dtype):
    path = tmp_path / "m.gguf"
    make_models.write_gguf(path, arch, dtype)
    weights = make_models.make_weights(arch)[1]
    with Model(path) as m:
        assert [t["name"] for t in m.about["tensors"]] == list(weights)
        for t in m.about["tensors"]:
            values = weights[t["name"]]
            used = dtype if values.ndim > 1 else "F32"
            assert t["shape"] == list(values.shape) and t["dtype"] == used
            assert m.tensor(t["name"]) == as_bytes(gguf.quants.quantize(values, gguf.GGMLQuantizationType[used]))


def test_gguf_values_of_every_type_are_read_back(tmp_path):
    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(str(path), "odd")
    expected = make_models.add_every_type(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with Model(path) as m:
        fields = m.about["fields"]
        assert fields.pop("general.architecture") == "odd"
        assert fields.pop("x.f32") == float(np.float32(expected.pop("x.f32")))
        assert fields == expected
        assert m.about["config"]["arch"] == "unknown" and m.about["config"]["arch_name"] == "odd"


@pytest.mark.parametrize("split", [1, 7, 20])
def test_gguf_split_sets_open_from_any_part(tmp_path, split):
    make_models.write_gguf(tmp_path / "m.gguf", "llama", split=split)
    make_models.write_gguf(tmp_path / "whole.gguf", "llama")
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    with Model(tmp_path / "whole.gguf") as whole:
        for part in {parts[0], parts[1], parts[-1]}:
            with Model(part) as m:
                assert [pathlib.Path(p).name for p in m.about["parts"]] == [p.name for p in parts]
                assert set(m.index) == set(whole.index)
                assert all(m.tensor(n) == whole.tensor(n) for n in m.index)
                assert m.about["config"] == whole.about["config"]
    parts[1].unlink()
    with pytest.raises(Refused, match=parts[1].name) as refused:
        Model(parts[0])
    assert refused.value.code == ERR_NOT_FOUND


def test_gguf_big_endian_is_refused(tmp_path):
    path = tmp_path / "b.gguf"
    writer = gguf.GGUFWriter(str(path), "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(Refused, match="big endian") as refused:
        Model(path)
    assert refused.value.code == ERR_UNSUPPORTED


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("shards", [1, 3])
def test_folders_equal_what_was_written(tmp_path, arch, shards):
    make_models.write_hf(tmp_path / "m", arch, shards)
    weights = make_models.make_weights(arch)[0]
    with Model(tmp_path / "m") as m:
        assert len(m.about["parts"]) == shards and set(m.index) == set(weights)
        for t in m.about["tensors"]:
            assert t["shape"] == list(weights[t["name"]].shape) and t["dtype"] == "F32"
            assert m.tensor(t["name"]) == as_bytes(weights[t["name"]])
        assert m.about["chat_template"] == "{{ messages[0]['content'] }}"


NUMPY_DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8",
                "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?", "C64": "c8"}


def test_safetensors_dtypes_and_shapes_are_read_back(tmp_path):
    from safetensors.numpy import save_file
    rng = np.random.default_rng(3)
    weights = {}
    for name, code in NUMPY_DTYPES.items():
        for shape in ((), (3,), (2, 5), (1, 2, 3, 4), (0, 4)):
            weights[f"{name}.{shape}"] = np.asarray(rng.random(shape) * 9).astype(code)
    save_file(weights, tmp_path / "m.safetensors")
    with Model(tmp_path / "m.safetensors") as m:
        assert set(m.index) == set(weights)
        for t in m.about["tensors"]:
            w = weights[t["name"]]
            assert t["dtype"] == t["name"].split(".")[0] and t["shape"] == list(w.shape)
            assert m.tensor(t["name"]) == as_bytes(w)


# What the record must say, by architecture, from either format.
RECORDS = {
    "llama": dict(arch="llama", rope_scaling="llama3", rope_base=500000.0, qk_norm=0, qkv_bias=0, local=[0] * 6),
    "mistral": dict(arch="llama", window=32, local=[1] * 6),
    "qwen2": dict(arch="qwen2", qkv_bias=1, qk_norm=0, window=0, local=[0] * 6),
    "qwen3": dict(arch="qwen3", qk_norm=1, head_dim=32, rope_scaling="yarn", rope_factor=4.0, rope_original=64),
    "qwen3moe": dict(arch="qwen3moe", n_experts=4, n_experts_used=2, expert_ffn=32, norm_topk=1, qk_norm=1),
    "mixtral": dict(arch="mixtral", n_experts=4, n_experts_used=2, expert_ffn=96, norm_topk=1),
    "gemma2": dict(arch="gemma2", act="gelu", tied=1, attn_softcap=50.0, final_softcap=30.0, local=[1, 0] * 3),
    "gemma3": dict(arch="gemma3", act="gelu", tied=1, qk_norm=1, rope_base=1e6, rope_base_local=1e4,
                   rope_scaling="linear", rope_factor=8.0, local=[1, 1, 1, 1, 1, 0]),
    "phi3": dict(arch="phi3", rope_scaling="longrope", rope_dims=12, rope_factors=6, rope_factor=4.0, tied=0),
}
COMMON = dict(hidden=64, ffn=96, n_layers=6, n_heads=4, n_kv_heads=2, vocab=96, context_length=256, bos_id=1, add_bos=1)


@pytest.mark.parametrize("arch", ARCHS)
def test_one_record_from_both_formats(tmp_path, arch):
    make_models.write_gguf(tmp_path / "m.gguf", arch)
    make_models.write_hf(tmp_path / "m", arch)
    with Model(tmp_path / "m.gguf") as a, Model(tmp_path / "m") as b:
        one, two = a.about["config"], b.about["config"]
    for key, value in (COMMON | RECORDS[arch]).items():
        assert one[key] == value and two[key] == value, key
    assert two["temperature"] == 0.7 and two["top_k"] == 40 and two["eos_ids"] == [2, 1]
    assert one["temperature"] is None and one["eos_ids"] == [2]
    # GGUF keeps eps as f32, and llama3's factors as a tensor; all else is the same number.
    assert math.isclose(one.pop("norm_eps"), two.pop("norm_eps"), rel_tol=1e-6)
    for key in ("arch_name", "temperature", "top_p", "top_k", "eos_ids"):
        one.pop(key), two.pop(key)
    if arch == "llama":
        for key in ("rope_factor", "rope_original"):
            one.pop(key), two.pop(key)
    assert one == two


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "max_position_embeddings", "vocab_size"])
def test_a_record_that_differs_is_noticed(tmp_path, key):
    """The twin of the test above: a planted difference must not compare equal."""
    make_models.write_hf(tmp_path / "m", "llama")
    with Model(tmp_path / "m") as m:
        before = m.about["config"]
    config = json.loads((tmp_path / "m/config.json").read_text())
    config[key] *= 2
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    with Model(tmp_path / "m") as m:
        assert m.about["config"] != before


def wild_ggufs():
    found = sorted((SHARED / "data/models").glob("*/*.gguf"))
    cache = pathlib.Path(os.environ.get("QUERN_CACHE", pathlib.Path.home() / ".cache/quern"))
    return found + sorted(cache.rglob("SmolLM2-135M-Instruct*.gguf"))[:1]


@pytest.mark.skipif(not wild_ggufs(), reason="no GGUF files in the shared data or the cache")
@pytest.mark.parametrize("path", wild_ggufs(), ids=lambda p: p.name)
def test_gguf_files_from_the_wild_are_read_as_the_package_reads_them(path):
    reader = gguf.GGUFReader(path)
    with Model(path) as m:
        theirs = {t.name: t for t in reader.tensors}
        assert set(theirs) == set(m.index)
        for t in m.about["tensors"]:
            r = theirs[t["name"]]
            assert t["shape"] == [int(n) for n in r.shape][::-1]
            assert t["dtype"] == r.tensor_type.name and t["offset"] == int(r.data_offset)
            assert m.tensor(t["name"]) == as_bytes(r.data)
        fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        assert set(fields) == set(m.about["fields"])
        for key, value in fields.items():
            mine = m.about["fields"][key]
            if isinstance(value, list) and value and isinstance(value[0], float):
                assert mine == value, key
            elif isinstance(value, list) and value and isinstance(value[0], str):
                assert [s.encode("utf-8", "replace") for s in mine] == [s.encode("utf-8", "replace") for s in value]
            else:
                assert mine == value, key
        assert m.about["config"]["arch"] == "llama"


def test_a_folder_from_the_wild_is_read_as_the_package_reads_it():
    folder = SHARED / "data/models/minimind2-small-f16"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    weights = load_file(folder / "model.safetensors")
    with Model(folder) as m, safe_open(folder / "model.safetensors", "np") as f:
        assert set(m.index) == set(f.keys())
        assert all(m.tensor(n) == as_bytes(w) for n, w in weights.items())
        config = m.about["config"]
    assert (config["hidden"], config["n_layers"], config["head_dim"], config["tied"]) == (512, 8, 64, 1)


# Runs a command five times and prints the best time and the largest resident size. A process of its own, because a
# child is charged with what its parent had resident when it was started, and pytest is large.
MEASURE = """
import os, subprocess, sys, time
best, peak = 1e9, 0
for _ in range(5):
    began = time.monotonic()
    child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    best, peak = min(best, time.monotonic() - began), max(peak, usage.ru_maxrss)
    assert status == 0
print(best * 1000, peak)
"""


@pytest.mark.parametrize("form", ["gguf", "shards"])
def test_inspect_of_ten_gigabytes_reads_only_headers(tmp_path, form):
    """`quern inspect` of a 10 GB file or a 30-shard folder stays under 50 MB resident; how long it took is printed."""
    binary = pathlib.Path(os.environ.get("QUERN_BIN", ROOT / "build/release/quern"))
    if not binary.exists():
        pytest.skip(f"{binary} is not built")
    path = tmp_path / "model"
    if form == "gguf":
        path = tmp_path / "m.gguf"
        make_models.write_sparse_gguf(path, 10 * 2**30)
    else:
        make_models.write_sparse_shards(path, 30, 2**29)
    out = subprocess.run([sys.executable, "-S", "-c", MEASURE, binary.resolve(), "inspect", path], check=True,
                         capture_output=True, text=True).stdout
    ms, kib = map(float, out.split())
    print(f"{form}: {ms:.1f} ms, {kib / 1024:.1f} MiB")
    assert kib < 50 * 1024
