"""Speed on a CUDA card, against the card's own limits measured in the same run. Weights are random, in real shapes, and
the KV cache is filled with random numbers; each row is the median of many steps, from a warm state, as the caller sees
them: from the batch's arrays in host memory to the chosen ids back there.

usage: bench/cuda [--rows WORD;...] [--quick] [--products] [--no-check] [--resident]
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "py"))
from quern_model import LIBRARY  # noqa: E402

SHAPE = "llama-3.1-8b"
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD, VOCAB = 32, 4096, 14336, 32, 8, 128, 128256
KV_BYTES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "Q8_0": 34 / 32}
ACTIVE = LAYERS * (HIDDEN * HEAD * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * FFN) + VOCAB * HIDDEN

# name, weights, fp8, kv, sequences, rows of each, last position, bar in tok/s
TESTS = [
    ("decode 1, bf16", "BF16", 0, "BF16", 1, 1, 512, 250),
    ("decode 8, bf16", "BF16", 0, "BF16", 8, 1, 512, None),
    ("decode 32, bf16", "BF16", 0, "BF16", 32, 1, 512, 7000),
    ("decode 128, bf16", "BF16", 0, "BF16", 128, 1, 512, 17000),
    ("decode 256, bf16", "BF16", 0, "BF16", 256, 1, 512, 21000),
    ("prefill 2048, bf16", "BF16", 0, "BF16", 1, 2048, 2047, 42000),
    ("decode 16 at 32k, bf16", "BF16", 0, "BF16", 16, 1, 32000, None),
    ("decode 1, fp8", "BF16", 1, "BF16", 1, 1, 512, 450),
    ("decode 32, fp8", "BF16", 1, "BF16", 32, 1, 512, None),
    ("decode 256, fp8", "BF16", 1, "BF16", 256, 1, 512, None),
    ("prefill 2048, fp8", "BF16", 1, "BF16", 1, 2048, 2047, 65000),
    ("decode 1, Q4_0", "Q4_0", 0, "F16", 1, 1, 512, 550),
    ("decode 32, Q4_0", "Q4_0", 0, "F16", 32, 1, 512, None),
    ("prefill 2048, Q4_0", "Q4_0", 0, "F16", 1, 2048, 2047, None),
    ("decode 1, Q4_K", "Q4_K", 0, "F16", 1, 1, 512, 550),
    ("decode 1, Q6_K", "Q6_K", 0, "F16", 1, 1, 512, None),
    ("decode 1, Q8_0", "Q8_0", 0, "F16", 1, 1, 512, None),
]


def library():
    lib = ctypes.CDLL(str(LIBRARY))
    lib.quern_bench_open.restype = ctypes.c_void_p
    lib.quern_bench_open.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_uint32] * 3 + [
        ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    lib.quern_bench_close.argtypes = [ctypes.c_void_p]
    lib.quern_bench_weight_bytes.argtypes = [ctypes.c_void_p]
    lib.quern_bench_weight_bytes.restype = ctypes.c_uint64
    lib.quern_bench_step.argtypes = [ctypes.c_void_p] + [ctypes.c_uint32] * 6
    lib.quern_bench_step.restype = ctypes.c_double
    lib.quern_bench_stream.argtypes = [ctypes.c_void_p] + [ctypes.c_uint32] * 5
    lib.quern_bench_stream.restype = ctypes.c_double
    return lib


def limits(lib):
    out = (ctypes.c_double * 3)()
    if lib.quern_bench_limits(out) != 0:
        sys.exit("the card could not be measured")
    print(f"limits: reading {out[0] / 1e12:.2f} TB/s, bf16 {out[1] / 1e12:.0f} TFLOP/s, "
          f"fp8 {out[2] / 1e12:.0f} TFLOP/s", flush=True)
    return tuple(out)


def floor_of(test, weight_bytes, card):
    """Seconds a step takes at least: the larger of bytes over bandwidth and operations over rate."""
    _, _, fp8, kv, seqs, rows, at, _ = test
    read, bf16, f8 = card
    bytes_each = KV_BYTES[kv] * 2 * KV_HEADS * HEAD * LAYERS
    moved = weight_bytes + seqs * bytes_each * (at + 1)
    heads = VOCAB * HIDDEN
    ops = 2.0 * seqs * (rows * (ACTIVE - heads) + heads)
    if rows > 1:
        ops += 4.0 * seqs * LAYERS * HEADS * HEAD * rows * (at - rows / 2)
    return max(moved / read, ops / (f8 if fp8 and f8 > 0 else bf16))


def run_tests(lib, card, tests, steps, det):
    table = []
    for kind in dict.fromkeys((t[1], t[2], t[3]) for t in tests):
        mine = [t for t in tests if (t[1], t[2], t[3]) == kind]
        tokens = max(t[4] * (t[6] + 1400) for t in mine)
        text = ctypes.create_string_buffer(1024)
        handle = lib.quern_bench_open(SHAPE.encode(), kind[0].encode(), kind[2].encode(), kind[1], det, 2048,
                                      max(t[4] for t in mine), 40000, tokens, text, len(text))
        if not handle:
            print(f"{kind}: {text.value.decode()}")
            continue
        weight_bytes = lib.quern_bench_weight_bytes(handle) * (0.5 if kind[1] else 1.0)
        weight_bytes -= weight_bytes * VOCAB * HIDDEN / (ACTIVE + VOCAB * HIDDEN)  # a step reads few rows of embeddings
        for test in mine:
            name, _, _, kv, seqs, rows, at, bar = test
            n = steps if rows == 1 else max(steps // 10, 5)
            seconds = lib.quern_bench_step(handle, seqs, rows, at, 128 if seqs > 1 else 0, n, 5)
            if seconds <= 0:
                table.append((name, None))
                break
            rate = seqs * rows / seconds
            least = floor_of(test, weight_bytes, card)
            kv_share = None
            if at > 20000:  # the same step without a context is the rest of it
                rest = lib.quern_bench_step(handle, seqs, rows, 64, 0, n, 5)
                moved = seqs * KV_BYTES[kv] * 2 * KV_HEADS * HEAD * LAYERS * (at + 1)
                kv_share = moved / (seconds - rest) / card[0]
            alone = lib.quern_bench_stream(handle, seqs, rows, at, 128 if seqs > 1 else 0, n)
            table.append((name, rate, seconds, least / seconds, bar, kv_share, alone))
            print_row(table[-1])
        lib.quern_bench_close(handle)
    return table


def print_row(row):
    if row[1] is None:
        print(f"{row[0]:26} FAILED", flush=True)
        return
    name, rate, seconds, share, bar, kv_share, alone = row
    mark = "" if bar is None else "ok" if rate >= bar else "MISS"
    more = f"  KV read at {100 * kv_share:.0f}% of the limit" if kv_share else ""
    print(f"{name:26} {rate:9.0f} tok/s {1e3 * seconds:8.3f} ms ({1e3 * alone:.3f} on the card) "
          f"{100 * share:4.0f}% of the limit  {'bar ' + str(bar) if bar else '':10} {mark}{more}", flush=True)


def run_products(lib, card):
    """Microseconds of a product by each way of making it, and the share of the limit; what few_rows_of is made from."""
    counts = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    cells = [(way, name, rows) for way, name in ((1, "skinny"), (2, "slim"), (3, "library")) for rows in counts
             if not (way == 1 and rows > 16) and not (way == 3 and rows < 4)]
    rows = (ctypes.c_uint32 * len(cells))(*(c[2] for c in cells))
    ways = (ctypes.c_int * len(cells))(*(c[0] for c in cells))
    us = (ctypes.c_double * len(cells))()
    print(" " * 22 + "".join(f"{n:>12}" for n in counts), flush=True)
    for kind, fp8, width in (("BF16", 0, 2), ("BF16", 1, 1), ("Q4_0", 0, 0.5625), ("Q4_K", 0, 0.5625)):
        for n_out, n_in in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
            if lib.quern_bench_products(kind.encode(), fp8, n_out, n_in, rows, ways, len(cells), 10, us) != 0:
                print(f"{kind} {n_out}x{n_in}: FAILED", flush=True)
                continue
            took = {(c[1], c[2]): t for c, t in zip(cells, us)}
            for name in ("skinny", "slim", "library"):
                line = f"{kind + (' F8' if fp8 else ''):8}{n_out if name == 'skinny' else '':>6}{name:>8}"
                for n in counts:
                    least = max(n_out * n_in * width / card[0], 2 * n * n_out * n_in / (card[2] if fp8 else card[1]))
                    t = took.get((name, n))
                    line += f"{t:7.1f} {100 * least / t * 1e6:3.0f}%" if t else " " * 12
                print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help="only tests whose name holds one of these words")
    parser.add_argument("--quick", action="store_true", help="few steps a row")
    parser.add_argument("--products", action="store_true", help="single products by each way of making them, no steps")
    parser.add_argument("--no-check", action="store_true", help="speed alone")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--resident", action="store_true", help="steps of one or two rows as one kernel")
    args = parser.parse_args()
    code = 0
    if not args.no_check:
        code = subprocess.run([sys.executable, ROOT / "bench/device_check.py"], check=False).returncode
    lib = library()
    lib.quern_bench_resident(int(args.resident))
    card = limits(lib)
    if args.products:
        run_products(lib, card)
        return code
    tests = [t for t in TESTS if not args.rows or any(w in t[0] for w in args.rows.split(";"))]
    run_tests(lib, card, tests, 60 if args.quick else 400, int(args.deterministic))
    return code


if __name__ == "__main__":
    sys.exit(main())
