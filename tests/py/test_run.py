"""quern run as a filter: one answer on standard output, deterministic, and an answer to everything that goes wrong."""
import json
import os
import re
import resource
import signal
import subprocess

import pytest

from cli_models import F16, REPO, llama_fields, llama_tensors, quern, quern_bin, write_gguf

TINY = REPO / "tests" / "data" / "tiny"
GOLDEN = "Indeed, I should do, or think to\n"  # by the plain C kernels, greedily
ANSWER = ["run", "tiny", "-p", "Good morrow, cousin", "-n", "24", "--seed", "7"]


def fails(result, code, *parts):
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("quern: error: "), result.stderr
    for part in parts:
        assert part in last, result.stderr


def test_only_the_answer_is_on_standard_output():
    r = quern(*ANSWER)
    assert r.returncode == 0 and r.stdout.endswith("\n") and r.stdout.strip()
    first, rows, last = r.stderr.splitlines()
    assert re.search(r"^tiny-4m-q8_0: 3.73 MiB Q8_0 on cpu-\S+, \d+ threads?, context 512 \(the model's\),", first)
    assert re.search(r"^cpu-\S+, \d+ threads?: Q8_0 products in .*; attention .*, heads of \d+, F16 cache$", rows)
    assert re.search(r"^\[\d+ tokens, [\d.]+ tok/s; prompt \d+ tokens, \d+ tok/s", last)
    assert quern(*ANSWER, "--log-level", "warn").stderr == ""
    for line in quern(*ANSWER, "--log-format", "json").stderr.splitlines():
        assert json.loads(line)["level"] == "info"


def test_the_same_seed_gives_the_same_bytes_with_any_number_of_threads():
    golden = quern(*ANSWER).stdout
    for threads in (1, 2, 3):
        assert quern(*ANSWER, "--threads", threads).stdout == golden
    assert quern(*ANSWER[:-1], "8").stdout != golden
    answers = {quern(*ANSWER[:-2]).stdout for _ in range(4)}
    assert len(answers) > 1, "without a seed every run is another"


def test_greedy_needs_no_seed_and_gives_the_golden_answer():
    r = [quern("run", "tiny", "-p", "Good morrow, cousin", "-n", "12", "--temp", "0", "--cpu-variant", "cpu-ref").stdout
         for _ in range(2)]
    assert r[0] == r[1]
    assert r[0] == GOLDEN


def test_json_has_text_tokens_usage_and_logprobs():
    r = json.loads(quern(*ANSWER, "--json", "--logprobs", "3").stdout)
    assert r["text"] + "\n" == quern(*ANSWER).stdout
    assert r["finish_reason"] in ("stop", "length") and r["seed"] == 7
    assert r["usage"]["completion_tokens"] == len(r["tokens"]) <= 24
    assert "".join(t["text"] for t in r["tokens"]) == r["text"]
    for t in r["tokens"]:
        top = [x["logprob"] for x in t["top"]]
        assert len(top) == 3 and top == sorted(top, reverse=True) and t["logprob"] <= 0


def test_length_stop_and_eos_end_an_answer():
    one = json.loads(quern(*ANSWER[:4], "-n", "1", "--seed", "7", "--json").stdout)
    assert one["finish_reason"] == "length" and len(one["tokens"]) == 1
    whole = quern(*ANSWER).stdout.rstrip("\n")
    stop = whole[3:6]
    r = json.loads(quern(*ANSWER, "--stop", stop, "--json").stdout)
    assert r["finish_reason"] == "stop" and r["text"] == whole[:whole.index(stop)]
    on = json.loads(quern("run", "tiny", "-p", "Hi", "-n", "200", "--seed", "7", "--ignore-eos", "--json").stdout)
    assert len(on["tokens"]) == 200 and on["finish_reason"] == "length"


def test_the_context_ends_an_answer():
    r = json.loads(quern("run", "tiny", "-p", "Hi", "-n", "500", "--ignore-eos", "-c", "32", "--json").stdout)
    assert r["finish_reason"] == "length" and r["usage"]["total_tokens"] in (32, 33)


def test_standard_input_is_the_prompt():
    assert quern(*[a for a in ANSWER if a not in ("-p", "Good morrow, cousin")],
                 input="Good morrow, cousin\n").stdout == quern(*ANSWER).stdout


