#!/usr/bin/env python3
"""Run clang-tidy over the C sources of src/, one process per file, as many at a time as there are cores.

A file that passed is not looked at again until what the compiler sees of it changes: build/lint/ keeps one stamp per
file, the hash of its preprocessed text, of its NOLINT comments, of the checks and of the clang-tidy version. So the
first run takes minutes and the next one seconds. Needs build/release configured. Only the standard library is used.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STAMPS = ROOT / "build" / "lint"


def compile_commands():
    """Source path below the root -> its compiler arguments without compiler, -c, -o and the file itself."""
    commands = {}
    for entry in json.loads((ROOT / "build/release/compile_commands.json").read_text()):
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
        args = shlex.split(entry["command"])
        at = args.index("-o")
        del args[at:at + 2]
        first = next(i for i, a in enumerate(args) if a.startswith("-"))  # a launcher may stand before the compiler
        commands[path] = [a for a in args[first:] if a != "-c" and not a.endswith(".c")]
    return commands


def fingerprint(path, args, common):
    """What the answer of clang-tidy depends on; "" when the file cannot be preprocessed."""
    code = subprocess.run(["clang", "-E", "-P", "-w", *args, path], cwd=ROOT, capture_output=True)
    commented = subprocess.run(["clang", "-E", "-P", "-C", "-w", *args, path], cwd=ROOT, capture_output=True)
    if code.returncode != 0 or commented.returncode != 0:
        return ""
    spared = [line for line in commented.stdout.splitlines() if b"NOLINT" in line]
    return hashlib.sha256(b"\n".join([common, code.stdout, *spared])).hexdigest()


def check(path, args, common):
    """The findings, or None when there are none; the stamp follows."""
    stamp = STAMPS / path.replace("/", "_")
    now = fingerprint(path, args, common)
    if now and stamp.exists() and stamp.read_text() == now:
        return None
    result = subprocess.run(["clang-tidy", "-p", "build/release", "--quiet", path], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        return result.stdout
    stamp.write_text(now)
    return None


def main():
    STAMPS.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes()
    listed = subprocess.run(["git", "ls-files", "src/*.c"], cwd=ROOT, capture_output=True, text=True, check=True)
    commands = compile_commands()
    missing = [p for p in listed.stdout.split() if p not in commands]
    for path in missing:
        print(f"{path}: no target of the build compiles it")
    bad = len(missing)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        paths = [p for p in listed.stdout.split() if p in commands]
        for text in pool.map(lambda p: check(p, commands[p], common), paths):
            if text is not None:
                print(text, flush=True)
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
