#!/usr/bin/env python3
"""`quern serve` on a device as its users meet it: beside a server on the CPU the same likelihoods; with --deterministic
the same words alone and in company, with guesses and without, with room for all and with blocks that go to the host and
come back; an answer in a schema; a device that fails, whose requests are all answered and whose process ends for its
supervisor. Prints a line each; exits 1 when one does not hold.

  python3 bench/device_serve.py [--device cuda]

The program is $QUERN_BIN, or lies beside the library that QUERN_TESTING_LIB names. Bounds have a twin as in
bench/device_check.py.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "py"))
from quern_model import LIBRARY  # noqa: E402

os.environ.setdefault("QUERN_BIN", str(next((p / "quern" for p in LIBRARY.resolve().parents if (p / "quern").is_file()),
                                            "quern")))
from server_quern import TINY, Quern, events  # noqa: E402

MODELS = (TINY, ROOT / "tests/data/tiny/tiny-1m-hf")
PROMPTS = ("The king", "It was a dark and", "Yes, said he, and the whole of it was", "If")
FAR = 0.05  # of a log-likelihood: F16 and BF16 roundings over a few layers
TOKENS = 48
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
failures = []


def verdict(what, ok, more=""):
    if not ok:
        failures.append(what)
    print(f"{what}{': ' + more if more else ''}  {'ok' if ok else 'MISMATCH'}", flush=True)


def start(device, *args, env=None, **more):
    """The program's environment is what the tests give it, and where its libraries lie."""
    passed = {k: v for k, v in os.environ.items() if k.startswith(("LD_LIBRARY_PATH", "CUDA_"))}
    return Quern("--device", device, *args, env=passed | (env or {}), **more)


def top_of(q, prompt):
    """{token: log-likelihood} of what may follow."""
    status, answer = q.post("/v1/completions", prompt=prompt, max_tokens=1, temperature=0, logprobs=5)
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]["top_logprobs"][0]


def apart(a, b):
    return max((abs(a[t] - b[t]) for t in a if t in b), default=99.0) if len(a.keys() & b.keys()) > 2 else 99.0


def check_likelihoods(device):
    for model in MODELS:
        with start(device, model=model) as here, start("cpu", model=model) as cpu:
            got, want = [[top_of(q, p) for p in PROMPTS] for q in (here, cpu)]
        worst = max(map(apart, got, want))
        twin = min(map(apart, got, want[1:] + want[:1]))
        verdict(f"{model.name}, likelihoods beside the CPU's", worst < FAR < twin,
                f"{worst:.1e} apart, twin {twin:.1e}")


def words(q, prompt, stream=False):
    asked = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": stream}
    status, _, answer = q.call("/v1/completions", asked)
    assert status == 200, answer
    if not stream:
        return answer["choices"][0]["text"]
    parts = [json.loads(e) for e in events(answer.decode()) if e != "[DONE]"]
    return "".join(p["choices"][0]["text"] for p in parts if p["choices"])


def check_company(device):
    asked = [(PROMPTS[i % len(PROMPTS)], i % 3 == 0) for i in range(32)]
    with start(device, "--deterministic") as q:
        alone = {p: words(q, p) for p in PROMPTS}
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            others = list(pool.map(lambda a: words(q, *a), asked))
        wrong = sum(alone[p] != got for (p, _), got in zip(asked, others))
        verdict("the same words alone and beside 31 others", wrong == 0 and len(set(alone.values())) == len(PROMPTS),
                f"{wrong} differ")
        status, answer = q.post("/v1/chat/completions", messages=[{"role": "user", "content": "Who?"}], max_tokens=80,
                                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
        text = answer["choices"][0]["message"]["content"] if status == 200 else str(answer)
        try:
            who = json.loads(text)
            ok = set(who) == {"name", "age"} and who["age"] == int(who["age"]) and len(who["name"]) <= 12
        except ValueError:
            ok = False
        verdict("an answer in a schema", ok, text)


def answers(q):
    """Of requests of every kind at once: greedy and drawn, under penalties, in a grammar, several of one prompt."""
    kinds = ({}, {"presence_penalty": 0.4, "frequency_penalty": 0.2, "repetition_penalty": 1.2}, {"logprobs": 2},
             {"guided_regex": "((the|a) (king|queen|old man) (said|went)[,.] ){3,30}"}, {"top_p": 0.8, "min_p": 0.02})
    asked = [{"prompt": PROMPTS[i % len(PROMPTS)] + " the king and" * (i % 7 + 2), "max_tokens": 120, "seed": i,
              "temperature": (0, 0.7)[i // 5 % 2], "n": 1 + i % 3} | kinds[i % len(kinds)] for i in range(20)]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        got = list(pool.map(lambda body: q.call("/v1/completions", body), asked))
    assert all(status == 200 for status, _, _ in got), [a for s, _, a in got if s != 200][0]
    return [[(c["text"], c["finish_reason"]) for c in answer["choices"]] for _, _, answer in got]


def differ(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True))


def check_guesses(device):
    with start(device, "--deterministic") as q:
        want = answers(q)
    with start(device, "--deterministic", "--speculative", "ngram") as q:
        wrong = differ(answers(q), want)
        n, held = (q.metric(f"vllm:spec_decode_num_{kind}_tokens_total") for kind in ("draft", "accepted"))
    verdict("the same words with guesses", wrong == 0 and n > 0 and differ(want, want[1:] + want[:1]) > 15,
            f"{wrong} of {len(want)} differ, {held:.0f} of {n:.0f} guesses held")


def check_swap(device):
    few = ("--deterministic", "--num-gpu-blocks-override", 48)
    long = [(f"{p} and so on, " * 60)[:900] for p in PROMPTS]
    with start(device, "--deterministic") as q:
        want = answers(q)
    with start(device, *few, "--preemption", "swap", "--swap-space", "64MiB") as q:
        wrong = differ(answers(q), want)
        went = q.metric("vllm:num_preemptions_total")
        first, again = ([words(q, p) for p in long] for _ in range(2))
        back = q.metric("quern_prefix_restored_blocks_total")
    with start(device, *few, "--swap-space", 0) as q:
        alone = [words(q, p) for p in long]
    verdict("the same words when blocks go to the host and come back", wrong == 0 and first == again == alone and
            went > 0 and back > 0, f"{wrong} of {len(want)} differ, {went:.0f} preempted, {back:.0f} blocks came back")


def check_failure(device):
    q = start(device, "--fault", "device:60", "--max-num-seqs", 2)

    def ask(stream):
        body = {"prompt": "The king", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": stream}
        try:
            status, _, answer = q.call("/v1/completions", body)
        except (OSError, http.client.HTTPException) as e:
            return f"not answered: {e}"
        text = answer.decode() if isinstance(answer, bytes) else json.dumps(answer)
        told = "the engine has failed" in text or (status == 503 and "stopping" in text)
        return None if told and (status == 503 or stream and status == 200) else f"{status}: {text[-200:]}"

    try:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            wrong = [w for w in pool.map(ask, (i % 2 == 0 for i in range(6))) if w]
        code = q.process.wait(20)
    finally:
        q.process.kill()
    verdict("a device that fails: six requests answered, exit status 1", not wrong and code == 1,
            "; ".join(wrong) or f"status {code}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    for check in (check_likelihoods, check_company, check_guesses, check_swap, check_failure):
        try:
            check(device)
        except Exception as e:  # whatever it is, the others are checked too
            verdict(check.__name__, False, repr(e)[-400:])
    print(f"{len(failures)} failures" + "".join(f"\n  {f}" for f in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
