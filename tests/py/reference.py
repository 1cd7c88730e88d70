"""A decoder in numpy float64, written from the definitions of the published models and not from quern's code.

It takes a config.json (as a dictionary) and the weights by their HF names, and gives the logits of every position. It
keeps no cache and cuts nothing into blocks: whole matrices, a whole mask, one softmax. The GGUF form of a model holds
the same numbers, so this one reference serves both forms.

With `bits` the inputs of matrix products are rounded to that many bits in groups of 32, with 16 as quern documents it
for quantised weights (src/cpu/cpu.h); routers, which stay F32, take exact ones. What remains then is again float
rounding, and now and then an input that falls on the other side of a half.

`faults` plants an error by name, so that a test can show that its tolerance would notice:
    swapped_heads  position  rope_base  window  attn_softcap  final_softcap  eps  plus_one  experts  qk_norm  bias
    rope_scaling  query_scale  local_rope  rotary_dims  norm_topk
"""
import math

import numpy as np

GEMMA = ("gemma2", "gemma3_text")
FAULTS = {"swapped_heads", "position", "rope_base", "window", "attn_softcap", "final_softcap", "eps", "plus_one",
          "experts", "qk_norm", "bias", "rope_scaling", "query_scale", "local_rope", "rotary_dims", "norm_topk"}


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_kinds(config):
    """'full' or 'local' for every layer."""
    n, kind = config["num_hidden_layers"], config["model_type"]
    if "layer_types" in config:
        return ["local" if t == "sliding_attention" else "full" for t in config["layer_types"]]
    if not config.get("sliding_window"):
        return ["full"] * n
    if kind == "gemma2":
        return ["local" if i % 2 == 0 else "full" for i in range(n)]
    if kind == "gemma3_text":
        period = config.get("sliding_window_pattern", 6)
        return ["full" if (i + 1) % period == 0 else "local" for i in range(n)]
    if kind.startswith("qwen"):
        if not config.get("use_sliding_window", False):
            return ["full"] * n
        return ["local" if i >= config.get("max_window_layers", 0) else "full" for i in range(n)]
    return ["local"] * n


def yarn(config, scaling, base, dims):
    """Frequencies that blend between kept and divided by how often they turn within the original context."""
    original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
    factor = scaling["factor"]

    def index_of(turns):
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(index_of(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(index_of(scaling.get("beta_slow") or 1)), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 0.001), 0, 1)
    plain = base ** (-np.arange(0, dims, 2) / dims)
    gain = scaling.get("attention_factor")
    if gain is None:
        gain = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return plain / factor * ramp + plain * (1 - ramp), gain


def llama3(scaling, plain):
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = original * plain / (2 * math.pi)  # in the original context
    share = np.clip((turns - low) / (high - low), 0, 1)
    return plain * share + plain / factor * (1 - share)


def longrope(config, scaling, plain, context):
    original = config.get("original_max_position_embeddings") or scaling["original_max_position_embeddings"]
    divisors = scaling["long_factor"] if context > original else scaling["short_factor"]
    factor = config["max_position_embeddings"] / original
    gain = scaling.get("attention_factor")
    if gain is None:
        gain = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return plain / np.asarray(divisors, dtype=np.float64), gain


def frequencies(config, kind, head_dim, context, faults):
    """(frequencies, gain on cos and sin) of a layer of that kind."""
    share = config.get("partial_rotary_factor", 1.0)
    if "rotary_dims" in faults:
        share = 1.0
    dims = int(head_dim * share)
    base, scaling = config.get("rope_theta", 10000.0), config.get("rope_scaling")
    if config["model_type"] == "gemma3_text" and kind == "local" and "local_rope" not in faults:
        base, scaling = config.get("rope_local_base_freq", 10000.0), None
    if "rope_base" in faults:
        base *= 1.01
    plain = base ** (-np.arange(0, dims, 2) / dims)
    if scaling is None or "rope_scaling" in faults:
        return plain, 1.0
    rule = scaling.get("rope_type", scaling.get("type"))
    if rule == "linear":
        return plain / scaling["factor"], 1.0
    if rule == "llama3":
        return llama3(scaling, plain), 1.0
    if rule == "yarn":
        return yarn(config, scaling, base, dims)
    assert rule == "longrope", rule
    if "rotary_dims" in faults:
        return plain, 1.0
    return longrope(config, scaling, plain, context)


def rotate(x, positions, freq, gain):
    """x: [T][heads][D]; element i of the rotated part turns with element i + half."""
    half = len(freq)
    angle = positions[:, None] * freq[None, :]
    cos, sin = (np.cos(angle) * gain)[:, None, :], (np.sin(angle) * gain)[:, None, :]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def rounded_to(bits, x):
    groups, most = x.reshape(*x.shape[:-1], -1, 32), 2 ** (bits - 1) - 1
    top = np.abs(groups).max(axis=-1, keepdims=True)
    safe = np.where(top == 0, 1, top)
    return (np.rint(groups * (most / safe)) * (top / most)).reshape(x.shape)


