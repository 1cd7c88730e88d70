"""The server for half an hour among clients that do whatever clients do: ask, stream, stop reading, hang up, send
nonsense, get killed. It runs in `make soak`.

Every so often all clients pause. With the server at rest everything must have ended: no request running or waiting,
none that began and did not end, no KV block held, and the engine still ready: it audits its KV pool when it comes to
rest and fails when a block is missing, so ready means clean. Memory and open files are read there: from the first rests
after the warm-up to the last, resident memory may move by 2%. All the while one request with a fixed seed must give the
same text every time, whatever runs beside it, no answer may be a 5xx, and nobody may wait longer than --patience. The
pool is small, so sequences have to make room for each other.

A run of less than five minutes has no warm-up to speak of, and its memory is not judged.

usage: bench/soak.py [--minutes N] [--clients N] [--seed N] [--patience S] [--model FILE]
"""
import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("QUERN_BUILD", ROOT / "build/release"))
QUERN = pathlib.Path(os.environ.get("QUERN_BIN", BUILD / "quern"))
LOAD = BUILD / "tests/quern_load"
TINY = ROOT / "tests/data/tiny/tiny-1m-q8_0.gguf"
OPTIONS = ["--num-gpu-blocks-override", "160", "--max-num-seqs", "12", "--swap-space", "2MiB", "--queue-max", "256",
           "--max-body-size", "1MiB", "--device", "cpu", "--log-level", "warn", "--no-access-log"]
FIXED = {"prompt": "The mill by the river", "max_tokens": 24, "temperature": 0.8, "seed": 7, "ignore_eos": True}
MOVE = 0.02  # of resident memory between the first three rests and the last three
WARM_SHARE = 0.2  # of the time is warm-up
WARM_MINUTES = 1  # at least, for memory to be judged: that long the resumable streams are kept, 64 of them
WORDS = "stone river wheel flour grain miller water sack wind bread".split()

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BAD_BYTES = [
    b"\x00\xff\x16\x03\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
    POST + b"Content-Length: -1\r\n\r\n", POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    POST + b"Content-Length: 99999999999\r\n\r\n", POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", POST + b"A" * 40000,
    POST + b"Content-Length: 100\r\n\r\n{\"prompt\":", b"POST /v1/completions HTTP/1.1\r\n folded: x\r\n\r\n"]
BAD_BODIES = [
    b"", b"{", b"[]", b"null", b"{" * 5000, b"[" * 100000, b'{"prompt":"\xff\xfe"}', b'{"prompt":1e999}',
    b'{"prompt":[-1]}', b'{"prompt":[1099511627776]}', b'{"prompt":"x","max_tokens":-7}',
    b'{"prompt":"x","n":1000000}', b'{"prompt":"x","temperature":"hot"}', b'{"prompt":"x","temperature":-1}',
    b'{"prompt":"x","stop":[""]}', b'{"prompt":"x","logit_bias":{"a":1}}', b'{"prompt":"x","max_tokens":100000}',
    b'{"prompt":"x","best_of":5}', b'{"messages":[{"role":7}]}', b'{"prompt":"' + b"a" * 900000 + b'"}']


