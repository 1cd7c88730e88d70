/* format: model files in, checked descriptors out. Owns everything that is known about a model before a weight is
 * used: the GGUF metadata, the JSON files of an HF folder, the list of tensors and the hyper-parameters.
 *
 * The bytes are not trusted. After model_source_open every tensor is known to lie inside its file, whole, aligned,
 * overlapping no other, under a name no other has, with a size that fits its shape; later rooms do not ask again.
 *
 * Headers are read into memory of our own and parsed there; only tensor bytes are mapped. So nothing that was checked
 * can change under us, and a file that shrinks while it is being opened is an error and not a fault. A file that
 * shrinks later would fault when its tensors are touched: model_source_recheck asks before a long read.
 *
 * Shapes are row-major for both formats: shape[0] is the outermost dimension, the last one is contiguous (GGUF lists
 * its dimensions the other way round; they are turned here). A weight matrix is [out][in].
 *
 * Metadata of GGUF files has a door of its own: format_gguf.h.
 * Threads: open and close from one thread; everything that takes a const source may be called from any. */
#ifndef FORMAT_FORMAT_H
#define FORMAT_FORMAT_H

#include "base/base.h"
#include "base/json.h"
#include "tensor/tensor.h"

enum model_kind {
    MODEL_GGUF,        /* one .gguf file or a set of splits */
    MODEL_SAFETENSORS, /* an HF folder, or one .safetensors file inside it */
};

/* One tensor. Valid until the source is closed. */
struct model_tensor {
    struct str name;         /* as in the file; valid UTF-8 without control bytes; not NUL-terminated */
    struct tensor_view view; /* dtype, shape and the mapped bytes */
    uint32_t part;           /* which file, an index for model_part_at */
    uint64_t offset;         /* of the first byte in that file */
};

/* One file that holds tensors. */
struct model_part {
    const char *path;
    uint64_t bytes;
    int64_t mtime_ns;
    uint64_t n_tensors;
};

struct model_source; /* an open model: its files, tensors and metadata */

/* Open a .gguf file (any part of a split set opens all of it), a .safetensors file, an HF folder, or a folder that
 * holds one GGUF model and then stands for that file. Reads headers only. The error starts with the file's path and
 * names the byte offset or the field. */
enum err model_source_open(const char *path, struct model_source **out, struct error *e) MUST_CHECK;
void model_source_close(struct model_source *s); /* NULL is fine */

/* Take these bytes of tensors out of memory; they come again when touched. For after weights were copied elsewhere. */
void model_source_forget(const struct model_source *s, const void *p, size_t bytes);

enum model_kind model_source_kind(const struct model_source *s);
const char *model_source_path(const struct model_source *s); /* as given */

uint32_t model_part_count(const struct model_source *s); /* at least 1 */
const struct model_part *model_part_at(const struct model_source *s, uint32_t i);

/* Tensors in file order: by part, then as the header lists them (GGUF) or by offset (safetensors). */
uint64_t model_tensor_count(const struct model_source *s);
const struct model_tensor *model_tensor_at(const struct model_source *s, uint64_t i);
const struct model_tensor *model_tensor_find(const struct model_source *s, struct str name); /* NULL when absent */

/* ERR_IO when a file was cut or rewritten since it was opened, so that its mapped bytes must not be touched. */
enum err model_source_recheck(const struct model_source *s, struct error *e) MUST_CHECK;

/* The other files of an HF folder. */
enum model_file {
    MODEL_FILE_CONFIG,           /* config.json */
    MODEL_FILE_GENERATION,       /* generation_config.json */
    MODEL_FILE_TOKENIZER,        /* tokenizer.json */
    MODEL_FILE_TOKENIZER_CONFIG, /* tokenizer_config.json */
    MODEL_FILE_SPECIAL_TOKENS,   /* special_tokens_map.json */
    MODEL_FILE_SENTENCEPIECE,    /* tokenizer.model */
    MODEL_FILE_TEMPLATE_JINJA,   /* chat_template.jinja */
    MODEL_FILE_TEMPLATE_JSON,    /* chat_template.json */
    MODEL_FILE_COUNT
};

/* The path of a file of the folder, or NULL when there is none (always for GGUF). */
const char *model_source_file(const struct model_source *s, enum model_file which);

/* Parse one of the JSON files; ERR_NOT_FOUND when absent. The caller owns *out (json_decref). */
enum err model_source_json(
    const struct model_source *s, enum model_file which, json_t **out, struct error *e) MUST_CHECK;

/* The default chat template as Jinja text, wherever the model keeps it: tokenizer.chat_template of a GGUF, or
 * chat_template.jinja, chat_template.json, tokenizer_config.json of a folder (in that order). *out is NULL and the
 * answer OK when the model has none; otherwise a NUL-terminated copy to be freed with mem_free. */
