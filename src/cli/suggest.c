/* "Did you mean": edit distance between what was typed and what exists.
 *
 * Optimal string alignment: insert, delete, replace and swap of neighbours cost 1 each. A suggestion must be near
 * enough to be a slip of the finger: at most a third of the typed letters, at least one; or the typed word is a
 * beginning of the candidate, as people abbreviate. */
#include "cli/options.h"

#include <string.h>

#define WORD_MAX 48 /* longer than any option or verb; longer words get no suggestion */

static size_t edit_distance(struct str a, struct str b)
{
    size_t rows[3][WORD_MAX + 1]; /* the row before the last, the last, and this one */
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    memset(rows, 0, sizeof rows);
    for (size_t j = 0; j <= b.n; j++)
        last[j] = j;
    for (size_t i = 1; i <= a.n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= b.n; j++) {
            const size_t differs = a.p[i - 1] != b.p[j - 1];
            size_t cost = MIN(last[j - 1] + differs, MIN(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a.p[i - 1] == b.p[j - 2] && a.p[i - 2] == b.p[j - 1])
                cost = MIN(cost, before[j - 2] + 1);
            now[j] = cost;
        }
        size_t *const free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[b.n];
}

void suggest_init(struct suggestion *s, struct str wanted)
{
    *s = (struct suggestion){.wanted = wanted, .best_cost = SIZE_MAX};
}

void suggest_try(struct suggestion *s, const char *candidate)
{
    const struct str c = str_of(candidate);
    if (s->wanted.n == 0 || s->wanted.n > WORD_MAX || c.n > WORD_MAX)
        return;
    size_t cost = edit_distance(s->wanted, c);
    if (cost > MAX(s->wanted.n / 3, (size_t)1)) {
        if (s->wanted.n < 3 || !str_has_prefix(c, s->wanted))
            return;
        cost = WORD_MAX + c.n; /* an abbreviation: any slip of the finger is a better guess, and so is a shorter word */
    }
    if (cost < s->best_cost) {
        s->best_cost = cost;
        s->best = candidate;
    }
}
