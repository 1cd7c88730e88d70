/* Blocks and tables through the door: how many are held, who waits for whom, what is copied, swapped and parked. */
#include "testing_kv.h"

#include "base/fault.h"
#include "base/mem.h"

static const struct kv_key no_key = {.numerics = 1};

static struct kv_seq open_empty(struct kv *kv)
{
    struct kv_seq s;
    uint32_t n_found;
    enum kv_hit hit;
    assert_int_equal(kv_seq_open(kv, no_key, ids, 0, false, 0, &s, &n_found, &hit), OK);
    return s;
}

static uint32_t n_held(const struct kv *kv)
{
    struct kv_stats st;
    kv_stats(kv, &st);
    return st.n_held;
}

static void a_sequence_holds_exactly_the_blocks_its_tokens_need(void **state)
{
    (void)state;
    struct kv *kv = pool_make(64, 0, true);
    struct kv_seq s = open_empty(kv);
    for (uint32_t lookahead = 0; lookahead < 20; lookahead += 3)
        for (uint32_t n = 1; n < 200; n++) {
            grow(kv, s, n + lookahead, n - 1);
            kv_seq_truncate(kv, s, n + lookahead, 0);
            uint32_t n_blocks;
            (void)kv_seq_table(kv, s, &n_blocks);
            assert_int_equal(n_blocks, (n + lookahead + 15) / 16);
            assert_int_equal(n_held(kv), n_blocks);
            assert_true(n_blocks * 16 <= n + 16 - 1 + lookahead);
            if (n == 199)
                kv_seq_truncate(kv, s, 0, 0);
        }
    kv_seq_close(kv, s, 0);
    assert_int_equal(n_held(kv), 0);
    kv_free(kv);
}

static void grow_without_enough_blocks_changes_nothing(void **state)
{
    (void)state;
    struct kv *kv = pool_make(4, 0, true);
    struct kv_seq a = open_empty(kv), b = open_empty(kv);
    grow(kv, a, 33, 0);
    struct kv_copy copy;
    uint32_t n_copies;
    assert_int_equal(kv_seq_need(kv, b, 32, 0), 2);
    assert_int_equal(kv_seq_grow(kv, b, 32, 0, &copy, &n_copies, 0), ERR_AGAIN);
    assert_int_equal(n_held(kv), 3);
    check(kv);
    grow(kv, b, 16, 0);
    kv_free(kv);
}

static void all_sequences_taken_is_an_ordinary_answer(void **state)
{
    (void)state;
    struct kv *kv = pool_make(4, 0, true);
    struct kv_seq first = open_empty(kv), s;
    for (int i = 1; i < 8; i++)
        s = open_empty(kv);
    uint32_t n_found;
    enum kv_hit hit;
    assert_int_equal(kv_seq_open(kv, no_key, ids, 0, true, 0, &s, &n_found, &hit), ERR_AGAIN);
    assert_int_equal(kv_seq_fork(kv, first, 0, &s), ERR_AGAIN);
    assert_int_equal(s.v, UINT32_MAX);
    kv_seq_close(kv, first, 0);
    (void)open_empty(kv);
    check(kv);
    kv_free(kv);
}

static void blocks_given_up_behind_a_fence_come_back_when_it_is_done(void **state)
{
    (void)state;
    struct kv *kv = pool_make(4, 0, true);
    struct kv_seq a = open_empty(kv), b = open_empty(kv);
    grow(kv, a, 32, 0);
    grow(kv, b, 32, 0);
    kv_seq_close(kv, a, 7);
    kv_seq_close(kv, b, 5); /* a smaller fence that comes later */
    assert_int_equal(kv_available(kv), 0);
    check(kv);
    kv_fence_done(kv, 4);
    assert_int_equal(kv_available(kv), 0);
    kv_fence_done(kv, 6);
    assert_int_equal(kv_available(kv), 2);
    check(kv);
    kv_fence_done(kv, 3); /* an old number says nothing new */
    assert_int_equal(kv_available(kv), 2);
    kv_fence_done(kv, 9);
    assert_int_equal(kv_available(kv), 4);
    check(kv);
    struct kv_seq c = open_empty(kv);
    grow(kv, c, 16, 0);
    kv_seq_close(kv, c, 8); /* already done: free at once */
    assert_int_equal(kv_available(kv), 4);
    kv_free(kv);
}

