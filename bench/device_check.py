#!/usr/bin/env python3
"""The CUDA backend against float64 arithmetic and against the CPU, on the machine it runs on: products and feed-forward
in every weight format, attention, sampling, with fresh random inputs each run, then whole models, then requests through
the engine, whose greedy tokens must be the same whichever way they are run (tests/py/quern_requests.py). Prints a line
per group; exits 1 on a mismatch.

  cmake --preset cuda && cmake --build --preset cuda
  QUERN_TESTING_LIB=build/cuda/tests/libquern_testing.so python3 bench/device_check.py [--seed N] [--only WORD]
    [--part I/N] [--small] [--jobs N]

--part: every N-th thing from the I-th on, so that several processes share the work; --jobs: all of it by so many at a
time, which with 16 takes nearly all of 140 GB on the card. --small: every kernel that the whole would reach, in a few
small shapes each, with rows and tiles that are not full; for bench/cuda-sanitize.

Every bound has a twin with a planted error, which must be over the bound, or the check proves nothing. Greedy tokens of
whole models are compared too. Where they part, the CPU's two best logits must be closer than the largest difference of
logits between the backends: rounding, not error.
"""
import argparse
import concurrent.futures
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "py"))
import quern_ops as ops  # noqa: E402
import quern_requests as requests  # noqa: E402
from quern_model import LIBRARY, Model  # noqa: E402

# Activations are rounded to f16 (bf16 beside BF16 weights), and sums are f32. Q4_K's scales are rounded to f16 too.
# F8 products of many rows round activations to e4m3 as well: 3 bits and a half, so 2.6% each, and random over a row.
PRODUCTS = {"F32": 1e-5, "F16": 1e-3, "BF16": 4e-3, "Q8_0": 1e-3, "Q4_0": 1e-3, "Q4_1": 1e-3, "Q4_K": 2e-3,
            "Q6_K": 1e-3, "Q5_K": 1e-3}
FEED = {dtype: min(4 * bound, 1e-2) for dtype, bound in PRODUCTS.items()}  # two products and a gate between
F8 = 4.5e-2
ROWS = [1, 3, 8, 9, 17, 33, 65, 200]
# Keys that were rounded to bf16 may fall to the next of a Q8_0 cache's 127 levels: BF16's bound and such a level.
KV = {"F32": 8e-3, "F16": 1e-2, "BF16": 1e-2, "Q8_0": 2e-2, "F8_E4M3": 7e-2}
# Logits of whole BF16 steps are over 1e-2: each layer rounds its inputs, queries and probabilities to bf16 in its own
# order, and what comes of it adds up as random errors do, with the square root of the layers.
STEP, LAYERS = 8e-3, {"llama-3.2-1b": 16, "llama-3.1-8b": 32, "small-64": 2, "small-128": 2, "thin-64": 2}
MODELS = [ROOT / "tests/data/tiny/tiny-1m-f16.gguf", ROOT / "tests/data/tiny/tiny-1m-hf"]
PROMPTS = [[1, 257, 300, 13, 44, 999, 2, 7, 1, 500], list(range(40, 140)), [5]]
STEPS = 64
RESIDENT = [("llama-3.2-1b", "BF16", 1, "BF16"), ("llama-3.2-1b", "BF16", 0, "BF16"),
            ("llama-3.1-8b", "BF16", 0, "BF16"), ("llama-3.2-1b", "BF16", 0, "F8_E4M3"),
            ("thin-64", "BF16", 0, "BF16")]
RESIDENT_SMALL = [("small-64", "BF16", 1, "BF16"), ("small-64", "BF16", 0, "BF16"), ("small-128", "BF16", 0, "BF16")]
BOUND = {"F32": 2e-3, "F16": 2e-3, "BF16": 5e-3}  # inputs of products are rounded to F16; BF16 keys to 8 bits
failures = []
small = False
part, parts, turn = 0, 1, 0  # --part, and how many things came before


def of(whole, few):
    """What is checked, or as much of it as a sanitizer has the time for."""
    return few if small else whole


def mine(things):
    """Those of them that fall to this process."""
    global turn
    things = list(things)
    turn += len(things)
    return [x for i, x in enumerate(things) if (turn - len(things) + i) % parts == part]


def verdict(name, worst, bound, twin):
    ok = worst < bound < twin
    if not ok:
        failures.append(name)
    print(f"{name:44} error {worst:.1e}  bound {bound:.1e}  twin {twin:.1e}  {'ok' if ok else 'MISMATCH'}", flush=True)


