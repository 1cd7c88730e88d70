"""The server under load: against llama.cpp's server with a model, alone without one, and its starts.

Both servers get the same model file, the same threads and the same requests (token ids, fixed lengths, greedy), one
after the other in the same run and in turn, each started afresh; the load generator (bench/load.c) runs beside them on
the same cores. A ratio is between the two in one round, and the median of the rounds counts. llama.cpp's server is
built from the package llama-cpp-python (bench/server_peer.py); it gets as many slots as serve it best: 16 for the mixed
load, 8 for the shared prompt.

usage: bench/server [--rounds N] [--threads N] [--requests N] [--patience S] [--only SECTION]... [--no-peer]
                    [--check]

  mixed      16 clients, prompts of 64-1,024 tokens, answers of 16-256
  shared     16 clients, 1,024 tokens in common, 32 of their own, answers of 32
  streams    2,000 streams at once without a model, 20,000 tokens a second in all
  requests   requests of one token without a model; a scrape of the numbers
  attack     streams without a model, alone and beside clients that send what they should not
  start      exec to the first token; kill -9 and start again
"""
import argparse
import hashlib
import http.client
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import server_peer  # noqa: E402
import soak  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("QUERN_BUILD", ROOT / "build/release"))
QUERN = pathlib.Path(os.environ.get("QUERN_BIN", BUILD / "quern"))
LOAD = BUILD / "tests/quern_load"
TINY = ROOT / "tests/data/tiny/tiny-1m-q8_0.gguf"
SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="quern-bench-server-"))
KIB = 1024
rows = []


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def call(port, path, body=None, timeout=60):
    """(status, bytes); a server that is not there yet has the status 0."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def first_token(port, since, limit=60.0):
    """Seconds from since until a token was served."""
    body = {"prompt": [1, 2, 3, 4], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    while time.perf_counter() - since < limit:
        if call(port, "/v1/completions", body)[0] == 200:
            return time.perf_counter() - since
        time.sleep(0.002)
    raise SystemExit("the server did not answer in time")


class Server:
    """A server of either kind on a free port, ready when it is entered, ended when it is left."""

    def __init__(self, argv, port=None):
        self.port = port or free_port()
        self.argv = [str(a).replace("PORT", str(self.port)) for a in argv]
        self.start_s = self.process = None

    def __enter__(self):
        self.log = open(SCRATCH / "server.log", "w", encoding="utf-8")
        began = time.perf_counter()
        self.process = subprocess.Popen(self.argv, stdout=self.log, stderr=self.log)
        self.pid = self.process.pid
        self.start_s = first_token(self.port, began)
        return self

    def __exit__(self, *_):
        self.end(signal.SIGTERM)

    def end(self, sign):
        if self.process.poll() is None:
            self.process.send_signal(sign)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def quern_server(model, threads, *more):
    return Server([QUERN, "serve", model, "--port", "PORT", "--threads", threads, "--device", "cpu", "--no-access-log",
                   *more])


def peer_server(binary, model, threads, slots):
    return Server([binary, "-m", model, "--host", "127.0.0.1", "--port", "PORT", "-t", threads, "-tb", threads, "-np",
                   slots, "-c", slots * 1536, "--log-disable"])


def load(workload, server, **options):
    """The generator's report."""
    argv = [str(LOAD), workload, "--port", str(server.port)]
    for name, value in options.items():
        argv += ["--" + name.replace("_", "-"), str(value)]
    done = subprocess.run(argv, text=True, capture_output=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(argv)}\n{done.stderr}")
    return json.loads(done.stdout)


def row(what, mine, peer, value, bar, at_least):
    """One line of the result; mine, peer and bar are printed as they are."""
    ok = value >= bar[0] if at_least else value <= bar[0]
    rows.append((what, ok))
    print(f"| {what} | {mine} | {peer} | {bar[1]} | {'met' if ok else 'MISSED'} |", flush=True)


def head(title):
    print(f"\n{title}\n\n| what | quern | llama.cpp | bar | |\n|---|---|---|---|---|", flush=True)


