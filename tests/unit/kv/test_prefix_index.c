/* The prefix cache: what is found, what is not, and in which order it is forgotten. */
#include "testing_kv.h"

#include "base/hash.h"

static const struct kv_key common = {.numerics = 1};

static struct kv_seq open_with(struct kv *kv, struct kv_key key, uint32_t n, uint32_t want, enum kv_hit want_hit)
{
    struct kv_seq s;
    uint32_t n_found;
    enum kv_hit hit;
    assert_int_equal(kv_seq_open(kv, key, ids, n, true, 0, &s, &n_found, &hit), OK);
    assert_int_equal(n_found, want);
    assert_int_equal(hit, want_hit);
    return s;
}

/* A sequence of n tokens, computed and published. */
static struct kv_seq compute(struct kv *kv, struct kv_key key, uint32_t n, uint32_t want, enum kv_hit hit)
{
    struct kv_seq s = open_with(kv, key, n, want, hit);
    grow(kv, s, n, want);
    kv_seq_publish(kv, s, ids, n, NULL, n);
    return s;
}

static void full_blocks_are_found_again_and_the_rest_is_not(void **state)
{
    (void)state;
    struct kv *kv = pool_make(32, 8, true);
    struct kv_seq s = compute(kv, common, 40, 0, KV_MISS);
    assert_int_equal(kv_peek(kv, common, ids, 40, NULL), 32); /* while it runs */
    kv_seq_close(kv, s, 0);
    (void)open_with(kv, common, 32, 32, KV_HIT_EXACT);
    (void)open_with(kv, common, 47, 32, KV_HIT_EXACT); /* every full block of it */
    (void)open_with(kv, common, 48, 32, KV_HIT_PREFIX);
    (void)open_with(kv, common, 15, 0, KV_MISS);
    ids[17]++;
    (void)open_with(kv, common, 40, 16, KV_HIT_PREFIX);
    ids[0]++;
    (void)open_with(kv, common, 40, 0, KV_MISS);
    check(kv);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.lookups, 7);
    assert_int_equal(st.exact, 2);
    assert_int_equal(st.prefix, 2);
    assert_int_equal(st.miss, 3);
    assert_int_equal(st.tokens_found, 32 + 32 + 32 + 16);
    kv_free(kv);
}

static void other_keys_share_nothing(void **state)
{
    (void)state;
    struct kv *kv = pool_make(32, 8, true);
    kv_seq_close(kv, compute(kv, common, 40, 0, KV_MISS), 0);
    (void)open_with(kv, (struct kv_key){.numerics = 1, .salt = 9}, 40, 0, KV_MISS);
    (void)open_with(kv, (struct kv_key){.numerics = 1, .adapter = 1}, 40, 0, KV_MISS);
    (void)open_with(kv, (struct kv_key){.numerics = 2}, 40, 0, KV_MISS);
    kv_free(kv);
}

static uint64_t same_hash(const void *bytes, size_t n, uint64_t seed)
{
    (void)bytes, (void)n, (void)seed;
    return 5;
}

static void equal_hashes_with_other_keys_or_tokens_are_no_hit(void **state)
{
    (void)state;
    struct kv *kv = pool_make(32, 8, true);
    kv->hash = same_hash;
    kv_seq_close(kv, compute(kv, common, 48, 0, KV_MISS), 0);
    (void)open_with(kv, (struct kv_key){.numerics = 1, .salt = 9}, 48, 0, KV_MISS);
    ids[20]++;
    (void)open_with(kv, common, 48, 16, KV_HIT_PREFIX);
    ids[20]--;
    /* The same tokens at another depth: the hash and the ids are equal, the parent is not. */
    for (uint32_t i = 0; i < 16; i++)
        ids[i] = ids[16 + i];
    (void)open_with(kv, common, 48, 0, KV_MISS);
    check(kv);
    kv_free(kv);
}

