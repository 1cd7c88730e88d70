/* Weights: taken from the file, laid out for the kernels, in slabs. Matrices bound one after the other lie behind each
 * other, so that q, k and v, or gate and up, are one matrix to a product: which saves launches, and is why weights are
 * cut from slabs and not allocated one by one. The first slab is as large as all weights where they were counted;
 * otherwise, and where the count was too little, slabs grow with what was taken. Scales have slabs of their own. A slab
 * is freed with its last weight. */
extern "C" {
#include "base/mem.h"
#include "tensor/finite.h"
#include "tensor/float_convert.h"
}
#include "cuda/repack.cuh"

#include <cstring>

#define SCALES_LEAST  ((size_t)4 << 20)
#define SCALES_PART   1024 /* of F8 weights, with rows of 4096 */
#define SLAB_LEAST    ((size_t)32 << 20)
#define SLAB_MOST     ((size_t)1 << 30)
#define SLAB_PART     16 /* of what was taken, behind a count that was too little */
#define STAGING_BYTES ((size_t)32 << 20)
#define CONVERT_BYTES ((size_t)4 << 20) /* of rows that the host makes f16 before they are sent */

/* ---- slabs ---------------------------------------------------------------------------------------------------------
 */

static size_t slab_size(const struct dev *d, enum slab_kind kind, size_t bytes)
{
    const bool is_known = d->weights_to_come > 0;
    size_t size = MIN(MAX((size_t)d->weight_bytes / (is_known ? SLAB_PART : 1), SLAB_LEAST), SLAB_MOST);
    if (kind == SLAB_SCALES)
        size = MAX((size_t)d->weights_to_come / SCALES_PART, SCALES_LEAST);
    else if (is_known && d->weight_bytes == 0)
        size = (size_t)d->weights_to_come;
    return MAX(size, bytes);
}

static void *slab_new(size_t bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes) == cudaSuccess)
        return p;
    cudaGetLastError();
    return NULL;
}

/* Room for bytes behind what was taken last of that kind; which is a slab's index. */
static enum err slab_take(
    struct dev *d, enum slab_kind kind, size_t bytes, uint32_t *which, unsigned char **out, struct error *e)
{
    struct slab *s = &d->slabs[d->slab_open[kind]];
    const size_t at = (s->used + 15) / 16 * 16;
    if (s->p == NULL || s->kind != kind || at + bytes > s->bytes) {
        uint32_t i = 0;
        while (i < SLABS_MAX && d->slabs[i].p != NULL)
            i++;
        if (i == SLABS_MAX)
            return FAIL(e, ERR_LIMIT, "weights in more than %d pieces of GPU memory", SLABS_MAX);
        size_t size = slab_size(d, kind, bytes);
        void *p = slab_new(size);
        if (p == NULL)
            p = slab_new(size = bytes); /* the last piece may be smaller */
        if (p == NULL) {
            size_t left = 0, all = 0;
            cudaMemGetInfo(&left, &all);
            return FAIL(e, ERR_NOMEM, "no GPU memory for weights: %zu MiB more are needed, %zu MiB of %zu are free",
                size >> 20, left >> 20, all >> 20);
        }
        s = &d->slabs[i];
        s->p = (unsigned char *)p;
        s->kind = kind;
        s->bytes = size;
        s->used = 0;
        s->n_weights = 0;
        d->slab_open[kind] = i;
    }
    const size_t from = (s->used + 15) / 16 * 16;
    s->used = from + bytes;
    s->n_weights++;
    *which = d->slab_open[kind];
    *out = s->p + from;
    return OK;
}

static void slab_give(struct dev *d, uint32_t which)
{
    struct slab *s = &d->slabs[which];
    if (--s->n_weights > 0)
        return;
    CUDA_DO(d, cudaFree(s->p));
    memset(s, 0, sizeof *s);
}

void cuda_slabs_free(struct dev *d)
{
    for (uint32_t i = 0; i < SLABS_MAX; i++)
        if (d->slabs[i].p != NULL)
            cudaFree(d->slabs[i].p);
}

