/* How a product is cut for even.cuh, and its launches. */
#include "cuda/even.cuh"

/* Shared memory of a product that adds: two of them do not fit on a multiprocessor, but one and another product. The
 * projection may be let in while attention's blocks leave, and would crowd where they leave first. */
#define ALONE_BYTES ((size_t)113 << 10)
#define SM_BYTES    ((size_t)228 << 10) /* of a multiprocessor; a block takes 1 KB more than it asks for */
#define BLOCK_BYTES ((1u << 10) + 2 * EVEN_STAGES * sizeof(uint64_t))

static_assert(2 * (ALONE_BYTES + BLOCK_BYTES) > SM_BYTES, "two that add do not fit");
static_assert(ALONE_BYTES + EVEN_BYTES + 2 * BLOCK_BYTES + sizeof(struct even_rows) <= SM_BYTES, "one and another do");
static_assert(ALONE_BYTES >= EVEN_BYTES, "a ring has room");

#define ONE_IDLE_OF 16 /* multiprocessors may have nothing to do, where tiles are shared better without it */
#define UNITS_LEAST 4  /* of a block: more blocks would wait longer for each other's sums than they gain */

bool even_has(const struct dev *d, enum format format, uint32_t n_out, uint32_t n_in)
{
    return d->capability >= 90 && (format == FORMAT_F16 || format == FORMAT_BF16) && n_in % 8 == 0 && n_out % 16 == 0;
}

/* Halves of heads must come in as many runs as a box has, or a part of that. */
bool even_has_heads(uint32_t head_dim, uint32_t rope_dims, enum rope_style rope)
{
    const uint32_t runs = head_dim / 16, box = EVEN_ROWS / 16;
    if (head_dim % 16 != 0)
        return false;
    return rope != ROPE_HALVES || (rope_dims == head_dim && (runs >= box ? runs % box == 0 : box % runs == 0));
}

/* How the pairs of runs of a matrix lie: rows of a run, its second of two, and the pair behind it, all in bytes; pairs
 * come in groups. */
struct runs {
    uint64_t row, second, next, group;
    uint32_t n, n_groups; /* pairs of a group; groups */
};

static struct runs runs_of(const struct skinny_job *j)
{
    const uint64_t row = j->row_bytes;
    struct runs r = {row, 8 * row, 16 * row, j->n_out * row, j->n_out / 16, 1};
    if (j->end == SKINNY_GLU) {
        r.second = (uint64_t)(j->w1 > j->w0 ? j->w1 - j->w0 : j->w0 - j->w1);
        r.next = 8 * row;
        r.n = j->n_out / 8;
    } else if (j->end == SKINNY_QKV && j->heads.rope == ROPE_HALVES) {
        r.second = j->heads.head_dim / 2 * row;
        r.next = 8 * row;
        r.group = j->heads.head_dim * row;
        r.n = j->heads.head_dim / 16;
        r.n_groups = j->n_out / j->heads.head_dim;
    } else if (j->end == SKINNY_QKV) {
        r.row = 2 * row;
        r.second = row;
    }
    return r;
}

static bool map_weights(struct dev *d, struct even_job *f)
{
    const struct skinny_job *j = &f->j;
    const struct runs r = runs_of(j);
    const bool is_grouped = j->end == SKINNY_QKV && j->heads.rope == ROPE_HALVES;
    const uint32_t box = EVEN_ROWS / 16, runs = is_grouped && r.n < box ? r.n : box;
    const uint64_t sizes[5] = {(uint64_t)j->n_in * 2, 8, 2, r.n, r.n_groups};
    const uint64_t strides[4] = {r.row, r.second, r.next, r.group};
    const uint32_t boxes[5] = {TMA_COLUMN, 8, 2, runs, box / runs};
    f->group_runs = is_grouped ? r.n : UINT32_MAX;
    return tma_map_boxes(d, &f->w, j->end == SKINNY_GLU && j->w1 < j->w0 ? j->w1 : j->w0, 5, sizes, strides, boxes);
}

