/* See testing_storm.h. */
#include "engine/testing_storm.h"

#include "base/mem.h"
#include "base/rng.h"
#include "cpu/cpu.h"
#include "engine/testing_device.h"
#include "engine/testing_engine.h"
#include "model/model.h"
#include "model/tokenizer.h"

#include <stdlib.h>

#define CHOICES_MAX 3
#define TOKENS_MAX  24
#define NOISE_MAX   8

struct answer { /* of one choice */
    uint32_t n, end, stop_index;
    uint64_t text_bytes;
    uint32_t ids[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    struct token_logprob top[TOKENS_MAX][2];
};

struct stage { /* the model, and what the requests are made of */
    const struct storm_model *m;
    struct model_source *source, *draft; /* NULL: random weights, none */
    uint32_t n, vocab_size;
    struct model_config *cfg, *draft_cfg;
    struct dummy *dummy;
    struct vocab_view vocab;
    struct grammar_vocab *grammar_vocab;
    struct grammar *grammars[3];
    uint32_t n_grammars;
    struct tok *tok; /* of a model from a file, with what goes with it */
    struct tok_cutter *cutter;
    struct grammar_vocab *tok_vocab;
    struct answer *alone; /* [n][CHOICES_MAX] */
    uint32_t n_wrong;     /* answers that were not those alone */
    bool may_be_wrong;
    enum spec_method spec; /* of the storm that blows */
    struct grammar_vocab *words;
    struct grammar *grammar; /* of some requests */
};

struct house { /* one engine */
    struct clock clock;
    struct decoder *decoder;
    struct engine *en;
    struct engine_client *client;
    const struct storm *storm;
};

static uint64_t draw(uint64_t seed, uint64_t i)
{
    return rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY});
}

struct sched_options storm_sched(void)
{
    struct sched_options s = sched_options_default();
    s.max_num_seqs = 16;
    s.max_batched_tokens = 64;
    s.out_max = 16;
    s.context_max = STORM_CONTEXT;
    s.block_tokens = 16;
    s.queue_max = 2 * STORM_REQUESTS;
    return s;
}

/* ---- requests -----------------------------------------------------------------------------------------------------
 */

/* Prompts share beginnings: one of four families, cut at a random length. */
static void make_prompt(uint32_t i, uint32_t vocab, uint32_t *ids, uint32_t *n)
{
    *n = 1 + (uint32_t)(draw(11, i) % (i % 5 == 0 ? 120 : 40));
    const uint32_t own = (uint32_t)(draw(12, i) % 3) == 0 ? 0 : (uint32_t)(draw(13, i) % *n);
    for (uint32_t k = 0; k < *n; k++)
        ids[k] = (uint32_t)(draw(k < own || own == 0 ? 1000 + i % 4 : 2000 + i, k) % vocab);
}

static void make_sampling(uint32_t i, struct sample_params *p)
{
    *p = sample_params_default();
    p->seed = draw(14, i) % 100;
    p->temperature = i % 3 == 0 ? 0.0f : 0.5f + (float)(draw(15, i) % 10) / 10.0f;
    p->top_p = i % 4 == 1 ? 0.9f : 1.0f;
    p->top_k = i % 7 == 2 ? 20 : 0;
    p->min_p = i % 11 == 3 ? 0.05f : 0.0f;
    if (i % 5 == 1) {
        p->repetition_penalty = 1.2f;
        p->presence_penalty = 0.5f;
        p->frequency_penalty = 0.3f;
    }
}

