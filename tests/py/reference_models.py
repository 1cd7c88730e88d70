"""Small models with random weights, one case per architecture and per way of stretching the context.

A case is a config.json. Its weights depend on the case's name alone and are written in two forms: as an HF folder, and
as a GGUF file laid out the way the public converters lay it out (query and key rows of the Llama family reordered so
that rope turns neighbours, gains of Gemma whole instead of minus one, experts stacked, rope divisors as tensors).
"""
import json
import math
import zlib

import gguf
import numpy as np
from safetensors.numpy import save_file

BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=160, max_position_embeddings=512, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2,
            tie_word_embeddings=False, dtype="float32", rope_theta=10000.0)

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu")
MISTRAL = dict(model_type="mistral", architectures=["MistralForCausalLM"], hidden_act="silu", sliding_window=40)
QWEN2 = dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_act="silu", rope_theta=1e6)
QWEN3 = dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_act="silu", head_dim=32, rope_theta=1e6)
GEMMA2 = dict(model_type="gemma2", architectures=["Gemma2ForCausalLM"], hidden_activation="gelu_pytorch_tanh",
              head_dim=32, query_pre_attn_scalar=32, sliding_window=40, attn_logit_softcapping=5.0,
              final_logit_softcapping=3.0, num_hidden_layers=4, tie_word_embeddings=True)
GEMMA3 = dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], hidden_activation="gelu_pytorch_tanh",
              head_dim=32, query_pre_attn_scalar=32, sliding_window=40, rope_theta=1e6, rope_local_base_freq=10000.0,
              num_hidden_layers=7, tie_word_embeddings=True)
PHI3 = dict(model_type="phi3", architectures=["Phi3ForCausalLM"], hidden_act="silu", sliding_window=None,
            pad_token_id=0)
MIXTRAL = dict(model_type="mixtral", architectures=["MixtralForCausalLM"], hidden_act="silu", sliding_window=None,
               num_local_experts=6, num_experts_per_tok=2, rope_theta=1e6)
QWEN3MOE = dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_act="silu", num_experts=8,
                num_experts_per_tok=3, moe_intermediate_size=32, head_dim=32, rope_theta=1e6, norm_topk_prob=True)
LONGROPE = dict(type="longrope", short_factor=[1 + i / 40 for i in range(6)],
                long_factor=[1 + i * 0.9 for i in range(6)])
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)

CASES = {
    "llama": LLAMA,
    "llama-tied-mha": LLAMA | dict(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-head-dim": LLAMA | dict(head_dim=32),
    "llama-bias": LLAMA | dict(attention_bias=True),
    "llama3": LLAMA | dict(rope_theta=5e5, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64)),
    "llama-linear": LLAMA | dict(rope_scaling=dict(rope_type="linear", factor=4.0)),
    "llama-yarn": LLAMA | dict(rope_scaling=YARN),
    "mistral": MISTRAL,
    "mistral-yarn": MISTRAL | dict(rope_scaling=YARN),
    "qwen2": QWEN2 | dict(use_sliding_window=False, sliding_window=40, max_window_layers=3),
    "qwen2-window": QWEN2 | dict(use_sliding_window=True, sliding_window=40, max_window_layers=1),
    "qwen3": QWEN3,
    "qwen3-yarn": QWEN3 | dict(rope_scaling=YARN),
    "gemma2": GEMMA2,
    "gemma2-scalar": GEMMA2 | dict(query_pre_attn_scalar=20),
    "gemma3": GEMMA3,
    "gemma3-linear": GEMMA3 | dict(rope_scaling=dict(rope_type="linear", factor=8.0)),
    "phi3": PHI3,
    "phi3-window": PHI3 | dict(sliding_window=40),
    "phi3-longrope-short": PHI3 | dict(partial_rotary_factor=0.75, original_max_position_embeddings=256,
                                       rope_scaling=LONGROPE),
    "phi3-longrope-long": PHI3 | dict(partial_rotary_factor=0.75, original_max_position_embeddings=128,
                                      rope_scaling=LONGROPE, sliding_window=48),
    "phi4-mini": PHI3 | dict(partial_rotary_factor=0.75, tie_word_embeddings=True, num_attention_heads=4,
                             num_key_value_heads=1),
    "mixtral": MIXTRAL,
    "qwen3moe": QWEN3MOE,
    "qwen3moe-plain-topk": QWEN3MOE | dict(norm_topk_prob=False),
}

# Sizes for quantised weights, whose rows are whole blocks of 256.
WIDE = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=64, vocab_size=320)


