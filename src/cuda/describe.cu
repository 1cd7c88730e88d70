/* What the table of ops says about a model on a card, asked of the same functions that choose. */
#include "cuda/describe.h"
#include "cuda/resident.h"

static const char *format_name(enum format f)
{
    switch (f) {
    case FORMAT_F32: return "F32";
    case FORMAT_F16: return "F16";
    case FORMAT_BF16: return "BF16";
    case FORMAT_F8: return "F8_E4M3";
    case FORMAT_Q8: return "Q8_0";
    case FORMAT_Q4: return "Q4_0";
    case FORMAT_Q4M: return "Q4_1";
    case FORMAT_Q4K: return "Q4_K";
    default: return "Q6_K";
    }
}

static const char *way_name(const struct dev *d, const struct matrix *m, uint32_t n_out, uint32_t n_rows)
{
    switch (cuda_way_of(d, m->format, n_out, m->n_in, n_rows)) {
    case CUDA_WAY_SKINNY: return "skinny";
    case CUDA_WAY_SLIM: return "slim";
    case CUDA_WAY_FLOW: return "flow";
    case CUDA_WAY_EVEN: return "even";
    default: return cuda_is_plain(d, m->format, m->n_in) ? "plain" : "cuBLASLt";
    }
}

/* The feed-forward's gate stands for all products, as one with up; where experts are in its place, q. */
static void describe_products(const struct dev *d, const struct describe_args *a, struct described *r)
{
    const struct matrix *m = matrix_of(a->gate != NULL ? a->gate : a->q);
    const uint32_t n_out = a->gate != NULL ? 2 * m->n_out : m->n_out;
    r->format = format_name(m->format);
    r->has_experts = a->gate == NULL;
    for (uint32_t n = 1; n <= d->rows_max; n++) {
        described_add(r, n, way_name(d, m, n_out, n));
        if (a->gate != NULL && r->many_from == 0 && cuda_is_many(d, m, n))
            r->many_from = n;
    }
    bool few, several;
    resident_takes(d, a, &few, &several);
    r->resident_from = few ? 1 : several ? RESIDENT_ROWS + 1 : 0;
    r->resident_to = several ? EVEN_MOST : few ? RESIDENT_ROWS : 0;
}

void cuda_describe_rows(const struct dev *d, const struct describe_args *a, char out[DESCRIBE_BYTES])
{
    struct described r = {};
    cuda_describe(0, &r.card);
    describe_products(d, a, &r);
    attend_kernels(d, a->layer, a->head_dim, a->n_heads / a->n_kv_heads, &r.decode, &r.prompts);
    r.head_dim = a->head_dim;
    r.cache = dtype_name(a->layer->dtype);
    described_text(&r, out);
}
