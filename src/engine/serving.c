/* From options to an engine; see serving.h. */
#include "engine/serving.h"

#include "base/aside.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/mem.h"
#include "base/team.h"
#include "cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CPU_SEQS       32 /* a step's products grow with its rows from the first on, so more only wait for each other */
#define CPU_ROWS       256
#define CPU_ITL_NS     (100 * NS_PER_MS) /* a step of prompts takes a CPU seconds: streams would stand still for them */
#define CPU_ITL_FACTOR 3                 /* for models whose streams alone take that long */
#define GPU_SEQS       256
#define GPU_ROWS       2048
#define SHARE_DEFAULT  0.5 /* of what is free beside the weights: the machine has other work */
#define SHARE_DEVICE   0.9 /* the same of a device, which has none; the rest is for what its products need */
#define SWAP_PROBES    4   /* blocks copied to learn what one costs */

struct sched_options serving_sched_default(const struct ops *ops)
{
    const bool is_cpu = ops == NULL || strncmp(ops->name, "cpu", 3) == 0;
    struct sched_options s = sched_options_default();
    s.max_num_seqs = is_cpu ? CPU_SEQS : GPU_SEQS;
    s.max_batched_tokens = is_cpu ? CPU_ROWS : GPU_ROWS;
    s.block_tokens = FIT_BLOCK_TOKENS;
    s.itl_target_ns = is_cpu ? CPU_ITL_NS : 0;
    s.itl_factor = is_cpu ? CPU_ITL_FACTOR : 0;
    return s;
}

enum err serving_tune(struct sched_options *s, const char *aim, char *said, struct error *e)
{
    if (strcmp(aim, "throughput") == 0) {
        s->max_num_seqs *= 2;
        s->max_batched_tokens = MAX(s->max_batched_tokens * 2, s->max_num_seqs);
        s->batching = BATCH_CONTINUOUS;
        s->order = ORDER_FCFS;
        s->itl_target_ns = 0;
        s->itl_factor = 0;
        snprintf(said, 256, "batching=continuous order=fcfs max-num-seqs=%u max-num-batched-tokens=%u itl-target-ms=0",
            s->max_num_seqs, s->max_batched_tokens);
    } else if (strcmp(aim, "latency") == 0) {
        s->max_num_seqs = MAX(s->max_num_seqs / 2, 1u);
        s->batching = BATCH_CONTINUOUS;
        s->order = ORDER_FCFS;
        s->itl_target_ns = 100 * NS_PER_MS;
        s->itl_factor = 0;
        snprintf(said, 256, "batching=continuous order=fcfs max-num-seqs=%u itl-target-ms=100", s->max_num_seqs);
    } else if (strcmp(aim, "ttft") == 0) {
        s->batching = BATCH_PREFILL_FIRST;
        s->order = ORDER_SJF;
        s->itl_target_ns = 0;
        s->itl_factor = 0;
        snprintf(said, 256, "batching=prefill-first order=sjf itl-target-ms=0");
    } else
        return FAIL(e, ERR_NOT_FOUND, "there is no aim '%s': throughput, latency and ttft", aim);
    return OK;
}

/* ---- what the model is --------------------------------------------------------------------------------------------
 */

/* The file's or folder's own name says more than what is written inside. */
static void name_it(struct serving *s, const struct serving_options *o)
{
    struct str name = str_of(o->name != NULL ? o->name : o->path);
    while (o->name == NULL && name.n > 1 && name.p[name.n - 1] == '/')
        name.n--;
    for (size_t i = name.n; i > 0 && o->name == NULL; i--)
        if (name.p[i - 1] == '/') {
            name = (struct str){name.p + i, name.n - i};
            break;
        }
    if (o->name == NULL && str_has_suffix(name, STR(".gguf")))
        name.n -= 5;
    str_show(name, s->name, sizeof s->name);
}

