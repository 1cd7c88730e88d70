/* cuBLASLt as products.cu calls it and choose.cu measures it. Private to cuda/. */
#ifndef CUDA_LIBRARY_H
#define CUDA_LIBRARY_H

#include "cuda/cuda_int.h"

/* One call in the library's terms: c [n_out][rows], w and a in type. */
struct lt_call {
    cudaDataType type, out_type;
    uint32_t n_out, rows, k, ldw, ldc;
    const void *w, *a;
    const float *w_scale, *a_scale; /* F8: per row of each */
    void *c;
    bool add;
};

struct lt_parts {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t w, a, c;
};

/* All give a cublasStatus_t. A failed make is dropped like any other. */
int lt_parts_make(struct lt_parts *l, const struct lt_call *c);
void lt_parts_drop(struct lt_parts *l);
/* The library's first algorithms for it, the one that it would take itself in front. */
int lt_candidates(
    struct dev *d, const struct lt_parts *l, int most, cublasLtMatmulHeuristicResult_t *found, int *count);
/* The product, with weights of that shape at w. */
int lt_call_now(
    struct dev *d, const struct lt_parts *l, const struct lt_call *c, const void *w, const cublasLtMatmulAlgo_t *algo);

/* choose.cu: a product of the step that is looked at; the algorithm that was measured to be the fastest for a product,
 * false when the library's own choice is to be taken. */
void cuda_look_at(struct dev *d, const struct lt_call *c);
bool cuda_chosen(struct dev *d, const struct lt_parts *l, const struct lt_call *c, cublasLtMatmulAlgo_t *out);

#endif
