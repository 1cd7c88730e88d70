"""/v1/embeddings: against the float64 reference on tiny random models, whatever the batch and the chunks, and as the
openai client uses it."""
import base64
import concurrent.futures
import hashlib
import json

import numpy as np
import openai
import pytest

import reference_models
from reference import Reference
from server_quern import Quern

BAR = 1e-5  # F32 weights and F32 keys and values: what is left is the rounding of float arithmetic
TOKENS = 150
LENGTHS = [1, 2, 17, 64, 150]
TINY = "tiny-1m-q8_0"


def unit(x):
    return x / np.linalg.norm(x)


def distance(got, want):
    return float(np.linalg.norm(np.asarray(got, dtype=np.float64) - want))


@pytest.fixture(scope="module", params=["llama", "gemma2", "qwen3"])
def case(request, tmp_path_factory):
    """(path, reference, ids) of a random model."""
    config = reference_models.make_config(request.param)
    weights = reference_models.make_weights(config, request.param)
    path = tmp_path_factory.mktemp("embeddings") / f"{request.param}.gguf"
    reference_models.write_gguf(path, config, weights)
    return path, Reference(config, weights, context=TOKENS + 10), reference_models.make_ids(config, TOKENS)


def serve(path, *more):
    return Quern("--kv-cache-dtype", "f32", "--max-model-len", TOKENS + 10, *more, model=path)


def vectors(server, ids, **more):
    """One for each of LENGTHS."""
    status, answer = server.post("/v1/embeddings", input=[list(map(int, ids[:n])) for n in LENGTHS], **more)
    assert status == 200, answer
    assert [d["index"] for d in answer["data"]] == list(range(len(LENGTHS)))
    assert answer["usage"] == {"prompt_tokens": sum(LENGTHS), "total_tokens": sum(LENGTHS)}
    return [d["embedding"] for d in answer["data"]]


def test_vectors_equal_the_reference(case):
    path, reference, ids = case
    rows = reference.hidden(ids)
    with serve(path) as server:
        mean, last = vectors(server, ids), vectors(server, ids, pooling="last")
    for n, m, l in zip(LENGTHS, mean, last):
        assert distance(m, unit(rows[:n].mean(axis=0))) < BAR
        assert distance(l, unit(rows[n - 1])) < BAR
    # and the bar is narrow: one token less in the mean, or the one before the last, is over it by far
    assert distance(mean[-1], unit(rows[:TOKENS - 1].mean(axis=0))) > 20 * BAR
    assert distance(last[-1], unit(rows[TOKENS - 2])) > 20 * BAR


def test_bytes_depend_neither_on_the_chunks_nor_on_the_neighbours(case):
    path, _, ids = case
    found = []
    for more in (["--max-num-batched-tokens", 512], ["--max-num-batched-tokens", 16, "--max-num-seqs", 4],
                 ["--max-num-batched-tokens", 48, "--num-gpu-blocks-override", 14]):  # the last one preempts
        with serve(path, *more) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
            prompts = [list(map(int, ids[:20 + i])) for i in range(5)]  # in one request: they run at the same time
            writer = pool.submit(server.post, "/v1/completions", prompt=prompts, max_tokens=90, ignore_eos=True)
            found += list(pool.map(lambda _, s=server: vectors(s, ids, encoding_format="base64"), range(3)))
            found.append(vectors(server, ids, encoding_format="base64"))  # and when prefixes could be found
            assert writer.result()[0] == 200
            stats = server.wait_idle()
            assert stats["kv"]["held"] == 0
    assert sum(stats["preempted"].values()) > 0, "the last of them was meant to preempt"
    assert all(f == found[0] for f in found)


@pytest.fixture(scope="module")
def quern():
    with Quern() as q:
        yield q


@pytest.fixture(scope="module")
def client(quern):
    return openai.OpenAI(base_url=quern.url + "/v1", api_key="none", max_retries=0)


def test_the_openai_client_gets_the_same_in_both_encodings(client):
    # without encoding_format the client asks for base64 and decodes it itself
    one = client.embeddings.create(model=TINY, input="Speak to me of the king.")
    again = client.embeddings.create(model=TINY, input=["Speak to me of the king.", "And the queen?"],
                                     encoding_format="float")
    assert one.object == "list" and one.data[0].object == "embedding" and one.model == TINY
    assert np.array_equal(np.float32(one.data[0].embedding), np.float32(again.data[0].embedding))
    assert abs(np.linalg.norm(one.data[0].embedding) - 1) < 1e-6
    assert distance(again.data[0].embedding, np.array(again.data[1].embedding)) > 0.01
    assert one.usage.prompt_tokens == one.usage.total_tokens > 0


def test_dimensions_are_the_first_ones_of_length_one(client):
    whole = np.array(client.embeddings.create(model=TINY, input="king").data[0].embedding)
    for n in (1, 7, len(whole)):
        cut = client.embeddings.create(model=TINY, input="king", dimensions=n).data[0].embedding
        assert len(cut) == n and distance(cut, unit(whole[:n])) < 1e-6
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=TINY, input="king", dimensions=len(whole) + 1)


def test_ids_and_their_text_are_the_same_input(quern):
    ids = quern.post("/tokenize", prompt="Speak to me of the king.")[1]["tokens"]
    answers = [quern.post("/v1/embeddings", input=i, encoding_format="base64")[1]
               for i in ("Speak to me of the king.", ids, [ids], ["Speak to me of the king."])]
    assert len({a["data"][0]["embedding"] for a in answers}) == 1
    assert len(base64.b64decode(answers[0]["data"][0]["embedding"])) % 4 == 0


@pytest.mark.parametrize("body,param", [
    ({}, "input"), ({"input": []}, "input"), ({"input": 1}, "input"), ({"input": ["a", [1]]}, "input"),
    ({"input": [10 ** 9]}, "input"), ({"input": ["a"] * 257}, "input"), ({"input": "a " * 5000}, "input"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"), ({"input": "a", "pooling": "max"}, "pooling"),
    ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "model": "gpt-4"}, "model"),
])
def test_what_is_wrong_is_named(quern, body, param):
    status, answer = quern.post("/v1/embeddings", **body)
    assert status in (400, 404) and answer["error"]["param"] == param, answer


def test_tokens_are_settled_and_the_rest_of_a_budget_is_kept(tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"tenants": [{"name": "a", "keys": [hashlib.sha256(b"k").hexdigest()],
                                             "tokens_per_min": 20}]}))
    with Quern("--key-file", keys) as q:
        def ask(n):
            return q.call("/v1/embeddings", {"input": list(range(10, 10 + n))}, {"Authorization": "Bearer k"})[0]
        assert ask(9) == 200 and ask(9) == 200 and ask(9) == 429


def test_a_server_without_a_model_says_so():
    with Quern("--fake-step", 100) as q:
        status, answer = q.post("/v1/embeddings", input="a")
        assert status == 400 and "makes its tokens up" in answer["error"]["message"]
