#!/usr/bin/env python3
"""Tiny models with random weights, one per architecture, as GGUF (whole or split) and as HF folders (whole or sharded).

They are written by the packages `gguf` and `safetensors`, so that quern reads what others write. The numbers are the
same in both forms of one architecture and depend on the seed alone. Run as a program:

    make_models.py OUT             every architecture in every form, below OUT
    make_models.py --seeds FOLDER  the seeds of the fuzz targets, below FOLDER
"""
import argparse
import json
import pathlib
import struct

import gguf
import numpy as np
from safetensors.numpy import save_file

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, VOCAB, CONTEXT = 64, 96, 6, 4, 2, 96, 256
EXPERTS, EXPERTS_USED, EXPERT_FFN = 4, 2, 32
LONG = [1.0 + i / 8 for i in range(6)]
SHORT = [1.0 + i / 64 for i in range(6)]

# name -> what its config.json and its GGUF keys say beyond the common shape
ARCHS = {
    "llama": dict(
        hf=dict(model_type="llama", architectures=["LlamaForCausalLM"], rope_theta=500000.0,
                rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=64)),
        gguf={"rope.freq_base": 500000.0}),
    "mistral": dict(
        hf=dict(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=32, head_dim=16),
        gguf={"attention.sliding_window": 32}, gguf_arch="llama"),
    "qwen2": dict(
        hf=dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=False, sliding_window=32,
                rope_theta=1000000.0),
        gguf={"rope.freq_base": 1000000.0}),
    "qwen3": dict(
        hf=dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=32, rope_theta=1000000.0,
                rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
        gguf={"attention.key_length": 32, "attention.value_length": 32, "rope.freq_base": 1000000.0,
              "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}),
    "qwen3moe": dict(
        hf=dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], num_experts=EXPERTS,
                num_experts_per_tok=EXPERTS_USED, moe_intermediate_size=EXPERT_FFN, norm_topk_prob=True),
        gguf={"expert_count": EXPERTS, "expert_used_count": EXPERTS_USED,
              "expert_feed_forward_length": EXPERT_FFN}),
    "mixtral": dict(
        hf=dict(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=EXPERTS,
                num_experts_per_tok=EXPERTS_USED, sliding_window=None, rope_theta=1000000.0),
        gguf={"expert_count": EXPERTS, "expert_used_count": EXPERTS_USED, "rope.freq_base": 1000000.0},
        gguf_arch="llama"),
    "gemma2": dict(
        hf=dict(model_type="gemma2", architectures=["Gemma2ForCausalLM"], head_dim=16, query_pre_attn_scalar=16,
                sliding_window=32, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
                hidden_activation="gelu_pytorch_tanh"),
        gguf={"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 32,
              "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": dict(
        hf=dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], head_dim=16, query_pre_attn_scalar=16,
                sliding_window=32, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                rope_scaling=dict(rope_type="linear", factor=8.0), hidden_activation="gelu_pytorch_tanh"),
        gguf={"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 32,
              "rope.freq_base": 1000000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "phi3": dict(
        hf=dict(model_type="phi3", architectures=["Phi3ForCausalLM"], partial_rotary_factor=0.75,
                original_max_position_embeddings=64,
                rope_scaling=dict(type="longrope", long_factor=LONG, short_factor=SHORT)),
        gguf={"rope.dimension_count": 12, "rope.scaling.original_context_length": 64}),
}
MIXTURES = ("mixtral", "qwen3moe")
TIED = ("gemma2", "gemma3")


def hf_config(arch):
    config = dict(hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                  num_key_value_heads=KV_HEADS, vocab_size=VOCAB, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5,
                  bos_token_id=1, eos_token_id=2, tie_word_embeddings=arch in TIED, torch_dtype="float32")
    return config | ARCHS[arch]["hf"]


def head_dim(arch):
    return ARCHS[arch]["hf"].get("head_dim", HIDDEN // HEADS)


def layer_shapes(arch):
    """(HF name, GGUF name, shape) of one layer; experts of a mixture are one entry in GGUF and many in HF."""
    q, kv = HEADS * head_dim(arch), KV_HEADS * head_dim(arch)
    rows = [("input_layernorm.weight", "attn_norm.weight", (HIDDEN,)),
            ("self_attn.o_proj.weight", "attn_output.weight", (HIDDEN, q))]
    if arch == "phi3":
        rows += [("self_attn.qkv_proj.weight", "attn_qkv.weight", (q + 2 * kv, HIDDEN)),
                 ("mlp.gate_up_proj.weight", "ffn_up.weight", (2 * FFN, HIDDEN))]
    else:
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            rows.append((f"self_attn.{name}_proj.weight", f"attn_{name}.weight", (size, HIDDEN)))
            if arch == "qwen2":
                rows.append((f"self_attn.{name}_proj.bias", f"attn_{name}.bias", (size,)))
    if arch in ("qwen3", "qwen3moe", "gemma3"):
        rows += [(f"self_attn.{n}_norm.weight", f"attn_{n}_norm.weight", (head_dim(arch),)) for n in "qk"]
    if arch in TIED:
        rows += [("post_attention_layernorm.weight", "post_attention_norm.weight", (HIDDEN,)),
                 ("pre_feedforward_layernorm.weight", "ffn_norm.weight", (HIDDEN,)),
                 ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", (HIDDEN,))]
    else:
        rows.append(("post_attention_layernorm.weight", "ffn_norm.weight", (HIDDEN,)))
    if arch not in MIXTURES:
        rows.append(("mlp.down_proj.weight", "ffn_down.weight", (HIDDEN, FFN)))
        if arch != "phi3":
            rows += [(f"mlp.{n}_proj.weight", f"ffn_{n}.weight", (FFN, HIDDEN)) for n in ("gate", "up")]
    return rows


def expert_shapes(arch):
    size = FFN if arch == "mixtral" else EXPERT_FFN
    block = "block_sparse_moe" if arch == "mixtral" else "mlp"
    names = ("w1", "w3", "w2") if arch == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    shapes = ((size, HIDDEN), (size, HIDDEN), (HIDDEN, size))
    return block, list(zip(names, ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), shapes))


def make_weights(arch, seed=7):
    """Two dictionaries of the same numbers: by HF name and by GGUF name."""
    rng = np.random.default_rng(seed)
    hf, gg = {}, {}

    def add(hf_name, gguf_name, shape):
        hf[hf_name] = gg[gguf_name] = (rng.standard_normal(shape) * 0.1).astype(np.float32)

    add("model.embed_tokens.weight", "token_embd.weight", (VOCAB, HIDDEN))
    for i in range(LAYERS):
        for hf_name, gguf_name, shape in layer_shapes(arch):
            add(f"model.layers.{i}.{hf_name}", f"blk.{i}.{gguf_name}", shape)
        if arch in MIXTURES:
            block, experts = expert_shapes(arch)
            add(f"model.layers.{i}.{block}.gate.weight", f"blk.{i}.ffn_gate_inp.weight", (EXPERTS, HIDDEN))
            for hf_name, gguf_name, shape in experts:
                stack = (rng.standard_normal((EXPERTS, *shape)) * 0.1).astype(np.float32)
                gg[f"blk.{i}.{gguf_name}.weight"] = stack
                for x in range(EXPERTS):
                    hf[f"model.layers.{i}.{block}.experts.{x}.{hf_name}.weight"] = stack[x]
    add("model.norm.weight", "output_norm.weight", (HIDDEN,))
    if arch not in TIED:
        add("lm_head.weight", "output.weight", (VOCAB, HIDDEN))
    if arch == "llama":
        gg["rope_freqs.weight"] = np.ones(head_dim(arch) // 2, np.float32)
    if arch == "phi3":
        gg["rope_factors_long.weight"] = np.array(LONG, np.float32)
        gg["rope_factors_short.weight"] = np.array(SHORT, np.float32)
    return hf, gg


def add_vocab(writer):
    tokens = [b"<unk>", b"<s>", b"</s>"] + [bytes([33 + i]) for i in range(VOCAB - 3)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(VOCAB)])
    writer.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def write_gguf(path, arch, dtype="F32", split=0):
    """One file, or several of at most `split` tensors each. Vectors stay F32, as converters leave them."""
    name = ARCHS[arch].get("gguf_arch", arch)
    writer = gguf.GGUFWriter(str(path), name, split_max_tensors=split)
    writer.add_name(f"tiny {arch}")
    common = {"context_length": CONTEXT, "block_count": LAYERS, "embedding_length": HIDDEN,
              "feed_forward_length": FFN, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
              "vocab_size": VOCAB, "attention.layer_norm_rms_epsilon": 1e-5}
    for key, value in (common | ARCHS[arch]["gguf"]).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{name}.{key}", value)
    add_vocab(writer)
    kind = gguf.GGMLQuantizationType[dtype]
    for tensor, values in make_weights(arch)[1].items():
        used = kind if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor, gguf.quants.quantize(values, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_hf(folder, arch, shards=1, dtype=np.float32):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(arch), indent=2))
    (folder / "generation_config.json").write_text(
        json.dumps(dict(temperature=0.7, top_p=0.9, top_k=40, do_sample=True, eos_token_id=[2, 1])))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(dict(add_bos_token=True, chat_template="{{ messages[0]['content'] }}")))
    weights = {name: values.astype(dtype) for name, values in make_weights(arch)[0].items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i::shards]
        save_file({n: weights[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(dict(metadata=dict(total_size=sum(v.nbytes for v in weights.values())), weight_map=weight_map)))


def write_sparse_gguf(path, total_bytes, vocab=150_000):
    """A file of that many bytes of which only the header exists: a vocabulary of real size and a hole."""
    out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, 8, 4))

    def text(s):
        return struct.pack("<Q", len(s)) + s

    tokens = b"".join(text(b"token%d" % i) for i in range(vocab))
    out += text(b"general.architecture") + struct.pack("<I", 8) + text(b"sparse")
    out += text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, vocab) + tokens
    out += text(b"tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, vocab) + tokens
    out += text(b"tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, vocab) + bytes(4 * vocab)
    each = (total_bytes // 8 - (1 << 20)) // 32 * 32
    for i in range(8):
        out += text(b"w%d" % i) + struct.pack("<IQQIQ", 2, each // 32, 16, 1, i * each)
    with open(path, "wb") as f:
        f.write(out)
        f.truncate(total_bytes)


def write_sparse_shards(folder, shards, shard_bytes, tensors=64):
    """A folder of shards that are headers and holes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config("llama")))
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        each = (shard_bytes // tensors) // 2
        rows = each // 64
        header = json.dumps({f"layers.{i}.{k}.weight": dict(dtype="BF16", shape=[rows, 64],
                                                            data_offsets=[k * rows * 128, (k + 1) * rows * 128])
                             for k in range(tensors)}).encode()
        header += b" " * (-len(header) % 8)
        with open(folder / file, "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header)
            f.truncate(8 + len(header) + tensors * rows * 128)
        weight_map.update({f"layers.{i}.{k}.weight": file for k in range(tensors)})
    (folder / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map=weight_map)))


def write_all(out):
    for arch in ARCHS:
        folder = out / arch
        folder.mkdir(parents=True, exist_ok=True)
        for dtype in ("F32", "F16", "Q8_0"):
            write_gguf(folder / f"{arch}-{dtype}.gguf", arch, dtype)
        write_gguf(folder / f"{arch}-split.gguf", arch, split=20)
        write_hf(folder / "hf", arch)
        write_hf(folder / "hf-sharded", arch, shards=3)


def write_seeds(out):
    """Seeds of the fuzz targets: small files of every kind of value, and every family's config."""
    for name in ("fuzz_gguf", "fuzz_safetensors", "fuzz_hf_config"):
        (out / name).mkdir(parents=True, exist_ok=True)
    for i, big_alignment in enumerate((False, True)):
        writer = gguf.GGUFWriter(str(out / "fuzz_gguf" / f"values_{i}.gguf"), "llama")
        if big_alignment:
            writer.add_custom_alignment(64)
        add_every_type(writer)
        if i == 1:
            for key in ("context_length", "block_count", "embedding_length", "feed_forward_length",
                        "attention.head_count", "vocab_size"):
                writer.add_uint32(f"llama.{key}", 4)
            writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
        quantised = gguf.quants.quantize(np.ones((1, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("blk.0.attn_q.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((4,), np.float16)},
              out / "fuzz_safetensors" / "two", metadata={"format": "pt"})
    save_file({"i": np.zeros((1,), np.int64), "u": np.zeros((3, 1), np.uint8), "e": np.zeros((0, 4), np.float32),
               "t": np.ones((2,), bool)}, out / "fuzz_safetensors" / "kinds")
    for arch in ARCHS:
        (out / "fuzz_hf_config" / arch).write_text(json.dumps(hf_config(arch)))
    (out / "fuzz_hf_config" / "generation").write_bytes(
        json.dumps(hf_config("qwen3")).encode() + b"\0" +
        json.dumps(dict(temperature=0.6, top_p=0.9, top_k=20, do_sample=True, eos_token_id=[1, 2])).encode())
    (out / "fuzz_hf_config" / "multimodal").write_text(
        json.dumps(dict(model_type="gemma3", eos_token_id=[1, 2], text_config=hf_config("gemma3"))))


def add_every_type(writer):
    """One key of every value type; what it adds is returned as {key: value}."""
    values = {"x.u8": 200, "x.i8": -100, "x.u16": 60000, "x.i16": -30000, "x.u32": 4_000_000_000,
              "x.i32": -2_000_000_000, "x.u64": 2**64 - 1, "x.i64": -(2**63), "x.f32": 0.1, "x.f64": 1e300,
              "x.bool": True, "x.str": "caf\u00e9 \u4e16"}
    writer.add_uint8("x.u8", values["x.u8"])
    writer.add_int8("x.i8", values["x.i8"])
    writer.add_uint16("x.u16", values["x.u16"])
    writer.add_int16("x.i16", values["x.i16"])
    writer.add_uint32("x.u32", values["x.u32"])
    writer.add_int32("x.i32", values["x.i32"])
    writer.add_uint64("x.u64", values["x.u64"])
    writer.add_int64("x.i64", values["x.i64"])
    writer.add_float32("x.f32", values["x.f32"])
    writer.add_float64("x.f64", values["x.f64"])
    writer.add_bool("x.bool", values["x.bool"])
    writer.add_string("x.str", values["x.str"])
    arrays = {"x.ints": [1, -2, 3], "x.floats": [0.5, -1.5], "x.strings": ["a", "", "\u00fcber"],
              "x.bools": [True, False]}
    for key, value in arrays.items():
        writer.add_array(key, value)
    return values | arrays


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seeds", action="store_true")
    args = parser.parse_args()
    (write_seeds if args.seeds else write_all)(args.out)
