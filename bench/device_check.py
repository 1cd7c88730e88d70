#!/usr/bin/env python3
"""The CUDA backend against the CPU on the machine it runs on: logits of every position and greedy continuations of the
tiny models, and the time of a replayed decode step. Prints a short table; exits 1 on a mismatch.

  cmake --preset cuda && cmake --build --preset cuda
  QUERN_TESTING_LIB=build/cuda/tests/libquern_testing.so python3 bench/device_check.py

Tokens are compared greedily. Where they part, the CPU's two best logits must be closer than the largest difference of
logits between the backends: rounding, not error. The twin with a wrong input must fail, or the check proves nothing.
"""
import pathlib
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "py"))
from quern_model import Model  # noqa: E402

MODELS = [ROOT / "tests/data/tiny/tiny-1m-f16.gguf", ROOT / "tests/data/tiny/tiny-1m-hf"]
PROMPTS = [[1, 257, 300, 13, 44, 999, 2, 7, 1, 500], list(range(40, 140)), [5]]
STEPS = 64
BOUND = {"F32": 2e-3, "F16": 2e-3, "BF16": 5e-3}  # inputs of products are rounded to F16; BF16 keys to 8 bits


def greedy(model, ids):
    """Tokens by the device's own argmax, and the logits they were chosen from."""
    rows = [model.logits(ids)[-1]]
    out = []
    for i in range(STEPS):
        out.append(int(model.best[-1]))
        rows.append(model.logits([out[-1]], first=len(ids) + i)[0])
    return out, rows


def compare(path, kv):
    bad = 0
    with Model(path, variant="cuda", kv_dtype=kv) as gpu, Model(path, variant="cpu-ref", kv_dtype=kv) as cpu:
        for ids in PROMPTS:
            ours, theirs = gpu.logits(ids), cpu.logits(ids)
            error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
            twin = gpu.logits([(7 * i + 3) % 2000 for i in ids])[-1]
            twin_error = np.linalg.norm(twin - theirs[-1]) / np.linalg.norm(theirs[-1])
            a, _ = greedy(gpu, ids)
            b, rows = greedy(cpu, ids)
            same = next((i for i in range(STEPS) if a[i] != b[i]), STEPS)
            ok = error < BOUND[kv] and twin_error > 5 * BOUND[kv]
            if same < STEPS:
                best = np.sort(rows[same])[-2:]
                ok = ok and best[1] - best[0] < 2 * np.abs(ours - theirs).max() + 1e-3
            bad += not ok
            print(f"{path.name:20} kv {kv:5} prompt {len(ids):3}  error {error:.1e}  twin {twin_error:.1e}  "
                  f"equal tokens {same}/{STEPS}  {'ok' if ok else 'MISMATCH'}")
        began = time.perf_counter()
        for i in range(200):
            gpu.logits([3], first=100 + i)
        print(f"{path.name:20} kv {kv:5} {(time.perf_counter() - began) / 200 * 1e6:.0f} us a decode step, replayed")
    return bad


if __name__ == "__main__":
    sys.exit(1 if sum(compare(path, kv) for path in MODELS for kv in ("F16", "F32", "BF16")) else 0)
