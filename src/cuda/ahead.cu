/* Looking ahead: a step's ops come in the same order as those of the step before, so an op that leaves the memory idle
 * (a norm, the attention of a short context) can ask for the first bytes of the matrix that is read next. A wrong
 * guess, after a step of another kind, costs nothing but those reads. even.cuh asks for its first bytes itself. */
#include "cuda/cuda_int.h"

void cuda_trace_start(struct dev *d)
{
    if (d->trace_at > 0)
        d->n_trace = d->trace_at;
    d->trace_at = 0;
}

void cuda_trace(struct dev *d, const struct weight *w, uint32_t n_rows)
{
    const struct matrix *m = matrix_of(w);
    d->is_even = cuda_way_of(d, m->format, m->n_out, m->n_in, n_rows) == CUDA_WAY_EVEN;
    if (d->trace_at == TRACE_MAX)
        return;
    struct ahead *a = &d->trace[d->trace_at++];
    a->p = m->data;
    a->bytes = w->n_mats == 1 && m->row_bytes % 16 == 0 && !d->is_even ? (uint64_t)m->row_bytes * m->n_out : 0;
}

struct ahead cuda_ahead(const struct dev *d, uint64_t most)
{
    struct ahead a = {};
    if (d->trace_at < d->n_trace && d->capability >= 90)
        a = d->trace[d->trace_at];
    a.bytes = a.bytes < most ? a.bytes : most;
    return a;
}
