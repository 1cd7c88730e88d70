/* The device: memory, activations, recording, and the table of ops. Host code; the ops have a file each, weights are in
 * weights.cu, matrix products in products.cu. */
extern "C" {
#include "base/fault.h"
#include "base/mem.h"
}
#include "cuda/cuda_int.h"

#include <cstdio>
#include <cstring>

/* What was made for 9.0 (90a) runs there alone. Later cards compile what was made for 8.0 once more, in which copies by
 * the engine, barriers and the warpgroup's products are left out: they must not be asked for it. */
#define CAPABILITY_LATER 100
#define CAPABILITY_PLAIN 89

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
    if (d->stream != NULL)
        cudaStreamSynchronize(d->stream);
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        if (d->graphs[i].exec != NULL)
            cudaGraphExecDestroy(d->graphs[i].exec);
    for (uint32_t i = 0; i < DROPPED_MAX; i++) {
        if (d->dropped[i].exec != NULL)
            cudaGraphExecDestroy(d->dropped[i].exec);
        if (d->dropped[i].done != NULL)
            cudaEventDestroy(d->dropped[i].done);
    }
    resident_free(d);
    cuda_upload_end(d);
    cuda_choose_close(d);
    if (d->lt != NULL)
        cublasLtDestroy(d->lt);
    cuda_slabs_free(d);
    void *const rooms[] = {d->lt_workspace, d->staging, d->unpacked, d->acts_f8, d->acts_scale, d->groups, d->plan,
        d->parts, d->arrived, d->asks, d->words, d->masks, d->adjusted, d->even_parts};
    for (size_t i = 0; i < COUNT_OF(rooms); i++)
        cudaFree(rooms[i]);
    cudaFreeHost(d->pinned);
    cudaFreeHost(d->fetched);
    for (int i = 0; i < 2; i++) {
        if (d->pinned_half[i] != NULL)
            cudaEventDestroy(d->pinned_half[i]);
        if (d->fetch_done[i] != NULL)
            cudaEventDestroy(d->fetch_done[i]);
    }
    mem_free(d->asks_host);
    const cudaEvent_t events[] = {d->aside_there, d->aside_read, d->moves_from, d->moves_done};
    for (size_t i = 0; i < COUNT_OF(events); i++)
        if (events[i] != NULL)
            cudaEventDestroy(events[i]);
    const cudaStream_t streams[] = {d->aside, d->moves, d->stream};
    for (size_t i = 0; i < COUNT_OF(streams); i++)
        if (streams[i] != NULL)
            cudaStreamDestroy(streams[i]);
    mem_free(d);
}

/* What was noted, as an error. */
static enum err failure(const struct dev *d, struct error *e)
{
    if (d->failed == 0)
        return OK;
    const char *what = d->failed >= 1000 ? cublasLtGetStatusString((cublasStatus_t)(d->failed - 1000))
                                         : cudaGetErrorString((cudaError_t)d->failed);
    return FAIL(e, ERR_INTERNAL, "the GPU failed in %s: %s (%d)", d->where, what, d->failed);
}

static enum err dev_wait(struct dev *d, struct error *e)
{
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    if (fault_hit(FAULT_DEVICE))
        cuda_note(d, (int)cudaErrorUnknown, "a test");
    return failure(d, e);
}

