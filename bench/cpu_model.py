"""A model file in the shape of Qwen3-0.6B (as a Llama, with the default model's vocabulary) with made-up weights, for
bench/cpu.py: both programs can load it, and what a step costs does not depend on the numbers. Written with the package
`gguf`; blocks are random integers under one small scale.

cpu_model.py FROM TO TYPE   FROM: the default model, whose tokenizer is copied; TYPE: F16, Q8_0, Q4_0, Q4_1 or Q4_K_M
"""
import sys

import gguf
import numpy as np

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 28, 1024, 3072, 16, 8, 128, 8192
T = gguf.GGMLQuantizationType
# type -> bytes of a block, elements, where its f16 scales lie
BLOCKS = {T.Q8_0: (34, 32, [0]), T.Q4_0: (18, 32, [0]), T.Q4_1: (20, 32, [0, 2]), T.Q4_K: (144, 256, [0, 2]),
          T.Q6_K: (210, 256, [208])}
POOL = 1 << 14  # blocks that are made; larger tensors repeat them


class Maker:
    def __init__(self):
        self.rng, self.pools = np.random.default_rng(1), {}

    def pool(self, kind):
        if kind not in self.pools:
            if kind == T.F16:
                self.pools[kind] = (self.rng.standard_normal(16 * POOL, dtype=np.float32) * 0.02).astype(np.float16)
            else:
                size, _, scales = BLOCKS[kind]
                blocks = self.rng.integers(0, 256, (POOL, size), dtype=np.uint8)
                for at in scales:
                    blocks[:, at:at + 2] = np.frombuffer(np.float16(0.001).tobytes(), dtype=np.uint8)
                self.pools[kind] = blocks
        return self.pools[kind]

    def tensor(self, kind, rows, columns):
        if kind == T.F16:
            return np.resize(self.pool(kind), (rows, columns))
        size, elems, _ = BLOCKS[kind]
        return np.resize(self.pool(kind), (rows, columns // elems * size))


def type_of(name, layer, ftype):
    """As llama.cpp's quantiser chooses: the tied head in six bits, in Q4_K_M half of the values and downs too."""
    if ftype in ("F16", "Q8_0"):
        return T[ftype]
    if name == "token_embd":
        return T.Q6_K
    if ftype == "Q4_K_M":
        more = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
        return T.Q6_K if name in ("attn_v", "ffn_down") and more else T.Q4_K
    return T[ftype]


def copy_tokenizer(source, writer):
    for name, field in gguf.GGUFReader(source).fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)
        if name == "tokenizer.ggml.tokens":
            vocab = len(value)
    return vocab


def main():
    source, target, ftype = sys.argv[1:4]
    writer, maker = gguf.GGUFWriter(target, "llama"), Maker()
    writer.add_name(f"bench-0.6b-{ftype}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(1000000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    vocab = copy_tokenizer(source, writer)
    writer.add_vocab_size(vocab)

    makers = []  # one tensor at a time is in memory

    def put(name, layer, rows, columns):
        kind = type_of(name, layer, ftype)
        full = f"{name}.weight" if layer < 0 else f"blk.{layer}.{name}.weight"
        size, elems = (2, 1) if kind == T.F16 else BLOCKS[kind][:2]
        shape = (rows, columns if kind == T.F16 else columns // elems * size)
        writer.add_tensor_info(full, shape, np.dtype(np.float16 if kind == T.F16 else np.uint8),
                               rows * (columns // elems) * size, raw_dtype=kind)
        makers.append(lambda: maker.tensor(kind, rows, columns))

    def gain(name):
        writer.add_tensor_info(name, (HIDDEN,), np.dtype(np.float32), HIDDEN * 4)
        makers.append(lambda: np.ones(HIDDEN, dtype=np.float32))

    put("token_embd", -1, vocab, HIDDEN)
    gain("output_norm.weight")
    for i in range(LAYERS):
        gain(f"blk.{i}.attn_norm.weight")
        gain(f"blk.{i}.ffn_norm.weight")
        for name, rows, columns in (("attn_q", HEADS * HEAD_DIM, HIDDEN), ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
                                    ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN), ("attn_output", HIDDEN, HEADS * HEAD_DIM),
                                    ("ffn_gate", FFN, HIDDEN), ("ffn_up", FFN, HIDDEN), ("ffn_down", HIDDEN, FFN)):
            put(name, i, rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for make in makers:
        writer.write_tensor_data(make())
    writer.close()


if __name__ == "__main__":
    main()