static void an_evicted_parent_that_was_published_anew_is_another_parent(void **state)
{
    (void)state;
    struct kv *kv = pool_make(3, 8, true);
    kv_seq_close(kv, compute(kv, common, 48, 0, KV_MISS), 0);
    /* Evict the first block by name: its child stays behind in the index. */
    kv_index_remove(kv, 0);
    kv_list_move(&kv->device, 0, LIST_FREE);
    check(kv);
    (void)open_with(kv, common, 48, 0, KV_MISS);
    struct kv_seq other = compute(kv, (struct kv_key){.numerics = 1, .salt = 3}, 16, 0, KV_MISS);
    uint32_t n;
    assert_int_equal(kv_seq_table(kv, other, &n)[0], 0); /* the same block with another content */
    (void)open_with(kv, (struct kv_key){.numerics = 1, .salt = 3}, 48, 16, KV_HIT_PREFIX);
    check(kv);
    kv_free(kv);
}

static void without_lookup_nothing_is_found_or_counted(void **state)
{
    (void)state;
    struct kv *kv = pool_make(32, 8, true);
    kv_seq_close(kv, compute(kv, common, 40, 0, KV_MISS), 0);
    struct kv_seq s;
    uint32_t n_found;
    enum kv_hit hit;
    assert_int_equal(kv_seq_open(kv, common, ids, 40, false, 0, &s, &n_found, &hit), OK);
    assert_int_equal(n_found, 0);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.lookups, 1);
    kv_free(kv);
}

static void take_when_full_evicts_the_oldest_tail_first(void **state)
{
    (void)state;
    struct kv *kv = pool_make(6, 8, true);
    const struct kv_key old = {.numerics = 1, .salt = 1}, young = {.numerics = 1, .salt = 2};
    kv_seq_close(kv, compute(kv, old, 48, 0, KV_MISS), 0);
    kv_seq_close(kv, compute(kv, young, 48, 0, KV_MISS), 0);
    struct kv_seq s = open_with(kv, common, 0, 0, KV_MISS);
    for (uint32_t taken = 1; taken <= 6; taken++) {
        grow(kv, s, taken * 16, taken * 16 - 16);
        check(kv);
        assert_int_equal(kv_peek(kv, old, ids, 48, NULL), taken < 3 ? 48 - taken * 16 : 0);
        assert_int_equal(kv_peek(kv, young, ids, 48, NULL), taken < 3 ? 48 : (6 - taken) * 16);
    }
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.evicted, 6);
    kv_free(kv);
}

static void a_prefix_that_was_used_again_is_young_again(void **state)
{
    (void)state;
    struct kv *kv = pool_make(4, 8, true);
    const struct kv_key a = {.numerics = 1, .salt = 1}, b = {.numerics = 1, .salt = 2};
    kv_seq_close(kv, compute(kv, a, 32, 0, KV_MISS), 0);
    kv_seq_close(kv, compute(kv, b, 32, 0, KV_MISS), 0);
    kv_seq_close(kv, open_with(kv, a, 32, 32, KV_HIT_EXACT), 0);
    grow(kv, open_with(kv, common, 0, 0, KV_MISS), 32, 0);
    assert_int_equal(kv_peek(kv, a, ids, 32, NULL), 32);
    assert_int_equal(kv_peek(kv, b, ids, 32, NULL), 0);
    kv_free(kv);
}

static void a_cached_block_behind_a_fence_is_found_and_not_evicted(void **state)
{
    (void)state;
    struct kv *kv = pool_make(2, 8, true);
    kv_seq_close(kv, compute(kv, common, 32, 0, KV_MISS), 4);
    struct kv_seq s = open_with(kv, common, 0, 0, KV_MISS);
    struct kv_copy copy;
    uint32_t n_copies;
    assert_int_equal(kv_available(kv), 0);
    assert_int_equal(kv_seq_grow(kv, s, 16, 0, &copy, &n_copies, 5), ERR_AGAIN);
    kv_seq_close(kv, open_with(kv, common, 32, 32, KV_HIT_EXACT), 3); /* its fence stays 4 */
    check(kv);
    kv_fence_done(kv, 3);
    assert_int_equal(kv_available(kv), 0);
    kv_fence_done(kv, 4);
    assert_int_equal(kv_available(kv), 2);
    grow(kv, s, 16, 0);
    check(kv);
    kv_free(kv);
}

static void nothing_writes_into_a_published_block(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq s = compute(kv, common, 32, 0, KV_MISS);
    kv_seq_truncate(kv, s, 24, 0);
    struct kv_copy copy;
    uint32_t n_copies;
    assert_int_equal(kv_seq_grow(kv, s, 25, 24, &copy, &n_copies, 1), OK);
    assert_int_equal(n_copies, 1);
    assert_int_equal(kv_peek(kv, common, ids, 32, NULL), 32);
    check(kv);
    kv_free(kv);
}