static enum err dev_open(const struct dev_options *o, struct dev **out, struct error *e)
{
    *out = NULL;
    struct dev *d = (struct dev *)mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the CUDA device");
    struct cuda_card card = {};
    d->rows_max = o->rows_max;
    d->out_max = o->out_max;
    d->weights_to_come = o->weight_bytes;
    d->fetch_bytes = (size_t)o->out_max * FETCH_EACH;
    d->fp8 = o->fp8;
    d->deterministic = o->deterministic;
    d->batch_version = 1;
    if (cuda_describe(0, &card)) {
        d->capability = card.capability < CAPABILITY_LATER ? card.capability : CAPABILITY_PLAIN;
        d->n_sms = card.n_units;
    }
    CUDA_DO(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    CUDA_DO(d, cudaStreamCreateWithFlags(&d->aside, cudaStreamNonBlocking));
    CUDA_DO(d, cudaStreamCreateWithFlags(&d->moves, cudaStreamNonBlocking));
    cudaEvent_t *const events[] = {&d->aside_there, &d->aside_read, &d->moves_from, &d->moves_done};
    for (size_t i = 0; i < COUNT_OF(events); i++)
        CUDA_DO(d, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming));
    if (cublasLtCreate(&d->lt) != CUBLAS_STATUS_SUCCESS)
        cuda_note(d, 1000, "cublasLtCreate");
    CUDA_DO(d, cudaMalloc(&d->lt_workspace, LT_BYTES));
    /* the library's cut sums come there by the copy engine, which compute-sanitizer's initcheck does not see */
    CUDA_DO(d, cudaMemsetAsync(d->lt_workspace, 0, LT_BYTES, d->stream));
    CUDA_DO(d, cudaMallocHost((void **)&d->pinned, WRITE_BYTES + READ_BYTES));
    CUDA_DO(d, cudaMallocHost((void **)&d->fetched, 2 * d->fetch_bytes));
    for (int i = 0; i < 2; i++) {
        CUDA_DO(d, cudaEventCreateWithFlags(&d->pinned_half[i], cudaEventDisableTiming));
        CUDA_DO(d, cudaEventCreateWithFlags(&d->fetch_done[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < DROPPED_MAX; i++)
        CUDA_DO(d, cudaEventCreateWithFlags(&d->dropped[i].done, cudaEventDisableTiming));
    d->chained = d->deterministic && d->failed == 0 && cuda_is_chained(d);
    enum err err = dev_wait(d, e);
    if (err == OK && (!cuda_sample_open(d) || !cuda_choose_open(d, o->choices_dir)))
        err = FAIL(e, ERR_NOMEM, "no memory for the CUDA device");
    if (err == OK && d->fp8 && d->capability < 90)
        err = FAIL(e, ERR_UNSUPPORTED, "F8 weights need compute capability 9.0; this card has %u.%u",
            card.capability / 10, card.capability % 10);
    if (err != OK) {
        dev_close(d);
        return err;
    }
    *out = d;
    return OK;
}

/* Of a device that is used without rooms_make the first step may be a recorded one, and room is made outside of it: the
 * capture is let loose for that moment. */
void *cuda_room(struct dev *d, void **p, size_t *have, size_t want)
{
    if (d->is_counting) {
        d->room_bytes += want;
        return d;
    }
    if (*have >= want)
        return *p;
    if (d->is_running) {
        cuda_note(d, (int)cudaErrorMemoryAllocation, "making room in a step");
        return NULL;
    }
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA_DO(d, cudaThreadExchangeStreamCaptureMode(&mode));
    void *more = NULL;
    const cudaError_t status = cudaMalloc(&more, want);
    cuda_note(d, (int)status, "cudaMalloc");
    if (status == cudaSuccess) {
        cudaStream_t side = NULL;
        CUDA_DO(d, cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        CUDA_DO(d, cudaMemsetAsync(more, 0, want, side));
        CUDA_DO(d, cudaStreamSynchronize(side));
        CUDA_DO(d, cudaStreamDestroy(side));
        if (*p != NULL)
            CUDA_DO(d, cudaFree(*p));
        *p = more;
        *have = want;
    }
    CUDA_DO(d, cudaThreadExchangeStreamCaptureMode(&mode));
    return status == cudaSuccess ? more : NULL;
}

/* Every room of steps to come, but for those that binding makes. */
static bool make_rooms(struct dev *d, const struct step_sizes *s)
{
    return cuda_sample_rooms(d, s->vocab) && cuda_attend_rooms(d, s->n_heads, s->n_kv_heads, s->head_dim) &&
           (s->n_experts == 0 || cuda_experts_rooms(d, s->n_experts, s->top_k)) && cuda_even_rooms(d) &&
           resident_rooms(d, s);
}

static uint64_t rooms_bytes(const struct step_sizes *s)
{
    struct cuda_card card = {};
    struct dev *d = (struct dev *)mem_zalloc(sizeof *d);
    if (d == NULL)
        return 0; /* nobody will get far */
    d->rows_max = s->rows_max;
    d->out_max = s->out_max;
    d->is_counting = true;
    cuda_describe(0, &card);
    d->n_sms = card.n_units;
    make_rooms(d, s);
    const uint64_t bytes = d->room_bytes;
    mem_free(d->resident);
    mem_free(d);
    return bytes;
}

/* Weights are all there: what brought them is given back first. */
static enum err rooms_make(struct dev *d, const struct step_sizes *s, struct error *e)
{
    cuda_upload_end(d);
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    CUDA_DO(d, cudaFree(d->staging));
    d->staging = NULL;
    d->staging_bytes = 0;
    if (d->failed == 0 && !make_rooms(d, s)) {
        d->failed = 0; /* out of memory is an answer, not a fault */
        cudaGetLastError();
        return FAIL(e, ERR_NOMEM, "no GPU memory for the rooms of a step");
    }
    d->is_running = true;
    return failure(d, e);
}

static enum err dev_alloc(struct dev *d, size_t bytes, void **out, struct error *e)
{
    *out = NULL;
    if (cudaMalloc(out, bytes > 0 ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* out of memory is an answer, not a fault */
        size_t left = 0, all = 0;
        cudaMemGetInfo(&left, &all);
        return FAIL(e, ERR_NOMEM, "no GPU memory for a buffer of %zu MiB: %zu MiB of %zu are free", bytes >> 20,
            left >> 20, all >> 20);
    }
    CUDA_DO(d, cudaMemsetAsync(*out, 0, bytes, d->stream));
    return OK;
}

static void dev_free(struct dev *d, void *p)
{
    CUDA_DO(d, cudaFree(p));
}

/* Small writes are copied aside first, so that the caller has its bytes back at once and nothing waits. The ring is
 * used half by half; a half is waited for before it is used again, which hardly ever takes time. */
void cuda_write(struct dev *d, void *to, const void *from, size_t bytes)
{
    const size_t half = WRITE_BYTES / 2;
    d->batch_version++;
    if (bytes > half / 4) {
        CUDA_DO(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->stream));
        return;
    }
    if (d->pinned_used + bytes > half) {
        CUDA_DO(d, cudaEventRecord(d->pinned_half[d->pinned_side], d->stream));
        d->pinned_side = 1 - d->pinned_side;
        d->pinned_used = 0;
        CUDA_DO(d, cudaEventSynchronize(d->pinned_half[d->pinned_side]));
    }
    unsigned char *p = d->pinned + d->pinned_side * half + d->pinned_used;
    memcpy(p, from, bytes);
    d->pinned_used += (bytes + 63) / 64 * 64;
    CUDA_DO(d, cudaMemcpyAsync(to, p, bytes, cudaMemcpyHostToDevice, d->stream));
}

void cuda_write_aside(struct dev *d, void *to, const void *from, size_t bytes)
{
    CUDA_DO(d, cudaStreamWaitEvent(d->aside, d->aside_read, 0));
    CUDA_DO(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->aside));
    CUDA_DO(d, cudaEventRecord(d->aside_there, d->aside));
    CUDA_DO(d, cudaStreamWaitEvent(d->stream, d->aside_there, 0));
}

void cuda_aside_read(struct dev *d)
{
    CUDA_DO(d, cudaEventRecord(d->aside_read, d->stream));
}

static void *host_new(struct dev *d, size_t bytes)
{
    (void)d;
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) == cudaSuccess)
        return p;
    cudaGetLastError(); /* no memory is an answer, not a fault */
    return NULL;
}

static void host_free(struct dev *d, void *p)
{
    CUDA_DO(d, cudaStreamSynchronize(d->stream)); /* which waits for all others */
    CUDA_DO(d, cudaFreeHost(p));
}

static void dev_read(struct dev *d, void *to, const void *from, size_t bytes)
{
    if (bytes <= READ_BYTES) {
        unsigned char *p = d->pinned + WRITE_BYTES;
        CUDA_DO(d, cudaMemcpyAsync(p, from, bytes, cudaMemcpyDeviceToHost, d->stream));
        CUDA_DO(d, cudaStreamSynchronize(d->stream));
        memcpy(to, p, bytes);
        return;
    }
    CUDA_DO(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->stream));
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
}

