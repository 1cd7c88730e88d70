/* The device: memory, weights, activations, recording, and the table of ops. Host code; the kernels are in rows.cu and
 * attend.cu, the matrix products in products.cu. */
extern "C" {
#include "base/mem.h"
}
#include "cuda/cuda_int.h"

#include <cstdio>
#include <cstring>

void cuda_note(struct dev *d, int status, const char *where)
{
    if (status != 0 && d->failed == 0) {
        d->failed = status;
        d->where = where;
    }
}

/* ---- devices and memory ---------------------------------------------------------------------------------------- */

static void dev_close(struct dev *d)
{
    if (d == NULL)
        return;
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        if (d->graphs[i].exec != NULL)
            cudaGraphExecDestroy(d->graphs[i].exec);
    if (d->lt != NULL)
        cublasLtDestroy(d->lt);
    cudaFree(d->lt_workspace);
    if (d->stream != NULL)
        cudaStreamDestroy(d->stream);
    mem_free(d);
}

static enum err dev_wait(struct dev *d, struct error *e)
{
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    if (d->failed == 0)
        return OK;
    const char *what = d->failed >= 1000 ? "cuBLASLt" : cudaGetErrorString((cudaError_t)d->failed);
    return FAIL(e, ERR_INTERNAL, "the GPU failed in %s: %s (%d)", d->where, what, d->failed);
}

static enum err dev_open(const struct dev_options *o, struct dev **out, struct error *e)
{
    *out = NULL;
    struct dev *d = (struct dev *)mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the CUDA device");
    d->rows_max = o->rows_max;
    CUDA_DO(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    if (cublasLtCreate(&d->lt) != CUBLAS_STATUS_SUCCESS)
        cuda_note(d, 1000, "cublasLtCreate");
    CUDA_DO(d, cudaMalloc(&d->lt_workspace, LT_BYTES));
    const enum err err = dev_wait(d, e);
    if (err != OK) {
        dev_close(d);
        return err;
    }
    *out = d;
    return OK;
}

static enum err dev_alloc(struct dev *d, size_t bytes, void **out, struct error *e)
{
    *out = NULL;
    if (cudaMalloc(out, bytes > 0 ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* out of memory is an answer, not a fault */
        return FAIL(e, ERR_NOMEM, "no GPU memory for a buffer of %zu bytes", bytes);
    }
    CUDA_DO(d, cudaMemsetAsync(*out, 0, bytes, d->stream));
    return OK;
}

static void dev_free(struct dev *d, void *p)
{
    CUDA_DO(d, cudaFree(p));
}

static void dev_write(struct dev *d, void *to, const void *from, size_t bytes)
{
    CUDA_DO(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->stream));
}

static void dev_read(struct dev *d, void *to, const void *from, size_t bytes)
{
    CUDA_DO(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->stream));
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
}

/* ---- weights and activations ------------------------------------------------------------------------------------- */

static enum err weight_bind(
    struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e)
{
    memset(w, 0, sizeof *w);
    if (v->dtype != DTYPE_F32 && v->dtype != DTYPE_F16 && v->dtype != DTYPE_BF16)
        return FAIL(e, ERR_UNSUPPORTED, "weights of type %s are not supported on CUDA", dtype_name(v->dtype));
    if (n_views != 1 || v->n_dims != 2)
        return FAIL(e, ERR_UNSUPPORTED, "mixtures of experts are not supported on CUDA");
    void *p;
    TRY(dev_alloc(d, v->bytes, &p, e));
    dev_write(d, p, v->data, v->bytes);
    w->dtype = v->dtype;
    w->n_out = (uint32_t)v->shape[0];
    w->n_in = (uint32_t)v->shape[1];
    w->n_mats = 1;
    w->wants = v->dtype == DTYPE_F32 ? ACT_F32 : v->dtype == DTYPE_F16 ? ACT_F16 : ACT_BF16;
    w->row_bytes = v->bytes / v->shape[0];
    w->packed = p;
    return OK;
}

static void weight_drop(struct dev *d, struct weight *w)
{
    if (w->packed != NULL)
        dev_free(d, w->packed);
    memset(w, 0, sizeof *w);
}

static void acts_free(struct dev *d, struct acts *a)
{
    if (a == NULL)
        return;
    dev_free(d, a->f32);
    dev_free(d, a->f16);
    dev_free(d, a->bf16);
    mem_free(a);
}

