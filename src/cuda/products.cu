/* Matrix products. Few rows: our own kernel (skinny.h), which reads each weight once in the layout it lies in. Many
 * rows: cuBLASLt, but for gate and up (many.cuh). Row-major out[T][n_out] = in[T][k] x w[n_out][k]^T is, in its
 * column-major terms, C (n_out x T) = W^T x A with W and A stored as k x n_out and k x T: one transposed operand, no
 * copies. Quantised weights are made f16 some thousand rows at a time for it; F8 weights meet activations that were
 * scaled to e4m3 row by row.
 *
 * The algorithm for a shape is the one that was measured to be the fastest (choose.cu), or the library's first; it is
 * looked up once and remembered. */
extern "C" {
#include "base/mem.h"
}
#include "cuda/library.h"
#include "cuda/skinny.h"
#include "cuda/slim_shape.h"

#include <cstring>

/* Up to how many rows which kernel is the fastest where even cannot be: skinny, then slim, then the library.
 * `bench/cuda --products` prints what the table is made of. */
struct few_rows {
    uint32_t skinny, slim;
    bool tall; /* from 4 rows on slim is the faster for a matrix that gives its blocks enough to do without cut sums */
};

static struct few_rows few_rows_of(enum format f)
{
    switch (f) {
    case FORMAT_F16:
    case FORMAT_BF16: return {8, 8, false};
    case FORMAT_F8: return {8, 16, false};
    default: return {16, 64, true};
    }
}

#define EVEN_LEAST 3  /* rows from which even is the faster, where it can be */
#define MANY_LEAST 65 /* and from which many may be: many_fills */

#define SKINNY_MOST 16 /* rows that its kernel takes at a time */

#define UNSCALED_MOST 1024 /* rows of an F8 product that is left unscaled */

static enum cuda_way preferred = CUDA_WAY_TABLE;

extern "C" void cuda_prefer(enum cuda_way way)
{
    preferred = way;
}

/* With --deterministic a row's sums are the matrix's alone: those of flow.cuh and of the library where it does not cut
 * them, or slim.cuh's for any number of rows. */
static enum cuda_way way_fixed(const struct dev *d, bool flow, uint32_t n_rows)
{
    if (!flow || !d->chained)
        return CUDA_WAY_SLIM;
    return n_rows <= FLOW_ROWS ? CUDA_WAY_FLOW : CUDA_WAY_LIBRARY;
}

enum cuda_way cuda_way_of(const struct dev *d, enum format format, uint32_t n_out, uint32_t n_in, uint32_t n_rows)
{
    const bool flow = flow_has(d, format, n_in), even = even_has(d, format, n_out, n_in) && n_rows <= EVEN_MOST;
    const struct few_rows few = few_rows_of(format);
    if (!skinny_has(format) || n_in % 8 != 0)
        return CUDA_WAY_LIBRARY;
    if (d->deterministic)
        return way_fixed(d, flow, n_rows);
    switch (preferred) {
    case CUDA_WAY_LIBRARY: return CUDA_WAY_LIBRARY;
    case CUDA_WAY_SKINNY: return n_rows <= SKINNY_MOST ? CUDA_WAY_SKINNY : CUDA_WAY_SLIM;
    case CUDA_WAY_SLIM: return n_rows <= 64 ? CUDA_WAY_SLIM : CUDA_WAY_LIBRARY;
    case CUDA_WAY_FLOW: return flow && n_rows <= FLOW_ROWS ? CUDA_WAY_FLOW : CUDA_WAY_LIBRARY;
    case CUDA_WAY_EVEN: return even ? CUDA_WAY_EVEN : CUDA_WAY_LIBRARY;
    default: break;
    }
    if (even && n_rows >= EVEN_LEAST)
        return CUDA_WAY_EVEN;
    const bool is_tall = few.tall && n_rows >= 4 && slim_chains(n_out, n_in) < SLIM_CHAINS;
    if (n_rows <= few.skinny && !is_tall)
        return CUDA_WAY_SKINNY;
    return n_rows <= few.slim ? CUDA_WAY_SLIM : CUDA_WAY_LIBRARY;
}

