/* Numbers that were measured: in order, and the middle of them. */
#ifndef BENCH_FIGURES_H
#define BENCH_FIGURES_H

#include <stddef.h>
#include <stdlib.h>

static inline int figures_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline void figures_sort(double *v, size_t n)
{
    qsort(v, n, sizeof *v, figures_compare);
}

/* They are in order behind it. Of an even number the mean of the two in the middle. */
static inline double figures_median(double *v, size_t n)
{
    figures_sort(v, n);
    return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

#endif