def group(name, bound, cases):
    """cases: functions that give (got, want). The twin is a single wrong block of one row's output."""
    worst, twin = 0.0, float("inf")
    if not cases:
        return
    for case in cases:
        try:
            got, want = case()
        except RuntimeError as e:
            print(name, e)
            worst = float("inf")
            continue
        worst = max(worst, *(ops.distance(g[None], w[None]) for g, w in zip(got, want)))
        bad = got[-1].copy()
        bad[: max(16, len(bad) // 16)] *= 1.5 if bound < 0.1 else 4.0  # as if part of a tile were scaled wrongly
        twin = min(twin, ops.distance(bad, want[-1]))
    verdict(name, worst, bound, twin)


def check_products(seed):
    rows, shapes = of(ROWS, [1, 9, 33, 65]), of(((272, 768), (96, 4096)), ((272, 768),))
    for dtype, bound in mine(PRODUCTS.items()):
        group(f"product {dtype}", bound, [lambda r=r, s=s: ops.product("cuda", dtype, r, *s, seed + r)
                                          for r in rows for s in shapes])
    for glu in mine((ops.silu, ops.gelu)):
        group(f"resident feed-forward BF16, more rows, {glu.__name__}", FEED["BF16"], [
            lambda r=r, n=n, b=b: ops.feed_forward("cuda", "BF16", r, n, 768, seed + r, glu=glu, biased=b)
            for r in of((3, 9, 17, 32), (3, 32)) for n, b in ((256, False), (1040, True))])
    if mine(["as F8"]):
        n_out, n_in = of((1024, 1536), (272, 768))
        group("product BF16 as F8", F8, [
            lambda r=r: ops.product("cuda", "BF16", r, n_out, n_in, seed + r, fp8=True) for r in rows])


def check_whole(seed):
    """Whole numbers in, whole numbers out: blocks with a scale of one, activations that f16 holds and that a resident
    step makes the same 16 bits of. Every sum is below 2^24, so any order gives it exactly. The twin has one weight that
    is off by one."""
    shapes = of(((272, 768), (96, 4096), (2000, 1024)), ((272, 768),))
    ways = (("skinny", (1, 2, 9, 16)), ("slim", (1, 5, 33, 64)), ("library", (65, 200)), ("resident", (1, 2)))
    for dtype, (way, counts) in mine([(t, w) for t in ("Q8_0", "Q4_0") for w in ways]):
        ops.prefer("table" if way == "resident" else way)
        ops.record(2 if way == "resident" else 0)
        wrong, twins = 0, 0
        for rows in of(counts, counts[-1:]):
            for n_out, n_in in shapes:
                got, want, twin = ops.whole_product("cuda", dtype, rows, n_out, n_in, seed + rows)
                wrong += not np.array_equal(got, want)
                twins += np.array_equal(got, twin)
        ok = wrong == 0 and twins == 0
        if not ok:
            failures.append(f"whole numbers, {way} {dtype}")
        print(f"whole numbers, {way} {dtype}: {wrong} products are not exact, twins alike {twins}  "
              f"{'ok' if ok else 'MISMATCH'}", flush=True)
    ops.record(0)
    ops.prefer("table")


SLIM_ROWS = [1, 2, 6, 8, 9, 16, 17, 32, 33, 64, 100]
EVEN_ROWS = [1, 5, 8, 9, 16, 17, 31, 32]


def check_slim(seed):
    check_own("slim", [t for t in PRODUCTS if t != "F32"], seed, of(SLIM_ROWS, [5, 9, 17, 33]))


def check_flow(seed):
    check_own("flow", ["F16", "BF16"], seed, of(SLIM_ROWS, [5, 9, 17, 33]))


def check_even(seed):
    check_own("even", ["F16", "BF16"], seed, of(EVEN_ROWS, [5, 9, 17]))
    ops.prefer("even")
    for dtype in mine(("F16", "BF16")):  # inputs that fill no column, rows that fill no tile, tiles of many blocks
        group(f"even odd shapes {dtype}", PRODUCTS[dtype], [
            lambda r=r, s=s, t=dtype: ops.product("cuda", t, r, *s, seed + r)
            for r in of((5, 9, 31), (9,)) for s in ((1040, 328), (16, 64), (144, 8), (128, 9000), (17000, 200))])
        group(f"even projections {dtype}", FEED[dtype], [
            lambda r=r, s=s, t=dtype: ops.feed_forward("cuda", t, r, *s, seed + r)
            for r in of((8, 16, 32), (9,)) for s in of(((272, 1040), (2048, 528), (512, 4096)), ((272, 1040),))])
    cases = []
    some = (SHAPES[0], SHAPES[3], SHAPES[4], SHAPES[8], SHAPES[2], shape(8, 1, 64))
    batches = (([0, 100, 16, 257, 700], [1, 6, 1, 1, 2]), (list(range(5, 70, 2))[:32], [1] * 32))
    for i, s in enumerate(mine(some)):
        for before, rows in of(batches, (([0, 20], [1, 6]), ([1] * 31, [1] * 31))):
            cases.append(lambda s=s, b=before, r=rows, n=seed + i: (
                ops.attention(["cuda"], "BF16", "BF16", dict(s, hidden=320), b, r, n)[0],
                ops.attention(["cpu-ref"], "BF16", "BF16", dict(s, hidden=320), b, r, n)[0]))
    group(f"even heads, {len(cases)} more", KV["BF16"], cases)
    ops.prefer("table")


def check_own(way, dtypes, seed, counts):
    """A kernel for some rows, made to do all: against float64, and each row alone against the same in company, bit for
    bit; the twin of that is the row beside it."""
    ops.prefer(way)
    shapes = of(((272, 768), (96, 4096), (2000, 1024)), ((272, 768),))
    for dtype in mine(dtypes):
        bound = PRODUCTS[dtype]
        group(f"{way} product {dtype}", bound, [lambda r=r, s=s: ops.product("cuda", dtype, r, *s, seed + r)
                                               for r in counts for s in shapes])
        group(f"{way} feed-forward {dtype}", FEED[dtype], [
            lambda r=r: ops.feed_forward("cuda", dtype, r, 256, 768, seed + r)
            for r in of((1, 9, max(counts)), (17,) if way != "even" else counts)])
        for n_out, n_in in of(shapes, ((96, 2048),)):
            most = min(40, max(counts))
            many = ops.product("cuda", dtype, most, n_out, n_in, seed)[0]
            few = ops.product("cuda", dtype, most, n_out, n_in, seed, only=(3, 5))[0]
            if not np.array_equal(many[3:8], few) or np.array_equal(many[4:9], few):
                failures.append(f"{way} {dtype} {n_out}x{n_in}: a row depends on its company")
                print(failures[-1], flush=True)
    if way == "slim" and mine(["as F8"]):
        n_out, n_in = of((1024, 1536), (272, 768))
        group("slim product BF16 as F8", F8, [
            lambda r=r: ops.product("cuda", "BF16", r, n_out, n_in, seed + r, fp8=True) for r in counts])
    cases = []
    for i, s in enumerate(mine((shape(8, 2, 128, block=32), shape(6, 2, 96, rope=ops.ROPE_PAIRS), SHAPES[6]))):
        for hidden in of((64, 1024), (320,)):
            before, rows = of(([0, 100, 16, 257, 700], [1, 6, 1, 1, 2]), ([0, 10, 16], [1, 6, 4]))
            cases.append(lambda s=s, h=hidden, n=seed + i: (
                ops.attention(["cuda"], "BF16", "F16", dict(s, hidden=h), before, rows, n)[0],
                ops.attention(["cpu-ref"], "BF16", "F16", dict(s, hidden=h), before, rows, n)[0]))
    group(f"{way} heads, {len(cases)} cases", KV["BF16"], cases)
    ops.prefer("table")


def check_feed_forward(seed):
    for dtype, bound in mine(PRODUCTS.items()):
        # many rows of the others: check_products has the kernels
        rows = of(ROWS, [1, 9, 65] if dtype in ("F32", "F16", "BF16") else [1, 9])
        group(f"feed-forward {dtype}", FEED[dtype], [lambda r=r: ops.feed_forward("cuda", dtype, r, 256, 768, seed + r)
                                                   for r in rows])
        group(f"mixture {dtype}", max(FEED[dtype], 4e-3), [
            lambda r=r: ops.feed_forward("cuda", dtype, r, 256, 512, seed + r, experts=6, top_k=2)
            for r in of((1, 5, 40), (5, 40))])
    if mine(["as F8"]):
        group("feed-forward BF16 as F8", 3 * F8, [
            lambda r=r: ops.feed_forward("cuda", "BF16", r, 512, 1024, seed + r, fp8=True)
            for r in of(ROWS, [1, 9, 65])])
    check_many(seed)


MANY_SHAPES = ((256, 768), (72, 1000), (1096, 520), (200, 2600))
MANY_WIDE = ((72, 14344), (72, 16392))  # so many tiles that those of 224 and of 256 weight rows are the fewer (132 SMs)


def by_many(*args, **more):
    before, got = ops.many_launches(), ops.feed_forward("cuda", *args, **more)
    if ops.many_launches() == before:
        raise RuntimeError("feed-forward was made by another kernel")
    return got


def check_many(seed):
    """Gate and up of many rows as one kernel: odd widths, biases, both gates."""
    counts, shapes = of((65, 96, 128, 129, 200, 256, 257, 300, 1000), (65, 200)), of(MANY_SHAPES, MANY_SHAPES[1:2])
    ops.prefer("many")
    for dtype, glu in mine([(t, glu) for t in ("BF16", "F16") for glu in (ops.silu, ops.gelu)]):
        cases = []
        widths = of((65, 200, 257), (200,) if (dtype == "BF16") == (glu is ops.silu) else ())
        for i, r in enumerate(counts):
            for j, s in enumerate((shapes if r < 1000 else shapes[:1]) + (MANY_WIDE if r in widths else ())):
                cases.append(lambda r=r, s=s, b=(i + j) % 2 == 0, g=glu: by_many(
                    dtype, r, *s, seed + r, glu=g, biased=b))
        group(f"many {glu.__name__} {dtype}, {len(cases)} cases", FEED[dtype], cases)
    ops.prefer("table")


def shape(n_heads, n_kv_heads, head_dim, window=0, cap=0.0, rope=ops.ROPE_HALVES, rope_dims=None, qk_norm=0, block=16):
    return dict(n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, window=window, cap=cap, rope=rope,
                rope_dims=head_dim if rope_dims is None else rope_dims, qk_norm=qk_norm, block_tokens=block)


DECODE = ([0, 1, 15, 16, 100, 255, 256, 257, 700, 1500], [1] * 10)
PREFILL = ([0, 0, 5, 300, 0, 64], [1, 70, 33, 129, 300, 2])
MIXED = ([600, 0, 31, 90], [1, 200, 4, 1])
VERIFY = ([700, 33, 0, 1500, 250], [6, 8, 16, 3, 9])
FEW = (([0, 15, 300], [1] * 3), ([150, 33, 0, 90], [6, 16, 70, 1]))
SHAPES = [shape(8, 2, 64), shape(4, 4, 80, block=48), shape(6, 2, 96, rope=ops.ROPE_PAIRS), shape(8, 2, 128, block=32),
          shape(4, 1, 256), shape(8, 2, 128, window=100, cap=30.0), shape(7, 1, 64, window=16, rope_dims=32),
          shape(4, 2, 64, qk_norm=1), shape(4, 2, 32), shape(24, 1, 64), shape(7, 1, 128, rope=ops.ROPE_PAIRS)]
SHAPES_SMALL = SHAPES[:3] + SHAPES[4:7]


def check_attention(seed):
    """Attention by warps; check_wide has many rows by warpgroups."""
    ops.wide(False)
    for kv, bound in mine(KV.items()):
        cases = []
        shapes = SHAPES if kv != "F32" else SHAPES[3:6] + SHAPES[8:9]
        for i, s in enumerate(of(shapes, SHAPES_SMALL if kv != "F32" else SHAPES[8:9])):
            for j, (before, rows) in enumerate(of((DECODE, PREFILL, MIXED, VERIFY), FEW)):
                weight = of("BF16" if (i + j) % 2 else "F16", "F32")
                reference_kv = "F32" if kv == "F8_E4M3" else kv  # which the CPU has not
                cases.append(lambda s=s, b=before, r=rows, w=weight, k=kv, q=reference_kv, n=seed + 10 * i + j: (
                    ops.attention(["cuda"], w, k, dict(s), b, r, n)[0],
                    ops.attention(["cpu-ref"], w, q, dict(s), b, r, n)[0]))
        group(f"attention, {kv} cache, {len(cases)} cases", bound, cases)
    ops.wide(True)


WIDE = ("F16", "BF16", "F8_E4M3")


def check_wide(seed):
    """Attention of many rows on the warpgroup's matrix unit."""
    batches = (PREFILL, MIXED, ([0], [2048]), ([1000, 0], [333, 64]))
    for kv in mine(WIDE):
        cases = []
        for i, s in enumerate(s for s in of(SHAPES, SHAPES_SMALL) if s["head_dim"] in (64, 128)):
            few = (FEW[1], ([130, 0], [150, 64]), ([0], [1030]))[:3 if s["head_dim"] == 128 else 2]
            for j, (before, rows) in enumerate(of(batches, few)):
                weight = of("F16" if j % 2 else "BF16", "F32" if j < 2 else "BF16")  # heads are turned by other kernels
                reference_kv = "F32" if kv == "F8_E4M3" else kv
                cases.append(lambda s=s, b=before, r=rows, w=weight, k=kv, q=reference_kv, n=seed + 10 * i + j: (
                    ops.attention(["cuda"], w, k, dict(s), b, r, n)[0],
                    ops.attention(["cpu-ref"], w, q, dict(s), b, r, n)[0]))
        group(f"wide attention, {kv} cache, {len(cases)} cases", KV[kv], cases)


def greedy(model, ids):
    """Tokens by the device's own argmax, and the logits they were chosen from."""
    rows = [model.logits(ids)[-1]]
    out = []
    for i in range(of(STEPS, 2)):
        out.append(int(model.best[-1]))
        rows.append(model.logits([out[-1]], first=len(ids) + i)[0])
    return out, rows


def compare(path, kv, prompts):
    with Model(path, variant="cuda", kv_dtype=kv) as gpu, Model(path, variant="cpu-ref", kv_dtype=kv) as cpu:
        for ids in prompts:
            ours, theirs = gpu.logits(ids), cpu.logits(ids)
            twin = gpu.logits([(7 * i + 3) % 2000 for i in ids])[-1]
            a, _ = greedy(gpu, ids)
            b, rows = greedy(cpu, ids)
            same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a))
            name = f"{path.name} {kv} prompt {len(ids)}, {same}/{len(a)} tokens"
            if same < len(a):
                best = np.sort(rows[same])[-2:]
                if best[1] - best[0] >= 2 * np.abs(ours - theirs).max() + 1e-3:
                    failures.append(name)
                    print(f"{name}: tokens part where the choice is clear")
            verdict(name, ops.distance(ours, theirs), BOUND[kv], ops.distance(twin, theirs[-1]) / 5)
        began, steps = time.perf_counter(), of(200, 1)
        for i in range(steps):
            gpu.logits([3], first=100 + i)
        print(f"{path.name:20} kv {kv:5} {(time.perf_counter() - began) / steps * 1e6:.0f} us a decode step, replayed")


