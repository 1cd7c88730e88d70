/* What distinguishes one architecture from another, as data. A new one is a file arch_<name>.c with its rows, plus its
 * line in arch.c; the decoder's blocks do not know names. Hyper-parameters (sizes, eps, soft caps, windows) come from
 * struct model_config; here is only what no file says: tensor names and conventions.
 *
 * A name holds %u for the layer; expert names hold a second %u. NULL = the architecture has no such tensor. */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "format/format.h"
#include "tensor/ops.h"

struct arch_names {
    const char *embed, *final_norm, *head; /* head falls back to embed when tied */
    const char *attn_norm, *q, *k, *v, *o; /* .bias is looked up beside .weight where config says so */
    const char *qkv;                       /* rows q, k, v behind each other in one matrix */
    const char *q_norm, *k_norm;           /* per head */
    const char *post_attn_norm;            /* on the attention's output, before it is added */
    const char *ffn_norm, *gate, *up, *down;
    const char *gate_up; /* rows gate, up behind each other in one matrix */
    const char *post_ffn_norm;
    const char *router, *expert_gate, *expert_up, *expert_down; /* second %u = one tensor per expert, else stacked */
};

struct arch {
    enum model_arch id;
    enum rope_style gguf_rope; /* HF checkpoints always turn halves */
    enum glu glu;
    bool embed_times_sqrt_hidden;
    bool local_rope_unscaled; /* rope scaling is for full-attention layers only */
    bool hf_gain_plus_one;    /* HF files store norm gains minus one; GGUF files store them whole */
    const struct arch_names *gguf, *hf;
};

/* The row of an architecture, or NULL. */
const struct arch *arch_find(enum model_arch id);

extern const struct arch arch_llama, arch_mixtral, arch_qwen2, arch_qwen3, arch_qwen3moe, arch_gemma2, arch_gemma3,
    arch_phi3;

/* The names nearly every file uses, to start from. */
#define GGUF_DENSE_NAMES                                                                                               \
    .embed = "token_embd.weight", .final_norm = "output_norm.weight", .head = "output.weight",                         \
    .attn_norm = "blk.%u.attn_norm.weight", .q = "blk.%u.attn_q.weight", .k = "blk.%u.attn_k.weight",                  \
    .v = "blk.%u.attn_v.weight", .o = "blk.%u.attn_output.weight", .ffn_norm = "blk.%u.ffn_norm.weight",               \
    .gate = "blk.%u.ffn_gate.weight", .up = "blk.%u.ffn_up.weight", .down = "blk.%u.ffn_down.weight"

#define HF_DENSE_NAMES                                                                                                 \
    .embed = "model.embed_tokens.weight", .final_norm = "model.norm.weight", .head = "lm_head.weight",                 \
    .attn_norm = "model.layers.%u.input_layernorm.weight", .q = "model.layers.%u.self_attn.q_proj.weight",             \
    .k = "model.layers.%u.self_attn.k_proj.weight", .v = "model.layers.%u.self_attn.v_proj.weight",                    \
    .o = "model.layers.%u.self_attn.o_proj.weight", .ffn_norm = "model.layers.%u.post_attention_layernorm.weight",     \
    .gate = "model.layers.%u.mlp.gate_proj.weight", .up = "model.layers.%u.mlp.up_proj.weight",                        \
    .down = "model.layers.%u.mlp.down_proj.weight"

#endif
