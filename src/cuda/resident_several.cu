/* Resident steps of 3 to EVEN_MOST rows: their program, and its launch. */
#include "cuda/resident_several.cuh"

static uint64_t n_launches;

extern "C" uint64_t cuda_several_launches(void)
{
    return n_launches;
}

template <int NT, int D> static void launch(struct dev *d, const struct several_args *a)
{
    cuda_launch_beside(d, several_kernel<NT, D>, dim3(d->n_sms), SEVERAL_THREADS, SEVERAL_BYTES, *a);
}

template <int NT> static void launch_head(struct dev *d, uint32_t head_dim, const struct several_args *a)
{
    if (head_dim == 64)
        launch<NT, 64>(d, a);
    else
        launch<NT, 128>(d, a);
}

/* By a block on each multiprocessor: it takes all of its shared memory, and behind a copy on the stream, which behind
 * all else has ended, every one of them is free. */
__global__ static void accept_kernel(const struct several_phase *program, uint32_t n)
{
    launch_wait();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        tma_accept(&program[i].f.act);
        tma_accept(&program[i].f.w);
    }
}

void resident_several_accept(struct dev *d, const void *program, uint32_t n)
{
    cuda_launch(d, accept_kernel, dim3(d->n_sms), 32, SEVERAL_BYTES, (const struct several_phase *)program, n);
}

static_assert(alignof(struct several_phase) <= RESIDENT_SEVERAL_ALIGN, "in host memory too");

struct cut resident_several_cut(const struct dev *d, const struct attend_job *j)
{
    const uint32_t group = (uint32_t)team_group(false, (int)j->head_dim);
    return {d->n_sms * SEVERAL_TEAMS, j->n_kv_heads, TEAM_WARPS * group, attend_rows(8, j->per_kv), group};
}

size_t resident_several_bytes(void)
{
    return sizeof(struct several_phase);
}

size_t resident_several_room(uint32_t n)
{
    return (size_t)EVEN_MOST * n * sizeof(__nv_bfloat16) + (size_t)(n + EVEN_ROWS - 1) / EVEN_ROWS * EVEN_MOST * 4;
}

/* All that even_rows_load reads. */
static bool are_same_rows(const struct skinny_heads *a, const struct skinny_heads *b)
{
    return a->pos == b->pos && a->slot == b->slot && a->block_tokens == b->block_tokens &&
           a->block_bytes == b->block_bytes && a->row_bytes == b->row_bytes;
}

bool resident_several_program(struct dev *d, const struct phase *phases, uint32_t n, void *room, void *program)
{
    struct several_phase *const all = (struct several_phase *)program;
    const struct several_phase *rows = NULL; /* the last that has some */
    uint32_t n_norms = 0, n_products = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct phase *p = &phases[i];
        struct several_phase *w = &all[i];
        *w = {};
        w->kind = p->kind;
        w->is_odd = i % 2 != 0;
        w->is_last = i + 1 == n;
        if (p->kind == PHASE_ATTEND) {
            w->attend = p->attend;
            w->f = w[-1].f; /* nobody multiplies by it, but all look at it */
            continue;
        }
        struct skinny_job j = p->job;
        if (p->x != NULL) {
            const uint32_t width = j.n_in;
            float *squares = (float *)((__nv_bfloat16 *)room + (size_t)EVEN_MOST * width);
            struct several_phase *from = &all[p->maker];
            j.act = from->scaled = (__nv_bfloat16 *)room;
            from->gain = p->gain;
            w->squares = from->squares_out = squares;
            w->eps = p->eps;
            w->norm = n_norms++;
        }
        if (!even_describe(d, &j, &w->f))
            return false;
        if (j.end == SKINNY_QKV) {
            w->has_rows = rows == NULL || !are_same_rows(&rows->f.j.heads, &j.heads);
            rows = w;
        }
        w->f.parts += (size_t)(n_products++ % 2) * 2 * d->n_sms * EVEN_ROWS * EVEN_MOST;
    }
    return true;
}

void resident_run_several(struct dev *d, uint32_t n_rows, uint32_t head_dim, const void *program, uint32_t n,
    uint32_t first_attend, uint32_t *barrier)
{
    const struct several_args a = {(const struct several_phase *)program, n, first_attend, barrier};
    n_launches++;
    switch (even_eights(n_rows)) {
    case 1: launch_head<1>(d, head_dim, &a); break;
    case 2: launch_head<2>(d, head_dim, &a); break;
    default: launch_head<4>(d, head_dim, &a); break;
    }
}
