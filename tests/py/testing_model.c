/* Whole-model doors for the Python tests: open a model file or folder, run ids through it in chunks, give all logits.
 */
#include "base/mem.h"
#include "cpu/cpu.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct testing_model {
    struct model_source *source;
    struct decoder *decoder;
    uint32_t n_blocks, block_tokens, rows_max;
};

struct testing_options {
    const char *variant;  /* "cpu-ref" ...; NULL = the best here */
    const char *kv_dtype; /* "F16" ... */
    uint32_t threads, context, block_tokens, rows_max;
};

static void close_all(struct testing_model *m)
{
    decoder_close(m->decoder);
    model_source_close(m->source);
    mem_free(m);
}

EXPORT void quern_model_close(struct testing_model *m)
{
    close_all(m);
}

static const struct ops *ops_of(const char *variant)
{
#ifdef QUERN_CUDA
    const char *why;
    if (variant != NULL && strcmp(variant, "cuda") == 0)
        return cuda_ops(&why);
#endif
    return variant != NULL ? cpu_ops_by_name(variant) : cpu_ops();
}

static enum err open_all(struct testing_model *m, const char *path, const struct testing_options *o, struct error *e)
{
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    enum dtype kv;
    enum err err = cfg == NULL ? ERR_NOMEM : dtype_by_name(str_of(o->kv_dtype), &kv, e);
    if (err == OK)
        err = model_source_open(path, &m->source, e);
    if (err == OK)
        err = model_config_read(m->source, cfg, e);
    if (err == OK && ops_of(o->variant) == NULL)
        err = FAIL(e, ERR_UNSUPPORTED, "this machine cannot run %s", o->variant);
    if (err == OK) {
        const uint32_t context = o->context != 0 ? o->context : MIN(cfg->context_length, 4096u);
        m->block_tokens = o->block_tokens;
        m->n_blocks = (context + o->block_tokens - 1) / o->block_tokens;
        m->rows_max = o->rows_max;
        const struct weight_source src = decoder_file_source(m->source);
        const struct decoder_options d = {.ops = ops_of(o->variant),
            .threads = o->threads,
            .rows_max = o->rows_max,
            .out_max = o->rows_max,
            .seqs_max = 1,
            .context_max = context,
            .kv_dtype = kv,
            .block_tokens = o->block_tokens,
            .n_blocks = m->n_blocks};
        err = decoder_open(&src, cfg, &d, &m->decoder, e);
    }
    mem_free(cfg);
    return err;
}

/* NULL on failure, with the sentence in text. */
EXPORT struct testing_model *quern_model_open(
    const char *path, const struct testing_options *o, char *text, size_t text_cap)
{
    struct error e = {0};
    struct testing_model *m = mem_zalloc(sizeof *m);
    if (m != NULL && open_all(m, path, o, &e) == OK)
        return m;
    snprintf(text, text_cap, "%s: %s", err_name(e.code), e.text);
    if (m != NULL)
        close_all(m);
    return NULL;
}

EXPORT uint32_t quern_model_vocab(const struct testing_model *m)
{
    return decoder_vocab(m->decoder);
}

/* Feed ids at positions first .. first+n-1 in chunks; out is [n][vocab], best [n] the indices of the largest. Blocks
 * lie in descending order, so that a kernel that ignores the table is wrong. Returns 0 or the error code. */
EXPORT int quern_model_run(
    struct testing_model *m, const int32_t *ids, uint32_t first, uint32_t n, uint32_t chunk, float *out, uint32_t *best)
{
    struct error e = {0};
    uint32_t *table = mem_array(m->n_blocks, sizeof *table), *rows = mem_array(m->rows_max * 4, sizeof *rows);
    enum err err = table == NULL || rows == NULL ? ERR_NOMEM : OK;
    for (uint32_t i = 0; err == OK && i < m->n_blocks; i++)
        table[i] = m->n_blocks - 1 - i;
    uint32_t *pos = rows, *seq = rows + m->rows_max, *slot = seq + m->rows_max, *out_row = slot + m->rows_max;
    for (uint32_t done = 0; err == OK && done < n;) {
        const uint32_t now = MIN(MIN(chunk, m->rows_max), n - done);
        for (uint32_t i = 0; i < now; i++) {
            pos[i] = first + done + i;
            slot[i] = table[pos[i] / m->block_tokens] * m->block_tokens + pos[i] % m->block_tokens;
            out_row[i] = i;
        }
        const struct batch_seq one = {.n_rows = now, .n_kv = first + done + now};
        const struct step s = {.n_rows = now,
            .n_seqs = 1,
            .n_out = now,
            .n_table = m->n_blocks,
            .token = ids + done,
            .pos = pos,
            .seq = seq,
            .seqs = &one,
            .table = table,
            .kv_slot = slot,
            .out_row = out_row,
            .want_best = true};
        err = decoder_step(m->decoder, &s, &e);
        for (uint32_t i = 0; err == OK && i < now; i++)
            err = decoder_read_logits(m->decoder, i, out + (size_t)(done + i) * decoder_vocab(m->decoder), &e);
        if (err == OK)
            err = decoder_read_best(m->decoder, best + done, &e);
        done += now;
    }
    if (err != OK)
        fprintf(stderr, "quern_model_run: %s\n", e.text);
    mem_free(table);
    mem_free(rows);
    return (int)err;
}
