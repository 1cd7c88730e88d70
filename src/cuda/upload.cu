/* Weights on their way from the file's map to the card. Whoever reads a page first pays for it, and a program's memory
 * reaches the card by way of a copy; so a team does both: a tile of rows is looked through for values that are not
 * finite and copied into pinned memory, of which there are two sides. While the copy engine takes one the team fills
 * the other. Made with the first weight, given back with the first step. Host code. */
extern "C" {
#include "base/mem.h"
#include "base/team.h"
#include "tensor/finite.h"
}
#include "cuda/cuda_int.h"

#include <atomic>
#include <cstring>

#define SIDE_BYTES  ((size_t)32 << 20)
#define TILE_BYTES  ((size_t)1 << 20)
#define THREADS_MAX 8 /* more than the machine's memory is fast enough for are of no use */

struct upload {
    struct team *team;
    unsigned char *sides[2];
    cudaEvent_t taken[2]; /* the copies from each side are done */
    uint32_t side;
};

struct upload_job {
    const struct tensor_view *v;
    uint64_t first, n_rows, tile_rows; /* rows of the view; of a tile */
    unsigned char *to;
    std::atomic<uint64_t> bad; /* the first element that is not finite; UINT64_MAX = none */
};

static void upload_tile(void *ctx, uint32_t tile, uint32_t)
{
    struct upload_job *j = (struct upload_job *)ctx;
    const size_t row_bytes = tensor_row_bytes(j->v);
    const uint64_t n_in = j->v->shape[j->v->n_dims - 1], at = tile * j->tile_rows;
    const uint64_t n = MIN(j->tile_rows, j->n_rows - at);
    struct tensor_view rows = *j->v;
    rows.n_dims = 2;
    rows.shape[0] = n;
    rows.shape[1] = n_in;
    rows.data = tensor_row(j->v, j->first + at);
    rows.bytes = n * row_bytes;
    uint64_t bad;
    if (!tensor_is_finite(&rows, &bad)) {
        bad += (j->first + at) * n_in;
        uint64_t least = j->bad.load();
        while (bad < least && !j->bad.compare_exchange_weak(least, bad))
            ;
    }
    memcpy(j->to + at * row_bytes, rows.data, rows.bytes);
}

void cuda_upload_end(struct dev *d)
{
    struct upload *u = d->upload;
    if (u == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        if (u->taken[i] != NULL) {
            CUDA_DO(d, cudaEventSynchronize(u->taken[i]));
            CUDA_DO(d, cudaEventDestroy(u->taken[i]));
        }
        if (u->sides[i] != NULL)
            CUDA_DO(d, cudaFreeHost(u->sides[i]));
    }
    team_free(u->team);
    mem_free(u);
    d->upload = NULL;
}

static enum err begin(struct dev *d, struct error *e)
{
    if (d->upload != NULL)
        return OK;
    struct upload *u = (struct upload *)mem_zalloc(sizeof *u);
    if (u == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to bring weights to the card");
    d->upload = u;
    for (int i = 0; i < 2; i++) {
        CUDA_DO(d, cudaEventCreateWithFlags(&u->taken[i], cudaEventDisableTiming));
        CUDA_DO(d, cudaMallocHost((void **)&u->sides[i], SIDE_BYTES));
    }
    const enum err err = d->failed != 0
                             ? FAIL(e, ERR_NOMEM, "no pinned memory to bring weights to the card: %s failed", d->where)
                             : team_new(&u->team, MIN(team_cores(), THREADS_MAX), e);
    if (err != OK)
        cuda_upload_end(d);
    return err;
}

enum err cuda_upload(
    struct dev *d, const struct tensor_view *v, uint64_t first, uint64_t n_rows, unsigned char *to, struct error *e)
{
    TRY(begin(d, e));
    struct upload *u = d->upload;
    const size_t row_bytes = tensor_row_bytes(v);
    if (row_bytes > SIDE_BYTES)
        return FAIL(e, ERR_LIMIT, "a row has %zu bytes; the most is %zu", row_bytes, SIDE_BYTES);
    struct upload_job j = {v, first, 0, MAX((uint64_t)1, TILE_BYTES / row_bytes), NULL, UINT64_MAX};
    for (uint64_t done = 0; done < n_rows && d->failed == 0; done += j.n_rows, j.first += j.n_rows) {
        j.n_rows = MIN(n_rows - done, SIDE_BYTES / row_bytes);
        j.to = u->sides[u->side];
        CUDA_DO(d, cudaEventSynchronize(u->taken[u->side]));
        team_run(u->team, (uint32_t)((j.n_rows + j.tile_rows - 1) / j.tile_rows), upload_tile, &j);
        CUDA_DO(
            d, cudaMemcpyAsync(to + done * row_bytes, j.to, j.n_rows * row_bytes, cudaMemcpyHostToDevice, d->stream));
        CUDA_DO(d, cudaEventRecord(u->taken[u->side], d->stream));
        u->side ^= 1;
    }
    const uint64_t bad = j.bad.load();
    return bad == UINT64_MAX
               ? OK
               : FAIL(e, ERR_FORMAT, "it holds a value that is not finite, near element %llu", (unsigned long long)bad);
}