class Reference:
    def __init__(self, config, weights, context=None, faults=(), bits=None):
        assert set(faults) <= FAULTS, faults
        self.c, self.faults, self.bits = config, set(faults), bits
        self.w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.context = context or config["max_position_embeddings"]
        self.kinds = layer_kinds(config)
        self.eps = config["rms_norm_eps"] * (2 if "eps" in self.faults else 1)
        self.is_gemma = config["model_type"] in GEMMA

    def norm(self, x, name):
        gain = self.w[name]
        if self.is_gemma and "plus_one" not in self.faults:
            gain = gain + 1
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.eps) * gain

    def linear(self, x, name):
        if self.bits and not name.endswith(("mlp.gate", "block_sparse_moe.gate")):
            x = rounded_to(self.bits, x)
        y = x @ self.w[name + ".weight"].T
        bias = self.w.get(name + ".bias")
        return y if bias is None or "bias" in self.faults else y + bias

    def project(self, x, at):
        """q, k, v as [T][heads][D] before anything is done to them."""
        n_q, n_kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if at + "qkv_proj.weight" in self.w:
            q, k, v = np.split(self.linear(x, at + "qkv_proj"), [n_q, n_q + n_kv], axis=-1)
        else:
            q, k, v = (self.linear(x, at + name) for name in ("q_proj", "k_proj", "v_proj"))
        q, k, v = (y.reshape(len(x), -1, self.head_dim) for y in (q, k, v))
        if "swapped_heads" in self.faults:
            q = q[:, [1, 0] + list(range(2, self.heads))]
        if at + "q_norm.weight" in self.w and "qk_norm" not in self.faults:
            q, k = self.norm(q, at + "q_norm.weight"), self.norm(k, at + "k_norm.weight")
        return q, k, v

    def attention(self, x, layer):
        at, kind, n = f"model.layers.{layer}.self_attn.", self.kinds[layer], len(x)
        q, k, v = self.project(x, at)
        freq, gain = frequencies(self.c, kind, self.head_dim, self.context, self.faults)
        pos = np.arange(n, dtype=np.float64)
        q = rotate(q, pos + (1 if "position" in self.faults else 0), freq, gain)
        k = rotate(k, pos, freq, gain)
        share = self.heads // self.kv_heads
        k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
        scalar = self.c.get("query_pre_attn_scalar", self.head_dim) if self.is_gemma else self.head_dim
        scalar *= 2 if "query_scale" in self.faults else 1
        q, k, v = (y.swapaxes(0, 1) for y in (q, k, v))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(scalar)
        cap = self.c.get("attn_logit_softcapping")
        if cap and "attn_softcap" not in self.faults:
            scores = cap * np.tanh(scores / cap)
        distance = np.arange(n)[:, None] - np.arange(n)[None, :]
        hidden = distance < 0
        if kind == "local":
            window = self.c["sliding_window"] + (1 if "window" in self.faults else 0)
            hidden = hidden | (distance >= window)
        scores = np.where(hidden[None], -np.inf, scores)
        mixed = (softmax(scores) @ v).swapaxes(0, 1).reshape(n, -1)
        return self.linear(mixed, at + "o_proj")

    def act(self, x):
        return gelu_tanh(x) if self.is_gemma else silu(x)

    def dense(self, x, at):
        if at + "gate_up_proj.weight" in self.w:
            gate, up = np.split(self.linear(x, at + "gate_up_proj"), 2, axis=-1)
        else:
            gate, up = self.linear(x, at + "gate_proj"), self.linear(x, at + "up_proj")
        return self.linear(self.act(gate) * up, at + "down_proj")

    def mixture(self, x, layer):
        mixtral = self.c["model_type"] == "mixtral"
        at = f"model.layers.{layer}." + ("block_sparse_moe." if mixtral else "mlp.")
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        share = softmax(self.linear(x, at + "gate"))
        top = np.argsort(-share, axis=-1, kind="stable")[:, :self.c["num_experts_per_tok"]]
        weight = np.take_along_axis(share, top, axis=-1)
        normed = mixtral or self.c.get("norm_topk_prob", False)
        if normed != ("norm_topk" in self.faults):
            weight = weight / weight.sum(axis=-1, keepdims=True)
        if "experts" in self.faults:
            top = top[:, ::-1]
        out = np.zeros_like(x)
        for e in range(share.shape[-1]):
            rows, place = np.nonzero(top == e)
            if len(rows) == 0:
                continue
            gate, up, down = (f"{at}experts.{e}.{name}" for name in names)
            y = self.linear(self.act(self.linear(x[rows], gate)) * self.linear(x[rows], up), down)
            out[rows] += weight[rows, place][:, None] * y
        return out

    def layer(self, x, i):
        at = f"model.layers.{i}."
        attended = self.attention(self.norm(x, at + "input_layernorm.weight"), i)
        if self.is_gemma:
            x = x + self.norm(attended, at + "post_attention_layernorm.weight")
            y = self.dense(self.norm(x, at + "pre_feedforward_layernorm.weight"), at + "mlp.")
            return x + self.norm(y, at + "post_feedforward_layernorm.weight")
        x = x + attended
        normed = self.norm(x, at + "post_attention_layernorm.weight")
        if self.c["model_type"] in ("mixtral", "qwen3_moe"):
            return x + self.mixture(normed, i)
        return x + self.dense(normed, at + "mlp.")

    def hidden(self, ids):
        """The rows behind the final norm."""
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        if self.is_gemma:
            x = x * math.sqrt(self.c["hidden_size"])
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, i)
        return self.norm(x, "model.norm.weight")

    def logits(self, ids):
        head = "model.embed_tokens" if self.c.get("tie_word_embeddings") else "lm_head"
        y = self.linear(self.hidden(ids), head)
        cap = self.c.get("final_logit_softcapping")
        return cap * np.tanh(y / cap) if cap and "final_softcap" not in self.faults else y


def row_errors(got, want):
    got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    rows = np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)
    return np.where(np.isnan(rows), np.inf, rows)


def error(got, want):
    """The largest over the positions of |got - want| / |want|, lengths of whole rows of logits. For exact arithmetic,
    where no row may be off."""
    return float(row_errors(got, want).max())


def noise(got, want):
    """The root mean square of the same over the positions. For rounded weights, activations or caches, where the
    largest row is a matter of luck."""
    return float(np.sqrt((row_errors(got, want) ** 2).mean()))
