"""The dialect of regular expressions against Python's re: random patterns, random texts, equal verdicts. And masks
against brute force over a real vocabulary."""

import ctypes
import json
import random
import re

import pytest

import grammar_schema as gs

SCHEMA, OBJECT, REGEX, EBNF, CHOICE, STRUCTURE = range(6)


@pytest.fixture(scope="module")
def lib():
    lib = gs.library()
    p, n = ctypes.c_void_p, ctypes.c_size_t
    lib.quern_grammar_compile.restype = p
    lib.quern_grammar_compile.argtypes = [p, ctypes.c_int, ctypes.c_char_p, n, p]
    lib.quern_grammar_free.argtypes = [p]
    lib.quern_grammar_verdicts.argtypes = [p, ctypes.c_char_p, p, n, ctypes.c_char_p]
    lib.quern_grammar_check.restype = ctypes.c_int64
    lib.quern_grammar_check.argtypes = [p, p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]
    return lib


@pytest.fixture(scope="module")
def small():
    return gs.byte_vocab()


class Grammar:
    def __init__(self, lib, vocab, kind, text):
        error = gs.Error()
        data = text.encode()
        self.lib, self.vocab = lib, vocab
        self.handle = lib.quern_grammar_compile(vocab.handle, kind, data, len(data), ctypes.byref(error))
        if not self.handle:
            raise gs.Refused(error)

    def __del__(self):
        if getattr(self, "handle", None):
            self.lib.quern_grammar_free(self.handle)

    def verdicts(self, texts):
        data = [t.encode() for t in texts]
        at = (ctypes.c_uint64 * (len(data) + 1))()
        for i, d in enumerate(data):
            at[i + 1] = at[i] + len(d)
        out = ctypes.create_string_buffer(len(data))
        self.lib.quern_grammar_verdicts(self.handle, b"".join(data), at, len(data), out)
        return list(out.raw)

    def check(self, seed, steps, plant=0):
        return self.lib.quern_grammar_check(self.handle, self.vocab.handle, seed, steps, plant)


def within_limits(lib, vocab, kind, text):
    """The grammar, or None where an ambiguous count would take too many states: that is said, and no other refusal."""
    try:
        return Grammar(lib, vocab, kind, text)
    except gs.Refused as e:
        assert "steps to compile" in str(e) or "bytes to compile" in str(e) or "states" in str(e), (text, e)
        return None


ALPHABET = "ab01 -\näé€😀\u2028"
DOT = "[^\n\r\u2028\u2029]"
SPACE = "[\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"


def atom(rng, depth):
    """A piece of a pattern, in our dialect and in Python's."""
    kind = rng.randrange(12 if depth > 0 else 9)
    if kind < 4:
        c = rng.choice("ab01 é€😀")
        return c, c
    if kind == 4:
        return rng.choice([(".", DOT), (r"\d", "[0-9]"), (r"\w", "[A-Za-z0-9_]"), (r"\s", SPACE), (r"\D", "[^0-9]"),
                           (r"\W", "[^A-Za-z0-9_]"), (r"\S", "[^" + SPACE[1:])])
    if kind == 5:
        return rng.choice([(r"\u00e9", "é"), (r"\u{1F600}", "😀"), (r"\x61", "a"), (r"\n", "\n"), (r"\-", "-"),
                           (r"\ud83d\ude00", "😀")])
    if kind < 9:
        items = rng.sample(["a", "b", "0-1", "à-ï", "€", r"\d", "a-b", "\\n", "😀"], rng.randrange(1, 4))
        text = "[" + ("^" if rng.random() < 0.3 else "") + "".join(items) + "]"
        return text, text
    ours, theirs = alternatives(rng, depth - 1)
    return rng.choice([f"({ours})", f"(?:{ours})", f"(?<n>{ours})"]), f"(?:{theirs})"


def sequence(rng, depth):
    ours = theirs = ""
    for _ in range(rng.randrange(0 if depth < 2 else 1, 4)):
        a, b = atom(rng, depth)
        if rng.random() < 0.4:
            q = rng.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{3,9}"])
            a, b = a + q + ("?" if rng.random() < 0.2 else ""), b + q
        ours, theirs = ours + a, theirs + b
    return ours, theirs


