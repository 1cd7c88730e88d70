/* Plans as bytes: whole ones pass, and each kind of damage is found. */
#include "testing_sched.h"

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
        cmocka_unit_test(a_plan_over_four_gibibytes_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