def test_raw_text_and_system_message():
    raw = json.loads(quern("run", "tiny", "--raw", "-p", "To be", "-n", "4", "--seed", "1", "--json").stdout)
    chat = json.loads(quern("run", "tiny", "-p", "To be", "-n", "4", "--seed", "1", "--json").stdout)
    system = json.loads(quern("run", "tiny", "--system", "Be kind", "-p", "To be", "-n", "4", "--json").stdout)
    assert raw["usage"]["prompt_tokens"] < chat["usage"]["prompt_tokens"] < system["usage"]["prompt_tokens"]
    fails(quern("run", "tiny", "--raw", "--system", "x", "-p", "y"), 2, "--system")


def test_hf_folder_and_gguf_give_answers(tmp_path):
    for model in ("tiny-1m-hf", "tiny-1m-f16.gguf", "tiny-moe-q8_0.gguf"):
        r = quern("run", TINY / model, "-p", "Hail", "-n", "4", "--temp", "0", "--cache-dir", tmp_path)
        assert r.returncode == 0 and r.stdout.strip(), r.stderr


@pytest.mark.parametrize("dtype", ["bf16", "q8_0", "q4_k"])
def test_dummy_weights(dtype):
    args = ["run", "--load-format", "dummy", "smollm2-135m", "--dtype", dtype, "-p", "abc", "-n", "3", "--temp", "0",
            "-c", "64"]
    r = quern(*args)
    assert r.returncode == 0 and len(r.stdout.split()) == 3, r.stderr
    assert "of random" in r.stderr


def test_dummy_mistakes():
    fails(quern("run", "--load-format", "dummy", "-p", "x"), 1, "needs a MODEL")
    fails(quern("run", "--load-format", "dummy", "llama-9", "-p", "x"), 1, "no dummy model 'llama-9'", "llama-3.1-8b")
    fails(quern("run", "tiny", "--dtype", "f32", "-p", "x"), 1, "--dtype is for --load-format dummy")


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path):
    fails(quern("run", "tiny", "-c", "513", "-p", "x"), 1, "513", "context of 512")
    fails(quern("run", "tiny", "--memory", "1MiB", "-p", "x"), 1, "weights 3.73 MiB", "1.00 MiB are free")
    fails(quern("run", "tiny", "--device", "cuda", "-p", "x"), 1, "CUDA")
    fails(quern("run", "tiny", "-p", "word " * 600), 1, "tokens and the context 512")
    fails(quern("run", "tiny", input=""), 1, "standard input is empty")
    fails(quern("run", "tiny", "-p", ""), 2, "--prompt")
    fails(quern("run", "tiny", "-p", "x", "--temp", "-1"), 2, "--temperature")
    fails(quern("run", "tiny", "-p", "x", "--logprobs", "2"), 2, "needs --json")
    fails(quern("run", "nosuchmodel", "--offline", "-p", "x"), 1, "nosuchmodel")
    fails(quern("run", "tiny", "--kv-cache-dtype", "q8_0", "--cpu-variant", "abacus", "-p", "x"), 1, "abacus")
    fails(quern("run", "tiny", "--kv-cache-dtype", "fp8", "--device", "cpu", "-p", "x"), 1, "KV cache of type F8_E4M3",
          "not supported on cpu-")
    bad = write_gguf(tmp_path / "m.gguf", llama_fields(arch="mamba"), llama_tensors())
    fails(quern("run", bad, "-p", "x"), 1, "mamba")


@pytest.mark.parametrize("verb", [("run", "-p", "x"), ("score",), ("plan",), ("bench",), ("serve", "--port", "0")])
def test_fp8_is_refused_where_it_cannot_be(verb):
    args = [verb[0], *verb[1:], "--quantization", "fp8", "--device", "cpu"]
    fails(quern(*args, "tiny", input="x"), 1, "BF16, F16 or F32", "mostly Q8_0")
    fails(quern(*args, TINY / "tiny-1m-f16.gguf", input="x"), 1, "needs a CUDA device of compute capability",
          "cpu-")
    fails(quern(*verb, "--quantization", "int3", "tiny"), 2, "'int3' is not one of none, fp8")


