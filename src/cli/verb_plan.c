/* quern plan [MODEL]: what a model will need and give on this machine, before it is loaded.
 *
 * Memory is counted from the header (fit.c). Speed follows from two measured rates (measure.c) and these assumptions:
 * decoding reads every active weight once per step at the rate of a product with one row, and the keys and values of
 * the tokens so far at the same rate; prefill computes two operations per active weight and token at the rate of a
 * product with many rows; a step for several sequences takes the longer of reading and computing. Attention's own
 * arithmetic, norms and sampling are left out, so short models and long contexts come out somewhat too fast. */
#include "cli/cli.h"

#include "base/mem.h"
#include "base/team.h"
#include "cli/gpus.h"
#include "cli/inspect_int.h"
#include "cli/load.h"
#include "cli/measure.h"

#include <stdio.h>
#include <string.h>

#define BATCH_MAX 32 /* sequences of the prediction for many; more rarely run on one machine without a GPU */

struct plan {
    const struct options *o;
    struct load *load;
    uint32_t max_len;
    uint64_t n_seqs;
    uint64_t seq_bytes, need_bytes; /* one sequence at its full length; with max-num-seqs of them */
    uint64_t n_fit;                 /* sequences of max_len that fit */
    bool fits;
    struct measured m;
    struct gpus gpus;
    double decode_tok_s, decode_full_tok_s, prefill_tok_s, batch_tok_s; /* batch: n_batch sequences together */
    uint64_t n_batch;
    char advice[320];
};

static void predict_memory(struct plan *p)
{
    const struct fit *f = &p->load->fit;
    const uint64_t fixed = fit_fixed_bytes(f);
    p->seq_bytes = fit_sequence_bytes(f, p->max_len);
    p->need_bytes = fixed + p->seq_bytes * p->n_seqs;
    const uint64_t room = f->memory_bytes > fixed ? f->memory_bytes - fixed : 0;
    p->n_fit = room / MAX(p->seq_bytes, (uint64_t)1);
    p->fits = f->memory_bytes == 0 || p->need_bytes <= f->memory_bytes;
}

static void predict_speed(struct plan *p)
{
    const struct fit *f = &p->load->fit;
    const double read_s = (double)f->active_bytes / p->m.vector_bytes_s;
    const double kv_s = (double)f->kv_token_bytes * p->max_len / p->m.vector_bytes_s;
    const double token_s = 2.0 * (double)f->active_params / p->m.matrix_flops;
    p->decode_tok_s = 1.0 / read_s;
    p->decode_full_tok_s = 1.0 / (read_s + kv_s);
    p->prefill_tok_s = 1.0 / token_s;
    p->n_batch = MIN(MAX(p->n_fit, (uint64_t)1), (uint64_t)BATCH_MAX);
    p->batch_tok_s = (double)p->n_batch / MAX(read_s, token_s * (double)p->n_batch);
}

/* The longest sequence that fits with a cache of that dtype; 0 when none. */
static uint64_t longest(const struct plan *p, enum dtype kv)
{
    uint64_t block;
    if (decoder_kv_block_bytes(&p->load->config, kv, FIT_BLOCK_TOKENS, &block, NULL) != OK)
        return 0;
    return fit_longest(&p->load->fit, block / FIT_BLOCK_TOKENS, p->n_seqs);
}

