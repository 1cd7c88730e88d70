"""quern pull, list and rm as their user meets them: output, exit codes, Ctrl-C, the bar on a terminal."""

import json
import os
import pathlib
import pty
import random
import re
import signal
import subprocess
import time

import pytest

from hub_server import Body, Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUERN = os.environ.get("QUERN_BIN", str(ROOT / "build/release/quern"))
DATA = b"GGUF" + random.Random(3).randbytes(199_996)


@pytest.fixture
def server():
    s = Server()
    yield s
    s.close()


@pytest.fixture
def env(tmp_path, server):
    if not pathlib.Path(QUERN).exists():
        pytest.fail(f"{QUERN} is not built")
    keep = {k: v for k, v in os.environ.items()
            if not k.lower().endswith("_proxy") and not k.startswith(("HF_", "QUERN_"))}
    ours = {"HOME": str(tmp_path), "QUERN_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": server.url, "TZ": "UTC"}
    return keep | ours


def quern(env, *args):
    return subprocess.run([QUERN, *args], env=env, capture_output=True, text=True, timeout=60)


def test_pull_prints_the_path_list_shows_it_and_rm_removes_it(env, server, tmp_path):
    server.repository("o/r", {"m.gguf": DATA})
    run = quern(env, "list")
    assert (run.returncode, run.stderr) == (0, "") and "nothing in" in run.stdout
    run = quern(env, "pull", "hf:o/r")
    path = tmp_path / "cache/models/o--r--m/m.gguf"
    assert (run.returncode, run.stdout) == (0, f"{path}\n") and path.read_bytes() == DATA
    assert re.search(r"^m\.gguf  200\.0 kB in ", run.stderr, re.M) and "\r" not in run.stderr
    run = quern(env, "list")
    assert run.returncode == 0
    assert re.search(r"^o--r--m +200\.0 kB +1  20\d\d-\d\d-\d\d \d\d:\d\d  hf:o/r@a{40}:m\.gguf$", run.stdout, re.M)
    (entry,) = json.loads(quern(env, "list", "--json").stdout)["models"]
    assert (entry["name"], entry["bytes"], entry["state"], entry["files"]) == ("o--r--m", 200_000, "ready", 1)
    run = quern(env, "rm", "o--r--m")
    assert (run.returncode, run.stdout) == (0, "removed o--r--m (0.2 MB)\n") and not path.exists()
    assert json.loads(quern(env, "list", "--json").stdout) == {"models": []}
    run = quern(env, "rm", "o--r--m")
    assert run.returncode == 1 and "there is no 'o--r--m'" in run.stderr
    assert quern(env, "rm").returncode == 2


def test_offline_fails_with_a_sentence_and_asks_nobody(env, server):
    run = quern(env, "pull", "hf:o/r", "--offline")
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("quern: error: hf:o/r is not in") and "offline" in run.stderr
    assert server.requests == []


def test_progress_keeps_out_of_json_logs(env, server):
    server.repository("o/r", {"m.gguf": DATA})
    assert quern(env, "pull", "hf:o/r", "--log-format", "json").stderr == ""
    assert quern(env, "rm", "hf:o/r").returncode == 0
    assert quern(env, "pull", "hf:o/r", "--log-level", "warn").stderr == ""


def test_ctrl_c_stops_with_a_part_and_the_next_pull_goes_on(env, server, tmp_path):
    server.routes["/m.gguf"] = Body(DATA, stall_after=100_000)
    child = subprocess.Popen([QUERN, "pull", server.url + "/m.gguf"], env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 10
    while not any(p.stat().st_size >= 100_000 for p in tmp_path.glob("cache/partial/*/m.gguf.part")):
        assert time.monotonic() < until, "no part appeared"
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out) == (1, "") and "stopped" in err
    run = quern(env, "list")
    assert "(partial)" in run.stdout
    run = quern(env, "pull", server.url + "/m.gguf")
    assert run.returncode == 0 and pathlib.Path(run.stdout.strip()).read_bytes() == DATA
    assert server.asked("/m.gguf")[1]["Range"] == "bytes=100000-"


def test_a_terminal_gets_a_bar_that_redraws_itself(env, server):
    server.routes["/m.gguf"] = Body(DATA, rate=200_000)
    ours, theirs = pty.openpty()
    child = subprocess.Popen([QUERN, "pull", server.url + "/m.gguf"], env=env, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # the end of a terminal
        pass
    child.communicate(timeout=10)
    os.close(ours)
    assert child.returncode == 0
    bars = re.findall(rb"\r\x1b\[Km\.gguf +(\d+)% \[(=*) *\] [\d.]+ kB/200\.0 kB  [\d.]+ k?B/s  \d+:\d\d left", shown)
    assert len(bars) >= 3 and [int(p) for p, _ in bars] == sorted(int(p) for p, _ in bars), shown
    assert all(len(cells) == int(24 * int(percent) / 100) or abs(len(cells) - 24 * int(percent) / 100) < 1
               for percent, cells in bars)
    assert b"200.0 kB in" in shown.splitlines()[-1]


@pytest.mark.parametrize("closed", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_a_closed_descriptor_lets_no_message_into_the_model(env, server, tmp_path, closed):
    server.repository("o/r", {"m.gguf": DATA})
    run = subprocess.run([QUERN, "pull", "hf:o/r"], env=env, capture_output=True, timeout=60, close_fds=True,
                         preexec_fn=lambda: [os.close(fd) for fd in closed])
    assert run.returncode == (1 if 1 in closed else 0)
    assert (tmp_path / "cache/models/o--r--m/m.gguf").read_bytes() == DATA


def test_rm_of_nothing_does_not_mean_the_default_model(env, tmp_path):
    entry = tmp_path / "cache/models/smollm2-135m-instruct"
    entry.mkdir(parents=True)
    run = quern(env, "rm", "")
    assert run.returncode == 1 and "name the model to remove" in run.stderr and entry.exists()


def test_one_letter_suggests_nothing(env):
    assert "did you mean" not in quern(env, "inspect", "-").stderr
    assert "did you mean smollm2-135m-instruct" in quern(env, "inspect", "smollm2").stderr
