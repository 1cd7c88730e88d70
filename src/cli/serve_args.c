/* Options to a server's engine; see serve_args.h. --tune is applied first, so that whatever was said beside it wins. */
#include "cli/serve_args.h"

#include "cli/fit.h"
#include "cli/load.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

static const char *const aims[] = {NULL, "throughput", "latency", "ttft"};

static enum err scheduling(const struct options *o, struct sched_options *s, char *said, struct error *e)
{
    said[0] = '\0';
    if (o->tune != 0)
        TRY(serving_tune(s, aims[o->tune], said, e));
    if (o->max_num_seqs != 0)
        s->max_num_seqs = (uint32_t)o->max_num_seqs;
    if (o->max_batched_tokens != 0)
        s->max_batched_tokens = (uint32_t)o->max_batched_tokens;
    if (o->max_batched_tokens != 0 && o->max_batched_tokens < s->max_num_seqs)
        return FAIL(e, ERR_INVALID, "option --max-num-batched-tokens: %llu is less than the %u sequences of a step",
            (unsigned long long)o->max_batched_tokens, s->max_num_seqs);
    if (o->batching != BATCHING_AUTO)
        s->batching = (enum batching)(o->batching - 1);
    if (o->order != ORDER_AUTO)
        s->order = (enum queue_order)(o->order - 1);
    s->interval = (uint32_t)o->batch_interval;
    s->ratio = o->batch_ratio;
    s->admission = (enum admission)o->admission;
    s->watermark = o->watermark;
    if (!isnan(o->itl_target_ms)) {
        s->itl_target_ns = (uint64_t)(o->itl_target_ms * (double)NS_PER_MS);
        s->itl_factor = 0;
    }
    s->preempt = (enum preempt_mode)o->preemption;
    s->queue_max = (uint32_t)o->queue_max;
    s->queue_tokens_max = o->queue_tokens_max;
    s->wait_max_ns = o->max_wait_ms * NS_PER_MS;
    s->prefix_cache = o->prefix_caching;
    if (o->block_size % 16 != 0)
        return FAIL(
            e, ERR_INVALID, "option --block-size: %llu is not a multiple of 16", (unsigned long long)o->block_size);
    s->block_tokens = (uint32_t)o->block_size;
    return OK;
}

#define DRAFT "draft:"

const char *serve_args_draft(const struct options *o)
{
    return strncmp(o->speculative, DRAFT, strlen(DRAFT)) == 0 ? o->speculative + strlen(DRAFT) : NULL;
}

static enum err speculative(const struct options *o, struct serving_options *out, struct error *e)
{
    const char *draft = serve_args_draft(o);
    if (draft != NULL && draft[0] != '\0')
        out->spec = SPEC_DRAFT;
    else if (strcmp(o->speculative, "ngram") == 0)
        out->spec = SPEC_NGRAM;
    else if (strcmp(o->speculative, "none") != 0)
        return FAIL(
            e, ERR_INVALID, "option --speculative: '%s' is none of none, ngram and draft:MODEL", o->speculative);
    if (o->ngram_min > o->ngram_max)
        return FAIL(e, ERR_INVALID, "option --speculative-ngram-min: %llu is more than --speculative-ngram-max %llu",
            (unsigned long long)o->ngram_min, (unsigned long long)o->ngram_max);
    out->spec_k = (uint32_t)o->speculative_k;
    out->ngram_min = (uint32_t)o->ngram_min;
    out->ngram_max = (uint32_t)o->ngram_max;
    return OK;
}

enum err serve_args(const struct options *o, const char *path, const char *copies_dir, struct serving_options *out,
    char *said, struct error *e)
{
    const struct ops *ops;
    TRY(load_pick_ops(o, &ops, e));
    *out = (struct serving_options){.path = path,
        .copies_dir = copies_dir,
        .dummy = o->load_format == LOAD_DUMMY,
        .dummy_dtype = fit_weight_dtype(o->weight_dtype),
        .dummy_seed = o->seed == OPTION_UNSET ? 0 : o->seed,
        .ops = ops,
        .ops_fallback = o->device == DEVICE_AUTO ? cpu_ops() : NULL,
        .threads = (uint32_t)o->threads,
        .deterministic = o->deterministic,
        .fp8 = o->quantization == QUANTIZATION_FP8,
        .max_model_len = (uint32_t)o->max_model_len,
        .kv_dtype = fit_kv_dtype(o->kv_cache_dtype),
        .n_blocks = (uint32_t)o->kv_blocks,
        .memory_share = isnan(o->kv_memory_share) ? 0.0 : o->kv_memory_share,
        .memory_bytes = o->memory_bytes,
        .swap_bytes = o->swap_bytes,
        .sched = serving_sched_default(ops),
        .record_path = o->record};
    if (o->weight_dtype != 0 && !out->dummy)
        return FAIL(e, ERR_INVALID,
            "option --dtype is for --load-format dummy; weights of a file are computed as they are stored");
    TRY(speculative(o, out, e));
    return scheduling(o, &out->sched, said, e);
}
