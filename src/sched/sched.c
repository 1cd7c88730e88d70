/* The door of sched: making it, slots and groups, taking requests in, and the small questions. What a slot is and the
 * rules of its numbers are in sched_int.h. */
#include "sched/sched.h"

#include "base/limits.h"
#include "base/mem.h"
#include "sched/sched_int.h"

#include <math.h>
#include <string.h>

#define RETRY_NS_MIN UINT64_C(10000000)     /* a client that comes back sooner finds the same queue */
#define RETRY_NS_MAX UINT64_C(300000000000) /* five minutes: later is another day's traffic */

struct sched_options sched_options_default(void)
{
    return (struct sched_options){.max_num_seqs = 256,
        .max_batched_tokens = 2048,
        .out_max = 256,
        .context_max = 4096,
        .block_tokens = 16,
        .queue_max = 4096,
        .queue_tokens_max = 16 * MIB,
        .pause_max_ns = UINT64_C(60000000000),
        .tenants_max = 64,
        .tenant_queue_share = 1.0,
        .batching = BATCH_CONTINUOUS,
        .interval = 16,
        .ratio = 0.5,
        .prefill_first_max_steps = 8,
        .order = ORDER_FCFS,
        .vtc_input_weight = 1.0,
        .vtc_output_weight = 2.0,
        .admission = ADMIT_ON_DEMAND,
        .watermark = 0.01,
        .preempt = PREEMPT_AUTO,
        .prefix_cache = true};
}