bool cuda_is_skinny(const struct dev *d, const struct matrix *m, uint32_t n_rows)
{
    return cuda_way_of(d, m->format, m->n_out, m->n_in, n_rows) != CUDA_WAY_LIBRARY;
}

bool cuda_is_plain(const struct dev *d, enum format format, uint32_t n_in)
{
    return d->deterministic && (!d->chained || !flow_has(d, format, n_in));
}

/* With --deterministic where the library may be used, whose sums they are. */
bool cuda_is_many(const struct dev *d, const struct matrix *m, uint32_t n_rows)
{
    if (!many_has(d, m->format, m->n_out, m->n_in) || cuda_is_skinny(d, m, n_rows))
        return false;
    if (cuda_is_plain(d, m->format, m->n_in))
        return false;
    return preferred == CUDA_WAY_MANY ||
           (preferred == CUDA_WAY_TABLE && n_rows >= MANY_LEAST && many_fills(d, m->n_out, n_rows));
}

bool cuda_f8_rows(const struct dev *d, uint32_t n_rows)
{
    return cuda_way_of(d, FORMAT_F8, 4096, 4096, n_rows) == CUDA_WAY_LIBRARY;
}

bool cuda_gives_bf16(const struct dev *d, const struct matrix *m)
{
    if (d->deterministic) /* where few rows can be made alike */
        return m->format == FORMAT_BF16 && d->chained && flow_has(d, m->format, m->n_in);
    return m->format == FORMAT_BF16 || m->format == FORMAT_F8;
}

/* A tall matrix fills the card with tiles of 128 rows, unless the last is nearly empty; and its readers pay for the
 * scales of its columns. */
bool cuda_leaves_scales(const struct dev *d, const struct matrix *m, uint32_t n_rows)
{
    const bool is_tall = m->n_out > 2 * m->n_in, is_odd = n_rows % 128 != 0 && n_rows % 128 <= 64;
    return m->format == FORMAT_F8 && !d->deterministic && !cuda_is_skinny(d, m, n_rows) && (n_rows < 512 || is_odd) &&
           (!is_tall || is_odd) && n_rows <= UNSCALED_MOST;
}

const float *cuda_row_scales(const struct dev *d, const struct acts *in)
{
    return in->has_f8 ? in->f8_scale : d->acts_scale;
}

/* ---- cuBLASLt ------------------------------------------------------------------------------------------------------
 */

static int set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(op, what, value, bytes);
}