class Soak:
    """The server, what its clients saw, and the gate that holds them while it is at rest."""

    def __init__(self, args):
        self.args = args
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log_path = pathlib.Path(tempfile.mkdtemp(prefix="quern-soak-")) / "server.log"
        self.log = open(self.log_path, "w", encoding="utf-8")
        self.process = subprocess.Popen([str(QUERN), "serve", str(args.model), "--port", str(self.port), *OPTIONS],
                                        stdout=self.log, stderr=self.log)
        self.counts, self.failures = collections.Counter(), []
        self.lock, self.open, self.stop = threading.Lock(), threading.Event(), threading.Event()
        self.busy = 0
        self.fixed = None

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fail(self, what):
        with self.lock:
            if len(self.failures) < 20 and what not in self.failures:
                print(f"FAILED {what}", flush=True)
            self.failures.append(what)

    def call(self, path, body=None, timeout=120):
        """(status, bytes)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data,
                               {} if body is None else {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def socket(self, path, body):
        """A connection that has sent a request and read nothing."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        s.sendall(head.encode() + data)
        return s

    def memory(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) * 1024

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_ready(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if self.call("/readyz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("the server did not start:\n" + self.log_path.read_text(encoding="utf-8"))

    def wait_idle(self, end):
        """The numbers once nothing runs or waits."""
        while True:
            stats = json.loads(self.call("/stats")[1])
            if stats["running"] + stats["waiting"] + stats["swapped"] + stats["paused"] == 0 and \
                    stats["requests"] <= sum(stats["ended"].values()):  # a request of n answers ends n times
                return stats
            if time.monotonic() > end:
                self.fail("requests never ended: " + json.dumps({k: stats[k] for k in (
                    "running", "waiting", "swapped", "paused", "requests", "ended")}))
                return stats
            time.sleep(0.1)

    def rest(self):
        """Hold the clients, wait until everything has ended, and look."""
        self.open.clear()
        end = time.monotonic() + 180
        while self.busy and time.monotonic() < end:
            time.sleep(0.05)
        if self.busy:
            self.fail(f"{self.busy} clients still wait for their answers after three minutes")
        self.wait_idle(end)
        time.sleep(1.1)  # the audit comes once a second at most: one more request, and the next rest has it
        do_fixed(self, None)
        stats = self.wait_idle(end)
        time.sleep(0.2)
        kv = stats["kv"]
        if json.loads(self.call("/stats")[1])["state"] != "ready" or self.call("/readyz")[0] != 200:
            self.fail("at rest the server is not ready: its audit failed, or it did")
        if kv["held"] or kv["free"] + kv["cached"] + kv["parked"] != kv["blocks"] or \
                kv["host_free"] + kv["host_cached"] != kv["host"]:
            self.fail(f"KV blocks are missing at rest: {kv}")
        found = {"memory": self.memory(), "files": self.files(), "requests": stats["requests"]}
        self.open.set()
        return found


def prompt(draw):
    return " ".join(draw.choice(WORDS) for _ in range(draw.choice((1, 4, 20, 80))))


def request_body(draw, stream):
    body = {"prompt": prompt(draw), "max_tokens": draw.randint(1, 64), "temperature": draw.choice((0, 0.7, 1.5)),
            "ignore_eos": draw.random() < 0.8, "stream": stream}
    for name, value in (("n", draw.randint(1, 3)), ("logprobs", draw.randint(0, 5)), ("stop", ["river", "\n\n"]),
                        ("seed", draw.randint(0, 99)), ("top_k", draw.randint(1, 50)), ("min_p", 0.05),
                        ("repetition_penalty", 1.1), ("cache_salt", draw.choice("ab")), ("min_tokens", 1),
                        ("priority", draw.randint(-2, 2)), ("logit_bias", {"5": -10})):
        if draw.random() < 0.15:
            body[name] = value
    return body


def chat_body(draw, stream):
    return {"messages": [{"role": "user", "content": prompt(draw)}], "max_tokens": draw.randint(1, 48),
            "ignore_eos": True, "stream": stream}


def any_request(draw, stream):
    if draw.random() < 0.3:
        return "/v1/chat/completions", chat_body(draw, stream)
    return "/v1/completions", request_body(draw, stream)


def check_status(soak, status, where, allowed=(200, 429)):
    if status not in allowed:
        soak.fail(f"{where}: status {status}")


def do_whole(soak, draw):
    path, body = any_request(draw, False)
    status, answer = soak.call(path, body)
    check_status(soak, status, f"{path} {answer[:200]}")


def do_stream(soak, draw):
    path, body = any_request(draw, True)
    status, answer = soak.call(path, body)
    check_status(soak, status, f"{path} {answer[:200]}")
    if status == 200 and (not answer.endswith(b"data: [DONE]\n\n") or b'{"error"' in answer):
        soak.fail(f"a stream ended with {answer[-200:]}")


def do_hang_up(soak, draw):
    """Closed, or cut without a word, before, during or after the first tokens."""
    path, body = any_request(draw, draw.random() < 0.7)
    body["max_tokens"] = 200
    with soak.socket(path, body) as s:
        if draw.random() < 0.7:
            s.recv(draw.choice((1, 500, 5000)))
        if draw.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def do_slow(soak, draw):
    path, body = any_request(draw, True)
    body["max_tokens"] = 200
    with soak.socket(path, body) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        got = b""
        for _ in range(draw.randint(1, 20)):
            part = s.recv(200)
            got += part
            if not part or b"[DONE]" in got or b'"error"' in got:
                break
            time.sleep(0.05)


def do_resume(soak, draw):
    """A stream that breaks and is read to its end through another connection."""
    body = {"prompt": prompt(draw), "max_tokens": draw.randint(8, 48), "ignore_eos": True, "stream": True,
            "resumable": True}
    with soak.socket("/v1/completions", body) as s:
        got = b""
        while b'"id":"' not in got and (len(got) < 12 or got[9:12] == b"200"):
            part = s.recv(400)
            if not part:
                break
            got += part
    found = re.search(rb'"id":"([\w-]+)"', got)
    if not found:
        return  # refused: too many streams are kept
    status, answer = soak.call(f"/v1/streams/{found.group(1).decode()}?from=0")
    check_status(soak, status, f"/v1/streams {answer[:200]}", (200, 404))
    if status == 200 and not answer.endswith(b"data: [DONE]\n\n"):
        soak.fail(f"a resumed stream ended with {answer[-200:]}")


def do_bad_body(soak, draw):
    path = draw.choice(("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"))
    status, answer = soak.call(path, draw.choice(BAD_BODIES))
    if status >= 500 or not answer:
        soak.fail(f"{path}: status {status} for a bad body: {answer[:200]}")


def do_bad_bytes(soak, draw):
    with socket.create_connection(("127.0.0.1", soak.port), timeout=30) as s:
        s.sendall(draw.choice(BAD_BYTES))
        if draw.random() < 0.5:
            with contextlib.suppress(OSError):  # the server may have cut it already
                s.shutdown(socket.SHUT_WR)
            answer = s.recv(1000)
            if re.match(rb"HTTP/1\.1 (5|2)", answer):
                soak.fail(f"bad bytes were answered with {answer[:60]}")


def do_look(soak, draw):
    path = draw.choice(("/metrics", "/stats?map=1", "/health", "/livez", "/startupz", "/v1/models", "/openapi.json",
                        "/", "/nothing"))
    status, answer = soak.call(path)
    check_status(soak, status, f"{path} {answer[:200]}", (404,) if path == "/nothing" else (200,))


def do_fixed(soak, _):
    status, answer = soak.call("/v1/completions", FIXED)
    check_status(soak, status, f"the fixed request {answer[:200]}")
    if status == 200:
        text = json.loads(answer)["choices"][0]["text"]
        with soak.lock:
            soak.fixed = soak.fixed or text
        if text != soak.fixed:
            soak.fail(f"the fixed request gave {text!r} instead of {soak.fixed!r}")


def do_kill(soak, draw):
    """A whole process of clients that dies in the middle."""
    clients = subprocess.Popen([str(LOAD), "streams", "--port", str(soak.port), "--clients", "20", "--tokens", "100"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(draw.random())
    clients.kill()
    clients.wait()


ACTIONS = {do_whole: 20, do_stream: 20, do_hang_up: 15, do_slow: 4, do_resume: 4, do_bad_body: 10, do_bad_bytes: 10,
           do_look: 10, do_fixed: 6, do_kill: 1}


def client(soak, number):
    draw = random.Random(soak.args.seed * 1000 + number)
    while not soak.stop.is_set():
        if not soak.open.wait(0.2):
            continue
        with soak.lock:
            soak.busy += 1
        action = draw.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        began = time.monotonic()
        try:
            action(soak, draw)
            soak.count(action.__name__[3:])
        except (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine):
            soak.count("cut off by the server")
            if action not in (do_bad_bytes, do_bad_body):
                soak.fail(f"{action.__name__[3:]}: the server cut the connection")
        except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
            soak.fail(f"{action.__name__[3:]}: {type(e).__name__} {e}")
        finally:
            took = time.monotonic() - began
            if took > soak.args.patience:
                soak.fail(f"{action.__name__[3:]} took {took:.0f} s")
            with soak.lock:
                soak.busy -= 1


def run(soak, minutes):
    """The rests: the first one after the warm-up, then nine more."""
    soak.wait_ready()
    threads = [threading.Thread(target=client, args=(soak, i), daemon=True) for i in range(soak.args.clients)]
    soak.open.set()
    for thread in threads:
        thread.start()
    rests = []
    began = time.monotonic()
    for i in range(10):
        until = began + 60 * minutes * (WARM_SHARE + (1 - WARM_SHARE) * i / 9)
        while time.monotonic() < until and soak.process.poll() is None:
            time.sleep(0.2)
        if soak.process.poll() is not None:
            soak.fail(f"the server ended with {soak.process.returncode}")
            break
        rests.append(soak.rest())
        print(f"{(time.monotonic() - began) / 60:6.1f} min: {rests[-1]['memory'] / 2**20:.2f} MiB, "
              f"{rests[-1]['files']} files, {rests[-1]['requests']} requests, {sum(soak.counts.values())} actions",
              flush=True)
    soak.stop.set()
    soak.open.clear()
    for thread in threads:
        thread.join(130)
    return rests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--patience", type=float, default=30, help="seconds that anything may take")
    parser.add_argument("--model", default=TINY)
    args = parser.parse_args()
    print(f"{args.minutes:g} minutes of {args.clients} clients, seed {args.seed}", flush=True)
    soak = Soak(args)
    try:
        rests = run(soak, args.minutes)
    finally:
        if soak.process.poll() is None:
            soak.process.send_signal(signal.SIGTERM)
        try:
            code = soak.process.wait(60)
        except subprocess.TimeoutExpired:
            soak.process.kill()
            code = soak.process.wait()
    if code != 0:
        soak.fail(f"the server ended with {code}")
    for name, n in sorted(soak.counts.items()):
        print(f"{n:8} {name}")
    if len(rests) == 10:
        first, last = (statistics.median(r["memory"] for r in part) for part in (rests[:3], rests[-3:]))
        is_judged = args.minutes * WARM_SHARE >= WARM_MINUTES
        print(f"resident memory: {first / 2**20:.2f} MiB after the warm-up, {last / 2**20:.2f} MiB at the end: "
              f"{100 * (last / first - 1):+.2f}% (bar 2%{'' if is_judged else ', not judged: the warm-up was short'})")
        if is_judged and abs(last / first - 1) > MOVE:
            soak.fail(f"resident memory moved by {100 * (last / first - 1):.2f}%")
        if rests[-1]["files"] > rests[0]["files"] + 4:
            soak.fail(f"open files went from {rests[0]['files']} to {rests[-1]['files']}")
    if soak.failures:
        print(soak.log_path.read_text(encoding="utf-8")[-4000:])
        print(f"soak: FAILED, {len(soak.failures)} times; the first: {soak.failures[0]}")
        sys.exit(1)
    print("soak: passed")


if __name__ == "__main__":
    main()
