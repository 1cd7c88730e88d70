"""A server that speaks the page's routes and answers by script: slow, broken, locked or hostile on demand, and without
a Content-Security-Policy, so that the page's own escaping is what is tested. Also serves `quern top`'s tests."""
import base64
import json
import pathlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WEB = pathlib.Path(__file__).resolve().parents[2] / "web"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
UPPER = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5]


def histogram(n):
    counts = [0] * (len(UPPER) + 1)
    counts[3] = n
    return {"upper": UPPER, "counts": counts, "sum": 0.06 * n, "n": n}


def stats(turn, with_map=False):
    """Numbers that move by known amounts from one turn to the next."""
    n, held = 96, 10 + turn % 20
    states = bytes([4] * 4 + [3] * held + [2] * 2 + [1] * 20 + [0] * (n - held - 26))
    out = {
        "state": "ready", "model": "scripted", "version": "0.0", "device": "none", "uptime_s": 100.0 + turn,
        "running": 1 + turn % 7, "waiting": turn % 3, "swapped": 0, "paused": 0, "max_num_seqs": 8, "context": 512,
        "kv": {"blocks": n, "block_tokens": 16, "free": n - held - 26, "cached": 20, "parked": 2, "held": held + 4,
               "shared": 4, "host": 0, "host_free": 0, "host_cached": 0},
        "prefix": {"lookups": 4 * turn, "exact": turn, "prefix": 2 * turn, "miss": turn,
                   "tokens_asked": 100 * turn, "tokens_found": 75 * turn},
        "tokens": {"prompt": 50 * turn, "prompt_cached": 20 * turn, "output": 200 * turn},
        "requests": 3 * turn, "ended": {"stop": 2 * turn, "length": turn, "abort": 0},
        "preempted": {"swap": 0, "recompute": 1}, "steps": 40 * turn,
        "busy_ns": int(6e8) * turn, "idle_ns": int(4e8) * turn,
        "hist": {"ttft": histogram(3 * turn), "itl": histogram(200 * turn), "e2e": histogram(3 * turn)},
        "tenants": [
            {"name": "default", "weight": 1, "prompt_tokens": 30 * turn, "output_tokens": 150 * turn, "running": 1,
             "waiting": 0},
            {"name": "batch", "weight": 1, "prompt_tokens": 20 * turn, "output_tokens": 50 * turn, "running": 0,
             "waiting": 1}],
    }
    if with_map:
        out["kv_map"] = base64.b64encode(states).decode()
    return out


class Script:
    """What the server does, set by a test; and what it saw, read by it."""

    def __init__(self):
        self.reasoning = []  # pieces before the answer
        self.answer = "Hello from the script."
        self.delay_s = 0.0  # between two pieces
        self.refusal = None  # (status, message, extra headers), for the next request only
        self.key = None
        self.turn = 1
        self.stats_body = None  # in place of the numbers
        self.requests = []  # bodies of chat requests
        self.left_early = threading.Event()  # a client closed its connection in the middle of an answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, kind, body, headers=()):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def fail(self, status, message, headers=()):
        body = {"error": {"message": message, "type": "error", "param": None, "code": None}}
        self.reply(status, "application/json", json.dumps(body).encode(), headers)

    def is_let_in(self):
        key = self.server.script.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.fail(401, "a key is needed")
        return False

    def do_GET(self):
        path, _, query = self.path.partition("?")
        file = re.fullmatch(r"/([a-z]+\.(html|css|js|svg))", path)
        script = self.server.script
        if path == "/":
            self.reply(200, TYPES["html"], (WEB / "index.html").read_bytes())
        elif file:
            self.reply(200, TYPES[file[2]], (WEB / file[1]).read_bytes())
        elif not self.is_let_in():
            pass
        elif path == "/stats":
            script.turn += 1
            body = script.stats_body
            if body is None:
                body = json.dumps(stats(script.turn, "map=1" in query)).encode()
            self.reply(200, "application/json", body)
        elif path == "/v1/models":
            self.reply(200, "application/json", json.dumps({"object": "list", "data": [{"id": "scripted"}]}).encode())
        else:
            self.fail(404, "no such route")

    def do_POST(self):
        script = self.server.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_let_in():
            return
        script.requests.append(body)
        if script.refusal:
            status, message, headers = script.refusal
            script.refusal = None
            self.fail(status, message, headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.stream(script)
        except OSError:
            script.left_early.set()

    def event(self, data):
        self.wfile.write(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")
        self.wfile.flush()

    def stream(self, script):
        pieces = re.findall(r"\s*\S+\s*", script.answer)
        self.wfile.write(b": a comment, as servers send while one waits\n\n")
        self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for piece in script.reasoning:
            self.event({"choices": [{"index": 0, "delta": {"reasoning_content": piece, "reasoning": piece}}]})
        for piece in pieces:
            self.event({"choices": [{"index": 0, "delta": {"content": piece}}]})
            time.sleep(script.delay_s)
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(pieces),
                                             "prompt_tokens_details": {"cached_tokens": 4}}})
        self.event(b"[DONE]")


class Server:
    """`with Server() as s:` listens on a free port of the loopback; s.url, s.script."""

    def __init__(self):
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.script = self.script = Script()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()
