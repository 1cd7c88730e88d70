"""quern against llama.cpp on this machine's processor: the same files, the same threads, one after the other in turn.

The peer is the package llama-cpp-python, installed into build/peers/llama the first time (it compiles, which takes
minutes). Model files of several types are made from the default model by the peer itself. Each program times its own
steps; loading, memory and answers are timed from outside. The best of the rounds counts for both.

usage: bench/cpu [--rounds N] [--threads N] [--types Q4_1,Q8_0,...] [--model FILE]
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
PACKAGE = "llama-cpp-python==0.3.36"
BARS = {  # test -> (bar for F16, bar for quantised)
    "pp512": (1.1, 1.5), "pp2048": (1.1, 1.5), "tg128": (1.0, 1.2), "tg32x16": (1.8, 1.8), "tg32@4096": (2.5, 2.5)}


def peer_python():
    """The peer's Python, installed when it is not there."""
    python = pathlib.Path(os.environ["QUERN_PEER_PYTHON"]) if "QUERN_PEER_PYTHON" in os.environ else PEER / "bin/python"
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, check=False).returncode != 0 \
            if python.exists() else True:
        print(f"installing {PACKAGE} into {PEER.relative_to(ROOT)}; it compiles for some minutes", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", PEER], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE], check=True)
    return python


def default_model():
    done = subprocess.run([QUERN, "pull"], check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def model_of(kind, source, python):
    """A file of that type, made once."""
    if kind == "Q4_1":
        return source
    path = ROOT / "build/bench" / f"default-{kind}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        subprocess.run([python, PEER_SCRIPT, "quantise", source, part, kind], check=True, capture_output=True)
        part.rename(path)
    return str(path)


def timed(command):
    """Seconds and peak resident bytes of a command, from outside."""
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def quern_results(model, threads):
    out = subprocess.run([QUERN, "bench", model, "--json", "--threads", str(threads), "--device", "cpu"], check=True,
                         capture_output=True, text=True).stdout
    return {r["name"]: r for r in json.loads(out)["results"]}


def peer_results(python, model, threads):
    out = subprocess.run([python, PEER_SCRIPT, "bench", model, str(threads)], check=True, capture_output=True,
                         text=True).stdout
    return {r["name"]: r for r in json.loads(out.splitlines()[-1])["results"]}


def compare_steps(kind, model, python, args):
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(quern_results(model, args.threads))
        theirs.append(peer_results(python, model, args.threads))
    for test, bars in BARS.items():
        mine = max((r[test] for r in ours if test in r), key=lambda r: r["tok_s"], default=None)
        peer = max((r[test]["tok_s"] for r in theirs if test in r), default=None)
        if mine is None or peer is None:
            continue
        bar = bars[0] if kind == "F16" else 1.4 if kind == "Q4_0" and test.startswith("pp") else bars[1]
        ratio = mine["tok_s"] / peer
        print(f"{kind:8} {test:10} {mine['tok_s']:9.1f} {peer:9.1f} {ratio:6.2f}x {bar:5.1f}x "
              f"{'ok  ' if ratio >= bar else 'MISS'} {100 * mine['memory_share']:5.0f}% "
              f"{100 * mine['compute_share']:5.0f}%",
              flush=True)


def compare_outside(model, python, args):
    """Load to first token, memory, and 128 tokens, by a clock and the kernel's books outside both programs."""
    answer = [QUERN, "run", model, "--raw", "-p", "Once upon a time there was a small mill by the river, and",
              "--temperature", "0", "--ignore-eos", "--threads", args.threads, "--device", "cpu", "--max-model-len",
              "2048", "-n"]
    peer = [python, PEER_SCRIPT, "answer", model, args.threads]
    bare = [python, "-c", "import llama_cpp"]  # what importing the package costs is not the peer's engine
    rows = {"first": ([], []), "rest": ([], []), "memory": ([], [])}
    for _ in range(max(args.rounds, 3)):
        a, a_mem = timed(answer + ["1"])
        b, b_mem = timed(peer + ["1"])
        c, c_mem = timed(bare)
        rows["first"][0].append(a)
        rows["first"][1].append(b - c)
        rows["memory"][0].append(a_mem)
        rows["memory"][1].append(b_mem - c_mem)
        rows["rest"][0].append(timed(answer + ["129"])[0] - a)
        rows["rest"][1].append(timed(peer + ["129"])[0] - b)
    mine, theirs = min(rows["first"][0]), min(rows["first"][1])
    print(f"load to first token: {1e3 * mine:.0f} ms, llama.cpp {1e3 * theirs:.0f} ms: {mine / theirs:.2f}x "
          f"(bar 0.3x)  {'ok' if mine <= 0.3 * theirs else 'MISS'}")
    mine, theirs = min(rows["rest"][0]), min(rows["rest"][1])
    print(f"128 tokens, outside clock: {128 / mine:.1f} tok/s, llama.cpp {128 / theirs:.1f}: {theirs / mine:.2f}x")
    mine, theirs = statistics.median(rows["memory"][0]), statistics.median(rows["memory"][1])
    print(f"peak memory: {mine / 2**20:.0f} MiB, llama.cpp {theirs / 2**20:.0f} MiB: {mine / theirs:.2f}x (bar 1.0x)  "
          f"{'ok' if mine <= theirs else 'MISS'}")


def compare_disturbed(model, args):
    """Decoding while another process keeps the first core busy."""
    free = quern_results(model, args.threads)["tg128"]["tok_s"]
    busy = subprocess.Popen([sys.executable, "-c", "import os\n"
                             "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
                             "while True: pass"])
    try:
        taken = quern_results(model, args.threads)["tg128"]["tok_s"]
    finally:
        busy.kill()
        busy.wait()
    print(f"tg128 with one core taken: {taken:.1f} of {free:.1f} tok/s: {taken / free:.2f}x (bar 0.45x)  "
          f"{'ok' if taken >= 0.45 * free else 'MISS'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--types", default="Q4_1,Q8_0,Q4_0,Q4_K_M,F16")
    parser.add_argument("--model", help="a Q4_1 file instead of the default model")
    args = parser.parse_args()
    python = peer_python()
    source = args.model or default_model()
    print(f"{args.threads} threads, best of {args.rounds} rounds; tok/s\n")
    print(f"{'type':8} {'test':10} {'quern':>9} {'llama.cpp':>9} {'ratio':>7} {'bar':>6}      {'memory':>6} "
          f"{'compute':>7}")
    for kind in args.types.split(","):
        compare_steps(kind, model_of(kind, source, python), python, args)
    print()
    compare_outside(source, python, args)
    compare_disturbed(source, args)


if __name__ == "__main__":
    main()
