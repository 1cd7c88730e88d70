/* Private to cuda/: the device and the launchers that device.cu puts into the table. */
#ifndef CUDA_CUDA_INT_H
#define CUDA_CUDA_INT_H

#include "cuda/cuda.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#define GRAPHS_MAX 16  /* recorded step shapes; decode batches come in few sizes, the oldest is thrown out */
#define PLANS_MAX  256 /* matrix shapes whose cuBLASLt algorithm is remembered */
#define LT_BYTES   ((size_t)32 << 20) /* workspace cuBLASLt is given; what its documentation suggests for Hopper */

/* Activation rows in the types products read. f32 is always there. */
struct acts {
    uint32_t rows, n, forms;
    float *f32;
    void *f16, *bf16; /* __half, __nv_bfloat16; NULL unless asked for */
};

struct lt_plan {
    uint32_t m, n, k, ldc;
    cudaDataType type;
    cublasLtMatmulAlgo_t algo;
};

struct graph {
    struct graph_key key;
    cudaGraphExec_t exec; /* NULL = free */
    uint64_t used;
};

struct dev {
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *lt_workspace;
    uint32_t rows_max;
    int failed;        /* the first cudaError_t or 1000 + cublasStatus_t; 0 = none */
    const char *where; /* the call that failed */
    struct lt_plan plans[PLANS_MAX];
    uint32_t n_plans;
    struct graph graphs[GRAPHS_MAX];
    uint64_t graph_clock;
    struct graph_key recording;
};

/* Keep the first failure. */
void cuda_note(struct dev *d, int status, const char *where);
#define CUDA_DO(d, call) cuda_note((d), (int)(call), #call)

/* products.cu: out[t * ldc + o] = sum over k of in[t][k] * w[o][k] + beta * out. */
void cuda_product(struct dev *d, const struct weight *w, const struct acts *in, uint32_t n_rows, float *out,
    uint32_t ldc, float beta);

/* The type a weight's products run in, as seen by kernels that write activations. */
cudaDataType cuda_type(enum dtype dtype);

/* rows.cu and attend.cu */
void cuda_embed(struct dev *d, const struct batch *b, const struct embed_args *a);
void cuda_norm(struct dev *d, const struct norm_args *a);
void cuda_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a);
void cuda_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a);
void cuda_project(struct dev *d, const struct batch *b, const struct project_args *a);
void cuda_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a);
void cuda_logits(struct dev *d, const struct logits_args *a);
void cuda_argmax(struct dev *d, const struct argmax_args *a);
void cuda_copy_blocks(struct dev *d, const struct copy_blocks_args *a);

#endif