bool cuda_adjacent(const struct weight *a, const struct weight *b)
{
    const struct matrix *x = matrix_of(a), *y = matrix_of(b);
    return x->format == y->format && x->n_in == y->n_in && x->data + (uint64_t)x->n_out * x->row_bytes == y->data &&
           (x->scales == NULL || x->scales + x->n_out == y->scales);
}

/* ---- layouts -------------------------------------------------------------------------------------------------------
 */

__global__ static void repack_kernel(enum dtype dtype, const unsigned char *from, size_t from_row, unsigned char *to,
    size_t to_row, uint32_t n_in, uint32_t width)
{
    const unsigned char *row = from + blockIdx.x * from_row;
    unsigned char *out = to + blockIdx.x * to_row;
    for (uint32_t i = threadIdx.x; i < to_row / 4; i += blockDim.x)
        ((uint32_t *)out)[i] = 0;
    __syncthreads();
    for (uint32_t g = threadIdx.x; g < n_in / 32; g += blockDim.x)
        switch (dtype) {
        case DTYPE_Q8_0: repack_q8_0(row, out, g, width); break;
        case DTYPE_Q4_0: repack_q4_0(row, out, g, width); break;
        case DTYPE_Q4_1: repack_q4_1(row, out, g, width); break;
        case DTYPE_Q4_K: repack_q4_k(row, out, g, width); break;
        default: repack_q6_k(row, out, g, width); break;
        }
}

/* A row as e4m3: scale = max|x| / 448, so that the largest is representable; a row of zeros has scale 0. */
__global__ static void to_f8_kernel(
    enum dtype dtype, const unsigned char *from, size_t from_row, unsigned char *to, uint32_t n_in, float *scales)
{
    const unsigned char *row = from + blockIdx.x * from_row;
    float most = 0.0f;
    for (uint32_t i = threadIdx.x; i < n_in; i += blockDim.x)
        most = fmaxf(most, fabsf(float_load(row, i, dtype)));
    most = block_reduce<true>(most);
    const float inverse = most > 0.0f ? 448.0f / most : 0.0f;
    for (uint32_t i = threadIdx.x; i < n_in; i += blockDim.x)
        float_store(to + (size_t)blockIdx.x * n_in, i, DTYPE_F8_E4M3, float_load(row, i, dtype) * inverse);
    if (threadIdx.x == 0)
        scales[blockIdx.x] = most / 448.0f;
}

static enum format format_for(
    const struct dev *d, const struct tensor_view *v, uint32_t n_views, const struct weight *w)
{
    const uint64_t n_in = v->shape[v->n_dims - 1], n_out = v->shape[v->n_dims - 2];
    const bool is_float = v->dtype == DTYPE_F32 || v->dtype == DTYPE_F16 || v->dtype == DTYPE_BF16;
    const bool fits = n_in % 16 == 0 && n_out % 16 == 0 && w->use == WEIGHT_PRODUCT; /* the library's products */
    if (fits && d->fp8 && is_float && n_out >= F8_ROWS_LEAST)
        return FORMAT_F8;
    if (fits && w->scales != NULL && d->capability >= 90)
        return FORMAT_F8;
    switch (v->dtype) {
    case DTYPE_F32: return v->n_dims == 3 || n_views > 1 ? FORMAT_F16 : FORMAT_F32; /* experts: no F32 kernel */
    case DTYPE_BF16: return FORMAT_BF16;
    case DTYPE_Q8_0: return FORMAT_Q8;
    case DTYPE_Q4_0: return FORMAT_Q4;
    case DTYPE_Q4_1: return FORMAT_Q4M;
    case DTYPE_Q4_K: return FORMAT_Q4K;
    case DTYPE_Q6_K: return FORMAT_Q6K;
    default: return FORMAT_F16; /* what has no layout of its own is computed as f16 */
    }
}

