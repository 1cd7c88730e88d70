/* Phi 3 and 4: q, k, v in one matrix, gate and up in one matrix, partial rotation, longrope. */
#include "model/arch.h"

static const struct arch_names phi3_gguf = {
    .embed = "token_embd.weight",
    .final_norm = "output_norm.weight",
    .head = "output.weight",
    .attn_norm = "blk.%u.attn_norm.weight",
    .qkv = "blk.%u.attn_qkv.weight",
    .o = "blk.%u.attn_output.weight",
    .ffn_norm = "blk.%u.ffn_norm.weight",
    .gate_up = "blk.%u.ffn_up.weight",
    .down = "blk.%u.ffn_down.weight",
};

static const struct arch_names phi3_hf = {
    .embed = "model.embed_tokens.weight",
    .final_norm = "model.norm.weight",
    .head = "lm_head.weight",
    .attn_norm = "model.layers.%u.input_layernorm.weight",
    .qkv = "model.layers.%u.self_attn.qkv_proj.weight",
    .o = "model.layers.%u.self_attn.o_proj.weight",
    .ffn_norm = "model.layers.%u.post_attention_layernorm.weight",
    .gate_up = "model.layers.%u.mlp.gate_up_proj.weight",
    .down = "model.layers.%u.mlp.down_proj.weight",
};

const struct arch arch_phi3 = {
    .id = ARCH_PHI3, .gguf_rope = ROPE_HALVES, .glu = GLU_SILU, .gguf = &phi3_gguf, .hf = &phi3_hf};