static struct request *make_request(const struct stage *st, uint32_t i)
{
    static const struct str stops[] = {STR("ab"), STR("q"), STR("hello")};
    static const struct logit_bias bias[] = {{7, 3.0f}, {9, -100.0f}};
    const uint32_t stop_ids[] = {3, (uint32_t)(draw(16, i) % st->vocab_size)};
    uint32_t prompt[STORM_CONTEXT];
    struct error e;
    struct request *r = NULL;
    struct request_options o = {.prompt = prompt,
        .max_tokens = 1 + (uint32_t)(draw(17, i) % TOKENS_MAX),
        .n_choices = i % 6 == 4 ? 1 + (uint32_t)(draw(18, i) % CHOICES_MAX) : 1,
        .stop_ids = stop_ids,
        .n_stop_ids = i % 2 == 0 ? 2 : 0,
        .min_tokens = i % 8 == 4 ? 6 : 0,
        .vocab_size = st->vocab_size,
        .want_logprobs = i % 3 == 1,
        .n_top = i % 9 == 1 ? 2 : 0,
        .tenant = i % 3,
        .priority = (int32_t)(draw(19, i) % 4),
        .ttft_target_ns = draw(20, i) % 5 * NS_PER_MS};
    make_prompt(i, st->vocab_size, prompt, &o.n_prompt);
    make_sampling(i, &o.sample);
    if (st->m->is_greedy)
        o.sample = (struct sample_params){
            .top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f, .presence_penalty = i % 7 == 0 ? 0.4f : 0.0f};
    o.spec = st->spec;
    o.spec_k = 1 + i % SPEC_K_MAX;
    o.ngram_min = 1 + i % 3;
    o.ngram_max = 4;
    if (i % 10 == 6) {
        o.sample.n_bias = 2;
        o.sample.bias = bias;
    }
    if (i % 8 == 5) {
        grammar_ref(st->grammar);
        o.grammar = st->grammar;
    }
    if (i % 4 == 3) {
        o.vocab = &st->vocab;
        assert_ok(e, stop_set_new(&o.stops, stops, COUNT_OF(stops), &e));
    }
    if (i % 5 == 2) {
        o.grammar = st->grammars[i / 5 % st->n_grammars];
        grammar_ref(o.grammar);
    }
    assert_ok(e, request_new(&o, &r, &e));
    return r;
}

static void write_down(const struct request *r, struct answer *out)
{
    for (uint32_t c = 0; c < r->n_choices; c++) {
        const struct choice *ch = &r->choices[c];
        struct answer *a = &out[c];
        memset(a, 0, sizeof *a);
        a->n = atomic_load(&ch->n_out);
        a->end = (uint32_t)atomic_load(&ch->end);
        a->stop_index = ch->stop_index;
        a->text_bytes = ch->text_bytes;
        memcpy(a->ids, ch->ids, a->n * sizeof *a->ids);
        if (ch->logprobs != NULL)
            memcpy(a->logprobs, ch->logprobs, a->n * sizeof *a->logprobs);
        if (ch->top != NULL)
            memcpy(a->top, ch->top, a->n * sizeof a->top[0]);
    }
}

static void compare(struct stage *st, const struct storm *storm, uint32_t i, const struct request *r)
{
    struct answer got[CHOICES_MAX];
    const struct answer *want = &st->alone[(size_t)i * CHOICES_MAX];
    write_down(r, got);
    for (uint32_t c = 0; c < r->n_choices; c++) {
        uint32_t k = 0;
        while (k < MIN(got[c].n, want[c].n) && got[c].ids[k] == want[c].ids[k])
            k++;
        const bool same = memcmp(&got[c], &want[c], sizeof got[c]) == 0;
        st->n_wrong += !same;
        if (!same && !st->may_be_wrong)
            fail_msg(
                "%s, %s: request %u, choice %u differs from its answer alone: %u tokens for %u, end %s for %s, the "
                "first %u tokens equal",
                st->m->shape, storm->name, i, c, got[c].n, want[c].n, req_end_name((enum req_end)got[c].end),
                req_end_name((enum req_end)want[c].end), k);
    }
}

/* ---- engines ------------------------------------------------------------------------------------------------------
 */

/* A draft with a pool that is too small for all, so that it forgets and catches up. */
static struct proposer *open_draft(
    const struct stage *st, const struct engine_options *o, const struct runner_limits *l, struct decoder_options d)
{
    struct error e;
    struct proposer *p = NULL;
    struct draft_options draft = {.vocab = st->vocab_size,
        .seqs_max = l->seqs_max,
        .rows_max = l->rows_max,
        .context_max = STORM_CONTEXT,
        .block_tokens = o->kv.block_tokens,
        .n_blocks = 60,
        .table_max = l->table_max,
        .slots_max = sched_slots(&o->sched)};
    const struct weight_source src = decoder_file_source(st->draft);
    d.n_blocks = draft.n_blocks;
    d.out_max = l->seqs_max;
    assert_ok(e, decoder_open(&src, st->draft_cfg, &d, &draft.decoder, &e));
    assert_ok(e, draft_proposer_open(&draft, &p, &e));
    return p;
}