def default_model():
    done = subprocess.run([QUERN, "pull"], check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def write_ids(model, threads):
    """The documentation as token ids: prompts are pieces of a real text, the same for both servers."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("docs/*.md")))[:200000]
    with quern_server(model, threads) as server:
        status, answer = call(server.port, "/tokenize", {"prompt": text, "add_special_tokens": False})
    if status != 200:
        raise SystemExit(f"/tokenize answered {status}: {answer[:200]}")
    path = SCRATCH / "ids"
    path.write_text(" ".join(map(str, json.loads(answer)["tokens"])), encoding="ascii")
    return path


def compare(workload, slots, args):
    """Reports of both servers, round by round: [(quern, peer or None)]."""
    pairs = []
    for r in range(args.rounds):
        pair = []
        options = {"ids": args.ids, "seed": args.seed + r, "requests": args.requests, "timeout": args.patience}
        for make in (lambda: quern_server(args.model, args.threads),
                     lambda: args.peer and peer_server(args.peer, args.model, args.threads, slots)):
            server = make()
            if not server:
                pair.append(None)
                continue
            with server:
                report = load(workload, server, **options)
            print(f"  round {r + 1}, {pathlib.Path(server.argv[0]).name}: {json.dumps(report)}", file=sys.stderr,
                  flush=True)
            pair.append(report)
        pairs.append(pair)
    return pairs


def ratio_row(what, pairs, read, unit, bar, at_least):
    mine = [read(a) for a, _ in pairs]
    if pairs[0][1] is None:
        print(f"| {what} | {statistics.median(mine):.1f} {unit} | - | {bar[1]} | not compared |", flush=True)
        return
    theirs = [read(b) for _, b in pairs]
    ratios = [a / b for a, b in zip(mine, theirs)]
    ratio = statistics.median(ratios)
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    row(what, f"{statistics.median(mine):.1f} {unit}, {ratio:.2f}x{spread}", f"{statistics.median(theirs):.1f} {unit}",
        ratio, bar, at_least)


def errors_row(pairs):
    mine = sum(a["errors"] for a, _ in pairs)
    theirs = sum(b["errors"] for _, b in pairs if b)
    row("requests that failed", f"{mine} of {sum(a['requests'] for a, _ in pairs)}",
        theirs if pairs[0][1] else "-", mine, (0, "0"), False)
    for side in (0, 1):
        said = {p[side]["first_error"] for p in pairs if p[side] and "first_error" in p[side]}
        if said:
            print(f"\n{('quern', 'llama.cpp')[side]} said: {'; '.join(sorted(said))}\n", flush=True)


def section_mixed(args):
    pairs = compare("mixed", 16, args)
    head("16 clients, prompts of 64-1,024 tokens, answers of 16-256")
    ratio_row("output tokens a second", pairs, lambda r: r["output_tok_s"], "tok/s", (1.8, ">= 1.8x"), True)
    ratio_row("p99 time to first token", pairs, lambda r: r["ttft_ms"]["p99"], "ms", (0.5, "<= 0.5x"), False)
    ratio_row("p99 time between tokens", pairs, lambda r: r["itl_ms"]["p99"], "ms", (0.15, "<= 0.15x"), False)
    errors_row(pairs)


def section_shared(args):
    pairs = compare("shared", 8, args)
    head("16 clients, 1,024 tokens in common, 32 of their own, answers of 32")
    ratio_row("output tokens a second", pairs, lambda r: r["output_tok_s"], "tok/s", (5, ">= 5x"), True)
    errors_row(pairs)


def plain_ids(server):
    """Some tokens of the tiny model that are text of their own, so that each of them is an event."""
    found = []
    for i in range(1000):
        status, answer = call(server.port, "/detokenize", {"tokens": [i]})
        text = json.loads(answer).get("prompt", "") if status == 200 else ""
        if text.strip().isascii() and text.strip().isalpha():
            found.append(str(i))
        if len(found) == 64 or status != 200:
            break
    if not found:
        raise SystemExit(f"/detokenize gave no plain token: {status} {answer[:200]}")
    return ",".join(found)


def section_streams(args):
    """Twice 20,000 tokens a second: everybody running, or a tenth of them at a time in shorter steps."""
    for running, step_ms in ((args.streams, 100), (args.streams // 10, 10)):
        tokens = 100 if running == args.streams else 50
        with quern_server(TINY, args.threads, "--fake-step", step_ms * 1000, "--max-num-seqs", running,
                          "--max-num-batched-tokens", max(4096, running), "--num-gpu-blocks-override",
                          running * 12) as server:
            allow = plain_ids(server)
            report = load("streams", server, clients=args.streams, tokens=tokens, pid=server.pid,
                          allow=allow)
        print(f"  streams: {json.dumps(report)}", file=sys.stderr, flush=True)
        head(f"{args.streams:,} streams without a model, {running:,} running, a step every {step_ms} ms")
        row("streams that did not complete", report["errors"], "-", report["errors"], (0, "0"), False)
        each = (report["rss_max"] - report["rss_before"]) / args.streams / KIB
        row("memory of a stream", f"{each:.1f} KiB", "-", each, (32, "< 32 KiB"), False)
        row("p99 delivery delay", f"{report['delay_ms']['p99']:.2f} ms", "-", report["delay_ms"]["p99"],
            (20, "< 20 ms"), False)
        print(f"\n{report['output_tok_s']:.0f} tokens a second from the first request to the last answer; between "
              f"tokens p50 {report['itl_ms']['p50']:.1f} ms, p99 {report['itl_ms']['p99']:.1f} ms; p50 delay "
              f"{report['delay_ms']['p50']:.2f} ms\n", flush=True)


def scrape(port, n=400):
    """Milliseconds that one answer of /metrics takes, over a connection that stays; the median."""
    ask, took = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", []
    with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(n):
            began = time.perf_counter()
            s.sendall(ask)
            got = s.recv(65536)
            head, _, body = got.partition(b"\r\n\r\n")
            left = int(head.lower().split(b"content-length:")[1].split()[0]) - len(body)
            while left > 0:
                left -= len(s.recv(65536))
            took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def section_requests(args):
    reports, scrapes = [], []
    for _ in range(args.rounds):
        with quern_server(TINY, args.threads, "--fake-step", 0) as server:
            reports.append(load("requests", server, requests=args.one_token, vocab=256))
            scrapes.append(scrape(server.port))
        print(f"  requests: {json.dumps(reports[-1])}", file=sys.stderr, flush=True)
    head("requests of one token without a model, 64 clients")
    rate = statistics.median(r["requests_s"] for r in reports)
    row("requests a second", f"{rate:.0f}", "-", rate, (10000, ">= 10,000"), True)
    failed = sum(r["errors"] for r in reports)
    row("requests that failed", failed, "-", failed, (0, "0"), False)
    value = statistics.median(scrapes)
    row("a scrape of /metrics", f"{value:.3f} ms", "-", value, (1, "< 1 ms"), False)


def attack(port, stop):
    """Bad bytes, bad bodies, heads that never end, connections that are cut; again and again."""
    held, i = [], 0
    while not stop.is_set():
        i += 1
        try:
            s = socket.create_connection(("127.0.0.1", port), timeout=5)
            body = soak.BAD_BODIES[i % len(soak.BAD_BODIES)]
            if i % 3 == 0:
                s.sendall(soak.POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                s.recv(1000)
            elif i % 3 == 1:
                s.sendall(soak.BAD_BYTES[i // 3 % len(soak.BAD_BYTES)])
            else:
                s.sendall(soak.POST[:i % len(soak.POST)])  # and no more
                held.append(s)
                held[:len(held) - 200] = []
        except OSError:
            pass


def section_attack(args):
    """The same streams twice on one server: the time between their tokens must stay what it was."""
    tokens, step_ms, clients = 480, 10, 32
    quiet, beside = [], []
    for _ in range(args.rounds):
        with quern_server(TINY, args.threads, "--fake-step", step_ms * 1000, "--max-num-seqs", clients) as server:
            allow = plain_ids(server)
            quiet.append(load("streams", server, clients=clients, tokens=tokens, allow=allow))
            stop = multiprocessing.Event()
            attacker = multiprocessing.Process(target=attack, args=(server.port, stop))
            attacker.start()
            beside.append(load("streams", server, clients=clients, tokens=tokens, allow=allow))
            stop.set()
            attacker.join()
        print(f"  attack: {json.dumps(quiet[-1])}\n  {json.dumps(beside[-1])}", file=sys.stderr, flush=True)
    head(f"{clients} streams, a step every {step_ms} ms, beside an attack")
    ratio = statistics.median(b["itl_ms"]["p99"] / q["itl_ms"]["p99"] for q, b in zip(quiet, beside))
    row("p99 between tokens", f"{statistics.median(b['itl_ms']['p99'] for b in beside):.2f} ms, {ratio:.2f}x that of "
        "the same streams alone", "-", ratio, (1.5, "<= 1.5x"), False)
    failed = sum(r["errors"] for r in quiet + beside)
    row("streams that did not complete", failed, "-", failed, (0, "0"), False)


def digest(path):
    """Of a model's file or folder and of everything in the cache."""
    folders = [pathlib.Path(path)]
    cache = os.environ.get("QUERN_CACHE") or \
        pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "quern"
    folders.append(pathlib.Path(cache))
    out = {}
    for folder in folders:
        for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if file.is_file():
                with open(file, "rb") as f:
                    out[str(file)] = hashlib.file_digest(f, "sha256").hexdigest()
    return out


def section_start(args):
    with quern_server(args.model, args.threads):
        pass  # the file is in the cache of the system from here on
    starts = []
    for _ in range(max(3, args.rounds)):
        with quern_server(args.model, args.threads) as server:
            starts.append(server.start_s)
    before, again = digest(args.model), []
    for _ in range(max(3, args.rounds)):
        server = quern_server(args.model, args.threads)
        server.__enter__()
        clients = subprocess.Popen([LOAD, "mixed", "--port", str(server.port), "--ids", args.ids, "--timeout", "20"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)
        server.process.kill()
        server.process.wait()
        clients.wait()
        with Server(server.argv, server.port) as second:
            again.append(second.start_s)
    head("starts, the model in the file cache")
    value = statistics.median(starts)
    row("exec to the first token", f"{value:.3f} s ({min(starts):.3f}-{max(starts):.3f})", "-", value,
        (0.5, "< 0.5 s"), False)
    value = statistics.median(again)
    row("kill -9 under load, started again, to the first token", f"{value:.3f} s ({min(again):.3f}-{max(again):.3f})",
        "-", value, (1, "< 1 s"), False)
    changed = [name for name, value in digest(args.model).items() if before.get(name, value) != value]
    row("files that changed on disk", len(changed), "-", len(changed), (0, "0"), False)


SECTIONS = {"mixed": section_mixed, "shared": section_shared, "streams": section_streams,
            "requests": section_requests, "attack": section_attack, "start": section_start}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--requests", type=int, default=48, help="of mixed and shared")
    parser.add_argument("--patience", type=int, default=240, help="seconds for one load of mixed or shared")
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--one-token", type=int, default=100000, help="requests of one token")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="a file instead of the default model")
    parser.add_argument("--only", choices=SECTIONS, action="append")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp's server")
    parser.add_argument("--check", action="store_true", help="end with 1 when a bar is missed")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = args.only or list(SECTIONS)
    if {"mixed", "shared", "start"} & set(wanted):
        args.model = args.model or default_model()
        args.ids = write_ids(args.model, args.threads)
    args.peer = None
    if {"mixed", "shared"} & set(wanted) and not args.no_peer:
        args.peer = server_peer.peer_server()
    print(f"{args.threads} threads, the median of {args.rounds} rounds")
    for name in wanted:
        SECTIONS[name](args)
    missed = [what for what, ok in rows if not ok]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} bars met" + "".join(f"\nMISSED {what}" for what in missed))
    sys.exit(1 if args.check and missed else 0)


if __name__ == "__main__":
    main()
