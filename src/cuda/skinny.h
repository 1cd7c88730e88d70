/* Products of few rows: the weights are read once, from the layout they lie in, and the rest of the op is done where
 * the sums come out. skinny.cuh has the kernel for the fewest, slim.cuh the one for more; skinny_*.cu and slim_*.cu one
 * family of formats each; flow.cuh and even.cuh those for 16-bit floats on cards with a copy engine. */
#ifndef CUDA_SKINNY_H
#define CUDA_SKINNY_H

#include "cuda/cuda_int.h"

enum skinny_end {
    SKINNY_STORE, /* out[t][o] = cap(scale * (y + bias)) */
    SKINNY_ADD,   /* out[t][o] += y + bias */
    SKINNY_GLU,   /* act[t][o] = glu(gate) * up: row o of the first matrix and of the second */
    SKINNY_QKV,   /* heads turned by rope, q to out, k and v into the cache */
};

/* Where heads go when q, k and v are made. */
struct skinny_heads {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dims;
    enum rope_style rope;
    const float *rope_table;
    const uint32_t *pos, *slot;
    unsigned char *blocks;
    uint64_t block_bytes, k_at, v_at;
    uint32_t block_tokens, row_bytes;
    enum dtype kv_dtype;
    const float *bias[3]; /* q, k, v; NULL = none */
    uint32_t first_row;   /* of the heads q, k, v behind each other: where w0 begins */
};

struct skinny_job {
    enum skinny_end end;
    const unsigned char *w0, *w1; /* w1: the up matrix of SKINNY_GLU */
    const float *scale0, *scale1; /* F8 only */
    const float *bias0, *bias1;
    uint32_t row_bytes, n_in, n_out;
    uint64_t mat_bytes; /* between experts; scales lie n_out apart */
    const void *act;    /* [rows][n_in] in the format's type */
    uint32_t n_rows;
    float *out;
    uint32_t ldc;
    float scale, cap;
    bool rounds; /* sums become bf16 before GLU and QKV go on with them, as those of many rows do */
    enum glu glu;
    float *act_f32; /* SKINNY_GLU's result, [rows][n_out]; NULL where nobody wants that form */
    void *act_f16, *act_bf16;
    struct skinny_heads heads;

    /* A mixture: block y takes group y, which is up to 8 * NT entries of `order` that share an expert. An entry is a
     * (row, place in its route) pair; its activation row is entry / act_share. NULL groups: plain rows. */
    const uint32_t *groups; /* [n][3]: expert, first entry, entries; 0 entries behind the last */
    const uint32_t *order;
    uint32_t act_share, n_groups;
};

/* The rows that a product with this format reads. */
static inline const void *skinny_act(enum format format, const struct acts *in)
{
    return format == FORMAT_BF16 ? in->bf16 : in->f16;
}

/* Launch it for a matrix of this format. n_rows is the rows of the step, or the entries of the mixture. */
void cuda_skinny(struct dev *d, enum format format, const struct skinny_job *j);
bool skinny_has(enum format format);

/* flow.cu: for 16-bit floats in rows of so many, and for heads of such a shape; up to FLOW_ROWS rows. */
#define FLOW_ROWS 64
bool flow_has(const struct dev *d, enum format format, uint32_t n_in);
bool flow_has_heads(uint32_t head_dim, uint32_t rope_dims);
void cuda_flow(struct dev *d, enum format format, const struct skinny_job *j);

/* even.cu: for 16-bit floats in matrices of such a shape, and for heads of such a shape; up to EVEN_MOST rows. */
#define EVEN_MOST 32
bool even_has(const struct dev *d, enum format format, uint32_t n_out, uint32_t n_in);
bool even_has_heads(uint32_t head_dim, uint32_t rope_dims, enum rope_style rope);
void cuda_even(struct dev *d, enum format format, const struct skinny_job *j);
/* Gate and up lie within what a description for the copy engine reaches. */
bool skinny_is_near(const struct skinny_job *j);

/* many.cu: gate and up with 16-bit floats, for any number of rows, into rows of the same type; and whether its tiles
 * for so many rows keep the card busy. */
bool many_has(const struct dev *d, enum format format, uint32_t n_out, uint32_t n_in);
bool many_fills(const struct dev *d, uint32_t n_out, uint32_t n_rows);
void cuda_many(struct dev *d, enum format format, const struct skinny_job *j);

/* The families. nt is 1 or 2: blocks of 8 activation rows. */
void skinny_plain(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j);
void skinny_bytes(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j);
void skinny_nibbles(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j);
void skinny_k(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j);
void slim_plain(struct dev *d, enum format format, const struct skinny_job *j);
void slim_bytes(struct dev *d, enum format format, const struct skinny_job *j);
void slim_nibbles(struct dev *d, enum format format, const struct skinny_job *j);
void slim_k(struct dev *d, enum format format, const struct skinny_job *j);

#endif