enum err model_source_chat_template(const struct model_source *s, char **out, size_t *n, struct error *e) MUST_CHECK;

/* The families quern knows. Many model names share one: Llama 2/3, Mistral, SmolLM and MiniMind are ARCH_LLAMA; Phi 4
 * is ARCH_PHI3. Mixtral is ARCH_MIXTRAL though its GGUF files say "llama". */
enum model_arch {
    ARCH_UNKNOWN,
    ARCH_LLAMA,
    ARCH_MIXTRAL,
    ARCH_QWEN2,
    ARCH_QWEN3,
    ARCH_QWEN3MOE,
    ARCH_GEMMA2,
    ARCH_GEMMA3,
    ARCH_PHI3,
    ARCH_COUNT
};

enum model_act { ACT_SILU, ACT_GELU_TANH };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE };

struct model_rope {
    double base;       /* theta */
    double base_local; /* theta of sliding-window layers; equals base where the model has one theta */
    uint32_t dims;     /* how many of head_dim are rotated; even */
    enum rope_scaling scaling;
    double factor;                 /* at least 1; 1 = none. Applies to full-attention layers only */
    uint32_t original_context;     /* tokens before scaling; 0 = not said */
    double low_freq, high_freq;    /* llama3 */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn, longrope; 0 = derive from factor (and the contexts) */
    double mscale, mscale_all_dim; /* yarn of some models; 0 = not said */
    /* longrope: dims/2 factors each, when config.json lists them; 0 when they are tensors */
    uint32_t n_factors;
    float short_factor[MODEL_ROPE_FACTORS_MAX], long_factor[MODEL_ROPE_FACTORS_MAX];
    /* GGUF keeps per-dimension divisors as tensors; NULL when absent. With freqs, llama3 scaling is already in them */
    const struct model_tensor *freqs, *freqs_short, *freqs_long;
};

/* What the sampler should do when nobody says otherwise. NAN or -1 = the file does not say. */
struct model_generation {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int do_sample; /* 0, 1 or -1 */
};

/* The hyper-parameters, one record for both formats. For a known architecture every number has been checked against
 * limits.h and against the others; for an unknown one they are what could be read, 0 where nothing could. */
struct model_config {
    enum model_arch arch;
    bool arch_known;
    char arch_name[MODEL_NAME_BYTES_MAX];    /* as the file spells it: "llama", "LlamaForCausalLM" */
    char name[MODEL_NAME_BYTES_MAX];         /* general.name or the folder's name; "" when there is none */
    char quant_method[MODEL_NAME_BYTES_MAX]; /* quantization_config of an HF folder: "gptq"; else "" */
    char quant_refusal[ERROR_TEXT_MAX];      /* why that cannot be read; "" when it can, or nothing was quantised */
    bool quant_is_f8;                        /* matrices of F8_E4M3 with a scale per matrix or row */
    bool quant_is_i8;                        /* of INT8 with a scale per matrix, row or group of a row; may be both */

    uint32_t context_length, n_layers, vocab;
    uint32_t hidden, ffn; /* ffn: of dense layers; 0 in a pure mixture of experts that names none */
    uint32_t n_heads, n_kv_heads, head_dim;
    double norm_eps;
    enum model_act act;
    bool tied_embeddings; /* the output matrix is the embedding matrix */
    bool qkv_bias, qk_norm;
    struct model_rope rope;

    uint32_t window;                          /* tokens seen by a sliding-window layer; 0 = no such layer */
    uint8_t layer_is_local[MODEL_LAYERS_MAX]; /* 1 = sliding window, 0 = full attention */
    double attn_softcap, final_softcap;       /* 0 = none */
    double query_scale;                       /* the logits are q.k times this; 1/sqrt(head_dim) by default */

    uint32_t n_experts, n_experts_used, expert_ffn; /* 0 = dense */
    bool norm_topk;                                 /* the chosen experts' weights are made to sum to 1 */

    int64_t bos_id, pad_id; /* -1 = none */
    uint32_t n_eos;
    uint32_t eos_ids[MODEL_EOS_MAX]; /* any of them ends an answer */
    int add_bos;                     /* 0, 1, or -1 when the file does not say */
    struct model_generation generation;
};

/* Read and check the hyper-parameters. ERR_INVALID or ERR_FORMAT names the key; an unknown architecture is no error
 * (arch_known is false). Pointers in *out last as long as the source. */
enum err model_config_read(const struct model_source *s, struct model_config *out, struct error *e) MUST_CHECK;

const char *model_arch_name(enum model_arch arch); /* "llama", "qwen3moe"; "unknown" */

#endif
