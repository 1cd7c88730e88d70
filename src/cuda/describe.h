/* The line that names a card and the kernels that a model takes on it: ops.describe. What is so is found out in
 * describe.cu; how it reads is plain C (describe.c), which is tested without a card. */
#ifndef CUDA_DESCRIBE_H
#define CUDA_DESCRIBE_H

#include "cuda/cuda.h"

#define DESCRIBED_WAYS 8 /* kernels that products of growing numbers of rows may take, one after the other */

struct described {
    struct cuda_card card;
    uint32_t resident_from, resident_to; /* rows of steps that are one kernel; 0 and 0: none are */
    const char *format;                  /* of the matrix that stands for the others */
    struct {
        uint32_t to; /* rows */
        const char *by;
    } product[DESCRIBED_WAYS];
    uint32_t n_products;
    uint32_t many_from;           /* rows from which gate and up may be many.cuh's; 0 = never */
    bool has_experts;             /* which are skinny.cuh's */
    const char *decode, *prompts; /* attention's kernels */
    uint32_t head_dim;
    const char *cache;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Products of n_rows rows, which are more than those of the call before, are made by that kernel. */
void described_add(struct described *r, uint32_t n_rows, const char *by);
void described_text(const struct described *r, char out[DESCRIBE_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