static void a_block_waits_for_the_last_fence_of_all_its_holders(void **state)
{
    (void)state;
    struct kv *kv = pool_make(2, 0, true);
    struct kv_seq a = open_empty(kv), b;
    grow(kv, a, 10, 0);
    assert_int_equal(kv_seq_fork(kv, a, 10, &b), OK);
    kv_seq_close(kv, a, 9);
    kv_seq_close(kv, b, 2);
    kv_fence_done(kv, 8);
    assert_int_equal(kv_available(kv), 1);
    kv_fence_done(kv, 9);
    assert_int_equal(kv_available(kv), 2);
    kv_free(kv);
}

static void a_fork_shares_blocks_and_copies_the_one_it_writes(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 0, true);
    struct kv_seq a = open_empty(kv), b;
    grow(kv, a, 40, 0);
    assert_int_equal(kv_seq_fork(kv, a, 40, &b), OK);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.n_held, 3);
    assert_int_equal(st.n_shared, 3);
    struct kv_copy copy;
    uint32_t n_copies, n_blocks;
    assert_int_equal(kv_seq_need(kv, b, 41, 40), 1);
    const uint32_t third = kv_seq_table(kv, a, &n_blocks)[2];
    assert_int_equal(kv_seq_grow(kv, b, 41, 40, &copy, &n_copies, 3), OK);
    assert_int_equal(n_copies, 1);
    assert_int_equal(copy.src, third);
    assert_int_equal(copy.dst, kv_seq_table(kv, b, &n_blocks)[2]);
    check(kv);
    kv_stats(kv, &st);
    assert_int_equal(st.n_held, 4);
    assert_int_equal(st.n_shared, 2);
    grow(kv, a, 41, 40); /* alone with it again: no copy */
    kv_free(kv);
}

static void a_reader_that_writes_nothing_needs_no_copy(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 0, true);
    struct kv_seq a = open_empty(kv), b;
    grow(kv, a, 40, 0);
    assert_int_equal(kv_seq_fork(kv, a, 40, &b), OK);
    grow(kv, b, 40, 40);
    kv_free(kv);
}

static void trim_gives_back_what_lies_behind_the_window(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 0, true);
    struct kv_seq s = open_empty(kv);
    grow(kv, s, 64, 0);
    kv_seq_trim(kv, s, 31, 0);
    uint32_t n_blocks;
    const uint32_t *const table = kv_seq_table(kv, s, &n_blocks);
    assert_int_equal(n_blocks, 4);
    assert_int_equal(table[0], KV_NONE);
    assert_int_not_equal(table[1], KV_NONE);
    assert_int_equal(n_held(kv), 3);
    kv_seq_trim(kv, s, 16, 0); /* already */
    kv_seq_trim(kv, s, 48, 0);
    assert_int_equal(n_held(kv), 1);
    check(kv);
    kv_seq_close(kv, s, 0);
    assert_int_equal(kv_available(kv), 8);
    kv_free(kv);
}

