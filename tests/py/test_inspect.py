"""quern inspect: what it says is what the files hold, whatever their size, and bad files are an answer."""
import json
import os
import math
import subprocess
import sys

import pytest

from cli_models import (F16, F32, IQ2_XXS, Q4_K, Q8_0, REPO, SHARED, hf_tensors, llama_fields, llama_tensors, quern,
                        quern_bin, tensor_bytes, write_gguf, write_hf_dir)


def inspect(*args, **kw):
    r = quern("inspect", "--json", *args, **kw)
    assert r.returncode == 0, r.stderr
    assert r.stderr == ""
    return json.loads(r.stdout)


@pytest.fixture
def tiny(tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", llama_fields(), llama_tensors())


def test_gguf_facts_are_those_of_the_file(tiny):
    tensors = llama_tensors()
    x = inspect(tiny)
    assert x["format"] == "gguf" and x["gguf_version"] == 3 and x["name"] == "tiny test"
    assert x["architecture"] == x["family"] == "llama"
    assert x["parameters"] == sum(math.prod(s) for _, _, s in tensors)
    assert (x["context_length"], x["layers"], x["hidden_size"], x["ffn_size"]) == (256, 2, 64, 128)
    assert (x["heads"], x["kv_heads"], x["head_dim"], x["vocab_size"]) == (4, 2, 16, 96)
    assert x["tokenizer"] == {"model": "gpt2", "kind": "byte-level BPE", "tokens": 96, "supported": True}
    assert x["chat_template"] and x["chat_template_bytes"] == len(llama_fields()["tokenizer.chat_template"])
    assert x["tensor_count"] == len(tensors)
    for name, number in (("F32", F32), ("Q8_0", Q8_0)):
        mine = [(d, s) for _, d, s in tensors if d == number]
        row = next(t for t in x["tensor_types"] if t["type"] == name)
        assert row == {"type": name, "tensors": len(mine), "elements": sum(math.prod(s) for _, s in mine),
                       "bytes": sum(tensor_bytes(d, s) for d, s in mine), "supported": True}
    assert len(x["tensor_types"]) == 2
    assert x["supported"] and x["reasons"] == [] and "supports this model" in x["verdict"]
    assert x["files"] == [{"path": x["files"][0]["path"], "bytes": os.path.getsize(tiny), "tensors": len(tensors)}]


@pytest.mark.parametrize("dtype,head_bytes,shown", [("auto", 64, "F16"), ("f32", 128, "F32"), ("f16", 64, "F16"),
                                                    ("bf16", 64, "BF16"), ("q8_0", 34, "Q8_0"), ("q4_0", 18, "Q4_0")])
def test_memory_is_weights_and_cache(tmp_path, dtype, head_bytes, shown):
    path = write_gguf(tmp_path / "m.gguf", llama_fields(hidden=128), llama_tensors(hidden=128))  # heads of 32
    x = inspect(path, "--max-model-len", 100, "--max-num-seqs", 3, "--kv-cache-dtype", dtype)["memory"]
    assert x["weights_bytes"] == sum(tensor_bytes(d, s) for _, d, s in llama_tensors(hidden=128))
    assert x["kv_cache_bytes"] == 3 * 100 * 2 * 2 * 2 * head_bytes  # sequences, tokens, layers, K and V, heads
    assert x["needed_bytes"] == x["weights_bytes"] + x["kv_cache_bytes"]
    assert (x["max_model_len"], x["max_num_seqs"], x["kv_cache_dtype"]) == (100, 3, shown)


def test_what_heads_leave_of_a_quantised_group_takes_its_room(tiny):
    x = inspect(tiny, "-c", 100, "--kv-cache-dtype", "q8_0")["memory"]  # heads of 16, groups of 32
    assert x["kv_cache_bytes"] == 100 * 2 * 2 * 2 * 34


def test_context_defaults_to_the_models_and_cannot_exceed_it(tiny):
    assert inspect(tiny)["memory"]["max_model_len"] == 256
    assert inspect(tiny, "-c", 256)["memory"]["max_model_len"] == 256
    assert inspect(tiny, "--context", 255)["memory"]["max_model_len"] == 255
    r = quern("inspect", "-c", 257, tiny)
    assert r.returncode == 1 and "--max-model-len: 257 is more than the model's context of 256" in r.stderr


def test_fits_or_not_is_judged_against_the_memory(tiny):
    need = inspect(tiny)["memory"]["needed_bytes"]
    x = inspect(tiny, "--memory", need)
    assert x["memory"]["fits"] and x["memory"]["machine_bytes"] == need
    x = inspect(tiny, "--memory", need - 1)
    assert not x["memory"]["fits"] and x["supported"] and "but it needs" in x["verdict"]
    real = inspect(tiny)["memory"]["machine_bytes"]
    assert 0 < real <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert "does not fit" in quern("inspect", "--memory=1K", tiny).stdout


def test_sliding_window_layers_keep_only_their_window(tmp_path):
    fields = llama_fields(arch="gemma2", **{"gemma2.attention.sliding_window": 32, "gemma2.attention.key_length": 16,
                                            "gemma2.attention.value_length": 16})
    x = inspect(write_gguf(tmp_path / "g.gguf", fields, llama_tensors()))
    assert x["sliding_window"] == 32 and x["family"] == "gemma2"
    assert x["memory"]["kv_cache_bytes"] == (256 + 32) * 2 * 2 * 32  # every other of the two layers slides


@pytest.mark.parametrize("fields,tensors,reason", [
    (llama_fields(arch="mamba"), llama_tensors(), "architecture 'mamba' is not supported"),
    (llama_fields(hidden=256), llama_tensors(hidden=256, weight=IQ2_XXS, ffn=256),
     "tensor type IQ2_XXS is not supported (16 tensors)"),
    (llama_fields(**{"tokenizer.ggml.model": "rwkv"}), llama_tensors(), "tokenizer 'rwkv' is not supported"),
    (llama_fields(), [], "there are no tensors"),
])
def test_what_cannot_run_is_said_plainly(tmp_path, fields, tensors, reason):
    path = write_gguf(tmp_path / "m.gguf", fields, tensors)
    x = inspect(path)
    assert not x["supported"] and x["reasons"] == [reason]
    assert x["verdict"] == f"quern cannot run this model: {reason}."
    assert x["verdict"] in quern("inspect", path).stdout


def test_all_reasons_are_told_at_once(tmp_path):
    fields = {k: v for k, v in llama_fields(arch="rwkv7", hidden=256).items() if not k.startswith("tokenizer")}
    x = inspect(write_gguf(tmp_path / "m.gguf", fields, llama_tensors(hidden=256, ffn=256, weight=IQ2_XXS)))
    assert len(x["reasons"]) == 3 and x["tokenizer"] is None and not x["chat_template"]


@pytest.mark.parametrize("shards", [1, 3])
def test_hf_folder_facts_are_those_of_the_folder(tmp_path, shards):
    tensors = hf_tensors()
    path = write_hf_dir(tmp_path / "model", tensors, shards)
    x = inspect(path)
    assert x["format"] == "safetensors" and x["architecture"] == "LlamaForCausalLM" and x["family"] == "llama"
    assert len(x["files"]) == shards and sum(f["tensors"] for f in x["files"]) == len(tensors)
    bytes_ = sum(size * math.prod(s) for _, size, s in tensors.values())
    assert x["tensor_types"] == [{"type": "BF16", "tensors": len(tensors), "elements": bytes_ // 2, "bytes": bytes_,
                                  "supported": True}]
    assert x["tokenizer"]["model"] == "BPE" and x["chat_template"] and x["supported"]
    assert x["context_length"] == 512 and x["memory"]["kv_cache_bytes"] == 512 * 2 * 2 * 2 * 32


def test_hf_folder_that_cannot_run(tmp_path):
    path = write_hf_dir(tmp_path / "a", hf_tensors(), tokenizer=False)
    assert inspect(path)["reasons"] == ["there is no tokenizer"]
    path = write_hf_dir(tmp_path / "b", hf_tensors(), architectures=["MambaForCausalLM"], model_type="mamba")
    assert "architecture 'MambaForCausalLM' is not supported" in inspect(path)["reasons"]
    tensors = hf_tensors()
    tensors["model.layers.0.mlp.up_proj.qweight"] = ("I32", 4, (8, 64))
    path = write_hf_dir(tmp_path / "c", tensors, quantization_config={"quant_method": "gptq", "bits": 4})
    reasons = inspect(path)["reasons"]
    assert "quantisation method 'gptq' is not supported; quern reads fp8 and compressed-tensors" in reasons
    assert "tensor type I32 is not supported (1 tensors)" in reasons


def test_tensors_are_listed_as_they_are(tiny):
    wanted = llama_tensors()
    listed = inspect(tiny, "--tensors")["tensors"]
    assert [(t["name"], t["shape"], t["bytes"]) for t in listed] == \
        [(n, list(reversed(s)), tensor_bytes(d, s)) for n, d, s in wanted]
    text = quern("inspect", "--tensors", tiny).stdout.split("\n\n")[2].splitlines()
    assert len(text) == len(wanted)
    assert text[0].split() == ["Q8_0", "96x64", str(tensor_bytes(Q8_0, (64, 96))), "token_embd.weight"]
    assert "tensors" not in inspect(tiny)


def test_tensor_listing_agrees_with_the_gguf_package():
    gguf = pytest.importorskip("gguf")
    found = sorted(SHARED.glob("data/models/stories*/*.gguf"))
    if not found:
        pytest.skip("no shared models: set QUERN_SHARED")
    for path in found:
        listed = {t["name"]: t for t in inspect(path, "--tensors")["tensors"]}
        reader = gguf.GGUFReader(path)
        assert len(listed) == len(reader.tensors)
        for t in reader.tensors:
            mine = listed[t.name]
            assert mine["type"] == t.tensor_type.name and mine["bytes"] == t.n_bytes
            assert mine["offset"] == t.data_offset and mine["shape"] == [int(d) for d in reversed(t.shape)]


def test_models_that_are_not_there_or_not_models(tmp_path):
    def fails(path, *parts):
        r = quern("inspect", path, env={"QUERN_CACHE": str(tmp_path / "cache")})
        assert r.returncode == 1 and r.stdout == "" and r.stderr.count("\n") == 1, r.stderr
        for part in parts:
            assert part in r.stderr, r.stderr
    fails("/nonexistent/model.gguf", "/nonexistent/model.gguf")
    (tmp_path / "empty.gguf").touch()
    fails(tmp_path / "empty.gguf", "empty.gguf")
    (tmp_path / "dir").mkdir()
    fails(tmp_path / "dir", "dir")
    os.mkfifo(tmp_path / "fifo.gguf")
    fails(tmp_path / "fifo.gguf", "FIFO")
    (tmp_path / "text.gguf").write_text("hello")
    fails(tmp_path / "text.gguf", "text.gguf")
    r = quern("inspect", env={"QUERN_CACHE": str(tmp_path / "cache")})
    assert r.returncode == 1 and "quern pull" in r.stderr


def test_every_truncation_is_an_answer(tmp_path, tiny):
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    for n in list(range(0, 200, 7)) + list(range(200, len(data), len(data) // 60)):
        cut.write_bytes(data[:n])
        r = quern("inspect", cut)
        assert r.returncode == 1 and r.stderr.startswith("quern: error: ") and r.stderr.count("\n") == 1, (n, r)


def test_full_disk_and_closed_pipe(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", llama_fields(layers=400), llama_tensors(layers=400))
    with open("/dev/full", "w") as full:
        r = subprocess.run([quern_bin(), "inspect", "--tensors", path], stdout=full, stderr=subprocess.PIPE, text=True)
    assert r.returncode == 1 and "cannot write standard output" in r.stderr
    r = subprocess.run(["bash", "-c", 'set -o pipefail; "$0" inspect --tensors "$1" | head -1', quern_bin(), str(path)],
                       capture_output=True, text=True)
    assert r.returncode == 0 and r.stderr == "" and r.stdout.count("\n") == 1


# A process starts with the peak of the one that spawned it, so a small one stands in between.
MEASURE = """
import os, sys, time
start = time.monotonic()
out = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=out), 0)
print(os.waitstatus_to_exitcode(status), 1e3 * (time.monotonic() - start), usage.ru_maxrss / 1024)
"""


def measure(*args):
    """Exit code, wall milliseconds and the most memory (MiB) the program held."""
    r = subprocess.run([sys.executable, "-S", "-c", MEASURE, quern_bin(), *map(str, args)], capture_output=True,
                       text=True, check=True)
    code, ms, mib = map(float, r.stdout.split())
    return code, ms, mib


SANITISED = b"__asan_init" in open(quern_bin(), "rb").read() if os.path.exists(quern_bin()) else False


def test_large_models_cost_little(tmp_path, capsys):
    """10 GB in one GGUF with a vocabulary of 150,000, and 30 shards of safetensors; both sparse."""
    big = write_gguf(tmp_path / "big.gguf", llama_fields(layers=40, hidden=5120, heads=40, kv_heads=8, ffn=13824,
                                                         vocab=150016, context=32768),
                     llama_tensors(layers=40, hidden=5120, heads=40, kv_heads=8, ffn=13824, vocab=150016, weight=Q4_K)
                     + [("extra.weight", F16, (5120, 300000))])
    assert os.path.getsize(big) > 10e9
    shape = dict(layers=80, hidden=8192, kv=1024, ffn=28672, vocab=128256)
    folder = write_hf_dir(tmp_path / "sharded", hf_tensors(**shape), 30, hidden_size=8192, num_hidden_layers=80,
                          num_attention_heads=64, num_key_value_heads=8, intermediate_size=28672, vocab_size=128256)
    # a vocabulary as large as the largest public one, which must not be read whole
    (folder / "tokenizer.json").write_text('{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{'
                                           + ",".join(f'"token number {i}":{i}' for i in range(1000000)) + "}}}")
    for path in (big, folder):
        measure("inspect", path)  # the page cache is warm, as it is for a file that was just pulled
        code, ms, mib = min((measure("inspect", "--tensors", path) for _ in range(3)), key=lambda m: m[1])
        with capsys.disabled():
            print(f"\n  inspect {path.name}: {ms:.1f} ms, {mib:.1f} MiB resident", end="")
        assert code == 0
        assert SANITISED or mib < 50
        assert inspect(path)["supported"], inspect(path)["verdict"]
    assert inspect(folder)["tokenizer"]["model"] == "BPE"


@pytest.mark.parametrize("kind", ["alloc", "sys"])
@pytest.mark.parametrize("what", ["gguf", "folder"])
def test_every_failing_call_is_an_answer(tmp_path, kind, what):
    """Fail the Nth allocation or system call, for N = 1, 2, ... until a run is clean."""
    path = write_gguf(tmp_path / "m.gguf", llama_fields(), llama_tensors()) if what == "gguf" else \
        write_hf_dir(tmp_path / "m", hf_tensors(layers=1), 2, num_hidden_layers=1)
    clean = quern("inspect", "--json", "--tensors", path).stdout
    failed = 0
    for n in range(1, 5000):
        r = quern("--fault", f"{kind}:{n}", "inspect", "--json", "--tensors", path)
        if r.returncode == 0:
            assert r.stdout == clean, n  # a failure that was survived must not change the answer
            if n > failed + 10:  # past the last call; single failures that change nothing come before it
                break
            continue
        assert r.returncode == 1 and r.stderr.startswith("quern: error: ") and r.stderr.count("\n") == 1, (n, r)
        failed = n
    else:
        pytest.fail("never came to a clean run")
    assert failed >= (3 if kind == "sys" else 5)


def test_docs_list_every_json_key(tmp_path, tiny):
    text = (REPO / "docs" / "cli.md").read_text()

    def keys(v):
        if isinstance(v, dict):
            return set(v) | set().union(set(), *(keys(x) for x in v.values()))
        return set().union(set(), *(keys(x) for x in v)) if isinstance(v, list) else set()
    for key in keys(inspect(tiny, "--tensors")):
        assert f"`{key}`" in text, key
