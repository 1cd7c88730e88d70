"""The two sides of the chat-template tests: jinja2 set up as transformers sets it up, and quern through ctypes."""

import copy
import ctypes
import datetime
import functools
import json
import os
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIB = pathlib.Path(os.environ.get("QUERN_TESTING_LIB", ROOT / "build/release/tests/libquern_testing.so"))
SHARED = pathlib.Path(os.environ.get("QUERN_SHARED", ROOT.parent / "shared"))
NOW = 1753920000  # 2025-07-31 00:00:00 UTC


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}: a call block around its body, as transformers tracks assistant text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def make_environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(format)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = make_environment()


@functools.lru_cache(maxsize=4)
def compiled(source):
    """The template, or the error that compiling it raised."""
    try:
        return ENV.from_string(source)
    except Exception as e:
        return e


def oracle(source, case):
    """(text, None) or (None, the error)."""
    variables = {
        "messages": case.get("messages", []),
        "tools": case.get("tools"),
        "documents": case.get("documents"),
        "add_generation_prompt": case.get("add_generation_prompt", False),
    }
    variables.update(case.get("tokens", {}))
    variables.update(case.get("kwargs", {}))
    variables = copy.deepcopy(variables)  # some filters of jinja2 change lists in place
    template = compiled(source)
    if isinstance(template, Exception):
        return None, template
    try:
        return template.render(**variables), None
    except Exception as e:  # whatever the template makes jinja2 raise, quern must refuse too
        return None, e


class Segment(ctypes.Structure):
    _fields_ = [("start", ctypes.c_size_t), ("end", ctypes.c_size_t), ("trusted", ctypes.c_bool)]


class Result(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int),
        ("error", ctypes.c_char * 512),
        ("text", ctypes.c_void_p),
        ("n", ctypes.c_size_t),
        ("segments", ctypes.POINTER(Segment)),
        ("n_segments", ctypes.c_size_t),
        ("steps", ctypes.c_uint64),
        ("arena_bytes", ctypes.c_size_t),
    ]


class Quern:
    def __init__(self):
        lib = ctypes.CDLL(str(LIB))
        lib.quern_testing_chat_new.restype = ctypes.c_void_p
        lib.quern_testing_chat_new.argtypes = [
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(Result),
        ]
        lib.quern_testing_chat_free.argtypes = [ctypes.c_void_p]
        lib.quern_testing_chat_output.restype = ctypes.c_void_p
        lib.quern_testing_chat_render.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.POINTER(Result),
        ]
        self.lib = lib
        self.output = lib.quern_testing_chat_output()
        self.result = Result()

    def compile(self, source, name="test"):
        data = source.encode()
        handle = self.lib.quern_testing_chat_new(name.encode(), data, len(data), ctypes.byref(self.result))
        return handle, self.result.error.decode()

    def render_compiled(self, handle, case):
        """(text, segments, error)"""
        data = json.dumps({"now": NOW, "messages": [], **case}).encode()
        code = self.lib.quern_testing_chat_render(handle, data, len(data), self.output, ctypes.byref(self.result))
        if code != 0:
            return None, None, self.result.error.decode()
        raw = ctypes.string_at(self.result.text, self.result.n)
        segments = [(s.start, s.end, s.trusted) for s in self.result.segments[: self.result.n_segments]]
        return raw.decode(), segments, None

    def render(self, source, case, name="test"):
        handle, error = self.compile(source, name)
        if not handle:
            return None, None, error
        try:
            return self.render_compiled(handle, case)
        finally:
            self.lib.quern_testing_chat_free(handle)


def shared_templates():
    folder = SHARED / "data" / "chat-templates"
    return sorted(folder.glob("*.jinja")) + sorted(folder.glob("vllm/*.jinja")) if folder.is_dir() else []
