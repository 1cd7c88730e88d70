"""Calls into hub/ through the testing library. As a program, `hub_driver.py OP CACHE MODEL LOG`, it does one call with
fast retries and prints the error's name and the path: for tests that need a second process, or one to kill."""

import ctypes
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))


class Call(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_char_p), ("cache_dir", ctypes.c_char_p), ("model", ctypes.c_char_p),
        ("log_path", ctypes.c_char_p), ("cancel", ctypes.c_void_p), ("offline", ctypes.c_uint32),
        ("retry_max", ctypes.c_uint32), ("retry_ms", ctypes.c_uint32), ("retry_cap_ms", ctypes.c_uint32),
        ("connect_ms", ctypes.c_uint32), ("stall_ms", ctypes.c_uint32), ("path", ctypes.c_void_p),
        ("text", ctypes.c_void_p),
    ]


class Answer:
    def __init__(self, code, text, path):
        self.code, self.text, self.path = code, text, path

    def __repr__(self):
        return f"<{self.code}: {self.text or self.path}>"


class Hub:
    """One cache folder; every call opens the hub anew, as each command does."""

    def __init__(self, cache, log=None):
        self.lib = ctypes.CDLL(str(LIB))
        self.lib.quern_testing_hub_err_name.restype = ctypes.c_char_p
        self.lib.quern_testing_hub_fault_calls.restype = ctypes.c_uint64
        self.cache, self.log = pathlib.Path(cache), log

    def call(self, op, model, *, offline=False, retry_max=3, retry_ms=10, retry_cap_ms=2000, connect_ms=2000,
             stall_ms=20000, cancel=None):
        path, text = ctypes.create_string_buffer(65536), ctypes.create_string_buffer(512)
        encode = lambda s: None if s is None else os.fsencode(s)
        call = Call(encode(op), encode(self.cache), encode(model), encode(self.log),
                    ctypes.cast(ctypes.pointer(cancel), ctypes.c_void_p) if cancel is not None else None, int(offline),
                    retry_max, retry_ms, retry_cap_ms, connect_ms, stall_ms, ctypes.addressof(path),
                    ctypes.addressof(text))
        rc = self.lib.quern_testing_hub(ctypes.byref(call))
        code = self.lib.quern_testing_hub_err_name(rc).decode()
        assert text.value != b"NO SENTENCE", f"{op} {model}: {code} without a sentence"
        found = path.value.decode() if op == "list" else pathlib.Path(os.fsdecode(path.value))
        return Answer(code, text.value.decode(), found)

    def pull(self, model, **options):
        return self.call("pull", model, **options)

    def resolve(self, model):
        return self.call("resolve", model)

    def remove(self, model):
        return self.call("remove", model)

    def list(self):
        answer = self.call("list", None)
        assert answer.code == "OK", answer
        return json.loads(answer.path)

    def fault(self, kind, nth, sticky=False):
        self.lib.quern_testing_hub_fault(kind, ctypes.c_uint64(nth), int(sticky))

    def fault_calls(self, kind):
        return self.lib.quern_testing_hub_fault_calls(kind)


if __name__ == "__main__":
    op, cache, model, log = sys.argv[1:]
    result = Hub(cache, log or None).call(op, model)
    print(result.code, result.path if result.code == "OK" else result.text)
