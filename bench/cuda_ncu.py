"""Hardware counters, by ncu (Nsight Compute), of the kernels that steps of bench/cuda's rows begin with: all of a step
that is one kernel, otherwise as many as the first layer and some of the second have. Prints a table for each row; ends
with 1 if there was none for one of them.

usage: bench/cuda-ncu [WORD,...] [--kernels N]

WORD: only rows whose name holds one of these. A kernel is run by itself, several times over, so its time is not what it
takes in a step, where it overlaps its neighbours; the shares are of the card's own peaks, as ncu knows them, not of the
limits that bench/cuda measures.
"""
import argparse
import csv
import ctypes
import importlib.util
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = ("decode 1, bf16", "decode 1, fp8", "decode 1, Q4_0", "decode 1, Q4_K", "decode 32, bf16", "decode 128, bf16",
        "decode 256, bf16", "prefill 2048, bf16", "prefill 2048, fp8", "decode 16 at 32k, bf16",
        "decode 256, fp8, F8 cache")
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "Occupancy", "LaunchStats")
# what is printed: title, ncu's name for it, the unit that is asked of it, and what it is divided by
COLUMNS = (("us", "Duration", None, 1e3), ("GB/s", "Memory Throughput", "byte/s", 1e9),
           ("DRAM %", "DRAM Throughput", None, 1), ("L2 %", "L2 Cache Throughput", None, 1),
           ("L2 hits %", "L2 Hit Rate", None, 1), ("SM %", "Compute (SM) Throughput", None, 1),
           ("issue %", "Issue Slots Busy", None, 1), ("warps %", "Achieved Occupancy", None, 1),
           ("registers", "Registers Per Thread", None, 1))
KERNEL = re.compile(r"(?:void )?([^(<]*)")
OPTIONS = ["--profile-from-start", "off", "--clock-control", "none", "--print-units", "base", "--page", "details",
           "--csv", *(word for name in SECTIONS for word in ("--section", name))]


def bench():
    """bench/cuda.py; there is a package of its name."""
    spec = importlib.util.spec_from_file_location("bench_cuda", ROOT / "bench/cuda.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_step(row):
    """Under ncu: one step of a row, which has been recorded before, is looked at."""
    b, driver = bench(), ctypes.CDLL("libcuda.so.1")
    name, dtype, fp8, kv, seqs, rows, at, _ = next(t for t in b.TESTS if t[0] == row)
    lib = b.library()
    handle = b.open_bench(lib, (dtype, fp8, kv), 0, 2048, seqs, seqs * (at + 64))
    if not handle:
        return 1
    ended = [lib.quern_bench_step(handle, seqs, rows, at, 0, 1, 4)]
    driver.cuProfilerStart()
    ended.append(lib.quern_bench_step(handle, seqs, rows, at, 0, 1, 0))
    driver.cuProfilerStop()
    lib.quern_bench_close(handle)
    return 0 if min(ended) > 0 else 1


def kernels_of(text):
    """[(kernel, blocks x threads, {(name, unit): value})] of what ncu wrote, in the order of their launches."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    found = {}
    for r in csv.DictReader(lines):
        try:
            value = float(r["Metric Value"].replace(",", ""))
        except ValueError:
            continue  # a rule's line, or a counter that there is not
        size = "x".join(str(math.prod(map(int, re.findall(r"\d+", r[k])))) for k in ("Grid Size", "Block Size"))
        of = found.setdefault(r["ID"], (KERNEL.match(r["Kernel Name"])[1], size, {}))[2]
        of[r["Metric Name"], None] = of[r["Metric Name"], r["Metric Unit"].replace("second", "s")] = value
    return list(found.values())


def show(row, kernels):
    print(f"\n{row}\n{'kernel':28} {'size':>10}" + "".join(f"{c[0]:>10}" for c in COLUMNS))
    for name, size, values in kernels:
        cells = (values.get((c[1], c[2])) for c in COLUMNS)
        print(f"{name[-28:]:28} {size:>10}" + "".join("          " if v is None else f"{v / c[3]:10.1f}"
                                                      for v, c in zip(cells, COLUMNS)), flush=True)


def look(row, n_kernels):
    """Whether there was something to show."""
    with tempfile.TemporaryDirectory() as scratch:
        log = pathlib.Path(scratch) / "log"
        done = subprocess.run(["ncu", *OPTIONS, "--launch-count", str(n_kernels), "--log-file", log, sys.executable,
                               __file__, "--step", row], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        text = log.read_text() if log.exists() else ""
    kernels = kernels_of(text)
    if done.returncode != 0 or not kernels:
        print(f"\n{row}: ended with {done.returncode}\n{(done.stdout + text)[-1500:]}", flush=True)
        return False
    show(row, kernels)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="?", default="", metavar="WORD,...")
    parser.add_argument("--kernels", type=int, default=14, help="of a step, at most")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        return run_step(args.step)
    if shutil.which("ncu") is None:
        sys.exit("ncu is not installed")
    with tempfile.TemporaryDirectory() as choices:  # measured once
        os.environ.setdefault("QUERN_CHOICES", choices)
        shown = [look(row, args.kernels) for row in ROWS if any(w in row for w in args.words.split(","))]
    return 0 if shown and all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
