"""llama.cpp through llama-cpp-python, doing the work of `quern bench`: run by bench/cpu.py with the peer's own Python.

cpu_peer.py bench MODEL THREADS CONTEXT TESTS   those of the tests (a,b,...) that fit into the context, as JSON
cpu_peer.py answer MODEL THREADS N   load, read a prompt of 16 tokens, make N tokens greedily; for outside clocks
cpu_peer.py quantise FROM TO TYPE    make a file of another type
"""
import json
import sys
import time

import llama_cpp as L

RUNS_MIN, RUNS_S = 3, 3.0  # as src/cli/verb_bench.c repeats its tests
RUN_LIMIT_S = 15.0  # a run that takes longer is cut there: with a core taken by another process it may crawl
ROWS, SEQS = 512, 16
DEPTH, BATCH_FROM = 4096, 32


class Session:
    def __init__(self, path, threads, context, seqs):
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        assert self.model, "the peer cannot load the model"
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, max(ROWS, 2048), ROWS
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max = seqs
        self.ctx = L.llama_init_from_model(self.model, params)
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))
        self.batch = L.llama_batch_init(ROWS, 0, seqs)

    def close(self):
        L.llama_free(self.ctx)
        L.llama_model_free(self.model)

    def clear(self):
        L.llama_memory_clear(L.llama_get_memory(self.ctx), True)

    def step(self, n_seqs, at, n, want_logits, tokens=None):
        b = self.batch
        row = 0
        for s in range(n_seqs):
            for i in range(n):
                b.token[row] = tokens[i] if tokens else ((at + i + 1 + s * 31) * 2654435761 % 2**32) % self.vocab
                b.pos[row] = at + i
                b.n_seq_id[row] = 1
                b.seq_id[row][0] = s
                b.logits[row] = want_logits and i == n - 1
                row += 1
        b.n_tokens = row
        assert L.llama_decode(self.ctx, b) == 0
        if want_logits:
            L.llama_synchronize(self.ctx)
            return L.llama_get_logits_ith(self.ctx, row - 1)
        return None

    def fill(self, n_seqs, to):
        at = 0
        while at < to:
            n = min(to - at, ROWS // n_seqs)
            self.step(n_seqs, at, n, at + n == to)
            at += n


def best(run):
    """Tokens a second in the best run; each gives (tokens, seconds)."""
    taken, rates = 0.0, []
    while len(rates) < RUNS_MIN and taken < 2 * RUNS_S or taken < RUNS_S:
        tokens, seconds = run()
        rates.append(tokens / seconds)
        taken += seconds
    return max(rates)


def prefill(session, n):
    session.clear()
    start = time.perf_counter()
    session.fill(1, n)
    return n, time.perf_counter() - start


def decode(session, n_seqs, at, n):
    L.llama_memory_seq_rm(L.llama_get_memory(session.ctx), -1, at, -1)
    start = time.perf_counter()
    done = 0
    while done < n and time.perf_counter() - start < RUN_LIMIT_S:
        session.step(n_seqs, at + done, 1, True)
        done += 1
    return done * n_seqs, time.perf_counter() - start


def bench(path, threads, context, tests):
    results = {}
    single = [t for t in tests if t != "tg32x16"]
    if single:
        s = Session(path, threads, min(context, DEPTH + 128), 1)
        for n in (n for n in (512, 2048) if f"pp{n}" in tests and n <= context):
            results[f"pp{n}"] = best(lambda n=n: prefill(s, n))
        if "tg128" in tests:
            s.clear()
            results["tg128"] = best(lambda: decode(s, 1, 0, 128))
        if "tg32@4096" in tests and context >= DEPTH + 32:
            s.clear()
            s.fill(1, DEPTH)
            results["tg32@4096"] = best(lambda: decode(s, 1, DEPTH, 32))
        s.close()
    if "tg32x16" in tests:
        s = Session(path, threads, SEQS * 256, SEQS)
        s.fill(SEQS, BATCH_FROM)
        results["tg32x16"] = best(lambda: decode(s, SEQS, BATCH_FROM, 32))
        s.close()
    print(json.dumps({"results": [{"name": name, "tok_s": rate} for name, rate in results.items()]}))


def answer(path, threads, n):
    s = Session(path, threads, 2048, 1)
    at, tokens = 0, list(range(100, 116))
    for _ in range(n):
        logits = s.step(1, at, len(tokens), True, tokens)
        at += len(tokens)
        tokens = [max(range(0, s.vocab, 97), key=lambda i: logits[i])]


def resident():
    """Bytes in memory, now and at most."""
    fields = dict(line.split(":", 1) for line in open("/proc/self/status", encoding="ascii") if ":" in line)
    return [1024 * int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM")]


def quantise(source, target, name):
    params = L.llama_model_quantize_default_params()
    params.ftype = getattr(L, "LLAMA_FTYPE_MOSTLY_" + name)
    params.allow_requantize = True
    assert L.llama_model_quantize(source.encode(), target.encode(), params) == 0


if __name__ == "__main__":
    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, None)
    what = sys.argv[1]
    if what == "bench":
        bench(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].split(","))
    elif what == "answer":
        answer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif what == "resident":
        bare = resident()[0]
        answer(sys.argv[2], int(sys.argv[3]), 1)
        now, most = resident()
        print(json.dumps({"bare": bare, "now": now, "most": most}))
    else:
        quantise(*sys.argv[2:5])
