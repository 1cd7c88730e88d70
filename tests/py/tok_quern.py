"""ctypes over tests/py/testing_text.c: quern's tokenizers, a batch of texts per call."""

import ctypes
import os
import pathlib
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = os.environ.get("QUERN_TESTING_LIB", str(ROOT / "build/release/tests/libquern_testing.so"))
ERRORS = [
    "OK",
    "INVALID",
    "FORMAT",
    "UNSUPPORTED",
    "LIMIT",
    "NOT_FOUND",
    "EXISTS",
    "DENIED",
    "IO",
    "NETWORK",
    "HASH",
    "NOMEM",
    "AGAIN",
    "CANCELLED",
    "INTERNAL",
]
NO_TOKEN = 0xFFFFFFFF
_lib = None


class QuernError(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def library():
    global _lib
    if _lib is None:
        _lib = ctypes.CDLL(LIBRARY)
        for name in ("quern_tok_json", "quern_tok_spm", "quern_tok_gguf"):
            getattr(_lib, name).restype = ctypes.c_void_p
        for name in (
            "quern_tok_encode",
            "quern_tok_encode_parts",
            "quern_tok_decode",
            "quern_tok_encode_allocs",
            "quern_tok_stream",
        ):
            getattr(_lib, name).restype = ctypes.c_int64
        _lib.quern_tok_encode_seconds.restype = ctypes.c_double
        _lib.quern_tok_error_bytes.restype = ctypes.c_size_t
        _lib.quern_tok_error_text.restype = ctypes.c_char_p
        _lib.quern_tok_count.restype = ctypes.c_uint32
        _lib.quern_tok_find.restype = ctypes.c_uint32
    return _lib


class Failure:
    """A struct error for one call."""

    def __init__(self):
        self.bytes = ctypes.create_string_buffer(library().quern_tok_error_bytes())

    def raised(self):
        text = library().quern_tok_error_text(self.bytes).decode("utf-8", "replace")
        return QuernError(ERRORS[library().quern_tok_error_code(self.bytes)], text)


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def flat(texts):
    """Texts as one byte string and their offsets."""
    parts = [as_bytes(t) for t in texts]
    at = np.zeros(len(parts) + 1, np.uint64)
    np.cumsum([len(p) for p in parts], out=at[1:])
    return b"".join(parts), at


def flat_ids(lists):
    at = np.zeros(len(lists) + 1, np.uint64)
    np.cumsum([len(x) for x in lists], out=at[1:])
    ids = np.fromiter((i for x in lists for i in x), np.uint32, int(at[-1]))
    return ids, at


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


class Tok:
    """One tokenizer of quern. Make it with from_json, from_spm or from_gguf."""

    def __init__(self, make):
        failure = Failure()
        began = time.process_time()
        self.handle = make(failure.bytes)
        self.load_seconds = time.process_time() - began
        if not self.handle:
            raise failure.raised()
        self.handle = ctypes.c_void_p(self.handle)

    @classmethod
    def from_json(cls, text, config=b"", copy_path=None):
        text, config = as_bytes(text), as_bytes(config)
        path = os.fsencode(copy_path) if copy_path else None
        return cls(
            lambda e: library().quern_tok_json(
                text, ctypes.c_size_t(len(text)), config, ctypes.c_size_t(len(config)), path, e
            )
        )

    @classmethod
    def from_spm(cls, model, add_bos=False, add_eos=False):
        return cls(
            lambda e: library().quern_tok_spm(model, ctypes.c_size_t(len(model)), int(add_bos), int(add_eos), e)
        )

    @classmethod
    def from_gguf(cls, model, pre, tokens, scores=None, types=None, merges=(), roles=None, flags=None, charsmap=b""):
        """roles: {"bos": id...}; flags: {"add_bos": bool...}; both may leave names out."""
        tokens, token_at = flat(tokens)
        merges, merge_at = flat(merges)
        scores = None if scores is None else np.asarray(scores, np.float32)
        types = None if types is None else np.asarray(types, np.int32)
        role = np.array(
            [(roles or {}).get(k, NO_TOKEN) for k in ("bos", "eos", "eot", "eom", "unk", "pad")], np.uint32
        )
        names = ("add_bos", "add_eos", "add_space_prefix", "remove_extra_whitespaces")
        flag = np.array([-1 if k not in (flags or {}) else int(flags[k]) for k in names], np.int32)
        return cls(
            lambda e: library().quern_tok_gguf(
                model.encode(),
                pre.encode(),
                tokens,
                pointer(token_at),
                ctypes.c_size_t(len(token_at) - 1),
                None if scores is None else pointer(scores),
                None if types is None else pointer(types),
                merges,
                pointer(merge_at),
                ctypes.c_size_t(len(merge_at) - 1),
                pointer(role),
                pointer(flag),
                charsmap,
                ctypes.c_size_t(len(charsmap)),
                e,
            )
        )

    def __del__(self):
        if getattr(self, "handle", None):
            library().quern_tok_free(self.handle)

    def encode(self, texts, trusted=False, add_special=False):
        """A list of id lists."""
        blob, at = flat(texts)
        cap = 4 * len(blob) + 64 * (len(at))
        failure = Failure()
        while True:
            out, out_at = np.empty(cap, np.uint32), np.empty(len(at), np.uint64)
            n = library().quern_tok_encode(
                self.handle,
                blob,
                pointer(at),
                ctypes.c_size_t(len(at) - 1),
                int(trusted),
                int(add_special),
                pointer(out),
                ctypes.c_size_t(cap),
                pointer(out_at),
                failure.bytes,
            )
            if n < 0:
                raise failure.raised()
            if n <= cap:
                break
            cap = n
        flat_list, cuts = out[:n].tolist(), out_at.tolist()
        return [flat_list[a:b] for a, b in zip(cuts, cuts[1:])]

    def encode_only(self, texts):
        """Encode as a user's text and keep nothing; for timing. Returns the number of ids."""
        blob, at = flat(texts)
        out_at, failure = np.empty(len(at), np.uint64), Failure()
        n = library().quern_tok_encode(
            self.handle,
            blob,
            pointer(at),
            ctypes.c_size_t(len(at) - 1),
            0,
            0,
            None,
            ctypes.c_size_t(0),
            pointer(out_at),
            failure.bytes,
        )
        if n < 0:
            raise failure.raised()
        return n

    def encode_parts(self, parts, add_special=False):
        """One text given as (text, trusted) pairs."""
        blob, at = flat([p for p, _ in parts])
        trusted = np.array([t for _, t in parts] + [0], np.uint8)
        out, failure = np.empty(4 * len(blob) + 64, np.uint32), Failure()
        n = library().quern_tok_encode_parts(
            self.handle,
            blob,
            pointer(at),
            pointer(trusted),
            ctypes.c_size_t(len(parts)),
            int(add_special),
            pointer(out),
            ctypes.c_size_t(len(out)),
            failure.bytes,
        )
        if n < 0:
            raise failure.raised()
        return out[:n].tolist()

    def decode(self, lists, skip_special=True, stream=False):
        """A list of byte strings. stream: id by id through the detokeniser, so the result is always valid UTF-8."""
        ids, at = flat_ids(lists)
        cap = 64 * len(ids) + 64
        failure = Failure()
        while True:
            out, out_at = np.empty(cap, np.uint8), np.empty(len(at), np.uint64)
            n = library().quern_tok_decode(
                self.handle,
                pointer(ids),
                pointer(at),
                ctypes.c_size_t(len(at) - 1),
                int(skip_special),
                int(stream),
                pointer(out),
                ctypes.c_size_t(cap),
                pointer(out_at),
                failure.bytes,
            )
            if n < 0:
                raise failure.raised()
            if n <= cap:
                break
            cap = n
        blob, cuts = out[:n].tobytes(), out_at.tolist()
        return [blob[a:b] for a, b in zip(cuts, cuts[1:])]

    def stream(self, ids, stops, include_stop=False):
        """Through the detokeniser with stops: (text, bytes before the cut, ids fed when it was found)."""
        ids, (blob, at) = np.asarray(ids, np.uint32), flat(stops)
        out, where, failure = np.empty(64 * len(ids) + 64, np.uint8), np.zeros(2, np.uint64), Failure()
        n = library().quern_tok_stream(
            self.handle,
            pointer(ids),
            ctypes.c_size_t(len(ids)),
            int(include_stop),
            blob,
            pointer(at),
            ctypes.c_size_t(len(stops)),
            pointer(out),
            ctypes.c_size_t(len(out)),
            pointer(where),
            failure.bytes,
        )
        if n < 0:
            raise failure.raised()
        return out[:n].tobytes(), int(where[0]), int(where[1])

    def count(self):
        return library().quern_tok_count(self.handle)

    def find(self, name):
        name = as_bytes(name)
        return library().quern_tok_find(self.handle, name, ctypes.c_size_t(len(name)))

    def is_special(self, i):
        return bool(library().quern_tok_is_special(self.handle, ctypes.c_uint32(i)))

    def encode_allocs(self, text, times):
        text, failure = as_bytes(text), Failure()
        n = library().quern_tok_encode_allocs(self.handle, text, ctypes.c_size_t(len(text)), times, failure.bytes)
        if n < 0:
            raise failure.raised()
        return n

    def encode_seconds(self, text):
        text, failure = as_bytes(text), Failure()
        seconds = library().quern_tok_encode_seconds(self.handle, text, ctypes.c_size_t(len(text)), failure.bytes)
        if seconds < 0:
            raise failure.raised()
        return seconds
