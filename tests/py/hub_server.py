"""A web server that misbehaves on request. A route is a function that gets the handler and writes what it likes; `Body`
is the well-behaved file, with ranges and ETags, and its knobs are the ways to break a promise."""

import hashlib
import http.server
import json
import socket
import threading
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server.owner
        with server.mutex:
            server.requests.append((self.path, dict(self.headers)))
        route = server.routes.get(self.path.split("?")[0])
        self.close_connection = True
        try:
            if route is None:
                self.answer(404, b"nothing here")
            else:
                route(self)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def drop(self):
        """Cut the connection so that the client sees it."""
        self.wfile.flush()
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def log_message(self, *args):
        pass


class Server:
    def __init__(self, host="127.0.0.1"):
        self.mutex, self.routes, self.requests = threading.Lock(), {}, []
        self.stopping = threading.Event()
        self.http = http.server.ThreadingHTTPServer((host, 0), Handler)
        self.http.daemon_threads = True
        self.http.owner = self
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self):
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()

    def asked(self, path):
        """Headers of each request for the path, in order."""
        with self.mutex:
            return [headers for p, headers in self.requests if p.split("?")[0] == path]

    def repository(self, repo, files, *, commit="a" * 40, revision="main", **knobs):
        """Serve a repository: files maps names to bytes; names ending in .gguf or .safetensors are large files."""
        siblings = []
        for name, data in files.items():
            item = {"rfilename": name, "size": len(data)}
            if name.endswith((".gguf", ".safetensors", ".bin")):
                item["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
                item["blobId"] = "0" * 40
            else:
                item["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            siblings.append(item)
            self.routes[f"/{repo}/resolve/{commit}/{name}"] = Body(data, **knobs)
        self.listing(repo, siblings, commit=commit, revision=revision)
        return siblings

    def listing(self, repo, siblings, *, commit="a" * 40, revision="main"):
        text = json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode()
        self.routes[f"/api/models/{repo}/revision/{revision}"] = lambda handler: handler.answer(200, text)


class Body:
    """One file. drop_after: bytes after which each of the first `drops` answers is cut. has_ranges: honours Range.
    length: what Content-Length claims. etag: None for none. statuses: answers to give before the file, each (status,
    headers). stall_after: bytes after which nothing more comes. rate: bytes per second."""

    def __init__(self, data, *, drops=0, drop_after=0, has_ranges=True, checks_if_range=True, length=None, etag='"one"',
                 statuses=(), stall_after=None, stalls=1, rate=None):
        self.data, self.drops, self.drop_after, self.has_ranges = data, drops, drop_after, has_ranges
        self.checks_if_range, self.length, self.etag, self.statuses = checks_if_range, length, etag, list(statuses)
        self.stall_after, self.stalls, self.rate = stall_after, stalls, rate

    def __call__(self, handler):
        if self.statuses:
            status, headers = self.statuses.pop(0)
            return handler.answer(status, b"no", headers)
        start, wanted = 0, handler.headers.get("Range")
        if wanted and self.has_ranges:
            fits = not self.checks_if_range or handler.headers.get("If-Range") in (None, self.etag)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if fits else 0
        if start >= len(self.data) > 0:
            return handler.answer(416, b"", [("Content-Range", f"bytes */{len(self.data)}")])
        handler.send_response(206 if start else 200)
        length = self.length if self.length is not None and not start else len(self.data) - start
        handler.send_header("Content-Length", str(length))
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.data) - 1}/{len(self.data)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        handler.send_header("Connection", "close")
        handler.end_headers()
        self.send(handler, self.data[start:])

    def send(self, handler, data):
        if self.drops > 0:
            self.drops -= 1
            handler.wfile.write(data[:self.drop_after])
            return handler.drop()
        if self.stall_after is not None and self.stalls > 0:
            self.stalls -= 1
            handler.wfile.write(data[:self.stall_after])
            handler.wfile.flush()
            handler.server.owner.stopping.wait(30)
            return None
        if self.rate is None:
            return handler.wfile.write(data)
        for at in range(0, len(data), self.rate // 20):
            handler.wfile.write(data[at:at + self.rate // 20])
            handler.wfile.flush()
            time.sleep(0.05)
        return None
