/* kv under random operations, against a machine that really keeps what blocks hold.
 *
 * The model is naive on purpose. A sequence is its token ids. What a position's cell holds is the hash of everything
 * before it, so one comparison of a cell proves the whole context. Every step is a list of what a device would do
 * (evictions, copies out, copies in, copies, writes, reads) and is carried out late, at some random moment before its
 * fence is declared done: a block that was handed to somebody else too early is overwritten before it is read, and is
 * seen. Evictions and copies in may come as early as ops.h's move_blocks lets them: beside the steps in flight.
 *
 * After each operation kv_check runs. The twin at the end passes no fences, and must be caught. */
#include "testing.h"

#include "base/hash.h"
#include "base/rng.h"
#include "kv/kv_int.h"

#define BT         16u
#define N_BLOCKS   28u
#define N_HOST     20u
#define N_SEQS     10u
#define TOKENS_MAX 240u
#define N_STEPS    8u /* in flight at most; a ring */
#define OPS_MAX    4096u

enum op_kind { OP_EVICT, OP_OUT, OP_IN, OP_COPY, OP_WRITE, OP_READ, OP_DONE };

struct op {
    enum op_kind kind;
    uint32_t a, b; /* copies: from, to; write and read: block, offset */
    uint64_t cell;
};

struct model_seq {
    bool is_open;
    struct kv_seq handle;
    struct kv_key key;
    uint32_t ids[TOKENS_MAX];
    uint64_t cells[TOKENS_MAX]; /* what each position must hold */
    uint32_t n, n_final;        /* written or about to be; committed */
    uint32_t n_trimmed;         /* positions given up at the front */
    uint64_t last_step;         /* that touches it */
    uint64_t grown_step;        /* that wrote it last: a sequence has one run of rows in a step */
};

struct step {
    struct op ops[OPS_MAX];
    uint32_t n_ops;
};

struct storm {
    struct kv *kv;
    struct kv_tier tier;
    struct kv_copy out[N_BLOCKS], in[N_BLOCKS];
    uint64_t seed, draws;
    uint64_t device[N_BLOCKS][BT], host[N_HOST][BT];
    struct model_seq seqs[N_SEQS];
    struct step steps[N_STEPS];
    uint64_t building, executed, done; /* step numbers */
    bool no_fences;
    uint32_t n_wrong; /* reads that found something else */
    uint32_t n_forks, n_full, n_early;
};

static uint32_t draw(struct storm *t, uint32_t below)
{
    return (uint32_t)(rng_u64((struct rng_key){.seed = t->seed, .index = t->draws++, .purpose = RNG_DUMMY}) % below);
}

static uint64_t fence(const struct storm *t, uint64_t step)
{
    return t->no_fences ? 0 : step;
}

static void add_op(struct storm *t, struct op op)
{
    struct step *const s = &t->steps[t->building % N_STEPS];
    assert_true(s->n_ops < OPS_MAX);
    s->ops[s->n_ops++] = op;
}

static void execute(struct storm *t)
{
    struct step *const s = &t->steps[++t->executed % N_STEPS];
    for (enum op_kind kind = OP_EVICT; kind <= OP_READ; kind++)
        for (uint32_t i = 0; i < s->n_ops; i++) {
            const struct op *const op = &s->ops[i];
            if (op->kind != kind)
                continue;
            switch (kind) {
            case OP_EVICT:
            case OP_OUT: memcpy(t->host[op->b], t->device[op->a], sizeof t->host[0]); break;
            case OP_COPY: memcpy(t->device[op->b], t->device[op->a], sizeof t->device[0]); break;
            case OP_IN: memcpy(t->device[op->b], t->host[op->a], sizeof t->device[0]); break;
            case OP_WRITE: t->device[op->a][op->b] = op->cell; break;
            case OP_READ: t->n_wrong += t->device[op->a][op->b] != op->cell; break;
            case OP_DONE: break;
            }
        }
    s->n_ops = 0;
}

