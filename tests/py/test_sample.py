"""The sampler against numpy in float64: which tokens may come, how often, and their log-probabilities.

The exact token is compared in C (tests/unit/sample); here the formulas are written a second time, by their meaning.
"""
import ctypes
import os
import pathlib

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))
DRAWS = 4000


@pytest.fixture(scope="module")
def lib():
    if not LIB.exists():
        pytest.fail(f"{LIB} is not built")
    return ctypes.CDLL(str(LIB))


def address(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def draw(lib, logits, n=DRAWS, n_top=0, seed=1, temperature=1.0, top_p=1.0, min_p=0.0, typical_p=1.0, top_k=0):
    params = np.array([temperature, top_p, min_p, typical_p, 1, 0, 0], np.float32)
    ids, logprobs = np.zeros(n, np.uint32), np.zeros(n, np.float32)
    top_ids, top_logprobs = np.zeros(64, np.uint32), np.zeros(64, np.float32)
    code = lib.quern_testing_sample(
        address(logits), ctypes.c_uint32(logits.size), address(params), ctypes.c_uint32(top_k), ctypes.c_uint64(seed),
        ctypes.c_uint32(n), address(ids), address(logprobs), ctypes.c_uint32(n_top), address(top_ids),
        address(top_logprobs))
    assert code == 0
    return ids, logprobs, top_ids[:n_top], top_logprobs[:n_top]


def softmax(x):
    x = np.exp(x.astype(np.float64) - x.max())
    return x / x.sum()


def allowed(logits, temperature=1.0, top_p=1.0, min_p=0.0, typical_p=1.0, top_k=0):
    """Probability of each token after the cuts."""
    p = softmax(logits.astype(np.float64) / temperature)
    if top_k:
        keep = np.argsort(-p, kind="stable")[:top_k]
        p = np.where(np.isin(np.arange(p.size), keep), p, 0)
        p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        n = np.searchsorted(np.cumsum(p[order]), top_p) + 1
        p = np.where(np.isin(np.arange(p.size), order[:n]), p, 0)
        p /= p.sum()
    if min_p > 0:
        p = np.where(p >= min_p * p.max(), p, 0)
        p /= p.sum()
    if typical_p < 1:
        live = p > 0
        surprise = np.where(live, -np.log(np.where(live, p, 1)), np.inf)
        entropy = (p[live] * surprise[live]).sum()
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        n = np.searchsorted(np.cumsum(p[order]), typical_p) + 1
        p = np.where(np.isin(np.arange(p.size), order[:n]), p, 0)
        p /= p.sum()
    return p


def chi2_too_large(ids, p):
    """Beyond what one honest sampler in ten thousand shows (Wilson and Hilferty's approximation)."""
    expected = p * ids.size
    seen = np.bincount(ids, minlength=p.size)
    big = expected >= 5
    seen = np.append(seen[big], seen[~big].sum())
    expected = np.append(expected[big], expected[~big].sum())
    chi2 = ((seen - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 0].sum()
    k = max((expected > 0).sum() - 1, 1)
    return chi2 > k * (1 - 2 / (9 * k) + 3.72 * np.sqrt(2 / (9 * k))) ** 3


CASES = [
    {}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.6},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3}, {"top_p": 0.95, "typical_p": 0.7},
    {"top_k": 30, "typical_p": 0.9, "min_p": 0.01},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_follow_the_cut_distribution_and_never_leave_it(lib, case):
    logits = (np.random.default_rng(5).standard_normal(60) * 1.5).astype(np.float32)
    p = allowed(logits, **case)
    ids = draw(lib, logits, seed=3, **case)[0]
    assert (p[ids] > 0).all()
    assert not chi2_too_large(ids, p)
    biased = softmax(np.log(np.maximum(p, 1e-300)) * 1.25)
    assert chi2_too_large(ids, biased) or (p > 0).sum() == 1  # the twin: a temperature wrong by a quarter


def test_log_probabilities_equal_log_softmax_in_float64(lib):
    for seed in range(5):
        logits = (np.random.default_rng(seed).standard_normal(32000) * 4).astype(np.float32)
        wide = logits.astype(np.float64)
        want = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        ids, logprobs, top_ids, top_logprobs = draw(lib, logits, n=50, n_top=20, top_p=0.9)
        assert np.abs(logprobs - want[ids]).max() < 5e-6
        assert np.abs(logprobs - want[ids] - 1e-4).max() > 5e-6  # the twin
        assert (top_ids == np.argsort(-logits, kind="stable")[:20]).all()
        assert np.abs(top_logprobs - want[top_ids]).max() < 5e-6


def test_a_seed_decides_the_draws(lib):
    logits = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    first, again, other = (draw(lib, logits, n=200, seed=s)[0] for s in (9, 9, 10))
    assert (first == again).all() and (first != other).mean() > 0.9
