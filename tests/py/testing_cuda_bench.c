/* Doors for bench/cuda: the time of a model's steps, in real shapes, with weights and a KV cache that cost nothing to
 * make: one random matrix of the largest size, of which every other one is a piece. The device has its own copy of each
 * piece, so memory is read as it would be. */
#include "base/clock.h"
#include "base/mem.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "model/dummy.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define EXPORT       __attribute__((visibility("default")))
#define BLOCK_TOKENS 32

/* ---- weights -------------------------------------------------------------------------------------------------------
 */

struct pieces {
    struct dummy *dummy;
    struct weight_source all;
    struct tensor_view big; /* [vocab][hidden] */
    uint64_t calls;
};

static enum err find_piece(void *ctx, const char *name, uint32_t n_mats, uint32_t n_out, uint32_t n_in,
    struct tensor_view *out, struct error *e)
{
    struct pieces *p = ctx;
    if (n_out == 0 || n_mats > 1 || strstr(name, "gate_inp") != NULL)
        return p->all.find(p->all.ctx, name, n_mats, n_out, n_in, out, e);
    const uint64_t shape[] = {n_out, n_in};
    size_t bytes;
    TRY(tensor_shape_bytes(p->big.dtype, 2, shape, &bytes, e));
    if (bytes > p->big.bytes)
        return FAIL(e, ERR_INTERNAL, "%s is larger than the embedding", name);
    const size_t row = tensor_row_bytes(&p->big), room = (p->big.bytes - bytes) / row + 1;
    const char *at = (const char *)p->big.data + (p->calls++ * 7919) % room * row;
    return tensor_view_init(out, p->big.dtype, 2, shape, at, bytes, e);
}

/* ---- a model to be timed -------------------------------------------------------------------------------------------
 */

struct cuda_bench {
    struct pieces pieces;
    struct decoder *decoder;
    struct decoder_options o;
    struct clock clock;
    uint32_t *table, *rows; /* [n_blocks]; [5][rows_max] */
    struct batch_seq *seqs;
    uint32_t *best;
    struct error e;
};

EXPORT void quern_bench_close(struct cuda_bench *b)
{
    decoder_close(b->decoder);
    dummy_free(b->pieces.dummy);
    mem_free(b->table);
    mem_free(b->rows);
    mem_free(b->seqs);
    mem_free(b->best);
    mem_free(b);
}

static enum err fill_cache(struct cuda_bench *b)
{
    const struct kv_cache *kv = decoder_kv(b->decoder);
    unsigned char *block = mem_aligned(64, kv->block_bytes);
    float *values = mem_array(4096, sizeof *values);
    enum err err = block == NULL || values == NULL ? ERR_NOMEM : OK;
    const struct dtype_info *info = dtype_info(b->o.kv_dtype);
    uint64_t state = 1;
    for (int i = 0; err == OK && i < 4096; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(state >> 40) * 0x1p-23f - 1.0f;
    }
    const size_t step = (size_t)4096 / info->block_elems * info->block_bytes;
    for (size_t at = 0; err == OK && at < kv->block_bytes; at += step)
        info->quant(values, block + at, MIN(step, kv->block_bytes - at) / info->block_bytes * info->block_elems);
    for (uint32_t i = 0; err == OK && i < kv->n_blocks; i++)
        decoder_write_block(b->decoder, i, block);
    mem_free(block);
    mem_free(values);
    return err;
}