/* Rows of a type without a layout here, made f16 on the host. */
static enum err upload_converted(struct dev *d, const struct tensor_view *v, struct matrix *m, unsigned char *to,
    const float *scales, struct error *e)
{
    const uint64_t rows = tensor_n_rows(v), n = m->n_in;
    const uint64_t at_once = MIN(rows, MAX((uint64_t)1, CONVERT_BYTES / m->row_bytes));
    uint64_t bad;
    if (!tensor_is_finite(v, &bad))
        return FAIL(e, ERR_FORMAT, "it holds a value that is not finite, near element %llu", (unsigned long long)bad);
    float *line = (float *)mem_array(n, sizeof(float));
    uint16_t *halves = (uint16_t *)mem_array(at_once * n, sizeof(uint16_t));
    enum err err = line == NULL || halves == NULL ? FAIL(e, ERR_NOMEM, "no memory to convert weights") : OK;
    for (uint64_t i = 0; err == OK && i < rows; i++) {
        const uint64_t at = i % at_once;
        err = dequant_row(v->dtype, tensor_row(v, i), line, n, e);
        for (uint64_t k = 0; err == OK && k < n; k++)
            halves[at * n + k] = f16_from_f32(scales != NULL ? line[k] * scales[i] : line[k]);
        if (at + 1 == at_once || i + 1 == rows) {
            CUDA_DO(d, cudaMemcpyAsync(to + (i - at) * m->row_bytes, halves, (at + 1) * m->row_bytes,
                           cudaMemcpyHostToDevice, d->stream));
            CUDA_DO(d, cudaStreamSynchronize(d->stream));
        }
    }
    mem_free(line);
    mem_free(halves);
    return err;
}

/* Rows through the staging buffer and a kernel that lays them out. */
static enum err upload_repacked(
    struct dev *d, const struct tensor_view *v, struct matrix *m, unsigned char *to, float *scales, struct error *e)
{
    const uint64_t rows = tensor_n_rows(v);
    const size_t from_row = tensor_row_bytes(v);
    const uint64_t at_once = MAX((uint64_t)1, STAGING_BYTES / from_row);
    if (cuda_room(d, &d->staging, &d->staging_bytes, MIN(rows, at_once) * from_row) == NULL)
        return FAIL(e, ERR_NOMEM, "no GPU memory for weights on their way");
    for (uint64_t i = 0; i < rows; i += at_once) {
        const uint32_t now = (uint32_t)MIN(at_once, rows - i);
        TRY(cuda_upload(d, v, i, now, (unsigned char *)d->staging, e));
        if (m->format == FORMAT_F8)
            to_f8_kernel<<<now, 256, 0, d->stream>>>(
                v->dtype, (const unsigned char *)d->staging, from_row, to + i * m->row_bytes, m->n_in, scales + i);
        else
            repack_kernel<<<now, 128, 0, d->stream>>>(v->dtype, (const unsigned char *)d->staging, from_row,
                to + i * m->row_bytes, m->row_bytes, m->n_in, format_width(m->n_in));
        CUDA_DO(d, cudaGetLastError());
    }
    return OK;
}

/* given: host, of F8 rows that come with scales. */
static enum err upload(
    struct dev *d, const struct tensor_view *v, struct matrix *m, uint32_t first, const float *given, struct error *e)
{
    unsigned char *to = m->data + first * m->mat_bytes;
    float *scales = m->scales != NULL ? m->scales + (size_t)first * m->n_out : NULL;
    const bool as_is =
        (m->format == FORMAT_F32 && v->dtype == DTYPE_F32) || (m->format == FORMAT_F16 && v->dtype == DTYPE_F16) ||
        (m->format == FORMAT_BF16 && v->dtype == DTYPE_BF16) || (m->format == FORMAT_F8 && v->dtype == DTYPE_F8_E4M3);
    if (m->format == FORMAT_F8 && given != NULL)
        CUDA_DO(d, cudaMemcpyAsync(scales, given, tensor_n_rows(v) * sizeof(float), cudaMemcpyHostToDevice, d->stream));
    if (as_is)
        return cuda_upload(d, v, 0, tensor_n_rows(v), to, e);
    if (m->format == FORMAT_F16)
        return upload_converted(d, v, m, to, given, e);
    return upload_repacked(d, v, m, to, scales, e);
}

