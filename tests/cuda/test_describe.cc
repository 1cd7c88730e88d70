/* Which kernels a model takes, as ops.describe says it, from the functions that choose them: they need no card, only a
 * device that says what it is. */
#include "cuda/cuda_int.h"

#include <cstdio>
#include <cstring>

struct wants {
    enum format format, head;
    uint32_t hidden, ffn, n_heads, n_kv_heads, head_dim; /* ffn 0: a mixture */
    enum dtype cache;
    bool deterministic, is_plain;
    uint32_t capability;
    const char *text; /* behind the card */
};

/* Shapes of Llama-3.1-8B, SmolLM2, Gemma 2 and Mixtral. */
static const struct wants all[] = {
    {FORMAT_BF16, FORMAT_BF16, 4096, 14336, 32, 8, 128, DTYPE_BF16, false, true, 90,
        "decoding of 1 to 32 rows resident; BF16 products by skinny to 2 rows, even to 32, cuBLASLt beyond, gate and "
        "up by many from 65 where it fills the card; attention by team, of prompts by wide, heads of 128, BF16 cache"},
    {FORMAT_BF16, FORMAT_BF16, 4096, 14336, 32, 8, 128, DTYPE_BF16, true, true, 90,
        "decoding of 1 to 2 rows resident; BF16 products by flow to 64 rows, cuBLASLt beyond, gate and up by many from "
        "65 where it fills the card; attention by chunks, of prompts by wide, heads of 128, BF16 cache"},
    {FORMAT_BF16, FORMAT_BF16, 4096, 14336, 32, 8, 128, DTYPE_BF16, false, true, 80,
        "BF16 products by skinny to 8 rows, cuBLASLt beyond; attention by team, of prompts by prefill, heads of 128, "
        "BF16 cache"},
    {FORMAT_Q4K, FORMAT_Q6K, 4096, 14336, 32, 8, 128, DTYPE_F16, false, true, 90,
        "decoding of 1 to 2 rows resident; Q4_K products by skinny to 3 rows, slim to 64, cuBLASLt beyond; attention "
        "by team, of prompts by wide, heads of 128, F16 cache"},
    {FORMAT_Q4K, FORMAT_Q6K, 4096, 14336, 32, 8, 128, DTYPE_F16, true, true, 90,
        "Q4_K products by slim; attention by chunks, of prompts by wide, heads of 128, F16 cache"},
    {FORMAT_F8, FORMAT_F8, 4096, 14336, 32, 8, 128, DTYPE_F8_E4M3, false, true, 90,
        "F8_E4M3 products by skinny to 8 rows, slim to 16, cuBLASLt beyond; attention by team, of prompts by wide, "
        "heads of 128, F8_E4M3 cache"},
    {FORMAT_F8, FORMAT_BF16, 4096, 14336, 32, 8, 128, DTYPE_BF16, false, true, 90, /* a head of another kind */
        "F8_E4M3 products by skinny to 8 rows, slim to 16, cuBLASLt beyond; attention by team, of prompts by wide, "
        "heads of 128, BF16 cache"},
    {FORMAT_Q4M, FORMAT_Q8, 576, 1536, 9, 3, 64, DTYPE_F16, false, true, 90,
        "Q4_1 products by skinny to 3 rows, slim to 64, cuBLASLt beyond; attention by team, of prompts by wide, heads "
        "of 64, F16 cache"},
    {FORMAT_BF16, FORMAT_BF16, 2304, 9216, 8, 4, 256, DTYPE_BF16, false, false, 90,
        "BF16 products by skinny to 2 rows, even to 32, cuBLASLt beyond, gate and up by many from 343 where it fills "
        "the card; attention by team, of prompts by prefill, heads of 256, BF16 cache"},
    {FORMAT_BF16, FORMAT_BF16, 4096, 0, 32, 8, 128, DTYPE_BF16, false, false, 90,
        "BF16 products by skinny to 2 rows, even to 32, cuBLASLt beyond, experts by skinny; attention by team, of "
        "prompts by wide, heads of 128, BF16 cache"},
    {FORMAT_F32, FORMAT_F32, 4096, 14336, 32, 8, 128, DTYPE_F32, true, true, 90,
        "F32 products by plain; attention by simple, heads of 128, F32 cache"},
};

static struct dev device;
static struct matrix matrices[5];
static struct weight weights[5];

static const struct weight *bound(int i, enum format format, uint32_t n_out, uint32_t n_in)
{
    matrices[i] = {};
    matrices[i].format = format;
    matrices[i].n_out = n_out;
    matrices[i].n_in = n_in;
    matrices[i].row_bytes = 2 * n_in;
    weights[i] = {};
    weights[i].packed = &matrices[i];
    return &weights[i];
}

static bool is_so(const struct wants *w)
{
    struct kv_layer layer = {};
    layer.dtype = w->cache;
    device.capability = w->capability;
    device.n_sms = 132;
    device.rows_max = 2048;
    device.deterministic = device.chained = w->deterministic;
    struct describe_args a = {};
    a.q = bound(0, w->format, w->n_heads * w->head_dim, w->hidden);
    a.o = bound(1, w->format, w->hidden, w->n_heads * w->head_dim);
    a.gate = w->ffn > 0 ? bound(2, w->format, w->ffn, w->hidden) : NULL;
    a.down = w->ffn > 0 ? bound(3, w->format, w->hidden, w->ffn) : NULL;
    a.head = bound(4, w->head, 128256, w->hidden);
    a.is_plain = w->is_plain;
    a.layer = &layer;
    a.n_heads = w->n_heads;
    a.n_kv_heads = w->n_kv_heads;
    a.head_dim = a.rope_dims = w->head_dim;
    a.rope = ROPE_HALVES;
    char got[DESCRIBE_BYTES];
    cuda_describe_rows(&device, &a, got);
    const char *behind = strstr(got, "): ");
    if (behind != NULL && strcmp(behind + 3, w->text) == 0)
        return true;
    std::printf("FAILED: %s\nwanted: %s\n", got, w->text);
    return false;
}

int main()
{
    bool ok = true;
    for (const struct wants &w : all)
        ok = is_so(&w) && ok;
    return ok ? 0 : 1;
}