static void output_tokens_are_published_across_the_end_of_the_prompt(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq s = open_with(kv, common, 21, 0, KV_MISS);
    for (uint32_t n = 21; n <= 48; n++) {
        grow(kv, s, n, n == 21 ? 0 : n - 1);
        kv_seq_publish(kv, s, ids, 21, ids + 21, n);
        assert_int_equal(kv_peek(kv, common, ids, 48, NULL), n / 16 * 16);
    }
    check(kv);
    kv_free(kv);
}

static void the_second_of_two_equal_blocks_stays_private(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq a = open_with(kv, common, 32, 0, KV_MISS), b = open_with(kv, common, 32, 0, KV_MISS);
    grow(kv, a, 32, 0);
    grow(kv, b, 32, 0);
    kv_seq_publish(kv, a, ids, 32, NULL, 32);
    kv_seq_publish(kv, b, ids, 32, NULL, 32);
    kv_seq_close(kv, b, 0);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.published, 2);
    assert_int_equal(st.n_free, 6);
    check(kv);
    kv_free(kv);
}

static void other_tokens_in_place_of_truncated_ones_are_not_taken_for_them(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq a = open_with(kv, common, 32, 0, KV_MISS), b = open_with(kv, common, 32, 0, KV_MISS);
    grow(kv, a, 32, 0);
    grow(kv, b, 32, 0);
    kv_seq_publish(kv, a, ids, 32, NULL, 32);
    kv_seq_publish(kv, b, ids, 32, NULL, 32); /* private: the entries are a's */
    kv_seq_truncate(kv, b, 24, 0);
    grow(kv, b, 48, 24);
    uint32_t other[48];
    memcpy(other, ids, sizeof other);
    other[30] = 12345;
    kv_seq_publish(kv, b, other, 48, NULL, 48);
    assert_int_equal(kv_peek(kv, common, ids, 48, NULL), 32); /* not 48: the third block follows other tokens */
    assert_int_equal(kv_peek(kv, common, other, 48, NULL), 48);
    check(kv);
    kv_free(kv);
}

static void a_chain_that_was_evicted_meanwhile_is_published_again(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq a = open_with(kv, common, 48, 0, KV_MISS), b = open_with(kv, common, 48, 0, KV_MISS);
    grow(kv, a, 32, 0);
    grow(kv, b, 32, 0);
    kv_seq_publish(kv, a, ids, 48, NULL, 32);
    kv_seq_publish(kv, b, ids, 48, NULL, 32); /* its chain now hangs on a's blocks */
    kv_seq_close(kv, a, 0);
    kv_forget(kv);
    assert_int_equal(kv_peek(kv, common, ids, 48, NULL), 0);
    grow(kv, b, 48, 32);
    kv_seq_publish(kv, b, ids, 48, NULL, 48);
    assert_int_equal(kv_peek(kv, common, ids, 48, NULL), 48);
    check(kv);
    kv_free(kv);
}

static void forget_leaves_held_blocks_and_frees_the_others(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq a = compute(kv, common, 32, 0, KV_MISS);
    kv_seq_close(kv, compute(kv, (struct kv_key){.numerics = 5}, 48, 0, KV_MISS), 0);
    kv_forget(kv);
    check(kv);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.n_cached, 0);
    assert_int_equal(st.n_free, 6);
    assert_int_equal(st.n_held, 2);
    kv_seq_close(kv, a, 0);
    kv_free(kv);
}

static void swapped_out_blocks_stay_findable(void **state)
{
    (void)state;
    struct kv *kv = pool_make(8, 8, true);
    struct kv_seq a = compute(kv, common, 40, 0, KV_MISS);
    struct kv_copy copies[64];
    uint32_t n;
    assert_int_equal(kv_swap_out(kv, a, copies, &n, 0), OK);
    (void)open_with(kv, common, 32, 32, KV_HIT_EXACT);
    assert_int_equal(kv_swap_in(kv, a, copies, &n, 1), OK);
    grow(kv, a, 48, 40);
    kv_seq_publish(kv, a, ids, 48, NULL, 48);
    assert_int_equal(kv_peek(kv, common, ids, 48, NULL), 48);
    check(kv);
    kv_free(kv);
}