static void house_open(struct house *h, const struct stage *st, const struct storm *storm)
{
    struct error e;
    *h = (struct house){.storm = storm};
    clock_init(&h->clock);
    struct engine_options o = {.sched = storm->sched,
        .clock = &h->clock,
        .vocab = st->vocab_size,
        .requests_max = 2 * st->n + NOISE_MAX,
        .check_every_step = true,
        .no_thread = !storm->threaded};
    if (storm->spec != SPEC_NONE) {
        o.sched.out_max = 64;
        o.sched.spec_always = o.sched.preempt_every != 2; /* and once as it decides by itself */
    }
    o.kv = (struct kv_options){.n_blocks = storm->n_blocks != 0 ? storm->n_blocks : 400,
        .n_host_blocks = 60,
        .block_tokens = o.sched.block_tokens,
        .seqs_max = sched_slots(&o.sched),
        .seq_blocks_max = STORM_CONTEXT / o.sched.block_tokens,
        .prefix_cache = o.sched.prefix_cache};
    const struct runner_limits l = engine_runner_limits(&o.sched, &o.kv);
    static struct ops far;
    far = *cpu_ops();
    far.host_run = NULL;
    const struct decoder_options d = {.ops = storm->device ? device_ops()
                                             : storm->far  ? &far
                                                           : cpu_ops(),
        .threads = storm->threads,
        .rows_max = l.rows_max,
        .out_max = l.out_max,
        .seqs_max = l.seqs_max,
        .table_max = l.table_max,
        .context_max = STORM_CONTEXT,
        .kv_dtype = st->m->kv,
        .block_tokens = o.kv.block_tokens,
        .n_blocks = o.kv.n_blocks};
    struct dummy *same = NULL;
    if (st->source == NULL)
        assert_ok(e, dummy_new(st->m->weights, 5, &same, &e));
    const struct weight_source src = same != NULL ? dummy_source(same) : decoder_file_source(st->source);
    assert_ok(e, decoder_open(&src, st->cfg, &d, &h->decoder, &e));
    assert_ok(e, model_runner_open(h->decoder, &l, o.kv.n_host_blocks, &o.runner, &e));
    if (storm->late)
        assert_ok(e, late_runner_open(o.runner, &l, &o.runner, &e));
    if (storm->spec == SPEC_DRAFT)
        o.draft = open_draft(st, &o, &l, d);
    assert_ok(e, engine_new(&o, &h->en, &e));
    assert_ok(e, engine_client_new(h->en, &h->client, &e));
    ((struct stage *)(uintptr_t)st)->dummy = same;
}

/* A storm that did not blow proves nothing. */
static void expect_weather(const struct house *h, uint32_t n)
{
    const struct storm *s = h->storm;
    const uint32_t some = n < 100 ? 0 : 10; /* few requests make little weather */
    struct sched_stats ss;
    struct kv_stats ks;
    sched_stats(h->en->sched, &ss);
    kv_stats(h->en->kv, &ks);
    if (s->sched.preempt_every > 0 && s->sched.preempt == PREEMPT_SWAP)
        assert_true(ss.preempted_swap > some && ks.swapped_in > some);
    if (s->sched.preempt_every > 0 && s->sched.preempt == PREEMPT_RECOMPUTE)
        assert_true(ss.preempted_recompute > some);
    if (s->hot)
        assert_true(ks.exact + ks.prefix > some && ks.tokens_found > some);
    if (s->n_blocks != 0 && s->n_blocks < 30 && s->sched.prefix_cache)
        assert_true(ks.evicted > some && ks.kept > some && (!s->hot || n < 100 || ks.restored > 0));
    if ((s->late || s->device) && n >= 100 && s->spec == SPEC_NONE)
        assert_true(ss.surplus_rows > 0);
    if (h->en->o.sched.spec_always)
        assert_true(ss.spec.accepted > some && ss.spec.tokens > ss.spec.accepted);
    if (getenv("STORM_SAY") != NULL)
        printf("%-32s guesses %5llu held %5llu  steps %5llu  swap %4llu  recompute %4llu  found %5llu  evicted %4llu  "
               "back %4llu  copied %3llu  surplus %4llu\n",
            s->name, (unsigned long long)ss.spec.tokens, (unsigned long long)ss.spec.accepted,
            (unsigned long long)ss.steps, (unsigned long long)ss.preempted_swap,
            (unsigned long long)ss.preempted_recompute, (unsigned long long)ks.tokens_found,
            (unsigned long long)ks.evicted, (unsigned long long)ks.restored, (unsigned long long)ks.copied,
            (unsigned long long)ss.surplus_rows);
}

