/* cuda: the NVIDIA backend. Fills struct ops over one device, one stream, cuBLASLt for matrix products and kernels of
 * our own for the rest; a step of a shape seen before is one graph launch.
 *
 * What it computes now: dense models with F32, F16 or BF16 weights, KV caches in the same types. Activations are
 * rounded to the weight's type before a product and accumulated in f32; sums are taken in an order that depends on the
 * shape of the batch, so tokens agree with the CPU to rounding, not bit for bit.
 *
 * Errors: every CUDA call is checked; the first failure is kept and comes out of dev_wait for ever after.
 *
 * Threads: one thread drives a device. */
#ifndef CUDA_CUDA_H
#define CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "tensor/ops.h"

/* The table; NULL when this process has no usable device (no driver, no card, too old), with the reason in *why. */
const struct ops *cuda_ops(const char **why);

/* What device 0 is: "NVIDIA H200", its memory and compute capability as 90 for 9.0. False without a device. */
struct cuda_description {
    char name[128];
    uint64_t memory_bytes;
    uint32_t capability;
};
bool cuda_describe(struct cuda_description *out);

/* The card's limits, measured on it in about a second; 0 where there was no memory for it. */
struct cuda_limits {
    double read_bytes_s, bf16_ops_s, f8_ops_s;
};
void cuda_measure(struct dev *d, struct cuda_limits *out);

#ifdef __cplusplus
}
#endif

#endif
