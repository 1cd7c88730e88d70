"""Models as quern reads them, for the oracle tests: opened through the testing library, described as a dictionary."""
import ctypes
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))


class Refused(Exception):
    """The library's answer to a bad file: its sentence, and the number of the error."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def library():
    if not LIB.exists():
        raise FileNotFoundError(f"{LIB} is not built")
    lib = ctypes.CDLL(str(LIB))
    lib.quern_testing_model_open.restype = ctypes.c_void_p
    lib.quern_testing_model_json.restype = ctypes.c_void_p
    lib.quern_testing_model_tensor.restype = ctypes.c_void_p
    return lib


class Model:
    """Use as a context manager; `about` is the description, tensor(name) the bytes as mapped."""

    def __init__(self, path):
        self.lib = library()
        code, text = ctypes.c_int(), ctypes.create_string_buffer(512)
        self.handle = self.lib.quern_testing_model_open(os.fsencode(path), ctypes.byref(code), text)
        if not self.handle:
            raise Refused(code.value, text.value.decode())
        self.handle = ctypes.c_void_p(self.handle)
        raw = ctypes.c_void_p(self.lib.quern_testing_model_json(self.handle))
        self.about = json.loads(ctypes.string_at(raw))
        self.lib.quern_testing_model_free_text(raw)
        self.index = {t["name"]: i for i, t in enumerate(self.about["tensors"])}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.quern_testing_model_close(self.handle)

    def tensor(self, name):
        n = ctypes.c_uint64()
        p = self.lib.quern_testing_model_tensor(self.handle, ctypes.c_uint64(self.index[name]), ctypes.byref(n))
        return ctypes.string_at(p, n.value)