static void house_close(struct house *h, struct stage *st)
{
    struct error e = {0};
    engine_error(h->en, &e);
    if (engine_state(h->en) != ENGINE_READY)
        fail_msg("%s, %s: the engine is %s: %s", st->m->shape, h->storm->name, engine_state_name(engine_state(h->en)),
            e.text);
    engine_client_free(h->client);
    if (!h->storm->threaded && h->storm->threads > 0)
        expect_weather(h, st->n);
    engine_free(h->en);
    decoder_close(h->decoder);
    dummy_free(st->dummy);
    st->dummy = NULL;
}

static void house_submit(struct house *h, struct request *r, uint32_t i)
{
    struct error e;
    uint64_t retry_ms;
    r->user = (void *)(uintptr_t)(i + 1); /* 0: noise */
    assert_ok(e, engine_submit(h->client, r, &retry_ms, &e));
}

/* One turn, or a moment's wait for the thread. */
static void house_turn(struct house *h)
{
    uint64_t next_ns;
    if (h->storm->threaded)
        clock_sleep(&h->clock, 20 * NS_PER_US);
    else
        engine_turn(h->en, &next_ns);
}

/* Take notices; returns how many of the requests that count came back. */
static uint32_t house_take(struct house *h, struct stage *st, uint32_t *noise, bool write)
{
    struct notice n;
    uint32_t back = 0;
    while (engine_client_next(h->client, &n) == OK) {
        if (!n.is_final)
            continue;
        const uintptr_t i = (uintptr_t)n.request->user;
        if (i == 0)
            --*noise;
        else {
            if (write)
                write_down(n.request, &st->alone[(i - 1) * CHOICES_MAX]);
            else
                compare(st, h->storm, (uint32_t)(i - 1), n.request);
            back++;
        }
        request_free(n.request);
    }
    return back;
}

static void run_alone(struct stage *st)
{
    struct house h;
    struct storm bare = {.name = "alone", .sched = storm_sched(), .threads = 1};
    uint32_t noise = 0, in_choices = 0;
    bare.sched.prefix_cache = false;
    bare.sched.max_batched_tokens = 256;
    house_open(&h, st, &bare);
    for (uint32_t i = 0; i < st->n; i++) {
        struct request *r = make_request(st, i);
        in_choices += r->n_choices;
        house_submit(&h, r, i);
        while (house_take(&h, st, &noise, true) == 0)
            house_turn(&h);
    }
    house_close(&h, st);
    uint32_t ends[END_COUNT] = {0};
    for (uint32_t i = 0; i < st->n * CHOICES_MAX; i++)
        ends[st->alone[i].end]++;
    assert_int_equal(ends[END_EOS] + ends[END_STOP] + ends[END_LENGTH], in_choices);
    assert_true(st->n < 100 || (ends[END_EOS] > 0 && ends[END_STOP] > 0 && ends[END_LENGTH] > 0));
}