static void a_swapped_sequence_comes_back_into_other_blocks(void **state)
{
    (void)state;
    struct kv *kv = pool_make(4, 3, true);
    struct kv_seq a = open_empty(kv), b = open_empty(kv);
    grow(kv, a, 48, 0);
    struct kv_copy copies[64];
    uint32_t n, n_blocks;
    assert_int_equal(kv_swap_out(kv, a, copies, &n, 2), OK);
    assert_int_equal(n, 3);
    assert_true(kv_seq_is_swapped(kv, a));
    (void)kv_seq_table(kv, a, &n_blocks);
    assert_int_equal(n_blocks, 0);
    check(kv);
    assert_int_equal(kv_available(kv), 1); /* the others are being copied */
    kv_fence_done(kv, 2);
    assert_int_equal(kv_available(kv), 4);
    grow(kv, b, 20, 0);
    assert_int_equal(kv_swap_in(kv, a, copies, &n, 3), ERR_AGAIN);
    assert_true(kv_seq_is_swapped(kv, a));
    kv_seq_close(kv, b, 0);
    assert_int_equal(kv_swap_in(kv, a, copies, &n, 3), OK);
    check(kv);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.n_host_free, 0); /* until step 3 has read them */
    kv_fence_done(kv, 3);
    kv_stats(kv, &st);
    assert_int_equal(st.n_host_free, 3);
    kv_free(kv);
}

static void a_full_swap_space_is_an_ordinary_answer(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 2, true);
    struct kv_seq a = open_empty(kv);
    grow(kv, a, 48, 0);
    struct kv_copy copies[64];
    uint32_t n;
    assert_int_equal(kv_swap_out(kv, a, copies, &n, 1), ERR_AGAIN);
    assert_false(kv_seq_is_swapped(kv, a));
    check(kv);
    kv_seq_truncate(kv, a, 32, 0);
    assert_int_equal(kv_swap_out(kv, a, copies, &n, 1), OK);
    kv_seq_close(kv, a, 1); /* while it is out */
    kv_fence_done(kv, 1);
    check(kv);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.n_host_free, 2);
    kv_free(kv);
}

static void the_map_shows_every_state(void **state)
{
    (void)state;
    struct kv *kv = pool_make(6, 0, true);
    struct kv_seq a = open_empty(kv), b, c = open_empty(kv), d = open_empty(kv);
    grow(kv, a, 16, 0);
    assert_int_equal(kv_seq_fork(kv, a, 16, &b), OK);
    grow(kv, a, 32, 16);
    grow(kv, c, 16, 0);
    kv_seq_publish(kv, c, ids, 16, NULL, 16);
    kv_seq_close(kv, c, 0);
    grow(kv, d, 16, 0);
    kv_seq_close(kv, d, 5);
    uint8_t map[6];
    kv_map(kv, map);
    const uint8_t want[6] = {4, 3, 1, 2, 0, 0};
    assert_memory_equal(map, want, sizeof want);
    kv_free(kv);
}

static void impossible_options_are_refused_by_name(void **state)
{
    (void)state;
    struct error e;
    struct kv *kv;
    struct kv_options o = {.n_blocks = 4, .block_tokens = 16, .seqs_max = 1, .seq_blocks_max = 4};
    o.block_tokens = 24;
    assert_fails(e, ERR_INVALID, "24 tokens", kv_new(&o, &kv, &e));
    o.block_tokens = 16;
    o.n_blocks = 0;
    assert_fails(e, ERR_LIMIT, "0 blocks", kv_new(&o, &kv, &e));
    o.n_blocks = 1u << 26;
    o.block_tokens = 1024;
    assert_fails(e, ERR_LIMIT, "32 bits", kv_new(&o, &kv, &e));
    o.n_blocks = 4;
    o.seqs_max = 0;
    assert_fails(e, ERR_LIMIT, "0 sequences", kv_new(&o, &kv, &e));
    assert_null(kv);
}

static void every_failed_allocation_is_an_answer(void **state)
{
    (void)state;
    const struct kv_options o = {
        .n_blocks = 4, .n_host_blocks = 4, .block_tokens = 16, .seqs_max = 2, .seq_blocks_max = 4};
    for (uint64_t nth = 1;; nth++) {
        struct error e = {0};
        struct kv *kv = NULL;
        fault_arm(FAULT_ALLOC, nth, false);
        const enum err code = kv_new(&o, &kv, &e);
        const uint64_t calls = fault_calls(FAULT_ALLOC);
        fault_arm(FAULT_ALLOC, 0, false);
        kv_free(kv);
        if (calls < nth) {
            assert_int_equal(code, OK);
            assert_true(nth > 5);
            return;
        }
        assert_int_equal(code, ERR_NOMEM);
        assert_null(kv);
    }
}

