/* cuda: the NVIDIA backend. Fills struct ops over one device, one stream, cuBLASLt for matrix products and kernels of
 * our own for the rest; a step of a shape seen before is one graph launch.
 *
 * Weights: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K as they are; F8_E4M3 with a scale per row, of checkpoints
 * that have it (weight.scales) or made from floats when asked (dev_options.fp8); every other type as F16. KV caches:
 * F16, BF16, F8_E4M3 and Q8_0 in heads of 64, 80, 96, 128 or 256 by fast kernels; other heads and F32 by a simple one.
 * Mixtures of experts.
 *
 * Activations are rounded to f16 before a product (bf16 beside BF16 weights, e4m3 per row in F8 products of many rows)
 * and accumulated in f32. Sums are taken in an order that depends on the shape of the batch, so tokens agree with the
 * CPU to rounding, not bit for bit. With dev_options.deterministic every row's sums are taken in an order of its own
 * (law 1 of ops.h): 16-bit float products as one chain over k (flow.cuh, many.cuh, and the library without cut sums),
 * others by one kernel for any number of rows (slim.cuh); attention over cuts at fixed positions, joined ascending, by
 * kernels that give the same bits (attend_chunks.cuh, attend_whole); one or two rows by a resident kernel with the same
 * chains and cuts (resident_chain.cuh). F32 caches and other head sizes go the simple way, which is a row's own anyway.
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

/* The cards of this machine from 0 on, of which the first is used: "NVIDIA H200", its memory, compute capability as 90
 * for 9.0, multiprocessors. False behind the last. */
struct cuda_card {
    char name[128];
    uint64_t memory_bytes;
    uint32_t capability, n_units;
};
bool cuda_describe(uint32_t i, struct cuda_card *out);
/* Bytes free on it now, 0 where that cannot be known. Asking a card that is not used takes some tenths of a second. */
uint64_t cuda_memory_free(uint32_t i);

/* The card's limits, measured on it in about a second; 0 where there was no memory for it. */
struct cuda_limits {
    double read_bytes_s, bf16_ops_s, f8_ops_s;
};
void cuda_measure(struct dev *d, struct cuda_limits *out);

/* Whether steps of few rows that are recorded from now on may be one kernel (resident.h). At first they may. */
void cuda_allow_resident(bool allow);
/* Whether attention of many rows may use the warpgroup's matrix unit (attend_wide.cu). At first it may. */
void cuda_allow_wide(bool allow);

/* Which kernels make products from now on, for measuring them against each other: those that the table of products.cu
 * names, or one kind wherever it can. */
enum cuda_way {
    CUDA_WAY_TABLE,
    CUDA_WAY_SKINNY,
    CUDA_WAY_SLIM,
    CUDA_WAY_LIBRARY,
    CUDA_WAY_FLOW,
    CUDA_WAY_EVEN,
    CUDA_WAY_MANY,
};
void cuda_prefer(enum cuda_way way);
/* For tests: how often many.cuh's kernel was launched so far, or recorded; and resident_several.cuh's. */
uint64_t cuda_many_launches(void);
uint64_t cuda_several_launches(void);

/* For tests: devices that are opened from now on choose, of the library's algorithms for a product, the last that works
 * instead of the fastest, and need no clock for it. */
void cuda_choose_last(bool on);

#ifdef __cplusplus
}
#endif

#endif