@pytest.mark.parametrize("verb", [("run", "-p", "x"), ("score",)])
def test_model_larger_than_memory_is_refused_before_any_work(tmp_path, verb):
    """A sparse file whose weights are half as much again as the machine has; nothing of them may be read."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shape = dict(hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=96)
    each = 2 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    layers = min(512, 3 * memory // 2 // each + 1)
    path = write_gguf(tmp_path / "huge.gguf", llama_fields(layers=layers, context=4096, **shape),
                      llama_tensors(layers=layers, weight=F16, **shape))
    more = ["--memory", str(layers * each * 2 // 3)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if layers < 512:
        fails(quern(verb[0], path, *verb[1:], input="x"), 1, "memory (weights", "are free: ")
    fails(quern(verb[0], path, *verb[1:], *more, input="x"), 1, "memory (weights",
          "are free: it fits with a file of the same model in Q8_0")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2  # seconds of work


def test_memory_decides_the_context():
    r = quern("run", "tiny", "--memory", "6.3MiB", "-p", "Hail", "-n", "2")
    assert r.returncode == 0, r.stderr
    context = int(re.search(r"context (\d+) \(what fits into memory\)", r.stderr)[1])
    assert 16 <= context < 512


def test_invalid_utf8_is_defined():
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    for raw in ([], ["--raw"]):
        r = subprocess.run([quern_bin(), "run", "tiny", "-n", "3", "--temp", "0", *raw], input=b"a\xff\xfeb\xc3",
                           capture_output=True, env=env)
        assert r.returncode == 0, r.stderr
        r.stdout.decode()


def test_huge_input_is_refused():
    with open("/dev/zero", "rb") as zero:
        r = subprocess.run([quern_bin(), "run", "tiny"], stdin=zero, capture_output=True, text=True, timeout=60,
                           env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})
    fails(r, 1, "64 MiB")


def test_a_full_disk_is_an_error_and_a_reader_who_left_is_not():
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    with open("/dev/full", "w") as full:
        r = subprocess.run([quern_bin(), *ANSWER], stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert r.returncode == 1 and "No space left" in r.stderr
    p = subprocess.Popen([quern_bin(), "run", "tiny", "-p", "x", "--ignore-eos", "-n", "480"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=env)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(30) == 0, p.stderr.read()


def test_ctrl_c_ends_a_single_answer():
    for _ in range(8):  # on a busy machine the answer, a second long, may be over before the signal comes
        p = subprocess.Popen([quern_bin(), "run", "tiny", "-p", "x", "--ignore-eos", "-n", "490", "--cpu-variant",
                              "cpu-ref"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
                             # which a test run in the background has set aside
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        p.stdout.read(1)
        p.send_signal(signal.SIGINT)
        code = p.wait(60)
        if code != 0:
            break
    assert code == -signal.SIGINT


def test_without_the_default_model_tiny_answers_and_says_so(tmp_path):
    r = quern("run", "--offline", "-p", "Hail", "-n", "4", "--cache-dir", tmp_path)
    assert r.returncode == 0 and r.stdout.strip()
    assert "taking 'tiny'" in r.stderr and "tiny-4m-q8_0: " in r.stderr
    assert quern("score", "--offline", "--cache-dir", tmp_path, input="x").returncode == 1


@pytest.mark.parametrize("kind", ["alloc", "sys"])
def test_every_failure_is_an_answer(kind):
    """The Nth allocation or system call fails, for N all over the run: a sentence and exit 1, or an answer."""
    good = quern("run", "tiny", "-p", "hi", "-n", "4", "--temp", "0").stdout
    step, n, clean = (1, 1, 0) if kind == "sys" else (3, 1, 0)
    answers = 0
    while clean < 3 and n < 20000:
        r = quern("run", "tiny", "-p", "hi", "-n", "4", "--temp", "0", "--fault", f"{kind}:{n}")
        assert r.returncode in (0, 1), (n, r.returncode, r.stderr)
        if r.returncode == 1:
            assert r.stderr.splitlines()[-1].startswith("quern: error: "), (n, r.stderr)
            answers += 1
        else:
            clean = clean + 1 if r.stdout == good else 0
        n = n + step if n < 120 else int(n * 1.3)
    assert answers > 3 and clean == 3
