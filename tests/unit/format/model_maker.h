/* Writing small model files, right and wrong, for the tests of format/. Bytes are put together by hand on purpose: a
 * writer that knew the rules could not break them. Files go to a folder of their own under the build machine's
 * temporary folder, removed at the end. */
#ifndef TESTS_FORMAT_MODEL_MAKER_H
#define TESTS_FORMAT_MODEL_MAKER_H

#include "base/buf.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/format_gguf.h"
#include "testing.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char maker_folder[PATH_BYTES_MAX];

UNUSED static int maker_setup(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(maker_folder, sizeof maker_folder, "%s/quern-format-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(maker_folder) == NULL)
        return -1;
    char real[PATH_BYTES_MAX];
    if (realpath(maker_folder, real) == NULL)
        return -1;
    memcpy(maker_folder, real, sizeof real);
    return 0;
}

static int maker_remove(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

UNUSED static int maker_teardown(void **state)
{
    (void)state;
    return nftw(maker_folder, maker_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the folder; good until the fourth call after it. */
UNUSED static const char *maker_path(const char *name)
{
    static char paths[4][PATH_BYTES_MAX];
    static unsigned at;
    char *out = paths[at++ % 4];
    struct error e = {0};
    assert_ok(e, path_join(out, maker_folder, name, &e));
    return out;
}

UNUSED static const char *maker_put(const char *name, struct str content)
{
    const char *path = maker_path(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content.p, 1, content.n, f), content.n);
    assert_int_equal(fclose(f), 0);
    return path;
}

UNUSED static const char *maker_put_text(const char *name, const char *text)
{
    return maker_put(name, str_of(text));
}

UNUSED static void mk_raw(struct buf *b, const void *p, size_t n)
{
    buf_add(b, (struct str){p, n});
}
UNUSED static void mk_u32(struct buf *b, uint32_t v)
{
    mk_raw(b, &v, sizeof v);
}
UNUSED static void mk_u64(struct buf *b, uint64_t v)
{
    mk_raw(b, &v, sizeof v);
}
UNUSED static void mk_f32(struct buf *b, float v)
{
    mk_raw(b, &v, sizeof v);
}
UNUSED static void mk_str(struct buf *b, const char *s)
{
    mk_u64(b, strlen(s));
    buf_add(b, str_of(s));
}
UNUSED static void mk_start(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_fields)
{
    buf_init(b, 64 * MIB);
    buf_add(b, STR("GGUF"));
    mk_u32(b, version);
    mk_u64(b, n_tensors);
    mk_u64(b, n_fields);
}
UNUSED static void mk_key(struct buf *b, const char *key, uint32_t type)
{
    mk_str(b, key);
    mk_u32(b, type);
}
UNUSED static void mk_key_u32(struct buf *b, const char *key, uint32_t v)
{
    mk_key(b, key, GGUF_U32);
    mk_u32(b, v);
}
UNUSED static void mk_key_f32(struct buf *b, const char *key, float v)
{
    mk_key(b, key, GGUF_F32);
    mk_f32(b, v);
}
UNUSED static void mk_key_str(struct buf *b, const char *key, const char *v)
{
    mk_key(b, key, GGUF_STRING);
    mk_str(b, v);
}
UNUSED static void mk_key_bool(struct buf *b, const char *key, unsigned char v)
{
    mk_key(b, key, GGUF_BOOL);
    mk_raw(b, &v, 1);
}
UNUSED static void mk_key_array(struct buf *b, const char *key, uint32_t type, uint64_t n)
{
    mk_key(b, key, GGUF_ARRAY);
    mk_u32(b, type);
    mk_u64(b, n);
}
/* dims: fastest first, as the file has them. */
UNUSED static void mk_tensor(
    struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    mk_str(b, name);
    mk_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        mk_u64(b, dims[i]);
    mk_u32(b, type);
    mk_u64(b, offset);
}
UNUSED static void mk_pad(struct buf *b, size_t align)
{
    while (b->n % align != 0)
        buf_add_char(b, 0);
}
UNUSED static void mk_bytes(struct buf *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_add_char(b, (char)(i * 7 + 1));
}

/* Fields of a tiny Llama; together MK_LLAMA_FIELDS. */
#define MK_LLAMA_FIELDS 15
UNUSED static void mk_llama_fields(struct buf *b)
{
    mk_key_str(b, "general.architecture", "llama");
    mk_key_str(b, "general.name", "tiny");
    mk_key_u32(b, "llama.context_length", 128);
    mk_key_u32(b, "llama.block_count", 2);
    mk_key_u32(b, "llama.embedding_length", 32);
    mk_key_u32(b, "llama.feed_forward_length", 64);
    mk_key_u32(b, "llama.attention.head_count", 4);
    mk_key_u32(b, "llama.attention.head_count_kv", 2);
    mk_key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    mk_key_f32(b, "llama.rope.freq_base", 10000);
    mk_key_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 4);
    mk_str(b, "<unk>");
    mk_str(b, "<s>");
    mk_str(b, "</s>");
    mk_str(b, "");
    mk_key_array(b, "tokenizer.ggml.scores", GGUF_F32, 4);
    for (int i = 0; i < 4; i++)
        mk_f32(b, (float)i / 2);
    mk_key_u32(b, "tokenizer.ggml.eos_token_id", 2);
    mk_key_bool(b, "tokenizer.ggml.add_bos_token", 1);
    mk_key_str(b, "tokenizer.chat_template", "{{ messages }}");
}

/* A whole small file: the fields above, tensors of three dtypes, data. */
UNUSED static void mk_tiny_llama(struct buf *b)
{
    mk_start(b, 3, 3, MK_LLAMA_FIELDS);
    mk_llama_fields(b);
    mk_tensor(b, "token_embd.weight", 2, (uint64_t[]){32, 4}, 8, 0); /* Q8_0: 4 rows of 34 bytes */
    mk_tensor(b, "blk.0.attn_norm.weight", 1, (uint64_t[]){32}, 0, 160);
    mk_tensor(b, "blk.0.attn_q.weight", 2, (uint64_t[]){32, 32}, 1, 288);
    mk_pad(b, 32);
    mk_bytes(b, 288 + 32 * 32 * 2);
}

/* A safetensors file out of its JSON header and so many bytes of data. */
UNUSED static void mk_safetensors(struct buf *b, const char *header, size_t data_bytes)
{
    buf_init(b, 64 * MIB);
    const size_t n = (strlen(header) + 7) / 8 * 8;
    mk_u64(b, n);
    buf_add(b, str_of(header));
    while (b->n < n + 8)
        buf_add_char(b, ' ');
    mk_bytes(b, data_bytes);
}

#define MK_TINY_HEADER                                                                                                 \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                                                           \
    "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[32,44]},"                                      \
    "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[0,32]}}"

#define MK_TINY_CONFIG                                                                                                 \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":64,"  \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,"                  \
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"bos_token_id\":1,\"eos_token_id\":[2,3]}"

/* Open, read everything a reader may read, close. For inputs that may be wrong: any answer but a crash. */
UNUSED static enum err maker_use_all(const char *path, struct error *e)
{
    struct model_source *s;
    TRY(model_source_open(path, &s, e));
    struct model_config *c = mem_alloc(sizeof *c);
    char *text = NULL, shown[64];
    size_t n;
    uint64_t sum = 0;
    enum err err = c == NULL ? FAIL(e, ERR_NOMEM, "no memory") : model_config_read(s, c, e);
    mem_free(c);
    if (err == OK)
        err = model_source_chat_template(s, &text, &n, e);
    mem_free(text);
    const struct gguf *g = model_source_gguf(s);
    for (uint64_t i = 0; g != NULL && i < gguf_field_count(g); i++) {
        struct gguf_array a = gguf_field_at(g, i)->array, inner;
        struct str item;
        double v;
        sum += strlen(gguf_show(gguf_field_at(g, i), shown, sizeof shown));
        while (gguf_next_str(&a, &item))
            sum += item.n > 0 ? (unsigned char)item.p[item.n - 1] : 0;
        while (gguf_next_f64(&a, &v) || gguf_next_array(&a, &inner))
            sum++;
    }
    for (uint64_t i = 0; i < model_tensor_count(s); i++) {
        const struct tensor_view *v = &model_tensor_at(s, i)->view;
        for (size_t j = 0; j < v->bytes; j++)
            sum += ((const unsigned char *)v->data)[j];
    }
    model_source_close(s);
    return sum == UINT64_MAX ? ERR_INTERNAL : err; /* the sum keeps the reads alive */
}

#endif
