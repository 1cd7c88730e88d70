#!/usr/bin/env python3
"""Writes the seeds of fuzz_options: command lines as NUL-ended words, an empty word, then a config file's text."""
import pathlib

SEEDS = {
    "help": (["--help"], ""),
    "inspect": (["inspect", "-c", "4096", "--max-num-seqs=8", "--kv-cache-dtype", "q8_0", "--json", "model.gguf"], ""),
    "before_verb": (["--log-level=debug", "--fault", "alloc:3+", "inspect", "--tensors", "--", "--odd"], ""),
    "letters": (["-hV", "-c5", "-c=6"], ""),
    "negated": (["inspect", "--no-json", "--tensors=false", "--memory", "1.5GiB"], ""),
    "unknown": (["inspect", "--tensros"], ""),
    "file": (["inspect", "x"], "# comment\nlog-level = warn\n[inspect]\nmax-model-len = 100\njson = true\n"),
    "file_quotes": (["inspect"], 'cache-dir = "a \\"b\\" \\n"\n[version]\njson = false\n'),
    "file_bad": (["version"], "[inspct]\nx = \n"),
}

here = pathlib.Path(__file__).parent / "fuzz_options"
here.mkdir(exist_ok=True)
for name, (words, text) in SEEDS.items():
    data = b"".join(w.encode() + b"\0" for w in words) + (b"\0" + text.encode() if text else b"")
    (here / name).write_bytes(data)