def check_models(seed):
    random = np.random.default_rng(seed)
    prompts = of(PROMPTS, PROMPTS[1:2]) + of([random.integers(3, 2000, 50).tolist()], [])
    whole = [(path, kv) for path in MODELS for kv in BOUND]
    for path, kv in mine(of(whole, whole[:2] + whole[-1:])):
        compare(path, kv, prompts)


def small_models():
    try:
        import gguf  # noqa: F401
    except ModuleNotFoundError:  # only needed to write files of that kind
        sys.modules["gguf"] = types.ModuleType("gguf")
    import reference_models
    return reference_models


def check_checkpoint(seed):
    """Checkpoints with scales of all shapes, against the CPU, in steps of few rows and of many. F8: the CPU makes it
    BF16, which rounds e4m3 times a scale once more, and activations of many rows are made e4m3 too. INT8: both make it
    Q8_0, and the card's activations are F16. The twin begins with another token."""
    import f8_models
    import i8_models
    reference_models = small_models()
    writers = {"F8": (f8_models.write_pair, 3e-2, 0.3), "INT8": (i8_models.write, 1e-2, 1e-2)}
    for kind, case in mine([(k, c) for k in writers for c in ("llama", "phi3", "mixtral")]):
        write, bound_few, bound_many = writers[kind]
        config = reference_models.make_config(case, **reference_models.WIDE)
        weights = reference_models.make_weights(config, case)
        ids = np.random.default_rng(seed).integers(3, 300, of(160, 40)).tolist()
        with tempfile.TemporaryDirectory() as scratch:
            path, _ = write(pathlib.Path(scratch), config, weights)
            with Model(path, context=200, kv_dtype="F16") as model:
                want = model.logits(ids)
            with Model(path, context=200, kv_dtype="F16", variant="cuda") as model:
                for chunk, bound in ((of(8, 16), bound_few), (len(ids), bound_many)):
                    got, twin = model.logits(ids, chunk=chunk), model.logits([ids[0] + 1] + ids[1:chunk])
                    apart = [ops.distance(g[None], w[None]) for g, w in zip(got, want)]
                    # a router that is nearly undecided chooses another expert for some rows
                    worst = np.median(apart) if case == "mixtral" else max(apart)
                    verdict(f"{kind} checkpoint, {case}, {chunk} rows", worst, bound,
                            ops.distance(twin[:1], want[:1]))