int lt_parts_make(struct lt_parts *l, const struct lt_call *c)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    int status = cublasLtMatmulDescCreate(&l->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == 0)
        status = set(l->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (status == 0 && c->type == CUDA_R_8F_E4M3) {
        const int8_t fast = 1;
        status = set(l->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    }
    if (status == 0 && c->w_scale != NULL) {
        const cublasLtMatmulMatrixScale_t per_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        status = set(l->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &per_row, sizeof per_row);
        status = status != 0 ? status : set(l->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &per_row, sizeof per_row);
        status =
            status != 0 ? status : set(l->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c->w_scale, sizeof c->w_scale);
        status =
            status != 0 ? status : set(l->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &c->a_scale, sizeof c->a_scale);
    }
    if (status == 0)
        status = cublasLtMatrixLayoutCreate(&l->w, c->type, c->k, c->n_out, c->ldw);
    if (status == 0)
        status = cublasLtMatrixLayoutCreate(&l->a, c->type, c->k, c->rows, c->k);
    if (status == 0)
        status = cublasLtMatrixLayoutCreate(&l->c, c->out_type, c->n_out, c->rows, c->ldc);
    return status;
}

void lt_parts_drop(struct lt_parts *l)
{
    if (l->op != NULL)
        cublasLtMatmulDescDestroy(l->op);
    if (l->w != NULL)
        cublasLtMatrixLayoutDestroy(l->w);
    if (l->a != NULL)
        cublasLtMatrixLayoutDestroy(l->a);
    if (l->c != NULL)
        cublasLtMatrixLayoutDestroy(l->c);
}

/* A free place in the table, or the least recently used one. */
static struct lt_plan *plan_slot(struct dev *d)
{
    if (d->n_plans < PLANS_MAX)
        return &d->plans[d->n_plans++];
    struct lt_plan *p = &d->plans[0];
    for (uint32_t i = 1; i < PLANS_MAX; i++)
        if (d->plans[i].used < p->used)
            p = &d->plans[i];
    return p;
}

int lt_candidates(struct dev *d, const struct lt_parts *l, int most, cublasLtMatmulHeuristicResult_t *found, int *count)
{
    cublasLtMatmulPreference_t wish = NULL;
    const size_t bytes = LT_BYTES;
    *count = 0;
    int status = cublasLtMatmulPreferenceCreate(&wish);
    if (status == 0)
        status =
            cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    const uint32_t uncut = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (status == 0 && d->deterministic)
        status = cublasLtMatmulPreferenceSetAttribute(
            wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &uncut, sizeof uncut);
    if (status == 0)
        status = cublasLtMatmulAlgoGetHeuristic(d->lt, l->op, l->w, l->a, l->c, l->c, wish, most, found, count);
    if (wish != NULL)
        cublasLtMatmulPreferenceDestroy(wish);
    return status;
}

/* The library's first. False on failure, which is noted. */
static bool first_algo(struct dev *d, const struct lt_parts *l, cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulHeuristicResult_t found;
    int count;
    const int status = lt_candidates(d, l, 1, &found, &count);
    if (status != 0 || count == 0) {
        cuda_note(d, 1000 + status, "cublasLtMatmulAlgoGetHeuristic");
        return false;
    }
    *out = found.algo;
    return true;
}

/* The remembered algorithm, or the one that was chosen, or the first. NULL on failure, which is noted. */
static struct lt_plan *plan_for(struct dev *d, const struct lt_parts *l, const struct lt_call *c)
{
    for (uint32_t i = 0; i < d->n_plans; i++) {
        struct lt_plan *p = &d->plans[i];
        if (p->m == c->n_out && p->n == c->rows && p->k == c->k && p->ldw == c->ldw && p->ldc == c->ldc &&
            p->type == c->type && p->out_type == c->out_type && p->is_scaled == (c->w_scale != NULL) &&
            p->adds == c->add) {
            p->used = ++d->clock;
            return p;
        }
    }
    cublasLtMatmulAlgo_t algo;
    const bool is_chosen = cuda_chosen(d, l, c, &algo);
    if (!is_chosen && !first_algo(d, l, &algo))
        return NULL;
    struct lt_plan *p = plan_slot(d);
    p->m = c->n_out;
    p->n = c->rows;
    p->k = c->k;
    p->ldw = c->ldw;
    p->ldc = c->ldc;
    p->type = c->type;
    p->out_type = c->out_type;
    p->is_scaled = c->w_scale != NULL;
    p->adds = c->add;
    p->is_chosen = is_chosen;
    p->used = ++d->clock;
    p->algo = algo;
    return p;
}

int lt_call_now(
    struct dev *d, const struct lt_parts *l, const struct lt_call *c, const void *w, const cublasLtMatmulAlgo_t *algo)
{
    const float alpha = 1.0f, beta = c->add ? 1.0f : 0.0f;
    return cublasLtMatmul(d->lt, l->op, &alpha, w, l->w, c->a, l->a, &beta, c->c, l->c, c->c, l->c, algo,
        d->lt_workspace, LT_BYTES, d->stream);
}

static void lt_run(struct dev *d, const struct lt_call *c)
{
    resident_flush(d);
    if (d->is_looking) {
        cuda_look_at(d, c);
        return;
    }
    struct lt_parts l = {};
    int status = lt_parts_make(&l, c);
    if (status != 0)
        cuda_note(d, 1000 + status, "cublasLtMatmulDesc");
    else {
        struct lt_plan *p = plan_for(d, &l, c);
        if (p != NULL)
            status = lt_call_now(d, &l, c, c->w, &p->algo);
        if (status != 0 && p->is_chosen && first_algo(d, &l, &p->algo)) { /* it was checked, but not for this place */
            p->is_chosen = false;
            cudaGetLastError(); /* its failure is not the next kernel's */
            status = lt_call_now(d, &l, c, c->w, &p->algo);
        }
        if (status != 0)
            cuda_note(d, 1000 + status, "cublasLtMatmul");
    }
    lt_parts_drop(&l);
}

void cuda_square_product(
    struct dev *d, bool f8, uint32_t n, const void *w, const void *a, const float *scales, void *out)
{
    struct lt_call c = {};
    c.type = f8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    c.out_type = CUDA_R_16BF;
    c.n_out = c.rows = c.k = c.ldw = c.ldc = n;
    c.w = w;
    c.a = a;
    c.w_scale = f8 ? scales : NULL;
    c.a_scale = f8 ? scales + n : NULL;
    c.c = out;
    lt_run(d, &c);
}

/* ---- by format -----------------------------------------------------------------------------------------------------
 */

static void product_unpacked(struct dev *d, const struct product *p)
{
    const struct matrix *m = p->m;
    for (uint32_t i = 0; i < p->n_out; i += UNPACK_ROWS) {
        const uint32_t now = p->n_out - i < UNPACK_ROWS ? p->n_out - i : UNPACK_ROWS;
        cuda_unpack(d, m, i, now);
        struct lt_call c = {};
        c.type = CUDA_R_16F;
        c.out_type = CUDA_R_32F;
        c.n_out = now;
        c.rows = p->n_rows;
        c.k = c.ldw = m->n_in;
        c.ldc = p->ldc;
        c.w = d->unpacked;
        c.a = p->in->f16;
        c.c = (float *)p->out + i;
        c.add = p->add;
        lt_run(d, &c);
    }
}

static void product_library(struct dev *d, const struct product *p)
{
    const struct matrix *m = p->m;
    struct lt_call c = {};
    c.out_type = p->bf16_out ? CUDA_R_16BF : CUDA_R_32F;
    c.n_out = p->n_out;
    c.rows = p->n_rows;
    c.k = c.ldw = m->n_in;
    c.ldc = p->ldc;
    c.w = m->data;
    c.c = p->out;
    c.add = p->add;
    switch (m->format) {
    case FORMAT_F32:
        c.type = CUDA_R_32F;
        c.a = p->in->f32;
        break;
    case FORMAT_BF16:
        c.type = CUDA_R_16BF;
        c.a = p->in->bf16;
        break;
    case FORMAT_F8:
        if (!p->in->has_f8)
            cuda_rows_to_f8(d, p->in, p->n_rows);
        c.type = CUDA_R_8F_E4M3;
        c.a = p->in->has_f8 ? p->in->f8 : d->acts_f8;
        c.w_scale = p->unscaled ? NULL : m->scales;
        c.a_scale = p->unscaled ? NULL : cuda_row_scales(d, p->in);
        break;
    default:
        c.type = CUDA_R_16F;
        c.a = p->in->f16;
        break;
    }
    lt_run(d, &c);
}

static struct skinny_job skinny_job_of(const struct product *p)
{
    const struct matrix *m = p->m;
    struct skinny_job j = {};
    j.end = p->add ? SKINNY_ADD : SKINNY_STORE;
    j.w0 = m->data;
    j.scale0 = m->scales;
    j.row_bytes = m->row_bytes;
    j.n_in = m->n_in;
    j.n_out = p->n_out;
    j.act = skinny_act(m->format, p->in);
    j.n_rows = p->n_rows;
    j.out = (float *)p->out;
    j.ldc = p->ldc;
    j.scale = 1.0f;
    return j;
}

static void product_skinny(struct dev *d, const struct product *p)
{
    const struct skinny_job j = skinny_job_of(p);
    if (!resident_product(d, p->m->format, &j, p->in))
        cuda_skinny(d, p->m->format, &j);
}

void cuda_product(struct dev *d, const struct product *p)
{
    if (!p->bf16_out && cuda_is_skinny(d, p->m, p->n_rows)) {
        product_skinny(d, p);
        return;
    }
    if (cuda_is_plain(d, p->m->format, p->m->n_in))
        cuda_product_plain(d, p);
    else if (p->m->format == FORMAT_F32 || p->m->format == FORMAT_F16 || p->m->format == FORMAT_BF16 ||
             p->m->format == FORMAT_F8)
        product_library(d, p);
    else
        product_unpacked(d, p);
}

/* ---- the two of --deterministic ------------------------------------------------------------------------------------
 */

#define TRY_OUT  512
#define TRY_IN   2048
#define TRY_ROWS 96

/* Numbers of several magnitudes, so that sums taken in another order come out different. */
static void fill_mixed(uint16_t *to, size_t n, uint32_t state, bool bf16)
{
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        const uint32_t sign = state >> 31 << 15, mantissa = state >> 12 & 0x7f, power = state >> 24 & 3;
        to[i] = (uint16_t)(sign | (bf16 ? (124 + power) << 7 | mantissa : (12 + power) << 10 | mantissa << 3));
    }
}