static void advise(struct plan *p)
{
    const struct fit *f = &p->load->fit;
    char need[24], have[24];
    inspect_show_bytes(f->memory_bytes, have);
    if (p->fits) {
        snprintf(p->advice, sizeof p->advice, "It fits.");
        return;
    }
    if (fit_fixed_bytes(f) + fit_sequence_bytes(f, FIT_BLOCK_TOKENS) > f->memory_bytes) {
        const double bits = 8.0 * (double)f->memory_bytes * 0.9 / (double)MAX(f->n_params, (uint64_t)1);
        snprintf(p->advice, sizeof p->advice,
            "It does not fit: the weights alone need %s and there are %s. Take a smaller model%s.",
            inspect_show_bytes(fit_fixed_bytes(f), need), have,
            bits >= 2.5 && 8.0 * (double)f->weight_bytes / (double)MAX(f->n_params, (uint64_t)1) > bits
                ? ", or the same one with fewer bits per weight"
                : "");
        return;
    }
    const uint64_t here = MIN(longest(p, f->kv_dtype), p->max_len), q8 = MIN(longest(p, DTYPE_Q8_0), p->max_len);
    int at = snprintf(p->advice, sizeof p->advice, "It does not fit: %s are needed and there are %s. ",
        inspect_show_bytes(p->need_bytes, need), have);
    if (here > 0)
        at += snprintf(p->advice + at, sizeof p->advice - (size_t)at, "It does with --max-model-len %llu",
            (unsigned long long)here);
    if (q8 > here && f->kv_dtype != DTYPE_Q8_0 && f->kv_dtype != DTYPE_Q4_0)
        at += snprintf(p->advice + at, sizeof p->advice - (size_t)at, ", or %llu and --kv-cache-dtype q8_0",
            (unsigned long long)q8);
    if (p->n_seqs > 1)
        at += snprintf(p->advice + at, sizeof p->advice - (size_t)at, "; or with --max-num-seqs %llu",
            (unsigned long long)p->n_fit);
    snprintf(p->advice + at, sizeof p->advice - (size_t)at, ".");
}

static void print_text(const struct plan *p, struct out *out)
{
    const struct fit *f = &p->load->fit;
    char a[24], b[24], c[24];
    out_text(out, "model       ");
    out_safe(out, str_of(p->load->name));
    out_printf(out, ", %.2f M parameters", (double)f->n_params / 1e6);
    if (f->active_params < f->n_params * 9 / 10)
        out_printf(out, " (%.2f M at work for a token)", (double)f->active_params / 1e6);
    out_printf(out, ", mostly %s\n", dtype_name(f->work_dtype));
    out_printf(out, "machine     %s", p->load->ops->name);
    if (p->m.read_bytes_s > 0)
        out_printf(out, ", %u threads: reads %.1f GB/s,", p->load->threads, p->m.read_bytes_s / 1e9);
    out_printf(out, "%s weights %.1f GB/s, computes %.1f GFLOP/s\n", p->m.read_bytes_s > 0 ? "" : ":",
        p->m.vector_bytes_s / 1e9, p->m.matrix_flops / 1e9);
    out_printf(out, "            (measured in %.2f s with the model's kind of weights)\n", p->m.seconds);
    gpus_print_text(&p->gpus, out);
    out_printf(out, "memory      %s needed of %s free\n", inspect_show_bytes(p->need_bytes, a),
        f->memory_bytes != 0 ? inspect_show_bytes(f->memory_bytes, b) : "unknown");
    out_printf(out, "  weights   %s\n", inspect_show_bytes(f->weight_bytes, a));
    out_printf(out, "  cache     %s per token, %s per sequence of %u tokens, %s\n",
        inspect_show_bytes(f->kv_token_bytes, a), inspect_show_bytes(p->seq_bytes, b), p->max_len,
        dtype_name(f->kv_dtype));
    out_printf(out, "  buffers   %s\n", inspect_show_bytes(f->buffer_bytes, c));
    if (f->memory_bytes != 0)
        out_printf(
            out, "sequences   %llu of %u tokens fit at the same time\n", (unsigned long long)p->n_fit, p->max_len);
    out_printf(out, "prefill     %.0f tok/s\n", p->prefill_tok_s);
    out_printf(out, "decode      %.1f tok/s for one sequence, %.1f at its full length\n", p->decode_tok_s,
        p->decode_full_tok_s);
    if (p->n_batch > 1)
        out_printf(out, "            %.0f tok/s for %llu sequences together\n", p->batch_tok_s,
            (unsigned long long)p->n_batch);
    out_printf(out, "\n%s\n", p->advice);
}