def fast_shapes(wide):
    """Every architecture in a shape that the fast kernels take: BF16, heads of 64, one Gemma's of 256."""
    cases = {name: wide for name in ("llama", "mistral", "qwen2-window", "qwen3", "gemma2", "phi4-mini", "mixtral")}
    cases["gemma3"] = wide | dict(head_dim=256, layer_types=["sliding_attention", "full_attention"])
    cases["qwen3moe"] = wide | dict(moe_intermediate_size=256)
    return cases


def check_fast_architectures(seed):
    """Against the CPU on the same file: one by one, as guesses are verified, and in larger pieces. The row in the
    middle counts: a router that is nearly undecided chooses another expert for some. Roundings to bf16 add up over two
    layers whose attention is sharp: arithmetic that rounds inputs, queries and probabilities is up to 1e-2 off. The
    twin has the sixteenth of one projection's outputs scaled wrongly."""
    import f8_models
    from reference import row_errors
    reference_models = small_models()
    for name, more in mine(of(fast_shapes(reference_models.WIDE), {}).items()):
        config = reference_models.make_config(name, **more)
        weights = reference_models.make_weights(config, name)
        bad = "model.layers.0.self_attn.o_proj.weight"
        wrong = weights | {bad: np.concatenate([weights[bad][:16] * 1.5, weights[bad][16:]])}
        ids = np.random.default_rng(seed).integers(3, config["vocab_size"], 120).tolist()
        with tempfile.TemporaryDirectory() as scratch:
            path, other = (f8_models.write_bf16(pathlib.Path(scratch) / str(i), config, w)
                           for i, w in enumerate((weights, wrong)))
            with Model(path, context=120, kv_dtype="BF16", variant="cpu-ref") as model:
                want = model.logits(ids)
            with Model(path, context=120, kv_dtype="BF16", variant="cuda") as model:
                worst = max(float(np.median(row_errors(model.logits(ids, chunk=n), want))) for n in (1, 7, 50, 120))
            with Model(other, context=120, kv_dtype="BF16", variant="cuda") as model:
                twin = float(np.median(row_errors(model.logits(ids, chunk=50), want)))
        verdict(f"architecture {name}, BF16, heads of {config['head_dim']}", worst, 2e-2, twin)


def check_architectures(seed):
    """Every architecture, F32, against the float64 reference: exact arithmetic but for the kernels' own order. Then in
    shapes for the fast kernels."""
    reference_models = small_models()
    from reference import Reference, error
    for name in mine(of(reference_models.CASES, ("llama-bias", "qwen3", "gemma2", "gemma3", "phi4-mini", "mixtral"))):
        config = reference_models.make_config(name)
        weights = reference_models.make_weights(config, name)
        # mixtures have the same ids every time: a router that is nearly undecided would be another error
        ids = reference_models.make_ids(config, 120, "ids" if reference_models.is_mixture(config) else str(seed))
        want = Reference(config, weights, context=120).logits(ids)
        with tempfile.TemporaryDirectory() as scratch:
            path = reference_models.write_hf(pathlib.Path(scratch) / name, config, weights)
            with Model(path, context=120, kv_dtype="F32", variant="cuda") as model:
                chunk = of(50, 70)
                other = 3 + (ids[0] - 2) % (config["vocab_size"] - 3)  # than the first
                got, twin = model.logits(ids, chunk=chunk), model.logits([other] + list(ids[1:]), chunk=chunk)
        verdict(f"architecture {name}", error(got, want), 5e-3 if reference_models.is_mixture(config) else 1e-4,
                error(twin, want))
    check_fast_architectures(seed)


