/* Checkpoints whose matrices come with scales: beside X.weight, of F8_E4M3 numbers or of INT8, lies X.weight_scale, by
 * which all of it, each row, or (INT8) each group of a multiple of 32 in a row is to be multiplied.
 *
 * INT8 becomes Q8_0, which every backend computes from its blocks: the numbers as they are, a block's scale in f16. A
 * scale of BF16 is the same in f16 from 2^-14 on, one of F32 is off by at most 2^-11 of itself, and a smaller one by
 * 2^-25, which is 2^-11 of the matrix's largest or less. A matrix whose largest scale f16 cannot have so, or whose rows
 * are not whole blocks, becomes BF16. So does F8 where the backend does not compute it; one that does is given the
 * scales. What is made BF16 is off by at most 2^-9 of itself.
 *
 * Matrices are made one by one, by a team of threads, in memory that is used again unless the backend reads it in
 * place: the whole model is never there twice. */
#include "base/mem.h"
#include "base/team.h"
#include "model/decoder_int.h"
#include "tensor/float_convert.h"
#include "tensor/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SCALE_NAME_MAX 288
#define THREADS_MAX    8         /* more than the machine's memory is fast enough for are of no use */
#define TILE_BYTES     (1 << 20) /* of rows that a worker makes at a time */
#define F16_LEAST      0x1p-14f  /* with all its bits */
#define F16_MOST       65504.0f

/* ---- finding ----------------------------------------------------------------------------------------------------- */

static bool is_i8(const struct tensor_view *v)
{
    return v->dtype == DTYPE_I8 || v->dtype == DTYPE_U8;
}

enum err decoder_find_weight(struct decoder *d, const struct weight_source *src, const char *name, uint32_t n_mats,
    uint32_t n_out, uint32_t n_in, struct tensor_view *v, struct error *e)
{
    char packed[SCALE_NAME_MAX];
    const uint64_t shape[] = {n_out, n_in};
    const bool can_be_i8 = d->cfg.quant_is_i8 && !src->is_gguf && n_mats == 1 && n_out != 0;
    snprintf(packed, sizeof packed, "%s_packed", name);
    if (can_be_i8 && src->find(src->ctx, packed, 1, n_out, n_in / 4, v, NULL) != ERR_NOT_FOUND) {
        TRY(src->find(src->ctx, packed, 1, n_out, n_in / 4, v, e));
        if (v->dtype != DTYPE_I32)
            return FAIL(e, ERR_UNSUPPORTED, "tensor %s has type %s instead of I32", packed, dtype_name(v->dtype));
        if (tensor_view_init(v, DTYPE_U8, 2, shape, v->data, v->bytes, e) != OK)
            return error_prefix(e, "tensor %s", packed);
        return OK;
    }
    TRY(src->find(src->ctx, name, n_mats, n_out, n_in, v, e));
    if ((dtype_info(v->dtype)->flags & DTYPE_IS_WEIGHT) || (can_be_i8 && v->dtype == DTYPE_I8))
        return OK;
    return FAIL(e, ERR_UNSUPPORTED, "tensor %s has type %s, which is not supported", name, dtype_name(v->dtype));
}

/* One value for all rows, or one each, with and without a dimension of 1 behind; or one for each group of a row. */
static enum err find_any(const struct weight_source *src, const char *name, uint32_t n_out, uint32_t n_in,
    bool in_groups, struct tensor_view *v)
{
    enum err err = src->find(src->ctx, name, 1, 0, 1, v, NULL);
    if (err != OK && err != ERR_NOT_FOUND)
        err = src->find(src->ctx, name, 1, n_out, 1, v, NULL);
    if (err != OK && err != ERR_NOT_FOUND)
        err = src->find(src->ctx, name, 1, 0, n_out, v, NULL);
    for (uint32_t n = QK; in_groups && n < n_in && err != OK && err != ERR_NOT_FOUND; n += QK)
        if (n_in % n == 0)
            err = src->find(src->ctx, name, 1, n_out, n_in / n, v, NULL);
    return err;
}

/* What else may stand beside a matrix of INT8, and would change what its numbers mean. */
static enum err refuse_beside(const struct weight_source *src, const char *matrix, struct error *e)
{
    static const char *const ends[] = {"_zero_point", "_g_idx"};
    char name[SCALE_NAME_MAX];
    struct tensor_view v;
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        snprintf(name, sizeof name, "%s%s", matrix, ends[i]);
        if (src->find(src->ctx, name, 1, 0, 1, &v, NULL) != ERR_NOT_FOUND)
            return FAIL(e, ERR_UNSUPPORTED,
                "tensor %s is not supported: quern reads INT8 without zero points, its groups in order", name);
    }
    return OK;
}

