"""quern against llama.cpp on this machine's processor: the same files, the same threads, one after the other in turn.

The peer is the package llama-cpp-python, installed into build/peers/llama the first time (it compiles, which takes
minutes; QUERN_PEER_PYTHON names a Python that has it). Model files: the default model (135M) in several types, made
from it by the peer's own quantiser, and a shape of 0.6B with made-up weights (bench/cpu_model.py); both are kept in
build/bench. Each program times its own steps, and the best of its runs counts; loading, memory and a whole answer are
timed from outside. What no longer fits into the time is left out, and said.

  bench/cpu            every row of the table: at most 15 minutes, made files and the peer being there
  bench/cpu --quick    three types of the default model, one of 0.6B, everything timed from outside: at most 5 minutes
  bench/cpu --sizes 0.6B --types Q4_0,F16 --tests tg32x16 --rounds 3    some rows, each program in turn three times
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
QUERN = pathlib.Path(os.environ.get("QUERN_BIN", ROOT / "build/release/quern"))
PEER = ROOT / "build/peers/llama"
PEER_SCRIPT = ROOT / "bench/cpu_peer.py"
MADE_SCRIPT = ROOT / "bench/cpu_model.py"
FILES = ROOT / "build/bench"
PACKAGE = "llama-cpp-python==0.3.36"
TYPES = ["Q4_1", "Q8_0", "Q4_0", "Q4_K_M", "F16"]  # the most important first: time may run out
PREFILL, DECODE, DEEP = ["pp512", "pp2048"], ["tg128", "tg32x16"], ["tg32@4096"]  # a process each
OUTSIDE, DISTURBED = "load", "busy"
TESTS = [OUTSIDE, DISTURBED] + PREFILL + DECODE + DEEP
CONTEXTS = {"pp512": 2048, "pp2048": 2048, "tg128": 640, "tg32x16": 640, "tg32@4096": 4096 + 128}  # by the first test
READ_BAR = 0.75  # of the memory bandwidth measured in the same run, at one stream
PROMPT = "Once upon a time there was a small mill by the river, and in it"  # 16 tokens, as the peer reads
ANSWER_CONTEXT, ANSWER_TOKENS = 2048, 128
OUTSIDE_ROUNDS, OUTSIDE_S = 6, 45.0  # fewer when they take longer
PROCESS_LIMIT_S = 150
BARS = {  # test -> (bar for F16, for quantised types, for Q4_0)
    "pp512": (1.1, 1.5, 1.4), "pp2048": (1.1, 1.5, 1.4), "tg128": (1.0, 1.2, 1.2), "tg32x16": (1.8, 1.8, 1.8),
    "tg32@4096": (2.5, 2.5, 2.5)}
missed, judged, left_out = [], [], []


def peer_python():
    """The peer's Python, installed when it is not there."""
    python = pathlib.Path(os.environ["QUERN_PEER_PYTHON"]) if "QUERN_PEER_PYTHON" in os.environ else PEER / "bin/python"
    if python.exists() and \
            subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False).returncode == 0:
        return python
    print(f"installing {PACKAGE} into {PEER.relative_to(ROOT)}; it compiles for some minutes", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
    subprocess.run([PEER / "bin/python", "-m", "pip", "install", "-q", PACKAGE], check=True)
    return PEER / "bin/python"


def default_model():
    done = subprocess.run([QUERN, "pull"], check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def model_file(size, kind, source, python):
    """A file of that size and type, made once."""
    if size == "135M" and kind == "Q4_1":
        return source
    path = FILES / f"{'default' if size == '135M' else 'made'}-{kind}.gguf"
    if not path.exists():
        FILES.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        make = [python, PEER_SCRIPT, "quantise"] if size == "135M" else [sys.executable, MADE_SCRIPT]
        subprocess.run(make + [source, part] + [kind], check=True, capture_output=True)
        part.rename(path)
    return str(path)


def judge(name, ok):
    judged.append(name)
    if not ok:
        missed.append(name)
    return "ok" if ok else "MISS"


def timed(command):
    """Seconds and peak resident bytes of a command, from outside."""
    start = time.perf_counter()
    with subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def twice(command):
    """The better of two runs in a row: a virtual machine may have to ask its host for memory in the first, since what
    a process leaves goes back to the host within seconds."""
    runs = [timed(command), timed(command)]
    return min(r[0] for r in runs), min(r[1] for r in runs)


def bare_memory(model):
    """Resident bytes of a quern that waits for its prompt and has loaded nothing; the peak that the kernel tells of a
    dead process would count ours, from before it became quern."""
    with subprocess.Popen([QUERN, "run", model], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        before, now = -1, 0
        while before != now:
            time.sleep(0.1)
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            before, now = now, int(status.split("VmRSS:")[1].split()[0]) * 1024
        process.kill()
    return now


def results_of(command):
    """What a program's bench printed, by test; nothing when it took too long."""
    try:
        out = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True,
                             timeout=PROCESS_LIMIT_S).stdout
    except subprocess.TimeoutExpired:
        return {}
    return {r["name"]: r for r in json.loads(out.splitlines()[-1])["results"]}


def quern_results(model, tests, args):
    return results_of([QUERN, "bench", model, "--json", "--threads", args.threads, "--device", "cpu",
                       "--max-model-len", CONTEXTS[tests[0]], "--tests", ",".join(tests)])


def peer_results(python, model, tests, args):
    return results_of([python, PEER_SCRIPT, "bench", model, args.threads, CONTEXTS[tests[0]], ",".join(tests)])


def compare_steps(size, kind, tests, model, python, args):
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(quern_results(model, tests, args))
        theirs.append(peer_results(python, model, tests, args))
    for test in tests:
        mine = max((r[test] for r in ours if test in r), key=lambda r: r["tok_s"], default=None)
        peer = max((r[test]["tok_s"] for r in theirs if test in r), default=None)
        name = f"{size} {kind} {test}"
        if mine is None or peer is None:
            left_out.append(f"{name} (a process took more than {PROCESS_LIMIT_S} s)")
            continue
        bar = BARS[test][{"F16": 0, "Q4_0": 2}.get(kind, 1)]
        ratio, note = mine["tok_s"] / peer, ""
        if test == "tg128":
            note = f"  reads {judge(name + ' (bandwidth)', mine['memory_share'] >= READ_BAR)} (bar {READ_BAR:.0%})"
        print(f"{size:5} {kind:7} {test:10} {mine['tok_s']:9.1f} {peer:9.1f} {ratio:6.2f}x {bar:5.1f}x "
              f"{judge(name, ratio >= bar):4} {100 * mine['memory_share']:5.0f}% "
              f"{100 * mine['compute_share']:6.0f}%{note}", flush=True)


def line(what, mine, theirs, ratio, bar, ok):
    print(f"{what:34} {mine:>14} {theirs:>14} {ratio:6.2f}x  bar {bar:5} {judge(what, ok)}", flush=True)


def compare_outside(model, python, args):
    """Load to first token, memory, and 128 tokens, by a clock and the kernel's books outside both programs. What the
    bare program costs is taken off: importing the package is not the peer's engine, and neither are shared libraries
    that nobody has used yet ours; the clock is kinder to the peer, whose start is taken off and ours is not."""
    answer = [QUERN, "run", model, "--raw", "-p", PROMPT, "--temperature", "0", "--ignore-eos", "--threads",
              args.threads, "--device", "cpu", "--max-model-len", ANSWER_CONTEXT, "-n"]
    peer = [python, PEER_SCRIPT, "answer", model, args.threads]
    bare = [python, "-c", "import llama_cpp"]
    times, memory = {"ours": [], "ours, long": [], "peer": [], "peer, long": [], "bare": []}, ([], [])
    start = time.monotonic()
    while len(memory[1]) < OUTSIDE_ROUNDS and (not memory[1] or time.monotonic() - start < OUTSIDE_S):
        taken = {"ours": twice(answer + [1]), "peer": twice(peer + [1]), "bare": twice(bare),
                 "ours, long": timed(answer + [ANSWER_TOKENS + 1]), "peer, long": timed(peer + [ANSWER_TOKENS + 1])}
        for name, (seconds, _) in taken.items():
            times[name].append(seconds)
        memory[0].append(taken["ours"][1] - bare_memory(model))
        memory[1].append(taken["peer"][1] - taken["bare"][1])
    best = {name: min(seconds) for name, seconds in times.items()}
    a, b = best["ours"], best["peer"] - best["bare"]
    line("load to first token", f"{1e3 * a:.0f} ms", f"{1e3 * b:.0f} ms", a / b, "0.3x", a <= 0.3 * b)
    a, b = best["ours, long"] - best["ours"], best["peer, long"] - best["peer"]
    line(f"{ANSWER_TOKENS} tokens, outside clock", f"{ANSWER_TOKENS / a:.1f} tok/s", f"{ANSWER_TOKENS / b:.1f} tok/s",
         b / a, "1.2x", b >= 1.2 * a)
    a, b = statistics.median(memory[0]), statistics.median(memory[1])
    line("peak memory", f"{a / 2**20:.0f} MiB", f"{b / 2**20:.0f} MiB", a / b, "1.0x", a <= b)
    weights = os.path.getsize(model)
    kv = ANSWER_CONTEXT * kv_token_bytes(model)  # the peer clears all of it; quern touches what it uses
    a, b = a - weights, b - weights - kv
    line("memory beyond weights and KV", f"{a / 2**20:.0f} MiB", f"{b / 2**20:.0f} MiB", a / max(b, 1), "1.0x", a <= b)


def kv_token_bytes(model):
    """Of a token in F16, from the header."""
    shown = json.loads(subprocess.run([QUERN, "inspect", model, "--json"], check=True, capture_output=True,
                                      text=True).stdout)
    return 2 * 2 * shown["layers"] * shown["kv_heads"] * shown["head_dim"]


def disturbed():
    """Another process that keeps the first core busy."""
    return subprocess.Popen([sys.executable, "-c", "import os\n"
                             "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
                             "while True: pass"])


def compare_disturbed(model, python, args):
    free, taken, peer = [], [], []
    for _ in range(2):
        free.append(quern_results(model, ["tg128"], args)["tg128"]["tok_s"])
        busy = disturbed()
        try:
            taken.append(quern_results(model, ["tg128"], args)["tg128"]["tok_s"])
            if not peer:
                peer.append(peer_results(python, model, ["tg128"], args)["tg128"]["tok_s"])
        finally:
            busy.kill()
            busy.wait()
    a, b = max(taken), max(free)
    line("tg128, one core taken, of our own", f"{a:.1f} tok/s", f"{b:.1f} tok/s", a / b, "0.45x", a >= 0.45 * b)
    print(f"{'  llama.cpp then':34} {'':14} {peer[0]:8.1f} tok/s", flush=True)


def plan(args):
    """(size, type, tests) in the order of importance."""
    types = (args.types or ("Q4_1,Q8_0,F16" if args.quick else ",".join(TYPES))).split(",")
    sizes = (args.sizes or "135M,0.6B").split(",")
    groups = [("135M", k, g) for k in types for g in ([PREFILL, DECODE, DEEP] if k == types[0] else [PREFILL, DECODE])]
    groups += [("0.6B", k, g) for k in (types[:1] if args.quick else types) for g in (DECODE, PREFILL)]
    groups += [("135M", k, DEEP) for k in types[1:]]
    groups = [(s, k, [t for t in tests if t in args.tests]) for s, k, tests in groups if s in sizes]
    return [g for g in groups if g[2]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="times that both programs take their turn")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--types", help="of " + ",".join(TYPES))
    parser.add_argument("--sizes", help="of 135M,0.6B")
    parser.add_argument("--tests", default=",".join(TESTS),
                        help=f"of {','.join(TESTS)}; {OUTSIDE}: loading, memory, an answer; {DISTURBED}: a core taken")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, help="what has not begun by then is left out (13, quick 4)")
    parser.add_argument("--check", action="store_true", help="end with 1 when a bar is missed")
    parser.add_argument("--model", help="a Q4_1 file instead of the default model")
    args = parser.parse_args()
    args.tests = args.tests.split(",")
    if unknown := [t for t in args.tests if t not in TESTS]:
        parser.error(f"--tests: {unknown[0]} is none of {', '.join(TESTS)}")
    python = peer_python()
    source = args.model or default_model()
    groups = plan(args)
    files = {(s, k): model_file(s, k, source, python) for s, k, _ in groups}
    end = time.monotonic() + 60 * (args.minutes or (4 if args.quick else 13))
    print(f"{args.threads} threads\n", flush=True)
    if OUTSIDE in args.tests:
        compare_outside(source, python, args)
    if DISTURBED in args.tests:
        compare_disturbed(source, python, args)
    print(f"\ntok/s; shares of the reading and of the arithmetic measured in the same run\n"
          f"{'model':5} {'type':7} {'test':10} {'quern':>9} {'llama.cpp':>9} {'ratio':>7} {'bar':>6}      "
          f"{'memory':>6} {'compute':>7}", flush=True)
    for size, kind, tests in groups:
        if time.monotonic() > end:
            left_out.extend(f"{size} {kind} {t}" for t in tests)
        else:
            compare_steps(size, kind, tests, files[size, kind], python, args)
    if left_out:
        print(f"\nleft out, no time: {', '.join(left_out)}")
    print(f"\n{len(missed)} of {len(judged)} bars missed{': ' if missed else ''}{', '.join(missed)}")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
