/* The GPUs of this machine, as quern plan lists them.
 *
 * Threads: the main thread. */
#ifndef CLI_GPUS_H
#define CLI_GPUS_H

#include "cli/out.h"
#include "cuda/cuda.h"

/* Where they come from: see cuda.h. Of a quern that was built without CUDA nothing is known: all NULL. */
struct gpus {
    bool (*describe)(uint32_t i, struct cuda_card *out);
    uint64_t (*memory_free)(uint32_t i);
    const char *why; /* the first is not used, where that is not by choice; else NULL */
    bool is_used;    /* the first */
};

/* ops: what was taken. */
void gpus_find(struct gpus *g, const struct ops *ops);

/* A line each, or one that says why there is none; and as an array. */
void gpus_print_text(const struct gpus *g, struct out *out);
void gpus_print_json(const struct gpus *g, struct out *out);

#endif