static void print_json(const struct plan *p, struct out *out)
{
    const struct fit *f = &p->load->fit;
    out_text(out, "{\"model\":");
    out_json_str(out, str_of(p->load->name));
    out_printf(out, ",\"parameters\":%llu,\"active_parameters\":%llu,\"weights_dtype\":\"%s\",\"backend\":\"%s\"",
        (unsigned long long)f->n_params, (unsigned long long)f->active_params, dtype_name(f->work_dtype),
        p->load->ops->name);
    out_text(out, ",\"gpus\":");
    gpus_print_json(&p->gpus, out);
    out_printf(out, ",\"threads\":%u,\"max_model_len\":%u,\"max_num_seqs\":%llu,\"memory\":{\"weights_bytes\":%llu",
        p->load->threads, p->max_len, (unsigned long long)p->n_seqs, (unsigned long long)f->weight_bytes);
    out_printf(out, ",\"kv_cache_dtype\":\"%s\",\"kv_token_bytes\":%llu,\"sequence_bytes\":%llu,\"buffers_bytes\":%llu",
        dtype_name(f->kv_dtype), (unsigned long long)f->kv_token_bytes, (unsigned long long)p->seq_bytes,
        (unsigned long long)f->buffer_bytes);
    out_printf(out, ",\"needed_bytes\":%llu,\"machine_bytes\":%llu,\"fits\":%s},\"sequences_that_fit\":%llu",
        (unsigned long long)p->need_bytes, (unsigned long long)f->memory_bytes, p->fits ? "true" : "false",
        (unsigned long long)p->n_fit);
    out_text(out, ",\"measured\":{");
    if (p->m.read_bytes_s > 0)
        out_printf(out, "\"read_bytes_s\":%.0f,", p->m.read_bytes_s);
    out_printf(out, "\"vector_bytes_s\":%.0f,\"matrix_flops\":%.0f,\"seconds\":%.3f}", p->m.vector_bytes_s,
        p->m.matrix_flops, p->m.seconds);
    out_printf(out,
        ",\"predicted\":{\"prefill_tok_s\":%.2f,\"decode_tok_s\":%.3f,\"decode_full_context_tok_s\":%.3f,"
        "\"batch_sequences\":%llu,\"batch_tok_s\":%.2f},\"advice\":",
        p->prefill_tok_s, p->decode_tok_s, p->decode_full_tok_s, (unsigned long long)p->n_batch, p->batch_tok_s);
    out_json_str(out, str_of(p->advice));
    out_text(out, "}\n");
}

static enum err make_plan(struct plan *p, struct out *out, struct error *e)
{
    struct load *l = p->load;
    const struct load_wants wants = {.find = FIND_LOCAL, .out_rows = CHAT_ROWS_MAX};
    TRY(load_pick_ops(p->o, &l->ops, e));
    TRY(load_describe(l, p->o, &wants, e));
    l->threads = p->o->threads != 0 ? (uint32_t)p->o->threads : team_cores();
    if (p->o->max_model_len > l->config.context_length)
        return FAIL(e, ERR_INVALID, "option --max-model-len: %llu is more than the model's context of %u tokens",
            (unsigned long long)p->o->max_model_len, l->config.context_length);
    p->n_seqs = MAX(p->o->max_num_seqs, (uint64_t)1);
    p->max_len = p->o->max_model_len != 0 ? (uint32_t)p->o->max_model_len : l->config.context_length;
    predict_memory(p);
    gpus_find(&p->gpus, l->ops);
    TRY(measure_machine(l->ops, &l->fit, l->config.hidden, l->threads, &p->m, e));
    predict_speed(p);
    advise(p);
    if (p->o->json)
        print_json(p, out);
    else
        print_text(p, out);
    return OK;
}

enum err verb_plan(const struct options *o, struct out *out, struct error *e)
{
    struct plan p = {.o = o, .load = mem_zalloc(sizeof *p.load)};
    if (p.load == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to plan");
    const enum err err = make_plan(&p, out, e);
    load_close(p.load);
    mem_free(p.load);
    return err;
}