def make_config(case, **more):
    return BASE | CASES[case] | more


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def is_gemma(c):
    return c["model_type"].startswith("gemma")


def is_mixture(c):
    return c["model_type"] in ("mixtral", "qwen3_moe")


def experts(c):
    """(HF block, HF names of gate, up and down, how many, their width)."""
    if c["model_type"] == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2"), c["num_local_experts"], c["intermediate_size"]
    return "mlp", ("gate_proj", "up_proj", "down_proj"), c["num_experts"], c["moe_intermediate_size"]


def layer_shapes(c):
    """Shapes by HF name of one layer."""
    h, f, d = c["hidden_size"], c["intermediate_size"], head_dim(c)
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,), "self_attn.o_proj.weight": (h, q)}
    if c["model_type"] == "phi3":
        out |= {"self_attn.qkv_proj.weight": (q + 2 * kv, h), "mlp.gate_up_proj.weight": (2 * f, h)}
    else:
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            out[f"self_attn.{name}_proj.weight"] = (rows, h)
            if c["model_type"] == "qwen2" or c.get("attention_bias"):
                out[f"self_attn.{name}_proj.bias"] = (rows,)
    if c.get("attention_bias"):
        out["self_attn.o_proj.bias"] = (h,)
    if c["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
        out |= {"self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}
    if is_gemma(c):
        out |= {"pre_feedforward_layernorm.weight": (h,), "post_feedforward_layernorm.weight": (h,)}
    if is_mixture(c):
        block, names, n, width = experts(c)
        out[f"{block}.gate.weight"] = (n, h)
        for e in range(n):
            for name, shape in zip(names, ((width, h), (width, h), (h, width))):
                out[f"{block}.experts.{e}.{name}.weight"] = shape
        return out
    if c["model_type"] != "phi3":
        out |= {"mlp.gate_proj.weight": (f, h), "mlp.up_proj.weight": (f, h)}
    return out | {"mlp.down_proj.weight": (h, f)}


def make_weights(c, seed):
    """Weights by HF name. Sized so that attention is far from uniform, soft caps bend and the norms differ from 1:
    then every part of the arithmetic shows in the logits."""
    rng = np.random.default_rng(zlib.crc32(seed.encode()))

    def draw(name, shape):
        if len(shape) == 1 and "norm" in name:
            centre = 0.0 if is_gemma(c) else 1.0
            return (centre + 0.3 * rng.standard_normal(shape)).astype(np.float32)
        if len(shape) == 1:
            return (0.3 * rng.standard_normal(shape)).astype(np.float32)
        size = 1.0 if "embed" in name else 1.4 / math.sqrt(shape[-1])
        if name.endswith("gate.weight"):
            size = 2.5 / math.sqrt(shape[-1])  # a router with opinions
        if is_gemma(c) and "embed" in name:
            size /= math.sqrt(c["hidden_size"])
        return (size * rng.standard_normal(shape)).astype(np.float32)

    shapes = {"model.embed_tokens.weight": (c["vocab_size"], c["hidden_size"]),
              "model.norm.weight": (c["hidden_size"],)}
    for i in range(c["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer_shapes(c).items()}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (c["vocab_size"], c["hidden_size"])
    return {name: draw(name, shape) for name, shape in shapes.items()}


def make_ids(c, n, seed="ids"):
    return np.random.default_rng(zlib.crc32(seed.encode())).integers(3, c["vocab_size"], n).astype(np.int32)


# ---- HF ------------------------------------------------------------------------------------------------------------


def write_hf(folder, c, weights):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c, indent=1))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# ---- GGUF ----------------------------------------------------------------------------------------------------------

GGUF_ARCH = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
             "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3"}
GGUF_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}


