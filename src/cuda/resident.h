/* A decode step of few rows as one kernel that stays on the chip from the first layer to the last.
 *
 * At one row a step is a stream of weights, and between kernels that stream stands still for some microseconds while
 * the next one starts, reads its activations and asks for its first bytes. Weights depend on nothing, so here one warp
 * of each block asks for them ahead, over the ends of products and of layers, into a ring in shared memory; a barrier
 * over the chip stands between one op and the next, and the ring is full when it opens.
 *
 * How it comes about: while a step of few rows is recorded, ops whose work it can do are not launched but written down
 * as phases (resident_norm, resident_product, resident_attend return true); whatever launches something else closes the
 * collection first, which launches the kernel. So the ops' contract and their order stay what they are.
 *
 * There are two.
 *   One or two rows, to the logits (resident.cuh): BF16, F16 or F8 matrices throughout, or a mix of Q8, Q4, Q4K and
 *   Q6K; heads of 64 and 128 in a 16-bit cache, eight query heads a kv head at most. With --deterministic BF16 or F16,
 *   by a kernel that gives the bits that the ops give (resident_chain.cuh).
 *   3 to EVEN_MOST rows, between the first norm and the last (resident_several.cuh): BF16 matrices that even.cuh takes,
 *   such heads in a BF16 cache. With --deterministic not at all.
 * A model with anything else runs op by op. */
#ifndef CUDA_RESIDENT_H
#define CUDA_RESIDENT_H

#include "cuda/attend.cuh"
#include "cuda/skinny.h"

#define RESIDENT_ROWS   2   /* of a step, for the first of the two */
#define RESIDENT_PHASES 896 /* of one step: five a layer of 128, with room for matrices that do not lie together */
#define RESIDENT_PAD    256 /* activation rows end at a multiple of so many elements; no stage is shorter */
#define RESIDENT_SUMS   256 /* stages of all rows whose sums lie in shared memory */
#define RESIDENT_SLOTS  32  /* of the ring, at most */
#define RESIDENT_HEADS  8   /* query heads of a kv head */
#define CHAIN_WARPS     8   /* that multiply where sums are chains; the ring has as many slots at least */

enum phase_kind { PHASE_PRODUCT, PHASE_ATTEND };

struct phase {
    enum phase_kind kind;
    enum format format;
    /* A product's rows are the normalised rows of x, or job.act where x is NULL. */
    const float *x, *gain;
    const uint32_t *rows; /* which rows of x; NULL = all */
    float eps;
    uint32_t next_product; /* the next phase that is one */
    bool is_end_steady;    /* a product: the phase before changes nothing that its end reads */
    uint32_t maker;        /* RESIDENT_SEVERAL, where x is not NULL: the phase that adds to it last */
    union {
        struct skinny_job job;
        struct attend_job attend;
    };
};

/* How the attention that was collected is to be cut. */
struct cut resident_cut(const struct dev *d, const struct attend_job *j);

struct resident_args {
    const struct phase *program;
    uint32_t n, first_product, first_attend;
    uint32_t n_seqs;
    uint32_t n_slots;    /* of the ring: as many as there are warps, or more */
    uint32_t slot_bytes; /* of one: the largest stage of the formats that occur */
    uint32_t room_bytes; /* of the activations, or of what warps join in */
    uint32_t *barrier;   /* zero between kernels */
};

/* Elements that an activation row of n takes. */
__host__ __device__ inline uint32_t resident_width(uint32_t n)
{
    return (n + RESIDENT_PAD - 1) / RESIDENT_PAD * RESIDENT_PAD;
}

/* The kernels, one for each set of formats, and two of --deterministic. */
enum resident_set {
    RESIDENT_BF16,
    RESIDENT_F16,
    RESIDENT_F8,
    RESIDENT_QUANT,
    RESIDENT_CHAIN_BF16,
    RESIDENT_CHAIN_F16,
    RESIDENT_SEVERAL,
    RESIDENT_SETS,
};

/* Bytes of an activation row of n; beside whole numbers 8 for each 32 (resident_whole.cuh). */
__host__ __device__ inline uint32_t resident_row_bytes(enum resident_set set, uint32_t n)
{
    const uint32_t width = resident_width(n);
    return width * 2 + (set == RESIDENT_QUANT ? width / 32 * 8 : 0);
}

/* Threads of a block in which so many warps multiply: the one that carries, and those that end, are a group of four,
 * whose registers the others get. */
__host__ __device__ constexpr uint32_t resident_threads(uint32_t warps)
{
    return (warps + 4) * 32;
}

/* Registers of eight warps that multiply, and of the group of four. No more together than the launch gives, 168 a
 * thread: who asks for more waits for ever. */
#define RESIDENT_WORK_REGISTERS  216
#define RESIDENT_OTHER_REGISTERS 72
static_assert(8 * RESIDENT_WORK_REGISTERS + 4 * RESIDENT_OTHER_REGISTERS <= 12 * 168, "as many as there are");

/* How many warps multiply; and the bytes of a format's stage. */
uint32_t resident_warps(enum resident_set set);
uint32_t resident_slot_bytes(enum format format);
void resident_run_plain(struct dev *d, enum resident_set set, size_t shared, const struct resident_args *a);
void resident_run_bytes(struct dev *d, size_t shared, const struct resident_args *a);
void resident_run_quant(struct dev *d, size_t shared, const struct resident_args *a);
void resident_run_chain(struct dev *d, enum resident_set set, size_t shared, const struct resident_args *a);
uint32_t resident_chain_room(void); /* bytes that attention needs where the activations lie */

/* resident_several.cu. A phase as that kernel has it, in bytes, and how its program is aligned; the bytes in device
 * memory for rows of n that are to be normalised; how attention is cut; phases made into a program in host memory,
 * false on failure, which is noted; the program of n phases in a place where another was, which every multiprocessor is
 * told, before the first launch; and the launch. */
#define RESIDENT_SEVERAL_ALIGN 128
size_t resident_several_bytes(void);
size_t resident_several_room(uint32_t n);
struct cut resident_several_cut(const struct dev *d, const struct attend_job *j);
bool resident_several_program(struct dev *d, const struct phase *phases, uint32_t n, void *room, void *program);
void resident_several_accept(struct dev *d, const void *program, uint32_t n);
void resident_run_several(struct dev *d, uint32_t n_rows, uint32_t head_dim, const void *program, uint32_t n,
    uint32_t first_attend, uint32_t *barrier);

#endif
