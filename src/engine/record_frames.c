/* What travels in a recording: tables of fields, for writer and reader alike. A new option of the scheduler needs its
 * row here; the size assertions below remind of that. */
#include "engine/record_int.h"

#include <string.h>

#define F(owner, name, type)                                                                                           \
    {                                                                                                                  \
        offsetof(struct owner, name), type                                                                             \
    }

static const struct field sched_fields[] = {
    F(sched_options, max_num_seqs, FIELD_U32),
    F(sched_options, max_batched_tokens, FIELD_U32),
    F(sched_options, out_max, FIELD_U32),
    F(sched_options, context_max, FIELD_U32),
    F(sched_options, block_tokens, FIELD_U32),
    F(sched_options, queue_max, FIELD_U32),
    F(sched_options, queue_tokens_max, FIELD_U64),
    F(sched_options, wait_max_ns, FIELD_U64),
    F(sched_options, pause_max_ns, FIELD_U64),
    F(sched_options, tenants_max, FIELD_U32),
    F(sched_options, tenant_queue_share, FIELD_F64),
    F(sched_options, batching, FIELD_ENUM),
    F(sched_options, interval, FIELD_U32),
    F(sched_options, ratio, FIELD_F64),
    F(sched_options, prefill_first_max_steps, FIELD_U32),
    F(sched_options, order, FIELD_ENUM),
    F(sched_options, vtc_input_weight, FIELD_F64),
    F(sched_options, vtc_output_weight, FIELD_F64),
    F(sched_options, admission, FIELD_ENUM),
    F(sched_options, watermark, FIELD_F64),
    F(sched_options, itl_target_ns, FIELD_U64),
    F(sched_options, itl_factor, FIELD_F64),
    F(sched_options, chunk_max, FIELD_U32),
    F(sched_options, preempt, FIELD_ENUM),
    F(sched_options, preempt_every, FIELD_U32),
    F(sched_options, swap_ns_per_block, FIELD_F64),
    F(sched_options, prefix_cache, FIELD_BOOL),
    F(sched_options, spec_always, FIELD_BOOL),
};

static const struct field kv_fields[] = {
    F(kv_options, n_blocks, FIELD_U32),
    F(kv_options, n_host_blocks, FIELD_U32),
    F(kv_options, block_tokens, FIELD_U32),
    F(kv_options, seqs_max, FIELD_U32),
    F(kv_options, seq_blocks_max, FIELD_U32),
    F(kv_options, prefix_cache, FIELD_BOOL),
};

static const struct field request_fields[] = {
    F(request_options, max_tokens, FIELD_U32),
    F(request_options, min_tokens, FIELD_U32),
    F(request_options, n_choices, FIELD_U32),
    F(request_options, sample.temperature, FIELD_F32),
    F(request_options, sample.top_k, FIELD_U32),
    F(request_options, sample.top_p, FIELD_F32),
    F(request_options, sample.min_p, FIELD_F32),
    F(request_options, sample.typical_p, FIELD_F32),
    F(request_options, sample.repetition_penalty, FIELD_F32),
    F(request_options, sample.presence_penalty, FIELD_F32),
    F(request_options, sample.frequency_penalty, FIELD_F32),
    F(request_options, sample.seed, FIELD_U64),
    F(request_options, lead.spaces, FIELD_U32),
    F(request_options, lead.first_token_only, FIELD_BOOL),
    F(request_options, show_special, FIELD_BOOL),
    F(request_options, mark_special, FIELD_BOOL),
    F(request_options, vocab_size, FIELD_U32),
    F(request_options, n_top, FIELD_U32),
    F(request_options, want_logprobs, FIELD_BOOL),
    F(request_options, want_prompt_logprobs, FIELD_BOOL),
    F(request_options, pool, FIELD_ENUM),
    F(request_options, tenant, FIELD_U32),
    F(request_options, priority, FIELD_I32),
    F(request_options, adapter, FIELD_U32),
    F(request_options, salt, FIELD_U64),
    F(request_options, ttft_target_ns, FIELD_U64),
    F(request_options, deadline_ns, FIELD_U64),
    F(request_options, read_window, FIELD_U32),
    F(request_options, n_resume, FIELD_U32),
    F(request_options, spec, FIELD_ENUM),
    F(request_options, spec_k, FIELD_U32),
};

const struct fields record_sched_fields = {sched_fields, COUNT_OF(sched_fields)};
const struct fields record_kv_fields = {kv_fields, COUNT_OF(kv_fields)};
const struct fields record_request_fields = {request_fields, COUNT_OF(request_fields)};

_Static_assert(sizeof(struct kv_options) == 24, "a new option of kv needs its row");

uint64_t field_get(const void *from, const struct field *f)
{
    const unsigned char *p = (const unsigned char *)from + f->at;
    uint64_t u64 = 0;
    uint32_t u32 = 0;
    bool b = false;
    switch (f->type) {
    case FIELD_U64:
    case FIELD_F64: memcpy(&u64, p, sizeof u64); return u64;
    case FIELD_BOOL: memcpy(&b, p, sizeof b); return b ? 1 : 0;
    case FIELD_U32:
    case FIELD_I32:
    case FIELD_F32:
    case FIELD_ENUM: break;
    }
    memcpy(&u32, p, sizeof u32);
    return u32;
}

void field_set(void *to, const struct field *f, uint64_t bits)
{
    unsigned char *p = (unsigned char *)to + f->at;
    const uint32_t u32 = (uint32_t)bits;
    const bool b = bits != 0;
    switch (f->type) {
    case FIELD_U64:
    case FIELD_F64: memcpy(p, &bits, sizeof bits); return;
    case FIELD_BOOL: memcpy(p, &b, sizeof b); return;
    case FIELD_U32:
    case FIELD_I32:
    case FIELD_F32:
    case FIELD_ENUM: memcpy(p, &u32, sizeof u32); return;
    }
}

_Static_assert(sizeof(enum batching) == 4, "an enum travels as 32 bits");

void record_plan_parts(const struct plan *p, struct plan_part out[PLAN_PARTS])
{
    const struct plan_part parts[PLAN_PARTS] = {
        {p, sizeof *p},
        {plan_token(p), p->n_rows * sizeof(int32_t)},
        {plan_pos(p), p->n_rows * sizeof(uint32_t)},
        {plan_seq_of_row(p), p->n_rows * sizeof(uint32_t)},
        {plan_kv_slot(p), p->n_rows * sizeof(uint32_t)},
        {plan_out_row(p), p->n_out * sizeof(uint32_t)},
        {plan_seqs(p), p->n_seqs * sizeof(struct plan_seq)},
        {plan_table(p), p->n_table * sizeof(uint32_t)},
        {plan_copies(p), p->n_copies * sizeof(struct kv_copy)},
        {plan_out_copies(p), p->n_out_copies * sizeof(struct kv_copy)},
        {plan_in_copies(p), p->n_in_copies * sizeof(struct kv_copy)},
        {plan_evictions(p), p->n_evictions * sizeof(struct kv_copy)},
        {plan_restores(p), p->n_restores * sizeof(struct kv_copy)},
    };
    memcpy(out, parts, sizeof parts);
}