enum err serving_describe(struct serving *s, const struct serving_options *o, struct error *e)
{
    if (o->path == NULL)
        return FAIL(e, ERR_INVALID, "no model was named");
    name_it(s, o);
    if (o->dummy && dummy_config(o->path, &s->config, NULL) == OK) {
        s->config.generation = (struct model_generation){NAN, NAN, NAN, NAN, -1, -1};
        return OK;
    }
    TRY(model_source_open(o->path, &s->source, e));
    TRY(model_config_read(s->source, &s->config, e));
    if (s->config.quant_refusal[0] != '\0' && !o->dummy)
        return FAIL(e, ERR_UNSUPPORTED, "%s", s->config.quant_refusal);
    return OK;
}

/* ---- memory -------------------------------------------------------------------------------------------------------
 */

/* The pool: as asked for, else enough for every sequence at its full length, within a share of what is free. */
static uint64_t pool_blocks(const struct serving *s, const struct serving_options *o, uint64_t seq_blocks)
{
    const uint64_t block_bytes = s->block_bytes + serving_draft_block_bytes(s);
    const uint64_t all = (uint64_t)s->sched.max_num_seqs * seq_blocks;
    const bool own = s->ops->memory_free != NULL; /* the device's memory is its own */
    const double share = o->memory_share > 0.0 ? o->memory_share : own ? SHARE_DEVICE : SHARE_DEFAULT;
    const uint64_t fixed = fit_fixed_bytes(&s->fit) + s->fit.context * s->fit.rope_token_bytes;
    uint64_t room = s->fit.memory_bytes > fixed ? (uint64_t)((double)(s->fit.memory_bytes - fixed) * share) : 0;
    if (s->fit.memory_bytes == 0)
        room = SERVING_POOL_BYTES_MAX;
    if (o->memory_share == 0.0 && !own)
        room = MIN(room, SERVING_POOL_BYTES_MAX);
    return MAX(MIN(all, room / block_bytes), seq_blocks);
}

static uint32_t seq_blocks_of(const struct serving *s)
{
    return (s->fit.context + s->block_tokens - 1) / s->block_tokens;
}

static enum err size_it(struct serving *s, const struct serving_options *o, struct error *e)
{
    struct sched_options *sched = &s->sched;
    if (s->draft == NULL) /* sizes are found anew when another device has to do */
        TRY(serving_draft_describe(s, o, e));
    const bool count_device = o->memory_bytes == 0 && s->ops->memory_free != NULL;
    const struct fit_wants wants = {.kv_dtype = o->kv_dtype,
        .dummy_dtype = o->dummy_dtype,
        .fp8 = o->fp8,
        .ops = s->ops,
        .memory_bytes = count_device ? s->ops->memory_free() : o->memory_bytes,
        .rows = sched->max_batched_tokens,
        .out_rows = sched->out_max,
        .seqs = sched->max_num_seqs,
        .block_tokens = sched->block_tokens};
    TRY(fit_measure(&s->fit, &s->config, o->dummy ? NULL : s->source, &wants, e));
    s->fit.beside_bytes = serving_draft_fixed_bytes(s);
    s->fit.beside_token_bytes = serving_draft_block_bytes(s) / sched->block_tokens;
    s->block_tokens = sched->block_tokens;
    TRY(decoder_kv_block_bytes(&s->config, s->fit.kv_dtype, s->block_tokens, &s->block_bytes, e));
    const uint64_t held = o->n_blocks != 0 ? (uint64_t)o->n_blocks * s->block_tokens : UINT64_MAX;
    if (held < o->max_model_len)
        return FAIL(e, ERR_LIMIT, "%u KV blocks of %u tokens hold less than a context of %u", o->n_blocks,
            s->block_tokens, o->max_model_len);
    s->fit.n_blocks = s->ops->memory_free != NULL ? o->n_blocks : 0; /* a host's memory may be promised twice */
    TRY(fit_choose(&s->fit, &s->config, o->max_model_len, (uint32_t)MIN(held, (uint64_t)SERVING_CONTEXT_DEFAULT), e));
    const uint64_t seq_blocks = seq_blocks_of(s);
    const uint64_t n = o->n_blocks != 0 ? o->n_blocks : pool_blocks(s, o, seq_blocks);
    const uint64_t n_host = o->swap_bytes / s->block_bytes;
    if (n > KV_BLOCKS_MAX || n_host > KV_BLOCKS_MAX)
        return FAIL(e, ERR_LIMIT, "%llu KV blocks; the limit is %u", (unsigned long long)MAX(n, n_host), KV_BLOCKS_MAX);
    s->n_blocks = (uint32_t)n;
    s->n_host_blocks = (uint32_t)n_host;
    sched->context_max = s->fit.context;
    return OK;
}

