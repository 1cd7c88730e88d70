/* Parameters and token histories; see sample.h. */
#include "base/mem.h"
#include "sample/sample.h"

#include <math.h>
#include <string.h>

struct sample_params sample_params_default(void)
{
    return (struct sample_params){.temperature = 1.0f, .top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f};
}

enum err sample_params_check(const struct sample_params *p, uint32_t vocab, struct error *e)
{
    const struct {
        const char *name;
        float value, min, max;
        bool open_min; /* min itself is not allowed */
    } ranges[] = {
        {"temperature", p->temperature, 0.0f, 100.0f, false},
        {"top_p", p->top_p, 0.0f, 1.0f, true},
        {"min_p", p->min_p, 0.0f, 1.0f, false},
        {"typical_p", p->typical_p, 0.0f, 1.0f, true},
        {"repetition_penalty", p->repetition_penalty, 0.0f, 100.0f, true},
        {"presence_penalty", p->presence_penalty, -2.0f, 2.0f, false},
        {"frequency_penalty", p->frequency_penalty, -2.0f, 2.0f, false},
    };
    for (size_t i = 0; i < COUNT_OF(ranges); i++) {
        const float v = ranges[i].value;
        if (!(v >= ranges[i].min && v <= ranges[i].max) || (ranges[i].open_min && v == ranges[i].min))
            return FAIL(e, ERR_INVALID, "%s must be %s %g and at most %g, not %g", ranges[i].name,
                ranges[i].open_min ? "above" : "at least", (double)ranges[i].min, (double)ranges[i].max, (double)v);
    }
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id >= vocab)
            return FAIL(e, ERR_INVALID, "logit_bias names token %u; the vocabulary has %u", p->bias[i].id, vocab);
        if (!(fabsf(p->bias[i].bias) <= 100.0f))
            return FAIL(e, ERR_INVALID, "logit_bias of token %u must be from -100 to 100", p->bias[i].id);
    }
    return OK;
}

enum err sample_history_init(struct sample_history *h, uint32_t distinct_max, struct error *e)
{
    uint32_t cap = 64;
    while (cap < UINT32_MAX / 2 && cap / 2 < distinct_max) /* at most half full, so that probes stay short */
        cap *= 2;
    *h = (struct sample_history){.cap = cap};
    h->ids = mem_array(cap, sizeof *h->ids);
    h->counts = mem_array(cap, sizeof *h->counts);
    if (h->ids == NULL || h->counts == NULL) {
        sample_history_fini(h);
        return FAIL(e, ERR_NOMEM, "no memory for a token history of %u", distinct_max);
    }
    return OK;
}

void sample_history_fini(struct sample_history *h)
{
    mem_free(h->ids);
    mem_free(h->counts);
    *h = (struct sample_history){0};
}

void sample_history_clear(struct sample_history *h)
{
    memset(h->ids, 0, h->cap * sizeof *h->ids);
    memset(h->counts, 0, h->cap * sizeof *h->counts);
    h->n = 0;
}

static uint32_t slot_of(const struct sample_history *h, uint32_t id)
{
    /* Fibonacci hashing: the high bits of the product, so that ids that are multiples of the capacity spread too. */
    uint32_t i = (uint32_t)((uint64_t)(id * 2654435769u) * h->cap >> 32);
    while (h->ids[i] != 0 && h->ids[i] != id + 1)
        i = (i + 1) & (h->cap - 1);
    return i;
}

void sample_history_add(struct sample_history *h, uint32_t id, bool is_output)
{
    const uint32_t i = slot_of(h, id);
    if (h->ids[i] == 0) {
        assert(h->n < h->cap / 2 + 1);
        h->ids[i] = id + 1;
        h->n++;
    }
    if (is_output)
        h->counts[i]++;
}

uint32_t sample_history_count(const struct sample_history *h, uint32_t id)
{
    const uint32_t i = slot_of(h, id);
    return h->ids[i] != 0 ? h->counts[i] : 0;
}

bool sample_history_has(const struct sample_history *h, uint32_t id)
{
    return h->ids[slot_of(h, id)] != 0;
}

uint32_t sample_history_put(struct sample_history *h, const uint32_t *ids, uint32_t n)
{
    uint32_t were_new = 0;
    assert(n <= 32);
    for (uint32_t i = 0; i < n; i++) {
        were_new |= (uint32_t)!sample_history_has(h, ids[i]) << i;
        sample_history_add(h, ids[i], true);
    }
    return were_new;
}

/* In the reverse order: a new entry was put at the end of its run of probes, and nobody has walked past it since, so
 * that emptying its place cuts no run. */
void sample_history_take(struct sample_history *h, const uint32_t *ids, uint32_t n, uint32_t were_new)
{
    while (n-- > 0) {
        const uint32_t at = slot_of(h, ids[n]);
        assert(h->ids[at] != 0 && h->counts[at] > 0);
        h->counts[at]--;
        if (were_new >> n & 1) {
            assert(h->counts[at] == 0);
            h->ids[at] = 0;
            h->n--;
        }
    }
}
