"""Other people's clients, and requests made up from the server's own description. Also the default model, when it is in
the cache: the server says what `quern run` says."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from cli_models import quern_bin
from server_quern import Quern

HELLO = [{"role": "user", "content": "Speak to me of the king."}]


@pytest.fixture(scope="module")
def quern():
    with Quern() as q:
        yield q


def test_litellm_chats_and_streams(quern):
    """In a process of its own: litellm takes a second to import and leaves threads behind."""
    script = f"""
import litellm
kw = dict(model="openai/tiny-1m-q8_0", api_base="{quern.url}/v1", api_key="x", seed=1, max_tokens=8, num_retries=0,
          messages={HELLO!r})
whole = litellm.completion(**kw)
parts = "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **kw))
assert whole.choices[0].message.content == parts and whole.usage.completion_tokens == 8
try:
    litellm.completion(**{{**kw, "max_tokens": 100000}})
    raise SystemExit("no error")
except litellm.ContextWindowExceededError:
    pass
except litellm.BadRequestError as e:
    assert "context" in str(e)
print("fine")
"""
    env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=env)
    assert out.returncode == 0 and "fine" in out.stdout, out.stderr[-3000:]


def test_requests_from_our_own_description_find_no_5xx(quern, tmp_path):
    """schemathesis makes requests from /openapi.json, right ones and wrong ones."""
    out = subprocess.run(
        [str(pathlib.Path(sys.executable).parent / "schemathesis"), "run", quern.url + "/openapi.json", "--checks",
         "not_a_server_error", "--max-examples", "5", "--phases", "coverage,fuzzing", "--seed", "1",
         "--exclude-path-regex", "/v1/streams", "--request-timeout", "60", "--no-color"],
        capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert out.returncode == 0, out.stdout[-4000:] + out.stderr[-2000:]
    assert "No issues found" in out.stdout or "passed" in out.stdout


# ---- the default model ----

@pytest.fixture(scope="module")
def default_model():
    found = subprocess.run([quern_bin(), "inspect", "--json"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("the default model is not in the cache")
    started = time.time()
    with Quern(model="smollm2-135m-instruct", env={"HOME": os.environ.get("HOME", "/nonexistent"), **{
            k: os.environ[k] for k in ("QUERN_CACHE", "XDG_CACHE_HOME") if k in os.environ}}) as q:
        q.start_s = time.time() - started
        yield q


def test_the_default_model_says_what_run_says(default_model):
    text = "Name three colours."
    messages = [{"role": "user", "content": text}]
    status, answer = default_model.post("/v1/chat/completions", messages=messages, max_tokens=16, temperature=0,
                                        model="smollm2-135m-instruct")
    assert status == 200
    run = subprocess.run([quern_bin(), "run", "smollm2-135m-instruct", "-p", text, "--temp", "0", "-n", "16"],
                         capture_output=True, text=True, check=True).stdout
    assert answer["choices"][0]["message"]["content"].strip() == run.strip()


def test_a_second_turn_finds_the_first_in_the_cache(default_model):
    first = [{"role": "user", "content": "Tell me a story about a mill and the people who worked there. " * 4}]
    _, a = default_model.post("/v1/chat/completions", messages=first, max_tokens=4, seed=1)
    more = first + [{"role": "assistant", "content": a["choices"][0]["message"]["content"]},
                    {"role": "user", "content": "Go on."}]
    _, b = default_model.post("/v1/chat/completions", messages=more, max_tokens=4, seed=1)
    assert b["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48
    assert json.dumps(a) != json.dumps(b)
