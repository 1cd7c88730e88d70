/* How gate and up are cut for many.cuh, and its launches. */
#include "cuda/many.cuh"

#define RUN_ROWS 2048 /* activation rows that are gone through before the next weights */

bool many_has(const struct dev *d, enum format format, uint32_t n_out, uint32_t n_in)
{
    return d->capability >= 90 && (format == FORMAT_F16 || format == FORMAT_BF16) && n_in % 8 == 0 && n_out % 8 == 0;
}

/* A cut into tiles of n weight rows. */
struct many_cut {
    uint32_t n, n_high, n_wide;
    bool is_high;
};

static struct many_cut cut_of(uint32_t n_out, uint32_t n_rows, uint32_t n)
{
    const uint32_t high = (n_rows + MANY_ROWS - 1) / MANY_ROWS, wide = (2 * n_out + n - 1) / n;
    const bool is_high = high % MANY_PAIR == 0;
    return {n, is_high ? high / MANY_PAIR : high, is_high ? wide : (wide + MANY_PAIR - 1) / MANY_PAIR, is_high};
}

/* The time of a cut, in weight rows that a block multiplies one after the other. */
static uint32_t time_of(const struct dev *d, const struct many_cut *c)
{
    const uint32_t pairs = d->n_sms / MANY_PAIR;
    return (c->n_high * c->n_wide + pairs - 1) / pairs * c->n;
}

static struct many_cut best_cut(const struct dev *d, uint32_t n_out, uint32_t n_rows)
{
    struct many_cut best = cut_of(n_out, n_rows, 256);
    for (uint32_t n = 224; n >= 192; n -= 32) {
        const struct many_cut c = cut_of(n_out, n_rows, n);
        if (time_of(d, &c) < time_of(d, &best))
            best = c;
    }
    return best;
}

static bool map_matrix(
    struct dev *d, CUtensorMap *map, const void *p, uint32_t n, uint64_t row_bytes, uint32_t n_in, uint32_t rows)
{
    const uint64_t sizes[2] = {(uint64_t)n_in * 2, n};
    const uint32_t box[2] = {TMA_COLUMN, rows};
    return tma_map_boxes(d, map, p, 2, sizes, &row_bytes, box);
}

static uint64_t n_launches;

extern "C" uint64_t cuda_many_launches(void)
{
    return n_launches;
}

template <typename T, int N> static void launch(struct dev *d, struct many_job *f)
{
    const struct skinny_job *j = &f->j;
    if (!map_matrix(d, &f->w[0], j->w0, j->n_out, j->row_bytes, j->n_in, N / 2) ||
        !map_matrix(d, &f->w[1], j->w1, j->n_out, j->row_bytes, j->n_in, N / 2) ||
        !map_matrix(d, &f->act, j->act, j->n_rows, (uint64_t)j->n_in * 2, j->n_in,
            f->is_high ? MANY_ROWS : MANY_ROWS / MANY_PAIR))
        return;
    const uint32_t pairs = f->n_high * f->n_wide, most = d->n_sms / MANY_PAIR;
    cuda_launch_cluster(d, many_kernel<T, N>, dim3(MANY_PAIR * (pairs < most ? pairs : most)), MANY_THREADS + 32,
        ManyShape<N>::BYTES, MANY_PAIR, *f);
    n_launches++;
}

template <typename T> static void launch_cut(struct dev *d, struct many_job *f, uint32_t n)
{
    if (n == 192)
        launch<T, 192>(d, f);
    else if (n == 224)
        launch<T, 224>(d, f);
    else
        launch<T, 256>(d, f);
}

void cuda_many(struct dev *d, enum format format, const struct skinny_job *j)
{
    const struct many_cut c = best_cut(d, j->n_out, j->n_rows);
    struct many_job f = {};
    f.j = *j;
    f.n_columns = (j->n_in + MANY_K - 1) / MANY_K;
    f.is_high = c.is_high;
    f.n_high = c.n_high;
    f.n_wide = c.n_wide;
    f.n_run = RUN_ROWS / MANY_ROWS / (c.is_high ? MANY_PAIR : 1);
    if (format == FORMAT_F16)
        launch_cut<__half>(d, &f, c.n);
    else
        launch_cut<__nv_bfloat16>(d, &f, c.n);
}

/* Worth it where at least 5/6 of what the card multiplies in a cut's time is wanted; the library has tiles of other
 * sizes too. Up to MANY_ROWS the weights' way from memory takes longer than anything else, so there rows that are not
 * there cost nothing. */
bool many_fills(const struct dev *d, uint32_t n_out, uint32_t n_rows)
{
    const struct many_cut c = best_cut(d, n_out, n_rows);
    const uint64_t rows = n_rows > MANY_ROWS ? n_rows : MANY_ROWS, used = 2 * n_out * rows;
    return 6 * used >= (uint64_t)5 * time_of(d, &c) * d->n_sms * MANY_ROWS;
}
