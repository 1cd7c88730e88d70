"""Random weights in every block type of GGUF: raw blocks, and what they mean by the package `gguf`.

Blocks are made of random bits, not by a quantiser, so that every code of every type occurs; then the scales are set so
that the matrix has the size that a model needs.
"""
import math

import gguf
import numpy as np

import reference_models

# Where a block keeps its f16 scale and, where it has one, its minimum; and the minimum, in scales, that centres it.
LAYOUT = {
    "Q4_0": (0, None, 0), "Q4_1": (0, 2, -7.5), "Q5_0": (0, None, 0), "Q5_1": (0, 2, -15.5), "Q8_0": (0, None, 0),
    "Q2_K": (80, 82, 1.5), "Q3_K": (108, None, 0), "Q4_K": (0, 2, 7.5), "Q5_K": (0, 2, 15.5), "Q6_K": (208, None, 0),
    "IQ4_NL": (0, None, 0), "IQ4_XS": (0, None, 0), "MXFP4": (None, None, 0)}
BLOCK_TYPES = list(LAYOUT)
FLOAT_TYPES = ["F16", "BF16"]


def dequantise(raw, kind):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).astype(np.float32)


def set_scales(blocks, kind, scale):
    """scale: one per block."""
    at, min_at, centre = LAYOUT[kind]
    if kind == "MXFP4":
        blocks[:, 0] = np.clip(127 + np.floor(np.log2(scale)), 1, 254).astype(np.uint8)
        return
    blocks[:, at:at + 2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if min_at is not None:
        blocks[:, min_at:min_at + 2] = (scale * centre).astype(np.float16).view(np.uint8).reshape(-1, 2)


def random_matrix(rng, kind, shape, size):
    """(raw bytes [rows][row bytes], the f32 numbers they stand for) with a deviation of about `size`."""
    if kind in FLOAT_TYPES:
        raw = gguf.quants.quantize((size * rng.standard_normal(shape)).astype(np.float32),
                                   gguf.GGMLQuantizationType[kind])
        return raw, dequantise(raw, kind)
    elems, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    n_blocks = shape[0] * shape[1] // elems
    blocks = rng.integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)
    set_scales(blocks, kind, np.ones(n_blocks))
    unit = dequantise(blocks, kind).std()
    set_scales(blocks, kind, size / unit * rng.uniform(0.5, 1.4, n_blocks))
    raw = blocks.reshape(shape[0], -1)
    return raw, dequantise(raw, kind)


def make_quantised(case, kind, **more):
    """(config, HF weights as the reference takes them, {GGUF name: (kind, raw)}) of a case in one type."""
    config = reference_models.make_config(case, **(reference_models.WIDE | more))
    plain = reference_models.make_weights(config, f"{case}-{kind}")
    rng = np.random.default_rng(sum(kind.encode()))
    values, raws = {}, {}
    for name, w in plain.items():
        if w.ndim == 1 or name.endswith(("mlp.gate.weight", "block_sparse_moe.gate.weight")):
            values[name] = raws[name] = w  # vectors and routers stay F32, as converters leave them
        else:
            size = 1.0 if "embed" in name else 1.2 / math.sqrt(w.shape[1])
            raws[name], values[name] = random_matrix(rng, kind, w.shape, size)
    packed = {name: (kind, raw) for name, raw in reference_models.gguf_tensors(config, raws).items()
              if raw.dtype != np.float32}
    return config, values, packed


def halves_swapped(values):
    """The same weights as a decoder would read them that takes the halves of each 32 in the wrong order."""
    return {name: w if w.ndim == 1 or w.shape[1] % 32 else np.roll(w.reshape(w.shape[0], -1, 32), 16, axis=2)
            .reshape(w.shape) for name, w in values.items()}