/* Whether both give the same sums for FLOW_ROWS rows; got has room for two of them. What one does not write is not what
 * the other leaves. */
static bool same_sums(struct dev *d, enum format format, const void *w, const struct acts *in, float *out, float *got)
{
    const size_t bytes = FLOW_ROWS * TRY_OUT * sizeof *out;
    struct matrix m = {};
    m.format = format;
    m.n_out = TRY_OUT;
    m.n_in = TRY_IN;
    m.row_bytes = TRY_IN * 2;
    m.data = (unsigned char *)w;
    struct product p = {&m, TRY_OUT, TRY_ROWS, in, out, TRY_OUT, false, false};
    CUDA_DO(d, cudaMemsetAsync(out, 0, bytes, d->stream));
    product_library(d, &p);
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    CUDA_DO(d, cudaMemcpy(got, out, bytes, cudaMemcpyDeviceToHost));
    p.n_rows = FLOW_ROWS;
    const struct skinny_job j = skinny_job_of(&p);
    CUDA_DO(d, cudaMemsetAsync(out, 0xff, bytes, d->stream));
    cuda_flow(d, format, &j);
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    CUDA_DO(d, cudaMemcpy(got + bytes / sizeof *got, out, bytes, cudaMemcpyDeviceToHost));
    return d->failed == 0 && memcmp(got, got + bytes / sizeof *got, bytes) == 0;
}

