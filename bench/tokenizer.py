#!/usr/bin/env python3
"""Tokenizing speed of quern and of the PyPI package `tokenizers`, one thread each, in the same run.

  bench/tokenizer [--mb N] [--only PART]... [--no-scaling]

Per tokenizer and kind of text: MB/s of both and the ratio. Then load times, then speed over the length of one text
up to 16 MB. Texts: English prose (a book of the shared data folder, or the documentation strings of Python's library),
code (Python's library), Chinese (words of a public vocabulary drawn by their rank). Each text is cut into documents of
8 KB; no document is seen twice, by either side. Both sides take whole lists and keep their results to themselves, so
what is timed is the tokenizing, in processor seconds. Three slices of the text are timed in turn for both, and the
middle ratio is shown."""

import argparse
import ast
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/py"))

from tokenizers import Tokenizer  # noqa: E402

import tok_oracles  # noqa: E402
import tok_packages  # noqa: E402
from tok_quern import Tok  # noqa: E402

SLICES = 3
DOCUMENT_BYTES = 8192
TOKENIZERS = [
    "smollm2 (gguf)",
    "llama3 (json)",
    "qwen2 (json)",
    "o200k gpt-oss (json)",
    "tekken (json)",
    "deepseek v3 (json)",
    "llama2 legacy (json)",
    "mistral v3 (spm)",
    "gemma3 (gguf)",
    "shared gpt2",
    "shared llama3.2",
    "shared qwen3",
]


def library_files():
    return sorted(p for p in pathlib.Path(os.__file__).parent.glob("**/*.py") if "site-packages" not in p.parts)


def prose(n):
    book = tok_packages.shared("text/war-and-peace.txt")
    if book:
        return fill([book.read_text("utf-8", "replace")], n), "War and Peace"
    parts = []
    warnings.simplefilter("ignore")
    for path in library_files():
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                parts.append(ast.get_docstring(node) or "")
    return fill(parts, n), "documentation strings of Python's library"


def code(n):
    return fill((p.read_text("utf-8", "replace") for p in library_files()), n), "Python's library"


def chinese(n):
    ranks = tok_oracles.read_tiktoken(tok_packages.member("dashscope", "dashscope/resources/qwen.tiktoken"))
    words = []
    for token, _ in sorted(ranks.items(), key=lambda x: x[1]):
        text = token.decode("utf-8", "replace")
        if all("\u4e00" <= c <= "\u9fff" for c in text):
            words.append(text)
    r = random.Random("quern-chinese")
    weights = [1 / (i + 10) for i in range(len(words))]
    out, size = [], 0
    while size < n:
        sentence = "".join(r.choices(words, weights, k=r.randint(4, 14))) + r.choice("，，，。。！？；")
        out.append(sentence + ("\n" if r.random() < 0.05 else ""))
        size += len(out[-1].encode())
    return fill(out, n), f"{len(words)} words drawn by rank"


def fill(parts, n):
    """n bytes of the parts, over again if they are short."""
    parts, out, size = list(parts), [], 0
    while size < n:
        for part in parts:
            out.append(part)
            size += len(part.encode())
            if size >= n:
                break
    return "\n".join(out)


def documents(text):
    """Cuts of about DOCUMENT_BYTES at character borders."""
    data, out, at = text.encode(), [], 0
    while at < len(data):
        end = min(len(data), at + DOCUMENT_BYTES)
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        out.append(data[at:end].decode())
        at = end
    return out


def slices(docs):
    size = len(docs) // SLICES
    return [docs[i * size : (i + 1) * size] for i in range(SLICES)]


