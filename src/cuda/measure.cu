/* What the card can do at most, measured: the numbers that benchmarks give their shares of. */
extern "C" {
#include "base/mem.h"
}
#include "cuda/kernels.cuh"

#define SWEEP_BYTES ((size_t)4 << 30)
#define SIDE        8192u /* of the square product */
#define ROUNDS      10

__global__ static void read_kernel(const uint4 *from, size_t n, uint32_t *out)
{
    uint32_t all = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = load_once(from + i), b = load_once(from + i + step);
        const uint4 c = load_once(from + i + 2 * step), e = load_once(from + i + 3 * step);
        all ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ e.x ^ e.y ^ e.z ^ e.w;
    }
    if (all == 0x12345678u)
        *out = all;
}

/* Random bits, of which every 16 are a bf16 between 1/2 and 2 in size, and every 8 an e4m3 of no extreme. */
__global__ static void noise_kernel(uint32_t *to, size_t n, uint32_t keep, uint32_t set)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u;
        x = (x ^ x >> 15) * 0x2c1b3c6du;
        x ^= x >> 13;
        to[i] = (x & keep) | set;
    }
}

void cuda_noise(struct dev *d, void *to, size_t bytes, bool f8)
{
    noise_kernel<<<1024, 256, 0, d->stream>>>(
        (uint32_t *)to, bytes / 4, f8 ? 0x9f9f9f9fu : 0x80ff80ffu, f8 ? 0x20202020u : 0x3f003f00u);
    CUDA_DO(d, cudaGetLastError());
}

static double seconds_of(struct dev *d, cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0.0f;
    CUDA_DO(d, cudaEventSynchronize(to));
    CUDA_DO(d, cudaEventElapsedTime(&ms, from, to));
    return ms > 0.0f ? ms / 1e3 : 1e9;
}

static double measure_read(struct dev *d, cudaEvent_t from, cudaEvent_t to)
{
    void *p = NULL;
    if (cudaMalloc(&p, SWEEP_BYTES) != cudaSuccess) {
        cudaGetLastError();
        return 0.0;
    }
    noise_kernel<<<4096, 256, 0, d->stream>>>((uint32_t *)p, SWEEP_BYTES / 4, ~0u, 0);
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        CUDA_DO(d, cudaEventRecord(from, d->stream));
        read_kernel<<<d->n_sms * 8, 512, 0, d->stream>>>((const uint4 *)p, SWEEP_BYTES / 16, (uint32_t *)p);
        CUDA_DO(d, cudaEventRecord(to, d->stream));
        const double s = seconds_of(d, from, to);
        best = s < best ? s : best;
    }
    CUDA_DO(d, cudaFree(p));
    return (double)SWEEP_BYTES / best;
}

/* Operations a second of a square product in bf16, or of one in e4m3 with scales. */
static double measure_product(struct dev *d, bool f8, cudaEvent_t from, cudaEvent_t to)
{
    const size_t bytes = (size_t)SIDE * SIDE * 2;
    void *p = NULL;
    if (cudaMalloc(&p, 3 * bytes + 2 * SIDE * sizeof(float)) != cudaSuccess) {
        cudaGetLastError();
        return 0.0;
    }
    unsigned char *w = (unsigned char *)p, *a = w + bytes, *out = a + bytes;
    float *scales = (float *)(out + bytes);
    cuda_noise(d, w, 2 * bytes, f8);
    noise_kernel<<<16, 256, 0, d->stream>>>((uint32_t *)scales, 2 * SIDE, 0, 0x3f800000u);
    double best = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        CUDA_DO(d, cudaEventRecord(from, d->stream));
        cuda_square_product(d, f8, SIDE, w, a, scales, out);
        CUDA_DO(d, cudaEventRecord(to, d->stream));
        const double s = seconds_of(d, from, to);
        best = s < best ? s : best;
    }
    CUDA_DO(d, cudaFree(p));
    return 2.0 * SIDE * SIDE * SIDE / best;
}

extern "C" void cuda_measure(struct dev *d, struct cuda_limits *out)
{
    cudaEvent_t from, to;
    CUDA_DO(d, cudaEventCreate(&from));
    CUDA_DO(d, cudaEventCreate(&to));
    out->read_bytes_s = measure_read(d, from, to);
    out->bf16_ops_s = measure_product(d, false, from, to);
    out->f8_ops_s = d->capability >= 90 ? measure_product(d, true, from, to) : 0.0;
    CUDA_DO(d, cudaEventDestroy(from));
    CUDA_DO(d, cudaEventDestroy(to));
}