bool cuda_is_chained(struct dev *d)
{
    const size_t n = (size_t)(TRY_OUT + TRY_ROWS) * TRY_IN;
    uint16_t *numbers = (uint16_t *)mem_alloc(n * sizeof *numbers);
    float *got = (float *)mem_alloc(2 * FLOW_ROWS * TRY_OUT * sizeof *got), *out = NULL;
    unsigned char *device = NULL;
    bool same = d->capability >= 90 && numbers != NULL && got != NULL;
    if (same) {
        CUDA_DO(d, cudaMalloc(&device, n * sizeof *numbers));
        CUDA_DO(d, cudaMalloc(&out, TRY_ROWS * TRY_OUT * sizeof *out));
        same = d->failed == 0;
    }
    for (int bf16 = 0; bf16 < 2 && same; bf16++) {
        struct acts in = {};
        in.f16 = in.bf16 = device + (size_t)TRY_OUT * TRY_IN * sizeof *numbers;
        fill_mixed(numbers, n, 1 + (uint32_t)bf16, bf16 != 0);
        CUDA_DO(d, cudaMemcpy(device, numbers, n * sizeof *numbers, cudaMemcpyHostToDevice));
        same = same_sums(d, bf16 != 0 ? FORMAT_BF16 : FORMAT_F16, device, &in, out, got);
    }
    CUDA_DO(d, cudaFree(device));
    CUDA_DO(d, cudaFree(out));
    mem_free(numbers);
    mem_free(got);
    return same;
}
