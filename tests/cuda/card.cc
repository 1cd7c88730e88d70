/* A card that is made up: the calls of the CUDA runtime and of cuBLASLt that quern makes, on host memory and without a
 * device. Copies and fills are done, at once and in the order of the calls; a graph holds those that were recorded and
 * does them when it is launched; kernels and products do nothing, so that whatever is read back is zeros. What is left
 * is everything that the host does, from the start of a server to its end: the rooms, the graphs, the copies and their
 * order, what is answered when memory is short or the card fails.
 *
 * It is strict where a real one is: memory ends, nothing may be allocated or waited for in a recording, a graph may not
 * be launched over descriptions of matrices that were copied to the card and that no kernel has accepted since
 * (tma_accept; a card would go on with those that lay there before), nothing is launched on one stream while another's
 * last launch has not been waited for (two kernels that each want the whole chip may wait for each other for ever), and
 * after a fault every call fails.
 *
 *   QUERN_CARD_MIB    memory of the card; 140,000 unless given
 *   QUERN_CARD_GRAPH  KiB of it that a graph takes, half of them with its first launch; 256 unless given
 *   QUERN_CARD_FAILS  the how manieth launch fails, of kernels, products and graphs; 0: none
 *   QUERN_CARD_LOG    a file; a line for each call that takes, gives back, or waits for a stream or a copy: no step may
 *
 * Threads: one mutex around all of it. */
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <vector>

#define MIB         ((size_t)1 << 20)
#define PAGE_BYTES  ((size_t)2 << 20) /* what an allocation is rounded up to, unless it shares a page with others */
#define SHARE_BYTES ((size_t)512)
#define HOST_PAGE   ((size_t)4096)
#define MILLISECOND 0.01f               /* what everything takes */
#define DESCRIPTION 0x6120626f78206f66u /* the first word of a CUtensorMap */
#define UNACCEPTED  cudaErrorInvalidResourceHandle
#define STUCK       cudaErrorLaunchTimeout

struct recording {
    std::vector<std::function<void()>> calls;
    bool is_open = true;
};

struct CUstream_st {
    std::shared_ptr<recording> into;
    uint64_t n_launches = 0;
};

struct CUevent_st {
    std::shared_ptr<recording> of;
    cudaStream_t on = nullptr;
    uint64_t n_launches = 0; /* of that stream, when it was recorded */
};

struct CUgraph_st {
    std::shared_ptr<recording> made;
};

struct CUgraphExec_st {
    std::vector<std::function<void()>> calls;
    size_t bytes = 0; /* of the card */
};

static std::mutex lock;
static std::map<void *, size_t> taken;
static size_t n_taken, n_launches;
static uint32_t n_recordings;
static size_t n_unaccepted; /* descriptions */
static cudaStream_t busy;   /* the stream whose launch nobody has waited for */
static cudaError_t broken = cudaSuccess, last = cudaSuccess;
static thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

