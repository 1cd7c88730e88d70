"""quern top against a scripted server: figures, lines, JSON, keys, a real terminal, and servers that are not what they
should be."""
import http.server
import json
import re
import signal
import socket
import socketserver
import subprocess
import threading
import time

import pytest

from chat_terminal import CTRL_C, Terminal
from cli_models import quern, quern_bin
from page_server import Handler, Script, Server, stats
from server_quern import Quern


@pytest.fixture
def server():
    with Server() as s:
        yield s


def once(server, *args):
    result = quern("top", "--once", "--json", server.url, *args)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_figures_are_differences_of_two_samples(server):
    f = once(server)
    assert f["model"] == "scripted" and f["state"] == "ready"
    turns_s = f["output_tok_s"] / 200  # a turn of the script per question, a question a second or, under load, later
    assert 0.1 < turns_s < 1.05
    assert f["prompt_tok_s"] == pytest.approx(50 * turns_s, rel=1e-3)
    assert f["busy"] == pytest.approx(0.6 * turns_s, rel=1e-3) and f["prefix_hits"] == pytest.approx(0.75)
    for name in ("ttft_s", "itl_s"):  # all samples are in the bucket from 50 to 75 ms
        assert f[name]["p50"] == pytest.approx(0.0625) and f[name]["p99"] == pytest.approx(0.07475)
    kv = f["kv"]
    assert kv["used"] == pytest.approx((kv["held"] + kv["parked"]) / kv["blocks"], rel=1e-4)
    assert [t["name"] for t in f["tenants"]] == ["default", "batch"]


def test_a_real_server_is_understood():
    with Quern("--api-key", "s3cret") as real:
        bearer = {"Authorization": "Bearer s3cret", "Content-Type": "application/json"}
        body = {"prompt": "To be", "max_tokens": 8, "ignore_eos": True}
        assert real.call("/v1/completions", body, bearer)[0] == 200
        f = once(real, "--api-key", "s3cret")
        assert f["state"] == "ready" and f["requests"] == 1 and f["running"] == 0
        assert f["tenants"][0]["output_tokens"] == 8
        assert 0 < f["ttft_s"]["p50"] <= f["ttft_s"]["p99"] and f["ttft_s"]["last_minute"] is False
        kv = f["kv"]
        assert kv["free"] + kv["cached"] + kv["parked"] + kv["held"] == kv["blocks"]
        assert quern("top", "--once", real.url).returncode == 1


def test_once_prints_a_page_for_people(server):
    out = quern("top", "--once", server.url).stdout
    for word in ("scripted", "ready", "Running", "tokens/s", "TTFT", "p99", "KV", "held", "Prefix", "75%", "batch"):
        assert word in out, word
    assert "\x1b" not in out


