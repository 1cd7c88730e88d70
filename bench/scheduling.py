"""The scheduler's policies compared, in the simulator with an 8B model's costs on one H200, and for real on this CPU.

  bench/scheduling                 print every table
  bench/scheduling --only traces   one of: tail prefix blocks itl fair traces cpu
  bench/scheduling --write         also put the tables and plots into docs/scheduling.md and docs/img/
  bench/scheduling --check         end with 1 when a bar is missed

The traces are read from ../shared/data/traces (or $QUERN_SHARED/data/traces); without them that section says so. Only
the standard library is used.
"""
import argparse
import csv
import datetime
import json
import os
import pathlib
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import svg  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("QUERN_BUILD", ROOT / "build" / "release"))
TRACES = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared")) / "data" / "traces"
IMAGES = ROOT / "docs" / "img"
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="quern-scheduling-"))
missed = []


def core_seconds():
    """What all processes have had of the cores (and other guests of a hypervisor, as far as it tells), and our own."""
    user, nice, system, _, _, irq, softirq, steal = map(int, open("/proc/stat").readline().split()[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def run(requests, **options):
    """requests: (arrival s, prompt, output, tenant, pieces or None). Returns the program's JSON, and in "others" how
    much of a core other processes had meanwhile."""
    path = SCRATCH / f"workload-{abs(hash(tuple((r[:4]) for r in requests))) % 10**9}.txt"
    with open(path, "w", encoding="ascii") as f:
        for arrival, prompt, output, tenant, pieces in requests:
            f.write(f"{arrival:.6f} {prompt} {output} {tenant} {','.join(map(str, pieces)) if pieces else '-'}\n")
    argv = [str(BUILD / "tests" / "quern_scheduling"), f"workload={path}"]
    argv += [f"{k}={v}" for k, v in options.items()]
    start, (busy, own) = time.monotonic(), core_seconds()
    result = subprocess.run(argv, text=True, capture_output=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}\n{result.stderr}")
    now_busy, now_own = core_seconds()
    others = (now_busy - busy - (now_own - own)) / (time.monotonic() - start)
    return {**json.loads(result.stdout), "others": others}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def ms(seconds):
    return f"{seconds * 1e3:.1f}" if seconds < 1 else f"{seconds * 1e3:,.0f}"


def bar(name, value, limit, at_least=True):
    ok = value >= limit if at_least else value <= limit
    if not ok:
        missed.append(name)
    return f"{name}: {value:.2f} (bar: {'at least' if at_least else 'at most'} {limit:g}; {'met' if ok else 'MISSED'})"


def image(name, text):
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / f"scheduling-{name}.svg").write_text(text, encoding="utf-8")


BATCHINGS = [("continuous", {"batching": "continuous"}), ("prefill-first", {"batching": "prefill-first"}),
             ("interval:16", {"batching": "interval", "interval": 16}),
             ("ratio:0.5", {"batching": "ratio", "ratio": 0.5}), ("static", {"batching": "static"})]


def long_tail(n, prompt, short, long, seed=1):
    draw = random.Random(seed)
    return [(0.0, prompt, long if draw.random() < 0.1 else short, 0, None) for _ in range(n)]


def section_tail():
    tail = long_tail(512, 64, 32, 512)
    uniform = [(0.0, 64, 128, 0, None)] * 512
    rows, lines, speed = [], {}, {}
    for name, options in BATCHINGS:
        a = run(tail, seqs=16, context=1024, prefix=0, series=0.1, **options)
        b = run(uniform, seqs=16, context=1024, prefix=0, **options)
        speed[name] = a["out_tok_s"], b["out_tok_s"]
        rows.append([name, f"{a['seconds']:.1f}", f"{a['out_tok_s']:.0f}", f"{b['out_tok_s']:.0f}"])
        lines[name] = [(p[0], p[3]) for p in a["series"][1:]]
    for row in rows:
        row += [f"{speed[row[0]][k] / speed['static'][k]:.2f}x" for k in (0, 1)]
    if args.write:
        image("tail", svg.chart("Tokens per 0.1 s, 512 long-tailed requests over 16 slots", "seconds", "tokens",
                                lines))
    ratio = speed["continuous"][0] / speed["static"][0]
    even = speed["continuous"][1] / speed["static"][1]
    return "\n\n".join([
        table(["batching", "seconds (long tail)", "tok/s (long tail)", "tok/s (uniform)", "against static, long tail",
               "against static, uniform"], rows),
        "![](img/scheduling-tail.svg)",
        bar("continuous over static, long tail", ratio, 4) + "  \n" +
        bar("continuous over static, uniform", even, 0.98)])


def section_prefix():
    rows, computed = [], {}
    for gap, what in ((0.0, "all at once"), (0.02, "one every 20 ms")):
        requests = [(i * gap, 1024 + 64, 32, 0, list(range(16)) + [1000 + i]) for i in range(64)]
        for cache in (0, 1):
            r = run(requests, piece=64, prefix=cache, context=4096, seqs=64, budget=2048)
            computed[gap, cache] = r["prompt_computed"]
            rows.append([what, "on" if cache else "off", f"{r['prompt_computed']:,}", f"{100 * r['hit_rate']:.0f}%",
                         ms(r["ttft"]["p50"]), ms(r["ttft"]["p99"])])
    return "\n\n".join([
        table(["64 requests arrive", "prefix cache", "prompt tokens computed", "hit rate", "TTFT p50 ms", "p99 ms"],
              rows),
        bar("less prefill with the cache, all at once", computed[0.0, 0] / computed[0.0, 1], 8) + "  \n" +
        bar("less prefill with the cache, one by one", computed[0.02, 0] / computed[0.02, 1], 8)])


def section_blocks():
    draw, requests = random.Random(3), []
    for i in range(1500):  # forty system prompts of all lengths, a question, an answer
        topic = draw.randrange(40)
        pieces = [topic * 1000 + k for k in range(5 + topic * 2)] + [100000 + i * 100 + k for k in range(40)]
        prompt = 16 * (5 + topic * 2) + 1 + min(639, int(draw.expovariate(1 / 120)))
        requests.append((i * 0.03, prompt, 1 + min(1500, int(draw.expovariate(1 / 150))), 0, pieces))
    rows, last = [], None
    for block in (16, 32, 64, 128, 256, 512):
        last = r = run(requests, block=block, piece=16, context=8192)
        step = subprocess.run([str(BUILD / "tests" / "quern_step"), "--block", str(block), "--steps", "100"], text=True,
                              capture_output=True).stdout
        cost = re.search(r"\| 256 \| 4096 \| ([\d.]+)", step)
        rows.append([block, f"{100 * (1 - r['used'] / r['held']):.2f}%", f"{100 * r['hit_rate']:.1f}%",
                     f"{cost.group(1) if cost else '?'}"])
    rows.append(["prompt + max_tokens reserved", f"{100 * (1 - last['used'] / last['reserved']):.2f}%", "-", "-"])
    longest = f"{100 * (1 - last['used'] / last['longest']):.1f}%"
    rows.append(["the longest context reserved (8,192)", longest, "-", "-"])
    return table(
        ["block size", "KV slots held and not used", "hit rate", "us per step (256 sequences at 4,096)"], rows)


def section_itl():
    streams = [(0.0, 128, 2500, 0, None)] * 8
    long = [(2.0, 100000, 16, 1, None)]
    rows, lines = [], {}
    for target in (0, 50, 20, 10):
        options = {"itl_ms": target} if target else {}
        r = run(streams + long, series=0.02, **options)
        long_ttft = r["tenants"][1]["ttft"]
        rows.append([f"{target} ms" if target else "none", ms(r["itl"]["p50"]), ms(r["itl"]["p99"]),
                     ms(r["itl"]["max"]), f"{long_ttft:.2f}"])
        lines[rows[-1][0]] = [(p[0], max(p[4] * 1e3, 1)) for p in r["series"] if p[0] < 20 and p[4] > 0]
    if args.write:
        image("itl", svg.chart("Longest inter-token time of 8 streams; a 100k-token prompt comes at 2 s", "seconds",
                               "ms", lines, log_y=True))
    return table(["--itl-target-ms", "ITL p50 ms", "p99", "worst", "TTFT of the long prompt, s"], rows) + \
        "\n\n![](img/scheduling-itl.svg)"


def section_fair():
    draw, requests = random.Random(5), []
    for tenant, gap in ((0, 0.02), (1, 0.2)):
        t = 0.0
        while t < 40:
            t += draw.expovariate(1 / gap)
            requests.append((t, 200, 100, tenant, None))
    requests.sort()
    rows, lines = [], {}
    for order in ("fcfs", "vtc"):
        r = run(requests, order=order, seqs=16, context=1024, prefix=0, series=0.5)
        rows += [[order, "heavy (50 requests a second)" if t["tenant"] == 0 else "light (5 a second)",
                  ms(t["ttft"]), ms(t["ttft_max"])] for t in r["tenants"]]
        for t in (0, 1):
            lines[f"{order}, {'heavy' if t == 0 else 'light'}"] = [(p[0], p[5 + t]) for p in r["series"] if p[0] < 60]
    if args.write:
        image("fair", svg.chart("Service of two tenants (weighted tokens)", "seconds", "tokens", lines))
    return table(["order", "tenant", "mean TTFT ms", "worst"], rows) + "\n\n![](img/scheduling-fair.svg)"


def mooncake(name, n, stretch):
    path = TRACES / f"mooncake_{name}_trace.jsonl"
    if not path.exists():
        return None
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:n]]
    return [(r["timestamp"] / 1e3 * stretch, r["input_length"], max(1, r["output_length"]), 0, r["hash_ids"])
            for r in rows]


