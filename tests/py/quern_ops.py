"""Single ops of a backend through libquern_testing.so, with what they should give in float64."""
import ctypes

import numpy as np

from quern_model import LIBRARY

FLOATS = ctypes.POINTER(ctypes.c_float)
ROPE_NONE, ROPE_PAIRS, ROPE_HALVES = 0, 1, 2


class AttentionCase(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in
                ("n_heads", "n_kv_heads", "head_dim", "window", "rope", "rope_dims", "qk_norm", "hidden",
                 "block_tokens", "n_seqs")] + [("cap", ctypes.c_float), ("before", ctypes.c_void_p),
                                               ("rows", ctypes.c_void_p)]


def pointer(array):
    return array.ctypes.data_as(FLOATS)


def library():
    return ctypes.CDLL(str(LIBRARY))


def record(on):
    """Whether ops are recorded as a step, as decoding does, or just run; 2: the norm before a product just runs."""
    library().quern_op_record(int(on))


WAYS = {"table": 0, "skinny": 1, "slim": 2, "library": 3, "flow": 4, "even": 5, "many": 6}


def prefer(way):
    """Which kernels make products on CUDA from now on."""
    library().quern_op_prefer(WAYS[way])


def many_launches():
    """How often gate and up of many rows were made by one kernel so far."""
    count = library().quern_op_many_launches
    count.restype = ctypes.c_uint64
    return count()


def wide(on):
    """Whether attention of many rows may use the warpgroup's matrix unit."""
    library().quern_op_wide(int(on))


def choose(folder, last):
    """Products choose among the library's algorithms, and keep that in a folder; None: they do not. last: the last that
    works instead of the fastest."""
    library().quern_op_choose(str(folder).encode() if folder is not None else None, int(last))


def chosen():
    """For how many (shape, rows) pairs the newest op had another than the library's first."""
    return library().quern_op_chosen()


def distance(got, want):
    """Size of the difference over the size of what was wanted; NaN counts as infinitely far."""
    far = np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)
    return float("inf") if np.isnan(far) else far