static enum err options_check(const struct sched_options *o, struct error *e)
{
    const struct {
        const char *name;
        uint64_t value, min, max;
    } ranges[] = {
        {"max_num_seqs", o->max_num_seqs, 1, SCHED_SEQS_MAX},
        {"max_batched_tokens (not below max_num_seqs)", o->max_batched_tokens, o->max_num_seqs, SCHED_ROWS_MAX},
        {"out_max (not below max_num_seqs)", o->out_max, o->max_num_seqs, SCHED_ROWS_MAX},
        {"context_max", o->context_max, 2, MODEL_CONTEXT_MAX},
        {"block_tokens", o->block_tokens, 1, KV_BLOCK_TOKENS_MAX},
        {"queue_max", o->queue_max, 1, SCHED_QUEUE_MAX},
        {"tenants_max", o->tenants_max, 1, SCHED_TENANTS_MAX},
        {"interval", o->batching == BATCH_INTERVAL ? o->interval : 1, 1, UINT32_MAX},
        {"prefill_first_max_steps", o->batching == BATCH_PREFILL_FIRST ? o->prefill_first_max_steps : 1, 1, UINT32_MAX},
    };
    for (size_t i = 0; i < COUNT_OF(ranges); i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return FAIL(e, ERR_INVALID, "%s must be from %llu to %llu, not %llu", ranges[i].name,
                (unsigned long long)ranges[i].min, (unsigned long long)ranges[i].max,
                (unsigned long long)ranges[i].value);
    const struct {
        const char *name;
        double value, min, max;
    } shares[] = {
        {"tenant_queue_share", o->tenant_queue_share, 0, 1},
        {"ratio", o->ratio, 0, 1e6},
        {"vtc_input_weight", o->vtc_input_weight, 0, 1e6},
        {"vtc_output_weight", o->vtc_output_weight, 0, 1e6},
        {"watermark", o->watermark, 0, 0.9},
        {"swap_ns_per_block", o->swap_ns_per_block, 0, 1e12},
    };
    for (size_t i = 0; i < COUNT_OF(shares); i++)
        if (!(shares[i].value >= shares[i].min && shares[i].value <= shares[i].max))
            return FAIL(e, ERR_INVALID, "%s must be from %g to %g, not %g", shares[i].name, shares[i].min,
                shares[i].max, shares[i].value);
    return OK;
}

static enum err sched_alloc(struct sched *s, struct error *e)
{
    s->seqs = mem_array(s->n_slots, sizeof *s->seqs);
    s->groups = mem_array(s->n_slots, sizeof *s->groups);
    s->live = mem_array(s->n_slots, sizeof *s->live);
    s->running = mem_array(s->o.max_num_seqs, sizeof *s->running);
    s->forkable = mem_array(s->o.max_num_seqs, sizeof *s->forkable);
    s->tenants = mem_array(s->o.tenants_max, sizeof *s->tenants);
    s->active = mem_array(s->o.tenants_max, sizeof *s->active);
    s->scratch = mem_array(s->o.context_max, sizeof *s->scratch);
    if (s->seqs == NULL || s->groups == NULL || s->live == NULL || s->running == NULL || s->forkable == NULL ||
        s->tenants == NULL || s->active == NULL || s->scratch == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a scheduler of %u sequences", s->n_slots);
    return OK;
}

enum err sched_new(const struct sched_options *o, struct kv *kv, struct sched **out, struct error *e)
{
    TRY(options_check(o, e));
    struct sched *s = mem_zalloc(sizeof *s);
    if (s == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a scheduler");
    s->o = *o;
    s->kv = kv;
    s->n_slots = sched_slots(o);
    const enum err err = sched_alloc(s, e);
    if (err != OK) {
        sched_free(s);
        return err;
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        s->seqs[i].next = i + 1 < s->n_slots ? i + 1 : SLOT_NONE;
        s->groups[i].next = i + 1 < s->n_slots ? i + 1 : SLOT_NONE;
    }
    for (uint32_t i = 0; i < o->tenants_max; i++)
        s->tenants[i] = (struct tenant){.weight = 1.0, .heap_at = SLOT_NONE, .root = SLOT_NONE};
    s->new_root = s->again_root = s->blocked_slot = SLOT_NONE;
    s->next_deadline = UINT64_MAX;
    s->mean_out = 128; /* until answers have been seen */
    spec_init(s);
    struct kv_stats ks;
    kv_stats(kv, &ks);
    s->n_total_blocks = ks.n_blocks;
    s->watermark_blocks = (uint32_t)ceil(o->watermark * ks.n_blocks);
    *out = s;
    return OK;
}

void sched_free(struct sched *s)
{
    if (s == NULL)
        return;
    assert(s->n_live_groups == 0);
    mem_free(s->seqs);
    mem_free(s->groups);
    mem_free(s->live);
    mem_free(s->running);
    mem_free(s->forkable);
    mem_free(s->tenants);
    mem_free(s->active);
    mem_free(s->scratch);
    mem_free(s);
}

void sched_set_events(struct sched *s, struct sched_events ev)
{
    s->events = ev;
}

/* ---- slots, groups, the running set ---- */

static uint32_t *count_of(struct sched *s, uint8_t state)
{
    return state == SEQ_WAITING   ? &s->n_waiting
           : state == SEQ_FORKING ? &s->n_forking
           : state == SEQ_SWAPPED ? &s->n_swapped
                                  : NULL;
}

void seq_set_state(struct sched *s, struct seq *q, enum seq_state to)
{
    uint32_t *from_count = count_of(s, q->state), *to_count = count_of(s, (uint8_t)to);
    if (from_count != NULL) {
        --*from_count;
        s->tenants[q->tenant].n_queued--;
    }
    if (to_count != NULL) {
        ++*to_count;
        s->tenants[q->tenant].n_queued++;
    }
    q->state = (uint8_t)to;
}

/* Where a rank belongs in the running set, which has no holes then. */
static uint32_t running_find(const struct sched *s, const struct seq *q)
{
    uint32_t low = 0, high = s->n_running;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (seq_before(&s->seqs[s->running[mid]], q))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void running_insert(struct sched *s, uint32_t slot)
{
    assert(s->n_running < s->o.max_num_seqs && s->n_holes == 0);
    const uint32_t i = running_find(s, &s->seqs[slot]);
    memmove(s->running + i + 1, s->running + i, (s->n_running - i) * sizeof *s->running);
    s->running[i] = slot;
    s->n_running++;
}

void running_remove(struct sched *s, uint32_t slot)
{
    const uint32_t i = running_find(s, &s->seqs[slot]);
    assert(s->n_holes == 0 && i < s->n_running && s->running[i] == slot);
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, (s->n_running - i) * sizeof *s->running);
}

void running_close_holes(struct sched *s)
{
    if (s->n_holes == 0)
        return;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i] != SLOT_NONE)
            s->running[n++] = s->running[i];
    s->n_running = n;
    s->n_holes = 0;
}

static uint32_t group_take(struct sched *s, struct request *r)
{
    const uint32_t g = s->free_group;
    assert(g != SLOT_NONE);
    struct group *group = &s->groups[g];
    s->free_group = group->next;
    *group = (struct group){.request = r, .first = SLOT_NONE, .at = s->n_live_groups};
    s->live[s->n_live_groups++] = g;
    return g;
}

static void group_give(struct sched *s, uint32_t g)
{
    struct group *group = &s->groups[g];
    const uint32_t last = s->live[--s->n_live_groups];
    s->live[group->at] = last;
    s->groups[last].at = group->at;
    *group = (struct group){.next = s->free_group};
    s->free_group = g;
}

void slot_give(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    struct group *group = &s->groups[q->group];
    struct request *r = q->request;
    const uint32_t g = q->group;
    assert(q->state == SEQ_ENDED && q->n_plans == 0);
    uint32_t *link = &group->first;
    while (*link != slot)
        link = &s->seqs[*link].sibling;
    *link = q->sibling;
    *q = (struct seq){.next = s->free_slot};
    s->free_slot = slot;
    if (--group->n_slots > 0)
        return;
    group_give(s, g);
    if (s->events.on_done != NULL)
        s->events.on_done(s->events.ctx, r);
}

/* ---- taking in ---- */

uint64_t backlog_retry_ns(const struct sched *s)
{
    const double ahead = (double)s->waiting_tokens + s->mean_out * (s->n_waiting + s->n_forking + s->n_swapped);
    const double rate = s->cost.rows_per_ns;
    /* when half of it has been worked off there is room again, and not only for one */
    const double ns = rate > 0 ? 0.5 * ahead / rate : 0;
    return ns > (double)RETRY_NS_MAX ? RETRY_NS_MAX : MAX(RETRY_NS_MIN, (uint64_t)ns);
}

/* Can it ever run here? */
static enum err submit_fits(const struct sched *s, const struct request *r, struct error *e)
{
    const struct request_options *o = &r->o;
    if (o->tenant >= s->o.tenants_max)
        return FAIL(e, ERR_INVALID, "tenant %u; there are %u", o->tenant, s->o.tenants_max);
    if (o->n_prompt >= s->o.context_max)
        return FAIL(e, ERR_LIMIT, "the prompt has %u tokens; the context is %u, and one must be left for the answer",
            o->n_prompt, s->o.context_max);
    if (r->n_choices > s->o.queue_max)
        return FAIL(e, ERR_LIMIT, "n is %u; the queue holds %u", r->n_choices, s->o.queue_max);
    const uint32_t tokens = o->n_prompt + MIN(o->max_tokens, s->o.context_max - o->n_prompt) - 1;
    if (blocks_for(s, tokens) > s->n_total_blocks)
        return FAIL(e, ERR_LIMIT, "prompt and answer need %u KV blocks of %u tokens; there are %u",
            blocks_for(s, tokens), s->o.block_tokens, s->n_total_blocks);
    return OK;
}

/* Is there room in the queue? */
static enum err submit_has_room(const struct sched *s, const struct request *r, struct error *e)
{
    const uint32_t waiting = s->n_waiting + s->n_forking + s->n_swapped, n = r->n_choices;
    if (waiting + n > s->o.queue_max)
        return FAIL(e, ERR_AGAIN, "%u sequences wait; the queue holds %u", waiting, s->o.queue_max);
    if (s->waiting_tokens > 0 && s->waiting_tokens + r->o.n_prompt > s->o.queue_tokens_max)
        return FAIL(e, ERR_AGAIN, "prompts of %llu tokens wait; the queue holds %llu",
            (unsigned long long)s->waiting_tokens, (unsigned long long)s->o.queue_tokens_max);
    const uint32_t own = s->tenants[r->o.tenant].n_queued;
    if (waiting > own && own + n > s->o.tenant_queue_share * s->o.queue_max)
        return FAIL(e, ERR_AGAIN, "%u sequences of this tenant wait; its share of the queue is %.0f", own,
            floor(s->o.tenant_queue_share * s->o.queue_max));
    return OK;
}

static uint32_t submit_choice(struct sched *s, uint32_t g, uint32_t i, int64_t key)
{
    struct request *r = s->groups[g].request;
    const uint32_t slot = s->free_slot;
    assert(slot != SLOT_NONE);
    struct seq *q = &s->seqs[slot];
    s->free_slot = q->next;
    *q = (struct seq){.want_prompt = i == 0 && r->o.want_prompt_logprobs,
        .n_prompt = r->o.n_prompt,
        .out_limit = MIN(r->o.max_tokens, s->o.context_max - r->o.n_prompt),
        .kv = KV_SEQ_NONE,
        .read_window = r->o.read_window,
        .tenant = r->o.tenant,
        .adapter = r->o.adapter,
        .prompt = r->o.prompt,
        .ids = r->choices[i].ids,
        .request = r,
        .choice = &r->choices[i],
        .key = key,
        .ticket = s->next_ticket++,
        .i_choice = i,
        .group = g,
        .sibling = SLOT_NONE};
    if (r->o.spec != SPEC_NONE) {
        q->spec_k = MIN(r->o.spec_k, (uint32_t)SPEC_K_MAX);
        memcpy(q->rates, s->spec_rates, sizeof q->rates);
        s->n_speculating += q->spec_k > 0;
    }
    s->groups[g].n_slots++;
    s->groups[g].n_live++;
    seq_set_state(s, q, i == 0 ? SEQ_WAITING : SEQ_FORKING);
    return slot;
}

enum err sched_submit(struct sched *s, struct request *r, uint64_t now, uint64_t *retry_ns, struct error *e)
{
    *retry_ns = 0;
    TRY(submit_fits(s, r, e));
    const enum err room = submit_has_room(s, r, e);
    if (room != OK) {
        *retry_ns = backlog_retry_ns(s);
        return room;
    }
    if (r->t_arrival == 0)
        r->t_arrival = now;
    const int64_t key = queue_key(s, r, r->t_arrival);
    const uint32_t g = group_take(s, r);
    uint32_t *link = &s->groups[g].first;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        *link = submit_choice(s, g, i, key);
        link = &s->seqs[*link].sibling;
    }
    queue_put(s, s->groups[g].first);
    if (r->o.deadline_ns > 0)
        s->next_deadline = MIN(s->next_deadline, r->t_arrival + r->o.deadline_ns);
    if (s->o.wait_max_ns > 0)
        s->next_deadline = MIN(s->next_deadline, r->t_arrival + s->o.wait_max_ns);
    return OK;
}