static void fetch(struct dev *d, uint32_t side, const void *from, size_t bytes)
{
    assert(bytes <= d->fetch_bytes);
    CUDA_DO(d, cudaMemcpyAsync(d->fetched + side * d->fetch_bytes, from, bytes, cudaMemcpyDeviceToHost, d->stream));
    CUDA_DO(d, cudaEventRecord(d->fetch_done[side], d->stream));
}

static enum err fetched(struct dev *d, uint32_t side, void *to, size_t bytes, struct error *e)
{
    CUDA_DO(d, cudaEventSynchronize(d->fetch_done[side]));
    if (fault_hit(FAULT_DEVICE))
        cuda_note(d, (int)cudaErrorUnknown, "a test");
    memcpy(to, d->fetched + side * d->fetch_bytes, bytes);
    return failure(d, e);
}

/* ---- activations --------------------------------------------------------------------------------------------------
 */

static void acts_free(struct dev *d, struct acts *a)
{
    if (a == NULL)
        return;
    dev_free(d, a->f32);
    dev_free(d, a->f8);
    dev_free(d, a->f8_scale);
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
    enum err err = OK;
    if (forms & ACT_F32)
        err = dev_alloc(d, elems * sizeof(float), (void **)&a->f32, e);
    if (err == OK && (forms & ACT_F8))
        err = dev_alloc(d, elems, (void **)&a->f8, e);
    if (err == OK && (forms & ACT_F8))
        err = dev_alloc(d, rows * sizeof(float), (void **)&a->f8_scale, e);
    if (err == OK && (forms & (ACT_F16 | ACT_F8)))
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
    return a.n_rows == b.n_rows && a.n_seqs == b.n_seqs && a.n_out == b.n_out && a.seq_rows == b.seq_rows &&
           a.want_best == b.want_best;
}