/* Room for the scales of n such matrices, when the first of them is known. */
static enum err scales_room(struct scales *s, uint32_t n, uint32_t n_out, uint32_t groups, struct error *e)
{
    size_t count;
    s->groups = groups;
    if (!size_mul((size_t)n * n_out, groups, &count) || (s->of = mem_array(count, sizeof *s->of)) == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for scales");
    return OK;
}

enum err decoder_scales_find(struct decoder *d, const struct weight_source *src, const char *matrix,
    const struct tensor_view *m, uint32_t i, uint32_t n, struct scales *s, struct error *e)
{
    char name[SCALE_NAME_MAX];
    struct tensor_view v;
    if ((m->dtype != DTYPE_F8_E4M3 && !is_i8(m)) || src->is_gguf)
        return OK;
    const uint32_t n_out = (uint32_t)m->shape[0], n_in = (uint32_t)m->shape[1];
    snprintf(name, sizeof name, "%s_scale", matrix);
    if (is_i8(m))
        TRY(refuse_beside(src, matrix, e));
    const enum err err = find_any(src, name, n_out, n_in, is_i8(m), &v);
    if (err == ERR_NOT_FOUND && !is_i8(m) && !d->cfg.quant_is_f8 && s->groups == 0)
        return OK; /* plain F8 */
    if (err == ERR_NOT_FOUND)
        return FAIL(e, ERR_FORMAT, "tensor %s is %s and tensor %s is missing", matrix,
            is_i8(m) ? "INT8" : dtype_name(m->dtype), name);
    if (err != OK)
        return FAIL(e, ERR_UNSUPPORTED, "tensor %s is neither one scale nor one for each of %u rows%s", name, n_out,
            is_i8(m) ? " or for each group of a multiple of 32 in them" : "");
    if (!(dtype_info(v.dtype)->flags & DTYPE_IS_FLOAT) || dtype_info(v.dtype)->dequant == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "tensor %s has type %s, which is not supported", name, dtype_name(v.dtype));
    const uint64_t n_scales = tensor_n_elems(&v);
    const uint32_t groups = v.n_dims == 2 ? (uint32_t)v.shape[1] : 1;
    if (i > 0 && s->groups != groups)
        return FAIL(e, ERR_UNSUPPORTED, "tensor %s has %u scales a row while expert 0 has %u", name, groups, s->groups);
    if (s->look) {
        s->groups = groups;
        return OK;
    }
    if (i == 0)
        TRY(scales_room(s, n, n_out, groups, e));
    float *out = s->of + (size_t)i * n_out * groups;
    TRY(dequant_row(v.dtype, v.data, out, n_scales, e));
    for (uint64_t k = 0; k < (uint64_t)n_out * groups; k++) {
        out[k] = out[n_scales == 1 ? 0 : k];
        if (!isfinite(out[k]))
            return FAIL(e, ERR_FORMAT, "tensor %s: scale %llu is not finite", name, (unsigned long long)k);
    }
    return OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

struct make_job {
    const struct tensor_view *v;
    const float *scales; /* [rows][groups] */
    uint32_t groups;
    enum dtype dtype; /* Q8_0 of INT8, or BF16 */
    unsigned char *to;
    size_t row_bytes;
    uint64_t tile_rows;
    float *lines; /* a row of each worker, for BF16 */
};

static void make_blocks(const struct make_job *j, uint64_t row)
{
    const uint64_t n = tensor_row_elems(j->v), group = n / j->groups;
    const unsigned char *from = tensor_row(j->v, row);
    struct block_q8_0 *to = (struct block_q8_0 *)(j->to + row * j->row_bytes);
    for (uint64_t b = 0; b < n / QK; b++) {
        to[b].d = f16_from_f32(j->scales[row * j->groups + b * QK / group]);
        memcpy(to[b].qs, from + b * QK, QK);
        for (uint32_t i = 0; j->v->dtype == DTYPE_U8 && i < QK; i++)
            to[b].qs[i] = (int8_t)(to[b].qs[i] ^ -128);
    }
}

static void make_floats(const struct make_job *j, uint64_t row, float *line)
{
    const uint64_t n = tensor_row_elems(j->v), group = n / j->groups;
    const unsigned char *from = tensor_row(j->v, row);
    if (j->v->dtype == DTYPE_U8)
        for (uint64_t i = 0; i < n; i++)
            line[i] = (float)from[i] - 128.0f;
    else
        dtype_info(j->v->dtype)->dequant(from, line, n);
    for (uint64_t i = 0; i < n; i++)
        line[i] *= j->scales[row * j->groups + i / group];
    dtype_info(DTYPE_BF16)->quant(line, j->to + row * j->row_bytes, n);
}

static void make_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct make_job *j = ctx;
    const uint64_t end = MIN((tile + 1) * j->tile_rows, tensor_n_rows(j->v));
    for (uint64_t row = tile * j->tile_rows; row < end; row++)
        if (j->dtype == DTYPE_Q8_0)
            make_blocks(j, row);
        else
            make_floats(j, row, j->lines + worker * tensor_row_elems(j->v));
}

/* What n matrices with these scales are made. */
static enum dtype dtype_for(const struct tensor_view *v, uint32_t n, const struct scales *s)
{
    if (!is_i8(v) || v->shape[1] % QK != 0)
        return DTYPE_BF16;
    const uint64_t each = v->shape[0] * s->groups;
    for (uint32_t i = 0; i < n; i++) {
        float most = 0.0f;
        for (uint64_t k = 0; k < each; k++)
            most = MAX(most, fabsf(s->of[i * each + k]));
        if (most != 0.0f && (most < F16_LEAST || most > F16_MOST))
            return DTYPE_BF16;
    }
    return DTYPE_Q8_0;
}

/* Room for the matrices that are made next. */
static enum err make_room(struct decoder *d, size_t bytes, struct error *e)
{
    if (d->made_team == NULL)
        TRY(team_new(&d->made_team, MIN(d->o.threads != 0 ? d->o.threads : team_cores(), THREADS_MAX), e));
    if (bytes <= d->made_bytes)
        return OK;
    mem_free(d->made);
    d->made = mem_aligned(64, bytes);
    d->made_bytes = d->made != NULL ? bytes : 0;
    return d->made != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory to convert weights: %zu bytes", bytes);
}

void decoder_scales_end(struct decoder *d)
{
    team_free(d->made_team);
    mem_free(d->made);
    d->made_team = NULL;
    d->made = NULL;
    d->made_bytes = 0;
}

/* The room lives as long as the decoder where the backend reads it in place. */
static enum err keep_room(struct decoder *d, struct error *e)
{
    void **all = mem_resize(d->converted, (d->n_converted + 1) * sizeof *all);
    if (all == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the list of converted weights");
    d->converted = all;
    d->converted[d->n_converted++] = d->made;
    d->made = NULL;
    d->made_bytes = 0;
    return OK;
}

static enum err make_all(struct decoder *d, const struct tensor_view *v, uint32_t n, const struct scales *s,
    struct tensor_view *made, struct error *e)
{
    const uint64_t rows = v->shape[0], n_in = v->shape[1];
    struct make_job j = {.groups = s->groups, .dtype = dtype_for(v, n, s)};
    size_t each, all;
    TRY(dtype_bytes(j.dtype, n_in, &j.row_bytes, e));
    if (!size_mul(j.row_bytes, rows, &each) || !size_mul(each, n, &all))
        return FAIL(e, ERR_NOMEM, "no memory to convert weights");
    TRY(make_room(d, all, e));
    if (j.dtype == DTYPE_BF16 && (j.lines = mem_array(team_size(d->made_team) * n_in, sizeof *j.lines)) == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to convert weights");
    j.tile_rows = MAX((size_t)1, TILE_BYTES / j.row_bytes);
    enum err err = OK;
    for (uint32_t i = 0; err == OK && i < n; i++) {
        const uint64_t shape[] = {rows, n_in};
        j.v = &v[i];
        j.scales = s->of + (size_t)i * rows * s->groups;
        j.to = d->made + i * each;
        team_run(d->made_team, (uint32_t)((rows + j.tile_rows - 1) / j.tile_rows), make_tile, &j);
        err = tensor_view_init(&made[i], j.dtype, 2, shape, j.to, each, e);
    }
    mem_free(j.lines);
    return err;
}

enum err decoder_scales_bind(struct decoder *d, const struct tensor_view *v, uint32_t n_views, const struct scales *s,
    struct weight *w, struct error *e)
{
    if (v->dtype == DTYPE_F8_E4M3 && d->ops->has_fp8) {
        w->scales = s->of;
        const enum err err = d->ops->weight_bind(d->dev, v, n_views, w, e);
        w->scales = NULL;
        return err;
    }
    struct tensor_view *made = mem_array(n_views, sizeof *made);
    if (made == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to bind %u matrices", n_views);
    enum err err = make_all(d, v, n_views, s, made, e);
    if (err == OK)
        err = d->ops->weight_bind(d->dev, made, n_views, w, e);
    mem_free(made);
    return err == OK && w->mat != NULL ? keep_room(d, e) : err;
}
