#!/usr/bin/env python3
"""Writes the seeds of fuzz_record: short recordings of a small server. Needs the release build and tests/data/tiny."""
import pathlib
import sys
import threading

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "py"))
from server_quern import Quern  # noqa: E402

SMALL = ["--max-num-seqs", 3, "--max-num-batched-tokens", 8, "--num-gpu-blocks-override", 8, "--max-model-len", 96,
         "--queue-max", 8, "--swap-space", "100KiB"]
SEEDS = {
    "plain": [],
    "static_priority": ["--batching", "static", "--order", "priority"],
    "vtc_recompute": ["--batching", "prefill-first", "--order", "vtc", "--preemption", "recompute"],
    "guesses": ["--speculative", "ngram", "--speculative-ngram-min", 1],
    "no_cache": ["--no-enable-prefix-caching", "--admission", "reserve", "--itl-target-ms", 5],
}

folder = HERE / "fuzz_record"
folder.mkdir(exist_ok=True)
for name, options in SEEDS.items():
    with Quern(*SMALL, *options, "--record", folder / name) as q:
        asks = [dict(prompt=list(range(3, 20 + 5 * i)), max_tokens=6 + i, n=1 + i % 2, seed=i,
                     stop=["e"] if i % 2 else []) for i in range(4)]
        threads = [threading.Thread(target=q.post, args=("/v1/completions",), kwargs=a) for a in asks]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
