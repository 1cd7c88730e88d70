"""Model files made for the command-line tests: written by hand from the formats' definitions, sparse where they are
large, so that a 10 GB model costs a few KB of disk."""
import json
import os
import pathlib
import struct
import subprocess

REPO = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", REPO.parent / "shared"))

GGUF_U32, GGUF_F32, GGUF_BOOL, GGUF_STR, GGUF_ARR = 4, 6, 7, 8, 9
F32, F16, Q4_0, Q8_0, Q4_K, IQ2_XXS = 0, 1, 2, 8, 12, 16
BLOCK = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), IQ2_XXS: (256, 66)}


def quern_bin():
    return os.environ.get("QUERN_BIN", str(REPO / "build" / "release" / "quern"))


def quern(*args, **kw):
    """Run the program as a user does; text in and out, an empty environment but for what is given."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **kw.pop("env", {})}
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
    return subprocess.run([quern_bin(), *map(str, args)], capture_output=True, text=True, env=env, timeout=60, **kw)


def _gguf_str(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def _gguf_value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", GGUF_BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", GGUF_U32, v)
    if isinstance(v, float):
        return struct.pack("<If", GGUF_F32, v)
    if isinstance(v, str):
        return struct.pack("<I", GGUF_STR) + _gguf_str(v)
    if v and isinstance(v[0], str):
        return struct.pack("<IIQ", GGUF_ARR, GGUF_STR, len(v)) + b"".join(_gguf_str(s) for s in v)
    return struct.pack("<IIQ", GGUF_ARR, 5, len(v)) + struct.pack(f"<{len(v)}i", *v)


def tensor_bytes(dtype, shape):
    elems, size = BLOCK[dtype]
    n = 1
    for d in shape:
        n *= d
    return n // elems * size


def write_gguf(path, fields, tensors):
    """tensors: (name, type number, shape with the row first, as the file lists it). The data is a hole."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))
    head += b"".join(_gguf_str(k) + _gguf_value(v) for k, v in fields.items())
    at = 0
    for name, dtype, shape in tensors:
        head += _gguf_str(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", dtype, at)
        at += (tensor_bytes(dtype, shape) + 31) // 32 * 32
    head += b"\0" * (-len(head) % 32)
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + at)
    return path


def llama_fields(arch="llama", layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, context=256, vocab=96, **more):
    fields = {
        "general.architecture": arch, "general.name": "tiny test",
        f"{arch}.context_length": context, f"{arch}.block_count": layers, f"{arch}.embedding_length": hidden,
        f"{arch}.feed_forward_length": ffn, f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads, f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0, f"{arch}.rope.dimension_count": hidden // heads,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(vocab)], "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.token_type": [1] * vocab,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    fields.update(more)
    return fields


def llama_tensors(layers=2, hidden=64, heads=4, kv_heads=2, ffn=128, vocab=96, weight=Q8_0):
    kv = hidden // heads * kv_heads
    out = [("token_embd.weight", weight, (hidden, vocab)), ("output_norm.weight", F32, (hidden,)),
           ("output.weight", weight, (hidden, vocab))]
    for i in range(layers):
        b = f"blk.{i}."
        out += [(b + "attn_norm.weight", F32, (hidden,)), (b + "attn_q.weight", weight, (hidden, hidden)),
                (b + "attn_k.weight", weight, (hidden, kv)), (b + "attn_v.weight", weight, (hidden, kv)),
                (b + "attn_output.weight", weight, (hidden, hidden)), (b + "ffn_norm.weight", F32, (hidden,)),
                (b + "ffn_gate.weight", weight, (hidden, ffn)), (b + "ffn_up.weight", weight, (hidden, ffn)),
                (b + "ffn_down.weight", weight, (ffn, hidden))]
    return out


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, bytes per element, shape). The data is a hole."""
    header, at = {}, 0
    for name, (dtype, size, shape) in tensors.items():
        n = size
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    return at


def hf_tensors(layers=2, hidden=64, kv=32, ffn=128, vocab=96, dtype="BF16", size=2):
    out = {"model.embed_tokens.weight": (dtype, size, (vocab, hidden)), "model.norm.weight": (dtype, size, (hidden,)),
           "lm_head.weight": (dtype, size, (vocab, hidden))}
    for i in range(layers):
        b = f"model.layers.{i}."
        shapes = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                  "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
                  "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
                  "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}
        out.update({b + k + ".weight": (dtype, size, s) for k, s in shapes.items()})
    return out


def write_hf_dir(path, tensors, shards=1, tokenizer=True, **config):
    path.mkdir(parents=True, exist_ok=True)
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
    base.update(config)
    (path / "config.json").write_text(json.dumps(base))
    if tokenizer:
        added = [{"id": i, "content": f"<{i}>", "type": "no", "special": True} for i in range(9)]
        (path / "tokenizer.json").write_text(json.dumps(
            {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
             "note": 'a "model": {"type": "no"}',
             "model": {"dropout": None, "type": "BPE", "vocab": {"a": 0}, "merges": []}}))
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors)
        return path
    names, where, total = list(tensors), {}, 0
    for s in range(shards):
        file = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        part = {n: tensors[n] for n in names[s::shards]}
        total += write_safetensors(path / file, part)
        where.update({n: file for n in part})
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    return path
