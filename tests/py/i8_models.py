"""HF folders in INT8 as compressed-tensors writes them: "int-quantized" (I8) or "pack-quantized" (four numbers plus 128
in an I32), with a scale per matrix, row or group; and the float64 weights that they stand for. Used on the CPU and on a
card."""
import re

import numpy as np

import f8_models

# what shares a scale: shapes [1], [n, 1], [n], [n, n_in / 32], [n, n_in / 64]
KINDS = ("tensor", "channel", "rows", 32, 64)
ALIGNED = ("I64", "F32", "I32", "BF16", "I8", "U8")  # safetensors puts the widest first


def method(**weights):
    args = dict(num_bits=8, type="int", strategy="group", group_size=32, symmetric=True, dynamic=False) | weights
    inputs = dict(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
    return {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"], "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": args, "input_activations": inputs, "output_activations": None}}}


def packed(q):
    return ("I32", [q.shape[0], q.shape[1] // 4], (q.astype(np.int16) + 128).astype(np.uint8).tobytes())


def quantise(name, w, kind, pack, scale_type, size):
    """{name: (dtype, shape, bytes)} of a matrix and its scales, and the numbers that they stand for."""
    groups = 1 if isinstance(kind, str) else w.shape[1] // kind
    cut = w.astype(np.float64).reshape(w.shape[0], groups, -1) * size
    most = np.abs(cut).max() if kind == "tensor" else np.abs(cut).max(2)
    scale = np.broadcast_to(np.asarray(most / 127, np.float32), (w.shape[0], groups))
    bits = f8_models.bf16_bits(scale)
    if scale_type == "BF16":  # which f16 has too
        scale = (bits.astype(np.uint32) << 16).view(np.float32)
    q = np.clip(np.rint(cut / scale[:, :, None].astype(np.float64)), -128, 127).astype(np.int8)
    values = (q * scale[:, :, None].astype(np.float64)).reshape(w.shape)
    q = q.reshape(w.shape)
    shape = {"tensor": [1], "rows": [len(w)]}.get(kind, [len(w), groups])
    data = (bits if scale_type == "BF16" else scale).ravel()[:1 if kind == "tensor" else None]
    out = {name + "_scale": (scale_type, shape, np.ascontiguousarray(data).tobytes())}
    if pack:
        out[name + "_packed"] = packed(q)
        out[name + "_shape"] = ("I64", [2], np.array(w.shape, np.int64).tobytes())
    else:
        out[name] = ("I8", list(w.shape), q.tobytes())
    return out, values


def write(folder, config, weights, scale_type="BF16", change=None, sizes=None, **how):
    """(the folder, weights by name as they are meant): kinds of scales by turns, every other matrix packed, experts
    alike. sizes: factors by the projection's name. change: of the tensors that are written."""
    tensors, values, turns = {}, {}, {}
    for name, w in weights.items():
        if w.ndim < 2 or "embed" in name or "lm_head" in name or "gate.weight" in name.replace("_gate", ""):
            tensors[name] = ("F32", list(w.shape), np.ascontiguousarray(w, np.float32).tobytes())
            values[name] = w
            continue
        turn = turns.setdefault(re.sub(r"experts\.\d+", "experts", name), len(turns))
        kind = how.get("kind", KINDS[turn % len(KINDS)])
        if not isinstance(kind, str) and w.shape[1] % kind != 0:
            kind = 32
        size = (sizes or {}).get(name.split(".")[-2], 1.0)
        one, values[name] = quantise(name, w, kind, how.get("pack", turn % 2 == 1), scale_type, size)
        tensors.update(one)
    if change:
        change(tensors)
    tensors = dict(sorted(tensors.items(), key=lambda t: ALIGNED.index(t[1][0])))
    quantised = dict(config, quantization_config=how.get("method") or method())
    return f8_models.write_folder(folder, quantised, tensors), values