def azure(name, n, stretch):
    path = TRACES / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.exists():
        return None
    with open(path, encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))[:n]
    times = [datetime.datetime.fromisoformat(r["TIMESTAMP"][:26]) for r in rows]
    return [((t - times[0]).total_seconds() * stretch, int(r["ContextTokens"]), max(1, int(r["GeneratedTokens"])), 0,
             None) for t, r in zip(times, rows)]


POLICIES = BATCHINGS + [("continuous, target 50 ms", {"itl_ms": 50}), ("continuous, sjf", {"order": "sjf"}),
                        ("continuous, reserve", {"admission": "reserve"}), ("continuous, no cache", {"prefix": 0})]
# The fleets behind these traces were larger than one card (Mooncake) or smaller (Azure): time is stretched so that one
# card is well loaded and not drowned.
WORKLOADS = [("Mooncake conversation", lambda: mooncake("conversation", 2500, 3.0), "2,500 requests, time x 3"),
             ("Mooncake synthetic", lambda: mooncake("synthetic", 2500, 3.0), "2,500 requests, time x 3"),
             ("Azure 2023 code", lambda: azure("code", 8819, 0.25), "8,819 requests, time x 0.25"),
             ("Azure 2023 conversation", lambda: azure("conv", 10000, 0.25), "10,000 requests, time x 0.25")]


