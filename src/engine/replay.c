/* Replaying a recording; see record.h. A recording is untrusted: every count is checked against the frame it lies in,
 * and sizes against limits before anything is made of them. What the scheduler itself asserts about its callers (a
 * commit names the plan it is of, tokens in its order) is checked here first, so that a damaged file is an answer and
 * no crash.
 */
#include "engine/record_int.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

struct live { /* a request of the recording that is inside */
    uint64_t key;
    struct request *request;
};

struct ended { /* what an end must look like; found by the replay, told by the file */
    uint64_t key;
    uint32_t n_choices;
    uint32_t end[REQUEST_CHOICES_MAX], n_out[REQUEST_CHOICES_MAX];
};

struct ends { /* a queue of them */
    struct ended *v;
    size_t n, cap;
};

struct replay {
    const struct replay_options *o;
    struct replay_summary *sum;
    struct sched_options sched_options;
    struct kv_options kv_options;
    struct kv *kv;
    struct sched *sched;
    struct plan *plans[2]; /* those that are pending first */
    uint32_t n_pending;    /* planned and not committed, oldest first */
    struct live *live;     /* [n_live], in no order */
    size_t n_live, live_cap;
    struct ends found, told;
    struct vocab_view vocab; /* arrays point into vocab_bytes */
    void *vocab_bytes;
    struct step_token *tokens; /* [out_max] */
    uint64_t step;             /* of the newest plan */
    uint64_t now;
    enum err failure; /* of a callback */
};

/* ---- small tables -------------------------------------------------------------------------------------------------
 */

