"""Downloads against a server that drops connections, ignores ranges, lies about length and content, stalls, redirects
and never ends. What must hold: the file that appears is the right one or none appears; an interrupted pull goes on from
where it was; every failure is an answer with its own code."""

import ctypes
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from hub_driver import LIB, Hub
from hub_server import Body, Server

DATA = b"GGUF" + random.Random(1).randbytes(299_996)
HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("HF_") or name in ("QUERN_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def server(monkeypatch):
    s = Server()
    monkeypatch.setenv("HF_ENDPOINT", s.url)
    yield s
    s.close()


@pytest.fixture
def hub(tmp_path):
    if not LIB.exists():
        pytest.fail(f"{LIB} is not built")
    return Hub(tmp_path / "cache", tmp_path / "log")


def serve(server, body, path="/m/model.gguf"):
    server.routes[path] = body
    return server.url + path


def assert_nothing_visible(hub):
    models = hub.cache / "models"
    assert not models.exists() or list(models.iterdir()) == []


def ranges(server, path="/m/model.gguf"):
    return [h.get("Range") for h in server.asked(path)]


# --- the straight way ---


def test_a_pulled_url_is_whole_described_and_leaves_no_rest(hub, server):
    url = serve(server, Body(DATA))
    answer = hub.pull(url + "?secret=1")
    assert answer.code == "OK"
    assert answer.path.read_bytes() == DATA
    manifest = json.loads((answer.path.parent / "manifest.json").read_text())
    assert manifest["files"] == [{"name": "model.gguf", "bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}]
    assert manifest["source"] == url
    assert list((hub.cache / "partial").iterdir()) == []
    (entry,) = hub.list()
    assert (entry["state"], entry["bytes"], entry["n_file"]) == ("ready", len(DATA), 1)
    assert abs(entry["time"] - time.time()) < 60
    assert hub.pull(url + "?secret=1").path == answer.path
    assert len(server.requests) == 1, "what is there is not asked for again"
    assert "secret" not in pathlib.Path(hub.log).read_text()
    assert hub.resolve(entry["name"]).path == answer.path


def test_dropped_connections_resume_where_they_ended(hub, server):
    url = serve(server, Body(DATA, drops=5, drop_after=50_000))
    answer = hub.pull(url)
    assert answer.code == "OK" and answer.path.read_bytes() == DATA
    assert ranges(server) == [None] + [f"bytes={k * 50_000}-" for k in range(1, 6)]
    assert all(h["If-Range"] == '"one"' for h in server.asked("/m/model.gguf")[1:])


def test_drops_that_bring_nothing_end_after_the_allowed_tries(hub, server):
    url = serve(server, Body(DATA, drops=1000, drop_after=0))
    answer = hub.pull(url, retry_max=2)
    assert answer.code == "NETWORK" and "gave up after 3 tries" in answer.text
    assert len(server.requests) == 3
    assert_nothing_visible(hub)


def test_a_server_that_ignores_ranges_is_read_from_the_start(hub, server):
    url = serve(server, Body(DATA, drops=2, drop_after=100_000, has_ranges=False))
    answer = hub.pull(url)
    assert answer.code == "OK" and answer.path.read_bytes() == DATA
    assert ranges(server) == [None, "bytes=100000-", "bytes=100000-"]


def test_a_file_that_changes_between_tries_is_not_mixed(hub, server):
    new = b"GGUF" + DATA[::-1] + b"more"

    def route(handler):
        first = len(server.asked("/m/model.gguf")) == 1
        (Body(DATA, drops=1, drop_after=100_000) if first else Body(new, etag='"two"'))(handler)

    answer = hub.pull(serve(server, route))
    assert answer.code == "OK" and answer.path.read_bytes() == new


def test_a_range_of_another_size_is_not_appended(hub, server):
    new = b"GGUF" + DATA[::-1] + b"more"

    def route(handler):
        first = len(server.asked("/m/model.gguf")) == 1
        (Body(DATA, drops=1, drop_after=100_000) if first else Body(new, checks_if_range=False))(handler)

    answer = hub.pull(serve(server, route))
    assert answer.code == "OK" and answer.path.read_bytes() == new
    assert ranges(server) == [None, "bytes=100000-", None]


def test_without_a_validator_an_unknown_file_is_fetched_anew_by_the_next_pull(hub, server):
    url = serve(server, Body(DATA, drops=1, drop_after=100_000, etag=None))
    assert hub.pull(url, retry_max=0).code == "NETWORK"
    assert hub.pull(url).path.read_bytes() == DATA
    assert ranges(server) == [None, None]


# --- lies ---


def test_a_length_longer_than_the_body_is_no_whole_file(hub, server):
    url = serve(server, Body(DATA, length=len(DATA) + 10))
    answer = hub.pull(url, retry_max=2)
    assert answer.code in ("NETWORK", "FORMAT"), answer
    assert_nothing_visible(hub)


def test_a_length_other_than_the_listing_says_is_refused_at_once(hub, server):
    for length in (len(DATA) - 10, len(DATA) + 10):
        server.repository("o/r", {"x.gguf": DATA}, length=length)
        answer = hub.pull("hf:o/r")
        assert answer.code == "FORMAT" and "the listing says 300000" in answer.text
    assert_nothing_visible(hub)


def test_wrong_content_is_refused_and_not_resumed(hub, server):
    server.repository("o/r", {"x.gguf": DATA})
    path = f"/o/r/resolve/{'a' * 40}/x.gguf"
    wrong = bytearray(DATA)
    wrong[777] ^= 1
    server.routes[path] = Body(bytes(wrong))
    answer = hub.pull("hf:o/r")
    assert answer.code == "HASH" and "SHA-256" in answer.text
    assert_nothing_visible(hub)
    server.routes[path] = Body(DATA)
    assert hub.pull("hf:o/r").path.read_bytes() == DATA
    assert ranges(server, path) == [None, None]


def test_a_bad_part_is_found_by_its_hash_and_fetched_once_more(hub, server):
    server.repository("o/r", {"x.gguf": DATA}, drops=1, drop_after=100_000)
    assert hub.pull("hf:o/r", retry_max=0).code == "NETWORK"
    (part,) = hub.cache.glob("partial/*/x.gguf.part")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert hub.pull("hf:o/r").path.read_bytes() == DATA
    assert ranges(server, f"/o/r/resolve/{'a' * 40}/x.gguf") == [None, "bytes=100000-", None]


def test_small_files_are_checked_by_their_git_hash(hub, server):
    files = {"config.json": b"{}", "model.safetensors": DATA}
    server.repository("o/r", files)
    server.routes[f"/o/r/resolve/{'a' * 40}/config.json"] = Body(b"[]")
    answer = hub.pull("hf:o/r")
    assert answer.code == "HASH" and "git hash" in answer.text
    server.repository("o/r", files)
    assert hub.pull("hf:o/r").code == "OK"


def test_a_body_without_end_or_length_stops_at_its_limit(hub, server):
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while not server.stopping.is_set():
            handler.wfile.write(b"\0" * 1_000_000)

    answer = hub.pull(serve(server, endless))
    assert answer.code == "LIMIT" and "does not say its size" in answer.text
    server.repository("o/r", {"x.gguf": DATA})
    server.routes[f"/o/r/resolve/{'a' * 40}/x.gguf"] = endless
    answer = hub.pull("hf:o/r")
    assert answer.code == "FORMAT" and "more than the 300000 bytes" in answer.text
    assert sum(f.stat().st_size for f in hub.cache.rglob("*.part")) < 65 * 2**20
    assert_nothing_visible(hub)


def test_endless_headers_are_cut(hub, server):
    def endless(handler):
        handler.send_response(200)
        while not server.stopping.is_set():
            handler.send_header("X-More", "y" * 1000)
            handler.flush_headers()

    answer = hub.pull(serve(server, endless))
    assert answer.code == "NETWORK" and "headers" in answer.text


def test_an_empty_file_and_an_empty_answer_are_told_apart(hub, server):
    assert hub.pull(serve(server, Body(b""))).code == "NETWORK"
    server.repository("o/r", {"config.json": b"{}", "model.safetensors": DATA, "merges.txt": b""})
    assert hub.pull("hf:o/r").code == "OK"


# --- statuses ---


@pytest.mark.parametrize("status, code", [(404, "NOT_FOUND"), (410, "NOT_FOUND"), (401, "DENIED"), (403, "DENIED"),
                                          (400, "NETWORK"), (204, "NETWORK"), (418, "NETWORK")])
def test_a_definite_refusal_is_not_tried_again(hub, server, status, code):
    answer = hub.pull(serve(server, Body(DATA, statuses=[(status, [])] * 9)))
    assert answer.code == code and str(status) in answer.text
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_passing_trouble_is_tried_again(hub, server, status):
    answer = hub.pull(serve(server, Body(DATA, statuses=[(status, [])] * 3)))
    assert answer.code == "OK" and answer.path.read_bytes() == DATA


def test_retry_after_is_honoured_up_to_the_cap(hub, server):
    start = time.monotonic()
    assert hub.pull(serve(server, Body(DATA, statuses=[(429, [("Retry-After", "1")])]))).code == "OK"
    assert 1.0 <= time.monotonic() - start < 5
    hub.remove(server.url + "/m/model.gguf")
    start = time.monotonic()
    body = Body(DATA, statuses=[(429, [("Retry-After", "99999999999")])])
    assert hub.pull(serve(server, body), retry_cap_ms=300).code == "OK"
    assert 0.3 <= time.monotonic() - start < 3


def test_an_unreachable_host_is_given_up_soon(hub, server):
    server.close()
    answer = hub.pull(server.url + "/m/model.gguf", retry_max=50)
    assert answer.code == "NETWORK" and "gave up after 2 tries" in answer.text


# --- redirects and the token ---


def redirect(to, status=302):
    return lambda handler: handler.answer(status, b"", [("Location", to)])


def test_redirects_are_followed_but_not_for_ever(hub, server):
    server.routes["/real"] = Body(DATA)
    for status in (301, 302, 303, 307, 308):
        url = serve(server, redirect("/real", status), f"/m/{status}.gguf")
        assert hub.pull(url).path.read_bytes() == DATA
    answer = hub.pull(serve(server, redirect("/m/loop.gguf"), "/m/loop.gguf"))
    assert answer.code == "NETWORK" and "more than 10 redirects" in answer.text
    assert len(server.asked("/m/loop.gguf")) == 11


@pytest.mark.parametrize("target, code", [
    ("http://192.0.2.1/x.gguf", "DENIED"), ("http://127.evil.example/x", "DENIED"), ("http://", "NETWORK"),
    ("file:///etc/passwd", "UNSUPPORTED"), ("ftp://127.0.0.1/x", "UNSUPPORTED")])
def test_redirects_to_places_not_allowed_are_refused(hub, server, target, code):
    answer = hub.pull(serve(server, redirect(target)), connect_ms=300, retry_max=0)
    assert answer.code == code or (target == "http://" and answer.code in ("INVALID", "DENIED")), answer


def test_the_token_goes_to_the_endpoint_only(hub, server, monkeypatch):
    other = Server()
    try:
        server.repository("o/r", {"x.gguf": DATA})
        path = f"/o/r/resolve/{'a' * 40}/x.gguf"
        server.routes[path] = redirect(other.url + "/store/x")
        other.routes["/store/x"] = redirect(f"http://localhost:{other.port}/store/y")
        other.routes["/store/y"] = Body(DATA)
        monkeypatch.setenv("HF_TOKEN", "hf_sesame")
        assert hub.pull("hf:o/r").code == "OK"
        assert [h.get("Authorization") for _, h in server.requests] == ["Bearer hf_sesame"] * 2
        assert [h.get("Authorization") for _, h in other.requests] == [None, None]
        assert hub.pull(other.url + "/store/z.gguf").code == "NOT_FOUND"
        assert other.requests[-1][1].get("Authorization") is None
        assert "sesame" not in pathlib.Path(hub.log).read_text()
        assert not any(b"sesame" in f.read_bytes() for f in hub.cache.rglob("*") if f.is_file())
    finally:
        other.close()


def test_the_token_is_read_from_its_file_and_must_fit_a_header(hub, server, monkeypatch, tmp_path):
    server.repository("o/r", {"x.gguf": DATA})
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_from_file\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert hub.pull("hf:o/r").code == "OK"
    assert server.requests[0][1]["Authorization"] == "Bearer hf_from_file"
    monkeypatch.setenv("HF_TOKEN", "evil\r\nX-Injected: 1")
    answer = hub.pull("hf:o/r")
    assert answer.code == "INVALID" and "evil" not in answer.text


def test_plain_http_is_for_loopback_only(hub):
    for url in ("http://example.com/x.gguf", "http://127.0.0.1.example.com/x.gguf", "http://localhost.example/x.gguf"):
        assert hub.pull(url).code == "DENIED"
    assert hub.pull("ftp://example.com/x.gguf").code == "UNSUPPORTED"
    assert hub.pull("https://example.com/x.bin").code == "UNSUPPORTED"


# --- interruptions ---


def test_a_stalled_transfer_is_dropped_and_resumed(hub, server):
    url = serve(server, Body(DATA, stall_after=120_000))
    answer = hub.pull(url, stall_ms=700)
    assert answer.code == "OK" and answer.path.read_bytes() == DATA
    assert ranges(server) == [None, "bytes=120000-"]


def test_a_transfer_that_only_drips_is_given_up(hub, server):
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(DATA)))
        handler.end_headers()
        for byte in DATA:
            handler.wfile.write(bytes([byte]))
            if server.stopping.wait(0.02):
                return

    answer = hub.pull(serve(server, drip), stall_ms=400, retry_max=1)
    assert answer.code == "NETWORK" and "next to nothing came for 400 ms" in answer.text
    assert "gave up after 2 tries" in answer.text


def wait_for_part(hub, least, timeout=10):
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if any(f.stat().st_size >= least for f in hub.cache.glob("partial/*/*.part")):
            return
        time.sleep(0.01)
    pytest.fail("no part appeared")


def test_a_cancel_leaves_a_part_that_goes_on(hub, server):
    url = serve(server, Body(DATA, stall_after=120_000))
    flag = ctypes.c_bool(False)

    def cancel():
        wait_for_part(hub, 120_000)
        flag.value = True

    threading.Thread(target=cancel).start()
    answer = hub.pull(url, cancel=flag)
    assert answer.code == "CANCELLED"
    (entry,) = hub.list()
    assert entry["state"] == "partial" and entry["bytes"] >= 120_000
    assert hub.pull(url).path.read_bytes() == DATA
    assert ranges(server) == [None, "bytes=120000-"]


def spawn(hub, model, log):
    return subprocess.Popen([sys.executable, HERE / "hub_driver.py", "pull", hub.cache, model, log],
                            stdout=subprocess.PIPE, text=True)


def test_kill_9_in_the_middle_then_resume(hub, server):
    url = serve(server, Body(DATA, stall_after=120_000))
    child = spawn(hub, url, "")
    wait_for_part(hub, 120_000)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert_nothing_visible(hub)
    assert hub.pull(url).path.read_bytes() == DATA
    assert ranges(server) == [None, "bytes=120000-"]


def test_two_pulls_at_once_fetch_once(hub, server, tmp_path):
    url = serve(server, Body(DATA, rate=400_000))
    children = [spawn(hub, url, tmp_path / f"log{i}") for i in range(2)]
    answers = [child.communicate(timeout=30)[0].split() for child in children]
    assert answers[0] == answers[1] and answers[0][0] == "OK"
    assert pathlib.Path(answers[0][1]).read_bytes() == DATA
    assert len(server.requests) == 1
    logs = [(tmp_path / f"log{i}").read_text() for i in range(2)]
    assert sum("being pulled by another process" in log for log in logs) == 1


def test_an_entry_being_pulled_cannot_be_removed(hub, server):
    url = serve(server, Body(DATA, stall_after=120_000))
    child = spawn(hub, url, "")
    wait_for_part(hub, 120_000)
    answer = hub.remove(url)
    assert answer.code == "EXISTS" and "being pulled" in answer.text
    child.kill()
    child.wait()
    assert hub.remove(url).code == "OK"
    assert hub.list() == [] and list(hub.cache.rglob("*.part")) == []


# --- the machine fails ---


FAULT_ALLOC, FAULT_SYS = 0, 1


@pytest.mark.parametrize("kind", [FAULT_ALLOC, FAULT_SYS])
@pytest.mark.parametrize("sticky", [False, True])
def test_every_failing_call_is_an_answer_and_leaves_the_cache_usable(hub, server, kind, sticky):
    server.repository("o/r", {"config.json": b"{}", "model.safetensors": DATA[:5000], "tokenizer.json": b"[]"})
    codes = set()
    for nth in range(1, 2000):
        hub.fault(kind, nth, sticky)
        answers = [hub.pull("hf:o/r", retry_max=1, retry_ms=1), hub.remove("hf:o/r")]
        calls = hub.fault_calls(kind)
        hub.fault(kind, 0)
        codes |= {a.code for a in answers}
        assert codes <= {"OK", "IO", "NOMEM", "NETWORK", "NOT_FOUND"}, answers
        if nth % 7 == 0:
            assert hub.pull("hf:o/r").code == "OK"
        if calls < nth:
            break
    else:
        pytest.fail("no end of calls")
    assert nth > 10 and answers[0].code == "OK" and answers[1].code == "OK"
    assert "NOMEM" in codes if kind == FAULT_ALLOC else "IO" in codes


def test_what_cannot_fit_is_not_begun(hub, server):
    files = server.repository("o/r", {"config.json": b"{}", "model.safetensors": DATA})
    shards = [{"rfilename": f"model-{i:05}-of-00999.safetensors", "size": 2**40} for i in range(1, 1000)]
    server.listing("o/r", files + shards)
    answer = hub.pull("hf:o/r")
    assert answer.code == "IO" and "free" in answer.text
    assert len(server.requests) == 1


def test_what_is_there_already_needs_no_room(hub, server):
    stat = os.statvfs(hub.cache.parent)
    size = stat.f_bavail * stat.f_frsize + 2**30
    files = server.repository("o/r", {"config.json": b"{}"})
    server.listing("o/r", files + [{"rfilename": "model.safetensors", "size": size}])
    assert hub.pull("hf:o/r").code == "IO"
    part = hub.cache / "partial/o--r/model.safetensors.part"
    part.parent.mkdir(exist_ok=True)
    with part.open("wb") as f:
        try:
            f.truncate(size - 1000)
        except OSError:
            pytest.skip(f"no file of {size} bytes on this file system")
    assert hub.pull("hf:o/r").code == "NOT_FOUND"  # room enough; the server has only the listing


@pytest.mark.parametrize("page", [b"<html>log in</html>", b"GG", b"gguf" + DATA])
def test_a_page_instead_of_a_model_is_not_kept(hub, server, page):
    answer = hub.pull(serve(server, Body(page)))
    assert answer.code == "FORMAT" and "no GGUF file" in answer.text
    assert_nothing_visible(hub)
    serve(server, Body(DATA, etag="two"))
    assert hub.pull(server.url + "/m/model.gguf").path.read_bytes() == DATA


def test_a_full_disk_is_said_and_keeps_what_is_there(hub, server):
    url = serve(server, Body(DATA, drops=1, drop_after=100_000))
    assert hub.pull(url, retry_max=0).code == "NETWORK"
    for nth in range(1, 60):
        hub.fault(FAULT_SYS, nth, True)
        answer = hub.pull(url, retry_max=0)
        hub.fault(FAULT_SYS, 0)
        if "No space left" in answer.text:
            break
    else:
        pytest.fail("never saw a full disk")
    assert answer.code == "IO"
    assert hub.pull(url).path.read_bytes() == DATA