static enum err bench_open(struct cuda_bench *b, const char *shape, const char *dtype_text, struct model_config *cfg)
{
    struct error *e = &b->e;
    enum dtype dtype;
    TRY(dtype_by_name(str_of(dtype_text), &dtype, e));
    TRY(dummy_config(shape, cfg, e));
    TRY(dummy_new(dtype, 1, &b->pieces.dummy, e));
    b->pieces.all = dummy_source(b->pieces.dummy);
    TRY(b->pieces.all.find(b->pieces.all.ctx, "output.weight", 1, cfg->vocab, cfg->hidden, &b->pieces.big, e));
    const struct weight_source src = {.ctx = &b->pieces, .is_gguf = true, .find = find_piece};
    b->o.context_max = MIN(b->o.context_max, cfg->context_length);
    TRY(decoder_open(&src, cfg, &b->o, &b->decoder, e));
    b->table = mem_array(b->o.n_blocks, sizeof *b->table);
    b->rows = mem_array((size_t)b->o.rows_max * 5, sizeof *b->rows);
    b->seqs = mem_array(b->o.seqs_max, sizeof *b->seqs);
    b->best = mem_array(b->o.out_max, sizeof *b->best);
    if (b->table == NULL || b->rows == NULL || b->seqs == NULL || b->best == NULL)
        return FAIL(e, ERR_NOMEM, "no memory");
    for (uint32_t i = 0; i < b->o.n_blocks; i++) /* blocks as a long-running server has them: anywhere */
        b->table[i] = (uint32_t)((uint64_t)i * 7919 % b->o.n_blocks);
    clock_init(&b->clock);
    return fill_cache(b);
}

/* One step: n rows of each sequence, the last at position `at`, give or take half of stagger. all: every row wants
 * logits, as when guesses are verified, and a row's token depends on its position alone. */
static enum err step_of(
    struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, bool all, bool wait)
{
    uint32_t *token = b->rows, *pos = token + b->o.rows_max, *seq = pos + b->o.rows_max;
    uint32_t *slot = seq + b->o.rows_max, *out_row = slot + b->o.rows_max, row = 0, n_out = 0;
    const uint32_t each = b->o.n_blocks / n_seqs;
    for (uint32_t s = 0; s < n_seqs; s++) {
        const uint32_t last = at + (stagger > 0 ? s * 37 % stagger : 0) - stagger / 2;
        b->seqs[s] = (struct batch_seq){.first_row = row, .n_rows = n, .n_kv = last + 1, .table_at = s * each};
        for (uint32_t i = 0; i < n; i++, row++) {
            pos[row] = last + 1 - n + i;
            seq[row] = s;
            slot[row] = b->table[s * each + pos[row] / BLOCK_TOKENS] * BLOCK_TOKENS + pos[row] % BLOCK_TOKENS;
            token[row] = (all ? pos[row] : row * 31 + at) * 2654435761u % decoder_vocab(b->decoder);
            if (all || i + 1 == n)
                out_row[n_out++] = row;
        }
    }
    const struct step now = {.n_rows = row,
        .n_seqs = n_seqs,
        .n_out = n_out,
        .n_table = b->o.n_blocks,
        .token = (const int32_t *)token,
        .pos = pos,
        .seq = seq,
        .seqs = b->seqs,
        .table = b->table,
        .kv_slot = slot,
        .out_row = out_row,
        .want_best = true};
    TRY(decoder_step(b->decoder, &now, &b->e));
    return wait ? decoder_read_best(b->decoder, b->best, &b->e) : OK;
}

static enum err step(struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, bool wait)
{
    return step_of(b, n_seqs, n, at, stagger, false, wait);
}

/* NULL on failure, with the sentence in text. tokens: of the KV cache, in all. */
EXPORT struct cuda_bench *quern_bench_open(const char *shape, const char *dtype, const char *kv, int fp8,
    int deterministic, uint32_t rows_max, uint32_t seqs_max, uint32_t context, uint64_t tokens, char *text, size_t cap)
{
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    struct cuda_bench *b = mem_zalloc(sizeof *b);
    if (cfg == NULL || b == NULL)
        return NULL;
    const char *why = "built without CUDA";
#ifdef QUERN_CUDA
    b->o.ops = cuda_ops(&why);
#endif
    b->o.rows_max = rows_max;
    b->o.seqs_max = seqs_max;
    b->o.out_max = MAX(seqs_max, GRAPH_VERIFY_ROWS);
    b->o.context_max = context;
    b->o.block_tokens = BLOCK_TOKENS;
    b->o.n_blocks = (uint32_t)(tokens / BLOCK_TOKENS) | 1u; /* odd: 7919 steps reach every block */
    b->o.fp8 = fp8 != 0;
    b->o.deterministic = deterministic != 0;
    enum err err = b->o.ops == NULL ? FAIL(&b->e, ERR_UNSUPPORTED, "%s", why) : OK;
    if (err == OK)
        err = dtype_by_name(str_of(kv), &b->o.kv_dtype, &b->e);
    if (err == OK)
        err = bench_open(b, shape, dtype, cfg);
    if (err == OK)
        err = step(b, 1, 2, 64, 0, true); /* a prompt comes before decoding */
    mem_free(cfg);
    if (err == OK)
        return b;
    snprintf(text, cap, "%s", b->e.text);
    quern_bench_close(b);
    return NULL;
}

