"""llama.cpp through llama-cpp-python, doing the work of `quern bench`: run by bench/cpu.py with the peer's own Python.

cpu_peer.py bench MODEL THREADS CONTEXT   those of the five tests that fit into the context, as JSON
cpu_peer.py answer MODEL THREADS N   load, read a prompt of 16 tokens, make N tokens greedily; for outside clocks
cpu_peer.py quantise FROM TO TYPE    make a file of another type
"""
import json
import sys
import time

import llama_cpp as L

RUNS_MIN, RUNS_S = 3, 3.0
SLOW_S = 5.0  # a test whose runs take longer is not repeated three times
ROWS, SEQS = 512, 16
DEPTH = 4096


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
    """The best of the runs that fit into the time: (tokens, seconds) each."""
    start, rates = time.perf_counter(), []
    while len(rates) < RUNS_MIN or time.perf_counter() - start < RUNS_S:
        tokens, seconds = run()
        rates.append(tokens / seconds)
        if len(rates) > 1 and seconds > SLOW_S or time.perf_counter() - start > 10 * RUNS_S:
            break
    return max(rates)


def bench(path, threads, context):
    results = []
    one = Session(path, threads, min(context, DEPTH + 128), 1)

    def prefill(n):
        one.clear()
        start = time.perf_counter()
        one.fill(1, n)
        return n, time.perf_counter() - start

    def decode(session, n_seqs, at, n):
        L.llama_memory_seq_rm(L.llama_get_memory(session.ctx), -1, at, -1)
        start = time.perf_counter()
        for i in range(n):
            session.step(n_seqs, at + i, 1, True)
        return n * n_seqs, time.perf_counter() - start

    for n in (n for n in (512, 2048) if n <= context):
        results.append({"name": f"pp{n}", "tok_s": best(lambda n=n: prefill(n))})
    results.append({"name": "tg128", "tok_s": best(lambda: decode(one, 1, 0, 128))})
    many = Session(path, threads, SEQS * 512, SEQS)
    many.fill(SEQS, 128)
    results.append({"name": "tg32x16", "tok_s": best(lambda: decode(many, SEQS, 128, 32))})
    if context >= DEPTH + 32:
        one.clear()
        one.fill(1, DEPTH)
        results.append({"name": "tg32@4096", "tok_s": best(lambda: decode(one, 1, DEPTH, 32))})
    print(json.dumps({"results": results}))


def answer(path, threads, n):
    s = Session(path, threads, 2048, 1)
    at, tokens = 0, list(range(100, 116))
    for _ in range(n):
        logits = s.step(1, at, len(tokens), True, tokens)
        at += len(tokens)
        tokens = [max(range(0, s.vocab, 97), key=lambda i: logits[i])]


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
        bench(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif what == "answer":
        answer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        quantise(*sys.argv[2:5])
