"""`quern serve` as a context manager for the tests, and a socket that says exactly what it is told."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

from cli_models import REPO, quern_bin

TINY = REPO / "tests" / "data" / "tiny" / "tiny-1m-q8_0.gguf"


class Quern:
    """A running server: url, port, pid; log() is what it has written so far."""

    def __init__(self, *args, model=TINY, env=None, wait=True, pass_fds=(), preexec_fn=None):
        argv = [quern_bin(), "serve", str(model), "--port", "0", *map(str, args)]
        if "--uds" in args:
            argv[3:5] = []
        full = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "ASAN_OPTIONS": "detect_leaks=1:exitcode=99",
                "TSAN_OPTIONS": "exitcode=98", **(env or {})}
        self.process = subprocess.Popen(argv, env=full, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        pass_fds=pass_fds, preexec_fn=preexec_fn)
        self.pid = self.process.pid
        self.lines = []
        self.url = self.port = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait and not self.ready.wait(60):
            self.process.kill()
            raise AssertionError("the server did not start:\n" + self.log())
        assert not wait or (self.url is not None and self.process.poll() is None), "the server ended:\n" + self.log()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"quern: serving (\S+) at (\S+)", line)
            if found:
                self.model, self.url = found.groups()
                port = re.search(r":(\d+)$", self.url)
                self.port = int(port.group(1)) if port else None
                self.ready.set()
        self.ready.set()

    def log(self):
        return "".join(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None:
            assert code == 0, f"the server ended with {code}:\n{self.log()[-4000:]}"

    def stop(self, sign=signal.SIGTERM, timeout=30):
        if self.process.poll() is None:
            self.process.send_signal(sign)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server did not end:\n" + self.log()[-4000:])
        self.reader.join(5)
        return code

    def rss(self):
        return int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096

    def call(self, path, body=None, headers=None, method=None):
        """(status, headers, parsed or raw body)"""
        data = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        request = urllib.request.Request(self.url + path, data=data, headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                status, head, text = r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            status, head, text = e.code, e.headers, e.read()
        try:
            return status, head, json.loads(text)
        except ValueError:
            return status, head, text

    def post(self, path, **body):
        status, _, answer = self.call(path, body)
        return status, answer

    def metric(self, name):
        """The sum over its labels."""
        text = self.call("/metrics")[2].decode()
        return sum(float(x) for x in re.findall(rf"^{name}(?:{{\S*}})? (\S+)$", text, re.M))

    def raw(self, text, timeout=10, end=False):
        """Everything that comes back for these bytes until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
            if end:
                s.shutdown(socket.SHUT_WR)
            return read_all(s)

    def wait_idle(self, seconds=10):
        end = time.time() + seconds
        while time.time() < end:
            stats = self.call("/stats")[2]
            if stats["running"] + stats["waiting"] == 0:
                return stats
            time.sleep(0.02)
        raise AssertionError(f"still busy: {stats}")


def read_all(s, quiet=None):
    """Until the other side closes; with quiet, until that many seconds without a byte."""
    got = b""
    if quiet:
        s.settimeout(quiet)
    try:
        while True:
            part = s.recv(65536)
            if not part:
                return got
            got += part
    except (TimeoutError, ConnectionResetError):
        return got


def status_of(answer):
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    return int(found.group(1)) if found else 0


def events(text):
    """The data of a stream, [DONE] included."""
    return [line[6:] for line in text.split("\n") if line.startswith("data: ")]
