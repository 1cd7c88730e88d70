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
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))

OK, ERR_INVALID, ERR_UNSUPPORTED = 0, 1, 3

BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
DEFINED_QUANTISERS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]
DESCRIBED_BLOCKS = [
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4", "Q1_0",
]
DESCRIBED_NUMBERS = ["F64", "I16", "I32", "I64"]

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


def address(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def ours_dequant(lib, name, raw, n):
    raw = np.ascontiguousarray(raw).view(np.uint8).ravel()
    out = np.full(n + 16, np.float32(12345.0))
    text = ctypes.create_string_buffer(512)
    code = lib.quern_testing_dequant_row(
        name.encode(), address(raw), address(out), ctypes.c_size_t(n), text)
    assert code == OK, text.value
    assert (out[n:] == 12345.0).all(), "wrote past the end of the row"
    return out[:n]


def ours_quant_code(lib, name, x, block):
    x = np.ascontiguousarray(x, dtype=np.float32).ravel()
    n_bytes = x.size // block[0] * block[1]
    out = np.full(n_bytes + 16, 0xA5, dtype=np.uint8)
    text = ctypes.create_string_buffer(512)
    code = lib.quern_testing_quant_row(
        name.encode(), address(x), address(out), ctypes.c_size_t(x.size), text)
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


@pytest.mark.parametrize(
    "name", BLOCKS + DESCRIBED_BLOCKS + DESCRIBED_NUMBERS + ["Q8_K", "F32", "F16", "BF16", "I8"])
def test_block_sizes_equal_those_of_gguf(lib, name):
    elems, n_bytes, flags, has = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int()
    code = lib.quern_testing_dtype(
        name.lower().encode(), ctypes.byref(elems), ctypes.byref(n_bytes), ctypes.byref(flags), ctypes.byref(has))
    assert code == OK
    assert (elems.value, n_bytes.value) == tuple(gguf.GGML_QUANT_SIZES[qtype(name)])
    assert bool(has.value) == (name not in DESCRIBED_BLOCKS + DESCRIBED_NUMBERS)


@pytest.mark.parametrize("name", DESCRIBED_BLOCKS + DESCRIBED_NUMBERS + ["BOOL", "U8"])
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


# Writing where scales are searched. The figure is the relative error on weights_like rows: rms of the error over rms of
# the values, per row of 256, averaged. The bounds stand one to four parts in a hundred above what is measured, so
# that a step of the search that stops working is noticed.

ERROR_BOUND = {
    "Q2_K": 0.2850, "Q3_K": 0.1670, "Q4_K": 0.0787, "Q5_K": 0.0392, "Q6_K": 0.0207, "IQ4_NL": 0.0875, "IQ4_XS": 0.0888,
}


def relative_error(x, back):
    back = back.reshape(x.shape)
    return float(np.sqrt(((back - x) ** 2).mean(axis=1) / (x**2).mean(axis=1)).mean())


def quantised_bytes(name):
    """Where the packed integers of the elements lie in a block, without scales."""
    return {"Q2_K": (16, 80), "Q3_K": (32, 96), "Q4_K": (16, 144), "Q5_K": (48, 176), "Q6_K": (0, 128),
            "IQ4_NL": (2, 18), "IQ4_XS": (8, 136)}[name]


@pytest.fixture(scope="module")
def sample():
    return weights_like(np.random.default_rng(10), 256 * 400)


@pytest.mark.parametrize("name", ERROR_BOUND)
def test_searched_quant_stays_within_its_error_bound(lib, sample, name):
    err = relative_error(sample, theirs_dequant(name, ours_quant(lib, name, sample)))
    print(f"{name}: relative error {err:.5f}, bound {ERROR_BOUND[name]}")
    assert err < ERROR_BOUND[name]


@pytest.mark.parametrize("name", ERROR_BOUND)
def test_error_bound_is_missed_with_swapped_nibbles(lib, sample, name):
    raw = ours_quant(lib, name, sample).reshape(-1, sizes(name)[1]).copy()
    first, last = quantised_bytes(name)
    raw[:, first:last] = swap_nibbles(raw[:, first:last])
    assert relative_error(sample, theirs_dequant(name, raw)) > 2 * ERROR_BOUND[name]


@pytest.mark.parametrize("name", ERROR_BOUND)
def test_error_bound_is_missed_with_scales_wrong_by_the_bound(lib, sample, name):
    raw = ours_quant(lib, name, sample).reshape(-1, sizes(name)[1]).copy()
    at = F16_AT[name][0]
    d = raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)
    raw[:, at : at + 2] = (d * (1 + ERROR_BOUND[name])).astype(np.float16).view(np.uint8)
    assert relative_error(sample, theirs_dequant(name, raw)) > 1.2 * ERROR_BOUND[name]