static void nothing_allocates_after_the_start(void **state)
{
    (void)state;
    struct kv *kv = pool_make(16, 8, true);
    const uint64_t before = mem_thread_allocs();
    struct kv_seq a = open_empty(kv), b;
    grow(kv, a, 100, 0);
    kv_seq_publish(kv, a, ids, 100, NULL, 100);
    assert_int_equal(kv_seq_fork(kv, a, 100, &b), OK);
    struct kv_copy copies[64];
    uint32_t n;
    assert_int_equal(kv_swap_out(kv, b, copies, &n, 1), OK);
    kv_seq_close(kv, a, 1);
    kv_seq_close(kv, b, 1);
    kv_fence_done(kv, 1);
    kv_forget(kv);
    check(kv);
    assert_int_equal(mem_thread_allocs(), before);
    kv_free(kv);
}

/* The twin of every check(kv) above: what kv_check is for, planted. */
static void kv_check_finds_what_is_broken(void **state)
{
    (void)state;
    struct error e;
    struct kv *kv = pool_make(8, 2, true);
    struct kv_seq s = open_empty(kv);
    grow(kv, s, 40, 0);
    kv_seq_publish(kv, s, ids, 40, NULL, 40);
    check(kv);
    kv->device.blocks[0].refs++;
    assert_fails(e, ERR_INTERNAL, "references", kv_check(kv, &e));
    kv->device.blocks[0].refs--;
    kv->seqs[0].table[2] = kv->seqs[0].table[1];
    assert_fails(e, ERR_INTERNAL, "references", kv_check(kv, &e));
    kv->seqs[0].table[2] = 2;
    kv->seqs[0].n_tokens = 60;
    assert_fails(e, ERR_INTERNAL, "blocks", kv_check(kv, &e));
    kv->seqs[0].n_tokens = 40;
    kv->device.count[LIST_FREE]--;
    assert_fails(e, ERR_INTERNAL, "counts", kv_check(kv, &e));
    kv->device.count[LIST_FREE]++;
    kv->ids[3]++;
    assert_fails(e, ERR_INTERNAL, "hash", kv_check(kv, &e));
    kv->ids[3]--;
    kv->device.blocks[1].hash++;
    assert_fails(e, ERR_INTERNAL, "not found", kv_check(kv, &e));
    kv->device.blocks[1].hash--;
    kv->device.blocks[kv_list_first(&kv->device, LIST_FREE)].fence = 3;
    assert_fails(e, ERR_INTERNAL, "fence", kv_check(kv, &e));
    kv->device.blocks[kv_list_first(&kv->device, LIST_FREE)].fence = 0;
    check(kv);
    kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_holds_exactly_the_blocks_its_tokens_need),
        cmocka_unit_test(grow_without_enough_blocks_changes_nothing),
        cmocka_unit_test(all_sequences_taken_is_an_ordinary_answer),
        cmocka_unit_test(blocks_given_up_behind_a_fence_come_back_when_it_is_done),
        cmocka_unit_test(a_block_waits_for_the_last_fence_of_all_its_holders),
        cmocka_unit_test(a_fork_shares_blocks_and_copies_the_one_it_writes),
        cmocka_unit_test(a_reader_that_writes_nothing_needs_no_copy),
        cmocka_unit_test(trim_gives_back_what_lies_behind_the_window),
        cmocka_unit_test(a_swapped_sequence_comes_back_into_other_blocks),
        cmocka_unit_test(a_full_swap_space_is_an_ordinary_answer),
        cmocka_unit_test(the_map_shows_every_state),
        cmocka_unit_test(impossible_options_are_refused_by_name),
        cmocka_unit_test(every_failed_allocation_is_an_answer),
        cmocka_unit_test(nothing_allocates_after_the_start),
        cmocka_unit_test(kv_check_finds_what_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