static enum err grow(void **p, size_t n, size_t *cap, size_t bytes, struct error *e)
{
    if (n < *cap)
        return OK;
    const size_t next = MAX(*cap * 2, (size_t)16);
    void *q = mem_resize(*p, next * bytes);
    if (q == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a replay");
    *p = q;
    *cap = next;
    return OK;
}

static struct live *live_find(struct replay *r, uint64_t key)
{
    for (size_t i = 0; i < r->n_live; i++)
        if (r->live[i].key == key)
            return &r->live[i];
    return NULL;
}

/* ---- what happens in the scheduler --------------------------------------------------------------------------------
 */

static void on_done(void *ctx, struct request *q)
{
    struct replay *r = ctx;
    struct ends *f = &r->found;
    size_t i = 0;
    while (i < r->n_live && r->live[i].request != q)
        i++;
    assert(i < r->n_live);
    if (grow((void **)&f->v, f->n, &f->cap, sizeof *f->v, NULL) != OK)
        r->failure = ERR_NOMEM;
    else {
        struct ended *d = &f->v[f->n++];
        *d = (struct ended){.key = r->live[i].key, .n_choices = q->n_choices};
        for (uint32_t k = 0; k < q->n_choices; k++) {
            d->end[k] = (uint32_t)atomic_load(&q->choices[k].end);
            d->n_out[k] = atomic_load(&q->choices[k].n_out);
            r->sum->by_end[d->end[k]]++;
        }
    }
    r->live[i] = r->live[--r->n_live];
    request_free(q);
}

/* Ends that were found and ends that were told, as far as both go. */
static enum err compare_ends(struct replay *r, struct error *e)
{
    const size_t n = MIN(r->found.n, r->told.n);
    for (size_t i = 0; i < n; i++) {
        const struct ended *a = &r->found.v[i], *b = &r->told.v[i];
        bool same = a->key == b->key && a->n_choices == b->n_choices;
        for (uint32_t k = 0; same && k < a->n_choices; k++)
            same = a->end[k] == b->end[k] && a->n_out[k] == b->n_out[k];
        if (!same)
            return FAIL(e, ERR_INTERNAL, "after step %llu a request ends otherwise than was recorded",
                (unsigned long long)r->step);
    }
    if (n == 0)
        return OK;
    memmove(r->found.v, r->found.v + n, (r->found.n - n) * sizeof *r->found.v);
    memmove(r->told.v, r->told.v + n, (r->told.n - n) * sizeof *r->told.v);
    r->found.n -= n;
    r->told.n -= n;
    return OK;
}

static enum err audit(struct replay *r, struct error *e)
{
    if (r->failure != OK)
        return FAIL(e, r->failure, "no memory for a replay");
    if (!r->o->check_every_step)
        return OK;
    TRY(kv_check(r->kv, e));
    return sched_check(r->sched, e);
}

/* ---- frames -------------------------------------------------------------------------------------------------------
 */

static enum err read_fields(struct reader *in, struct fields f, void *to)
{
    if (read_u32(in) != f.n)
        return READER_FAIL(in, ERR_FORMAT, "the recording is of another version of quern");
    for (uint32_t i = 0; i < f.n; i++)
        field_set(to, &f.v[i], read_u64(in));
    return in->failure;
}

/* Sizes that would only be slow or large; whether they make sense is for kv_new and sched_new to say. */
static enum err check_sizes(struct reader *in, const struct sched_options *s, const struct kv_options *k)
{
    const uint64_t table = (uint64_t)s->max_num_seqs * k->seq_blocks_max;
    if (s->max_num_seqs > SCHED_SEQS_MAX || s->queue_max > ENGINE_REQUESTS_MAX || k->n_blocks > REPLAY_BLOCKS_MAX ||
        k->n_host_blocks > REPLAY_BLOCKS_MAX || table > ENGINE_TABLE_MAX || s->context_max > REPLAY_CONTEXT_MAX ||
        k->seqs_max > KV_SEQS_MAX || (uint64_t)k->seqs_max * k->seq_blocks_max > REPLAY_TABLES_MAX)
        return READER_FAIL(in, ERR_LIMIT, "the recorded engine is larger than a replay may be");
    if (k->block_tokens != s->block_tokens || k->seqs_max < sched_slots(s) || k->block_tokens == 0 ||
        (uint64_t)k->seq_blocks_max * k->block_tokens < s->context_max || s->tenants_max > SCHED_TENANTS_MAX)
        return READER_FAIL(in, ERR_FORMAT, "the recorded options do not belong together");
    if ((unsigned)s->batching > BATCH_RATIO || (unsigned)s->order > ORDER_DEADLINE ||
        (unsigned)s->admission > ADMIT_RESERVE || (unsigned)s->preempt > PREEMPT_RECOMPUTE)
        return READER_FAIL(in, ERR_FORMAT, "a recorded policy is not known");
    return OK;
}

static enum err frame_options(struct replay *r, struct reader *in, struct error *e)
{
    struct sched_options *s = &r->sched_options;
    struct kv_options *k = &r->kv_options;
    if (r->sched != NULL || read_u32(in) != RECORD_VERSION)
        return READER_FAIL(in, ERR_FORMAT, "the recording is of another version of quern");
    TRY(read_fields(in, record_sched_fields, s));
    TRY(read_fields(in, record_kv_fields, k));
    (void)read_u64(in);
    TRY(check_sizes(in, s, k));
    TRY(kv_new(k, &r->kv, e));
    TRY(sched_new(s, r->kv, &r->sched, e));
    sched_set_events(r->sched, (struct sched_events){.ctx = r, .on_done = on_done});
    const struct runner_limits l = engine_runner_limits(s, k);
    for (size_t i = 0; i < COUNT_OF(r->plans); i++)
        TRY(plan_new(l.rows_max, l.seqs_max, l.table_max, l.copies_max, &r->plans[i], e));
    r->tokens = mem_array(l.out_max, sizeof *r->tokens);
    return r->tokens != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a replay");
}

/* Arrays lie in the frame without alignment, so they are copied. */
static enum err read_array(struct reader *in, uint64_t n, size_t bytes_each, void **out, struct error *e)
{
    *out = NULL;
    const struct str s = read_bytes(in, n * bytes_each);
    TRY(in->failure);
    *out = mem_alloc(s.n + 1);
    if (*out == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a replay");
    memcpy(*out, s.p, s.n);
    return OK;
}

static enum err frame_vocab(struct replay *r, struct reader *in, struct error *e)
{
    const uint32_t n = read_u32(in), text = read_u32(in);
    if (r->vocab_bytes != NULL || n > TOK_COUNT_MAX || in->failure != OK)
        return READER_FAIL(in, ERR_FORMAT, "a vocabulary of %u tokens", n);
    void *all;
    TRY(read_array(in, (n + (uint64_t)1) * 4 + n + text, 1, &all, e));
    r->vocab_bytes = all;
    const uint32_t *offsets = all;
    for (uint32_t i = 0; i < n; i++)
        if (offsets[i] > offsets[i + 1])
            return READER_FAIL(in, ERR_FORMAT, "token %u ends before it begins", i);
    if (offsets[0] != 0 || offsets[n] != text)
        return READER_FAIL(in, ERR_FORMAT, "a vocabulary of %u bytes says %u", text, offsets[n]);
    const uint8_t *flags = (const uint8_t *)(offsets + n + 1);
    r->vocab = (struct vocab_view){.n = n, .offsets = offsets, .flags = flags, .bytes = (const char *)flags + n};
    return OK;
}

static enum err read_stops(struct replay *r, struct reader *in, struct request_options *o, struct error *e)
{
    struct str stops[STOPS_MAX];
    const uint32_t n = read_u32(in);
    if (n > STOPS_MAX || (n > 0 && r->vocab_bytes == NULL))
        return READER_FAIL(in, ERR_FORMAT, "%u stop strings", n);
    for (uint32_t i = 0; i < n; i++)
        stops[i] = read_bytes(in, read_u32(in));
    TRY(in->failure);
    if (n == 0)
        return OK;
    o->vocab = &r->vocab;
    return stop_set_new(&o->stops, stops, n, e);
}

struct submit_arrays {
    void *prompt, *stop_ids, *banned_ids;
};

static enum err read_request(
    struct replay *r, struct reader *in, struct submit_arrays *a, struct request_options *o, struct error *e)
{
    TRY(read_fields(in, record_request_fields, o));
    o->n_prompt = read_u32(in);
    TRY(read_array(in, o->n_prompt, 4, &a->prompt, e));
    o->n_stop_ids = read_u32(in);
    TRY(read_array(in, o->n_stop_ids, 4, &a->stop_ids, e));
    o->n_banned_ids = read_u32(in);
    TRY(read_array(in, o->n_banned_ids, 4, &a->banned_ids, e));
    o->prompt = a->prompt;
    o->stop_ids = a->stop_ids;
    o->banned_ids = a->banned_ids;
    if (o->n_choices > REQUEST_CHOICES_MAX || (uint64_t)o->max_tokens * MAX(o->n_choices, 1u) > REPLAY_TOKENS_MAX ||
        o->max_tokens > REPLAY_TOKENS_MAX)
        return READER_FAIL(in, ERR_LIMIT, "a request of %u times %u tokens is more than a replay may have",
            o->n_choices, o->max_tokens);
    if ((unsigned)o->spec >= SPEC_METHODS)
        return READER_FAIL(in, ERR_FORMAT, "guesses by method %u", (unsigned)o->spec);
    o->spec = o->spec == SPEC_NONE ? SPEC_NONE : SPEC_DRAFT; /* the guesses are in the recording */
    /* the choosing is done: no room for what only the answer had */
    o->n_top = 0;
    o->want_logprobs = false;
    o->sample = sample_params_default();
    TRY(read_stops(r, in, o, e));
    return OK;
}

static enum err submit(
    struct replay *r, uint64_t key, uint64_t arrival, enum err want, struct request_options *o, struct error *e)
{
    struct request *q;
    uint64_t retry_ns;
    struct error why = {0};
    const enum err made = request_new(o, &q, e);
    if (made != OK) {
        stop_set_free(o->stops);
        return made;
    }
    q->t_arrival = arrival;
    const enum err err = sched_submit(r->sched, q, r->now, &retry_ns, &why);
    if (err != OK)
        request_free(q);
    else
        r->live[r->n_live++] = (struct live){.key = key, .request = q};
    r->sum->submits++;
    r->sum->refused += err != OK;
    return err == want ? OK
                       : FAIL(e, ERR_INTERNAL, "after step %llu a request is answered with %s instead of %s",
                             (unsigned long long)r->step, err_name(err), err_name(want));
}

static enum err frame_submit(struct replay *r, struct reader *in, struct error *e)
{
    struct submit_arrays a = {0};
    struct request_options o = {0};
    const uint64_t key = read_u64(in);
    r->now = read_u64(in);
    const uint64_t arrival = read_u64(in);
    const uint32_t want = read_u32(in);
    enum err err = in->failure;
    if (err == OK && (want >= ERR_COUNT || live_find(r, key) != NULL || r->n_live >= ENGINE_REQUESTS_MAX))
        err = READER_FAIL(in, ERR_FORMAT, "a request that is already there");
    if (err == OK)
        err = grow((void **)&r->live, r->n_live, &r->live_cap, sizeof *r->live, e);
    if (err == OK)
        err = read_request(r, in, &a, &o, e);
    if (err == OK)
        err = submit(r, key, arrival, (enum err)want, &o, e);
    mem_free(a.prompt);
    mem_free(a.stop_ids);
    mem_free(a.banned_ids);
    return err;
}

static enum err frame_look(struct replay *r, struct reader *in, struct error *e)
{
    const struct live *l = live_find(r, read_u64(in));
    const uint32_t cancel = read_u32(in), n_read = read_u32(in);
    (void)e;
    if (in->failure != OK || l == NULL)
        return READER_FAIL(in, ERR_FORMAT, "news of a request that is not there");
    atomic_store(&l->request->cancel, cancel != 0);
    atomic_store(&l->request->n_read, n_read);
    return OK;
}

/* They lie behind the token that the next commit appends, where that commit writes them again. */
static enum err frame_jump(struct replay *r, struct reader *in, struct error *e)
{
    const struct live *l = live_find(r, read_u64(in));
    const uint32_t i_choice = read_u32(in), n = read_u32(in);
    (void)e;
    if (in->failure != OK || l == NULL || i_choice >= l->request->n_choices)
        return READER_FAIL(in, ERR_FORMAT, "forced tokens of a request that is not there");
    struct choice *c = &l->request->choices[i_choice];
    const uint64_t at = (uint64_t)atomic_load(&c->n_out) + 1 + c->n_script;
    const struct str ids = read_bytes(in, (uint64_t)n * 4);
    TRY(in->failure);
    if (at + n > l->request->o.max_tokens)
        return READER_FAIL(in, ERR_FORMAT, "%u forced tokens are more than the request may have", n);
    memcpy(c->ids + at, ids.p, ids.n);
    c->script = c->ids + (at - c->n_script);
    c->n_script += n;
    return OK;
}

static enum err frame_guess(struct replay *r, struct reader *in, struct error *e)
{
    uint32_t ids[SPEC_K_MAX];
    const uint32_t slot = read_u32(in), trust = read_u32(in), n = read_u32(in);
    (void)e;
    if (in->failure != OK || n > SPEC_K_MAX || r->n_pending > 0)
        return READER_FAIL(in, ERR_FORMAT, "%u guesses", n);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = read_u32(in) & INT32_MAX;
    if (in->failure != OK || !sched_guess(r->sched, slot, ids, n, (enum spec_trust)trust))
        return READER_FAIL(in, ERR_FORMAT, "guesses for slot %u, which cannot use them", slot);
    return OK;
}

static enum err frame_sweep(struct replay *r, struct reader *in, struct error *e)
{
    r->now = read_u64(in);
    TRY(in->failure);
    sched_sweep(r->sched, r->now);
    r->sum->sweeps++;
    return audit(r, e);
}

static void count_step(struct replay *r, const struct plan *p)
{
    struct replay_step step = {.plan = p, .now_ns = r->now};
    struct replay_summary *s = r->sum;
    sched_stats(r->sched, &step.sched);
    kv_stats(r->kv, &step.kv);
    s->steps++;
    s->rows += p->n_rows;
    s->swapped_blocks += p->n_out_copies + p->n_in_copies;
    s->copied_blocks += p->n_copies;
    s->blocks_held_max = MAX(s->blocks_held_max, step.kv.n_held);
    s->seqs_max = MAX(s->seqs_max, p->n_seqs);
    if (r->o->on_step != NULL)
        r->o->on_step(r->o->ctx, &step);
}

static enum err compare_plan(struct replay *r, struct reader *in, const struct plan *p, struct error *e)
{
    static const char *const names[PLAN_PARTS] = {"header", "tokens", "positions", "sequences of rows", "KV slots",
        "output rows", "sequences", "block tables", "copies", "swaps out", "swaps in", "evictions", "restores"};
    struct plan_part parts[PLAN_PARTS];
    record_plan_parts(p, parts);
    for (int i = 0; i < PLAN_PARTS; i++) {
        const struct str was = read_bytes(in, parts[i].bytes);
        if (in->failure != OK || memcmp(was.p, parts[i].p, parts[i].bytes) != 0)
            return FAIL(e, ERR_INTERNAL, "step %llu is planned otherwise than was recorded: %s",
                (unsigned long long)p->step, names[i]);
    }
    (void)r;
    return OK;
}

static enum err frame_plan(struct replay *r, struct reader *in, struct error *e)
{
    r->now = read_u64(in);
    const uint32_t flying = read_u32(in), some = read_u32(in);
    if (in->failure != OK || r->n_pending > 1 || flying != r->n_pending || (flying != 0 && sched_speculates(r->sched)))
        return READER_FAIL(in, ERR_FORMAT, "a plan that does not follow what came before");
    struct plan *p = r->plans[r->n_pending];
    const bool got = sched_plan(r->sched, r->now, r->n_pending > 0, p);
    r->sum->plans++;
    if (got != (some != 0))
        return FAIL(e, ERR_INTERNAL, "after step %llu there is %s to compute, and was not when it was recorded",
            (unsigned long long)r->step, got ? "something" : "nothing");
    if (!got)
        return audit(r, e);
    TRY(compare_plan(r, in, p, e));
    r->step = p->step;
    count_step(r, p);
    r->n_pending++;
    return audit(r, e);
}

/* Each sampling sequence in turn has one token, or as many as its guesses held and one more. */
static enum err read_tokens(struct replay *r, struct reader *in, const struct plan *p, uint32_t n)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &plan_seqs(p)[i];
        const int32_t *guess = plan_token(p) + s->first_row + s->n_rows - s->n_spec;
        for (uint32_t g = 0; s->samples != 0 && g <= s->n_spec; g++) {
            if (g > 0 && (k == n || guess[g - 1] != (int32_t)r->tokens[k - 1].id))
                break;
            if (k == n)
                return READER_FAIL(in, ERR_FORMAT, "a sequence of step %llu has no token", (unsigned long long)p->step);
            r->tokens[k].slot = read_u32(in);
            r->tokens[k].id = read_u32(in);
            if (r->tokens[k++].slot != s->slot)
                return READER_FAIL(
                    in, ERR_FORMAT, "a token of step %llu is not of its sequences", (unsigned long long)p->step);
        }
    }
    if (k != n)
        return READER_FAIL(in, ERR_FORMAT, "step %llu has more tokens than sequences", (unsigned long long)p->step);
    return in->failure;
}

