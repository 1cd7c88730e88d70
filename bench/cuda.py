"""Parity and speed on a CUDA card, against the card's own limits measured in the same run, in under ten minutes beside
16 cores. Weights are random, in real shapes, and the KV cache is filled with random numbers. A row of steps, fixed and
load that has a bar keeps the card busy for 15 seconds, another for 1; its figure is the median of short runs, each of
which is the median of its steps, of load their mean. Decoding is timed as the engine does it: from one step's chosen
ids in host memory to the next one's, each launched while the one before runs; by turns with it, and in brackets, a step
that is waited for, from the batch's arrays in host memory to the ids back there. Prompts are the latter.

usage: bench/cuda [--only check,serve,steps,fixed,verify,engine,load,start] [--rows WORD;...] [--quick] [--products]
       bench/cuda --row IN/OUT --full [--requests N]

  check    bench/device_check.py: every op against float64, whole models against the CPU, and greedy tokens of 64
           requests through the engine, the same one at a time, batched, in chunks, behind prefixes that were found,
           preempted and guessed; a process a core
  serve    bench/device_serve.py: the program from outside, and a card that fails
  steps    decoding and prompts in all weight types; --rows: only those whose name holds one of these words
  fixed    the same with --deterministic, for three of them
  verify   a step that verifies guesses over one that does not; then bench/speculative
  engine   the whole loop at 32, 128 and 256 streams, and what of its time is not the card's
  load     a server at full load, in the shapes of TensorRT-LLM's table: steps of a mix that stays the same
  start    a server from its exec, with a folder in memory, to the first token of its first answer

Products choose among the library's algorithms as a server's do: measured when a model is first opened, and kept in a
folder of this run, or in that of QUERN_CHOICES; with QUERN_CHOICES= the library's first are taken.

--row with --full: one row of that table from an empty start to the last answer, every request a real one through the
engine, four for each place unless --requests says otherwise; output tokens over all of the time.
"""
import argparse
import ctypes
import http.client
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "py"))
import device_serve  # noqa: E402
from quern_model import LIBRARY  # noqa: E402
from quern_requests import Model  # noqa: E402

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
    ("decode 256, fp8, F8 cache", "BF16", 1, "F8_E4M3", 256, 1, 512, None),
    ("decode 16 at 32k, F8 cache", "BF16", 1, "F8_E4M3", 16, 1, 32000, None),
    ("prefill 2048, F8 cache", "BF16", 1, "F8_E4M3", 1, 2048, 2047, None),
    ("decode 1, Q4_0", "Q4_0", 0, "F16", 1, 1, 512, 550),
    ("decode 32, Q4_0", "Q4_0", 0, "F16", 32, 1, 512, None),
    ("prefill 2048, Q4_0", "Q4_0", 0, "F16", 1, 2048, 2047, None),
    ("decode 1, Q4_K", "Q4_K", 0, "F16", 1, 1, 512, 550),
    ("decode 1, Q6_K", "Q6_K", 0, "F16", 1, 1, 512, None),
    ("decode 1, Q8_0", "Q8_0", 0, "F16", 1, 1, 512, None),
]

# input and output tokens, TensorRT-LLM's output tok/s with F8 weights and an F8 cache
LOADS = [(128, 128, 27911), (128, 2048, 26221), (500, 2000, 20770), (1000, 1000, 17744), (2048, 128, 3538),
         (2048, 2048, 12194), (5000, 500, 3902), (20000, 2000, 1804)]
LOAD_TOKENS = 1200000  # of the KV cache: 79 GB in F8
LOAD_ROWS, LOAD_STREAMS = 8192, 1024  # of a step, at most
FIXED = ("decode 1, bf16", "decode 128, bf16", "prefill 2048, bf16")
ROW_S, OTHER_S = 15, 1  # seconds that a row is timed: one with a bar, another
SECTIONS = ["check", "serve", "steps", "fixed", "verify", "engine", "load", "start"]
summary, broken = [], []  # lines; what could not be measured


def note(what, bar, got, ok):
    summary.append(f"{what:44} bar {bar:12} {got:24} {'' if ok is None else 'ok' if ok else 'MISS'}")


