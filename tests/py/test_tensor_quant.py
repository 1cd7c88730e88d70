"""The conversions of src/tensor against independent implementations.

Reading (any dtype to f32) must equal the `gguf` package's numpy code bit for bit, on random valid blocks and on random
bytes; NaN equals NaN. Writing must equal it byte for byte where the format's reference quantiser is defined. The
quantisers that search for scales (K, IQ4) are held to an error bound, and each bound has a twin with a planted mistake
that must miss it. F16, BF16 and F8 are compared on every bit pattern, with numpy and ml_dtypes.
"""

import ctypes
import os
import pathlib

import gguf
import ml_dtypes
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))

OK, ERR_INVALID, ERR_UNSUPPORTED = 0, 1, 3

BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
DEFINED_QUANTISERS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
DESCRIBED_BLOCKS = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4", "Q1_0"]

# Byte offset of every f16 in a block, to make valid ones.
F16_AT = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}


@pytest.fixture(scope="module")
def lib():
    if not LIB.exists():
        pytest.fail(f"{LIB} is not built")
    return ctypes.CDLL(str(LIB))


def qtype(name):
    return gguf.GGMLQuantizationType[name]


def sizes(name):
    return (256, 292) if name == "Q8_K" else gguf.GGML_QUANT_SIZES[qtype(name)]


def ours_dequant(lib, name, raw, n):
    raw = np.ascontiguousarray(raw).view(np.uint8).ravel()
    out = np.full(n + 16, np.float32(12345.0))
    text = ctypes.create_string_buffer(512)
    code = lib.quern_testing_dequant_row(
        name.encode(), raw.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(n), text)
    assert code == OK, text.value
    assert (out[n:] == 12345.0).all(), "wrote past the end of the row"
    return out[:n]


def ours_quant_code(lib, name, x, block):
    x = np.ascontiguousarray(x, dtype=np.float32).ravel()
    n_bytes = x.size // block[0] * block[1]
    out = np.full(n_bytes + 16, 0xA5, dtype=np.uint8)
    text = ctypes.create_string_buffer(512)
    code = lib.quern_testing_quant_row(
        name.encode(), x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.size), text)
    assert (out[n_bytes:] == 0xA5).all(), "wrote past the end of the row"
    return code, text.value.decode(), out[:n_bytes]


def ours_quant(lib, name, x, block=None):
    code, text, out = ours_quant_code(lib, name, x, block or sizes(name))
    assert code == OK, text
    return out


def theirs_dequant(name, raw):
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw.reshape(-1, sizes(name)[1]), qtype(name)).astype(np.float32).ravel()


def same_bits(a, b):
    """Bit for bit, but any NaN equals any NaN."""
    a, b = np.ascontiguousarray(a, np.float32).ravel(), np.ascontiguousarray(b, np.float32).ravel()
    return a.size == b.size and bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def random_valid(name, n_blocks, rng):
    raw = rng.integers(0, 256, (n_blocks, sizes(name)[1]), dtype=np.uint8)
    for at in F16_AT[name]:
        d = (rng.standard_normal(n_blocks) * 10.0 ** rng.uniform(-6, 3, n_blocks)).astype(np.float16)
        raw[:, at : at + 2] = d.view(np.uint8).reshape(-1, 2)
    return raw


