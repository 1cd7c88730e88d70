"""`quern serve --record` and `quern replay`: what a live server decided is decided again, byte for byte."""
import json
import subprocess
import threading

import pytest
from cli_models import quern_bin
from server_quern import Quern

POLICIES = [
    [],
    ["--batching", "prefill-first", "--order", "sjf", "--num-gpu-blocks-override", 40, "--preemption", "swap"],
    ["--batching", "interval", "--order", "vtc", "--num-gpu-blocks-override", 36, "--preemption", "recompute"],
    ["--itl-target-ms", 1, "--admission", "reserve", "--no-enable-prefix-caching"],
]


def replay(path, *options):
    return subprocess.run([quern_bin(), "replay", str(path), *options], capture_output=True, text=True, timeout=60)


def storm(server):
    """Twelve clients at once; some leave early."""
    def ask(i):
        body = dict(prompt=list(range(5, 40 + 11 * i)), max_tokens=10 + 3 * i, n=1 + i % 3, seed=i,
                    ignore_eos=i % 2 == 0, stop=["e", "the"] if i % 4 == 1 else [])
        if i % 5 == 4:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(json.dumps(body))}\r\n\r\n"
            body["stream"] = True
            try:
                server.raw(head + json.dumps(body), timeout=0.05)
            except OSError:
                pass
        else:
            assert server.post("/v1/completions", **body)[0] == 200
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: "-".join(map(str, p[:2])) or "default")
def test_a_live_server_replays(tmp_path, policy):
    path = tmp_path / "steps"
    with Quern("--record", path, "--max-num-seqs", 6, *policy) as server:
        storm(server)
    out = replay(path)
    assert out.returncode == 0, out.stderr
    assert "Every plan is the recorded one, byte for byte" in out.stdout
    lines = [json.loads(line) for line in replay(path, "--json").stdout.splitlines()]
    steps, summary = lines[:-1], lines[-1]
    assert summary["steps"] == len(steps) > 10 and not summary["cut"]
    assert [s["step"] for s in steps] == list(range(1, len(steps) + 1))
    assert sum(s["rows"] for s in steps) == summary["rows"]
    assert all(s["free"] + s["held"] + s["cached"] + s["parked"] == summary["blocks"] for s in steps)


def test_a_changed_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "steps"
    with Quern("--record", path) as server:
        assert server.post("/v1/completions", prompt="The king", max_tokens=8)[0] == 200
    data = bytearray(path.read_bytes())
    data[-200] ^= 0x40
    path.write_bytes(data)
    out = replay(path)
    assert out.returncode == 1 and out.stderr.startswith("quern: ")
    path.write_bytes(b"GGUF" + bytes(100))
    out = replay(path)
    assert out.returncode == 1 and "not a recording of quern" in out.stderr
    assert replay(tmp_path / "none").returncode == 1
