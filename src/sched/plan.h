/* A plan: what one step of the model is to do. Plain bytes: offsets, no pointers, version and size first, so that it
 * can be recorded, replayed, or sent to another process. sched writes it, a runner reads it, neither knows the other.
 *
 * The order of doing: evictions, swaps out, restores and swaps in, copies, then the rows. Evictions and restores are of
 * prefixes that go to the host and come back (kv.h's tier); nothing in flight touches their blocks. Copies are of
 * device blocks (copy on write), and may be of blocks that have just come in. There may be no rows at all, only copies.
 *
 * A row's token is an id, or PLAN_TOKEN_FLYING: the token that the step before is choosing for this slot, which the
 * runner gathers itself, since nobody has read it yet (depth 1).
 *
 * Threads: belongs to whoever holds it. */
#ifndef SCHED_PLAN_H
#define SCHED_PLAN_H

#include "base/base.h"
#include "kv/kv.h"
#include "sample/sample.h"

#define PLAN_VERSION      2u
#define PLAN_TOKEN_FLYING (-1)
#define PLAN_NO_WRITE     UINT32_MAX /* KV_SLOT_NONE */

/* The rows of one sequence: contiguous, at ascending consecutive positions. */
struct plan_seq {
    uint32_t slot; /* the scheduler's slot of the sequence */
    uint32_t adapter;
    uint32_t first_row, n_rows;
    uint32_t first_pos;
    uint32_t n_kv; /* positions that exist after this step's writes */
    uint32_t table_at, n_table;
    uint32_t n_spec;           /* how many of the rows, at the end, are guesses */
    uint32_t first_out, n_out; /* rows that want logits, as indices into out_row; 0 rows for a chunk in mid-prompt */
    uint32_t samples;          /* 1: a token is chosen from the last output row, or from as many of the last n_spec + 1
                                  as its guesses hold */
};

struct plan {
    uint32_t version, bytes; /* of all of it */
    uint64_t step;           /* 1, 2, 3...: also the fence number */
    uint64_t now_ns;
    uint32_t depth; /* 1 = planned before the step before was read */
    uint32_t n_rows, n_seqs, n_table, n_out, n_copies, n_out_copies, n_in_copies, n_evictions, n_restores;
    uint32_t rows_max, seqs_max, table_max, copies_max; /* capacities it was made with */
    /* byte offsets from the start of the struct */
    uint32_t at_token, at_pos, at_seq_of_row, at_kv_slot, at_out_row, at_seqs, at_table, at_copies, at_out_copies,
        at_in_copies, at_evictions, at_restores;
};

enum err plan_new(uint32_t rows_max, uint32_t seqs_max, uint32_t table_max, uint32_t copies_max, struct plan **out,
    struct error *e) MUST_CHECK;
void plan_free(struct plan *p);
void plan_reset(struct plan *p);

/* Whole and inside its own bytes? For plans that come from a file or another process. */
enum err plan_check(const struct plan *p, size_t bytes, struct error *e) MUST_CHECK;

#define PLAN_ARRAY(type, name, at)                                                                                     \
    static inline type *name(const struct plan *p)                                                                     \
    {                                                                                                                  \
        return (type *)(void *)((unsigned char *)(uintptr_t)p + p->at);                                                \
    }
PLAN_ARRAY(int32_t, plan_token, at_token)            /* [n_rows] */
PLAN_ARRAY(uint32_t, plan_pos, at_pos)               /* [n_rows] */
PLAN_ARRAY(uint32_t, plan_seq_of_row, at_seq_of_row) /* [n_rows] index into plan_seqs */
PLAN_ARRAY(uint32_t, plan_kv_slot, at_kv_slot)       /* [n_rows] block * block_tokens + offset, or PLAN_NO_WRITE */
PLAN_ARRAY(uint32_t, plan_out_row, at_out_row)       /* [n_out] rows, ascending */
PLAN_ARRAY(struct plan_seq, plan_seqs, at_seqs)      /* [n_seqs] */
PLAN_ARRAY(uint32_t, plan_table, at_table)           /* [n_table] block ids */
PLAN_ARRAY(struct kv_copy, plan_copies, at_copies)   /* [n_copies] device to device */
PLAN_ARRAY(struct kv_copy, plan_out_copies, at_out_copies) /* [n_out_copies] device to host */
PLAN_ARRAY(struct kv_copy, plan_in_copies, at_in_copies)   /* [n_in_copies] host to device */
PLAN_ARRAY(struct kv_copy, plan_evictions, at_evictions)   /* [n_evictions] device to host */
PLAN_ARRAY(struct kv_copy, plan_restores, at_restores)     /* [n_restores] host to device */
#undef PLAN_ARRAY

/* Nothing to do. */
static inline bool plan_is_empty(const struct plan *p)
{
    return (p->n_rows | p->n_copies | p->n_out_copies | p->n_in_copies | p->n_evictions | p->n_restores) == 0;
}

#define STEP_ID_NONE UINT32_MAX /* the row had nothing to choose from (NaN, empty mask) */
#define STEP_ID_OVER                                                                                                   \
    (UINT32_MAX - 1) /* the grammar's text is complete, nothing may follow, and no end token may be chosen */

/* What came of one sampling sequence of a step; filled by the runner in the order of plan_seqs that sample. Slots that
 * had ended before sampling may be left out. A sequence with n_spec guesses has 1 to n_spec + 1 of them in a row: the
 * guesses that were right, then the token chosen behind the last of those. */
struct step_token {
    uint32_t slot;
    uint32_t id; /* or STEP_ID_* */
    float logprob;
    uint32_t n_top;
    struct token_logprob *top; /* the runner's room, valid until the step after the next */
};

/* What an output row that samples nothing says about the prompt: the token behind it. */
struct step_prompt {
    uint32_t slot;
    uint32_t pos; /* of the token: the row's position + 1 */
    float logprob;
    uint32_t rank; /* 1 = most likely */
    uint32_t n_top;
    struct token_logprob *top;
};

/* Hidden states of consecutive prompt rows of a sequence whose request pools them. */
struct step_pool {
    uint32_t slot;
    uint32_t pos, n_rows; /* of the first row; how many */
    const float *rows;    /* [n_rows][n_hidden] */
};

struct step_result {
    uint64_t step;
    uint64_t cost_ns;      /* measured: what the step took */
    uint64_t mask_wait_ns; /* and how long sample slept until others had made its masks */
    uint32_t n;
    struct step_token *tokens;
    uint32_t n_prompts; /* the engine writes them into the request before it commits */
    struct step_prompt *prompts;
    uint32_t n_pools; /* likewise */
    struct step_pool *pools;
};

#endif
