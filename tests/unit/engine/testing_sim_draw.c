/* Drawing the machine and the load of a history; see testing_sim.h. */
#include "testing_sim.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>

uint64_t dice_u64(struct dice *d)
{
    return rng_u64((struct rng_key){.seed = d->seed, .index = d->n++, .purpose = RNG_DUMMY});
}

uint32_t dice_below(struct dice *d, uint32_t n)
{
    return (uint32_t)(dice_u64(d) % n);
}

double dice_unit(struct dice *d)
{
    return (double)(dice_u64(d) >> 11) * 0x1p-53;
}

bool dice_one_in(struct dice *d, uint32_t n)
{
    return dice_below(d, n) == 0;
}

double dice_exp(struct dice *d, double mean)
{
    return -mean * log(1.0 - dice_unit(d));
}

uint32_t dice_log(struct dice *d, uint32_t low, uint32_t high)
{
    if (high <= low)
        return low;
    const double x = exp(log((double)low) + dice_unit(d) * (log((double)high + 1.0) - log((double)low)));
    return MIN(high, MAX(low, (uint32_t)x));
}

#define PICK(d, ...)                                                                                                   \
    ((const double[]){__VA_ARGS__}[dice_below(d, (uint32_t)(sizeof((const double[]){__VA_ARGS__}) / 8))])

static void draw_policies(struct sim_config *c, struct dice *d)
{
    struct sched_options *const s = &c->sched;
    const uint64_t n = c->seed;
    s->batching = (enum batching)(n % 5);
    s->order = (enum queue_order)(n / 5 % 5);
    s->admission = (enum admission)(n / 25 % 2);
    s->preempt = (enum preempt_mode)(n / 50 % 3);
    c->fake.depth = (uint32_t)(n / 150 % 2);
    s->interval = 1 + dice_below(d, 20);
    s->ratio = PICK(d, 0.1, 0.5, 1.0, 3.0);
    s->prefill_first_max_steps = 1 + dice_below(d, 8);
    s->vtc_input_weight = PICK(d, 1.0, 0.5);
    s->vtc_output_weight = PICK(d, 1.0, 2.0);
    s->watermark = PICK(d, 0.0, 0.01, 0.1);
    s->chunk_max = dice_one_in(d, 3) ? 1 + dice_below(d, 64) : 0;
    s->preempt_every = dice_one_in(d, 4) ? 2 + dice_below(d, 30) : 0;
    s->prefix_cache = !dice_one_in(d, 4);
}

static void draw_machine(struct sim_config *c, struct dice *d)
{
    struct sched_options *const s = &c->sched;
    s->max_num_seqs = (uint32_t)PICK(d, 1, 2, 4, 8, 16);
    const uint32_t budget = (uint32_t)PICK(d, 1, 4, 16, 64, 256, 512), outs = (uint32_t)PICK(d, 1, 16, 64);
    s->max_batched_tokens = MAX(s->max_num_seqs, budget);
    s->out_max = MAX(s->max_num_seqs, outs);
    s->context_max = (uint32_t)PICK(d, 48, 100, 256, 400);
    s->block_tokens = dice_one_in(d, 4) ? 32 : 16;
    s->queue_max = (uint32_t)PICK(d, 4, 12, 40);
    s->queue_tokens_max = dice_one_in(d, 3) ? 4ull * s->context_max : 1000000;
    s->wait_max_ns = dice_one_in(d, 3) ? (uint64_t)PICK(d, 2, 20, 100) * NS_PER_S : 0;
    s->pause_max_ns = (uint64_t)PICK(d, 1, 5, 30) * NS_PER_S;
    s->tenants_max = SIM_TENANTS_MAX;
    s->tenant_queue_share = PICK(d, 1.0, 1.0, 0.5);
    const uint32_t one = (s->context_max + s->block_tokens - 1) / s->block_tokens;
    const uint32_t all = one * s->max_num_seqs;
    c->kv = (struct kv_options){.n_blocks = one + dice_log(d, 1, all + all / 2) + 1,
        .n_host_blocks = dice_one_in(d, 3) ? 0 : dice_log(d, 1, 2 * all),
        .block_tokens = s->block_tokens,
        .seqs_max = 2 * s->max_num_seqs,
        .seq_blocks_max = one + 1,
        .prefix_cache = s->prefix_cache};
    if (dice_one_in(d, 8)) /* some requests that the context allows can never run */
        c->kv.n_blocks = one / 2 + 1;
    c->fake.vocab = SIM_VOCAB;
    c->fake.eos_id = 3;
    c->fake.eos_every = (uint32_t)PICK(d, 0, 20, 100);
    c->fake.check_kv = true;
    c->fake.base_ns = (uint64_t)(PICK(d, 100, 200, 500, 1000) * (double)NS_PER_MS);
    c->fake.row_ns = c->fake.base_ns / (uint64_t)PICK(d, 2, 20, 200);
    c->fake.row_context_ns = (double)c->fake.row_ns * PICK(d, 0.0, 0.001, 0.01);
    c->fake.swap_ns_per_block = (double)c->fake.base_ns * PICK(d, 0.01, 0.5);
    s->swap_ns_per_block = c->fake.swap_ns_per_block;
    s->itl_target_ns = dice_one_in(d, 3) ? (uint64_t)((double)c->fake.base_ns * PICK(d, 0.5, 2.0, 5.0)) : 0;
    s->itl_factor = PICK(d, 0, 1.5, 3.0);
    c->requests_max = dice_one_in(d, 4) ? 3 + dice_below(d, 6) : 2 * (s->queue_max + s->max_num_seqs);
}

