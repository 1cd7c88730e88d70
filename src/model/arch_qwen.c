/* Qwen 2 and 2.5 (biases on q, k, v), Qwen 3 (norms on q and k heads), Qwen 3 MoE. */
#include "model/arch.h"

static const struct arch_names qwen2_gguf = {GGUF_DENSE_NAMES};
static const struct arch_names qwen2_hf = {HF_DENSE_NAMES};

const struct arch arch_qwen2 = {
    .id = ARCH_QWEN2, .gguf_rope = ROPE_HALVES, .glu = GLU_SILU, .gguf = &qwen2_gguf, .hf = &qwen2_hf};

#define QWEN3_GGUF_NORMS .q_norm = "blk.%u.attn_q_norm.weight", .k_norm = "blk.%u.attn_k_norm.weight"
#define QWEN3_HF_NORMS                                                                                                 \
    .q_norm = "model.layers.%u.self_attn.q_norm.weight", .k_norm = "model.layers.%u.self_attn.k_norm.weight"

static const struct arch_names qwen3_gguf = {GGUF_DENSE_NAMES, QWEN3_GGUF_NORMS};
static const struct arch_names qwen3_hf = {HF_DENSE_NAMES, QWEN3_HF_NORMS};

const struct arch arch_qwen3 = {
    .id = ARCH_QWEN3, .gguf_rope = ROPE_HALVES, .glu = GLU_SILU, .gguf = &qwen3_gguf, .hf = &qwen3_hf};

static const struct arch_names qwen3moe_gguf = {
    GGUF_DENSE_NAMES,
    QWEN3_GGUF_NORMS,
    .router = "blk.%u.ffn_gate_inp.weight",
    .expert_gate = "blk.%u.ffn_gate_exps.weight",
    .expert_up = "blk.%u.ffn_up_exps.weight",
    .expert_down = "blk.%u.ffn_down_exps.weight",
};

static const struct arch_names qwen3moe_hf = {
    HF_DENSE_NAMES,
    QWEN3_HF_NORMS,
    .router = "model.layers.%u.mlp.gate.weight",
    .expert_gate = "model.layers.%u.mlp.experts.%u.gate_proj.weight",
    .expert_up = "model.layers.%u.mlp.experts.%u.up_proj.weight",
    .expert_down = "model.layers.%u.mlp.experts.%u.down_proj.weight",
};

const struct arch arch_qwen3moe = {
    .id = ARCH_QWEN3MOE, .gguf_rope = ROPE_HALVES, .glu = GLU_SILU, .gguf = &qwen3moe_gguf, .hf = &qwen3moe_hf};
