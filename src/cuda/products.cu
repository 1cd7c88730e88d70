/* Matrix products through cuBLASLt. Row-major out[T][n_out] = in[T][k] x w[n_out][k]^T is, in its column-major terms,
 * C (n_out x T) = W^T x A with W and A stored as k x n_out and k x T: one transposed operand, no copies. The algorithm
 * for a shape is asked for once and remembered, so that a captured step does not query. */
#include "cuda/cuda_int.h"

cudaDataType cuda_type(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? CUDA_R_16F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

struct layouts {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, a, c;
};

static int make_layouts(struct layouts *l, cudaDataType type, uint32_t m, uint32_t n, uint32_t k, uint32_t ldc)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    int status = cublasLtMatmulDescCreate(&l->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == 0)
        status = cublasLtMatmulDescSetAttribute(l->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (status == 0)
        status = cublasLtMatrixLayoutCreate(&l->w, type, k, m, k);
    if (status == 0)
        status = cublasLtMatrixLayoutCreate(&l->a, type, k, n, k);
    if (status == 0)
        status = cublasLtMatrixLayoutCreate(&l->c, CUDA_R_32F, m, n, ldc);
    return status;
}

static void drop_layouts(struct layouts *l)
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

/* The remembered algorithm, or the library's first choice. NULL on failure, which is noted. */
static const cublasLtMatmulAlgo_t *plan_for(
    struct dev *d, const struct layouts *l, cudaDataType type, uint32_t m, uint32_t n, uint32_t k, uint32_t ldc)
{
    for (uint32_t i = 0; i < d->n_plans; i++) {
        const struct lt_plan *p = &d->plans[i];
        if (p->m == m && p->n == n && p->k == k && p->ldc == ldc && p->type == type)
            return &p->algo;
    }
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    const size_t bytes = LT_BYTES;
    int status = cublasLtMatmulPreferenceCreate(&wish);
    if (status == 0)
        status =
            cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    if (status == 0)
        status = cublasLtMatmulAlgoGetHeuristic(d->lt, l->op, l->w, l->a, l->c, l->c, wish, 1, &found, &count);
    if (wish != NULL)
        cublasLtMatmulPreferenceDestroy(wish);
    if (status != 0 || count == 0) {
        cuda_note(d, 1000 + status, "cublasLtMatmulAlgoGetHeuristic");
        return NULL;
    }
    struct lt_plan *p = &d->plans[d->n_plans < PLANS_MAX ? d->n_plans++ : (m + n + k) % PLANS_MAX];
    p->m = m;
    p->n = n;
    p->k = k;
    p->ldc = ldc;
    p->type = type;
    p->algo = found.algo;
    return &p->algo;
}

void cuda_product(
    struct dev *d, const struct weight *w, const struct acts *in, uint32_t n_rows, float *out, uint32_t ldc, float beta)
{
    const cudaDataType type = cuda_type(w->dtype);
    const void *a = type == CUDA_R_16F ? in->f16 : type == CUDA_R_16BF ? in->bf16 : in->f32;
    const float alpha = 1.0f;
    struct layouts l = {};
    int status = make_layouts(&l, type, w->n_out, n_rows, w->n_in, ldc);
    if (status != 0)
        cuda_note(d, 1000 + status, "cublasLtMatrixLayoutCreate");
    else {
        const cublasLtMatmulAlgo_t *algo = plan_for(d, &l, type, w->n_out, n_rows, w->n_in, ldc);
        if (algo != NULL)
            status = cublasLtMatmul(d->lt, l.op, &alpha, w->packed, l.w, a, l.a, &beta, out, l.c, out, l.c, algo,
                d->lt_workspace, LT_BYTES, d->stream);
        if (status != 0)
            cuda_note(d, 1000 + status, "cublasLtMatmul");
    }
    drop_layouts(&l);
}