static enum err frame_commit(struct replay *r, struct reader *in, struct error *e)
{
    r->now = read_u64(in);
    struct step_result result = {.tokens = r->tokens};
    struct plan *p = r->plans[0];
    result.step = read_u64(in);
    result.cost_ns = read_u64(in);
    result.n = read_u32(in);
    if (in->failure != OK || r->n_pending == 0 || p->step != result.step || result.n > p->n_out)
        return READER_FAIL(in, ERR_FORMAT, "a result that belongs to no step");
    TRY(read_tokens(r, in, p, result.n));
    sched_commit(r->sched, p, &result, r->now);
    r->plans[0] = r->plans[1];
    r->plans[1] = p;
    r->n_pending--;
    r->sum->commits++;
    r->sum->sampled += result.n;
    r->sum->cost_ns += result.cost_ns;
    return audit(r, e);
}

static enum err frame_end(struct replay *r, struct reader *in, struct error *e)
{
    struct ends *t = &r->told;
    TRY(grow((void **)&t->v, t->n, &t->cap, sizeof *t->v, e));
    struct ended *d = &t->v[t->n];
    *d = (struct ended){.key = read_u64(in)};
    d->n_choices = read_u32(in);
    if (in->failure != OK || d->n_choices > REQUEST_CHOICES_MAX)
        return READER_FAIL(in, ERR_FORMAT, "an end of %u choices", d->n_choices);
    for (uint32_t i = 0; i < d->n_choices; i++) {
        d->end[i] = read_u32(in);
        d->n_out[i] = read_u32(in);
    }
    t->n++;
    r->sum->ends++;
    return in->failure;
}

