"""Schemas that nobody has sent before, one after the other: each is compiled, used for an answer of two tokens, kept
and thrown out again by later ones. Measured are how many get through, what the server's memory does, and what a stream
beside them notices, against the same stream beside as many requests with one schema that is kept.

Every number is read from the server or by a process of its own, so that clients do not wait for each other. Memory may
grow until the cache of grammars is full (docs/structured-output.md) and no further.

usage: bench/schemas.py [--count N] [--clients N] [--model FILE]
"""
import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("QUERN_BUILD", ROOT / "build/release"))
QUERN = pathlib.Path(os.environ.get("QUERN_BIN", BUILD / "quern"))
TINY = ROOT / "tests/data/tiny/tiny-1m-q8_0.gguf"
OPTIONS = ["--device", "cpu", "--log-level", "warn", "--no-access-log"]
SHARES = 10  # of the run between two looks at memory


def schema(i):
    return {"type": "object", "additionalProperties": False, "required": ["kind", f"a{i}"], "properties": {
        "kind": {"enum": [f"k{i}", "other"]}, f"a{i}": {"type": "string", "maxLength": 10 + i % 90},
        "n": {"type": "integer", "minimum": i}}}


def body(i):
    return {"prompt": "The mill", "max_tokens": 2, "structured_outputs": {"json": schema(i)}}


def post(link, what):
    while True:
        link.request("POST", "/v1/completions", json.dumps(what), {"Content-Type": "application/json"})
        answer = link.getresponse()
        text = answer.read()
        if answer.status != 429:
            return answer.status, text
        time.sleep(0.05)


def ask(port, numbers, out):
    link = http.client.HTTPConnection("127.0.0.1", port)
    bad = 0
    for i in numbers:
        status, text = post(link, body(i))
        bad += status != 200
    out.put(bad)


def stream(port, stop, out):
    """Gaps between the tokens of one stream after the other, in ms."""
    gaps = []
    while not stop.is_set():
        link = http.client.HTTPConnection("127.0.0.1", port)
        link.request("POST", "/v1/completions", json.dumps({"prompt": "The river", "max_tokens": 400, "stream": True,
                                                            "ignore_eos": True}), {"Content-Type": "application/json"})
        answer, last = link.getresponse(), None
        while not stop.is_set():
            line = answer.readline()
            if not line:
                break
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                if last is not None:
                    gaps.append((now - last) * 1e3)
                last = now
        link.close()
    out.put(gaps)


def beside(port, numbers, clients):
    """Runs the requests with a stream beside them: seconds, failures, gaps."""
    stop, gaps, bad = multiprocessing.Event(), multiprocessing.Queue(), multiprocessing.Queue()
    one = multiprocessing.Process(target=stream, args=(port, stop, gaps))
    one.start()
    start = time.perf_counter()
    many = [multiprocessing.Process(target=ask, args=(port, numbers[k::clients], bad)) for k in range(clients)]
    for p in many:
        p.start()
    failed = sum(bad.get() for _ in many)
    for p in many:
        p.join()
    seconds = time.perf_counter() - start
    stop.set()
    found = gaps.get()
    one.join()
    return seconds, failed, found


def memory_kb(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def cpu_s(pid):
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def metric(port, name):
    link = http.client.HTTPConnection("127.0.0.1", port)
    link.request("GET", "/metrics")
    for line in link.getresponse().read().decode().splitlines():
        if line.startswith(name):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def told(gaps):
    gaps = sorted(gaps)
    if len(gaps) < 10:
        return "too few tokens"
    return (f"{len(gaps)} tokens, ms between two: mean {statistics.fmean(gaps):.2f}, "
            f"median {gaps[len(gaps) // 2]:.2f}, p99 {gaps[len(gaps) * 99 // 100]:.2f}, most {gaps[-1]:.1f}")


def serve(model):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([QUERN, "serve", model, "--host", "127.0.0.1", "--port", str(port), *OPTIONS])
    for _ in range(600):
        try:
            link = http.client.HTTPConnection("127.0.0.1", port)
            link.request("GET", "/health")
            if link.getresponse().status == 200:
                return server, port
        except OSError:
            pass
        time.sleep(0.1)
    server.kill()
    raise SystemExit("the server does not answer")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--count", type=int, default=100000)
    args.add_argument("--clients", type=int, default=2)
    args.add_argument("--model", default=str(TINY))
    a = args.parse_args()
    server, port = serve(a.model)
    try:
        seconds, bad, gaps = beside(port, [-1] * min(a.count, 5000), a.clients)
        print(f"one schema: {min(a.count, 5000) / seconds:.0f} requests/s, {bad} failed; beside it {told(gaps)}")
        print(f"memory {memory_kb(server.pid)} KB", flush=True)
        share, cpu = max(a.count // SHARES, 1), cpu_s(server.pid)
        for first in range(0, a.count, share):
            seconds, bad, gaps = beside(port, list(range(first, min(first + share, a.count))), a.clients)
            kept = metric(port, "quern_grammar_cache_bytes") / 2**20
            print(f"schemas to {first + share}: {share / seconds:.0f}/s, {bad} failed; memory "
                  f"{memory_kb(server.pid)} KB, grammars {kept:.1f} MiB; beside them {told(gaps)}", flush=True)
        print(f"{(cpu_s(server.pid) - cpu) / a.count * 1e3:.2f} ms of processor time for each schema, all told")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