/* Room that large products with this matrix need, while memory may still be asked for. */
static enum err make_room(struct dev *d, const struct matrix *m, struct error *e)
{
    bool ok = true;
    if (m->format == FORMAT_F8) {
        size_t scales = d->acts_scale != NULL ? d->rows_max * sizeof(float) : 0;
        ok = cuda_room(d, (void **)&d->acts_f8, &d->acts_f8_bytes, (size_t)d->rows_max * m->n_in) != NULL &&
             cuda_room(d, (void **)&d->acts_scale, &scales, d->rows_max * sizeof(float)) != NULL;
    } else if (m->format > FORMAT_F8)
        ok = cuda_room(d, &d->unpacked, &d->unpacked_bytes, (size_t)UNPACK_ROWS * m->n_in * 2) != NULL;
    return ok ? OK : FAIL(e, ERR_NOMEM, "no GPU memory for the room that large products need");
}

/* ---- binding -------------------------------------------------------------------------------------------------------
 */

enum err cuda_weight_bind(
    struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e)
{
    const enum weight_use use = w->use;
    const float *scales = w->scales;
    if (dtype_info(v->dtype)->dequant == NULL || v->n_dims < 2 || v->n_dims > 3)
        return FAIL(e, ERR_UNSUPPORTED, "weights of type %s are not supported on CUDA", dtype_name(v->dtype));
    struct matrix *m = (struct matrix *)mem_zalloc(sizeof *m);
    if (m == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a weight");
    const uint32_t n_mats = v->n_dims == 3 ? (uint32_t)v->shape[0] : n_views;
    m->format = format_for(d, v, n_views, w);
    m->n_in = (uint32_t)v->shape[v->n_dims - 1];
    m->n_out = (uint32_t)v->shape[v->n_dims - 2];
    m->row_bytes = format_row_bytes(m->format, m->n_in);
    m->mat_bytes = (uint64_t)m->row_bytes * m->n_out;
    enum err err = slab_take(d, SLAB_MATRICES, n_mats * m->mat_bytes, &m->slab, &m->data, e);
    if (err == OK && m->format == FORMAT_F8) {
        err = slab_take(d, SLAB_SCALES, (size_t)n_mats * m->n_out * sizeof(float), &m->scales_slab,
            (unsigned char **)&m->scales, e);
        if (err != OK)
            slab_give(d, m->slab);
    }
    if (err != OK) {
        mem_free(m);
        return err;
    }
    d->weight_bytes += n_mats * m->mat_bytes;
    memset(w, 0, sizeof *w);
    w->use = use;
    w->dtype = v->dtype;
    w->n_out = m->n_out;
    w->n_in = m->n_in;
    w->n_mats = n_mats;
    w->wants = m->format == FORMAT_F32                 ? ACT_F32
               : m->format == FORMAT_BF16              ? ACT_BF16
               : m->format == FORMAT_F8 && n_mats == 1 ? ACT_F8
                                                       : ACT_F16;
    w->row_bytes = tensor_row_bytes(v);
    w->packed = m;
    for (uint32_t i = 0; err == OK && i < n_views; i++)
        err = upload(d, &v[i], m, i, scales != NULL ? scales + (size_t)i * m->n_out : NULL, e);
    if (err == OK && n_mats == 1 && use == WEIGHT_PRODUCT)
        err = make_room(d, m, e);
    if (err != OK)
        cuda_weight_drop(d, w);
    return err;
}

void cuda_weight_drop(struct dev *d, struct weight *w)
{
    struct matrix *m = (struct matrix *)w->packed;
    if (m != NULL) {
        if (m->scales != NULL)
            slab_give(d, m->scales_slab);
        slab_give(d, m->slab);
        mem_free(m);
    }
    memset(w, 0, sizeof *w);
}
