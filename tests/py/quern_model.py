"""Run a whole model through libquern_testing.so: logits for every position of a list of ids."""
import ctypes
import os
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))


class Options(ctypes.Structure):
    _fields_ = [("variant", ctypes.c_char_p), ("kv_dtype", ctypes.c_char_p), ("threads", ctypes.c_uint32),
                ("context", ctypes.c_uint32), ("block_tokens", ctypes.c_uint32), ("rows_max", ctypes.c_uint32)]


def library():
    lib = ctypes.CDLL(str(LIBRARY))
    lib.quern_model_open.restype = ctypes.c_void_p
    lib.quern_model_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(Options), ctypes.c_char_p, ctypes.c_size_t]
    lib.quern_model_close.argtypes = [ctypes.c_void_p]
    lib.quern_model_vocab.argtypes = [ctypes.c_void_p]
    lib.quern_model_vocab.restype = ctypes.c_uint32
    lib.quern_model_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32,
                                    ctypes.c_void_p, ctypes.c_void_p]
    return lib


class Model:
    """An open model; use as a context manager."""

    def __init__(self, path, kv_dtype="F16", variant=None, threads=2, context=0, block_tokens=16, rows_max=512):
        self.lib = library()
        options = Options(variant.encode() if variant else None, kv_dtype.encode(), threads, context, block_tokens,
                          rows_max)
        text = ctypes.create_string_buffer(1024)
        self.handle = self.lib.quern_model_open(str(path).encode(), ctypes.byref(options), text, len(text))
        if not self.handle:
            raise RuntimeError(text.value.decode())
        self.vocab = self.lib.quern_model_vocab(self.handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.quern_model_close(self.handle)

    def logits(self, ids, first=0, chunk=512):
        ids = np.ascontiguousarray(ids, dtype=np.int32)
        out = np.full((len(ids), self.vocab), np.nan, dtype=np.float32)
        self.best = np.zeros(len(ids), dtype=np.uint32)  # the device's own choice of the largest logit
        code = self.lib.quern_model_run(self.handle, ids.ctypes.data, first, len(ids), chunk, out.ctypes.data,
                                        self.best.ctypes.data)
        if code != 0:
            raise RuntimeError(f"step failed with code {code}")
        return out