/* Whether steps recorded from now on may be one kernel. */
EXPORT void quern_bench_resident(int on)
{
#ifdef QUERN_CUDA
    cuda_allow_resident(on != 0);
#endif
    (void)on;
}

/* The logits of one decode step of n_seqs rows at position `at`, [n_seqs][vocab]; resident 0: an op a kernel. */
EXPORT int quern_bench_logits(struct cuda_bench *b, uint32_t n_seqs, uint32_t at, int resident, float *out)
{
    quern_bench_resident(resident);
    enum err err = step(b, n_seqs, 1, at, 0, false);
    for (uint32_t i = 0; err == OK && i < n_seqs; i++)
        err = decoder_read_logits(b->decoder, i, out + (size_t)i * decoder_vocab(b->decoder), &b->e);
    if (err != OK)
        fprintf(stderr, "%s\n", b->e.text);
    quern_bench_resident(0);
    return (int)err;
}

/* The logits of n rows of one sequence, the last at position `at`, [n][vocab]: guesses as they are verified. */
EXPORT int quern_bench_rows(struct cuda_bench *b, uint32_t n, uint32_t at, float *out)
{
    enum err err = step_of(b, 1, n, at, 0, true, false);
    for (uint32_t i = 0; err == OK && i < n; i++)
        err = decoder_read_logits(b->decoder, i, out + (size_t)i * decoder_vocab(b->decoder), &b->e);
    if (err != OK)
        fprintf(stderr, "%s\n", b->e.text);
    return (int)err;
}

EXPORT uint64_t quern_bench_weight_bytes(const struct cuda_bench *b)
{
    return decoder_weight_bytes(b->decoder);
}

/* Seconds of one step when the host only waits after the last: what the card needs for it. */
EXPORT double quern_bench_stream(
    struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, uint32_t steps)
{
    uint64_t start = 0;
    for (uint32_t i = 0; i < 3 + steps; i++) {
        if (i == 3)
            start = clock_now(&b->clock);
        if (step(b, n_seqs, n, n == 1 ? at + i : at, stagger, i == 2 || i + 1 == 3 + steps) != OK)
            return -1.0;
    }
    return (double)(clock_now(&b->clock) - start) / 1e9 / steps;
}

/* Seconds of one step, the median of `steps`; positions advance as in real decoding. all: as in step_of. Negative on
 * failure. */
static double time_steps(struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, bool all,
    uint32_t steps, uint32_t warm)
{
    double times[512];
    steps = MIN(steps, (uint32_t)COUNT_OF(times));
    for (uint32_t i = 0; i < warm + steps; i++) {
        const uint64_t start = clock_now(&b->clock);
        if (step_of(b, n_seqs, n, n == 1 || all ? at + i : at, stagger, all, true) != OK) {
            fprintf(stderr, "%s\n", b->e.text);
            return -1.0;
        }
        if (i >= warm)
            times[i - warm] = (double)(clock_now(&b->clock) - start) / 1e9;
    }
    for (uint32_t i = 1; i < steps; i++)
        for (uint32_t k = i; k > 0 && times[k] < times[k - 1]; k--) {
            const double t = times[k];
            times[k] = times[k - 1];
            times[k - 1] = t;
        }
    return times[steps / 2];
}

EXPORT double quern_bench_step(
    struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, uint32_t steps, uint32_t warm)
{
    return time_steps(b, n_seqs, n, at, stagger, false, steps, warm);
}

/* The same of n rows of each of n_seqs sequences that all want logits. */
EXPORT double quern_bench_verify(struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t steps)
{
    return time_steps(b, n_seqs, n, at, 0, true, steps, 5);
}

