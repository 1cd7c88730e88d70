/* Checkpoints in F8: a matrix X.weight of F8_E4M3 numbers and, beside it, X.weight_scale, by which each row, or all of
 * them, is to be multiplied. A backend that computes with such matrices is given the scales when it binds them. For any
 * other the product is made here, in BF16: 4 of its 8 significant bits are the file's, the others the scale's. */
#include "base/mem.h"
#include "model/decoder_int.h"
#include "tensor/float_convert.h"

#include <math.h>
#include <stdio.h>

#define SCALE_NAME_MAX 288

/* One value for all rows, or one each; with and without a dimension of 1 behind. */
static enum err find_any(const struct weight_source *src, const char *name, uint32_t n_out, struct tensor_view *v)
{
    enum err err = src->find(src->ctx, name, 1, 0, 1, v, NULL);
    if (err != OK && err != ERR_NOT_FOUND)
        err = src->find(src->ctx, name, 1, n_out, 1, v, NULL);
    return err != OK && err != ERR_NOT_FOUND ? src->find(src->ctx, name, 1, 0, n_out, v, NULL) : err;
}

enum err decoder_scales_find(struct decoder *d, const struct weight_source *src, const char *matrix, uint32_t n_out,
    float *out, bool *found, struct error *e)
{
    char name[SCALE_NAME_MAX];
    struct tensor_view v;
    *found = false;
    snprintf(name, sizeof name, "%s_scale", matrix);
    const enum err err = src->is_gguf ? ERR_NOT_FOUND : find_any(src, name, n_out, &v);
    if (err == ERR_NOT_FOUND)
        return d->cfg.quant_is_f8 ? FAIL(e, ERR_FORMAT, "tensor %s is F8_E4M3 and tensor %s is missing", matrix, name)
                                  : OK;
    if (err != OK)
        return FAIL(e, ERR_UNSUPPORTED, "tensor %s is neither one scale nor one for each of %u rows", name, n_out);
    if (!(dtype_info(v.dtype)->flags & DTYPE_IS_FLOAT) || dtype_info(v.dtype)->dequant == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "tensor %s has type %s, which is not supported", name, dtype_name(v.dtype));
    *found = true;
    if (out == NULL)
        return OK;
    const uint64_t n = tensor_n_elems(&v);
    TRY(dequant_row(v.dtype, v.data, out, n, e));
    for (uint32_t i = 0; i < n_out; i++) {
        out[i] = out[n == 1 ? 0 : i];
        if (!isfinite(out[i]))
            return FAIL(e, ERR_FORMAT, "tensor %s: scale %u is not finite", name, i);
    }
    return OK;
}

static enum err convert(const struct tensor_view *v, const float *scales, void *to, struct error *e)
{
    const uint64_t n = tensor_row_elems(v), rows = tensor_n_rows(v);
    float *line = mem_array(n, sizeof *line);
    if (line == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to convert weights");
    enum err err = OK;
    for (uint64_t r = 0; err == OK && r < rows; r++) {
        err = dequant_row(v->dtype, tensor_row(v, r), line, n, e);
        for (uint64_t i = 0; i < n; i++)
            line[i] *= scales[r];
        if (err == OK)
            err = quant_row(DTYPE_BF16, line, (uint16_t *)to + r * n, n, e);
    }
    mem_free(line);
    return err;
}

/* The buffer lives as long as the decoder where the backend reads it in place. */
static enum err keep(struct decoder *d, void *buffer, struct error *e)
{
    void **all = mem_resize(d->converted, (d->n_converted + 1) * sizeof *all);
    if (all == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the list of converted weights");
    d->converted = all;
    d->converted[d->n_converted++] = buffer;
    return OK;
}

static enum err bind_converted(struct decoder *d, const struct tensor_view *v, uint32_t n_views, const float *scales,
    struct tensor_view *made, struct weight *w, struct error *e)
{
    const uint64_t rows = v->shape[0], n = v->shape[1], shape[] = {rows, n};
    const size_t each = (size_t)(rows * n * sizeof(uint16_t));
    size_t all;
    unsigned char *room = size_mul(each, n_views, &all) ? mem_aligned(64, all) : NULL;
    enum err err = room == NULL ? FAIL(e, ERR_NOMEM, "no memory to convert weights") : OK;
    for (uint32_t i = 0; err == OK && i < n_views; i++) {
        err = convert(&v[i], scales + i * rows, room + i * each, e);
        if (err == OK)
            err = tensor_view_init(&made[i], DTYPE_BF16, 2, shape, room + i * each, each, e);
    }
    if (err == OK)
        err = keep(d, room, e);
    if (err != OK) {
        mem_free(room);
        return err;
    }
    TRY(d->ops->weight_bind(d->dev, made, n_views, w, e));
    if (w->mat == NULL) {
        mem_free(room);
        d->n_converted--;
    }
    return OK;
}

enum err decoder_scales_bind(struct decoder *d, const struct tensor_view *v, uint32_t n_views, const float *scales,
    struct weight *w, struct error *e)
{
    if (d->ops->has_fp8) {
        w->scales = scales;
        const enum err err = d->ops->weight_bind(d->dev, v, n_views, w, e);
        w->scales = NULL;
        return err;
    }
    struct tensor_view *made = mem_array(n_views, sizeof *made);
    if (made == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to bind %u matrices", n_views);
    const enum err err = bind_converted(d, v, n_views, scales, made, w, e);
    mem_free(made);
    return err;
}
