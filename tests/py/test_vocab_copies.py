"""Checked binary copies of large GGUF vocabularies: made by the first start, used by the next, never believed when they
do not fit."""
import pytest

from cli_models import F32, quern, write_gguf

TOKENS = 17000  # more than model/tokenizer.c takes the trouble from


def fields(tokens, **more):
    return {"general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32,
            "llama.block_count": 1, "llama.feed_forward_length": 32, "llama.attention.head_count": 1,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["a b", "ab c"], **more}


def vocabulary(n, last="z"):
    return ["a", "b", "c", "ab", "abc", "d"] + [f"x{i}" for i in range(n - 7)] + [last]


def ids(model, cache, text):
    r = quern("tokenize", model, "--ids", "--cache-dir", cache, input=text)
    assert r.returncode == 0, r.stderr
    return [int(i) for i in r.stdout.replace(",", " ").replace("[", " ").replace("]", " ").split()]


def write(path, tokens, **more):
    write_gguf(path, fields(tokens, **more), [("token_embd.weight", F32, [32, len(tokens)])])


def copies(cache):
    return sorted(cache.rglob("*.vocab"))


def test_a_large_vocabulary_is_copied_and_the_copy_says_the_same(tmp_path):
    model, cache = tmp_path / "m.gguf", tmp_path / "cache"
    write(model, vocabulary(TOKENS))
    first = ids(model, cache, "abcabd")
    assert first == [4, 3, 5]
    made = copies(cache)
    assert len(made) == 1
    before = made[0].stat()
    assert ids(model, cache, "abcabd") == first
    assert copies(cache) == made and made[0].stat().st_ino == before.st_ino, "the copy was made again"


def test_a_small_vocabulary_is_not_copied(tmp_path):
    write(tmp_path / "m.gguf", vocabulary(100))
    assert ids(tmp_path / "m.gguf", tmp_path / "cache", "abc") == [4]
    assert copies(tmp_path / "cache") == []


def test_a_changed_file_gets_another_copy(tmp_path):
    model, cache = tmp_path / "m.gguf", tmp_path / "cache"
    write(model, vocabulary(TOKENS))
    assert ids(model, cache, "abz") == [3, TOKENS - 1]
    other = vocabulary(TOKENS)
    other[5], other[-1] = other[-1], other[5]
    write(model, other)
    assert ids(model, cache, "abz") == [3, 5]
    assert len(copies(cache)) == 1


@pytest.mark.parametrize("at", [0, 8, 40, 5000, -1])
def test_a_damaged_copy_is_made_again(tmp_path, at):
    model, cache = tmp_path / "m.gguf", tmp_path / "cache"
    write(model, vocabulary(TOKENS))
    right = ids(model, cache, "abcabdz")
    copy = copies(cache)[0]
    good = copy.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 0x40
    copy.write_bytes(bad)
    assert ids(model, cache, "abcabdz") == right
    assert copy.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    write(tmp_path / "m.gguf", vocabulary(TOKENS))
    (tmp_path / "cache").write_text("a file")
    assert ids(tmp_path / "m.gguf", tmp_path / "cache", "abc") == [4]