def section_traces():
    parts = []
    for name, make, how in WORKLOADS:
        requests = make()
        if requests is None:
            parts.append(f"### {name}\n\nThe trace is not here: it is read from {TRACES.name}/ of the shared data.")
            continue
        rows, ttft, itl = [], {}, {}
        larger = [("continuous, 12 times the pool", {"blocks": 630000})] if requests[0][4] else []
        for policy, options in POLICIES + larger:
            r = run(requests, **options)
            rows.append([policy, ms(r["ttft"]["p50"]), ms(r["ttft"]["p90"]), ms(r["ttft"]["p99"]), ms(r["itl"]["p50"]),
                         ms(r["itl"]["p99"]), f"{r['out_tok_s']:.0f}", f"{r['all_tok_s']:.0f}",
                         f"{100 * r['hit_rate']:.1f}%", r["preempted_swap"] + r["preempted_recompute"]])
            ttft[policy] = [(max(x, 1e-3), i) for i, x in enumerate(r["ttft_cdf"])]
            itl[policy] = [(max(x * 1e3, 1), i) for i, x in enumerate(r["itl_cdf"])]
            print(f"  {name}: {policy}", file=sys.stderr, flush=True)
        slug = name.lower().replace(" ", "-")
        if args.write:
            image(f"{slug}-ttft", svg.chart(f"{name}: time to first token", "seconds", "% of requests", ttft,
                                            log_x=True))
            image(f"{slug}-itl", svg.chart(f"{name}: inter-token time", "ms", "% of tokens", itl, log_x=True))
        parts.append(f"### {name}\n\n{how}\n\n" + table(
            ["policy", "TTFT p50 ms", "p90", "p99", "ITL p50 ms", "p99", "out tok/s", "all tok/s", "hit rate",
             "preempted"], rows) + f"\n\n![](img/scheduling-{slug}-ttft.svg)\n\n![](img/scheduling-{slug}-itl.svg)")
    return "\n\n".join(parts)


def default_model():
    if os.environ.get("QUERN_MODEL"):
        return os.environ["QUERN_MODEL"]
    found = subprocess.run([str(BUILD / "quern"), "inspect", "--json"], text=True, capture_output=True)
    try:
        return json.loads(found.stdout)["path"]
    except (ValueError, KeyError):
        return None


