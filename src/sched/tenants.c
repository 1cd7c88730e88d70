/* Virtual token counters: fairness between tenants by what they were served (Sheng et al., "Fairness in Serving Large
 * Language Models", 2024). A tenant's counter grows by input_weight for each prompt token computed for it and by
 * output_weight for each token chosen, divided by its weight. The queue serves the smallest counter.
 *
 * Lift. A tenant that becomes backlogged starts from no less than the smallest counter of those that already are (or of
 * the last one that was): time without requests earns no credit.
 *
 * The bound. Between two tenants that stay backlogged, with weights v and w, the difference of service/weight stays
 * below 2 x max(input_weight x longest prompt, output_weight x tokens of a full batch) / min(v, w).
 *
 * Tenants with a queue lie in a heap by their counters. Counters only grow, so the heap may hold an older, smaller
 * value: it is corrected when its tenant comes to the top. A token therefore costs one addition. */
#include "sched/sched_int.h"

static void heap_set(struct sched *s, uint32_t i, uint32_t tenant)
{
    s->active[i] = tenant;
    s->tenants[tenant].heap_at = i;
}

static bool heap_less(const struct sched *s, uint32_t a, uint32_t b)
{
    const struct tenant *x = &s->tenants[a], *y = &s->tenants[b];
    return x->heap_key != y->heap_key ? x->heap_key < y->heap_key : a < b;
}

static void heap_up(struct sched *s, uint32_t i)
{
    const uint32_t t = s->active[i];
    while (i > 0 && heap_less(s, t, s->active[(i - 1) / 2])) {
        heap_set(s, i, s->active[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(s, i, t);
}

static void heap_down(struct sched *s, uint32_t i)
{
    const uint32_t t = s->active[i];
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= s->n_active)
            break;
        if (c + 1 < s->n_active && heap_less(s, s->active[c + 1], s->active[c]))
            c++;
        if (!heap_less(s, s->active[c], t))
            break;
        heap_set(s, i, s->active[c]);
        i = c;
    }
    heap_set(s, i, t);
}

uint32_t tenant_least(struct sched *s)
{
    assert(s->n_active > 0);
    for (;;) {
        struct tenant *top = &s->tenants[s->active[0]];
        if (top->heap_key == top->counter)
            return s->active[0];
        top->heap_key = top->counter;
        heap_down(s, 0);
    }
}

void tenant_activate(struct sched *s, uint32_t tenant)
{
    struct tenant *t = &s->tenants[tenant];
    assert(t->heap_at == SLOT_NONE);
    const uint32_t from = s->n_active > 0 ? tenant_least(s) : s->last_tenant;
    t->counter = MAX(t->counter, s->tenants[from].counter);
    t->heap_key = t->counter;
    heap_set(s, s->n_active++, tenant);
    heap_up(s, t->heap_at);
}

void tenant_deactivate(struct sched *s, uint32_t tenant)
{
    struct tenant *t = &s->tenants[tenant];
    const uint32_t i = t->heap_at;
    assert(i < s->n_active && s->active[i] == tenant);
    s->n_active--;
    if (i < s->n_active) {
        const uint32_t moved = s->active[s->n_active];
        heap_set(s, i, moved);
        heap_up(s, i);
        heap_down(s, s->tenants[moved].heap_at);
    }
    t->heap_at = SLOT_NONE;
    s->last_tenant = tenant;
}

void tenant_charge(struct sched *s, uint32_t tenant, double tokens)
{
    struct tenant *t = &s->tenants[tenant];
    t->counter += tokens / t->weight;
}

void sched_tenant_weight(struct sched *s, uint32_t tenant, double weight)
{
    if (tenant < s->o.tenants_max && weight > 0)
        s->tenants[tenant].weight = weight;
}

double sched_tenant_counter(const struct sched *s, uint32_t tenant)
{
    return tenant < s->o.tenants_max ? s->tenants[tenant].counter : 0;
}

uint64_t sched_tenant_output(const struct sched *s, uint32_t tenant)
{
    return tenant < s->o.tenants_max ? s->tenants[tenant].output_tokens : 0;
}

enum err tenants_check(const struct sched *s, struct error *e)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < s->o.tenants_max; t++) {
        const struct tenant *x = &s->tenants[t];
        const bool is_active = x->heap_at != SLOT_NONE;
        n += is_active;
        if (is_active != (x->root != SLOT_NONE) || (is_active && s->active[x->heap_at] != t))
            return FAIL(e, ERR_INTERNAL, "tenant %u is counted as backlogged, wrongly", t);
        if (is_active &&
            (x->heap_key > x->counter || (x->heap_at > 0 && heap_less(s, t, s->active[(x->heap_at - 1) / 2]))))
            return FAIL(e, ERR_INTERNAL, "tenant %u is out of order", t);
    }
    if (n != s->n_active)
        return FAIL(e, ERR_INTERNAL, "%u tenants are backlogged, %u are counted", n, s->n_active);
    return OK;
}
