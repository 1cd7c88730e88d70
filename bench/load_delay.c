/* Delivery delays of streams over the fake runner, found from arrivals alone. The runner makes the tokens of one step
 * at one moment and gives each running stream one, so a stream's k-th token is of the k-th step since its first. Which
 * step the first was is guessed when it arrives and put right here: a stream whose label is off by one arrives a whole
 * step early or late compared with the middle of its step, every time. The delay is then the time since the first token
 * of the step arrived anywhere. */
#include "load.h"

#include <math.h>
#include <stdlib.h>

#define ROUNDS 8 /* a guess is off by a step or two; each round puts right all whose middle stands */

static int by_step(const void *a, const void *b)
{
    const struct load_token *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->at_ns < y->at_ns ? -1 : x->at_ns > y->at_ns;
}

static size_t group_end(const struct load_token *t, size_t n, size_t i)
{
    size_t end = i;
    while (end < n && t[end].step == t[i].step)
        end++;
    return end;
}

/* How far each stream is from the middles of its steps, in ns, into off. */
static void measure(struct load_token *t, size_t n, double *off, const uint32_t *counts)
{
    qsort(t, n, sizeof *t, by_step);
    for (size_t i = 0, end; i < n; i = end) {
        end = group_end(t, n, i);
        const uint64_t middle = t[(i + end) / 2].at_ns;
        for (size_t k = i; k < end; k++)
            off[t[k].stream] += ((double)t[k].at_ns - (double)middle) / counts[t[k].stream];
    }
}

void load_delays(
    struct load_token *t, size_t n, struct load_scratch *s, uint32_t n_streams, double step_ns, uint64_t *delays)
{
    for (size_t i = 0; i < n; i++)
        s->counts[t[i].stream]++;
    for (int round = 0; round < ROUNDS; round++) {
        bool is_changed = false;
        for (uint32_t k = 0; k < n_streams; k++)
            s->off[k] = 0;
        measure(t, n, s->off, s->counts);
        const double steps = n > 1 ? (double)(t[n - 1].step - t[0].step) : 0;
        const double period = steps > 0 ? MAX(((double)t[n - 1].at_ns - (double)t[0].at_ns) / steps, step_ns) : step_ns;
        for (size_t i = 0; i < n; i++) {
            const int64_t move = (int64_t)lround(s->off[t[i].stream] / period);
            t[i].step += move;
            is_changed |= move != 0;
        }
        if (!is_changed)
            break;
    }
    qsort(t, n, sizeof *t, by_step);
    for (size_t i = 0, end; i < n; i = end) {
        end = group_end(t, n, i);
        for (size_t k = i; k < end; k++)
            delays[k] = t[k].at_ns - t[i].at_ns;
    }
}
