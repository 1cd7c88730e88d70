"""The whole program with its CUDA backend on a card that is made up (card.cc): no kernel computes anything, so tokens
mean nothing; everything that the host does is real. tools/test.py runs this with QUERN_BIN set."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "py"))
from server_quern import Quern  # noqa: E402

TINY = pathlib.Path(__file__).resolve().parents[1] / "data" / "tiny"
Q8, F16, MORE, MIXTURE = (TINY / f"tiny-{name}.gguf" for name in ("1m-q8_0", "1m-f16", "4m-q8_0", "moe-q8_0"))
DUMMY = ("--load-format", "dummy", "--dtype")


def body(k, i):
    """Requests of every kind, in every mixture."""
    b = {"prompt": [(k * 7 + j) % 300 + 3 for j in range(20 + 9 * ((k + i) % 9))] * (1 + i % 2), "seed": k * 100 + i,
         "max_tokens": 20 + (k * 13 + i * 5) % 60, "temperature": (0, 0.8, 1)[(k + i) % 3], "ignore_eos": True}
    kinds = ({}, {"top_p": 0.9, "top_k": 40, "min_p": 0.01}, {"logprobs": 3, "logit_bias": {"5": 3}, "n": 3},
             {"presence_penalty": 0.4, "frequency_penalty": 0.2, "repetition_penalty": 1.1}, {"stream": True})
    return b | kinds[(k + i) % len(kinds)]


def load(q, clients=12, each=6):
    """The statuses that came back. A client goes when one of its requests fails."""
    def client(k):
        ends = []
        for i in range(each):
            ends.append(q.call("/v1/completions", body(k, i))[0])
            if ends[-1] != 200:
                break
        return ends

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return {status for ends in pool.map(client, range(clients)) for status in ends}


def crowd(q):
    """Four answers that take 76 of the 48 blocks together."""
    assert q.post("/v1/completions", prompt=[5] * 20, max_tokens=300, n=4, temperature=1, ignore_eos=True)[0] == 200
    assert q.metric("vllm:num_preemptions_total") > 0


def evict_and_ask_again(q):
    """A prompt of half the blocks, two others, and the first again: by then it comes from the host."""
    before = q.metric("quern_prefix_restored_blocks_total")
    for first in (7, 80, 160, 7):
        assert q.post("/v1/completions", prompt=list(range(first, first + 400)), max_tokens=2)[0] == 200
    assert q.metric("quern_prefix_restored_blocks_total") >= before + 20


FEW = ("--num-gpu-blocks-override", 48)
CASES = {
    "plain": (Q8,), "deterministic": (F16, "--deterministic", "--kv-cache-dtype", "bf16"),
    "all memory": (Q8, "--gpu-memory-utilization", 1),
    "fp8": ("smollm2-135m", *DUMMY, "bf16", "--quantization", "fp8", "--kv-cache-dtype", "fp8"),
    "int8 cache": (Q8, "--kv-cache-dtype", "q8_0"), "mixture": (MIXTURE,),
    "swap": (Q8, *FEW, "--preemption", "swap"), "recompute": (Q8, *FEW, "--preemption", "recompute"),
    "bf16": ("smollm2-135m", *DUMMY, "bf16"), "q4_k": ("smollm2-135m", *DUMMY, "q4_k", "--deterministic"),
    "guesses": (Q8, "--speculative", "ngram"), "draft": (MORE, "--speculative", f"draft:{Q8}", *FEW),
    "a draft that catches up": (MORE, "--speculative", f"draft:{Q8}", "--max-num-batched-tokens", 32, "--max-num-seqs",
                                16)}


@pytest.mark.parametrize("name", CASES)
def test_no_step_takes_memory_or_waits_for_the_stream(name, tmp_path):
    log = tmp_path / "calls"
    with Quern("--device", "cuda", *CASES[name][1:], model=CASES[name][0], env={"QUERN_CARD_LOG": str(log)}) as q:
        before = log.read_text().splitlines()
        assert sum(line.startswith("take") for line in before) > 20 and "wait for a stream" in before
        assert name != "fp8" or "take 4194304" in before  # scales lie apart, so that matrices lie side by side
        assert load(q) == {200}
        assert q.metric("quern_steps_total") > 100
        if FEW[0] in CASES[name]:
            crowd(q)
        if name == "swap":
            evict_and_ask_again(q)
        assert log.read_text().splitlines()[len(before):] == []


def test_recordings_give_way_where_the_card_has_no_room_for_more(tmp_path):
    log = tmp_path / "calls"
    env = {"QUERN_CARD_LOG": str(log), "QUERN_CARD_GRAPH": str(100 << 10), "QUERN_CARD_MIB": "800"}
    with Quern("--device", "cuda", "--gpu-memory-utilization", 1, model=Q8, env=env) as q:
        before = log.read_text().splitlines()
        assert load(q) == {200}
        assert set(log.read_text().splitlines()[len(before):]) == {"wait for a stream"}  # to give the others back


@pytest.mark.parametrize("n", [1500, 4000])
def test_a_card_that_fails_answers_everybody_and_ends_the_process(n):
    q = Quern("--device", "cuda", env={"QUERN_CARD_FAILS": str(n)})
    assert 503 in load(q) and q.process.wait(20) == 1
    assert re.search("an illegal memory access|failed to execute", q.log())


def start(mib, args):
    return subprocess.run([os.environ["QUERN_BIN"], "run", *map(str, args), "--device", "cuda", "-p", "1 2", "-n", "2"],
                          capture_output=True, text=True, timeout=60, env=os.environ | {"QUERN_CARD_MIB": str(mib)})


@pytest.mark.parametrize("model", [("llama-3.2-1b", *DUMMY, "q4_k", "--max-model-len", 131072),
                                   ("smollm2-135m", *DUMMY, "bf16", "--max-model-len", 8192),
                                   ("smollm2-135m", *DUMMY, "q8_0")])
def test_what_is_named_starts_on_cards_of_every_size(model):
    refused = 0
    for mib in (650, 720, 800, 900, 1020, 1300, 1750, 2600, 9000):
        args = list(model)
        said = start(mib, args)
        if said.returncode != 0:
            refused += 1
            assert re.search(r"it takes .* [MG]iB of memory .* are free: (it fits with |.* are missing)", said.stderr)
            for option, value in re.findall(r"(--[a-z-]+) (\w+)", said.stderr.partition("it fits with ")[2]):
                if option in args:
                    args[args.index(option) + 1] = value
                else:
                    args += [option, value]
            dtype = re.search(r"a file of the same model in (\w+),", said.stderr)
            if dtype:
                args[args.index("--dtype") + 1] = dtype[1].lower()
            if args != list(model):
                said = start(mib, args)
                assert said.returncode == 0, (mib, args, said.stderr)
    assert 0 < refused < 9


def test_a_draft_that_is_too_much_is_named():
    args = (*DUMMY, "q8_0", "--device", "cuda", "--speculative", "draft:smollm2-135m")
    with pytest.raises(AssertionError, match="the draft 8.* MiB, a context .* it fits without the draft"):
        Quern(*args, model="smollm2-135m", env={"QUERN_CARD_MIB": "1500"})
    with Quern(*args[:-2], model="smollm2-135m", env={"QUERN_CARD_MIB": "1500"}) as q:
        assert load(q) == {200}
    with pytest.raises(AssertionError, match=r"it fits without the draft and with --max-model-len \d+") as said:
        Quern(*args, "--max-model-len", 8192, model="smollm2-135m", env={"QUERN_CARD_MIB": "900"})
    length = re.search(r"--max-model-len (\d+)", str(said.value))[1]
    with Quern(*args[:-2], "--max-model-len", length, model="smollm2-135m", env={"QUERN_CARD_MIB": "900"}) as q:
        assert load(q, clients=2) == {200}
    with Quern(*args, model="smollm2-135m", env={"QUERN_CARD_MIB": "2200"}) as q:
        assert load(q) == {200}


@pytest.mark.parametrize("args, said", [
    ((), "decoding of 1 to 32 rows resident; .* BF16 cache"), (("--quantization", "fp8"), "1 to 2 rows .* BF16 cache"),
    (("--kv-cache-dtype", "f16"), "1 to 2 rows .* F16 cache")])
def test_without_a_word_about_the_cache_steps_are_the_fastest(args, said):
    with Quern("--device", "cuda", *DUMMY, "bf16", *args, model="smollm2-135m") as q:
        assert re.search(said, q.log())


def test_the_plan_lists_the_card():
    said = subprocess.run([os.environ["QUERN_BIN"], "plan", str(Q8), "--device", "cuda"], capture_output=True,
                          text=True, timeout=60)
    assert "made-up H200, compute capability 9.0, 132 units" in said.stdout, said.stderr