/* Requests arrive in bursts at random turns; noise comes and goes around them. */
static void run_storm(struct stage *st, const struct storm *storm, uint64_t seed)
{
    struct house h;
    house_open(&h, st, storm);
    st->spec = storm->spec;
    for (uint32_t round = 0; round < (storm->hot ? 2u : 1u); round++) {
        struct request *noisy[NOISE_MAX];
        uint32_t next = 0, back = 0, noise = 0, turns = 0;
        while (back < st->n || noise > 0) {
            const uint64_t dice = draw(seed + round, turns++);
            for (uint32_t k = 0; dice % 4 == 0 && k < dice / 4 % 12 && next < st->n; k++, next++)
                house_submit(&h, make_request(st, next), next);
            if (storm->noise && noise == 0 && next < st->n) {
                for (; noise < NOISE_MAX; noise++)
                    house_submit(&h, noisy[noise] = make_request(st, (next + noise * 3) % st->n), UINT32_MAX);
                for (uint32_t k = 0; k < NOISE_MAX; k += 2)
                    engine_cancel(h.client, noisy[k]);
            } else if (storm->noise && noise == NOISE_MAX && dice % 8 == 1)
                engine_cancel(h.client, noisy[dice / 8 % NOISE_MAX]); /* all of them are still inside */
            house_turn(&h);
            back += house_take(&h, st, &noise, false);
        }
    }
    house_close(&h, st);
}

/* ---- the list -----------------------------------------------------------------------------------------------------
 */

static struct storm with(struct storm s, void (*change)(struct sched_options *o))
{
    s.sched = storm_sched();
    change(&s.sched);
    s.threads = s.threads != 0 ? s.threads : 2;
    return s;
}

static void continuous(struct sched_options *o)
{
    o->chunk_max = 7;
}
static void tiny_chunks(struct sched_options *o)
{
    o->chunk_max = 1;
    o->max_num_seqs = 5;
}
static void prefill_first(struct sched_options *o)
{
    o->batching = BATCH_PREFILL_FIRST;
    o->max_batched_tokens = 512;
    o->order = ORDER_SJF;
}
static void in_batches(struct sched_options *o)
{
    o->batching = BATCH_STATIC;
    o->order = ORDER_PRIORITY;
}
static void in_intervals(struct sched_options *o)
{
    o->batching = BATCH_INTERVAL;
    o->interval = 5;
    o->order = ORDER_VTC;
    o->preempt = PREEMPT_RECOMPUTE;
    o->preempt_every = 4;
}
static void by_ratio(struct sched_options *o)
{
    o->batching = BATCH_RATIO;
    o->order = ORDER_DEADLINE;
    o->prefix_cache = false;
    o->max_batched_tokens = 100;
}
static void swapping(struct sched_options *o)
{
    o->preempt = PREEMPT_SWAP;
    o->preempt_every = 3;
}
static void recomputing(struct sched_options *o)
{
    o->preempt = PREEMPT_RECOMPUTE;
    o->preempt_every = 2;
}
static void reserving(struct sched_options *o)
{
    o->admission = ADMIT_RESERVE;
    o->block_tokens = 32;
    o->itl_target_ns = 200 * NS_PER_US;
}

static void run_list(struct stage *st)
{
    const struct storm storms[] = {
        with((struct storm){.name = "continuous, noise", .noise = true}, continuous),
        with((struct storm){.name = "chunks of one, late", .late = true}, tiny_chunks),
        with((struct storm){.name = "prefill-first, hot cache", .hot = true, .threads = 1}, prefill_first),
        with((struct storm){.name = "static, evicting, late", .late = true, .n_blocks = 40}, in_batches),
        with((struct storm){.name = "interval, recompute, noise", .noise = true}, in_intervals),
        with((struct storm){.name = "ratio, no cache, late", .late = true, .threads = 1}, by_ratio),
        with((struct storm){.name = "swap, evicting, hot", .hot = true, .n_blocks = 24}, swapping),
        with((struct storm){.name = "swap, evicting, late, noise", .late = true, .noise = true, .n_blocks = 24},
            swapping),
        with((struct storm){.name = "recompute, evicting, late, hot", .late = true, .hot = true, .n_blocks = 20},
            recomputing),
        with((struct storm){.name = "reserve, large blocks, target", .noise = true, .n_blocks = 30}, reserving),
        with((struct storm){.name = "threaded, late, swap", .threaded = true, .late = true, .noise = true}, swapping),
        with((struct storm){.name = "threaded, recompute", .threaded = true, .noise = true, .n_blocks = 30},
            recomputing),
        with((struct storm){.name = "far, swap, evicting", .far = true, .noise = true, .n_blocks = 24}, swapping),
        with((struct storm){.name = "far, late, threaded", .far = true, .late = true, .threaded = true}, continuous),
        with((struct storm){.name = "device, swap, evicting, noise", .device = true, .noise = true, .n_blocks = 24},
            swapping),
        with((struct storm){.name = "device, recompute, hot", .device = true, .threaded = true, .hot = true},
            recomputing),
    };
    for (uint32_t i = 0; i < COUNT_OF(storms); i++)
        if (st->m->only == 0 || (st->m->only >> i & 1) != 0)
            run_storm(st, &storms[i], 77 + i);
}