static enum err frame_abort(struct replay *r, struct reader *in, struct error *e)
{
    r->now = read_u64(in);
    const uint32_t why = read_u32(in);
    if (in->failure != OK || why == END_NONE || why >= END_COUNT)
        return READER_FAIL(in, ERR_FORMAT, "an end for reason %u", why);
    r->n_pending = 0;
    sched_abort_all(r->sched, (enum req_end)why, NULL, r->now);
    return audit(r, e);
}

static enum err frame_weight(struct replay *r, struct reader *in, struct error *e)
{
    const uint32_t tenant = read_u32(in);
    const double weight = read_f64(in);
    (void)e;
    if (in->failure != OK || tenant >= r->sched_options.tenants_max || !(weight > 0.0))
        return READER_FAIL(in, ERR_FORMAT, "a weight of tenant %u", tenant);
    sched_tenant_weight(r->sched, tenant, weight);
    return OK;
}

static enum err run_frame(struct replay *r, uint32_t kind, struct reader *in, struct error *e)
{
    if (r->sched == NULL && kind != FRAME_OPTIONS)
        return READER_FAIL(in, ERR_FORMAT, "a recording starts with its options");
    switch ((enum frame_kind)kind) {
    case FRAME_OPTIONS: return frame_options(r, in, e);
    case FRAME_VOCAB: return frame_vocab(r, in, e);
    case FRAME_SUBMIT: return frame_submit(r, in, e);
    case FRAME_LOOK: return frame_look(r, in, e);
    case FRAME_SWEEP: return frame_sweep(r, in, e);
    case FRAME_PLAN: return frame_plan(r, in, e);
    case FRAME_COMMIT: return frame_commit(r, in, e);
    case FRAME_END: return frame_end(r, in, e);
    case FRAME_ABORT: return frame_abort(r, in, e);
    case FRAME_WEIGHT: return frame_weight(r, in, e);
    case FRAME_JUMP: return frame_jump(r, in, e);
    case FRAME_GUESS: return frame_guess(r, in, e);
    }
    return READER_FAIL(in, ERR_FORMAT, "a frame of kind %u", kind);
}

