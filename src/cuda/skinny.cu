/* Which kernel makes a product of few rows: by format and rows. */
#include "cuda/skinny.h"

bool skinny_has(enum format format)
{
    return format != FORMAT_F32;
}

static void slim(struct dev *d, enum format format, const struct skinny_job *j)
{
    switch (format) {
    case FORMAT_F16:
    case FORMAT_BF16: slim_plain(d, format, j); break;
    case FORMAT_F8:
    case FORMAT_Q8: slim_bytes(d, format, j); break;
    case FORMAT_Q4:
    case FORMAT_Q4M: slim_nibbles(d, format, j); break;
    default: slim_k(d, format, j); break;
    }
}

bool skinny_is_near(const struct skinny_job *j)
{
    const uintptr_t a = (uintptr_t)j->w0, b = (uintptr_t)j->w1;
    return j->end != SKINNY_GLU || (a < b ? b - a : a - b) < (uintptr_t)1 << 40;
}

void cuda_skinny(struct dev *d, enum format format, const struct skinny_job *j)
{
    if (j->groups == NULL) {
        const uint32_t n_out = j->end == SKINNY_GLU ? 2 * j->n_out : j->n_out;
        const enum cuda_way way = cuda_way_of(d, format, n_out, j->n_in, j->n_rows);
        if (way == CUDA_WAY_FLOW && (j->end != SKINNY_QKV || flow_has_heads(j->heads.head_dim, j->heads.rope_dims))) {
            cuda_flow(d, format, j);
            return;
        }
        if (way == CUDA_WAY_EVEN && skinny_is_near(j)) {
            cuda_even(d, format, j);
            return;
        }
        if (way != CUDA_WAY_SKINNY) {
            slim(d, format, j);
            return;
        }
    }
    const uint32_t nt = j->n_rows <= 8 || j->groups != NULL ? 1 : 2;
    const uint32_t per_tile = j->end == SKINNY_GLU ? 8 : 16, tiles = (j->n_out + per_tile - 1) / per_tile;
    /* Plain rows: as many blocks as the chip holds, which walk the tiles. */
    const uint32_t held = 2 * d->n_sms, blocks = j->groups != NULL || tiles < held ? tiles : held;
    const dim3 grid(blocks, j->groups != NULL ? j->n_groups : (j->n_rows + 8 * nt - 1) / (8 * nt));
    switch (format) {
    case FORMAT_F16:
    case FORMAT_BF16: skinny_plain(d, format, nt, grid, j); break;
    case FORMAT_F8:
    case FORMAT_Q8: skinny_bytes(d, format, nt, grid, j); break;
    case FORMAT_Q4:
    case FORMAT_Q4M: skinny_nibbles(d, format, nt, grid, j); break;
    default: skinny_k(d, format, nt, grid, j); break;
    }
}