static void run_guesses(struct stage *st)
{
    const struct storm storms[] = {
        with((struct storm){.name = "ngram, noise", .spec = SPEC_NGRAM, .noise = true}, continuous),
        with((struct storm){.name = "draft, noise", .spec = SPEC_DRAFT, .noise = true}, continuous),
        with((struct storm){.name = "ngram, late, swap", .spec = SPEC_NGRAM, .late = true, .n_blocks = 24}, swapping),
        with((struct storm){.name = "draft, late, recompute", .spec = SPEC_DRAFT, .late = true, .n_blocks = 24},
            recomputing),
        with((struct storm){.name = "draft, hot, threaded", .spec = SPEC_DRAFT, .hot = true, .threaded = true},
            prefill_first),
        with((struct storm){.name = "draft, reserve, target", .spec = SPEC_DRAFT, .n_blocks = 30}, reserving),
        with((struct storm){.name = "ngram, far, swap", .spec = SPEC_NGRAM, .far = true, .n_blocks = 24}, swapping),
        with((struct storm){.name = "ngram, device, swap", .spec = SPEC_NGRAM, .device = true, .n_blocks = 24},
            swapping),
        with((struct storm){.name = "draft, device, noise", .spec = SPEC_DRAFT, .device = true, .noise = true},
            continuous),
    };
    for (uint32_t i = 0; i < COUNT_OF(storms); i++)
        if (st->m->only == 0 || (st->m->only >> (16 + i) & 1) != 0)
            run_storm(st, &storms[i], 177 + i);
}

static void run_wrong(struct stage *st)
{
    const struct storm storm = with((struct storm){.name = "twin"}, continuous);
    st->may_be_wrong = true;
    run_storm(st, &storm, 1);
    assert_int_equal(st->n_wrong, 1);
}

/* Letters for tokens, so that stop strings are found. */
static void make_vocab(struct stage *st)
{
    char *bytes = mem_alloc(st->vocab_size);
    uint32_t *offsets = mem_array(st->vocab_size + 1, sizeof *offsets);
    uint8_t *flags = mem_array(st->vocab_size, sizeof *flags);
    assert_true(bytes != NULL && offsets != NULL && flags != NULL);
    for (uint32_t i = 0; i < st->vocab_size; i++) {
        bytes[i] = (char)('a' + i % 26);
        offsets[i + 1] = i + 1;
    }
    st->vocab = (struct vocab_view){.n = st->vocab_size, .bytes = bytes, .offsets = offsets, .flags = flags};
}

/* Frames with forced letters, and lists of lists; with a model's own tokenizer, JSON. */
static void make_grammars(struct stage *st)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } sources[] = {
        {GRAMMAR_REGEX, "xyz[a-m]{1,6}wvuts[n-z]*"},
        {GRAMMAR_EBNF, "root ::= \"l\" (root | [a-e])* \"rrr\""},
    };
    struct error e;
    assert_ok(e, grammar_vocab_new(&st->vocab, &st->grammar_vocab, &e));
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        const struct grammar_source src = {.kind = sources[i].kind, .text = str_of(sources[i].text)};
        assert_ok(e, grammar_compile(&src, st->grammar_vocab, &st->grammars[st->n_grammars++], &e));
    }
    if (st->source == NULL)
        return;
    const struct grammar_source schema = {.kind = GRAMMAR_JSON_SCHEMA,
        .text = STR("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
                    "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"mill\",\"river\"]}},\"good\":{"
                    "\"type\":\"boolean\"}},\"required\":[\"name\",\"tags\"]}")};
    assert_ok(e, model_tokenizer_open(st->source, NULL, &st->tok, &e));
    assert_ok(e, tok_cutter_new(st->tok, &st->cutter, &e));
    assert_ok(e, grammar_vocab_new(tok_vocab(st->tok), &st->tok_vocab, &e));
    grammar_vocab_cutter(st->tok_vocab, tok_cutter_cut, st->cutter);
    assert_ok(e, grammar_compile(&schema, st->tok_vocab, &st->grammars[st->n_grammars++], &e));
}