static void draw_load(struct sim_config *c, struct dice *d)
{
    c->n_tenants = 1 + dice_below(d, SIM_TENANTS_MAX);
    c->n_clients = 1 + dice_below(d, SIM_CLIENTS_MAX);
    for (uint32_t i = 0; i < SIM_TENANTS_MAX; i++)
        c->weights[i] = PICK(d, 1.0, 1.0, 2.0, 0.5);
    c->load = PICK(d, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5);
    c->day_s = PICK(d, 600, 3600);
    c->burst = PICK(d, 1, 1, 3, 10);
    c->mean_prompt = c->sched.context_max * PICK(d, 0.1, 0.3);
    c->mean_output = c->sched.context_max * PICK(d, 0.05, 0.2);
    c->priority_range = dice_below(d, 3);
    c->misbehaves = !dice_one_in(d, 4);
    c->drains = !dice_one_in(d, 3);
    c->guess_k = dice_one_in(d, 2) ? 1 + dice_below(d, SPEC_K_MAX) : 0;
    c->script = (enum script)dice_below(d, 4);
    if (dice_one_in(d, 12)) {
        c->breaks = (enum sim_break)(1 + dice_below(d, 3));
        c->break_step = dice_log(d, 1, 2000);
    }
}

struct sim_config sim_draw(uint64_t seed, double seconds)
{
    struct dice d = {.seed = seed ^ 0x51e7};
    struct sim_config c = {.seed = seed, .seconds = seconds, .sched = sched_options_default()};
    draw_policies(&c, &d);
    draw_machine(&c, &d);
    draw_load(&c, &d);
    return c;
}

const char *sim_describe(const struct sim_config *c, char *out, size_t cap)
{
    static const char *const batchings[] = {"continuous", "prefill-first", "static", "interval", "ratio"};
    static const char *const orders[] = {"fcfs", "priority", "vtc", "sjf", "deadline"};
    static const char *const modes[] = {"auto", "swap", "recompute"};
    const struct sched_options *const s = &c->sched;
    snprintf(out, cap,
        "%s %s %s preempt=%s every=%u depth=%u seqs=%u budget=%u context=%u blocks=%u+%u of %u queue=%u chunk=%u "
        "prefix=%d load=%.2f break=%d guesses=%u script=%d",
        batchings[s->batching], orders[s->order], s->admission == ADMIT_RESERVE ? "reserve" : "on-demand",
        modes[s->preempt], s->preempt_every, c->fake.depth, s->max_num_seqs, s->max_batched_tokens, s->context_max,
        c->kv.n_blocks, c->kv.n_host_blocks, s->block_tokens, s->queue_max, s->chunk_max, s->prefix_cache, c->load,
        (int)c->breaks, c->guess_k, (int)c->script);
    return out;
}
