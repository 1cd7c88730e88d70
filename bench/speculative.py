"""What guesses are worth.

  bench/speculative                  on this machine: a 1B shape, one stream and sixteen, text that repeats and text
                                     that does not; ends with 1 when a bar is missed
  bench/speculative --device cuda    an 8B shape in bf16, one stream, a proposer that is right 80% of the time
  bench/speculative --idle           what guesses cost where nobody asks for them: an engine without, one with and
                                     requests that say none, and the model's steps without an engine, by turns
  bench/speculative --rows           what steps of 1 to 9 rows cost
  bench/speculative --costs          what the scheduler makes of given costs, on a virtual clock
  bench/speculative --write          put the table of costs and the plots into docs/speculative.md and docs/img/
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

import svg

REPO = pathlib.Path(__file__).resolve().parent.parent
BUILD = REPO / os.environ.get("QUERN_BUILD", "build/release")
IMAGES = REPO / "docs" / "img"
MACHINES = [("77 ms + 17 ms a row (1B Q4_0, one core)", "77000:17000"),
            ("3.33 ms + 0.02 ms a row (8B bf16, H200)", "3330:20")]


def measure(**options):
    argv = [str(BUILD / "tests" / "quern_speculative"), *(f"{k}={v}" for k, v in options.items())]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def on_this_machine(args):
    bars = [("edit", 1, 2.0), ("random", 1, 0.97), ("edit", 16, 0.97), ("random", 16, 0.97)]
    runs = [({"text": text, "streams": streams, "weights": args.weights, "k": 5}, bar) for text, streams, bar in bars]
    if args.device == "cuda":
        runs = [({"device": "cuda", "shape": "llama-3.1-8b", "weights": "bf16", "text": "sure", "method": "coin",
                  "accept": 0.8, "k": 5, "always": 1, "tokens": 512}, 3.0)]
    missed = 0
    for options, bar in runs:
        [got] = measure(**options, rounds=args.rounds)
        missed += got["ratio"] < bar
        print(f"{got['shape']} {got['weights']}, {got['text']}, {got['streams']} stream(s), k = {got['k']}: "
              f"{got['off']:.2f} -> {got['on']:.2f} tokens/s, {got['ratio']:.2f}x (bar {bar}x), "
              f"{got['held']} of {got['guesses']} guesses held", flush=True)
    return 1 if missed else 0


def rows(args):
    cuda = {"device": "cuda", "shape": "llama-3.1-8b"} if args.device == "cuda" else {}
    for weights in ("bf16", "q4_0") if cuda else ("q4_0", "q8_0"):
        got = measure(rows=1, weights=weights, rounds=64 if cuda else max(args.rounds, 9), **cuda)
        print(f"{weights}: " + ", ".join(f"{g['rows']}: {g['ms']:.2f} ms" for g in got), flush=True)
    return 0


def idle(args):
    """Ratios of processor time: what is looked for is far below what other work on the machine does to the clock."""
    runs = [{"shape": "smollm2-135m", "streams": s, "tokens": 128 if s == 1 else 32} for s in (1, 16)]
    runs += [{"shape": "smollm2-135m", "streams": s, "tokens": 4000, "fake": "100:0"} for s in (1, 16)]
    missed = 0
    print("| what runs | streams | nobody guesses | idle guesser | of it | model's steps alone | of it |")
    print("|---|---|---|---|---|---|---|")
    for options in runs:
        [got] = measure(idle=1, rounds=63 if "fake" in options else max(args.rounds, 15), **options)
        none, guesser, steps = got["none"], got["idle"], got.get("steps")
        missed += guesser["ratio_cpu"] < 0.98
        what = f"{got['shape']} {got['weights']}" if steps else "the engine alone"
        speed = [f"{g['tok_s']:.1f} tok/s" if steps else f"{g['cpu_us']:.2f} us a token" for g in (none, guesser)]
        spread = f"{guesser['ratio_cpu']:.3f}x ({guesser['low']:.3f} to {guesser['high']:.3f})"
        alone = f"{steps['tok_s']:.1f} tok/s | {steps['ratio_cpu']:.3f}x" if steps else "- | -"
        print(f"| {what} | {got['streams']} | {speed[0]} | {speed[1]} | {spread} | {alone} |", flush=True)
    return 1 if missed else 0


def costs():
    lines = ["| machine | text | streams | tokens/s, of without | guesses that held |", "|---|---|---|---|---|"]
    for name, cost in MACHINES:
        runs = [{"text": text, "streams": streams} for text in ("edit", "random") for streams in (1, 16)]
        if cost.startswith("3330"):
            runs.append({"text": "sure", "method": "coin", "accept": 0.8, "streams": 1})
        for i, run in enumerate(runs):
            [got] = measure(fake=cost, tokens=300, k=5, **run)
            share = got["held"] / max(got["guesses"], 1)
            few = " of the few tried" if got["guesses"] < 0.2 * 3 * 300 * got["streams"] else ""
            text = "right 80% of the time" if got["text"] == "sure" else got["text"]
            lines.append(f"| {name if i == 0 else ''} | {text} | {got['streams']} | {got['ratio']:.2f}x | "
                         f"{share:.0%}{few} |")
    return "\n".join(lines).replace("|  |", "| |")


def draft_acceptance():
    """Of tiny-1m as a draft for tiny-4m, by place."""
    argv = [str(BUILD / "quern"), "serve", str(REPO / "tests/data/tiny/tiny-4m-q8_0.gguf"), "--port", "0",
            "--speculative", f"draft:{REPO / 'tests/data/tiny/tiny-1m-q8_0.gguf'}", "--speculative-k", "5"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = next(m.group(1) for m in (re.search(r" at (http://\S+)", line) for line in server.stderr) if m)
            for i, speaker in enumerate(["KING HENRY:", "First Citizen:", "JULIET:", "HAMLET:", "BRUTUS:"] * 36):
                body = {"prompt": speaker, "max_tokens": 120, "temperature": 0, "ignore_eos": True,
                        "cache_salt": str(i)}
                urllib.request.urlopen(url + "/v1/completions", json.dumps(body).encode()).read()
            spec = json.load(urllib.request.urlopen(url + "/stats"))["spec"]
        finally:
            server.terminate()
    return [a / b for a, b in zip(spec["per_pos"], spec["tried_pos"]) if b >= 20]


def plots():
    lines = {}
    for text in ("edit", "random"):
        [got] = measure(fake="3330:20", text=text, k=8, tokens=2000, always=1)
        lines[f"ngram, {text}"] = [(i + 1, p) for i, p in enumerate(got["per_pos"])]
    lines["draft, Shakespeare"] = [(i + 1, p) for i, p in enumerate(draft_acceptance())]
    (IMAGES / "speculative-acceptance.svg").write_text(
        svg.chart("Guesses that held, by their place", "place", "share", lines), encoding="utf-8")
    lines = {}
    for k in (1, 2, 5, 8):
        lines[f"k = {k}"] = [(a / 20, sum((a / 20) ** i for i in range(k + 1))) for a in range(21)]
    counted = []
    for a in (0.2, 0.4, 0.6, 0.8, 0.95):
        [got] = measure(fake="1000:0", text="sure", method="coin", accept=a, k=5, tokens=3000, always=1)
        counted.append((a, 1 + got["held"] / got["drafts"]))
    lines["k = 5, counted"] = counted
    (IMAGES / "speculative-tokens.svg").write_text(
        svg.chart("Tokens of a step", "chance that a guess holds", "tokens", lines), encoding="utf-8")


def write(text):
    path = REPO / "docs" / "speculative.md"
    mark = re.compile(r"(<!-- bench: costs -->\n).*?(<!-- end -->)", re.S)
    path.write_text(mark.sub(lambda m: f"{m.group(1)}{text}\n{m.group(2)}", path.read_text(encoding="utf-8")),
                    encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--weights", default="q4_0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.rows:
        return rows(args)
    if args.idle:
        return idle(args)
    if args.costs or args.write:
        table = costs()
        print(table)
        if args.write:
            write(table)
            plots()
        return 0
    return on_this_machine(args)


if __name__ == "__main__":
    sys.exit(main())