static bool map_rows(struct dev *d, struct even_job *f)
{
    const uint32_t rows = 8 * even_eights(f->j.n_rows);
    const uint64_t sizes[2] = {(uint64_t)f->j.n_in * 2, f->j.n_rows}, stride = sizes[0];
    const uint32_t box[2] = {TMA_COLUMN, rows};
    return tma_map_boxes(d, &f->act, f->j.act, 2, sizes, &stride, box);
}

template <typename T, int NT> static void launch_end(struct dev *d, struct even_job *f)
{
    void (*const kernel)(const struct even_job) = f->j.end == SKINNY_STORE ? even_kernel<T, NT, SKINNY_STORE>
                                                  : f->j.end == SKINNY_ADD ? even_kernel<T, NT, SKINNY_ADD>
                                                  : f->j.end == SKINNY_GLU ? even_kernel<T, NT, SKINNY_GLU>
                                                                           : even_kernel<T, NT, SKINNY_QKV>;
    /* Without a word a multiprocessor sets aside what one such block needs, and the next product finds no room. */
    CUDA_DO(d, cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                   cudaSharedmemCarveoutMaxShared));
    cuda_launch(d, kernel, dim3(f->n_blocks), EVEN_THREADS + 32,
        f->j.end == SKINNY_ADD ? ALONE_BYTES : EvenShape<NT>::BYTES, *f);
}

/* How many blocks of each tile have nothing else, at least. */
static uint32_t inner_blocks(uint32_t n_tiles, uint32_t n_blocks)
{
    uint32_t least = n_blocks;
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        const uint32_t first = (tile * n_blocks + n_tiles - 1) / n_tiles, end = (tile + 1) * n_blocks / n_tiles;
        least = MIN(least, end > first ? end - first : 0);
    }
    return least;
}

/* As many blocks as there are multiprocessors, or a few less where every tile has more of them to itself then, two at
 * least. */
static void cut_even(const struct dev *d, uint32_t n_tiles, struct even_job *f)
{
    const uint32_t units = (f->n_units + UNITS_LEAST - 1) / UNITS_LEAST, most = MIN(units, d->n_sms);
    uint32_t best = 1;
    f->n_blocks = most;
    for (uint32_t n = most; n >= 2 * n_tiles && n * ONE_IDLE_OF >= most * (ONE_IDLE_OF - 1); n--) {
        const uint32_t inner = inner_blocks(n_tiles, n);
        if (inner > best) {
            best = inner;
            f->n_blocks = n;
        }
        if (best == most / n_tiles) /* there are no more */
            break;
    }
    f->is_shared = best > 1;
}

/* For any rows, since graphs keep it; resident_several.cuh has two areas of two places for a block. */
bool cuda_even_rooms(struct dev *d)
{
    const size_t bytes = 4 * (size_t)d->n_sms * EVEN_ROWS * EVEN_MOST * sizeof(float);
    return cuda_room(d, (void **)&d->even_parts, &d->even_parts_bytes, bytes) != NULL;
}

bool even_describe(struct dev *d, const struct skinny_job *j, struct even_job *f)
{
    const uint32_t rows = j->end == SKINNY_GLU ? 2 * j->n_out : j->n_out;
    *f = {};
    f->j = *j;
    f->per_tile = (j->n_in + EVEN_K - 1) / EVEN_K;
    const uint32_t n_tiles = (rows + EVEN_ROWS - 1) / EVEN_ROWS;
    f->n_units = n_tiles * f->per_tile;
    cut_even(d, n_tiles, f);
    if (!cuda_even_rooms(d))
        return false;
    f->parts = d->even_parts;
    return map_weights(d, f) && map_rows(d, f);
}

template <typename T> static void launch_rows(struct dev *d, struct even_job *f)
{
    switch (even_eights(f->j.n_rows)) {
    case 1: launch_end<T, 1>(d, f); break;
    case 2: launch_end<T, 2>(d, f); break;
    default: launch_end<T, 4>(d, f); break;
    }
}

void cuda_even(struct dev *d, enum format format, const struct skinny_job *j)
{
    struct even_job f;
    if (!even_describe(d, j, &f))
        return;
    if (format == FORMAT_F16)
        launch_rows<__half>(d, &f);
    else
        launch_rows<__nv_bfloat16>(d, &f);
}