/* What kv had evicted or brought back in the last operation. */
static void take_tier(struct storm *t)
{
    for (uint32_t i = 0; i < t->tier.n_out; i++)
        add_op(t, (struct op){.kind = OP_EVICT, .a = t->out[i].src, .b = t->out[i].dst});
    for (uint32_t i = 0; i < t->tier.n_in; i++)
        add_op(t, (struct op){.kind = OP_IN, .a = t->in[i].src, .b = t->in[i].dst});
    t->tier.n_out = t->tier.n_in = 0;
}

/* Evictions of the step being built, and copies in unless it swaps out, before the steps in flight; unless moves of
 * those come before them. */
static void move_early(struct storm *t)
{
    struct step *const mine = &t->steps[t->building % N_STEPS];
    for (uint64_t step = t->executed + 1; step < t->building; step++) {
        const struct step *const s = &t->steps[step % N_STEPS];
        for (uint32_t i = 0; i < s->n_ops; i++)
            if (s->ops[i].kind <= OP_IN)
                return;
    }
    enum op_kind last = OP_IN;
    for (uint32_t i = 0; i < mine->n_ops; i++)
        if (mine->ops[i].kind == OP_OUT)
            last = OP_EVICT;
    for (enum op_kind kind = OP_EVICT; kind <= last; kind++)
        for (uint32_t i = 0; i < mine->n_ops; i++) {
            struct op *const op = &mine->ops[i];
            if (op->kind != kind)
                continue;
            if (kind == OP_EVICT)
                memcpy(t->host[op->b], t->device[op->a], sizeof t->host[0]);
            else
                memcpy(t->device[op->b], t->host[op->a], sizeof t->device[0]);
            op->kind = OP_DONE;
            t->n_early++;
        }
}

/* Append a token; few different ones, so that prefixes meet. */
static void push_token(struct storm *t, struct model_seq *q, uint32_t id)
{
    const uint64_t before =
        q->n > 0 ? q->cells[q->n - 1] : q->key.numerics * 1000003 + q->key.adapter * 1009 + q->key.salt;
    q->ids[q->n] = id;
    q->cells[q->n] = hash64(&id, sizeof id, before);
    q->n++;
    (void)t;
}

static uint32_t token_at(struct storm *t, uint32_t pos)
{
    return draw(t, t->seed % 2 == 0 ? 80 : 24) == 0 ? draw(t, 3) : pos % 3; /* mostly the same text */
}

static void read_context(struct storm *t, struct model_seq *q)
{
    uint32_t n_blocks;
    const uint32_t *const table = kv_seq_table(t->kv, q->handle, &n_blocks);
    for (uint32_t pos = q->n_trimmed; pos < q->n; pos++) {
        assert_true(pos / BT < n_blocks);
        add_op(t, (struct op){.kind = OP_READ, .a = table[pos / BT], .b = pos % BT, .cell = q->cells[pos]});
    }
    q->last_step = t->building;
}

static void op_open(struct storm *t, struct model_seq *q)
{
    if (q->is_open)
        return;
    memset(q, 0, sizeof *q);
    q->key = (struct kv_key){.numerics = 7, .salt = draw(t, 2)};
    const uint32_t n_prompt = 1 + draw(t, TOKENS_MAX / 2);
    while (q->n < n_prompt)
        push_token(t, q, token_at(t, q->n));
    uint32_t n_found;
    enum kv_hit hit;
    uint32_t n_host;
    const uint32_t peeked = kv_peek(t->kv, q->key, q->ids, q->n, &n_host);
    const bool lookup = draw(t, 8) != 0;
    if (kv_seq_open(t->kv, q->key, q->ids, q->n, lookup, fence(t, t->building), &q->handle, &n_found, &hit) != OK)
        return;
    q->is_open = true;
    assert_int_equal(n_found, lookup ? peeked : 0);
    assert_int_equal(hit, n_found == 0 ? KV_MISS : n_found == q->n / BT * BT ? KV_HIT_EXACT : KV_HIT_PREFIX);
    uint32_t n_blocks;
    const uint32_t *const table = kv_seq_table(t->kv, q->handle, &n_blocks);
    assert_int_equal(n_blocks, n_found / BT);
    assert_int_equal(t->tier.n_in, lookup ? n_host : 0);
    bool comes = false; /* from the host, in a step that is not carried out yet */
    for (uint32_t pos = 0; !t->no_fences && pos < n_found; pos++) {
        const uint32_t b = table[pos / BT];
        const bool is_late = t->kv->device.blocks[b].fence > t->executed;
        comes = comes || is_late;
        if (!is_late) /* a found block holds this very prefix now: it was final when it was published */
            assert_true(t->device[b][pos % BT] == q->cells[pos]);
    }
    q->n = q->n_final = n_found;
    if (draw(t, 4) == 0) { /* it does not fit after all: nothing has touched it */
        kv_seq_close(t->kv, q->handle, 0);
        q->is_open = false;
    } else if (comes)
        read_context(t, q);
}