static void make_model(struct stage *st)
{
    struct error e;
    struct model_config *c = st->cfg;
    const struct storm_model *m = st->m;
    if (m->path != NULL) {
        assert_ok(e, model_source_open(m->path, &st->source, &e));
        assert_ok(e, model_config_read(st->source, c, &e));
        if (m->draft_path == NULL)
            return;
        st->draft_cfg = mem_zalloc(sizeof *st->draft_cfg);
        assert_non_null(st->draft_cfg);
        assert_ok(e, model_source_open(m->draft_path, &st->draft, &e));
        assert_ok(e, model_config_read(st->draft, st->draft_cfg, &e));
        return;
    }
    assert_ok(e, dummy_config(m->shape, c, &e));
    c->n_layers = 2;
    c->hidden = 128;
    c->n_heads = 4;
    c->n_kv_heads = 2;
    c->head_dim = c->rope.dims = 32;
    c->query_scale = 0.17677669529663687;
    c->vocab = STORM_VOCAB;
    c->context_length = STORM_CONTEXT;
    c->ffn = c->n_experts > 0 ? 0 : 256;
    c->expert_ffn = c->n_experts > 0 ? 64 : 0;
    c->n_experts = MIN(c->n_experts, 8u);
    c->n_experts_used = MIN(c->n_experts_used, 2u);
    c->window = m->window;
    c->layer_is_local[0] = m->window > 0;
}

/* Words of letters, parts of which are forced: so tokens are jumped over, in some storms while guesses fly. */
static void make_grammar(struct stage *st)
{
    const struct grammar_source src = {.kind = GRAMMAR_REGEX, .text = STR("(abcde|fg|[h-m]+xyz|no)*")};
    struct error e;
    assert_ok(e, grammar_vocab_new(&st->vocab, &st->words, &e));
    assert_ok(e, grammar_compile(&src, st->words, &st->grammar, &e));
}

void storm_run(const struct storm_model *m)
{
    struct stage st = {.m = m, .cfg = mem_zalloc(sizeof *st.cfg), .n = m->n_requests};
    st.alone = mem_array((size_t)st.n * CHOICES_MAX, sizeof *st.alone);
    assert_true(st.cfg != NULL && st.alone != NULL);
    make_model(&st);
    st.vocab_size = st.cfg->vocab;
    make_vocab(&st);
    make_grammars(&st);
    make_grammar(&st);
    run_alone(&st);
    run_list(&st);
    if (m->draft_path != NULL)
        run_guesses(&st);
    st.spec = SPEC_NONE;
    st.alone[0].ids[0] ^= 1; /* the twin: one token of one answer */
    run_wrong(&st);
    model_source_close(st.source);
    model_source_close(st.draft);
    mem_free(st.draft_cfg);
    for (size_t i = 0; i < COUNT_OF(st.grammars); i++)
        grammar_unref(st.grammars[i]);
    grammar_vocab_free(st.grammar_vocab);
    grammar_vocab_free(st.tok_vocab);
    tok_cutter_free(st.cutter);
    tok_free(st.tok);
    grammar_unref(st.grammar);
    grammar_vocab_free(st.words);
    mem_free((void *)(uintptr_t)st.vocab.bytes);
    mem_free((void *)(uintptr_t)st.vocab.offsets);
    mem_free((void *)(uintptr_t)st.vocab.flags);
    mem_free(st.cfg);
    mem_free(st.alone);
}