def to_pairs(w, n_heads):
    """Rows of each head from (first half, second half) to (first, second) of every pair."""
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_divisors(c):
    """What converters put into rope_freqs.weight."""
    s, d = c["rope_scaling"], head_dim(c)
    out = []
    for i in range(d // 2):
        turns = s["original_max_position_embeddings"] / (2 * math.pi * c["rope_theta"] ** (2 * i / d))
        if turns > s["high_freq_factor"]:
            out.append(1.0)
        elif turns < s["low_freq_factor"]:
            out.append(s["factor"])
        else:
            keep = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
            out.append(1 / ((1 - keep) / s["factor"] + keep))
    return np.array(out, np.float32)


def gguf_tensors(c, weights):
    out = {}
    for name, w in weights.items():
        if is_gemma(c) and "norm" in name:
            w = w + np.float32(1)
        if GGUF_ARCH[c["model_type"]] == "llama" and ".q_proj." in name:
            w = to_pairs(w, c["num_attention_heads"])
        if GGUF_ARCH[c["model_type"]] == "llama" and ".k_proj." in name:
            w = to_pairs(w, c["num_key_value_heads"])
        if not name.startswith("model.layers."):
            whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                     "lm_head.weight": "output.weight"}
            out[whole[name]] = w
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        if ".experts." in rest:
            continue
        stem, kind = rest.rsplit(".", 1)
        if is_gemma(c) and stem == "post_attention_layernorm":
            out[f"blk.{layer}.post_attention_norm.weight"] = w
        else:
            out[f"blk.{layer}.{GGUF_LAYER[stem]}.{kind}"] = w
    if is_mixture(c):
        block, names, n, _ = experts(c)
        for i in range(c["num_hidden_layers"]):
            for name, ours in zip(names, ("gate", "up", "down")):
                stack = [weights[f"model.layers.{i}.{block}.experts.{e}.{name}.weight"] for e in range(n)]
                out[f"blk.{i}.ffn_{ours}_exps.weight"] = np.stack(stack)
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        out["rope_freqs.weight"] = llama3_divisors(c)
    if scaling.get("type") == "longrope":
        out["rope_factors_long.weight"] = np.array(scaling["long_factor"], np.float32)
        out["rope_factors_short.weight"] = np.array(scaling["short_factor"], np.float32)
    return out


def gguf_rope_keys(c):
    keys = {"rope.freq_base": c["rope_theta"],
            "rope.dimension_count": int(head_dim(c) * c.get("partial_rotary_factor", 1.0))}
    s = c.get("rope_scaling") or {}
    if s.get("rope_type") in ("linear", "yarn"):
        keys |= {"rope.scaling.type": s["rope_type"], "rope.scaling.factor": s["factor"]}
    if s.get("rope_type") == "yarn":
        keys["rope.scaling.original_context_length"] = s["original_max_position_embeddings"]
    if s.get("type") == "longrope":
        original = c["original_max_position_embeddings"]
        stretch = c["max_position_embeddings"] / original
        keys |= {"rope.scaling.original_context_length": original,
                 "rope.scaling.attn_factor": math.sqrt(1 + math.log(stretch) / math.log(original))}
    return keys


def gguf_keys(c):
    keys = {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
            "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"], "attention.head_count_kv": c["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "vocab_size": c["vocab_size"],
            "attention.key_length": head_dim(c), "attention.value_length": head_dim(c)} | gguf_rope_keys(c)
    if c.get("sliding_window") and c.get("use_sliding_window", True):
        keys["attention.sliding_window"] = c["sliding_window"]
    if is_gemma(c) and c["query_pre_attn_scalar"] != head_dim(c):
        keys["attention.scale"] = 1 / math.sqrt(c["query_pre_attn_scalar"])
    for name in ("attn", "final"):
        if c.get(f"{name}_logit_softcapping"):
            keys[f"{name}_logit_softcapping"] = c[f"{name}_logit_softcapping"]
    if is_mixture(c):
        keys |= {"expert_count": experts(c)[2], "expert_used_count": c["num_experts_per_tok"]}
    if c["model_type"] == "qwen3_moe":
        keys["expert_feed_forward_length"] = c["moe_intermediate_size"]
        if not c["norm_topk_prob"]:
            keys["expert_weights_norm"] = False
    return keys


def add_vocab(writer, n):
    writer.add_tokenizer_model("llama")
    writer.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(n - 3)][:256]
                          + [b"t%d" % i for i in range(n - 259)])
    writer.add_token_scores([-float(i) for i in range(n)])
    writer.add_token_types([2, 3, 3] + [6] * min(n - 3, 256) + [1] * max(n - 259, 0))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_gguf(path, c, weights, dtype="F32", packed=None):
    """packed: {GGUF name: (dtype, raw blocks as bytes [..][row bytes])} for tensors stored in another type."""
    arch = GGUF_ARCH[c["model_type"]]
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name("reference")
    for key, value in gguf_keys(c).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{arch}.{key}", value)
    add_vocab(writer, c["vocab_size"])
    for name, w in gguf_tensors(c, weights).items():
        if packed and name in packed:
            kind, raw = packed[name]
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
            continue
        kind = gguf.GGMLQuantizationType[dtype if w.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(w), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