def test_a_pipe_gets_a_line_per_second_until_it_closes(server):
    p = subprocess.Popen([quern_bin(), "top", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    heading, first, second = (p.stdout.readline() for _ in range(3))
    assert heading.split()[:2] == ["running", "waiting"]
    assert len(first.split()) >= 11 and re.match(r"\s*\d+\s+\d+\s+\d+\.\d", second)
    p.stdout.close()
    assert p.wait(10) == 0 and p.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(server, number):
    p = subprocess.Popen([quern_bin(), "top", "--json", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.readline()
    p.send_signal(number)
    _, err = p.communicate(timeout=10)
    assert p.returncode == 0 and err == b""


def test_the_terminal_is_given_back(server):
    t = Terminal("top", server.url)
    t.expect("scripted")
    first = t.expect(re.compile(r"Output\s+(\d+\.\d) tokens/s"))
    t.expect("q quits")
    t.expect(re.compile(r"Output\s+[12]\d\d\.\d tokens/s"))  # the second screen has a rate
    t.send("q")
    assert t.close() == 0
    assert float(first[1]) == 0
    assert "\x1b[?1049h" in t.raw and t.raw.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_ctrl_c_quits_and_a_small_window_is_filled_and_no_more(server):
    t = Terminal("top", server.url, cols=80, rows=24)
    t.expect("q quits")
    t.resize(30, 8)
    mark = len(t.raw)
    t.expect("q quits")
    t.expect("q quits")
    screens = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", t.raw[mark:]).split("q quits")
    lines = screens[-2].splitlines()
    assert len(lines) <= 8 and max(map(len, lines)) <= 30, lines
    t.send(CTRL_C)
    assert t.close() == 0


def test_a_server_that_goes_away_is_waited_for(server):
    t = Terminal("top", server.url)
    t.expect("q quits")
    server.script.key = "now locked"
    t.expect("wants a key")
    server.script.key = None
    t.expect(re.compile(r"up \d+ s|up \d+ min"))
    time.sleep(1.2)
    t.mark = len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", t.raw))
    t.expect("q quits")
    assert "wants a key" not in t.raw[-1500:]
    t.send("q")
    assert t.close() == 0


def test_a_locked_server_wants_its_key(server):
    server.script.key = "s3cret"
    refused = quern("top", "--once", server.url)
    assert refused.returncode == 1 and "--api-key" in refused.stderr
    assert once(server, "--api-key", "s3cret")["model"] == "scripted"
    odd = quern("top", "--once", server.url, "--api-key", "two\r\nX-Evil: 1")
    assert odd.returncode == 1 and "control" in odd.stderr


def test_nothing_listening_is_said_in_a_sentence():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    result = quern("top", f"127.0.0.1:{port}")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and f"nothing listens at http://127.0.0.1:{port}" in result.stderr


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "unix:", "", "http://a b"])
def test_a_bad_address_is_refused(url):
    result = quern("top", "--once", url)
    assert result.returncode == 1 and "address" in result.stderr + "address" * (url in ("unix:", "http://a b"))


@pytest.mark.parametrize("body", [
    b"", b"[]", b"{", b'{"state":1}', b'{"running":-1}', b"\xff\xfe", b"x" * 2_000_000,
    json.dumps({**stats(3), "hist": {}}).encode(),
    json.dumps({**stats(3), "kv": []}).encode(),
    json.dumps({**stats(3), "hist": {"ttft": {"upper": [1, 1], "counts": [0, 0, 0]}, "itl": {}}}).encode(),
    json.dumps({**stats(3), "hist": {"ttft": {"upper": [1] * 100, "counts": [0] * 101}, "itl": {}}}).encode(),
    json.dumps({**stats(3), "tenants": [3]}).encode(),
])
def test_numbers_that_make_no_sense_are_an_error_and_no_crash(server, body):
    server.script.stats_body = body
    result = quern("top", "--once", server.url)
    assert result.returncode == 1, result.stdout
    assert re.match(r"quern: error: .{10,}\n$", result.stderr)


def test_a_server_that_is_starting_is_waited_for(server):
    server.script.stats_body = b'{"state":"starting","phase":"weights","percent":40,"version":"0.0"}'
    p = subprocess.Popen([quern_bin(), "top", "--once", "--json", server.url], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    assert "the server is starting" in p.stderr.readline()
    server.script.stats_body = None
    assert json.loads(p.communicate(timeout=20)[0])["state"] == "ready" and p.returncode == 0


def test_names_from_the_server_cannot_drive_the_terminal(server):
    evil = stats(3)
    evil["model"] = "m\x1b]0;owned\x07"
    evil["tenants"][0]["name"] = "\x1b[2Jgone"
    evil["ended"]["\x1b[31m"] = 1
    server.script.stats_body = json.dumps(evil).encode()
    out = quern("top", "--once", server.url).stdout
    assert "\x1b" not in out and "\x07" not in out and "gone" in out


def test_another_web_server_is_recognised():
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *a: None})
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        result = quern("top", "--once", f"http://127.0.0.1:{other.server_address[1]}/")
        other.shutdown()
    assert result.returncode == 1 and "not a quern server" in result.stderr


def test_a_unix_socket_works_too(tmp_path):
    class UnixServer(socketserver.ThreadingUnixStreamServer):
        def get_request(self):
            connection, _ = super().get_request()
            return connection, ("local", 0)
    path = tmp_path / "quern.sock"
    with UnixServer(str(path), Handler) as s:
        s.script = Script()
        threading.Thread(target=s.serve_forever, daemon=True).start()
        result = quern("top", "--once", "--json", f"unix:{path}")
        s.shutdown()
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["url"] == f"unix:{path}"