def bench_library():
    lib = ctypes.CDLL(str(LIBRARY))
    lib.quern_bench_open.restype = ctypes.c_void_p
    lib.quern_bench_open.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_int] * 2 + [ctypes.c_uint32] * 3 + [
        ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
    lib.quern_bench_close.argtypes = [ctypes.c_void_p]
    lib.quern_bench_choices.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.quern_bench_choices.restype = ctypes.c_double
    lib.quern_bench_logits.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int,
                                       ctypes.c_void_p]
    lib.quern_bench_rows.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p]
    lib.quern_bench_seed.argtypes = [ctypes.c_uint32]
    lib.quern_bench_vocab.argtypes = lib.quern_bench_why.argtypes = [ctypes.c_void_p]
    lib.quern_bench_several_launches.restype = ctypes.c_uint64
    lib.quern_bench_why.restype = ctypes.c_char_p
    return lib


def bench_model(lib, shape, dtype, fp8, kv, det, rows_max, seqs_max, tokens):
    """A model with random weights and a cache of so many tokens; None, and a failure noted, if it cannot be opened."""
    text = ctypes.create_string_buffer(1024)
    handle = lib.quern_bench_open(shape.encode(), dtype.encode(), kv.encode(), fp8, det, rows_max, seqs_max, 4096,
                                  tokens, text, len(text))
    if not handle:
        failures.append(f"{shape} {dtype}: {text.value.decode()}")
        print(failures[-1], flush=True)
    return handle


def no_logits(lib, handle, n):
    return np.full((n, lib.quern_bench_vocab(handle)), np.nan, dtype=np.float32)


def step_failed(lib, handle, what):
    return RuntimeError(f"{what}: {lib.quern_bench_why(handle).decode()}")