def weights_like(rng, n):
    """Rows as models have them: near normal, of several sizes, with a few outliers."""
    x = rng.standard_normal((n // 256, 256)) * 10.0 ** rng.uniform(-3, 0, (n // 256, 1))
    x *= np.where(rng.random(x.shape) < 0.005, 8.0, 1.0)
    return x.astype(np.float32)


# The table.


@pytest.mark.parametrize("name", BLOCKS + DESCRIBED_BLOCKS + ["Q8_K", "F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"])
def test_block_sizes_equal_those_of_gguf(lib, name):
    elems, n_bytes, flags, has = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int()
    code = lib.quern_testing_dtype(
        name.lower().encode(), ctypes.byref(elems), ctypes.byref(n_bytes), ctypes.byref(flags), ctypes.byref(has))
    assert code == OK
    assert (elems.value, n_bytes.value) == tuple(gguf.GGML_QUANT_SIZES[qtype(name)])
    described = DESCRIBED_BLOCKS + ["F64", "I16", "I32", "I64"]
    assert bool(has.value) == (name not in described)


@pytest.mark.parametrize("name", DESCRIBED_BLOCKS + ["F64", "BOOL", "U8"])
def test_described_dtype_has_no_conversion_and_says_so(lib, name):
    code, text, _ = ours_quant_code(lib, name, np.zeros(256, np.float32), (256, 2048))
    assert code == ERR_UNSUPPORTED and name in text


# Reading.


@pytest.mark.parametrize("name", BLOCKS)
def test_dequant_of_valid_blocks_is_bit_exact(lib, name):
    raw = random_valid(name, 4096, np.random.default_rng(1))
    got = ours_dequant(lib, name, raw, 4096 * sizes(name)[0])
    assert same_bits(got, theirs_dequant(name, raw))


@pytest.mark.parametrize("name", BLOCKS)
def test_dequant_of_random_bytes_is_bit_exact(lib, name):
    rng = np.random.default_rng(2)
    raw = rng.integers(0, 256, (8192, sizes(name)[1]), dtype=np.uint8)
    want = theirs_dequant(name, raw)
    if F16_AT[name]:
        assert np.isnan(want).any(), "the sample must reach NaN and infinite scales"
    assert same_bits(ours_dequant(lib, name, raw, want.size), want)


@pytest.mark.parametrize("name", [n for n in BLOCKS if F16_AT[n]])
def test_dequant_with_every_f16_scale_is_bit_exact(lib, name):
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (65536, sizes(name)[1]), dtype=np.uint8)
    at = F16_AT[name][0]
    raw[:, at : at + 2] = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    if name.endswith("_K") or name == "IQ4_XS":
        raw = raw[::5]  # a fifth of the patterns reaches every exponent and keeps the test short
    want = theirs_dequant(name, raw)
    assert same_bits(ours_dequant(lib, name, raw, want.size), want)


def test_dequant_of_every_mxfp4_exponent_is_bit_exact(lib):
    raw = np.random.default_rng(4).integers(0, 256, (256, 17), dtype=np.uint8)
    raw[:, 0] = np.arange(256)
    assert same_bits(ours_dequant(lib, "MXFP4", raw, 256 * 32), theirs_dequant("MXFP4", raw))


@pytest.mark.parametrize("name", BLOCKS)
def test_dequant_works_at_any_byte_offset(lib, name):
    elems, n_bytes = sizes(name)
    raw = random_valid(name, 3, np.random.default_rng(5))
    shifted = np.zeros(3 * n_bytes + 8, np.uint8)
    for offset in (1, 3):
        shifted[offset : offset + 3 * n_bytes] = raw.ravel()
        got = ours_dequant(lib, name, shifted[offset : offset + 3 * n_bytes], 3 * elems)
        assert same_bits(got, theirs_dequant(name, raw))


def swap_nibbles(raw):
    return (raw >> 4 | raw << 4).astype(np.uint8)


@pytest.mark.parametrize("name", BLOCKS)
def test_comparison_notices_one_changed_bit(lib, name):
    """The twin of the exactness tests: had the reader swapped nibbles or lost a bit, they would fail."""
    raw = random_valid(name, 64, np.random.default_rng(6))
    want = theirs_dequant(name, raw)
    wrong = raw.copy()
    first = max([a + 2 for a in F16_AT[name] if a < 64], default=1 if name == "MXFP4" else 0)
    last = min([a for a in F16_AT[name] if a >= 64], default=sizes(name)[1])
    wrong[:, first:last] = swap_nibbles(wrong[:, first:last])
    assert not same_bits(ours_dequant(lib, name, wrong, want.size), want)
    wrong = raw.copy()
    wrong[17, (first + last) // 2] ^= 1
    assert not same_bits(ours_dequant(lib, name, wrong, want.size), want)


# Q8_K, which gguf does not convert: the layout written down once more.

Q8_K = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])


