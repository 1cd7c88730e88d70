"""tools/tidy.py finds what it claims to find: one planted breach per rule, and a clean twin."""
import pathlib
import subprocess
import sys

import pytest

TIDY = pathlib.Path(__file__).resolve().parents[2] / "tools" / "tidy.py"
DOOR = "/* the door */\n#ifndef {0}_{0}_H\n#define {0}_{0}_H\n#endif\n"


def tree(root, **extra):
    """A small tree in order, then the files of the case over it."""
    files = {"src/base/base.h": DOOR.format("BASE"), "src/base/a.c": '/* a */\n#include "base/base.h"\n',
             "src/kv/kv.h": DOOR.format("KV"), "src/kv/b.c": '/* b */\n#include "base/base.h"\n#include "kv/kv.h"\n'}
    files.update(extra.get("files", {}))
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run([sys.executable, str(TIDY), str(root)], text=True, capture_output=True)


def test_a_tree_in_order_passes(tmp_path):
    result = tree(tmp_path)
    assert result.returncode == 0, result.stdout


def body(n):
    return "/* x */\nstatic void f(void)\n{\n" + "    ;\n" * n + "}\n"


@pytest.mark.parametrize("name, text, complaint", [
    ("src/base/x.c", '/* x */\n#include "kv/kv.h"\n', "may not include kv"),
    ("src/kv/x.c", '/* x */\n#include "base/base_int.h"\n', "is private to base"),
    ("src/attic/x.c", '/* x */\n#include "base/base.h"\n', "has no level"),
    ("src/sched/x.c", "/* x */\n", "has no door"),
    ("src/kv/kv.h", DOOR.format("KV") + "\n" * 200, "a door of"),
    ("src/kv/x.c", "/* x */\n" + "\n" * 1000, "the limit is 1000"),
    ("src/kv/x.c", body(101), "function of 101 lines"),
    ("src/kv/x.c", "/* x */\n/* " + "y" * 120 + " */\n", "columns"),
    ("src/kv/x.c", "/* x */\nint n = atoi(s);\n", "atoi is banned"),
    ("src/kv/x.c", "/* x */\nchar *p = malloc(3);\n", "malloc outside base/mem.c"),
    ("src/kv/x.c", "/* x */\nvoid f(void) { exit(1); }\n", "exit outside cli/"),
    ("src/kv/x.c", "int x;\n", "starts without a comment"),
    ("src/kv/x.h", "/* x */\n", "no include guard"),
    ("src/kv/lonely.h", "/* x */\n#ifndef KV_LONELY_H\n#define KV_LONELY_H\n#endif\n", "nobody includes"),
    ("src/kv/x.c", "/* x */ \n", "trailing blanks"),
    ("src/kv/x.c", "/* TO" + "DO */\n", "leftover"),
    ("tools/x.sh", "cd /wor" + "k/main\n", "a path of one machine"),
])
def test_a_breach_is_found(tmp_path, name, text, complaint):
    result = tree(tmp_path, files={name: text})
    assert result.returncode == 1 and complaint in result.stdout, result.stdout


@pytest.mark.parametrize("name, text", [
    ("src/kv/x.c", "/* malloc(3) in a comment, and */\nconst char *s = \"exit(1)\";\n"),
    ("src/kv/x.c", body(100)),
    ("src/base/mem.c", "/* x */\nvoid *p = malloc(3);\n"),
    ("src/cli/cli.h", DOOR.format("CLI")),
])
def test_a_lookalike_is_not_a_breach(tmp_path, name, text):
    files = {name: text}
    if name == "src/cli/cli.h":
        files["src/cli/main.c"] = '/* main */\n#include "cli/cli.h"\nvoid f(void) { exit(1); }\n'
    result = tree(tmp_path, files=files)
    assert result.returncode == 0, result.stdout