static enum err run_all(struct replay *r, struct reader *file, struct error *e)
{
    const struct str magic = read_bytes(file, sizeof RECORD_MAGIC - 1);
    if (file->failure != OK || !str_is(magic, RECORD_MAGIC))
        return FAIL(e, ERR_FORMAT, "not a recording of quern");
    while (reader_has(file, 8)) {
        const uint32_t kind = read_u32(file), bytes = read_u32(file);
        if (!reader_has(file, bytes)) {
            r->sum->is_cut = true;
            break;
        }
        struct reader frame;
        reader_init(&frame, file->p, file->at + bytes, e);
        frame.at = file->at;
        TRY(run_frame(r, kind, &frame, e));
        TRY(compare_ends(r, e));
        reader_skip(file, bytes);
        r->sum->frames++;
        r->sum->first_ns = r->sum->first_ns == 0 ? r->now : r->sum->first_ns;
        r->sum->last_ns = r->now;
    }
    return OK;
}

static void finish(struct replay *r)
{
    r->sum->is_cut = r->sum->is_cut || r->n_live > 0 || r->found.n > 0 || r->told.n > 0;
    if (r->sched != NULL) {
        sched_stats(r->sched, &r->sum->sched);
        kv_stats(r->kv, &r->sum->kv);
        sched_abort_all(r->sched, END_ABORTED, NULL, r->now);
    }
    assert(r->n_live == 0);
    sched_free(r->sched);
    kv_free(r->kv);
    plan_free(r->plans[0]);
    plan_free(r->plans[1]);
    mem_free(r->live);
    mem_free(r->found.v);
    mem_free(r->told.v);
    mem_free(r->vocab_bytes);
    mem_free(r->tokens);
}

enum err replay_run(
    const void *bytes, uint64_t n, const struct replay_options *o, struct replay_summary *out, struct error *e)
{
    struct replay r = {.o = o, .sum = out};
    struct reader file;
    *out = (struct replay_summary){0};
    reader_init(&file, bytes, n, e);
    const enum err err = run_all(&r, &file, e);
    finish(&r);
    return err;
}
