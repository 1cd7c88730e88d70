#!/usr/bin/env python3
"""Which CUDA kernels differ from those of another commit, by what the compiler makes of them (PTX for 9.0a, so nothing
but nvcc is needed): what was measured and checked on a card then still holds for those that do not. Functions that
kernels call are listed by themselves; tables in device memory are not looked at.

  tools/kernels.py REV
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
NVCC = ["nvcc", "-ptx", "-O3", "-DNDEBUG", "-DQUERN_CUDA", '-DQUERN_VERSION="0"', "-D_GNU_SOURCE",
        "--generate-code=arch=compute_90a,code=compute_90a"]
# what does not belong to a kernel: names with the hash of a file in them, numbers of variables
OWN = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(_\d+)?|_INTERNAL_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}"
                 r"(_\d+)?|__(\w+?)_cu_[0-9a-f]{8}|\$L__BB\d+|\$str\S*|__unnamed_\d+")
ENTRY = re.compile(r"^(?:\.\w+ )*\.(?:entry|func)\s+(?:\([^)]*\)\s*)?(\w+)\(.*?^}", re.MULTILINE | re.DOTALL)


def entries(source):
    """{kernel: its text} of a file; functions that are called are among them."""
    root = source.parents[2]
    done = subprocess.run([*NVCC, f"-isystem={root / 'src'}", "-o", "-", str(source)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{source}: {done.stderr}")
    return {OWN.sub("", m[1]): OWN.sub("", m[0]) for m in ENTRY.finditer(done.stdout)}


def kernels(root):
    files = sorted((root / "src/cuda").glob("*.cu"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return {(f.name, k): text for f, found in zip(files, pool.map(entries, files)) for k, text in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rev")
    rev = parser.parse_args().rev
    with tempfile.TemporaryDirectory() as scratch:
        before = pathlib.Path(scratch) / "tree"
        before.mkdir()
        packed = subprocess.run(["git", "-C", ROOT, "archive", rev, "src"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", before], input=packed, check=True)
        old, new = kernels(before), kernels(ROOT)
    for file, kernel in sorted(old.keys() | new.keys()):
        at = (file, kernel)
        if old.get(at) != new.get(at):
            print("gone   " if at not in new else "new    " if at not in old else "changed", file, kernel)
    same = sum(old.get(at) == text for at, text in new.items())
    print(f"{same} of {len(new)} kernels are those of {rev}")


if __name__ == "__main__":
    main()