static void op_grow(struct storm *t, struct model_seq *q)
{
    if (!q->is_open || kv_seq_is_swapped(t->kv, q->handle) || q->grown_step == t->building)
        return;
    const uint32_t n_new = draw(t, 3) == 0 ? draw(t, 40) : 1, lookahead = draw(t, 4) == 0 ? draw(t, 5) : 0;
    const uint32_t first = q->n, n_tokens = MIN(first + n_new + lookahead, TOKENS_MAX);
    struct kv_copy copy;
    uint32_t n_copies;
    struct kv_stats before, after;
    kv_stats(t->kv, &before);
    const uint32_t need = kv_seq_need(t->kv, q->handle, n_tokens, first);
    const uint32_t available = kv_available(t->kv);
    const enum err code = kv_seq_grow(t->kv, q->handle, n_tokens, first, &copy, &n_copies, fence(t, t->building));
    kv_stats(t->kv, &after);
    assert_int_equal(code, need <= available ? OK : ERR_AGAIN);
    if (code != OK) {
        t->n_full++;
        assert_memory_equal(&before, &after, sizeof before);
        return;
    }
    if (n_copies > 0)
        add_op(t, (struct op){.kind = OP_COPY, .a = copy.src, .b = copy.dst});
    uint32_t n_blocks;
    const uint32_t *const table = kv_seq_table(t->kv, q->handle, &n_blocks);
    assert_true(n_blocks * BT >= n_tokens);
    for (uint32_t i = 0; i < n_new && q->n < n_tokens; i++) {
        push_token(t, q, token_at(t, q->n));
        const uint32_t pos = q->n - 1;
        add_op(t, (struct op){.kind = OP_WRITE, .a = table[pos / BT], .b = pos % BT, .cell = q->cells[pos]});
    }
    read_context(t, q);
    q->grown_step = t->building;
    if (draw(t, 2) == 0) { /* refused guesses go back; what is held is then exactly what the tokens need */
        kv_seq_truncate(t->kv, q->handle, q->n, fence(t, t->building));
        (void)kv_seq_table(t->kv, q->handle, &n_blocks);
        assert_int_equal(n_blocks, (q->n + BT - 1) / BT);
    }
}

static void op_fork(struct storm *t, struct model_seq *q)
{
    struct model_seq *child = NULL;
    for (uint32_t i = 0; i < N_SEQS; i++)
        if (!t->seqs[i].is_open)
            child = &t->seqs[i];
    if (child == NULL || !q->is_open || kv_seq_is_swapped(t->kv, q->handle) || q->n <= q->n_trimmed)
        return;
    if (q->last_step == t->building) /* copies are made before rows: what is shared must have been launched */
        return;
    const uint32_t n = q->n_trimmed + 1 + draw(t, q->n - q->n_trimmed);
    struct kv_seq handle;
    assert_int_equal(kv_seq_fork(t->kv, q->handle, n, &handle), OK);
    *child = *q;
    child->handle = handle;
    child->n = n;
    child->n_final = MIN(n, q->n_final);
    t->n_forks++;
}

