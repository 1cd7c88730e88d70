/* Plans as bytes: whole ones pass, and each kind of damage is found. */
#include "testing_sched.h"

#include "base/rng.h"

static struct plan *some_plan(struct world *w)
{
    world_submit(w, world_request(40, 4, 1));
    world_submit(w, world_request(3, 4, 2));
    assert_true(sched_plan(w->s, w->now, false, w->plans[0]));
    return w->plans[0];
}

static void finish(struct world *w)
{
    sched_abort_all(w->s, END_ABORTED, NULL, w->now);
    world_fini(w);
}

static void a_plan_from_the_scheduler_is_whole(void **state)
{
    (void)state;
    struct world w;
    struct error e;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    struct plan *p = some_plan(&w);
    assert_ok(e, plan_check(p, p->bytes, &e));
    assert_int_equal(p->n_seqs, 2);
    assert_int_equal(p->n_rows, 43);
    assert_int_equal(p->n_out, 2);
    assert_int_equal(p->step, 1);
    finish(&w);
}

/* Every 32-bit number that the check is about, spoilt one at a time. */
static void a_spoilt_plan_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct error e;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    struct plan *p = some_plan(&w);
    struct plan_seq *q = plan_seqs(p);
    uint32_t *const spoil[] = {&p->version, &p->bytes, &p->n_rows, &p->n_seqs, &p->n_table, &p->n_out, &p->rows_max,
        &p->seqs_max, &p->table_max, &p->copies_max, &p->at_token, &p->at_pos, &p->at_seq_of_row, &p->at_kv_slot,
        &p->at_out_row, &p->at_seqs, &p->at_table, &p->at_copies, &p->at_out_copies, &p->at_in_copies, &q[0].first_row,
        &q[0].n_rows, &q[1].first_row, &q[1].first_pos, &q[1].table_at, &q[1].n_table, &q[1].n_spec, &q[1].first_out,
        &q[1].n_out, &q[1].samples, &plan_pos(p)[5], &plan_seq_of_row(p)[41], &plan_out_row(p)[1]};
    for (size_t i = 0; i < COUNT_OF(spoil); i++) {
        const uint32_t was = *spoil[i];
        const size_t bytes = p->bytes;
        *spoil[i] = was + 0x10000001u;
        e = (struct error){0};
        if (plan_check(p, bytes, &e) != ERR_FORMAT)
            fail_msg("number %zu was spoilt and nothing said", i);
        *spoil[i] = was;
    }
    p->n_copies = p->copies_max + 1;
    assert_fails(e, ERR_FORMAT, "more than it has room", plan_check(p, p->bytes, &e));
    p->n_copies = 0;
    assert_fails(e, ERR_FORMAT, "not whole", plan_check(p, p->bytes - 1, &e));
    assert_fails(e, ERR_FORMAT, "not whole", plan_check(p, 7, &e));
    assert_ok(e, plan_check(p, p->bytes, &e));
    finish(&w);
}

/* Read all that a runner would read; a sanitizer says when that is outside. */
static uint64_t read_all(const struct plan *p)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *q = &plan_seqs(p)[i];
        for (uint32_t k = 0; k < q->n_rows; k++)
            sum += (uint32_t)plan_token(p)[q->first_row + k] + plan_kv_slot(p)[q->first_row + k];
        for (uint32_t k = 0; k < q->n_table; k++)
            sum += plan_table(p)[q->table_at + k];
        for (uint32_t k = 0; k < q->n_out; k++)
            sum += plan_pos(p)[plan_out_row(p)[q->first_out + k]];
    }
    for (uint32_t i = 0; i < p->n_copies; i++)
        sum += plan_copies(p)[i].src;
    return sum;
}

static void random_damage_is_refused_or_harmless(void **state)
{
    (void)state;
    struct world w;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    struct plan *p = some_plan(&w);
    const size_t bytes = p->bytes, head_words = sizeof *p / 4;
    uint32_t *words = mem_array(bytes / 4, 4), n_refused = 0;
    struct plan *copy = (struct plan *)(void *)words;
    for (uint32_t i = 0; i < 20000; i++) {
        memcpy(words, p, bytes);
        for (uint32_t k = 0; k <= i % 3; k++) {
            const uint64_t h = rng_u64((struct rng_key){.seed = 1, .index = i, .choice = k, .purpose = RNG_DUMMY});
            const size_t seqs = p->at_seqs / 4;
            const size_t at = (h & 1) != 0 ? (h >> 8) % head_words : seqs + (h >> 8) % 24;
            words[at] = (h & 2) != 0 ? (uint32_t)(h >> 32) : words[at] + (uint32_t)((h >> 4) & 7) - 3;
        }
        if (plan_check(copy, bytes, NULL) == OK)
            (void)read_all(copy);
        else
            n_refused++;
    }
    assert_in_range(n_refused, 5000, 19999);
    mem_free(words);
    finish(&w);
}

static void a_plan_over_four_gibibytes_is_refused(void **state)
{
    (void)state;
    struct error e;
    struct plan *p;
    assert_fails(e, ERR_LIMIT, "4 GiB", plan_new(UINT32_MAX, 1, 1, 1, &p, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_from_the_scheduler_is_whole),
        cmocka_unit_test(a_spoilt_plan_is_refused),
        cmocka_unit_test(random_damage_is_refused_or_harmless),
        cmocka_unit_test(a_plan_over_four_gibibytes_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