/* ---- questions ---- */

void sched_slot_view(const struct sched *s, uint32_t slot, struct slot_view *out)
{
    assert(slot < s->n_slots);
    const struct seq *q = &s->seqs[slot];
    *out = (struct slot_view){0};
    if (q->state == SEQ_FREE || q->state == SEQ_ENDED)
        return;
    const struct request_options *o = &q->request->o;
    const bool is_short = o->n_resume + q->n_out < o->min_tokens;
    *out = (struct slot_view){.request = q->request,
        .choice = q->choice,
        .i_choice = q->i_choice,
        .output_index = (uint64_t)o->n_resume + q->n_out,
        .banned = o->banned_ids, /* followed by the stop ids: request.c */
        .n_banned = o->n_banned_ids + (is_short ? o->n_stop_ids : 0),
        .is_dropped = q->n_dropped > 0};
}

struct slot_view slot_view_later(const struct slot_view *v, uint32_t i)
{
    struct slot_view later = *v;
    if (v->request == NULL)
        return later;
    const struct request_options *o = &v->request->o;
    later.output_index += i;
    later.n_banned = o->n_banned_ids + (later.output_index < o->min_tokens ? o->n_stop_ids : 0);
    return later;
}

bool sched_is_idle(const struct sched *s)
{
    return s->n_live_groups == 0;
}

bool sched_can_run(const struct sched *s)
{
    return s->n_running > s->n_paused_running || s->n_again > 0 || (s->n_new > 0 && gate_is_open(s));
}

uint64_t sched_next_deadline(const struct sched *s)
{
    return s->next_deadline;
}

void sched_stats(const struct sched *s, struct sched_stats *out)
{
    *out = s->stats;
    out->n_waiting = s->n_waiting + s->n_forking;
    out->n_running = s->n_running;
    out->n_swapped = s->n_swapped;
    out->n_paused = s->n_paused;
    out->waiting_tokens = s->waiting_tokens;
    out->steps = s->step;
    out->retry_ns = backlog_retry_ns(s);
}