static void op_shrink(struct storm *t, struct model_seq *q)
{
    if (!q->is_open || q->n <= q->n_trimmed || q->last_step == t->building)
        return;
    const uint64_t f = fence(t, q->last_step);
    if (draw(t, 2) == 0) {
        q->n = q->n_trimmed + 1 + draw(t, q->n - q->n_trimmed);
        q->n_final = MIN(q->n_final, q->n);
        kv_seq_truncate(t->kv, q->handle, q->n, f);
    } else {
        const uint32_t before = q->n_trimmed + draw(t, q->n - q->n_trimmed);
        kv_seq_trim(t->kv, q->handle, before, f);
        q->n_trimmed = MAX(q->n_trimmed, before / BT * BT);
    }
}

static void op_close(struct storm *t, struct model_seq *q)
{
    if (!q->is_open || q->last_step == t->building)
        return;
    kv_seq_close(t->kv, q->handle, fence(t, q->last_step));
    q->is_open = false;
}

static void op_swap(struct storm *t, struct model_seq *q)
{
    if (!q->is_open || q->last_step == t->building) /* a step swaps first and computes then */
        return;
    struct kv_copy copies[TOKENS_MAX / BT];
    uint32_t n_copies;
    const bool is_in = kv_seq_is_swapped(t->kv, q->handle);
    const enum err code = is_in ? kv_swap_in(t->kv, q->handle, copies, &n_copies, fence(t, t->building))
                                : kv_swap_out(t->kv, q->handle, copies, &n_copies, fence(t, t->building - 1));
    if (code != OK) {
        assert_int_equal(code, ERR_AGAIN);
        t->n_full++;
        return;
    }
    for (uint32_t i = 0; i < n_copies; i++)
        add_op(t, (struct op){.kind = is_in ? OP_IN : OP_OUT, .a = copies[i].src, .b = copies[i].dst});
    if (is_in)
        read_context(t, q);
    q->last_step = t->building;
}

/* Launch what was built; carry out and declare done a random part of what is in flight. */
static void op_step(struct storm *t)
{
    if (draw(t, 2) == 0)
        move_early(t);
    t->building++;
    while (t->building - t->executed >= N_STEPS - 1 || (t->executed + 1 < t->building && draw(t, 2) == 0))
        execute(t);
    if (t->done < t->executed && draw(t, 3) != 0)
        t->done += 1 + draw(t, (uint32_t)(t->executed - t->done));
    kv_fence_done(t->kv, t->done > 0 && draw(t, 8) == 0 ? t->done - 1 : t->done); /* sometimes an old one again */
    for (uint32_t i = 0; i < N_SEQS; i++) {
        struct model_seq *const q = &t->seqs[i];
        if (!q->is_open || q->last_step > t->done)
            continue;
        q->n_final = q->n;
        const uint32_t n_prompt = draw(t, q->n + 1); /* wherever the boundary between prompt and output is */
        kv_seq_publish(t->kv, q->handle, q->ids, n_prompt, q->ids + n_prompt, q->n_final);
    }
}

static void run_storm(
    struct storm *t, uint64_t seed, uint32_t n_ops, uint64_t (*hash)(const void *, size_t, uint64_t), bool no_fences)
{
    struct error e = {0};
    memset(t, 0, sizeof *t);
    t->seed = seed;
    t->no_fences = no_fences;
    t->building = 1;
    const struct kv_options o = {.n_blocks = N_BLOCKS,
        .n_host_blocks = N_HOST,
        .block_tokens = BT,
        .seqs_max = N_SEQS,
        .seq_blocks_max = TOKENS_MAX / BT,
        .prefix_cache = true};
    assert_ok(e, kv_new(&o, &t->kv, &e));
    if (hash != NULL)
        t->kv->hash = hash;
    t->tier = (struct kv_tier){.out = t->out, .in = t->in, .max = seed % 2 == 0 ? N_BLOCKS : 3};
    kv_tier_use(t->kv, &t->tier);
    for (uint32_t i = 0; i < n_ops; i++) {
        struct model_seq *const q = &t->seqs[draw(t, N_SEQS)];
        switch (draw(t, 16)) {
        case 0:
        case 1: op_open(t, q); break;
        case 2: op_fork(t, q); break;
        case 3: op_shrink(t, q); break;
        case 4: op_close(t, q); break;
        case 5:
        case 6: op_swap(t, q); break;
        case 7:
        case 8:
        case 9: op_step(t); break;
        case 10:
            if (draw(t, 200) == 0)
                kv_forget(t->kv);
            break;
        default: op_grow(t, q); break;
        }
        take_tier(t);
        const enum err code = kv_check(t->kv, &e);
        if (code != OK)
            fail_msg("seed %llu, operation %u: %s", (unsigned long long)seed, i, e.text);
    }
    t->building++;
    for (uint32_t i = 0; i < N_SEQS; i++)
        op_close(t, &t->seqs[i]);
    while (t->executed + 1 < t->building)
        execute(t);
    kv_fence_done(t->kv, t->building);
    struct kv_stats st;
    kv_stats(t->kv, &st);
    assert_int_equal(st.n_free + st.n_cached, N_BLOCKS); /* nothing leaked */
    assert_int_equal(st.n_host_free + st.n_host_cached, N_HOST);
}