def alternatives(rng, depth):
    parts = [sequence(rng, depth) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    return "|".join(p[0] for p in parts), "|".join(p[1] for p in parts)


def some_text(rng, pattern):
    """Random, or letters of the pattern: what nearly matches."""
    letters = [c for c in pattern if c in ALPHABET] or list(ALPHABET)
    pool = letters if rng.random() < 0.6 else ALPHABET
    return "".join(rng.choice(pool) for _ in range(rng.randrange(0, rng.choice([4, 8, 13]))))


def test_random_patterns_say_what_re_says(lib, small):
    compared = matched = 0
    for seed in range(1500):
        rng = random.Random(seed)
        ours, theirs = alternatives(rng, 2)
        g = within_limits(lib, small, REGEX, ours)
        if g is None:
            continue
        texts = [some_text(rng, ours) for _ in range(40)]
        oracle = re.compile(theirs)
        for text, verdict in zip(texts, g.verdicts(texts)):
            want = oracle.fullmatch(text) is not None
            assert (verdict == 2) == want, (seed, ours, text)
            matched += want
            compared += 1
    assert compared > 57000 and matched > 2000


def test_counts_are_exact_at_both_ends(lib, small):
    pieces = {"(ab|c)": ["ab", "c"], "[ab0]": list("ab0"), "(?:é|€|a)": ["é", "€", "a"], "(0|1-)": ["0", "1-"]}
    for piece, words in pieces.items():
        for low, high in ((0, 30), (3, 40), (17, 17), (2, 500), (40, None)):
            end = "" if high is None else str(high)
            g = Grammar(lib, small, REGEX, f"<{piece}{{{low},{end}}}>")
            rng = random.Random(low)
            for n in {0, 1, low - 1, low, low + 1, (high or 60) - 1, high or 70, (high or 60) + 1} - {-1}:
                text = "<" + "".join(rng.choice(words) for _ in range(n)) + ">"
                want = n >= low and (high is None or n <= high)
                assert g.verdicts([text]) == [2 if want else 0], (piece, low, high, n)


def test_random_patterns_are_searched_for_in_strings(lib, small):
    found = 0
    for seed in range(600):
        rng = random.Random(10000 + seed)
        ours, theirs = alternatives(rng, 1)
        anchors = rng.choice([("", ""), ("^", ""), ("", "$"), ("^", "$")])
        if rng.random() < 0.2:
            ours, theirs = f"(?:^|a){ours}", f"(?:\\A|a)(?:{theirs})" if "|" not in ours else f"(?:\\A|a){theirs}"
        else:
            wrap = rng.random() < 0.5 or "|" in ours
            ours = anchors[0] + (f"({ours})" if wrap else ours) + anchors[1]
            theirs = f"(?:{theirs})" if wrap else theirs
            theirs = anchors[0].replace("^", r"\A") + theirs + anchors[1].replace("$", r"\Z")
        g = within_limits(lib, small, SCHEMA, json.dumps({"type": "string", "pattern": ours}))
        if g is None:
            continue
        texts = [some_text(rng, ours) for _ in range(20)]
        oracle = re.compile(theirs)
        for ascii_only in (True, False):
            spelled = [json.dumps(t, ensure_ascii=ascii_only) for t in texts]
            for text, verdict in zip(texts, g.verdicts(spelled)):
                want = oracle.search(text) is not None
                assert (verdict == 2) == want, (seed, ours, text)
                found += want
    assert found > 2000


def test_beginnings_are_beginnings(lib, small):
    for seed in range(300):
        rng = random.Random(20000 + seed)
        ours, theirs = alternatives(rng, 2)
        g = within_limits(lib, small, REGEX, ours)
        if g is None:
            continue
        oracle = re.compile(theirs)
        for text in (some_text(rng, ours) for _ in range(30)):
            if oracle.fullmatch(text):
                assert all(g.verdicts([text[:i] for i in range(len(text) + 1)])), (seed, ours, text)


@pytest.mark.parametrize("pattern,part", [
    (r"(a)\1", "back-references"), (r"(?=a)", "look-around"), (r"(?<!a)b", "look-around"),
    (r"\bword", "word boundaries"),
    (r"a++", "possessive"), (r"(?i)a", "inline flags"), (r"[[:alpha:]]", "POSIX"),
    (r"\p{Script=Greek}", "Script=Greek"),
    (r"\Aa", r"escape \A"), (r"a{3,2}", "out of order"), (r"[b-a]", "out of order"), (r"(a", "not closed"),
    (r"a)", "without its ("), (r"*a", "nothing to repeat"), (r"[a", "not closed"), ("a\\", "backslash at the end"),
    (r"a{,3}", "{0,n}"), (r"\xg1", "two hexadecimal"), (r"[\d-z]", "end of a range"),
])
def test_what_is_refused_is_named(lib, small, pattern, part):
    with pytest.raises(Exception, match=re.escape(part)):
        Grammar(lib, small, REGEX, pattern)


def real_grammars():
    tool = {"type": "object", "properties": {"name": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]},
                                             "note": {"type": "string", "maxLength": 20}}, "required": ["name", "unit"]}
    yield "schema", SCHEMA, json.dumps(tool)
    yield "object", OBJECT, ""
    yield "regex", REGEX, r"[A-Z][a-z]{2,20}( \w+)*, \d{1,3} years"
    yield "ebnf", EBNF, ('root ::= (name " = " expr ";\\n")+\nexpr ::= term ([-+*/] term)*\n'
                         'term ::= name | "(" expr ")"\nname ::= [a-z] [a-z0-9_]*\n')
    yield "choice", CHOICE, json.dumps(["yes", "no", "not at all", "日本"])
    yield "structure", STRUCTURE, json.dumps({"type": "sequence", "parts": [
        {"type": "free_until", "stops": ["<tool_call>"]},
        {"type": "repeat", "part": {"type": "sequence", "parts": [
            {"type": "text", "value": "<tool_call>\n"}, {"type": "json", "schema": tool}]}}]})


@pytest.fixture(scope="module")
def real():
    try:
        return gs.real_vocab()
    except (AttributeError, FileNotFoundError):
        pytest.skip("the package with a large vocabulary is not installed")


@pytest.mark.parametrize("kind,text", [pytest.param(k, t, id=name) for name, k, t in real_grammars()])
def test_masks_equal_brute_force_over_a_real_vocabulary(lib, real, kind, text):
    g = Grammar(lib, real, kind, text)
    for seed in (1, 2):
        assert g.check(seed, 12) == 12
    assert g.check(3, 3, plant=1) < 0, "a bit turned over was not seen"
