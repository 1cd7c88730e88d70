#!/usr/bin/env python3
"""Rules of the tree that a compiler does not check. Prints one line per breach and exits 1 if there is any.

  room     a room includes only rooms of a lower level, and no other room's private header (x_int.h)
  door     every room has a door header x/x.h of at most 200 lines
  size     files of at most 1,000 lines, functions of at most 100, lines of at most 120 columns
  call     banned functions; the C allocator only in base/mem.c; ending the process only in cli/
  file     C files start with a comment; headers have their include guard and somebody includes them
  text     no trailing blanks, no leftovers, no machine paths

Usage: tools/tidy.py [ROOT]   (tests/py/test_tidy.py plants one breach of each rule and expects it to be found)
"""
import pathlib
import re
import subprocess
import sys

LEVELS = {"base": 0, "tensor": 1, "format": 1, "hub": 1, "text": 1, "grammar": 1, "cpu": 2, "cuda": 2, "kv": 2,
          "sample": 2, "model": 3, "sched": 3, "cluster": 3, "engine": 4, "api": 5, "gateway": 5, "cli": 6}
SIBLINGS = {("format", "tensor")}  # format describes tensors, so it may name their types

BANNED = "strcpy strcat sprintf vsprintf strtok atoi atol atoll atof gets alloca system popen strdup strndup".split()
ALLOCATOR = "malloc calloc realloc free posix_memalign aligned_alloc".split()
ENDERS = "exit _exit _Exit quick_exit abort".split()
FILE_LINES, FUNCTION_LINES, DOOR_LINES, COLUMNS = 1000, 100, 200, 120
LEFTOVERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
MACHINE_PATHS = re.compile(r"(^|[^\w.])/(wor" + "k|far" + "m|home/[a-z])/")
CODE = {".c", ".h", ".cu", ".cuh", ".py", ".js", ".sh", ".css", ".html", ".cmake"}


def tracked(root):
    """Files git would commit; outside a repository (the self-test), every file."""
    argv = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(argv, text=True, capture_output=True)
    names = listing.stdout.splitlines() if listing.returncode == 0 else \
        [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    return [root / name for name in sorted(set(names)) if (root / name).is_file()]


def strip_comments(text):
    """Comments and string contents blanked, line structure kept."""
    def blank(match):
        token = match.group(0)
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        return token[0] + " " * (len(token) - 2) + token[-1]
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def check_text(rel, text, breach):
    lines = text.splitlines()
    if len(lines) > FILE_LINES:
        breach(rel, 1, f"{len(lines)} lines; the limit is {FILE_LINES}: split by noun")
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            breach(rel, number, f"{len(line)} columns; the limit is {COLUMNS}")
        if line != line.rstrip():
            breach(rel, number, "trailing blanks")
        if LEFTOVERS.search(line):
            breach(rel, number, "a leftover: finish it or file it")
        if MACHINE_PATHS.search(line):
            breach(rel, number, "a path of one machine")


def check_functions(rel, text, breach):
    """The house style puts a function's braces in column 0."""
    start = None
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            if number - start - 1 > FUNCTION_LINES:
                breach(rel, start, f"function of {number - start - 1} lines; the limit is {FUNCTION_LINES}")
            start = None


def check_calls(rel, text, breach):
    in_cli = rel.parts[:2] == ("src", "cli")
    for number, line in enumerate(strip_comments(text).splitlines(), 1):
        for name in re.findall(r"(?<![\w.>])([A-Za-z_]\w*)\s*\(", line):
            if name in BANNED:
                breach(rel, number, f"{name} is banned")
            elif name in ALLOCATOR and str(rel) != "src/base/mem.c":
                breach(rel, number, f"{name} outside base/mem.c")
            elif name in ENDERS and not in_cli:
                breach(rel, number, f"{name} outside cli/")


def check_includes(rel, text, breach):
    room = rel.parts[1]
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([a-z_0-9]+)/([^"]+)"', line)
        if not match or match.group(1) == room:
            continue
        other, header = match.groups()
        if room not in LEVELS or other not in LEVELS:
            breach(rel, number, f"room {room if room not in LEVELS else other} has no level in tools/tidy.py")
        elif LEVELS[other] >= LEVELS[room] and (room, other) not in SIBLINGS:
            breach(rel, number, f"{room} (level {LEVELS[room]}) may not include {other} (level {LEVELS[other]})")
        elif header.endswith("_int.h"):
            breach(rel, number, f"{other}/{header} is private to {other}")


def check_c_file(rel, text, breach):
    if not text.startswith("/*"):
        breach(rel, 1, "starts without a comment that says what it is")
    if rel.suffix == ".h":
        guard = "_".join(rel.parts[1:] if rel.parts[0] in ("src", "include") else rel.parts[-1:])
        guard = re.sub(r"\W", "_", guard).upper()
        if rel.parts[0] == "src" and f"#ifndef {guard}" not in text:
            breach(rel, 1, f"no include guard {guard}")
    check_functions(rel, text, breach)
    if rel.parts[0] == "src":
        check_calls(rel, text, breach)
        check_includes(rel, text, breach)


def check_rooms(texts, breach):
    rooms = {rel.parts[1] for rel in texts if rel.parts[0] == "src" and len(rel.parts) > 2}
    for room in sorted(rooms):
        door = pathlib.PurePath("src", room, f"{room}.h")
        if door not in texts:
            breach(door, 1, "the room has no door")
        elif len(texts[door].splitlines()) > DOOR_LINES:
            breach(door, 1, f"a door of {len(texts[door].splitlines())} lines; the limit is {DOOR_LINES}")
    included = set(re.findall(r'#\s*include\s+"([^"]+)"', "\n".join(texts.values())))
    for rel in texts:
        if rel.suffix == ".h" and rel.parts[0] == "src" and "/".join(rel.parts[1:]) not in included:
            breach(rel, 1, "nobody includes this header")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    breaches = []

    def breach(rel, line, what):
        breaches.append(f"{rel}:{line}: {what}")

    texts = {}
    for path in tracked(root):
        rel = pathlib.PurePath(path.relative_to(root))
        if path.suffix not in CODE and rel.name not in ("Makefile", "CMakeLists.txt", "run"):
            continue
        text = path.read_text(encoding="utf-8")
        check_text(rel, text, breach)
        if path.suffix in (".c", ".h", ".cu", ".cuh"):
            check_c_file(rel, text, breach)
            texts[rel] = text
    check_rooms(texts, breach)
    print("\n".join(breaches) if breaches else f"tidy: {len(texts)} C files in order")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
