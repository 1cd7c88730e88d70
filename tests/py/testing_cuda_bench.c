/* Doors for bench/cuda: the time of a model's steps, in real shapes, with weights and a KV cache that cost nothing to
 * make: one random matrix of the largest size, of which every other one is a piece. The device has its own copy of each
 * piece, so memory is read as it would be. */
#include "base/clock.h"
#include "base/mem.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "figures.h"
#include "model/decoder_int.h"
#include "testing_dummy.h"

#include <stdio.h>
#include <stdlib.h>
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
    unsigned char *block = decoder_host_new(b->decoder, kv->block_bytes);
    float *values = mem_array(4096, sizeof *values);
    enum err err = block == NULL || values == NULL ? ERR_NOMEM : OK;
    const struct dtype_info *info = dtype_info(b->o.kv_dtype);
    uint64_t state = 1;
    for (int i = 0; err == OK && i < 4096; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(state >> 40) * 0x1p-23f - 1.0f;
    }
    const size_t step = (size_t)4096 / info->block_elems * info->block_bytes;
    const bool is_q8 = b->o.kv_dtype == DTYPE_Q8_0; /* laid out as the device likes: finite in any order */
    for (size_t at = 0; err == OK && is_q8 && at < kv->block_bytes; at++)
        block[at] = (unsigned char)(0x10 | (at * 2654435761u >> 28 & 15));
    for (size_t at = 0; err == OK && !is_q8 && at < kv->block_bytes; at += step)
        info->quant(values, block + at, MIN(step, kv->block_bytes - at) / info->block_bytes * info->block_elems);
    if (err == OK)
        decoder_move_blocks(
            b->decoder, (struct move_blocks_args){.host = block, .src = &(uint32_t){0}, .dst = &(uint32_t){0}, .n = 1});
    for (uint32_t i = 1; err == OK && i < kv->n_blocks; i++) /* on the device: there may be a hundred gigabytes */
        decoder_copy_blocks(b->decoder, &(uint32_t){0}, &i, 1);
    decoder_host_free(b->decoder, block);
    mem_free(values);
    return err;
}

/* Products, measured now, chosen, and whether an earlier start had measured; seconds. */
EXPORT double quern_bench_choices(const struct cuda_bench *b, uint32_t out[4])
{
    const struct device_choices *c = decoder_choices(b->decoder);
    out[0] = c->n_shapes;
    out[1] = c->n_measured;
    out[2] = c->n_chosen;
    out[3] = c->was_read;
    return c->seconds;
}