def q8_k_reference(x):
    x = x.reshape(-1, 256)
    out = np.zeros(len(x), Q8_K)
    at = np.abs(x).argmax(axis=1)
    for i, row in enumerate(x):
        extreme = row[at[i]]
        if extreme != 0:
            inverse = np.float32(-127) / extreme
            out[i]["d"] = np.float32(1) / inverse
            out[i]["qs"] = np.minimum(np.rint(inverse * row), 127).astype(np.int8)
    out["bsums"] = out["qs"].astype(np.int16).reshape(-1, 16, 16).sum(axis=2)
    return out


def test_q8_k_quant_equals_reference(lib):
    x = weights_like(np.random.default_rng(7), 256 * 500)
    x[3] = 0
    x[4] = -x[4]
    x[5, :] = 1.5
    want = q8_k_reference(x)
    assert Q8_K.itemsize == 292
    assert ours_quant(lib, "Q8_K", x).tobytes() == want.tobytes()


def test_q8_k_dequant_equals_reference(lib):
    rng = np.random.default_rng(8)
    raw = rng.integers(0, 256, (2000, 292), dtype=np.uint8)
    blocks = raw.view(Q8_K).ravel()
    with np.errstate(all="ignore"):
        want = blocks["d"][:, None] * blocks["qs"].astype(np.float32)
    assert same_bits(ours_dequant(lib, "Q8_K", raw, want.size), want)


# Writing where the reference is defined.


@pytest.mark.parametrize("name", DEFINED_QUANTISERS)
def test_quant_bytes_equal_gguf(lib, name):
    rng = np.random.default_rng(9)
    cases = [
        weights_like(rng, 256 * 2000),
        (rng.standard_normal((500, 256)) * 10.0 ** rng.uniform(-20, 3, (500, 1))).astype(np.float32),
        rng.uniform(0, 1, (100, 256)).astype(np.float32),
        rng.integers(-8, 9, (100, 256)).astype(np.float32),
        np.full((4, 256), 0.25, np.float32),
        np.full((4, 256), -3.0, np.float32),
        np.zeros((4, 256), np.float32),
        rng.uniform(-65504, 65504, (100, 256)).astype(np.float32),
    ]
    for i, x in enumerate(cases):
        with np.errstate(all="ignore"):
            want = gguf.quants.quantize(x, qtype(name)).ravel()
        got = ours_quant(lib, name, x)
        assert (got == want).all(), f"case {i}: {int((got != want).sum())} of {want.size} bytes differ"


# Writing where scales are searched. The figure is the relative error (rms of the error over rms of the values) on
# weights_like rows; ours was measured, the bound stands a little above it.

ERROR_BOUND = {
    "Q2_K": 1, "Q3_K": 1, "Q4_K": 1, "Q5_K": 1, "Q6_K": 1, "IQ4_NL": 1, "IQ4_XS": 1,
}


def relative_error(lib, name, x):
    back = theirs_dequant(name, ours_quant(lib, name, x)).reshape(x.shape)
    per_row = np.sqrt(((back - x) ** 2).mean(axis=1) / (x**2).mean(axis=1))
    return float(per_row.mean())


@pytest.mark.parametrize("name", ERROR_BOUND)
def test_searched_quant_stays_within_its_error_bound(lib, name):
    x = weights_like(np.random.default_rng(10), 256 * 400)
    err = relative_error(lib, name, x)
    print(f"{name}: relative error {err:.5f}")
    assert err < ERROR_BOUND[name]
