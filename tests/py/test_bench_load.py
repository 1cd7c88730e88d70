"""The door behind bench/cuda --row: every request is answered whole, in any number of places, and the counts agree."""
import ctypes
import sys

from quern_model import LIBRARY, ROOT

sys.path.insert(0, str(ROOT / "bench"))
from cuda import LoadOptions, LoadResult  # noqa: E402


def run(streams, rows, tokens, **change):
    o = dict(device=b"cpu-ref", shape=b"smollm2-135m", weights=b"Q8_0", kv=b"F16", fp8=0, n_in=9, n_out=3, n_requests=7,
             streams=streams, rows=rows, kv_tokens=tokens) | change
    got, text = LoadResult(), ctypes.create_string_buffer(1024)
    code = ctypes.CDLL(str(LIBRARY)).quern_bench_load(ctypes.byref(LoadOptions(**o)), ctypes.byref(got), text,
                                                      ctypes.c_size_t(len(text)))
    return code, got, text.value.decode()


def test_every_request_is_answered_whole():
    code, got, text = run(3, 16, 320)
    assert code == 0, text
    assert got.output_tokens == 7 * 3 and got.prompt_tokens >= 7 * 9 and got.seconds >= got.steady_s > 0
    assert got.steps >= 7 * (9 + 2) / 16


def test_what_cannot_be_is_said():
    assert "F8 weights are not supported on cpu-ref" in run(3, 16, 320, fp8=1)[2]
    assert "KV cache of type F8_E4M3" in run(3, 16, 320, kv=b"F8_E4M3")[2]
