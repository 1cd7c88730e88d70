/* Llama 2 and 3, Mistral, SmolLM, MiniMind, and Mixtral, which is Llama with experts. Their GGUF files have q and k
 * permuted so that rope turns neighbouring pairs. */
#include "model/arch.h"

static const struct arch_names llama_gguf = {GGUF_DENSE_NAMES};
static const struct arch_names llama_hf = {HF_DENSE_NAMES};

const struct arch arch_llama = {
    .id = ARCH_LLAMA, .gguf_rope = ROPE_PAIRS, .glu = GLU_SILU, .gguf = &llama_gguf, .hf = &llama_hf};

static const struct arch_names mixtral_gguf = {
    GGUF_DENSE_NAMES,
    .router = "blk.%u.ffn_gate_inp.weight",
    .expert_gate = "blk.%u.ffn_gate_exps.weight",
    .expert_up = "blk.%u.ffn_up_exps.weight",
    .expert_down = "blk.%u.ffn_down_exps.weight",
};

static const struct arch_names mixtral_hf = {
    HF_DENSE_NAMES,
    .router = "model.layers.%u.block_sparse_moe.gate.weight",
    .expert_gate = "model.layers.%u.block_sparse_moe.experts.%u.w1.weight",
    .expert_up = "model.layers.%u.block_sparse_moe.experts.%u.w3.weight",
    .expert_down = "model.layers.%u.block_sparse_moe.experts.%u.w2.weight",
};

const struct arch arch_mixtral = {
    .id = ARCH_MIXTRAL, .gguf_rope = ROPE_PAIRS, .glu = GLU_SILU, .gguf = &mixtral_gguf, .hf = &mixtral_hf};
