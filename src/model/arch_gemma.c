/* Gemma 2 and 3: norms before and after each half of a layer, gains stored minus one in HF files, embeddings times the
 * root of the hidden size, GeGLU. Gemma 2 caps its scores and logits; Gemma 3 norms its heads instead. */
#include "model/arch.h"

#define GEMMA_GGUF_NAMES                                                                                               \
    GGUF_DENSE_NAMES, .post_attn_norm = "blk.%u.post_attention_norm.weight",                                           \
                      .post_ffn_norm = "blk.%u.post_ffw_norm.weight"

#define GEMMA_HF_NAMES                                                                                                 \
    .embed = "model.embed_tokens.weight", .final_norm = "model.norm.weight", .head = "lm_head.weight",                 \
    .attn_norm = "model.layers.%u.input_layernorm.weight", .q = "model.layers.%u.self_attn.q_proj.weight",             \
    .k = "model.layers.%u.self_attn.k_proj.weight", .v = "model.layers.%u.self_attn.v_proj.weight",                    \
    .o = "model.layers.%u.self_attn.o_proj.weight",                                                                    \
    .post_attn_norm = "model.layers.%u.post_attention_layernorm.weight",                                               \
    .ffn_norm = "model.layers.%u.pre_feedforward_layernorm.weight", .gate = "model.layers.%u.mlp.gate_proj.weight",    \
    .up = "model.layers.%u.mlp.up_proj.weight", .down = "model.layers.%u.mlp.down_proj.weight",                        \
    .post_ffn_norm = "model.layers.%u.post_feedforward_layernorm.weight"

static const struct arch_names gemma2_gguf = {GEMMA_GGUF_NAMES};
static const struct arch_names gemma2_hf = {GEMMA_HF_NAMES};
static const struct arch_names gemma3_gguf = {
    GEMMA_GGUF_NAMES, .q_norm = "blk.%u.attn_q_norm.weight", .k_norm = "blk.%u.attn_k_norm.weight"};
static const struct arch_names gemma3_hf = {GEMMA_HF_NAMES, .q_norm = "model.layers.%u.self_attn.q_norm.weight",
    .k_norm = "model.layers.%u.self_attn.k_norm.weight"};

const struct arch arch_gemma2 = {.id = ARCH_GEMMA2,
    .gguf_rope = ROPE_HALVES,
    .glu = GLU_GELU,
    .embed_times_sqrt_hidden = true,
    .hf_gain_plus_one = true,
    .gguf = &gemma2_gguf,
    .hf = &gemma2_hf};

const struct arch arch_gemma3 = {.id = ARCH_GEMMA3,
    .gguf_rope = ROPE_HALVES,
    .glu = GLU_GELU,
    .embed_times_sqrt_hidden = true,
    .local_rope_unscaled = true,
    .hf_gain_plus_one = true,
    .gguf = &gemma3_gguf,
    .hf = &gemma3_hf};