/* ---- text ---------------------------------------------------------------------------------------------------------
 */

static void add_stop_id(struct serving *s, uint32_t id)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        if (s->stop_ids[i] == id)
            return;
    if (id != TOK_NONE && id < s->config.vocab && s->n_stop_ids < SERVING_STOP_IDS_MAX)
        s->stop_ids[s->n_stop_ids++] = id;
}

static enum err open_text(struct serving *s, const struct serving_options *o, struct error *e)
{
    for (uint32_t i = 0; i < s->config.n_eos; i++)
        add_stop_id(s, s->config.eos_ids[i]);
    if (s->source == NULL)
        return OK;
    TRY(model_tokenizer_open(s->source, o->copies_dir, &s->tok, e));
    const struct tok_roles *roles = tok_roles_of(s->tok);
    add_stop_id(s, roles->eos);
    add_stop_id(s, roles->eot);
    add_stop_id(s, roles->eom);
    struct vocab_view vocab = *tok_vocab(s->tok); /* only what the model can choose */
    vocab.n = MIN(vocab.n, s->config.vocab);
    TRY(grammar_vocab_new(&vocab, &s->grammar_vocab, e));
    TRY(tok_cutter_new(s->tok, &s->cutter, e));
    grammar_vocab_cutter(s->grammar_vocab, tok_cutter_cut, s->cutter);
    TRY(model_chat_open(s->source, &s->chats, e));
    return chat_set_count(s->chats) > 0 ? chat_set_pick(s->chats, NULL, false, &s->chat, e) : OK;
}

/* ---- weights, runner, engine --------------------------------------------------------------------------------------
 */

static struct kv_options kv_of(const struct serving *s)
{
    return (struct kv_options){.n_blocks = s->n_blocks,
        .n_host_blocks = s->n_host_blocks,
        .block_tokens = s->block_tokens,
        .seqs_max = sched_slots(&s->sched),
        .seq_blocks_max = seq_blocks_of(s),
        .prefix_cache = s->sched.prefix_cache};
}

static enum err open_decoder(
    struct serving *s, const struct serving_options *o, const struct runner_limits *l, struct error *e)
{
    struct weight_source src;
    if (o->dummy) {
        if (s->dummy == NULL)
            TRY(dummy_new(o->dummy_dtype, o->dummy_seed, &s->dummy, e));
        src = dummy_source(s->dummy);
    } else
        src = decoder_file_source(s->source);
    const struct decoder_options d = {.ops = s->ops,
        .threads = s->threads,
        .rows_max = l->rows_max,
        .out_max = l->out_max,
        .seqs_max = l->seqs_max,
        .table_max = l->table_max,
        .context_max = s->fit.context,
        .kv_dtype = s->fit.kv_dtype,
        .block_tokens = s->block_tokens,
        .n_blocks = s->n_blocks,
        .blocks_least = o->n_blocks != 0 ? o->n_blocks : seq_blocks_of(s),
        .deterministic = o->deterministic,
        .fp8 = o->fp8,
        .choices_dir = o->choices_dir,
        .progress = o->progress,
        .progress_ctx = o->progress_ctx,
        .stop = s->stop,
        .fit = &s->fit};
    TRY(decoder_open(&src, &s->config, &d, &s->decoder, e));
    s->n_blocks = decoder_kv(s->decoder)->n_blocks;
    return OK;
}

