"""HF folders in F8: matrices of e4m3 numbers with a scale for all rows, or one each, beside them; and the same model in
BF16, each element the product rounded once. Used on the CPU and on a card."""
import json
import struct

import numpy as np

SCALES = ("scalar", "one", "rows", "column")  # shapes: [], [1], [n], [n, 1]


def e4m3_values():
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0 ** -6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(bits & 127 == 127, np.inf, np.where(bits > 127, -size, size))


def to_e4m3(x):
    """The nearest of them; ties to either side, which no test minds."""
    values = e4m3_values()
    order = np.argsort(values)[:-2]  # the two NaNs last
    mids = (values[order][1:] + values[order][:-1]) / 2
    return order[np.searchsorted(mids, x)].astype(np.uint8)


def bf16_bits(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7fff + (u >> 16 & 1)) >> 16).astype(np.uint16)


def quantise(name, w, kind):
    """{name: (dtype, shape, bytes)} of a matrix and its scale, and the matrix as BF16."""
    per_row = kind in ("rows", "column")
    most = np.abs(w).max(1, keepdims=True) if per_row else np.full((len(w), 1), np.abs(w).max())
    scale = (most / 448).astype(np.float32)
    bits = to_e4m3(w / scale)
    shape = {"scalar": [], "one": [1], "rows": [len(w)], "column": [len(w), 1]}[kind]
    data = scale.ravel() if per_row else scale.ravel()[:1]
    exact = e4m3_values()[bits].astype(np.float32) * scale
    f8 = {name: ("F8_E4M3", list(w.shape), bits.tobytes()), name + "_scale": ("F32", shape, data.tobytes())}
    return f8, {name: ("BF16", list(w.shape), bf16_bits(exact).tobytes())}


def write_folder(path, config, tensors):
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


def write_bf16(path, config, weights):
    """Matrices in BF16, all else in F32."""
    return write_folder(path, config, {
        name: ("BF16", list(w.shape), bf16_bits(w).tobytes()) if w.ndim > 1
        else ("F32", list(w.shape), np.ascontiguousarray(w, np.float32).tobytes()) for name, w in weights.items()})


def write_pair(folder, config, weights, change=None, method=None):
    """(the F8 folder, the BF16 folder) of the same model; kinds of scales by turns. change: of the F8 tensors."""
    f8, plain = {}, {}
    for i, (name, w) in enumerate(weights.items()):
        keeps = w.ndim < 2 or "embed" in name or "lm_head" in name or "gate.weight" in name.replace("_gate", "")
        if keeps:
            f8[name] = plain[name] = ("F32", list(w.shape), np.ascontiguousarray(w, np.float32).tobytes())
            continue
        one, two = quantise(name, w, SCALES[i % len(SCALES)])
        f8.update(one)
        plain.update(two)
    if change:
        change(f8)
    quantised = dict(config, quantization_config=method or {"quant_method": "fp8", "activation_scheme": "dynamic"})
    return write_folder(folder / "f8", quantised, f8), write_folder(folder / "bf16", config, plain)
