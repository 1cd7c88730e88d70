/* Private to the model's runner: its rows and its memory, and what runner.c and runner_ahead.c share. */
#ifndef ENGINE_RUNNER_INT_H
#define ENGINE_RUNNER_INT_H

#include "base/clock.h"
#include "engine/choose.h"
#include "engine/masks.h"
#include "engine/runner.h"
#include "model/model.h"

struct row_job { /* one output row; the first of a sequence with guesses stands for all */
    const struct plan_seq *seq;
    bool samples, has_mask;
    struct row_mask mask; /* of its first row, when it was made before the rows were there */
    uint32_t mask_row;    /* its place among those; behind it those of its guesses, where the device chooses */
    uint32_t n_masks;
    const float *logits; /* where they were fetched to; NULL: they lie where the device has them */
    uint32_t i;          /* into the tokens or the prompts of the result; tokens of guesses follow */
    uint32_t pos;
    uint32_t first_ask, n_asks; /* of its tokens, when the device chooses */
    uint32_t none;              /* of each row: what it means that nothing could be chosen */
    struct slot_view view;
};

#define SLOT_UNUSED UINT32_MAX
#define FETCH_ROWS  16 /* rows that are chosen from at once, while as many are on their way */

struct model_runner {
    struct runner base;
    struct decoder *d;
    struct runner_limits l;
    uint32_t vocab, n_host_blocks, n_workers;
    uint64_t block_bytes;
    unsigned char *host; /* [n_host_blocks][block_bytes]; the device copies from and to it */
    struct batch_seq *seqs;
    uint32_t *src, *dst;       /* [copies_max] */
    struct sampler **samplers; /* [n_workers] */
    uint64_t *masks;           /* [out_max][mask_words] */
    uint32_t mask_words;
    unsigned char *walks; /* [n_workers][walk_bytes]: for the grammars of sequences with guesses */
    unsigned char *later; /* [out_max][walk_bytes]: where they stand behind each guess, for a device that chooses */
    size_t walk_bytes;
    struct masks *beside;  /* NULL where logits need not be fetched */
    uint64_t *beside_room; /* the device copies them from there; NULL where it does not choose */
    float *fetched;        /* [2][FETCH_ROWS][vocab] */
    uint32_t chunk[2][FETCH_ROWS];
    float *row;           /* [vocab], for rows behind a guess */
    struct row_job *jobs; /* [out_max] */
    uint32_t n_jobs;
    bool wants_best;
    uint32_t *best;              /* [out_max] */
    const struct plan *plan;     /* while its rows are sampled */
    struct step_token *tokens;   /* [out_max]; slot SLOT_UNUSED: behind a wrong guess */
    struct step_prompt *prompts; /* [out_max] */
    struct token_logprob *token_top, *prompt_top;
    uint32_t n_tokens, n_prompts, n_pools;
    uint32_t n_hidden;
    float *hidden;           /* [rows_max][n_hidden]; pages that no request for a vector has touched cost nothing */
    struct step_pool *pools; /* [seqs_max] */
    struct clock clock;
    uint64_t start_ns, cost_ns, step, mask_wait_ns;
    struct ahead *ahead; /* runner_ahead.c; NULL on a device that is waited for */
};

static inline struct model_runner *model_runner_of(struct runner *r)
{
    return (struct model_runner *)(void *)r;
}

/* runner.c. forward runs the plan with these tokens, which are the plan's but for those that nobody has read. */
enum err runner_forward(
    struct model_runner *m, const struct plan *p, const int32_t *token, bool wants_best, struct error *e) MUST_CHECK;
bool runner_all_greedy(const struct plan *p, const struct slots *slots);
void runner_make_jobs(struct model_runner *m, const struct plan *p, const struct slots *slots);
const uint32_t *runner_guesses(const struct plan *p, const struct plan_seq *s); /* [n_spec] */
bool runner_is_guessed(const struct plan *p, const struct plan_seq *s, uint32_t i, uint32_t id);
/* Everything that is wanted of output row `out`, and of those of guesses behind it, by the host: fetched, chosen. */
enum err runner_choose_here(struct model_runner *m, uint32_t out, struct error *e) MUST_CHECK;
void runner_make_masks(struct model_runner *m); /* of all rows with a grammar, by several threads */
void runner_take_best(struct model_runner *m);
void runner_drop_unused(struct model_runner *m);
enum err runner_read_pools(
    struct model_runner *m, const struct plan *p, const struct slots *slots, struct error *e) MUST_CHECK;
void runner_result(const struct model_runner *m, const struct plan *p, struct step_result *out);

void model_runner_close(struct model_runner *m);

/* runner_ahead.c: a runner one step ahead of its device. */
extern const struct runner_ops runner_ahead_ops;
enum err runner_ahead_open(struct model_runner *m, struct error *e) MUST_CHECK;
void runner_ahead_close(struct model_runner *m);

#endif