/* What copying one block costs, for the choice between swapping and computing again. */
static enum err measure_swap(struct serving *s, struct error *e)
{
    if (s->n_host_blocks == 0 || s->decoder == NULL || s->sched.swap_ns_per_block > 0.0)
        return OK;
    unsigned char *block = decoder_host_new(s->decoder, s->block_bytes);
    if (block == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a block");
    struct clock clock;
    clock_init(&clock);
    const uint64_t start = clock_now(&clock);
    for (uint32_t i = 0; i < SWAP_PROBES; i++) {
        const uint32_t b = i % s->n_blocks, place = 0;
        decoder_move_blocks(s->decoder,
            (struct move_blocks_args){.host = block, .src = &b, .dst = &place, .n = 1, .is_out = true, .waits = true});
        decoder_move_blocks(s->decoder, (struct move_blocks_args){.host = block, .src = &place, .dst = &b, .n = 1});
    }
    const enum err err = decoder_wait(s->decoder, e);
    s->sched.swap_ns_per_block = (double)(clock_now(&clock) - start) / (2.0 * SWAP_PROBES);
    decoder_host_free(s->decoder, block);
    return err;
}

/* Equal for what computes the same bits: every weight's name, type, shape and first bytes, the kernels, the KV type;
 * what the device chooses by measurement comes to it when it has. */
static uint64_t numerics_of(const struct serving *s, const struct serving_options *o)
{
    uint64_t h = hash64(s->ops->name, strlen(s->ops->name), (uint64_t)s->fit.kv_dtype);
    h = hash64(
        &o->dummy_seed, sizeof o->dummy_seed, h + (o->dummy ? 1 : 0) + (o->deterministic ? 2 : 0) + (o->fp8 ? 4 : 0));
    for (uint64_t i = 0; s->source != NULL && i < model_tensor_count(s->source); i++) {
        const struct model_tensor *t = model_tensor_at(s->source, i);
        h = hash64(t->name.p, t->name.n, h + t->view.dtype);
        h = hash64(t->view.shape, t->view.n_dims * sizeof t->view.shape[0], h);
        h = hash64(t->view.data, MIN(t->view.bytes, 64), h);
    }
    return h;
}

static enum err open_runner(struct serving *s, const struct serving_options *o, struct runner **out, struct error *e)
{
    struct kv_options kv = kv_of(s);
    struct runner_limits l = engine_runner_limits(&s->sched, &kv);
    struct runner *runner;
    if (o->fake != NULL) {
        struct fake_runner_options fake = *o->fake;
        fake.vocab = fake.vocab != 0 ? fake.vocab : s->config.vocab;
        return fake_runner_open(&fake, &l, s->n_blocks, s->n_host_blocks, s->block_tokens, out, e);
    }
    struct error first = {0};
    const enum err opened = open_decoder(s, o, &l, &first);
    if (opened == ERR_UNSUPPORTED && o->ops_fallback != NULL && o->ops_fallback != s->ops) {
        s->ops = o->ops_fallback; /* whose memory is another */
        TRY(size_it(s, o, e));
        kv = kv_of(s);
        l = engine_runner_limits(&s->sched, &kv);
        TRY(open_decoder(s, o, &l, e));
    } else if (opened != OK) {
        if (e != NULL && e->code == OK)
            *e = first;
        return opened;
    }
    TRY(measure_swap(s, e));
    TRY(model_runner_open(s->decoder, &l, s->n_host_blocks, &runner, e));
    if (o->late == 0) {
        *out = runner;
        return OK;
    }
    const enum err err = late_runner_open(runner, &l, out, e);
    if (err != OK)
        runner_close(runner);
    return err;
}

enum err serving_spec(
    const struct serving *s, enum spec_method method, uint32_t k, struct request_options *out, struct error *e)
{
    out->spec = method == SPEC_METHODS ? s->spec : method;
    out->spec_k = k != 0 ? k : s->spec_k;
    out->ngram_min = s->ngram_min;
    out->ngram_max = s->ngram_max;
    if (out->spec == SPEC_DRAFT && s->draft == NULL)
        return FAIL(
            e, ERR_UNSUPPORTED, "this server has no draft model; it was started without --speculative draft:MODEL");
    return OK;
}

static void set_spec(struct serving *s, const struct serving_options *o)
{
    s->spec = o->spec;
    s->spec_k = o->spec_k != 0 ? o->spec_k : SERVING_SPEC_K;
    s->ngram_min = o->ngram_min != 0 ? o->ngram_min : SERVING_NGRAM_MIN;
    s->ngram_max = MAX(o->ngram_max != 0 ? o->ngram_max : SERVING_NGRAM_MAX, s->ngram_min);
}

static void set_sched(struct serving *s, const struct serving_options *o)
{
    struct sched_options *sched = &s->sched;
    *sched = o->sched;
    sched->max_batched_tokens = MAX(sched->max_batched_tokens, sched->max_num_seqs);
    sched->out_max = MAX(sched->max_num_seqs, SERVING_OUT_MIN);
}

static enum err open_engine(struct serving *s, const struct serving_options *o, struct error *e)
{
    struct runner *runner;
    struct proposer *draft;
    const struct kv_options kv = kv_of(s);
    const struct runner_limits l = engine_runner_limits(&s->sched, &kv);
    TRY(open_runner(s, o, &runner, e));
    if (s->decoder != NULL)
        s->numerics ^= decoder_choices(s->decoder)->hash;
    enum err err = serving_draft_open(s, o, &l, &draft, e);
    if (err != OK) {
        runner_close(runner);
        return err;
    }
    const uint64_t inside = (uint64_t)s->sched.queue_max + s->sched.max_num_seqs;
    const struct engine_options eo = {.sched = s->sched,
        .kv = kv_of(s),
        .key = {.numerics = s->numerics},
        .runner = runner,
        .draft = draft,
        .vocab = s->config.vocab,
        .clock = s->clock,
        .requests_max = o->requests_max != 0 ? o->requests_max : (uint32_t)MIN(inside, (uint64_t)ENGINE_REQUESTS_MAX),
        .record_path = o->record_path,
        .log = o->log,
        .check_every_step = o->check_every_step};
    err = engine_new(&eo, &s->engine, e);
    if (err != OK) {
        runner_close(runner);
        proposer_close(draft);
    }
    return err;
}

static enum err open_rest(struct serving *s, const struct serving_options *o, struct error *e)
{
    TRY(size_it(s, o, e));
    s->numerics = numerics_of(s, o);
    return open_engine(s, o, e);
}

struct text_errand {
    struct serving *s;
    const struct serving_options *o;
};

static enum err run_text_errand(void *ctx, struct error *e)
{
    struct text_errand *x = ctx;
    return open_text(x->s, x->o, e);
}

/* Tokenizer, vocabulary and templates are made on one core while the others pack weights; when they are refused,
 * binding is given up. A draft is compared with the tokenizer first. */
static enum err open_text_and_engine(struct serving *s, const struct serving_options *o, struct error *e)
{
    struct text_errand x = {s, o};
    struct aside text;
    struct error second = {0};
    if (o->draft_path != NULL) {
        TRY(open_text(s, o, e));
        return open_rest(s, o, e);
    }
    aside_start(&text, run_text_errand, &x);
    s->stop = &text.failed;
    const enum err err = open_rest(s, o, &second);
    s->stop = NULL;
    TRY(aside_join(&text, e));
    if (err != OK && e != NULL && e->code == OK)
        *e = second;
    return err;
}

enum err serving_open(struct serving *s, const struct serving_options *o, struct error *e)
{
    clock_init(&s->own_clock);
    const uint64_t start = clock_now(&s->own_clock);
    s->clock = o->clock != NULL ? o->clock : &s->own_clock;
    s->ops = o->ops != NULL ? o->ops : cpu_ops();
    s->threads = o->threads != 0 ? o->threads : team_cores();
    TRY(serving_describe(s, o, e));
    set_sched(s, o);
    set_spec(s, o);
    TRY(open_text_and_engine(s, o, e));
    s->load_ns = clock_now(&s->own_clock) - start;
    return OK;
}

void serving_close(struct serving *s)
{
    engine_free(s->engine);
    decoder_close(s->decoder);
    dummy_free(s->dummy);
    serving_draft_close(s);
    chat_set_free(s->chats);
    grammar_vocab_free(s->grammar_vocab);
    tok_cutter_free(s->cutter);
    tok_free(s->tok);
    model_source_close(s->source);
    memset(s, 0, sizeof *s);
}