static bool graph_replay(struct dev *d, struct graph_key key)
{
    for (uint32_t i = 0; i < GRAPHS_MAX; i++)
        if (d->graphs[i].exec != NULL && same_key(d->graphs[i].key, key) &&
            d->graphs[i].may_reside == resident_is_allowed()) {
            d->graphs[i].used = ++d->clock;
            CUDA_DO(d, cudaGraphLaunch(d->graphs[i].exec, d->stream));
            return true;
        }
    return false;
}

static void graph_drop(struct dev *d, struct graph *g)
{
    if (g->exec == NULL)
        return;
    struct dropped *x = &d->dropped[d->n_dropped++ % DROPPED_MAX];
    if (x->exec != NULL) {
        CUDA_DO(d, cudaEventSynchronize(x->done)); /* of steps ago: it is */
        CUDA_DO(d, cudaGraphExecDestroy(x->exec));
    }
    x->exec = g->exec;
    CUDA_DO(d, cudaEventRecord(x->done, d->stream));
    g->exec = NULL;
}

/* A free slot, or that of the recording that was used least lately. */
static uint32_t pick_slot(const struct dev *d)
{
    uint32_t slot = 0;
    for (uint32_t i = 1; i < GRAPHS_MAX; i++)
        if (d->graphs[slot].exec != NULL && (d->graphs[i].exec == NULL || d->graphs[i].used < d->graphs[slot].used))
            slot = i;
    return slot;
}

/* What recordings take of the card is the driver's business, and counted roughly (SPARE_BYTES): where it finds no more,
 * all but the newest are given up, to be made again when they are needed; those of this device, not a draft's beside
 * it. False: it was not for want of memory. */
static bool graphs_give_way(struct dev *d, cudaError_t status)
{
    if (status != cudaErrorMemoryAllocation)
        return false;
    cudaGetLastError();
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    for (uint32_t i = 0; i < GRAPHS_MAX + DROPPED_MAX; i++) {
        cudaGraphExec_t *exec = i < GRAPHS_MAX ? &d->graphs[i].exec : &d->dropped[i - GRAPHS_MAX].exec;
        if (*exec != NULL && i != d->slot) {
            CUDA_DO(d, cudaGraphExecDestroy(*exec));
            *exec = NULL;
        }
    }
    return true;
}

