/* See made_up_device.h. The CPU backend's memory and weights, and none of its arithmetic. Logits are the last op of a
 * step, so there the step's time begins, behind that of the step before. What is asked of it is kept until somebody
 * waits for the answer: so drawing tokens costs the loop nothing, as on a card. */
#include "made_up_device.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/rng.h"
#include "cpu/cpu.h"

#include <string.h>

#define ASKS_MAX 4096u

static struct {
    struct ops table;
    struct clock clock;
    uint64_t step_ns, busy_until_ns, done_ns[2];
    struct sample_ask asks[ASKS_MAX];
    const uint64_t *masks;
    uint32_t n_asks, n;
} made_up;

/* ---- nothing is computed ---- */

static void skip_embed(struct dev *d, const struct batch *b, const struct embed_args *a)
{
    (void)d, (void)b, (void)a;
}

static void skip_norm(struct dev *d, const struct norm_args *a)
{
    (void)d, (void)a;
}

static void skip_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    (void)d, (void)b, (void)kv, (void)a;
}

static void skip_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a)
{
    (void)d, (void)b, (void)kv, (void)a;
}

static void skip_project(struct dev *d, const struct batch *b, const struct project_args *a)
{
    (void)d, (void)b, (void)a;
}

static void skip_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a)
{
    (void)d, (void)b, (void)a;
}

static void skip_argmax(struct dev *d, const struct argmax_args *a)
{
    (void)d, (void)a;
}

static void skip_moves(struct dev *d, const struct move_blocks_args *a)
{
    (void)d, (void)a;
}

static void skip_tokens(struct dev *d, int32_t *token, uint32_t n_rows, const uint32_t *from, uint32_t n)
{
    (void)d, (void)token, (void)n_rows, (void)from, (void)n;
}

static void take_time(struct dev *d, const struct logits_args *a)
{
    (void)d, (void)a;
    made_up.busy_until_ns = MAX(made_up.busy_until_ns, clock_now(&made_up.clock)) + made_up.step_ns;
}

/* ---- choosing ---- */

static void keep_asks(struct dev *d, const struct sample_args *a)
{
    (void)d;
    assert(a->n_asks <= ASKS_MAX);
    memcpy(made_up.asks, a->asks, a->n_asks * sizeof *a->asks);
    made_up.masks = a->masks;
    made_up.n_asks = a->n_asks;
    made_up.n = a->n;
}

/* The first allowed id from a drawn one on. */
static uint32_t draw(const struct sample_ask *k)
{
    const uint32_t n = made_up.n, words = (n + 63) / 64;
    const uint64_t x = rng_u64((struct rng_key){.seed = k->seed, .index = k->index, .purpose = RNG_DUMMY});
    const uint32_t id = (uint32_t)(x % n);
    if (k->mask == SAMPLE_NO_MASK)
        return id;
    const uint64_t *mask = made_up.masks + (size_t)k->mask * words;
    for (uint32_t i = 0; i <= words; i++) {
        const uint32_t at = (id / 64 + i) % words;
        const uint64_t left = i == 0 ? mask[at] >> id % 64 << id % 64 : mask[at];
        if (left != 0)
            return at * 64 + (uint32_t)__builtin_ctzll(left);
    }
    return UINT32_MAX;
}

static void note_fetch(struct dev *d, uint32_t side, const void *from, size_t bytes)
{
    (void)d, (void)from, (void)bytes;
    made_up.done_ns[side] = made_up.busy_until_ns;
}

static enum err wait_and_draw(struct dev *d, uint32_t side, void *to, size_t bytes, struct error *e)
{
    const uint64_t now = clock_now(&made_up.clock);
    struct sample_got *got = to;
    (void)d, (void)e;
    if (now < made_up.done_ns[side])
        clock_sleep(&made_up.clock, made_up.done_ns[side] - now);
    memset(to, 0, bytes);
    for (uint32_t i = 0; i < made_up.n_asks && (i + 1) * sizeof *got <= bytes; i++)
        got[i].id = draw(&made_up.asks[i]);
    return OK;
}

const struct ops *made_up_ops(uint64_t step_ns)
{
    struct ops *t = &made_up.table;
    clock_init(&made_up.clock);
    made_up.step_ns = step_ns;
    *t = *cpu_ops();
    t->name = "made up";
    t->host_workers = NULL;
    t->host_run = NULL;
    t->embed = skip_embed;
    t->norm = skip_norm;
    t->qkv = skip_qkv;
    t->attend = skip_attend;
    t->project = skip_project;
    t->gate_up = skip_gate_up;
    t->argmax = skip_argmax;
    t->move_blocks = skip_moves;
    t->logits = take_time;
    t->sample = keep_asks;
    t->tokens_take = skip_tokens;
    t->fetch = note_fetch;
    t->fetched = wait_and_draw;
    return t;
}