def normed(x):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def product(backend, dtype, rows, n_out, n_in, seed, fp8=False, only=None):
    """(what the backend gives, what it should give) for norm(x) x w; only=(first, n): of those of the rows alone."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, n_in), dtype=np.float32) * 3
    w = random.standard_normal((n_out, n_in), dtype=np.float32) / np.sqrt(n_in).astype(np.float32)
    if only is not None:
        x, rows = np.ascontiguousarray(x[only[0]:only[0] + only[1]]), only[1]
    out = np.full((rows, n_out), np.nan, np.float32)
    code = library().quern_op_product(backend.encode(), dtype.encode(), int(fp8), rows, n_out, n_in, pointer(x),
                                      pointer(w), pointer(out))
    if code != 0:
        raise RuntimeError(f"product failed with {code}")
    return out, normed(x) @ w.astype(np.float64).T


def four_squares(n):
    """Whole numbers whose squares add up to n."""
    for a in range(int(n ** 0.5), -1, -1):
        for b in range(int((n - a * a) ** 0.5), -1, -1):
            for c in range(int((n - a * a - b * b) ** 0.5), -1, -1):
                d = int(round((n - a * a - b * b - c * c) ** 0.5))
                if a * a + b * b + c * c + d * d == n:
                    return [a, b, c, d]


def whole_product(backend, dtype, rows, n_out, n_in, seed):
    """(what the backend gives, what it must give to the bit, the same with one weight off by one) for whole numbers. Of
    each 32 activations one is 127 and the squares add up to 32 * 32^2, so that their norm is a division by 32; of each
    32 weights one is what makes the block's scale one."""
    random = np.random.default_rng(seed)
    a = np.rint(random.standard_normal((rows, n_in // 32, 32)) * 10)
    a[..., 0] = 127
    for group in a.reshape(-1, 32):
        while (left := 32 * 1024 - int((group[:28] ** 2).sum())) < 0 or left >= 127 * 127:
            group[1:28] = np.rint(random.standard_normal(27) * 20)
        group[28:] = four_squares(left)
    a = random.permuted(a * random.choice([-1, 1], a.shape), axis=-1).reshape(rows, n_in)
    most = {"Q8_0": 127, "Q4_0": 7}.get(dtype, 127)
    w = random.integers(-most, most + 1, (n_out, n_in // 32, 32))
    w[..., 5] = {"Q4_0": -8}.get(dtype, 127)
    w = w.reshape(n_out, n_in)
    given, out = w.astype(np.float32), np.full((rows, n_out), np.nan, np.float32)
    x = (a * 32).astype(np.float32)
    code = library().quern_op_product(backend.encode(), dtype.encode(), 0, rows, n_out, n_in, pointer(x),
                                      pointer(given), pointer(out))
    if code != 0 or not np.array_equal(given, w):
        raise RuntimeError(f"product failed with {code}" if code != 0 else f"{dtype} does not hold the numbers")
    want = a @ w.T / 32
    twin = want.copy()
    twin[-1, -1] += a[-1, -1] / 32 or 1
    return out, want, twin


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.797884561 * (x + 0.044715 * x ** 3)))


def feed_forward(backend, dtype, rows, n, ffn, seed, experts=0, top_k=0, fp8=False, glu=silu, biased=False):
    """The same for x + down(glu(gate) * up), dense or as a mixture; without x, which would hide errors. biased: gate
    and up of a dense one have biases."""
    random = np.random.default_rng(seed)
    mats = max(experts, 1)

    def weights(*shape):
        return random.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1]).astype(np.float32)

    x = random.standard_normal((rows, n), dtype=np.float32)
    router = weights(mats, n) * 3
    gate, up, down = weights(mats, ffn, n), weights(mats, ffn, n), weights(mats, n, ffn)
    biases = random.standard_normal((2, ffn), dtype=np.float32) * int(biased)
    got = x.copy()
    code = library().quern_op_feed_forward(
        backend.encode(), dtype.encode(), int(fp8), rows, n, ffn, experts, top_k, pointer(router), pointer(gate),
        pointer(up), pointer(down), pointer(got), int(glu is gelu), pointer(biases) if biased else None)
    if code != 0:
        raise RuntimeError(f"feed-forward failed with {code}")
    a = normed(x)
    gate, up, down, router = (w.astype(np.float64) for w in (gate, up, down, router))

    def of_expert(e, a):
        return (glu(a @ gate[e].T + biases[0]) * (a @ up[e].T + biases[1])) @ down[e].T

    want = np.zeros((rows, n)) if experts else of_expert(0, a)
    logits = a @ router.T
    for row in range(rows if experts else 0):
        chosen = np.argsort(-logits[row], kind="stable")[:top_k]
        share = np.exp(logits[row, chosen] - logits[row, chosen].max())
        for e, s in zip(chosen, share / share.sum()):
            want[row] += s * of_expert(e, a[row])
    return got.astype(np.float64) - x, want


def attention(backends, weight, kv, case, before, rows, seed):
    """Outputs of several backends for the same case."""
    random = np.random.default_rng(seed)
    q_n, kv_n = case["n_heads"] * case["head_dim"], case["n_kv_heads"] * case["head_dim"]
    hidden = case.setdefault("hidden", 64)

    def weights(n_out):
        return random.standard_normal((n_out, hidden), dtype=np.float32) / np.sqrt(hidden).astype(np.float32) * 2

    base = [weights(q_n), weights(kv_n), weights(kv_n)]
    x_before = random.standard_normal((max(sum(before), 1), hidden), dtype=np.float32)
    x = random.standard_normal((sum(rows), hidden), dtype=np.float32)
    longest = max(b + r for b, r in zip(before, rows))
    angles = np.arange(longest)[:, None] * 0.7 ** np.arange(max(case["rope_dims"] // 2, 1))[None]
    rope = np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)
    outs = []
    for backend in backends:
        ws = [w.copy() for w in base]
        identity = np.eye(q_n, dtype=np.float32)
        b, r = np.array(before, np.uint32), np.array(rows, np.uint32)
        c = AttentionCase(**case, n_seqs=len(rows), before=b.ctypes.data, rows=r.ctypes.data)
        out = np.full((sum(rows), q_n), np.nan, np.float32)
        code = library().quern_op_attention(
            backend.encode(), weight.encode(), kv.encode(), ctypes.byref(c), *(pointer(w) for w in ws),
            pointer(identity), pointer(rope), pointer(x_before), pointer(x), pointer(out))
        if code != 0:
            raise RuntimeError(f"attention failed with {code}")
        outs.append(out)
    return outs


class SampleAsk(ctypes.Structure):
    _fields_ = [("seed", ctypes.c_uint64), ("index", ctypes.c_uint64), ("choice", ctypes.c_uint32),
                ("row", ctypes.c_uint32), ("top_k", ctypes.c_uint32)] + [
        (name, ctypes.c_float) for name in ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")] + [
        (name, ctypes.c_uint32) for name in ("mask", "banned_at", "n_banned", "bias_at", "n_bias", "history_at",
                                             "n_history", "n_top", "want_logprob")]


class SampleGot(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("logprob", ctypes.c_float), ("n_top", ctypes.c_uint32),
                ("unused", ctypes.c_uint32)]


def sample(backend, logits, asks, words, masks):
    """(ids, logprobs, alternatives) of asks over logits [rows][n]; masks: a row of 64-bit words each. Backend "here" is
    sample/ itself."""
    got, top = (SampleGot * len(asks))(), np.zeros((len(asks), 20, 2), np.uint32)
    all_asks, words = (SampleAsk * len(asks))(*asks), np.ascontiguousarray(words, np.uint32)
    masks = np.ascontiguousarray(masks, np.uint64)
    code = library().quern_op_sample(backend.encode(), pointer(logits), *map(ctypes.c_uint32, logits.shape), all_asks,
                                     ctypes.c_uint32(len(asks)), words.ctypes.data_as(ctypes.c_void_p),
                                     ctypes.c_uint32(len(words)), masks.ctypes.data_as(ctypes.c_void_p),
                                     ctypes.c_uint32(len(masks)), got, top.ctypes.data_as(ctypes.c_void_p))
    if code != 0:
        raise RuntimeError(f"sampling failed with {code}")
    tops = [[(int(t[0]), float(t[1:2].view(np.float32)[0])) for t in top[i, :g.n_top]] for i, g in enumerate(got)]
    return [g.id for g in got], [g.logprob for g in got], tops