static void graph_begin(struct dev *d, struct graph_key key)
{
    cuda_upload_end(d);
    d->batch_version++; /* the recording has its own plan */
    d->recording = key;
    d->is_recording = graph_is_worth(key);
    if (d->is_recording) {
        d->slot = pick_slot(d);
        graph_drop(d, &d->graphs[d->slot]);
        CUDA_DO(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
        resident_begin(d, key.n_rows == key.n_seqs ? key.n_rows : UINT32_MAX); /* which has one row a sequence */
    }
}

static void graph_end(struct dev *d)
{
    if (!d->is_recording)
        return;
    const bool keep = resident_end(d);
    d->is_recording = false;
    d->batch_version++;
    struct graph *slot = &d->graphs[d->slot];
    cudaGraph_t graph = NULL;
    CUDA_DO(d, cudaStreamEndCapture(d->stream, &graph));
    if (graph == NULL)
        return;
    cudaError_t status = cudaGraphInstantiate(&slot->exec, graph, 0);
    if (graphs_give_way(d, status))
        status = cudaGraphInstantiate(&slot->exec, graph, 0);
    cuda_note(d, (int)status, "cudaGraphInstantiate");
    CUDA_DO(d, cudaGraphDestroy(graph));
    if (slot->exec == NULL)
        return;
    slot->key = d->recording;
    slot->may_reside = resident_is_allowed();
    slot->used = ++d->clock;
    resident_send(d);
    status = cudaGraphLaunch(slot->exec, d->stream);
    if (graphs_give_way(d, status))
        status = cudaGraphLaunch(slot->exec, d->stream);
    cuda_note(d, (int)status, "cudaGraphLaunch");
    if (!keep)
        graph_drop(d, slot);
}

void cuda_copy_blocks(struct dev *d, const struct copy_blocks_args *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        CUDA_DO(d, cudaMemcpyAsync(a->to->blocks + (uint64_t)a->dst[i] * a->to->block_bytes,
                       a->from->blocks + (uint64_t)a->src[i] * a->from->block_bytes, a->to->block_bytes,
                       cudaMemcpyDeviceToDevice, d->stream));
}

/* ---- the table ------------------------------------------------------------------------------------------------------
 */

static uint64_t memory_free(void)
{
    size_t left = 0, all = 0;
    if (cudaMemGetInfo(&left, &all) != cudaSuccess)
        cudaGetLastError();
    return left;
}

static const struct ops table = {
    .name = "cuda",
    .kv_dtypes =
        1ull << DTYPE_F32 | 1ull << DTYPE_F16 | 1ull << DTYPE_BF16 | 1ull << DTYPE_Q8_0 | 1ull << DTYPE_F8_E4M3,
    .has_fp8 = true,
    .likes_bf16 = true,
    .checks_weights = true,
    .dev_open = dev_open,
    .dev_close = dev_close,
    .dev_alloc = dev_alloc,
    .dev_free = dev_free,
    .dev_write = cuda_write,
    .dev_read = dev_read,
    .dev_wait = dev_wait,
    .host_new = host_new,
    .host_free = host_free,
    .describe = cuda_describe_rows,
    .weight_bind = cuda_weight_bind,
    .weight_drop = cuda_weight_drop,
    .acts_new = acts_new,
    .acts_free = acts_free,
    .graph_replay = graph_replay,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .look_begin = cuda_look_begin,
    .look_end = cuda_look_end,
    .choose = cuda_choose,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .qkv = cuda_qkv,
    .attend = cuda_attend,
    .project = cuda_project,
    .gate_up = cuda_gate_up,
    .route = cuda_route,
    .experts = cuda_experts,
    .logits = cuda_logits,
    .argmax = cuda_argmax,
    .copy_blocks = cuda_copy_blocks,
    .move_blocks = cuda_move_blocks,
    .sample = cuda_sample,
    .tokens_take = cuda_tokens_take,
    .fetch = fetch,
    .fetched = fetched,
    .memory_free = memory_free,
    .spare_bytes = SPARE_BYTES,
    .rooms_bytes = rooms_bytes,
    .rooms_make = rooms_make,
};

extern "C" bool cuda_describe(uint32_t i, struct cuda_card *out)
{
    cudaDeviceProp prop;
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || i >= (uint32_t)count ||
        cudaGetDeviceProperties(&prop, (int)i) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    snprintf(out->name, sizeof out->name, "%s", prop.name);
    out->memory_bytes = prop.totalGlobalMem;
    out->capability = (uint32_t)(10 * prop.major + prop.minor);
    out->n_units = (uint32_t)prop.multiProcessorCount;
    return true;
}

/* A card that is asked has a context from then on, which takes memory: of one that is not used it is given back. */
extern "C" uint64_t cuda_memory_free(uint32_t i)
{
    if (i == 0)
        return memory_free();
    if (cudaSetDevice((int)i) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    const uint64_t bytes = memory_free();
    cudaDeviceReset();
    cudaSetDevice(0);
    return bytes;
}

extern "C" const struct ops *cuda_ops(const char **why)
{
    struct cuda_card card;
    *why = "no CUDA device is visible to this process";
    if (!cuda_describe(0, &card))
        return NULL;
    *why = "the CUDA device is older than compute capability 8.0";
    return card.capability >= 80 ? &table : NULL;
}