def seconds(work):
    """Processor time, so that other work on the machine does not count; on an idle one it is the time that passes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def speeds(oracle, docs):
    """MB/s of both and the middle ratio over the slices."""
    ours, theirs, bytes_done = [], [], []
    for part in slices(docs):
        bytes_done.append(sum(len(d.encode()) for d in part))
        ours.append(seconds(lambda: oracle.quern.encode_only(part)))
        theirs.append(seconds(lambda: encode_theirs(oracle, part)))
    ratio = statistics.median(t / o for o, t in zip(ours, theirs))
    mb = sum(bytes_done) / 1e6
    return mb / sum(ours), mb / sum(theirs), ratio


def encode_theirs(oracle, part):
    if isinstance(oracle, tok_oracles.HfOracle):
        oracle.hf.encode_batch_fast(part, add_special_tokens=False)
    else:
        oracle.sp.encode(part, out_type=int, num_threads=1)


def load_times(name, oracle, folder):
    """Milliseconds: ours first, ours from the copy (best of 5), theirs."""
    if name.endswith("(gguf)") or name.endswith("(spm)"):
        return oracle.quern.load_seconds * 1e3, None, None
    path = pathlib.Path(folder) / "copy"
    path.unlink(missing_ok=True)
    first = Tok.from_json(oracle.text, copy_path=path).load_seconds
    copy = min(Tok.from_json(oracle.text, copy_path=path).load_seconds for _ in range(5))
    return first * 1e3, copy * 1e3, seconds(lambda: Tokenizer.from_str(oracle.text)) * 1e3


def show_ms(value):
    return "-" if value is None else f"{value:.0f}"


def print_scaling(oracle, name, texts):
    print(f"\nOne text of growing length, {name}, MB/s (proportional time means equal numbers)\n")
    sizes = [1 << k for k in (14, 16, 18, 20, 22, 24)]
    runs = dict(texts)
    runs.update({"one letter": "a", "spaces": " ", "look-alikes": "<|im_start|"})
    print("| text | " + " | ".join(f"{s >> 10} KB" if s < 1 << 20 else f"{s >> 20} MB" for s in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for kind, text in runs.items():
        data = text.encode()
        data = data * (sizes[-1] // len(data) + 1)
        row = []
        for size in sizes:
            cut = data[:size].decode("utf-8", "ignore").encode()
            oracle.quern.encode_seconds(b"warm the buffers " * 4)
            row.append(
                len(cut) / 1e6 / min(oracle.quern.encode_seconds(cut) for _ in range(3 if size < 1 << 22 else 1))
            )
        print(f"| {kind} | " + " | ".join(f"{x:.1f}" for x in row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=3.0, help="megabytes of each kind of text")
    parser.add_argument("--only", action="append", help="tokenizers whose name contains this")
    parser.add_argument("--no-scaling", action="store_true")
    args = parser.parse_args()
    size = int(args.mb * 1e6)
    made = {"prose": prose(size), "code": code(size), "Chinese": chinese(size)}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    print(
        f"commit {commit}; one thread each; {args.mb:g} MB of each: "
        + "; ".join(f"{k}: {source}" for k, (_, source) in made.items())
    )
    texts = {k: text for k, (text, _) in made.items()}
    docs = {k: documents(text) for k, text in texts.items()}
    print(
        "\n| tokenizer | entries | "
        + " | ".join(f"{k}: quern, original MB/s | ratio" for k in docs)
        + " | load ms: first, copy, original |"
    )
    print("|---|---|" + "---|---|" * len(docs) + "---|")
    worst, scaling = {}, None
    with tempfile.TemporaryDirectory() as folder:
        for name in TOKENIZERS:
            if args.only and not any(part in name for part in args.only):
                continue
            try:
                oracle = tok_oracles.REAL[name]()
            except tok_packages.Missing as why:
                print(f"| {name} | skipped: {why} |")
                continue
            cells = []
            for kind, parts in docs.items():
                ours, theirs, ratio = speeds(oracle, parts)
                cells.append(f"{ours:.1f}, {theirs:.1f} | {ratio:.1f}")
                worst[kind] = min(worst.get(kind, (1e9, "")), (ratio, name))
            first, copy, original = load_times(name, oracle, folder)
            print(
                f"| {name} | {oracle.quern.count()} | "
                + " | ".join(cells)
                + f" | {show_ms(first)}, {show_ms(copy)}, {show_ms(original)} |",
                flush=True,
            )
            scaling = scaling or (oracle, name)
    for kind, (ratio, name) in worst.items():
        print(f"lowest ratio on {kind}: {ratio:.2f} ({name})")
    if scaling and not args.no_scaling:
        print_scaling(*scaling, texts)


if __name__ == "__main__":
    main()