static enum err acts_new(struct dev *d, uint32_t rows, uint32_t n, uint32_t forms, struct acts **out, struct error *e)
{
    *out = NULL;
    struct acts *a = (struct acts *)mem_zalloc(sizeof *a);
    if (a == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for activations");
    a->rows = rows;
    a->n = n;
    a->forms = forms;
    const size_t elems = (size_t)rows * n;
    enum err err = dev_alloc(d, elems * sizeof(float), (void **)&a->f32, e);
    if (err == OK && (forms & ACT_F16))
        err = dev_alloc(d, elems * 2, &a->f16, e);
    if (err == OK && (forms & ACT_BF16))
        err = dev_alloc(d, elems * 2, &a->bf16, e);
    if (err != OK) {
        acts_free(d, a);
        return err;
    }
    *out = a;
    return OK;
}

/* ---- recording -----------------------------------------------------------------------------------------------------
 */

static bool same_key(struct graph_key a, struct graph_key b)
{
    return a.n_rows == b.n_rows && a.n_seqs == b.n_seqs && a.n_out == b.n_out && a.want_best == b.want_best;
}

static bool graph_replay(struct dev *d, struct graph_key key)
{
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        if (d->graphs[i].exec != NULL && same_key(d->graphs[i].key, key)) {
            d->graphs[i].used = ++d->graph_clock;
            CUDA_DO(d, cudaGraphLaunch(d->graphs[i].exec, d->stream));
            return true;
        }
    return false;
}

static void graph_begin(struct dev *d, struct graph_key key)
{
    d->recording = key;
    CUDA_DO(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
}

static void graph_end(struct dev *d)
{
    struct graph *slot = &d->graphs[0];
    for (uint32_t i = 1; i < GRAPHS_MAX; i++)
        if (slot->exec != NULL && (d->graphs[i].exec == NULL || d->graphs[i].used < slot->used))
            slot = &d->graphs[i];
    if (slot->exec != NULL)
        CUDA_DO(d, cudaGraphExecDestroy(slot->exec));
    slot->exec = NULL;
    cudaGraph_t graph = NULL;
    CUDA_DO(d, cudaStreamEndCapture(d->stream, &graph));
    if (graph == NULL)
        return;
    CUDA_DO(d, cudaGraphInstantiate(&slot->exec, graph, 0));
    CUDA_DO(d, cudaGraphDestroy(graph));
    slot->key = d->recording;
    graph_replay(d, slot->key);
}

/* ---- the table ------------------------------------------------------------------------------------------------------
 */

static const struct ops table = {
    .name = "cuda",
    .kv_dtypes = 1ull << DTYPE_F32 | 1ull << DTYPE_F16 | 1ull << DTYPE_BF16,
    .dev_open = dev_open,
    .dev_close = dev_close,
    .dev_alloc = dev_alloc,
    .dev_free = dev_free,
    .dev_write = dev_write,
    .dev_read = dev_read,
    .dev_wait = dev_wait,
    .weight_bind = weight_bind,
    .weight_drop = weight_drop,
    .acts_new = acts_new,
    .acts_free = acts_free,
    .graph_replay = graph_replay,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .qkv = cuda_qkv,
    .attend = cuda_attend,
    .project = cuda_project,
    .gate_up = cuda_gate_up,
    .route = NULL, /* weight_bind refuses mixtures, so these two are never reached */
    .experts = NULL,
    .logits = cuda_logits,
    .argmax = cuda_argmax,
    .copy_blocks = cuda_copy_blocks,
};

extern "C" bool cuda_describe(struct cuda_description *out)
{
    cudaDeviceProp prop;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0 || cudaGetDeviceProperties(&prop, 0) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    snprintf(out->name, sizeof out->name, "%s", prop.name);
    out->memory_bytes = prop.totalGlobalMem;
    out->capability = (uint32_t)(10 * prop.major + prop.minor);
    return true;
}

extern "C" const struct ops *cuda_ops(const char **why)
{
    struct cuda_description card;
    *why = "no CUDA device is visible to this process";
    if (!cuda_describe(&card))
        return NULL;
    *why = "the CUDA device is older than compute capability 8.0";
    return card.capability >= 80 ? &table : NULL;
}