static size_t number_of(const char *name, size_t otherwise)
{
    const char *text = std::getenv(name);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

static size_t card_bytes()
{
    static const size_t bytes = number_of("QUERN_CARD_MIB", 140000) * MIB;
    return bytes;
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
    static const char *path = std::getenv("QUERN_CARD_LOG");
    static FILE *file = path != nullptr ? std::fopen(path, "a") : nullptr;
    if (file == nullptr)
        return;
    va_list args;
    va_start(args, format);
    std::vfprintf(file, format, args);
    va_end(args);
    std::fputc('\n', file);
    std::fflush(file);
}

static cudaError_t answer(cudaError_t status)
{
    if (broken != cudaSuccess)
        status = broken;
    if (status != cudaSuccess)
        last = status;
    return status;
}

/* A call that no recording takes. */
static bool is_refused()
{
    return n_recordings > 0 && mode != cudaStreamCaptureModeRelaxed;
}

static cudaError_t issue(cudaStream_t s, std::function<void()> call)
{
    if (broken != cudaSuccess)
        return answer(broken);
    if (s != nullptr && s->into != nullptr && s->into->is_open)
        s->into->calls.push_back(std::move(call));
    else
        call();
    return cudaSuccess;
}

static cudaError_t launch(cudaStream_t s)
{
    static const size_t fails = number_of("QUERN_CARD_FAILS", 0);
    if (++n_launches == fails)
        broken = cudaErrorIllegalAddress;
    if (s == nullptr || s->into != nullptr)
        return answer(cudaSuccess);
    if (busy != nullptr && busy != s)
        broken = STUCK;
    busy = s;
    s->n_launches++;
    return answer(cudaSuccess);
}

using guard = std::lock_guard<std::mutex>;

extern "C" {

/* ---- the card ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int i)
{
    return i == 0 ? cudaSuccess : answer(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceReset(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
    std::memset(p, 0, sizeof *p);
    std::snprintf(p->name, sizeof p->name, "made-up H200");
    p->totalGlobalMem = card_bytes();
    p->major = 9;
    p->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorMemoryAllocation           ? "out of memory"
           : e == cudaErrorIllegalAddress           ? "an illegal memory access was encountered"
           : e == UNACCEPTED                        ? "descriptions of matrices that no kernel has accepted"
           : e == STUCK                             ? "a launch beside that of another stream"
           : e == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
                                                    : "made up";
}

cudaError_t cudaGetLastError(void)
{
    const guard g(lock);
    const cudaError_t was = last;
    last = broken;
    return was;
}

static size_t descriptions_in(const void *from, size_t bytes)
{
    size_t n = 0;
    for (size_t at = 0; at + sizeof(CUtensorMap) <= bytes; at += alignof(CUtensorMap))
        n += ((const CUtensorMap *)((const char *)from + at))->opaque[0] == DESCRIPTION;
    return n;
}

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    std::memset(map, 0, sizeof *map);
    map->opaque[0] = DESCRIPTION;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char *, void **f, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *how)
{
    *f = (void *)encode_tiled;
    *how = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const guard g(lock);
    *all = card_bytes();
    *left = *all - n_taken;
    return answer(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    const guard g(lock);
    const size_t unit = bytes < PAGE_BYTES / 2 ? SHARE_BYTES : PAGE_BYTES, whole = (bytes + unit - 1) / unit * unit;
    note("take %zu", bytes);
    *p = nullptr;
    if (is_refused())
        return answer(cudaErrorStreamCaptureUnsupported);
    if (broken != cudaSuccess || whole > card_bytes() - n_taken)
        return answer(cudaErrorMemoryAllocation);
    void *at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return answer(cudaErrorMemoryAllocation);
    taken[at] = whole;
    *p = at;
    n_taken += whole;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    const guard g(lock);
    const auto found = taken.find(p);
    if (p == nullptr)
        return answer(cudaSuccess);
    note("give back");
    if (found == taken.end() || is_refused())
        return answer(found == taken.end() ? cudaErrorInvalidValue : cudaErrorStreamCaptureUnsupported);
    munmap(p, found->second);
    n_taken -= found->second;
    taken.erase(found);
    return answer(cudaSuccess);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    const guard g(lock);
    note("take %zu of the host", bytes);
    *p = is_refused() ? nullptr : std::calloc(1, bytes);
    return answer(*p != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p)
{
    const guard g(lock);
    if (p != nullptr)
        note("give back to the host");
    std::free(p);
    return answer(cudaSuccess);
}

/* Caches are large: zeros are had by giving the pages back. */
static void fill(void *to, int value, size_t bytes)
{
    const size_t pages = value == 0 && taken.count(to) > 0 ? bytes / HOST_PAGE * HOST_PAGE : 0;
    madvise(to, pages, MADV_DONTNEED);
    std::memset((char *)to + pages, value, bytes - pages);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
    const guard g(lock);
    return issue(s, [=] { fill(to, value, bytes); });
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    const guard g(lock);
    if (kind == cudaMemcpyHostToDevice)
        n_unaccepted += descriptions_in(from, bytes);
    return issue(s, [=] { std::memmove(to, from, bytes); });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    const guard g(lock);
    note("wait for a copy");
    if (is_refused())
        return answer(cudaErrorStreamCaptureUnsupported);
    return issue(nullptr, [=] { std::memmove(to, from, bytes); });
}

/* ---- streams, events, graphs --------------------------------------------------------------------------------------
 */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    const guard g(lock);
    note("take a stream");
    *s = new CUstream_st;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    const guard g(lock);
    busy = busy == s ? nullptr : busy;
    delete s;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    const guard g(lock);
    busy = busy == s ? nullptr : busy;
    note("wait for a stream");
    return answer(s->into != nullptr ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    *e = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    return cudaEventCreate(e);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    const guard g(lock);
    e->of = s->into;
    e->on = s;
    e->n_launches = s->n_launches;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    const guard g(lock);
    if (e->of != nullptr && e->of->is_open)
        s->into = e->of;
    return answer(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    const guard g(lock);
    if (busy != nullptr && busy == e->on && e->n_launches == busy->n_launches)
        busy = nullptr;
    return answer(e->of != nullptr && e->of->is_open ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)
{
    const guard g(lock);
    *ms = MILLISECOND;
    return answer(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *m)
{
    std::swap(*m, mode);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    const guard g(lock);
    if (s->into != nullptr)
        return answer(cudaErrorStreamCaptureUnsupported);
    s->into = std::make_shared<recording>();
    n_recordings++;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const guard g(lock);
    *out = nullptr;
    if (s->into == nullptr)
        return answer(cudaErrorInvalidValue);
    n_recordings--;
    s->into->is_open = false;
    *out = new CUgraph_st{s->into};
    s->into = nullptr;
    return answer(cudaSuccess);
}

/* Up to so many of what one takes; false: there is not enough. */
static bool take_for(cudaGraphExec_t e, size_t halves)
{
    static const size_t half = number_of("QUERN_CARD_GRAPH", 256) * 512;
    const size_t more = halves * half - e->bytes;
    if (more > card_bytes() - n_taken)
        return false;
    e->bytes += more;
    n_taken += more;
    return true;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    const guard g(lock);
    const cudaGraphExec_t e = new CUgraphExec_st{graph->made->calls};
    if (!take_for(e, 1)) {
        delete e;
        return answer(cudaErrorMemoryAllocation);
    }
    *out = e;
    return answer(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    const guard g(lock);
    n_taken -= e->bytes;
    delete e;
    return answer(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    const guard g(lock);
    if (!take_for(e, 2))
        return answer(cudaErrorMemoryAllocation);
    if (n_unaccepted > 0)
        broken = UNACCEPTED;
    const cudaError_t status = launch(s);
    for (const auto &call : e->calls)
        if (status == cudaSuccess)
            issue(s, call);
    return status;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Their names; they are told before this file's own variables are there. */
static std::map<const void *, std::string> &names()
{
    static std::map<const void *, std::string> all;
    return all;
}

void **__cudaRegisterFatBinary(void *)
{
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **)
{
}

void __cudaUnregisterFatBinary(void **)
{
}

char __cudaInitModule(void **)
{
    return 0;
}

void __cudaRegisterFunction(
    void **, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *)
{
    names()[host] = name;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *)
{
    *kernel = nullptr;
    return cudaSuccess;
}

static thread_local cudaStream_t called_on;

unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st *s)
{
    called_on = s;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *s)
{
    *(cudaStream_t *)s = called_on;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t s)
{
    const guard g(lock);
    return launch(s);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *kernel, void **)
{
    const guard g(lock);
    if (n_recordings == 0 && names()[kernel].find("accept_kernel") != std::string::npos)
        n_unaccepted = 0;
    return launch(c->stream);
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_EXECUTION_FAILED ? "the GPU program failed to execute" : "made up";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    static int here;
    *h = (cublasLtHandle_t)&here;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t, cudaDataType_t)
{
    *d = (cublasLtMatmulDesc_t)std::malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    std::free(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType, uint64_t, uint64_t, int64_t)
{
    *l = (cublasLtMatrixLayout_t)std::malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    std::free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = (cublasLtMatmulPreference_t)std::malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    std::free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int most,
    cublasLtMatmulHeuristicResult_t *found, int *n)
{
    std::memset(found, 0, (size_t)most * sizeof *found);
    for (*n = 0; *n < most && *n < 3; ++*n)
        found[*n].algo.data[0] = (uint64_t)*n;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(
    const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *value, size_t bytes, size_t *n)
{
    std::memset(value, 0, bytes);
    *n = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *,
    cublasLtMatmulHeuristicResult_t *r)
{
    std::memset(r, 0, sizeof *r);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
    cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t,
    void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t s)
{
    const guard g(lock);
    return launch(s) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