/* The card's limits: bytes read a second, operations a second in bf16 and in e4m3. */
EXPORT int quern_bench_limits(double out[3])
{
#ifdef QUERN_CUDA
    const char *why;
    const struct ops *ops = cuda_ops(&why);
    struct dev *d;
    struct error e = {0};
    const struct dev_options o = {.rows_max = 16, .out_max = 16};
    if (ops == NULL || ops->dev_open(&o, &d, &e) != OK)
        return -1;
    struct cuda_limits l;
    cuda_measure(d, &l);
    const enum err err = ops->dev_wait(d, &e);
    if (err != OK)
        fprintf(stderr, "%s\n", e.text);
    ops->dev_close(d);
    out[0] = l.read_bytes_s;
    out[1] = l.bf16_ops_s;
    out[2] = l.f8_ops_s;
    return (int)err;
#else
    (void)out;
    return -1;
#endif
}

/* Microseconds of one product [rows] x [n_out][n_in], over `copies` matrices in turn so that no cache holds them. */
EXPORT double quern_bench_product(
    const char *dtype_text, int fp8, uint32_t n_out, uint32_t n_in, uint32_t rows, uint32_t copies, uint32_t rounds)
{
#ifdef QUERN_CUDA
    const char *why;
    const struct ops *ops = cuda_ops(&why);
    struct dev *d = NULL;
    struct dummy *dummy = NULL;
    struct error e = {0};
    struct clock clock;
    enum dtype dtype;
    struct tensor_view v;
    struct weight w[16];
    void *x = NULL, *gain = NULL, *out = NULL;
    struct acts *in = NULL;
    const struct dev_options o = {.rows_max = rows, .out_max = rows, .fp8 = fp8 != 0};
    clock_init(&clock);
    copies = MIN(copies, (uint32_t)COUNT_OF(w));
    double seconds = -1e-6;
    if (ops == NULL || dtype_by_name(str_of(dtype_text), &dtype, &e) != OK || dummy_new(dtype, 1, &dummy, &e) != OK)
        return -1.0;
    const struct weight_source src = dummy_source(dummy);
    bool ok = src.find(src.ctx, "w", 1, n_out, n_in, &v, &e) == OK && ops->dev_open(&o, &d, &e) == OK;
    memset(w, 0, sizeof w);
    for (uint32_t i = 0; ok && i < copies; i++)
        ok = ops->weight_bind(d, &v, 1, &w[i], &e) == OK;
    ok = ok && ops->dev_alloc(d, (size_t)rows * n_in * 4, &x, &e) == OK &&
         ops->dev_alloc(d, (size_t)n_in * 4, &gain, &e) == OK &&
         ops->dev_alloc(d, (size_t)rows * n_out * 4, &out, &e) == OK &&
         ops->acts_new(d, rows, n_in, w[0].wants, &in, &e) == OK;
    if (ok) {
        ops->dev_write(d, x, v.data, MIN((size_t)rows * n_in * 2, v.bytes));
        ops->norm(d, &(struct norm_args){
                         .x = x, .n_rows = rows, .n = n_in, .gain = gain, .eps = 1.0f, .forms = w[0].wants, .out = in});
        uint64_t start = 0;
        for (uint32_t i = 0; ok && i < 3 + rounds; i++) {
            if (i == 3) {
                ok = ops->dev_wait(d, &e) == OK;
                start = clock_now(&clock);
            }
            for (uint32_t k = 0; k < copies; k++)
                ops->logits(
                    d, &(struct logits_args){.in = in, .n_rows = rows, .head = &w[k], .scale = 1.0f, .out = out});
        }
        if (ok && ops->dev_wait(d, &e) == OK)
            seconds = (double)(clock_now(&clock) - start) / 1e9 / rounds / copies;
    }
    if (seconds < 0)
        fprintf(stderr, "%s\n", e.text);
    if (d != NULL) {
        for (uint32_t i = 0; i < copies; i++)
            ops->weight_drop(d, &w[i]);
        ops->acts_free(d, in);
        ops->dev_close(d);
    }
    dummy_free(dummy);
    return seconds * 1e6;
#else
    (void)dtype_text, (void)fp8, (void)n_out, (void)n_in, (void)rows, (void)copies, (void)rounds;
    return -1.0;
#endif
}
