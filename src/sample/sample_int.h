/* Private to sample/: candidates and their order. */
#ifndef SAMPLE_SAMPLE_INT_H
#define SAMPLE_SAMPLE_INT_H

#include "sample/sample.h"

struct candidate {
    float key; /* what it is ordered by: the scaled logit, except inside typical-p */
    uint32_t id;
};

/* By key, then by lower id; a total order, keys being no NaN. */
static inline bool comes_before(struct candidate a, struct candidate b)
{
    return a.key > b.key || (a.key == b.key && a.id < b.id);
}

/* order.c. In place, without allocation.
 * order_select moves the best m of c[0..n) to the front, in any order. Linear for any real input, n log n for the worst
 * one can make up. Returns how many entries it looked at, all passes together: its cost, for tests. */
uint64_t order_select(struct candidate *c, size_t n, size_t m);
void order_sort(struct candidate *c, size_t n);
void order_best(struct candidate *c, size_t n, size_t m); /* the best m, sorted, at the front */

#endif
