/* KV blocks between the cache and pinned host memory, over a stream of their own; the order is in ops.h. Host code. The
 * two streams wait for each other on the card, by events; the host waits for nothing. */
#include "cuda/cuda_int.h"

void cuda_move_blocks(struct dev *d, const struct move_blocks_args *a)
{
    const uint64_t bytes = a->kv->block_bytes;
    if (a->waits) { /* the step that flies may still write them */
        CUDA_DO(d, cudaEventRecord(d->moves_from, d->stream));
        CUDA_DO(d, cudaStreamWaitEvent(d->moves, d->moves_from, 0));
    }
    for (uint32_t i = 0; i < a->n; i++) {
        unsigned char *const block = a->kv->blocks + (a->is_out ? a->src[i] : a->dst[i]) * bytes;
        unsigned char *const place = a->host + (a->is_out ? a->dst[i] : a->src[i]) * bytes;
        if (a->is_out)
            CUDA_DO(d, cudaMemcpyAsync(place, block, bytes, cudaMemcpyDeviceToHost, d->moves));
        else
            CUDA_DO(d, cudaMemcpyAsync(block, place, bytes, cudaMemcpyHostToDevice, d->moves));
    }
    CUDA_DO(d, cudaEventRecord(d->moves_done, d->moves)); /* the next step may overwrite or read them */
    CUDA_DO(d, cudaStreamWaitEvent(d->stream, d->moves_done, 0));
}