static enum err bench_open(struct cuda_bench *b, const char *shape, const char *dtype_text, struct model_config *cfg)
{
    struct error *e = &b->e;
    enum dtype dtype;
    TRY(dtype_by_name(str_of(dtype_text), &dtype, e));
    TRY(testing_config(shape, cfg, e));
    TRY(dummy_new(dtype, 1, &b->pieces.dummy, e));
    b->pieces.all = dummy_source(b->pieces.dummy);
    TRY(b->pieces.all.find(b->pieces.all.ctx, "output.weight", 1, cfg->vocab, cfg->hidden, &b->pieces.big, e));
    const struct weight_source src = {.ctx = &b->pieces, .is_gguf = true, .find = find_piece};
    b->o.context_max = MIN(b->o.context_max, cfg->context_length);
    b->o.weight_bytes = testing_weight_bytes(cfg, NULL, dtype, &b->o);
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

enum tokens {
    TOKENS_MADE_UP,
    TOKENS_BY_POSITION, /* a row's depends on its position alone, and every row wants logits, as guesses do */
    TOKENS_CHOSEN,      /* what the step before chose, which nobody has read yet */
};

/* Added to what tokens are made of. */
static uint32_t tokens_from;

EXPORT void quern_bench_seed(uint32_t seed)
{
    tokens_from = seed;
}

/* One step: n rows of each sequence, the last at position `at`, give or take half of stagger. */
static enum err step_of(
    struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, enum tokens tokens, bool wait)
{
    const bool all = tokens == TOKENS_BY_POSITION;
    uint32_t *token = b->rows, *pos = token + b->o.rows_max, *seq = pos + b->o.rows_max;
    uint32_t *slot = seq + b->o.rows_max, *out_row = slot + b->o.rows_max, row = 0, n_out = 0;
    const uint32_t each = b->o.n_blocks / n_seqs;
    for (uint32_t s = 0; s < n_seqs; s++) {
        const uint32_t last = at + (stagger > 0 ? s * 37 % stagger : 0) - stagger / 2;
        if (row + n > b->o.rows_max || s == b->o.seqs_max || s * each + last / BLOCK_TOKENS >= b->o.n_blocks)
            return FAIL(&b->e, ERR_LIMIT, "%u sequences of %u rows at %u are over the bench's size", n_seqs, n, last);
        b->seqs[s] = (struct batch_seq){.first_row = row, .n_rows = n, .n_kv = last + 1, .table_at = s * each};
        for (uint32_t i = 0; i < n; i++, row++) {
            pos[row] = last + 1 - n + i;
            seq[row] = s;
            slot[row] = b->table[s * each + pos[row] / BLOCK_TOKENS] * BLOCK_TOKENS + pos[row] % BLOCK_TOKENS;
            token[row] = tokens == TOKENS_CHOSEN ? (uint32_t)(-1 - (int32_t)s)
                                                 : ((all ? pos[row] : row * 31 + at) + tokens_from) * 2654435761u %
                                                       decoder_vocab(b->decoder);
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

/* As the engine does it: what step number i of a run chooses is sent, while it runs, and what the one before chose is
 * read, n of them. */
static enum err pass_on(struct cuda_bench *b, uint32_t i, uint32_t n)
{
    decoder_send_best(b->decoder, i & 1);
    return i == 0 ? OK : decoder_sent_best(b->decoder, (i - 1) & 1, n, b->best, &b->e);
}

/* One step of a server at full load, whose requests have n_in tokens and want n_out: n of them decode, at all places of
 * their answers, and as many rows of prompts are computed as make up for those that end. It is launched while the one
 * before runs, and takes the tokens that it chooses. */
static enum err step_mixed(struct cuda_bench *b, uint32_t n, uint32_t n_in, uint32_t n_out, uint32_t turn)
{
    uint32_t *token = b->rows, *pos = token + b->o.rows_max, *seq = pos + b->o.rows_max;
    uint32_t *slot = seq + b->o.rows_max, *out_row = slot + b->o.rows_max, row = 0, n_seqs = 0;
    const uint32_t each = (n_in + n_out + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    uint64_t prompts = (uint64_t)n * n_in / n_out;
    while (n_seqs < n || prompts > 0) {
        const bool decodes = n_seqs < n;
        const uint32_t rows = decodes ? 1 : (uint32_t)MIN(prompts, (uint64_t)n_in);
        const uint32_t first = decodes ? n_in + (n_seqs * 37 + turn) % n_out : (n_in - rows) / 2, at = n_seqs * each;
        if (n_seqs == b->o.seqs_max || row + rows > b->o.rows_max || at + each > b->o.n_blocks)
            return FAIL(&b->e, ERR_LIMIT, "a step of %u sequences is over the bench's size", n_seqs + 1);
        b->seqs[n_seqs] = (struct batch_seq){.first_row = row, .n_rows = rows, .n_kv = first + rows, .table_at = at};
        for (uint32_t i = 0; i < rows; i++, row++) {
            pos[row] = first + i;
            seq[row] = n_seqs;
            slot[row] = b->table[at + pos[row] / BLOCK_TOKENS] * BLOCK_TOKENS + pos[row] % BLOCK_TOKENS;
            token[row] = decodes && turn > 0 ? (uint32_t)(-1 - (int32_t)n_seqs)
                                             : (row * 31 + turn) * 2654435761u % decoder_vocab(b->decoder);
        }
        out_row[n_seqs++] = row - 1;
        prompts -= decodes ? 0 : rows;
    }
    const struct step now = {.n_rows = row,
        .n_seqs = n_seqs,
        .n_out = n_seqs,
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
    return pass_on(b, turn, n_seqs);
}

static enum err step(struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, bool wait)
{
    return step_of(b, n_seqs, n, at, stagger, TOKENS_MADE_UP, wait);
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
    b->o.out_max = MAX(seqs_max, GRAPH_VERIFY_ROWS); /* guesses are verified too */
    b->o.context_max = context;
    b->o.block_tokens = BLOCK_TOKENS;
    b->o.n_blocks = (uint32_t)(tokens / BLOCK_TOKENS) | 1u; /* odd: 7919 steps reach every block */
    b->o.fp8 = fp8 != 0;
    b->o.deterministic = deterministic != 0;
    b->o.choices_dir = getenv("QUERN_CHOICES"); /* bench/cuda.py has a folder for it */
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

/* How often a step of 3 to 32 rows was launched as one kernel, or recorded so. */
EXPORT uint64_t quern_bench_several_launches(void)
{
#ifdef QUERN_CUDA
    return cuda_several_launches();
#else
    return 0;
#endif
}

EXPORT uint32_t quern_bench_vocab(const struct cuda_bench *b)
{
    return decoder_vocab(b->decoder);
}

/* Why a step failed. */
EXPORT const char *quern_bench_why(const struct cuda_bench *b)
{
    return b->e.text;
}

/* NaN where the step will put its logits: one that writes nothing must not give those of the step before. */
static enum err poison_logits(struct cuda_bench *b, uint32_t n)
{
    const size_t bytes = (size_t)MIN(n, b->o.out_max) * decoder_vocab(b->decoder) * sizeof(float);
    float *nans = mem_aligned(64, bytes);
    if (nans == NULL)
        return FAIL(&b->e, ERR_NOMEM, "no memory");
    memset(nans, 0xff, bytes);
    b->o.ops->dev_write(b->decoder->dev, b->decoder->logits, nans, bytes);
    const enum err err = decoder_wait(b->decoder, &b->e);
    mem_free(nans);
    return err;
}

/* The logits of one decode step of n_seqs rows at position `at`, [n_seqs][vocab]; resident 0: an op a kernel. */
EXPORT int quern_bench_logits(struct cuda_bench *b, uint32_t n_seqs, uint32_t at, int resident, float *out)
{
    quern_bench_resident(resident);
    enum err err = poison_logits(b, n_seqs);
    if (err == OK)
        err = step(b, n_seqs, 1, at, 0, false);
    for (uint32_t i = 0; err == OK && i < n_seqs; i++)
        err = decoder_read_logits(b->decoder, i, out + (size_t)i * decoder_vocab(b->decoder), &b->e);
    if (err != OK)
        fprintf(stderr, "%s\n", b->e.text);
    quern_bench_resident(1);
    return (int)err;
}

/* The logits of n rows of one sequence, the last at position `at`, [n][vocab]: guesses as they are verified. */
EXPORT int quern_bench_rows(struct cuda_bench *b, uint32_t n, uint32_t at, float *out)
{
    enum err err = poison_logits(b, n);
    if (err == OK)
        err = step_of(b, 1, n, at, 0, TOKENS_BY_POSITION, false);
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

/* What a figure is the median of, at most. */
#define STEPS_MAX 512

/* Seconds from one step of n_seqs rows to the next as the engine makes them, the median of `steps`: each is launched
 * while the one before runs, takes the tokens that it chooses, and then those are read. Negative on failure. */
EXPORT double quern_bench_ahead(
    struct cuda_bench *b, uint32_t n_seqs, uint32_t at, uint32_t stagger, uint32_t steps, uint32_t warm)
{
    double times[STEPS_MAX];
    uint64_t last = 0;
    enum err err = OK;
    steps = MIN(steps, (uint32_t)COUNT_OF(times));
    for (uint32_t i = 0; err == OK && i <= warm + steps; i++) {
        err = step_of(b, n_seqs, 1, at + i, stagger, i == 0 ? TOKENS_MADE_UP : TOKENS_CHOSEN, false);
        if (err == OK)
            err = pass_on(b, i, n_seqs);
        const uint64_t now = clock_now(&b->clock);
        if (i > warm)
            times[i - warm - 1] = (double)(now - last) / 1e9;
        last = now;
    }
    const enum err left = decoder_wait(b->decoder, &b->e);
    if (err != OK || left != OK) {
        fprintf(stderr, "%s\n", b->e.text);
        return -1.0;
    }
    return figures_median(times, steps);
}

/* Seconds of one step, the median of `steps`; positions advance as in real decoding. Negative on failure. */
static double time_steps(struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger,
    enum tokens tokens, uint32_t steps, uint32_t warm)
{
    double times[STEPS_MAX];
    steps = MIN(steps, (uint32_t)COUNT_OF(times));
    for (uint32_t i = 0; i < warm + steps; i++) {
        const uint64_t start = clock_now(&b->clock);
        if (step_of(b, n_seqs, n, n == 1 || tokens == TOKENS_BY_POSITION ? at + i : at, stagger, tokens, true) != OK) {
            fprintf(stderr, "%s\n", b->e.text);
            return -1.0;
        }
        if (i >= warm)
            times[i - warm] = (double)(clock_now(&b->clock) - start) / 1e9;
    }
    return figures_median(times, steps);
}

EXPORT double quern_bench_step(
    struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t stagger, uint32_t steps, uint32_t warm)
{
    return time_steps(b, n_seqs, n, at, stagger, TOKENS_MADE_UP, steps, warm);
}

/* The same of n rows of each of n_seqs sequences that all want logits. */
EXPORT double quern_bench_verify(struct cuda_bench *b, uint32_t n_seqs, uint32_t n, uint32_t at, uint32_t steps)
{
    return time_steps(b, n_seqs, n, at, 0, TOKENS_BY_POSITION, steps, 5);
}

/* Output tokens a second of a server at full load, see step_mixed. Negative on failure. */
EXPORT double quern_bench_mixed(struct cuda_bench *b, uint32_t n, uint32_t n_in, uint32_t n_out, uint32_t steps)
{
    uint64_t start = 0;
    for (uint32_t i = 0; i < 3 + steps; i++) {
        if (i == 3)
            start = clock_now(&b->clock);
        if (step_mixed(b, n, n_in, n_out, i) != OK) {
            fprintf(stderr, "%s\n", b->e.text);
            return -1.0;
        }
    }
    const double seconds = (double)(clock_now(&b->clock) - start) / 1e9;
    if (decoder_wait(b->decoder, &b->e) == OK)
        return (double)n * steps / seconds;
    fprintf(stderr, "%s\n", b->e.text);
    return -1.0;
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

#ifdef QUERN_CUDA
/* A matrix several times on a device, so that no cache holds what is read next, and rows to multiply with. */
struct product_bench {
    const struct ops *ops;
    struct dev *d;
    struct dummy *dummy;
    struct weight w[4];
    void *x, *gain, *out;
    struct acts *in;
    uint32_t rows_max, n_in;
};

static void product_close(struct product_bench *p)
{
    if (p->d != NULL) {
        for (size_t i = 0; i < COUNT_OF(p->w); i++)
            p->ops->weight_drop(p->d, &p->w[i]);
        p->ops->acts_free(p->d, p->in);
        p->ops->dev_free(p->d, p->x);
        p->ops->dev_free(p->d, p->gain);
        p->ops->dev_free(p->d, p->out);
        p->ops->dev_close(p->d);
    }
    dummy_free(p->dummy);
}

/* Random rows, and ones for the norm: zeros would be multiplied faster. */
static enum err product_inputs(struct product_bench *p, struct error *e)
{
    const size_t n = (size_t)p->rows_max * p->n_in;
    float *values = mem_array(n, sizeof *values);
    if (values == NULL)
        return FAIL(e, ERR_NOMEM, "no memory");
    for (size_t i = 0; i < n; i++)
        values[i] = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-23f - 1.0f;
    p->ops->dev_write(p->d, p->x, values, n * sizeof *values);
    for (size_t i = 0; i < p->n_in; i++)
        values[i] = 1.0f;
    p->ops->dev_write(p->d, p->gain, values, p->n_in * sizeof *values);
    const enum err err = p->ops->dev_wait(p->d, e);
    mem_free(values);
    return err;
}

static enum err product_open(
    struct product_bench *p, const char *dtype_text, bool fp8, uint32_t n_out, uint32_t n_in, struct error *e)
{
    const char *why = "";
    enum dtype dtype;
    struct tensor_view v;
    const struct dev_options o = {.rows_max = p->rows_max, .out_max = p->rows_max, .fp8 = fp8};
    p->n_in = n_in;
    p->ops = cuda_ops(&why);
    if (p->ops == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "%s", why);
    TRY(dtype_by_name(str_of(dtype_text), &dtype, e));
    TRY(dummy_new(dtype, 1, &p->dummy, e));
    const struct weight_source src = dummy_source(p->dummy);
    TRY(src.find(src.ctx, "w", 1, n_out, n_in, &v, e));
    TRY(p->ops->dev_open(&o, &p->d, e));
    for (size_t i = 0; i < COUNT_OF(p->w); i++)
        TRY(p->ops->weight_bind(p->d, &v, 1, &p->w[i], e));
    TRY(p->ops->dev_alloc(p->d, (size_t)p->rows_max * n_in * 4, &p->x, e));
    TRY(p->ops->dev_alloc(p->d, (size_t)n_in * 4, &p->gain, e));
    TRY(p->ops->dev_alloc(p->d, (size_t)p->rows_max * n_out * 4, &p->out, e));
    const uint32_t forms = p->w[0].wants | ACT_F16; /* the same rows serve products that read e4m3 and others */
    TRY(p->ops->acts_new(p->d, p->rows_max, n_in, forms, &p->in, e));
    TRY(product_inputs(p, e));
    p->ops->norm(p->d,
        &(struct norm_args){
            .x = p->x, .n_rows = p->rows_max, .n = n_in, .gain = p->gain, .eps = 1.0f, .forms = forms, .out = p->in});
    return p->ops->dev_wait(p->d, e);
}

static enum err product_time(struct product_bench *p, uint32_t rows, uint32_t rounds, double *us, struct error *e)
{
    struct clock clock;
    uint64_t start = 0;
    clock_init(&clock);
    for (uint32_t i = 0; i < 3 + rounds; i++) {
        if (i == 3) {
            TRY(p->ops->dev_wait(p->d, e));
            start = clock_now(&clock);
        }
        for (size_t k = 0; k < COUNT_OF(p->w); k++)
            p->ops->logits(p->d,
                &(struct logits_args){.in = p->in, .n_rows = rows, .head = &p->w[k], .scale = 1.0f, .out = p->out});
    }
    TRY(p->ops->dev_wait(p->d, e));
    *us = (double)(clock_now(&clock) - start) / 1e3 / rounds / COUNT_OF(p->w);
    return OK;
}
#endif

/* Microseconds of products [rows[i]] x [n_out][n_in] made by ways[i] (enum cuda_way), n of them, into us. */
EXPORT int quern_bench_products(const char *dtype, int fp8, uint32_t n_out, uint32_t n_in, const uint32_t *rows,
    const int *ways, uint32_t n, uint32_t rounds, double *us)
{
#ifdef QUERN_CUDA
    struct product_bench p = {0};
    struct error e = {0};
    for (uint32_t i = 0; i < n; i++)
        p.rows_max = MAX(p.rows_max, rows[i]);
    enum err err = product_open(&p, dtype, fp8 != 0, n_out, n_in, &e);
    for (uint32_t i = 0; err == OK && i < n; i++) {
        cuda_prefer((enum cuda_way)ways[i]);
        err = product_time(&p, rows[i], rounds, &us[i], &e);
    }
    cuda_prefer(CUDA_WAY_TABLE);
    product_close(&p);
    if (err != OK)
        fprintf(stderr, "%s\n", e.text);
    return (int)err;
#else
    (void)dtype, (void)fp8, (void)n_out, (void)n_in, (void)rows, (void)ways, (void)n, (void)rounds, (void)us;
    return -1;
#endif
}
