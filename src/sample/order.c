/* Ordering candidates: selection by quickselect, and heapsort. The pivot is a median of three, in large ranges of three
 * such medians, which also suits rising and falling runs. A made-up order of logits can spoil any fixed choice of
 * pivots again and again; after as many passes as halving twice over would need, the rest is sorted instead. */
#include "sample/sample_int.h"

static void swap(struct candidate *a, struct candidate *b)
{
    const struct candidate t = *a;
    *a = *b;
    *b = t;
}

static struct candidate median(struct candidate a, struct candidate b, struct candidate c)
{
    if (comes_before(b, a)) {
        const struct candidate t = a;
        a = b;
        b = t;
    }
    return comes_before(b, c) ? b : comes_before(a, c) ? c : a;
}

/* With one entry on either side of it when there are three; with two entries, the later. */
static struct candidate choose_pivot(const struct candidate *c, size_t n)
{
    if (n == 2)
        return comes_before(c[0], c[1]) ? c[1] : c[0];
    if (n < 64)
        return median(c[0], c[n / 2], c[n - 1]);
    const size_t s = n / 8;
    return median(
        median(c[0], c[s], c[2 * s]), median(c[3 * s], c[4 * s], c[5 * s]), median(c[6 * s], c[7 * s], c[n - 1]));
}

/* Cut c[lo..hi), at least two: entries before the cut come no later than the pivot, the others no earlier. The cut is
 * neither lo nor hi. */
static size_t partition(struct candidate *c, size_t lo, size_t hi)
{
    const struct candidate pivot = choose_pivot(c + lo, hi - lo);
    size_t i = lo, j = hi - 1;
    for (;;) {
        while (comes_before(c[i], pivot))
            i++;
        while (comes_before(pivot, c[j]))
            j--;
        if (i >= j)
            return i;
        swap(&c[i++], &c[j--]);
    }
}

uint64_t order_select(struct candidate *c, size_t n, size_t m)
{
    size_t lo = 0, hi = n;
    uint64_t looked = 0;
    uint32_t passes = 0, passes_max = 4;
    for (size_t left = n; left > 1; left /= 2)
        passes_max += 2;
    while (m > lo && m < hi && hi - lo > 1) {
        looked += hi - lo;
        if (++passes > passes_max) {
            order_sort(c + lo, hi - lo);
            break;
        }
        const size_t cut = partition(c, lo, hi);
        assert(cut > lo && cut < hi);
        if (m <= cut)
            hi = cut;
        else
            lo = cut;
    }
    return looked;
}

static void sift_down(struct candidate *c, size_t i, size_t n)
{
    for (size_t child = 2 * i + 1; child < n; i = child, child = 2 * i + 1) {
        if (child + 1 < n && comes_before(c[child], c[child + 1]))
            child++;
        if (!comes_before(c[i], c[child]))
            return;
        swap(&c[i], &c[child]);
    }
}

/* Heapsort: no worst case, and no hidden allocation as in the C library's. */
void order_sort(struct candidate *c, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sift_down(c, i, n);
    for (size_t end = n; end > 1; end--) {
        swap(&c[0], &c[end - 1]);
        sift_down(c, 0, end - 1);
    }
}

void order_best(struct candidate *c, size_t n, size_t m)
{
    (void)order_select(c, n, m);
    order_sort(c, m);
}