def fail(what):
    broken.append(what)
    summary.append(f"{what:61} FAILED")


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
    lib.quern_bench_ahead.argtypes = [ctypes.c_void_p] + [ctypes.c_uint32] * 5
    lib.quern_bench_ahead.restype = ctypes.c_double
    lib.quern_bench_verify.argtypes = [ctypes.c_void_p] + [ctypes.c_uint32] * 4
    lib.quern_bench_verify.restype = ctypes.c_double
    lib.quern_bench_mixed.argtypes = [ctypes.c_void_p] + [ctypes.c_uint32] * 4
    lib.quern_bench_mixed.restype = ctypes.c_double
    lib.quern_bench_choices.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.quern_bench_choices.restype = ctypes.c_double
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


def open_bench(lib, kind, det, rows_max, seqs_max, tokens):
    """A model of (weights, fp8, cache), or None."""
    text = ctypes.create_string_buffer(1024)
    handle = lib.quern_bench_open(SHAPE.encode(), kind[0].encode(), kind[2].encode(), kind[1], det, rows_max, seqs_max,
                                  40000, tokens, text, len(text))
    if not handle:
        print(f"{kind}: {text.value.decode()}", flush=True)
        fail(f"a model of {kind}")
        return handle
    made = (ctypes.c_uint32 * 4)()
    seconds = lib.quern_bench_choices(handle, made)
    if made[0] > 0:
        how = "read" if made[3] else f"{made[1]} measured"
        print(f"{kind}: {made[0]} products, {how} in {seconds:.2f} s, {made[2]} chosen", flush=True)
    return handle


def by_turns(seconds, *measures):
    """The median of each, over so many seconds in all, each once at least. A figure that is none comes at once."""
    figures, end = [[m()] for m in measures], time.monotonic() + seconds
    while min(min(f) for f in figures) > 0 and time.monotonic() < end:
        for mine, measure in zip(figures, measures):
            mine.append(measure())
    return [statistics.median(f) if min(f) > 0 else min(f) for f in figures]


def run_tests(lib, card, tests, quick, det):
    table = []
    for kind in dict.fromkeys((t[1], t[2], t[3]) for t in tests):
        mine = [t for t in tests if (t[1], t[2], t[3]) == kind]
        tokens = max(t[4] * (t[6] + 1400) for t in mine)
        handle = open_bench(lib, kind, det, 2048, max(t[4] for t in mine), tokens)
        if not handle:
            continue
        weight_bytes = lib.quern_bench_weight_bytes(handle) * (0.5 if kind[1] else 1.0)
        weight_bytes -= weight_bytes * VOCAB * HIDDEN / (ACTIVE + VOCAB * HIDDEN)  # a step reads few rows of embeddings
        for test in mine:
            name, _, fp8, kv, seqs, rows, at, bar = test
            stagger, is_far = 128 if seqs > 1 else 0, at > 20000
            measures = [partial(lib.quern_bench_step, handle, seqs, rows, at, stagger, 60 if rows == 1 else 6, 5)]
            if rows == 1:
                measures.append(partial(lib.quern_bench_ahead, handle, seqs, at, stagger, 60, 5))
            if is_far:  # the same step without a context is what of it is not the cache's
                measures.append(partial(lib.quern_bench_ahead, handle, seqs, 64, 0, 60, 5))
            got = by_turns(0 if quick else ROW_S if bar or is_far and not fp8 else OTHER_S, *measures)
            if min(got) <= 0:
                table.append((name, None))
                print_row(table[-1])
                fail(name)
                break
            waited, seconds, rest = got[0], got[min(1, len(got) - 1)], got[2] if is_far else None
            rate = seqs * rows / seconds
            least = floor_of(test, weight_bytes, card)
            kv_share = None
            if rest is not None:
                moved = seqs * KV_BYTES[kv] * 2 * KV_HEADS * HEAD * LAYERS * (at + 1)
                kv_share = moved / (seconds - rest) / card[0]
            table.append((name, rate, seconds, least / seconds, bar, kv_share, waited))
            print_row(table[-1])
            if kv_share:
                note(f"{name}: the cache is read at", "80%", f"{100 * kv_share * card[0] / 4.5e12:.0f}% of 4.5 TB/s",
                     kv_share * card[0] >= 0.8 * 4.5e12)
            elif not det:
                note(name, f"{bar} tok/s" if bar else "-", f"{rate:.0f}, {100 * least / seconds:.0f}% of limit",
                     rate >= bar if bar else None)
        lib.quern_bench_close(handle)
    return table


