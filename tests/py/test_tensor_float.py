"""F16, BF16 and F8 of src/tensor against numpy and ml_dtypes: widening on every bit pattern, narrowing on every value
that matters (each representable number, each midpoint, and the f32 neighbours of both) and on random f32 bits.

NaN is compared as NaN with its sign; everything else bit for bit.
"""

import gguf
import ml_dtypes
import numpy as np
import pytest

from test_tensor_quant import lib, ours_dequant, ours_quant, same_bits  # noqa: F401 (lib is a fixture)

FORMATS = {
    "F16": (np.float16, np.uint16),
    "BF16": (ml_dtypes.bfloat16, np.uint16),
    "F8_E4M3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "F8_E5M2": (ml_dtypes.float8_e5m2, np.uint8),
}


def every_pattern(word):
    return np.arange(np.iinfo(word).max + 1, dtype=word)


def narrow_cases(oracle, word):
    values = np.sort(every_pattern(word).view(oracle).astype(np.float32))
    values = values[np.isfinite(values)]
    middles = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    edge = np.concatenate([values, middles])
    with np.errstate(over="ignore"):
        edge = np.concatenate([edge, np.nextafter(edge, np.float32(np.inf)), np.nextafter(edge, np.float32(-np.inf))])
    limits = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 448.0, 464.0, 480.0, 57344.0, 61439.996, 61440.0, 65504.0,
         65519.996, 65520.0, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1e5, -1e5], np.float32)
    random = np.random.default_rng(11).integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32)
    return np.concatenate([edge, limits, random])


def narrowed_alike(got, want, word):
    """The same bits, or NaN for NaN with the same sign."""
    top = word(1) << word(np.iinfo(word).bits - 1)
    both_nan = np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    bits_got, bits_want = got.view(word), want.view(word)
    return (bits_got == bits_want) | (both_nan & ((bits_got & top) == (bits_want & top)))


@pytest.mark.parametrize("name", FORMATS)
def test_widening_every_bit_pattern_is_exact(lib, name):
    oracle, word = FORMATS[name]
    patterns = every_pattern(word)
    with np.errstate(invalid="ignore"):
        want = patterns.view(oracle).astype(np.float32)
    got = ours_dequant(lib, name, patterns, patterns.size)
    assert same_bits(got, want)
    assert (np.signbit(got) == (patterns >> (np.iinfo(word).bits - 1)).astype(bool)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_narrowing_rounds_to_nearest_even(lib, name):
    oracle, word = FORMATS[name]
    x = narrow_cases(oracle, word)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(oracle)
    got = ours_quant(lib, name, x, (1, word().nbytes)).view(oracle)
    wrong = ~narrowed_alike(got, want, word)
    assert not wrong.any(), f"{x[wrong][:5]}: {got[wrong][:5]} instead of {want[wrong][:5]}"


@pytest.mark.parametrize("name", FORMATS)
def test_narrowing_comparison_notices_truncation(lib, name):
    """The twin: cutting the low bits instead of rounding them must not pass the comparison above."""
    oracle, word = FORMATS[name]
    x = narrow_cases(oracle, word)
    x = x[np.isfinite(x)]
    cut_bits = {"F16": 13, "BF16": 16, "F8_E4M3": 20, "F8_E5M2": 21}[name]
    cut = (x.view(np.uint32) >> cut_bits << cut_bits).view(np.float32)
    with np.errstate(over="ignore"):
        want = x.astype(oracle)
    got = ours_quant(lib, name, cut, (1, word().nbytes)).view(oracle)
    assert not narrowed_alike(got, want, word).all()


@pytest.mark.parametrize("name", FORMATS)
def test_widen_then_narrow_is_the_identity(lib, name):
    oracle, word = FORMATS[name]
    patterns = every_pattern(word)
    wide = ours_dequant(lib, name, patterns, patterns.size)
    back = ours_quant(lib, name, wide, (1, word().nbytes)).view(word)
    assert ((back == patterns) | np.isnan(wide)).all()


def test_bf16_bytes_equal_gguf_nan_included(lib):
    x = np.random.default_rng(12).integers(0, 2**32, (100, 1024), dtype=np.uint32)
    x[0, :512] |= 0x7F800001
    x[1, :4] = [0x7F800001, 0xFF800001, 0x7F80FFFF, 0x7FFFFFFF]
    want = gguf.quants.quantize(x.view(np.float32), gguf.GGMLQuantizationType.BF16).ravel()
    assert (ours_quant(lib, "BF16", x.view(np.float32), (1, 2)) == want).all()


def test_f32_is_copied_bit_for_bit(lib):
    x = np.random.default_rng(13).integers(0, 2**32, 1000, dtype=np.uint32)
    assert ours_quant(lib, "F32", x.view(np.float32), (1, 4)).tobytes() == x.tobytes()
    assert ours_dequant(lib, "F32", x, 1000).tobytes() == x.tobytes()


def test_i8_rounds_saturates_and_takes_nan_as_zero(lib):
    every = np.arange(-128, 128, dtype=np.int8)
    assert (ours_dequant(lib, "I8", every, 256) == every.astype(np.float32)).all()
    x = np.array(
        [0.5, 1.5, -0.5, -1.5, 2.5, 126.5, 127.5, 1e9, -1e9, np.inf, -np.inf, np.nan, -128.4, -0.0], np.float32)
    want = np.array([0, 2, 0, -2, 2, 126, 127, 127, -128, 127, -128, 0, -128, 0], np.int8)
    assert (ours_quant(lib, "I8", x, (1, 1)).view(np.int8) == want).all()


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 63, 64, 65, 100])
def test_rows_of_any_length_are_converted_whole(lib, n):
    bits = np.random.default_rng(n).integers(0, 0x7C00, n, dtype=np.uint16)
    assert same_bits(ours_dequant(lib, "F16", bits, n), bits.view(np.float16).astype(np.float32))
