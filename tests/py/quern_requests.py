"""Real requests through the engine, over a model with random weights (testing_requests.c), and the end-to-end equality
suite: tokens, greedy or drawn, are the same whether requests run one at a time, together, with their prompts in chunks,
behind prefixes that were found, preempted, or guessed. Every way must have happened, by the engine's own counts;
answers must differ from one another; and with a block in the middle of each prompt changed, the twin, they must be
found unequal."""
import ctypes

import numpy as np

from quern_model import LIBRARY

SWAP, RECOMPUTE = 1, 2  # enum preempt_mode
BLOCK = 16
GUESSES = 3


def fields(kind, names):
    return [(name, kind) for name in names.split()]


class ModelOptions(ctypes.Structure):
    _fields_ = fields(ctypes.c_char_p, "device shape weights kv") + fields(
        ctypes.c_uint32, "fp8 deterministic block_tokens context streams rows guesses blocks")


class RunOptions(ctypes.Structure):
    _fields_ = fields(
        ctypes.c_uint32, "streams rows blocks host_blocks preempt preempt_every prefix_cache late guesses rounds drawn")


class List(ctypes.Structure):
    _fields_ = fields(ctypes.c_uint32, "n out_max") + fields(ctypes.c_void_p, "ids n_prompt n_out known")


class Counts(ctypes.Structure):
    _fields_ = fields(ctypes.c_double, "seconds steady_s") + fields(
        ctypes.c_uint64, "steady_tokens output_tokens prompt_rows steps most_rows found exact swaps swapped_out "
        "swapped_in recomputations guessed held")


def library():
    lib = ctypes.CDLL(str(LIBRARY))
    lib.quern_requests_open.restype = ctypes.c_void_p
    lib.quern_requests_open.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    lib.quern_requests_close.argtypes = lib.quern_requests_vocab.argtypes = [ctypes.c_void_p]
    lib.quern_requests_run.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_char_p, ctypes.c_size_t]
    return lib


class Model:
    """An open model; use as a context manager. What it is made of: ModelOptions."""

    def __init__(self, **options):
        self.lib, self.text = library(), ctypes.create_string_buffer(1024)
        options = ModelOptions(**{k: v.encode() if isinstance(v, str) else v for k, v in options.items()})
        self.handle = self.lib.quern_requests_open(ctypes.byref(options), self.text, len(self.text))
        if not self.handle:
            raise RuntimeError(self.text.value.decode())
        self.vocab = self.lib.quern_requests_vocab(self.handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.quern_requests_close(self.handle)

    def run(self, prompts, n_out, known=None, rounds=1, **options):
        """The answers of each round, a list for each request, and the counts."""
        n_prompt, n_out = (np.ascontiguousarray(x, dtype=np.uint32) for x in ([len(p) for p in prompts], n_out))
        ids, most = np.concatenate(prompts).astype(np.uint32), int(n_out.max())
        out, counts = np.zeros((rounds, len(prompts), most), dtype=np.uint32), Counts()
        table = np.zeros((len(prompts), most), dtype=np.uint32)
        for row, answer in zip(table, known or ()):
            row[:len(answer)] = answer
        work = List(len(prompts), most, ids.ctypes.data, n_prompt.ctypes.data, n_out.ctypes.data, table.ctypes.data)
        o = RunOptions(rounds=rounds, **options)
        if self.lib.quern_requests_run(self.handle, ctypes.byref(o), ctypes.byref(work), out.ctypes.data,
                                       ctypes.byref(counts), self.text, len(self.text)) != 0:
            raise RuntimeError(self.text.value.decode())
        return [[a[:n].tolist() for a, n in zip(answers, n_out)] for answers in out], counts


class Suite:
    """n requests over a shape. Eights of prompts begin alike, with one unit of tokens, two, three...; what follows is
    of any length, and every fourth fills its last block. The eights arrive mixed."""

    def __init__(self, n, unit, n_out, chunk, seed=1, **shape):
        self.n, self.chunk, self.seed = n, chunk, seed
        self.heads = [unit * (1 + i % (n // 8)) for i in range(n)]
        self.lengths = [head + 1 + i * 37 % unit for i, head in enumerate(self.heads)]
        self.lengths = [-(-x // BLOCK) * BLOCK if i % 4 == 0 else x for i, x in enumerate(self.lengths)]
        self.n_out = [n_out - i * 7 % (n_out // 2) for i in range(n)]
        self.blocks = sum(-(-(x + o) // BLOCK) + 1 for x, o in zip(self.lengths, self.n_out))
        context = max(self.lengths) + n_out
        self.usual = dict(streams=n, rows=max(context, n * (1 + GUESSES)), blocks=self.blocks)
        self.shape = dict(shape, block_tokens=BLOCK, context=context, guesses=GUESSES, **self.usual)

    def prompts(self, vocab):
        random = np.random.default_rng(self.seed)
        heads = {head: random.integers(vocab, size=head) for head in sorted(set(self.heads))}
        return [np.concatenate([heads[head], random.integers(vocab, size=length - head)])
                for head, length in zip(self.heads, self.lengths)]

    def ways(self):
        """Name -> options of a run, and what its counts must show."""
        longest, n_tokens = max(self.lengths), sum(self.n_out)
        full = sum(x // BLOCK * BLOCK for x in self.lengths)
        # blocks run out now and then, and every third step somebody goes all the same
        few = dict(blocks=max(self.blocks // 4, longest // BLOCK + 8), preempt_every=3)
        swap, found = few | dict(host_blocks=self.blocks, preempt=SWAP), dict(prefix_cache=1, rounds=2)
        return {
            "one at a time": (dict(streams=1), lambda c: c.steps >= n_tokens and c.most_rows >= longest),
            "together": ({}, lambda c: c.steps * 2 < n_tokens),
            "prompts in chunks": (dict(rows=self.chunk), lambda c: c.most_rows < longest),
            "prefixes found": (found, lambda c: c.found >= full and c.exact >= self.n),
            "swapped": (swap, lambda c: c.swaps > 0 and c.swapped_in > 0),
            "recomputed": (few | dict(preempt=RECOMPUTE),
                           lambda c: c.recomputations > 0 and c.prompt_rows > sum(self.lengths)),
            "guessed": (dict(guesses=GUESSES), lambda c: 0 < c.held < c.guessed),
            "all of it": (swap | found | dict(rows=self.chunk, guesses=GUESSES), lambda c: c.most_rows < longest
                          and c.swapped_in > 0 and c.found > 0 and 0 < c.held < c.guessed),
        }

    def run(self, **options):
        """What was looked at, requests that differ, the run's counts, and whether that is as it should be."""
        with Model(**self.shape) as model:
            prompts, want = self.prompts(model.vocab), None
            for name, (way, happened) in self.ways().items():
                answers, counts = model.run(prompts, self.n_out, known=want, **(self.usual | options | way))
                if want is None:
                    want, = answers
                    differ = len(set(map(tuple, want)))
                    yield "from one another", differ, counts, differ > 0.9 * self.n
                differ = count_differing(answers, want)
                yield name, differ, counts, differ == 0 and happened(counts)
            for prompt in prompts:
                prompt[len(prompt) // 2:][:BLOCK] ^= 1
            answers, counts = model.run(prompts, self.n_out, **(self.usual | options))
            differ = count_differing(answers, want)
            yield "the twin", differ, counts, differ > 0.75 * self.n


def count_differing(rounds, want):
    return sum(any(answers[i] != w for answers in rounds) for i, w in enumerate(want))


def show(counts):
    return ", ".join(f"{name} {value}" for name, _ in Counts._fields_[3:] if (value := getattr(counts, name)))