def section_cpu():
    model = default_model()
    if model is None:
        return "The default model is not in the cache: `quern pull` first."
    machine = {"model": model, "context": 8192, "seqs": 16, "budget": 512, "blocks": 2048, "prefix": 0}
    # The first request is one step that lasts until all others are there, so that the static batches are the same in
    # every round. Each of the tail's has at least one of the long ones.
    first = [(0.0, 256, 1, 0, None)]
    tail = first + [(0.01, *r[1:]) for r in long_tail(192, 32, 32, 512)]
    uniform = first + [(0.01, 32, 64, 0, None)] * 64
    # alternating, so that a machine that gets slower or faster meanwhile does so for both
    rounds = [{b: [run(w, batching=b, **machine) for w in (tail, uniform)] for b in order}
              for order in (("continuous", "static"), ("static", "continuous"), ("continuous", "static"))]
    speed = {b: [statistics.median(r[b][w]["out_tok_s"] for r in rounds) for w in (0, 1)] for b in rounds[0]}
    ratio = [statistics.median(r["continuous"][w]["out_tok_s"] / r["static"][w]["out_tok_s"] for r in rounds)
             for w in (0, 1)]
    steps = [rounds[0][b][1]["steps"] for b in ("continuous", "static")]
    parts = [table(["batching", "tok/s, long tail", "tok/s, uniform"],
                   [[b, f"{s[0]:.0f}", f"{s[1]:.0f}"] for b, s in speed.items()]),
             f"Medians of three rounds. The uniform load takes {steps[0]} steps under continuous and {steps[1]} under "
             "static batching.",
             bar("CPU: continuous over static, long tail", ratio[0], 1.7) + "  \n" +
             bar("CPU: continuous over static, uniform", ratio[1], 0.98)]
    return "\n\n".join(parts + cpu_target(dict(machine, seqs=9)))


ROUNDS = 5
OTHERS_MAX = 0.15


def cpu_target(machine):
    """Eight streams, and a long prompt that comes among them: with and without a target, by turns, each round in the
    other order; a round's runs are compared with each other only, since the machine is not the same a minute later. A
    round in which other processes had a good part of a core says more about them, and another takes its place."""
    streams = [(0.0, 32, 400, 0, None)] * 8
    rounds, disturbed = [], []
    while len(rounds) < ROUNDS and len(disturbed) < ROUNDS:
        turn = len(rounds) + len(disturbed)
        alone = run([s[:2] + (100,) + s[3:] for s in streams], **machine)
        step, got = alone["itl"]["p50"], {}
        for is_held in (False, True) if turn % 2 == 0 else (True, False):
            target = {"itl_ms": f"{5e3 * step:.2f}"} if is_held else {}
            got[is_held] = run(streams + [(3.0, 6000, 4, 1, None)], **target, **machine)
        others = max(r["others"] for r in (alone, got[False], got[True]))
        (rounds if others < OTHERS_MAX else disturbed).append((step, got[False], got[True]))
    if len(rounds) == ROUNDS:
        company = f"Rounds left out, since other processes had over {OTHERS_MAX} of a core: {len(disturbed)}."
    else:
        company = f"In {ROUNDS} of them other processes had over {OTHERS_MAX} of a core."
        rounds += disturbed
    rows = []
    for i, (alone, free, held) in enumerate(rounds):
        for name, r in (("none", free), (f"{5e3 * alone:.0f} ms", held)):
            rows.append([i + 1, f"{alone * 1e3:.1f}", name, ms(r["itl"]["p99"]), ms(r["itl"]["max"]),
                         f"{r['tenants'][1]['ttft']:.1f}"])
    late = sorted(held["itl"]["p99"] / (5 * alone) for alone, _, held in rounds)
    longer = sorted(held["tenants"][1]["ttft"] / free["tenants"][1]["ttft"] for _, free, held in rounds)
    return [f"Eight streams decode; after three seconds a 6,000-token prompt comes. {len(rounds)} rounds; the target "
            f"is five times what a step takes without the prompt. {company}",
            table(["round", "step alone, ms", "--itl-target-ms", "ITL p99 ms", "worst", "TTFT of the prompt, s"], rows),
            f"Over the rounds the p99 is {late[0]:.2f} to {late[-1]:.2f} of the target, and the prompt takes "
            f"{longer[0]:.2f} to {longer[-1]:.2f} times as long. Medians:",
            bar("CPU: p99 inter-token time over the target", statistics.median(late), 1.5, False) + "  \n" +
            bar("CPU: prefill time, protected over unprotected", statistics.median(longer), 1.3, False)]


SECTIONS = {"tail": section_tail, "prefix": section_prefix, "blocks": section_blocks, "itl": section_itl,
            "fair": section_fair, "traces": section_traces, "cpu": section_cpu}


def write(name, text):
    path = ROOT / "docs" / "scheduling.md"
    page = path.read_text(encoding="utf-8")
    mark = re.compile(rf"(<!-- bench: {name} -->\n).*?(<!-- end -->)", re.S)
    if not mark.search(page):
        raise SystemExit(f"docs/scheduling.md has no place for {name}")
    path.write_text(mark.sub(lambda m: f"{m.group(1)}{text}\n{m.group(2)}", page), encoding="utf-8")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--only", choices=SECTIONS, action="append")
parser.add_argument("--write", action="store_true")
parser.add_argument("--check", action="store_true")
args = parser.parse_args()
for section in args.only or SECTIONS:
    answer = SECTIONS[section]()
    print(f"== {section}\n\n{answer}\n", flush=True)
    if args.write:
        write(section, answer)
for what in missed:
    print(f"MISSED {what}")
sys.exit(1 if args.check and missed else 0)