static uint64_t hash_of_eight(const void *bytes, size_t n, uint64_t seed)
{
    return hash64(bytes, n, seed) & 7;
}

static uint64_t hash_of_one(const void *bytes, size_t n, uint64_t seed)
{
    (void)bytes, (void)n, (void)seed;
    return 42;
}

static struct storm storm;

static void every_context_is_its_own_over_random_operations(void **state)
{
    (void)state;
    struct kv_stats st, sum = {0};
    uint32_t n_forks = 0, n_full = 0, n_early = 0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run_storm(&storm, seed, 20000, NULL, false);
        kv_stats(storm.kv, &st);
        kv_free(storm.kv);
        if (storm.n_wrong > 0)
            fail_msg("seed %llu: %u reads found another's content", (unsigned long long)seed, storm.n_wrong);
        sum.exact += st.exact, sum.prefix += st.prefix, sum.evicted += st.evicted, sum.copied += st.copied;
        sum.swapped_out += st.swapped_out, sum.swapped_in += st.swapped_in, sum.published += st.published;
        sum.kept += st.kept, sum.restored += st.restored, sum.host_hits += st.host_hits;
        n_forks += storm.n_forks, n_full += storm.n_full, n_early += storm.n_early;
    }
    print_message(
        "hits %llu exact %llu prefix, %llu evicted, %llu kept %llu restored, %llu copied, %llu out %llu in, %u forks, "
        "%u full, %u early\n",
        (unsigned long long)sum.exact, (unsigned long long)sum.prefix, (unsigned long long)sum.evicted,
        (unsigned long long)sum.kept, (unsigned long long)sum.restored, (unsigned long long)sum.copied,
        (unsigned long long)sum.swapped_out, (unsigned long long)sum.swapped_in, n_forks, n_full, n_early);
    /* A storm that does not meet these proves nothing about them. */
    assert_true(sum.exact > 100 && sum.prefix > 100 && sum.evicted > 100 && sum.copied > 100 && n_forks > 100);
    assert_true(sum.swapped_out > 100 && sum.swapped_in > 100 && n_full > 100 && n_early > 100);
    assert_true(sum.kept > 100 && sum.restored > 100 && sum.host_hits > 100 && sum.restored < sum.kept);
}

static void collisions_never_give_a_wrong_hit(void **state)
{
    (void)state;
    for (uint64_t seed = 11; seed <= 12; seed++) {
        run_storm(&storm, seed, 20000, seed % 2 == 0 ? hash_of_one : hash_of_eight, false);
        struct kv_stats st;
        kv_stats(storm.kv, &st);
        kv_free(storm.kv);
        assert_int_equal(storm.n_wrong, 0);
        assert_true(st.exact + st.prefix > 100);
    }
}

static void without_fences_the_storm_sees_blocks_overwritten(void **state)
{
    (void)state;
    run_storm(&storm, 21, 20000, NULL, true);
    kv_free(storm.kv);
    assert_true(storm.n_wrong > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_context_is_its_own_over_random_operations),
        cmocka_unit_test(collisions_never_give_a_wrong_hit),
        cmocka_unit_test(without_fences_the_storm_sees_blocks_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