/* ---- evicted to the host ---- */

static struct kv_copy evicted[8], restored[8];

static struct kv_tier tier_of(uint32_t max)
{
    return (struct kv_tier){.out = evicted, .in = restored, .max = max};
}

/* A pool of 4 blocks whose oldest prefix, of 2, has gone to the host in step 1. */
static struct kv *pool_evicted(uint32_t n_host, struct kv_tier *t, struct kv_seq *other)
{
    struct kv *kv = pool_make(4, n_host, true);
    *t = tier_of(8);
    kv_seq_close(kv, compute(kv, common, 32, 0, KV_MISS), 0);
    kv_tier_use(kv, t);
    uint32_t found, n_copies;
    enum kv_hit hit;
    struct kv_copy copy;
    assert_int_equal(kv_seq_open(kv, common, ids, 0, true, 1, other, &found, &hit), OK);
    assert_int_equal(kv_seq_grow(kv, *other, 64, 0, &copy, &n_copies, 1), OK);
    check(kv);
    return kv;
}

static void an_evicted_prefix_goes_to_the_host_and_comes_back(void **state)
{
    (void)state;
    struct kv_tier t;
    struct kv_seq other, s;
    struct kv *kv = pool_evicted(4, &t, &other);
    assert_int_equal(t.n_out, 2); /* the tail first, each to a place of its own */
    assert_true(evicted[0].src == 1 && evicted[1].src == 0 && evicted[0].dst != evicted[1].dst);
    uint32_t n_host, found, n;
    assert_int_equal(kv_peek(kv, common, ids, 40, NULL), 0); /* no block is left to bring it back into */
    kv_seq_close(kv, other, 1);
    kv_fence_done(kv, 1);
    assert_int_equal(kv_peek(kv, common, ids, 40, &n_host), 32);
    assert_int_equal(n_host, 2);
    enum kv_hit hit;
    t = tier_of(8);
    assert_int_equal(kv_seq_open(kv, common, ids, 40, true, 2, &s, &found, &hit), OK);
    check(kv);
    const uint32_t *table = kv_seq_table(kv, s, &n);
    assert_true(found == 32 && hit == KV_HIT_EXACT && n == 2 && t.n_in == 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(restored[i].src == evicted[1 - i].dst && restored[i].dst == table[i]);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_true(st.evicted == 2 && st.kept == 2 && st.restored == 2 && st.host_hits == 1);
    assert_int_equal(st.n_host_free, 2); /* the others are read by step 2 */
    kv_seq_close(kv, s, 0);              /* and so are the blocks written: found, but not evicted before it is done */
    assert_int_equal(kv_available(kv), 2);
    assert_int_equal(kv_peek(kv, common, ids, 40, NULL), 32);
    kv_fence_done(kv, 2);
    assert_int_equal(kv_available(kv), 4);
    kv_stats(kv, &st);
    assert_int_equal(st.n_host_free, 4);
    check(kv);
    kv_free(kv);
}

static void swapped_sequences_take_the_places_of_prefixes(void **state)
{
    (void)state;
    struct kv_tier t;
    struct kv_seq other;
    struct kv_copy copies[64];
    uint32_t n;
    struct kv *kv = pool_evicted(4, &t, &other);
    assert_int_equal(kv_swap_out(kv, other, copies, &n, 1), OK);
    assert_int_equal(n, 4);
    check(kv);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_true(st.n_host_cached == 0 && st.n_host_free == 0);
    kv_fence_done(kv, 1);
    assert_int_equal(kv_peek(kv, common, ids, 40, NULL), 0);
    kv_free(kv);
}

static void the_oldest_prefix_on_the_host_gives_way(void **state)
{
    (void)state;
    struct kv_tier t;
    struct kv_seq other;
    struct kv *kv = pool_evicted(1, &t, &other); /* the tail, then its parent; there is one place, busy until step 1 */
    assert_int_equal(t.n_out, 1);
    kv_seq_publish(kv, other, ids + 100, 64, NULL, 64);
    kv_seq_close(kv, other, 1);
    kv_fence_done(kv, 1);
    t = tier_of(8);
    assert_int_equal(kv_peek(kv, common, ids + 100, 64, NULL), 64);
    const struct kv_seq third = open_with(kv, (struct kv_key){.salt = 1}, 0, 0, KV_MISS);
    grow(kv, third, 16, 0);
    assert_true(t.n_out == 1 && evicted[0].dst == 0); /* where the older one was */
    assert_int_equal(kv_peek(kv, common, ids + 100, 64, NULL), 48); /* three blocks of its own, none for the fourth */
    kv_seq_close(kv, third, 0);
    uint32_t n_host;
    assert_int_equal(kv_peek(kv, common, ids + 100, 64, &n_host), 64);
    assert_int_equal(n_host, 1);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_true(st.evicted == 3 && st.kept == 2 && st.n_host_cached == 1);
    kv_free(kv);
}

static void a_prefix_computed_again_is_not_brought_back(void **state)
{
    (void)state;
    struct kv_tier t;
    struct kv_seq other;
    struct kv *kv = pool_evicted(4, &t, &other);
    kv_seq_close(kv, other, 1);
    kv_fence_done(kv, 1);
    kv_tier_use(kv, NULL); /* nobody would copy it: it is not found */
    const struct kv_seq s = compute(kv, common, 32, 0, KV_MISS);
    uint32_t n_host;
    assert_int_equal(kv_peek(kv, common, ids, 32, &n_host), 32);
    assert_int_equal(n_host, 0);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_true(st.n_host_cached == 0 && st.n_host_free == 4 && st.published == 2);
    check(kv);
    kv_seq_close(kv, s, 0);
    kv_free(kv);
}

static void forget_forgets_the_host(void **state)
{
    (void)state;
    struct kv_tier t;
    struct kv_seq other;
    struct kv *kv = pool_evicted(4, &t, &other);
    kv_forget(kv);
    check(kv);
    kv_fence_done(kv, 1);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_true(st.n_host_cached == 0 && st.n_host_free == 4);
    kv_free(kv);
}

static void with_the_cache_off_nothing_is_kept(void **state)
{
    (void)state;
    struct error e;
    struct kv *kv;
    const struct kv_options o = {.n_blocks = 4, .block_tokens = 16, .seqs_max = 2, .seq_blocks_max = 4};
    assert_ok(e, kv_new(&o, &kv, &e));
    kv_seq_close(kv, compute(kv, common, 32, 0, KV_MISS), 0);
    (void)open_with(kv, common, 32, 0, KV_MISS);
    struct kv_stats st;
    kv_stats(kv, &st);
    assert_int_equal(st.n_free, 4);
    assert_int_equal(st.lookups, 0);
    kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_blocks_are_found_again_and_the_rest_is_not),
        cmocka_unit_test(other_keys_share_nothing),
        cmocka_unit_test(equal_hashes_with_other_keys_or_tokens_are_no_hit),
        cmocka_unit_test(an_evicted_parent_that_was_published_anew_is_another_parent),
        cmocka_unit_test(without_lookup_nothing_is_found_or_counted),
        cmocka_unit_test(take_when_full_evicts_the_oldest_tail_first),
        cmocka_unit_test(a_prefix_that_was_used_again_is_young_again),
        cmocka_unit_test(a_cached_block_behind_a_fence_is_found_and_not_evicted),
        cmocka_unit_test(nothing_writes_into_a_published_block),
        cmocka_unit_test(output_tokens_are_published_across_the_end_of_the_prompt),
        cmocka_unit_test(the_second_of_two_equal_blocks_stays_private),
        cmocka_unit_test(other_tokens_in_place_of_truncated_ones_are_not_taken_for_them),
        cmocka_unit_test(a_chain_that_was_evicted_meanwhile_is_published_again),
        cmocka_unit_test(forget_leaves_held_blocks_and_frees_the_others),
        cmocka_unit_test(swapped_out_blocks_stay_findable),
        cmocka_unit_test(an_evicted_prefix_goes_to_the_host_and_comes_back),
        cmocka_unit_test(swapped_sequences_take_the_places_of_prefixes),
        cmocka_unit_test(the_oldest_prefix_on_the_host_gives_way),
        cmocka_unit_test(a_prefix_computed_again_is_not_brought_back),
        cmocka_unit_test(forget_forgets_the_host),
        cmocka_unit_test(with_the_cache_off_nothing_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
