"""ctypes over tests/py/testing_grammar_schema.c, and what the tests of JSON schemas share: the suite, orders of
members, vocabularies, random texts."""

import ctypes
import importlib.util
import io
import itertools
import json
import os
import pathlib
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("QUERN_TESTING_LIB", str(ROOT / "build/release/tests/libquern_testing.so"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))
SUITE = SHARED / "data/json/JSON-Schema-Test-Suite.tar.xz"
CODES = ["OK", "INVALID", "FORMAT", "UNSUPPORTED", "LIMIT"]
SPACED, COMPACT, FLEXIBLE = 0, 1, 2
SEPARATORS = {SPACED: (", ", ": "), COMPACT: (",", ":"), FLEXIBLE: (",", ":")}
ORDERS_MAX = 5000
_lib = None


class Error(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int),
        ("text", ctypes.c_char * 512),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int),
    ]


class Refused(Exception):
    def __init__(self, error):
        self.code = CODES[error.code] if error.code < len(CODES) else str(error.code)
        self.text = error.text.decode()
        super().__init__(f"{self.code}: {self.text}")


def library():
    global _lib
    if _lib is None:
        _lib = ctypes.CDLL(LIBRARY)
        p, n = ctypes.c_void_p, ctypes.c_size_t
        _lib.quern_schema_vocab.restype = p
        _lib.quern_schema_compile.restype = p
        _lib.quern_schema_compile.argtypes = [p, ctypes.c_char_p, n, ctypes.c_int, p]
        _lib.quern_schema_matches.argtypes = [p, ctypes.c_char_p, n]
        _lib.quern_schema_free.argtypes = [p]
        _lib.quern_schema_generate.restype = ctypes.c_int64
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        _lib.quern_schema_generate.argtypes = [p, p, u32, u64, u32, u32, p, u32, p, n, p]
    return _lib


class Vocab:
    """Tokens as bytes; the last one is the end of a text."""

    def __init__(self, tokens):
        self.tokens = list(tokens) + [b"<end>"]
        self.end = len(self.tokens) - 1
        offsets = list(itertools.accumulate((len(t) for t in self.tokens), initial=0))
        error = Error()
        self.handle = library().quern_schema_vocab(
            b"".join(self.tokens),
            (ctypes.c_uint32 * len(offsets))(*offsets),
            (ctypes.c_uint8 * len(self.tokens))(*([0] * self.end + [1])),
            ctypes.c_uint32(len(self.tokens)),
            ctypes.byref(error),
        )
        assert self.handle, error.text
        at = {t: i for i, t in reversed(list(enumerate(self.tokens)))}
        printable = [bytes([c]) for c in range(0x21, 0x7F) if bytes([c]) in at]
        closers = [at[c] for c in (b'"', b"}", b"]")] + [at[c] for c in printable]
        self.closers = (ctypes.c_uint32 * len(closers))(*closers)


def byte_vocab():
    """Every byte, and some tokens that cross the boundaries of JSON."""
    extra = [b'{"', b'":', b'": ', b'", "', b'"}', b"}]", b"null", b"true", b"tru", b"[]", b"{}", b', "', b"12", b"00",
             b"e+", b'\\"', b"\\u00", b".0", b"-1", b'": "', b"\xc3\xa9", "日本".encode(), b"ab", b"  ", b"\n  "]
    return Vocab([bytes([i]) for i in range(256)] + extra)


def real_vocab():
    """65,000 tokens of a byte-level vocabulary that a pinned package carries."""
    package = pathlib.Path(importlib.util.find_spec("litellm").origin).parent  # importing it takes 10 s
    path = package / "litellm_core_utils/tokenizers/anthropic_tokenizer.json"
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    back = {chr(b): b for b in keep}
    back.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in keep)})
    vocab = json.loads(path.read_text())["model"]["vocab"]
    names = sorted(vocab, key=vocab.get)
    return Vocab([bytes(back[c] for c in name) for name in names if all(c in back for c in name)])


class Schema:
    def __init__(self, vocab, schema, whitespace=SPACED):
        text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
        error = Error()
        self.vocab, self.whitespace = vocab, whitespace
        self.handle = library().quern_schema_compile(vocab.handle, text, len(text), whitespace, ctypes.byref(error))
        if not self.handle:
            raise Refused(error)

    def __del__(self):
        if getattr(self, "handle", None):
            library().quern_schema_free(self.handle)

    def matches(self, text):
        return bool(library().quern_schema_matches(self.handle, text, len(text)))

    def accepts(self, value):
        """In some order of the members, since order is declared by the schema and not by the value."""
        for ordered in orders(value):
            text = json.dumps(ordered, ensure_ascii=False, separators=SEPARATORS[self.whitespace])
            if self.matches(text.encode("utf-8", "surrogatepass")):
                return True
        return False

    def generate(self, seed, n_free=60, n_max=4000, jumps=None):
        out = ctypes.create_string_buffer(1 << 20)
        count = jumps if jumps is not None else ctypes.c_uint64()
        v = self.vocab
        n = library().quern_schema_generate(
            self.handle, v.handle, v.end, seed, n_free, n_max, v.closers, len(v.closers), out, len(out),
            ctypes.byref(count))
        if n < 0:
            raise AssertionError(f"seed {seed}: walk ended with {n}")
        return out.raw[:n]


def orders(value):
    """The value with the members of its objects in every order, ORDERS_MAX at most."""
    if isinstance(value, list):
        out = [[]]
        for item in value:
            out = [o + [x] for o in out for x in orders(item)][:ORDERS_MAX]
        return out
    if not isinstance(value, dict):
        return [value]
    out = []
    for members in itertools.permutations(value.items()) if len(value) <= 6 else [tuple(value.items())]:
        some = [{}]
        for key, item in members:
            some = [{**o, key: x} for o in some for x in orders(item)][:ORDERS_MAX]
        out += some
        if len(out) > ORDERS_MAX:
            break
    return out


def suite(draft):
    """(name of the file, group) of the official tests of a draft, the dialect written into each schema."""
    with tarfile.open(SUITE) as tar:
        for member in tar.getmembers():
            parts = pathlib.PurePosixPath(member.name).parts
            if draft not in parts or not member.name.endswith(".json") or "tests" not in parts:
                continue
            name = "/".join(parts[parts.index(draft) + 1:])[:-5]
            for group in json.load(io.TextIOWrapper(tar.extractfile(member), encoding="utf-8")):
                schema = group["schema"]
                if isinstance(schema, dict) and "$schema" not in schema and draft == "draft7":
                    group["schema"] = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
                yield name, group
