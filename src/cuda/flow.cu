/* How a product is cut for flow.cuh, and its launches. */
#include "cuda/flow.cuh"

/* The pairs of rows that rope turns must come in runs of eight, as boxes do. */
bool flow_has(const struct dev *d, enum format format, uint32_t n_in)
{
    return d->capability >= 90 && (format == FORMAT_F16 || format == FORMAT_BF16) && n_in % FLOW_K == 0;
}

bool flow_has_heads(uint32_t head_dim, uint32_t rope_dims)
{
    return head_dim % 16 == 0 && rope_dims / 2 % 8 == 0;
}

void cuda_flow(struct dev *d, enum format format, const struct skinny_job *j)
{
    struct flow_job f = {};
    f.j = *j;
    const uint32_t per_tile = j->end == SKINNY_GLU ? 8 : 16;
    f.n_tiles = (j->n_out + per_tile - 1) / per_tile;
    f.each = (f.n_tiles + d->n_sms - 1) / d->n_sms;
    const uint32_t rounds = (f.each + FLOW_WARPS - 1) / FLOW_WARPS;
    f.width = (f.each + rounds - 1) / rounds;
    const uint32_t rows = j->end == SKINNY_QKV ? 8 : per_tile * f.width;
    if (!tma_map(d, &f.w0, j->w0, j->n_out, j->row_bytes, j->row_bytes, rows, FLOW_COLS) ||
        (j->end == SKINNY_GLU && !tma_map(d, &f.w1, j->w1, j->n_out, j->row_bytes, j->row_bytes, rows, FLOW_COLS)))
        return;
    if (format == FORMAT_F16)
        flow_run<__half>(d, &f);
    else
        flow_run<__nv_bfloat16>(d, &f);
}