@pytest.mark.parametrize("name", ERROR_BOUND)
def test_searched_quant_of_special_rows(lib, name):
    rng = np.random.default_rng(14)
    bound = ERROR_BOUND[name]
    zeros = np.zeros(512, np.float32)
    assert (theirs_dequant(name, ours_quant(lib, name, zeros)) == 0).all()
    tiny = (rng.standard_normal(512) * 1e-30).astype(np.float32)
    assert (theirs_dequant(name, ours_quant(lib, name, tiny)) == 0).all()
    for value in (0.25, -0.25, 65504.0, -65504.0):
        x = np.full((2, 256), value, np.float32)
        assert relative_error(x, theirs_dequant(name, ours_quant(lib, name, x))) < 0.02
    for x in (
        rng.uniform(0.5, 1.5, (20, 256)),  # one sign only
        rng.uniform(-1.5, -0.5, (20, 256)),
        rng.uniform(-65504, 65504, (20, 256)),
        rng.choice([-1.0, 1.0], (20, 256)),
    ):
        x = x.astype(np.float32)
        assert relative_error(x, theirs_dequant(name, ours_quant(lib, name, x))) < 1.5 * bound
    lone = np.zeros((1, 256), np.float32)
    lone[0, 77] = 3.0
    # the IQ4 list has no zero: 31 elements of size 1/127 stand beside the outlier
    limit = 0.045 if name.startswith("IQ4") else 0.02
    assert relative_error(lone, theirs_dequant(name, ours_quant(lib, name, lone))) < limit


# What no block can hold.


@pytest.mark.parametrize("name", BLOCKS + ["Q8_K"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quant_refuses_values_that_are_not_finite(lib, name, bad):
    x = np.ones(512, np.float32)
    x[300] = bad
    code, text, out = ours_quant_code(lib, name, x, sizes(name))
    assert code == ERR_INVALID and "element 300" in text and name in text
    assert (out == 0xA5).all(), "the destination was touched"


@pytest.mark.parametrize("name", [n for n in BLOCKS if F16_AT[n]])
def test_quant_refuses_values_beyond_an_f16_scale_and_takes_the_largest(lib, name):
    x = np.ones(256, np.float32)
    x[9] = np.nextafter(np.float32(65504), np.float32(np.inf))
    code, text, _ = ours_quant_code(lib, name, x, sizes(name))
    assert code == ERR_INVALID and "element 9" in text
    x[9] = -65504
    assert np.isfinite(theirs_dequant(name, ours_quant(lib, name, x))).all()


@pytest.mark.parametrize("name", BLOCKS)
def test_quant_of_random_finite_bits_reads_back_finite(lib, name):
    """Any finite input within range gives a block without NaN or infinity."""
    rng = np.random.default_rng(15)
    x = rng.integers(0, 2**32, 256 * 400, dtype=np.uint32).view(np.float32)
    x = np.where(np.isfinite(x) & (np.abs(x) <= 65504), x, np.float32(0)).reshape(-1, 256)
    assert np.isfinite(theirs_dequant(name, ours_quant(lib, name, x))).all()