def make_asks(random, rows, vocab, kind):
    """An ask for each row, of one kind of request, and the words and masks they name."""
    asks, words, masks = [], [], []

    def put(values):
        words.extend(int(v) for v in values)
        return len(words) - len(values)

    for row in range(rows):
        ask = dict(seed=int(random.integers(1 << 62)), index=int(random.integers(1 << 20)), choice=row % 3, row=row,
                   temperature=0.0 if kind == "greedy" else float(random.uniform(0.3, 1.5)), top_p=1.0, min_p=0.0,
                   repetition=1.0, presence=0.0, frequency=0.0, mask=0xffffffff)
        if kind in ("top-k", "all"):
            ask["top_k"] = int(random.choice([1, 20, 50, 400, 1024, 5000]))
        if kind in ("top-p", "all"):
            ask["top_p"] = float(np.float32(random.uniform(0.1, 0.99)))
        if kind in ("min-p", "all"):
            ask["min_p"] = float(np.float32(random.choice([0.3, 0.05, 1e-3])))
        if kind in ("changed", "all", "greedy"):
            bits = random.random((vocab + 63) // 64 * 64) < 0.4
            ask["mask"] = len(masks)
            masks.append(np.packbits(bits, bitorder="little").view(np.uint64))
            ask["banned_at"], ask["n_banned"] = put([3, vocab - 1, vocab + 5]), 3
            bias = np.array([7, 0, 9, 0, 7, 0], np.uint32)
            bias[1::2] = np.array([3.0, -100.0, 0.5], np.float32).view(np.uint32)
            ask["bias_at"], ask["n_bias"] = put(bias), 3
            ids = random.choice(vocab, 300, replace=False)
            ask["history_at"] = put(np.stack([ids, random.integers(0, 4, 300)], 1).ravel())
            ask.update(n_history=300, repetition=1.3, presence=0.7, frequency=0.2)
        if row % 2 == 0:
            ask.update(want_logprob=1, n_top=row % 21)
        asks.append(ops.SampleAsk(**ask))
    return asks, words, masks


def check_sample(seed):
    """Tokens and log-probabilities against sample/ on the same logits: peaked rows, flat rows (whose cuts fall far
    down), ties, rows with NaN, a row of nothing. The twin draws with other seeds."""
    random = np.random.default_rng(seed)
    vocab, rows = of((128256, 64), (10007, 10))
    logits = (random.standard_normal((rows, vocab)) * random.choice([0.3, 2.0, 6.0], (rows, 1))).astype(np.float32)
    logits[1::8] = np.round(logits[1::8])
    logits[2, 5:5000] = np.nan
    logits[3] = np.nan
    for kind in mine(("greedy", "plain", "top-k", "top-p", "min-p", "changed", "all")):
        what = make_asks(random, rows, vocab, kind)
        asks = what[0]
        want, want_lp, want_top = ops.sample("here", logits, *what)
        got, got_lp, got_top = ops.sample("cuda", logits, *what)
        for ask in asks:
            ask.seed ^= 12345
        other = ops.sample("cuda", logits, *what)[0]
        differ = sum(a != b for a, b in zip(got, want))
        far = max((abs(a - b) for a, b, k in zip(got_lp, want_lp, asks) if k.want_logprob and np.isfinite(b)),
                  default=0.0)
        tops = sum([i for i, _ in a] != [i for i, _ in b] for a, b in zip(got_top, want_top))
        far = max([far] + [abs(x - y) for a, b in zip(got_top, want_top) for (_, x), (_, y) in zip(a, b)
                           if np.isfinite(y)])
        twin = sum(a != b for a, b in zip(other, want))
        ok = differ == 0 and tops == 0 and far < 1e-5 and (kind == "greedy" or twin > rows // 4)
        if not ok:
            failures.append(f"sampling, {kind}")
        print(f"sampling, {kind:9} {rows} rows: {differ} tokens differ, {tops} lists, log-probabilities by {far:.1e}; "
              f"twin {twin}  {'ok' if ok else 'MISMATCH'}", flush=True)


def check_verify(seed):
    """Several rows of a sequence in one recorded step, against the same rows one by one; the twin is the row before."""
    lib = bench_library()
    lib.quern_bench_seed(seed & 0xffffffff)
    # random blocks of Q4_0 make logits that hardly depend on the row; a resident step would round its activations in
    # another way than steps of many rows do, which check_resident has
    name = of("llama-3.2-1b", "small-64")
    whole = STEP * LAYERS[name] ** 0.5
    kinds = (("BF16", "BF16", whole), ("BF16", "F8_E4M3", whole), ("Q4_0", "F16", 5e-5))
    # (6, 1300) replays what (6, 700) recorded
    place = int(np.random.default_rng(seed).integers(100, 2000))
    steps = of(((2, 40), (6, 700), (6, 1300), (9, place), (16, 2047)), ((2, 40), (6, 100), (6, 300), (9, 213)))
    for dtype, kv, bound in mine(of(kinds, kinds[:2])):
        lib.quern_bench_resident(int(dtype != "Q4_0"))
        handle = bench_model(lib, name, dtype, 0, kv, 0, 64, 8, 8000)
        if not handle:
            continue

        def rows(n, at):
            out = no_logits(lib, handle, n)
            if lib.quern_bench_rows(handle, n, at, out.ctypes.data) != 0:
                raise step_failed(lib, handle, f"{n} rows at {at}")
            return out

        worst, twin = 0.0, float("inf")
        for n, at in steps:
            got, again = rows(n, at), rows(n, at)
            if not np.array_equal(got, again):
                failures.append(f"verify {dtype}, {n} rows: a replay differs")
                print(failures[-1], flush=True)
            some = of(range(n), (0, n - 1))
            alone = np.concatenate([rows(1, at - n + 1 + i) for i in some])
            worst = max(worst, *(ops.distance(got[i:i + 1], w[None]) for i, w in zip(some, alone)))
            twin = min(twin, ops.distance(got[[i + 1 for i in some[:-1]]], alone[:-1]))
        lib.quern_bench_close(handle)
        verdict(f"rows verified together, {dtype}, {kv} cache", worst, bound, twin)
    lib.quern_bench_resident(1)


def check_deterministic(seed):
    """With --deterministic a row's logits are the same bits alone, among guesses, in a prompt, in company and in a
    resident step. The twin is the same without the option, where some of them differ."""
    lib = bench_library()
    lib.quern_bench_seed(seed & 0xffffffff)
    between = int(np.random.default_rng(seed).integers(258, 1030))
    small_one, large_one = of(("llama-3.2-1b", "llama-3.1-8b"), ("small-64", "small-128"))
    most, last = of((150, 2900), (9, 300))  # sequences, and where they are: each has blocks of its own
    places, counts = of((257, between, 1030, last), (last,)), of((1, 6, 16, 33, 64, 65, 130), (1, 6, 33))
    prompt = of(256, 70)
    kinds = ((small_one, "BF16", 0, "BF16"), of((small_one, "BF16", 1, "BF16"), (large_one, "BF16", 1, "F8_E4M3")),
             (small_one, "BF16", 1, "F8_E4M3"), (small_one, "Q4_K", 0, "Q8_0"), (small_one, "F16", 0, "F16"),
             (large_one, "BF16", 0, "BF16"))
    for name, dtype, fp8, kv in mine(kinds):
        wrong, room = {}, of(64 if name == large_one else most, most) * (last + 32)  # others are on the card too
        for det in (1, 0):
            handle = bench_model(lib, name, dtype, fp8, kv, det, 256, 256, room)
            if not handle:
                break

            def rows(n, at):
                out = no_logits(lib, handle, n)
                if lib.quern_bench_rows(handle, n, at, out.ctypes.data) != 0:
                    raise step_failed(lib, handle, f"{n} rows at {at}")
                return out

            def first_of(n_seqs, at, resident=1):
                out = no_logits(lib, handle, n_seqs)
                if lib.quern_bench_logits(handle, n_seqs, at, resident, out.ctypes.data) != 0:
                    raise step_failed(lib, handle, f"{n_seqs} sequences at {at}")
                return out[0]

            def differ(at):
                whole = rows(prompt, at)  # then the same rows in pieces, which write the same keys again
                for n in counts:
                    yield not np.array_equal(rows(n, at - prompt + n), whole[:n])
                if not small:
                    yield not np.array_equal(rows(prompt, at), whole)
                alone = first_of(1, at, 0)
                for n in of((1, 2, 9, 40, 64, most), (2, most)):  # one and two: as one kernel, where there is one
                    if n * (at + 32) <= room:
                        yield not np.array_equal(first_of(n, at), alone)

            enough = any if small and not det else sum  # one difference is a twin
            wrong[det] = sum(enough(differ(at)) for at in places)
            lib.quern_bench_close(handle)
        ok = wrong.get(1) == 0 and wrong.get(0, 0) > 0
        if not ok:
            failures.append(f"deterministic {name} {dtype}")
        print(f"deterministic {name} {dtype}{' as F8' if fp8 else ''}, {kv} cache: {wrong.get(1)} differ, "
              f"without it {wrong.get(0)}  {'ok' if ok else 'MISMATCH'}", flush=True)


def check_resident(seed):
    """Ops recorded as steps of one or two rows, so as one kernel; then whole steps of up to 32 rows against the same op
    by op, in real shapes, where the twin is another position's."""
    ops.record(True)
    shapes = of(((272, 768), (96, 4096), (5000, 2304)), ((272, 768),))
    for dtype, bound in mine(PRODUCTS.items()):
        group(f"resident product {dtype}", bound, [lambda r=r, s=s: ops.product("cuda", dtype, r, *s, seed + r)
                                                   for r in of((1, 2), (1,)) for s in shapes])
        group(f"resident feed-forward {dtype}", FEED[dtype], [
            lambda r=r, n=n: ops.feed_forward("cuda", dtype, r, n, 768, seed + r)
            for r in of((1, 2), (2,)) for n in of((256, 1024), (256,))])
    if mine(["as F8"]):
        n_out, n_in = of((1024, 1536), (272, 768))
        group("resident product BF16 as F8", F8, [
            lambda r=r: ops.product("cuda", "BF16", r, n_out, n_in, seed + r, fp8=True) for r in (1, 2)])
    shapes = (shape(8, 2, 64), shape(8, 1, 128, block=32), shape(8, 2, 128, window=100, cap=30.0),
              shape(7, 1, 64, window=16, rope_dims=32), shape(8, 8, 128, rope=ops.ROPE_PAIRS))
    for kv in mine(("F16", "BF16")):
        cases = []
        for i, s in enumerate(of(shapes, shapes[1:4])):
            for before in of(([0], [15, 16], [1500, 127], [257]), ([15], [30, 0])):
                cases.append(lambda s=s, b=before, n=seed + 10 * i: (
                    ops.attention(["cuda"], "F16", kv, dict(s), b, [1] * len(b), n)[0],
                    ops.attention(["cpu-ref"], "F16", kv, dict(s), b, [1] * len(b), n)[0]))
        group(f"resident attention, {kv} cache, {len(cases)} cases", KV[kv], cases)
    many = ([15, 16, 30], [1500, 127, 0, 257, 64], [13 * i for i in range(12)], [700 - 20 * i for i in range(30)])
    for i, s in enumerate(mine(of(shapes, shapes[1:4]))):
        group(f"resident attention, more rows, shape {i}", KV["BF16"], [
            lambda s=s, b=b, n=seed + i: (ops.attention(["cuda"], "BF16", "BF16", dict(s), b, [1] * len(b), n)[0],
                                          ops.attention(["cpu-ref"], "BF16", "BF16", dict(s), b, [1] * len(b), n)[0])
            for b in of(many, many[2:3])])
    ops.record(False)
    lib = bench_library()
    lib.quern_bench_seed(seed & 0xffffffff)
    for name, dtype, fp8, kv in mine(of(RESIDENT, RESIDENT_SMALL)):
        handle = bench_model(lib, name, dtype, fp8, kv, 0, 64, 32, 20000)
        if not handle:
            continue

        def logits(n_seqs, at, resident):
            out = [no_logits(lib, handle, n_seqs) for _ in range(2)]
            for i in range(2):  # recorded, then replayed
                if lib.quern_bench_logits(handle, n_seqs, at, resident, out[i].ctypes.data) != 0:
                    raise step_failed(lib, handle, f"{n_seqs} sequences at {at}")
            if not np.array_equal(out[0], out[1]):
                failures.append(f"{name} {dtype}: a replay differs")
                print(failures[-1], flush=True)
            return out[1]

        worst, twin = 0.0, float("inf")
        # from three on another kernel; (7, 2100) replays what (7, 700) recorded, with contexts in parts
        few = ((1, 0), (1, 700), (2, 2100))
        more = ((3, 2500), (7, 700), (7, 2100), (13, 40), (16, 513), (20, 310), (32, 310))
        seen = set()
        for n_seqs, at in of(few + more, ((1, 300), (2, 40), (3, 40), (12, 70), (20, 20), (32, 20))):
            before = lib.quern_bench_several_launches()
            got, launches = logits(n_seqs, at, 1), lib.quern_bench_several_launches() - before
            if n_seqs > 2 and n_seqs not in seen and launches == 0 and not fp8 and kv == "BF16":
                failures.append(f"{name} {dtype}: {n_seqs} rows were made by other kernels")
                print(failures[-1], flush=True)
            seen.add(n_seqs)
            want = logits(n_seqs, at, 0)
            worst = max(worst, *(ops.distance(g[None], w[None]) for g, w in zip(got, want)))
            twin = min(twin, ops.distance(logits(n_seqs, at + 1, 0), want))
        lib.quern_bench_close(handle)
        verdict(f"resident {name} {dtype}{' as F8' if fp8 else ''}, {kv} cache", worst, STEP * LAYERS[name] ** 0.5,
                twin)


def check_places(seed):
    """More recorded steps than there are places for: one of up to 32 rows that is recorded where another was gives what
    it gave at first, to the bit; the twin is another position's."""
    lib, random = bench_library(), np.random.default_rng(seed)
    lib.quern_bench_seed(seed & 0xffffffff)
    counts = [*range(1, 17), *range(24, 65, 8), *range(80, 513, 16)]
    for name in mine(of(("small-64", "small-128"), ())):
        handle = bench_model(lib, name, "BF16", 0, "BF16", 0, 512, 512, 512 * 128)
        if not handle:
            continue

        def logits(n_seqs, resident, at=70):
            out = no_logits(lib, handle, n_seqs)
            if lib.quern_bench_logits(handle, n_seqs, at, resident, out.ctypes.data) != 0:
                raise step_failed(lib, handle, f"{n_seqs} sequences at {at}")
            return out

        steps = [(n, resident) for n in counts for resident in (0, 1)]
        first = {s: logits(*s) for s in steps if s[1] and s[0] <= 32}
        before, wrong = lib.quern_bench_several_launches(), 0
        for i in np.concatenate([random.permutation(len(steps)) for _ in range(3)]):
            got = logits(*steps[i])
            wrong += steps[i] in first and not np.array_equal(got, first[steps[i]])
        again = lib.quern_bench_several_launches() - before
        twins = sum(np.array_equal(logits(*s, at=71), want) for s, want in first.items())
        lib.quern_bench_close(handle)
        ok = wrong == 0 and twins == 0 and again > 0
        if not ok:
            failures.append(f"places {name}")
        print(f"{len(steps)} recorded steps of {name} by turns, {again} of 3 to 32 rows recorded again: {wrong} differ,"
              f" twins alike {twins}  {'ok' if ok else 'MISMATCH'}", flush=True)


CHOSEN_ROWS = [10, 21, 50, 100, 130, 200, 272, 300, 544, 700]


def check_chosen(seed):
    """Products by other algorithms than the library's first: the last of those that it names, so that there is one for
    every shape, at rows between those that were looked at."""
    some, chosen_rows, shapes = 0, of(CHOSEN_ROWS, [50]), of(((1024, 768), (272, 2048)), ((272, 2048),))
    with tempfile.TemporaryDirectory() as scratch:
        ops.choose(scratch, True)
        for dtype in ("F32", "F16", "BF16", "Q8_0", "Q4_K"):
            rows = chosen_rows if small or dtype in ("F16", "BF16") else chosen_rows[3:8]
            group(f"chosen product {dtype}", PRODUCTS[dtype], [
                lambda r=r, s=s: ops.product("cuda", dtype, r, *s, seed + r) for r in rows for s in shapes])
            some += ops.chosen() > 0
            group(f"chosen feed-forward {dtype}", FEED[dtype], [
                lambda r=r: ops.feed_forward("cuda", dtype, r, 256, 768, seed + r) for r in rows])
            some += ops.chosen() > 0
        group("chosen product BF16 as F8", F8, [
            lambda r=r: ops.product("cuda", "BF16", r, 1024, 1536, seed + r, fp8=True) for r in chosen_rows])
        some += ops.chosen() > 0
        group("chosen feed-forward BF16 as F8", 3 * F8, [
            lambda r=r: ops.feed_forward("cuda", "BF16", r, 512, 1024, seed + r, fp8=True) for r in chosen_rows])
        some += ops.chosen() > 0
        ops.choose(None, False)
    if some < 8:
        failures.append(f"chosen: only {some} of 12 groups had another algorithm")
        print(failures[-1], flush=True)


def check_kept(_seed):
    """Files of chosen algorithms: a second start reads what the first has measured and gives the same bits, and a
    damaged file is as good as none."""
    for fp8 in of((0, 1), ()):  # which is about the host
        check_choices_kept(fp8)


def check_choices_kept(fp8):
    lib = bench_library()

    def start():
        """(products, measured, chosen, was read), seconds and the logits of 100 rows."""
        made = (ctypes.c_uint32 * 4)()
        handle = bench_model(lib, "llama-3.2-1b", "BF16", fp8, "BF16", 0, 1024, 256, 100000)
        if not handle:
            raise RuntimeError(failures[-1])
        seconds = lib.quern_bench_choices(handle, made)
        out = no_logits(lib, handle, 100)
        if lib.quern_bench_logits(handle, 100, 300, 0, out.ctypes.data) != 0:
            raise step_failed(lib, handle, "100 sequences at 300")
        lib.quern_bench_close(handle)
        return list(made), seconds, out

    def show(what, made, seconds, ok):
        if not ok:
            failures.append(f"choices, {what}")
        print(f"choices{' as F8' if fp8 else ''}, {what}: {made[0]} products, {made[1]} measured, {made[2]} chosen, "
              f"{'read' if made[3] else 'not read'}, {seconds:.2f} s  {'ok' if ok else 'MISMATCH'}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["QUERN_CHOICES"] = scratch
        first, seconds, want = start()
        files = list(pathlib.Path(scratch).iterdir())
        show("first start", first, seconds, first[1] > 0 and not first[3] and len(files) == 1 and seconds < 1.5)
        made, seconds, got = start()
        show("second start", made, seconds, made[1] == 0 and made[3] == 1 and made[2] == first[2] and seconds < 0.3
             and np.array_equal(got, want))
        whole = files[0].read_bytes()
        files[0].write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        made, seconds, got = start()
        show("damaged file", made, seconds, made[1] > 0 and not made[3] and len(files[0].read_bytes()) > 0)
        files[0].write_bytes(whole)
        made, seconds, got = start()
        show("its own again", made, seconds, made[3] == 1 and np.array_equal(got, want))
        os.environ["QUERN_CHOICES"] = str(files[0])  # no folder: nothing is measured, nothing is kept
        made, seconds, got = start()
        show("no folder", made, seconds, made[1] == 0 and made[2] == 0 and not made[3])
        far = ops.distance(got, want)
        os.environ["QUERN_CHOICES"] = ""
    # a whole step; activations that are made e4m3 fall to one side or the other
    if not far < (0.3 if fp8 else STEP * LAYERS["llama-3.2-1b"] ** 0.5):
        failures.append(f"choices{' as F8' if fp8 else ''}: logits are {far:.1e} apart")
        print(failures[-1], flush=True)


def check_requests(seed):
    """Tokens of real requests: alone, together, in chunks, behind prefixes, preempted, guessed; greedy or drawn."""
    kinds = of((("llama-3.1-8b", "BF16", "BF16", 0), ("llama-3.2-1b", "BF16", "F8_E4M3", 1)),
               (("small-64", "BF16", "BF16", 1),))
    n, unit, n_out, chunk = of((64, 96, 36, 96), (8, 32, 8, 8))
    for name, dtype, kv, drawn in mine(kinds):
        suite = requests.Suite(n, unit, n_out, chunk, seed, device="cuda", shape=name, weights=dtype, kv=kv, fp8=0,
                               deterministic=1)
        title = f"requests {name} {dtype}, {kv} cache{', drawn' if drawn else ''}"
        try:
            for what, differ, counts, ok in suite.run(drawn=drawn):
                if not ok:
                    failures.append(f"{title}, {what}")
                print(f"{title}, {what}: {differ} of {n} differ, {requests.show(counts)}, {counts.seconds:.1f} s  "
                      f"{'ok' if ok else 'MISMATCH'}", flush=True)
        except RuntimeError as e:
            failures.append(f"{title}: {e}")
            print(failures[-1], flush=True)


CHECKS = {"products": check_products, "whole": check_whole, "chosen": check_chosen, "kept": check_kept,
          "slim": check_slim, "flow": check_flow, "even": check_even,
          "feed": check_feed_forward, "attention": check_attention, "wide": check_wide,
          "architectures": check_architectures, "models": check_models, "checkpoint": check_checkpoint,
          "sample": check_sample, "verify": check_verify, "deterministic": check_deterministic,
          "resident": check_resident, "places": check_places, "requests": check_requests}
# processes that share a group where several run at a time, the longest first; the others are one
PARTS = {"requests": 2, "wide": 3, "slim": 2, "attention": 5, "deterministic": 4, "resident": 4, "even": 2, "feed": 5,
         "products": 2}


def sleep_in_waits():
    """The process sleeps while it waits for the card, which leaves the cores to others and to the sanitizer."""
    driver, sleeps = ctypes.CDLL("libcuda.so.1"), 4  # CU_CTX_SCHED_BLOCKING_SYNC
    if driver.cuInit(0) == 0:
        driver.cuDevicePrimaryCtxSetFlags_v2(0, sleeps)


def run_apart(args):
    """All groups in processes of their own, so many at a time; what a part says comes when it has ended."""
    failed = []

    def run(name, share):
        command = [sys.executable, __file__, "--seed", str(args.seed), "--only", name, "--part", share]
        return subprocess.run(command + ["--small"] * args.small, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})

    def show(name, share, done):
        print(done.stdout, end="", flush=True)
        if done.returncode != 0:
            failed.append(f"{name} {share} ended with {done.returncode}")

    alone = ("kept", "1/1")  # how long it takes is what it checks
    show(*alone, run(*alone))
    groups = PARTS | {name: 1 for name in CHECKS if name not in PARTS and name != alone[0]}
    work = [(name, f"{i + 1}/{n}") for name, n in groups.items() for i in range(n)]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        ends = {pool.submit(run, *of): of for of in work}
        for end in concurrent.futures.as_completed(ends):
            show(*ends[end], end.result())
    print(f"{len(failed)} of {1 + len(work)} parts failed" + "".join(f"\n  {f}" for f in failed))
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th thing from the I-th on")
    parser.add_argument("--small", action="store_true", help="few and small shapes, for the sanitizers")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="all groups, N processes at a time")
    args = parser.parse_args()
    global small, part, parts
    small, (part, parts) = args.small, (int(i) for i in args.part.split("/"))
    if not 1 <= part <= parts:
        parser.error(f"--part {args.part}: I is 1 to N")
    part -= 1
    if args.jobs > 1:
        if args.only or parts > 1:
            parser.error("--jobs has all groups, in parts of its own")
        return run_apart(args)
    if small:
        sleep_in_waits()
    os.environ["QUERN_CHOICES"] = ""  # the library's own, but where choices are what is checked
    print(f"seed {args.seed}")
    for name, check in CHECKS.items():
        if args.only in (None, name):
            began = time.perf_counter()
            check(args.seed)
            print(f"-- {name}: {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{len(failures)} mismatches" + "".join(f"\n  {f}" for f in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