def print_row(row):
    if row[1] is None:
        print(f"{row[0]:26} FAILED", flush=True)
        return
    name, rate, seconds, share, bar, kv_share, waited = row
    mark = "" if bar is None else "ok" if rate >= bar else "MISS"
    more = f"  KV read at {100 * kv_share:.0f}% of the limit" if kv_share else ""
    beside = f" ({1e3 * waited:.3f} waited for)" if waited != seconds else ""
    print(f"{name:26} {rate:9.0f} tok/s {1e3 * seconds:8.3f} ms{beside} "
          f"{100 * share:4.0f}% of the limit  {'bar ' + str(bar) if bar else '':10} {mark}{more}", flush=True)


def run_products(lib, card):
    """Microseconds of a product by each way of making it, and the share of the limit; what few_rows_of is made from."""
    counts = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    cells = [(way, name, rows) for way, name in ((1, "skinny"), (2, "slim"), (3, "library"), (4, "flow"), (5, "even"))
             for rows in counts if not (way == 1 and rows > 16) and not (way == 3 and rows < 4)
             and not (way == 5 and rows > 32)]
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
            for name in ("skinny", "slim", "library", "flow", "even"):
                line = f"{kind + (' F8' if fp8 else ''):8}{n_out if name == 'skinny' else '':>6}{name:>8}"
                for n in counts:
                    least = max(n_out * n_in * width / card[0], 2 * n * n_out * n_in / (card[2] if fp8 else card[1]))
                    t = took.get((name, n))
                    line += f"{t:7.1f} {100 * least / t * 1e6:3.0f}%" if t else " " * 12
                print(line, flush=True)


def run_fixed(lib, card, quick, plain):
    """What --deterministic costs."""
    rates = {t[0]: t[1] for t in plain if t[1]}
    tests = [t for t in TESTS if t[0] in FIXED]
    if not all(name in rates for name in FIXED):
        rates = {t[0]: t[1] for t in run_tests(lib, card, tests, quick, 0)}
    for name, rate, *_ in run_tests(lib, card, tests, quick, 1):
        if rate and rates.get(name):
            cost = 1 - rate / rates[name]
            note(f"cost of --deterministic: {name}", "15%", f"{100 * cost:.0f}%", cost <= 0.15)


def run_verify(lib, _card):
    """Steps of 1 to 9 rows of one sequence that all want logits, then the whole with a proposer that is right 80%."""
    handle = open_bench(lib, ("BF16", 0, "BF16"), 0, 64, 8, 20000)
    if not handle:
        return
    ms = {n: 1e3 * lib.quern_bench_verify(handle, 1, n, 512, 60) for n in (1, 2, 4, 6, 9, 16)}
    lib.quern_bench_close(handle)
    print("rows of one sequence: " + ", ".join(f"{n}: {t:.2f} ms" for n, t in ms.items()), flush=True)
    expected = sum(0.8 ** i for i in range(6))
    note("6 rows over one row, bf16", f"{expected / 3:.2f}x", f"{ms[6] / ms[1]:.2f}x", ms[6] / ms[1] <= expected / 3)
    got = speculative(device="cuda", shape="llama-3.1-8b", weights="bf16", text="sure", method="coin", accept=0.8, k=5,
                      always=1, tokens=512, rounds=3)
    if got:
        note("guesses right 80%, k = 5, one stream, bf16", "3.0x",
             f"{got['off']:.0f} -> {got['on']:.0f} tok/s, {got['ratio']:.2f}x", got["ratio"] >= 3.0)


def speculative(**options):
    program = pathlib.Path(os.environ["QUERN_TESTING_LIB"]).resolve().parent / "quern_speculative"
    done = subprocess.run([program, *(f"{k}={v}" for k, v in options.items())], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        print(f"{program.name}: {done.stderr.strip()}", flush=True)
        fail(f"{program.name} of {options.get('streams', 1)} streams")
        return None
    return json.loads(done.stdout.splitlines()[-1])


def run_engine(lib, _card):
    """The loop's tokens a second against the same steps, contexts of 512 to 607, without a loop around them: before and
    behind it, since a card that has become warm is slower."""
    handle = open_bench(lib, ("BF16", 0, "BF16"), 0, 2048, 256, 256 * 700)
    if not handle:
        return
    for n in (32, 128, 256):
        before = lib.quern_bench_ahead(handle, n, 512, 0, 93, 3)
        got = speculative(device="cuda", shape="llama-3.1-8b", weights="bf16", text="random", streams=n, tokens=96,
                          rounds=1, off=1)
        behind = lib.quern_bench_ahead(handle, n, 512, 0, 93, 3)
        if min(before, behind) <= 0:
            fail(f"steps of {n} streams")
        elif got:
            gap = 1 - got["off"] * (before + behind) / 2 / n
            note(f"{n} streams: the engine's share of a step", "3%", f"{100 * gap:.1f}%, {got['off']:.0f} tok/s",
                 gap < 0.03)
    lib.quern_bench_close(handle)


def run_load(lib, quick):
    handle = open_bench(lib, ("BF16", 1, "F8_E4M3"), 0, LOAD_ROWS, LOAD_STREAMS + 64, LOAD_TOKENS)
    if not handle:
        return
    for n_in, n_out, bar in LOADS:
        streams = min(LOAD_STREAMS, LOAD_TOKENS * 9 // 10 // (n_in + n_out), (LOAD_ROWS - 64) * n_out // (n_in + n_out))
        rate, = by_turns(0 if quick else ROW_S, partial(lib.quern_bench_mixed, handle, streams, n_in, n_out, 15))
        if rate <= 0:
            fail(f"load {n_in}/{n_out}")
            continue
        print(f"load {n_in}/{n_out}, {streams} streams: {rate:.0f} tok/s", flush=True)
        note(f"load {n_in}/{n_out}, F8, F8 cache, {streams} streams", f"{0.8 * bar:.0f} tok/s",
             f"{rate:.0f}, {rate / bar:.2f}x", rate >= 0.8 * bar)
    lib.quern_bench_close(handle)


def run_row(row, n_requests, **other):
    """One row of the table, honestly."""
    import numpy as np
    n_in, n_out = map(int, row.split("/"))
    bar = next((bar for a, b, bar in LOADS if (a, b) == (n_in, n_out)), None)
    streams = min(LOAD_STREAMS, LOAD_TOKENS * 98 // 100 // (n_in + n_out))
    n_requests = n_requests or 4 * streams
    sizes = dict(streams=streams, rows=LOAD_ROWS, blocks=LOAD_TOKENS // 32)
    kind = dict(device="cuda", shape=SHAPE, weights="BF16", kv="F8_E4M3", fp8=1) | other
    try:
        with Model(block_tokens=32, context=n_in + n_out, **kind, **sizes) as model:
            prompts = np.random.default_rng(1).integers(model.vocab, size=(n_requests, n_in))
            _, got = model.run(prompts, [n_out] * n_requests, **sizes)
    except RuntimeError as e:
        print(f"row {row}: {e}", flush=True)
        return 1
    rate, steady = got.output_tokens / got.seconds, got.steady_tokens / max(got.steady_s, 1e-9)
    over = f", {rate / bar:.2f}x of TensorRT-LLM's {bar}" if bar else ""
    print(f"row {row}, F8, F8 cache: {n_requests} requests, {streams} at a time, {got.seconds:.1f} s, "
          f"{rate:.0f} output tok/s{over}; {(got.output_tokens + got.prompt_rows) / got.seconds:.0f} tok/s with "
          f"prompts; {steady:.0f} in the middle half; {got.steps} steps, {got.swaps + got.recomputations} preempted",
          flush=True)
    return 0


def write_model(folder):
    """Llama-3.1-8B in BF16: the same random megabytes again and again."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
              "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
              "rope_theta": 500000.0, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
              "tie_word_embeddings": False, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):  # of fewer ids than the model has
        shutil.copy(ROOT / "tests/data/tiny/tiny-1m-hf" / name, folder)
    q, kv, layer = HEADS * HEAD, KV_HEADS * HEAD, "model.layers.{}."
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN),
              "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        names = {"self_attn.q_proj": (q, HIDDEN), "self_attn.k_proj": (kv, HIDDEN), "self_attn.v_proj": (kv, HIDDEN),
                 "self_attn.o_proj": (HIDDEN, q), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
                 "mlp.down_proj": (HIDDEN, FFN), "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
        shapes.update({layer.format(i) + k + ".weight": v for k, v in names.items()})
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    import numpy as np
    block = (np.random.default_rng(1).integers(0, 1 << 16, 32 << 20, dtype=np.uint16) & 0x80ff | 0x3c00).tobytes()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for left in range(at, 0, -len(block)):
            f.write(block[:left])


def start_to_token(folder, home):
    """Seconds from exec to the answer of one token; negative on failure."""
    began = time.monotonic()
    try:
        with device_serve.start("cuda", model=folder, env={"HOME": str(home)}) as q:
            status, answer = q.post("/v1/completions", prompt="The king", max_tokens=1, temperature=0)
            seconds = time.monotonic() - began
            print(next(line for line in q.lines if "ready in" in line).strip(), flush=True)
    except (AssertionError, OSError, http.client.HTTPException) as e:
        status, answer = 0, e
    if status != 200:
        print(f"start: {answer}", flush=True)
    return seconds if status == 200 else -1.0


def run_start(_lib, _card):
    if not os.access("/dev/shm", os.W_OK) or shutil.disk_usage("/dev/shm").free < 20 << 30:
        note("start to first token, 8B bf16", "5 s", "no room in /dev/shm", None)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch, tempfile.TemporaryDirectory() as home:
        write_model(pathlib.Path(scratch))
        first, again = (start_to_token(scratch, home) for _ in range(2))  # the first time measures products
    if min(first, again) <= 0:
        fail("start to first token")
        return
    note("start to first token, 8B bf16", "5 s", f"{again:.2f} s", again < 5)
    note("  the very first, which measures products", "5 s", f"{first:.2f} s", first < 5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--rows", help="only steps whose name holds one of these words")
    parser.add_argument("--quick", action="store_true", help="a row is one short run")
    parser.add_argument("--products", action="store_true", help="single products by each way of making them, no more")
    parser.add_argument("--row", metavar="IN/OUT", help="one row of TensorRT-LLM's table; with --full, and no more")
    parser.add_argument("--full", action="store_true", help="from an empty start to the last answer")
    parser.add_argument("--requests", type=int, default=0, help="of --row; four for each place otherwise")
    parser.add_argument("--no-wide", action="store_true", help="prompts' attention without the warpgroup's matrix unit")
    parser.add_argument("--no-resident", action="store_true", help="steps of up to 32 rows op by op")
    args = parser.parse_args()
    only, code, plain, began = args.only.split(","), 0, [], time.time()
    lib = library()
    scratch = tempfile.TemporaryDirectory()
    os.environ.setdefault("QUERN_CHOICES", scratch.name)
    lib.quern_bench_resident(int(not args.no_resident))
    lib.quern_op_wide(int(not args.no_wide))
    if args.row:
        if not args.full:
            parser.error("--row needs --full; --only load has the short form of all rows")
        return run_row(args.row, args.requests)
    if args.products:
        run_products(lib, limits(lib))
        return 0
    scripts = {"check": ("parity", "device_check.py", "--jobs", str(os.cpu_count())),
               "serve": ("a server from outside", "device_serve.py")}
    for section in (s for s in scripts if s in only):
        what, script, *options = scripts[section]
        start, ended = time.time(), subprocess.run([sys.executable, ROOT / "bench" / script, *options],
                                                   check=False).returncode
        print(f"-- {section}: {time.time() - start:.0f} s", flush=True)
        note(what, "0 mismatches", "see above" if ended else "ok", not ended)
        code = code or ended
    card = limits(lib)
    for section in (s for s in only if s not in scripts):
        start = time.time()
        if section == "steps":
            tests = [t for t in TESTS if not args.rows or any(w in t[0] for w in args.rows.split(";"))]
            plain = run_tests(lib, card, tests, args.quick, 0)
        elif section == "fixed":
            run_fixed(lib, card, args.quick, plain)
        elif section == "load":
            run_load(lib, args.quick)
        else:
            {"verify": run_verify, "engine": run_engine, "start": run_start}[section](lib, card)
        print(f"-- {section}: {time.time() - start:.0f} s", flush=True)
    print(f"\n{time.time() - began:.0f} s in all")
    print("\n".join(summary))
    return 1 if broken else code


if __name__ == "__main__":
    sys.exit(main())
