/* Byte pair encoding: the fast merges are the definition. */
#include "testing.h"
#include "testing_tok.h"

#include "base/limits.h"
#include "base/mem.h"

#include <stdlib.h>

/* A word over few bytes, so that merges and ties abound. */
static void roll_word(struct dice *d, uint32_t *ids, size_t n, const struct tok *t)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t kind = dice_roll(d, 20);
        const unsigned char b = (unsigned char)(kind == 0 ? dice_roll(d, 256) : 'a' + dice_roll(d, kind < 12 ? 2 : 4));
        ids[i] = t->meta->byte_ids[b];
    }
}

static void compare_with_naive(bool shuffled)
{
    struct dice d = {11};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct tok *t = tok_byte_level(seed, 400, shuffled, "");
        struct tok_ctx *c = ctx_of();
        for (int round = 0; round < 1500; round++) {
            uint32_t fast[400], slow[400];
            const size_t n = round % 10 == 0 ? dice_roll(&d, 400) : dice_roll(&d, 60);
            roll_word(&d, fast, n, t);
            memcpy(slow, fast, n * sizeof *fast);
            const size_t got = bpe_merge(t, c, fast, n), want = bpe_merge_naive(t, slow, n);
            assert_int_equal(got, want);
            assert_memory_equal(fast, slow, want * sizeof *slow);
        }
        tok_ctx_free(c);
        tok_free(t);
    }
}

static void fast_merge_equals_naive_merge(void **unused)
{
    (void)unused;
    compare_with_naive(false);
}

static void fast_merge_equals_naive_merge_when_ranks_are_out_of_order(void **unused)
{
    (void)unused;
    compare_with_naive(true);
}

/* The planted twin: a merge that takes the rightmost of equals is told from the definition by the same words. */
static size_t merge_rightmost(const struct tok *t, uint32_t *ids, size_t n)
{
    for (;;) {
        uint32_t best = UINT32_MAX, made = 0, rank, id;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (bpe_pair(t, ids[i], ids[i + 1], &rank, &id) && rank <= best) {
                best = rank;
                made = id;
                at = i;
            }
        if (best == UINT32_MAX)
            return n;
        ids[at] = made;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void naive_comparison_notices_a_wrong_tie(void **unused)
{
    (void)unused;
    struct dice d = {11};
    struct tok *t = tok_byte_level(1, 400, false, "");
    int differ = 0;
    for (int round = 0; round < 500; round++) {
        uint32_t a[60], b[60];
        const size_t n = dice_roll(&d, 60);
        roll_word(&d, a, n, t);
        memcpy(b, a, n * sizeof *a);
        const size_t x = merge_rightmost(t, a, n), y = bpe_merge_naive(t, b, n);
        differ += x != y || memcmp(a, b, y * sizeof *a) != 0;
    }
    assert_true(differ > 0);
    tok_free(t);
}

/* A word of several blocks against one heap over all of it. */
static void very_long_word_in_blocks_equals_one_merge(void **unused)
{
    (void)unused;
    struct dice d = {5};
    struct tok *t = tok_byte_level(3, 800, false, "");
    struct tok_ctx *c = ctx_of(), *other = ctx_of();
    assert_true(t->meta->flags & META_ORDERED);
    const size_t n = 300000;
    char *word = mem_alloc(n);
    uint32_t *ids = mem_alloc(n * sizeof *ids);
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < n; i++) {
            word[i] = kind == 0 ? 'a' : (char)('a' + dice_roll(&d, kind == 1 ? 2 : 4));
            ids[i] = t->meta->byte_ids[(unsigned char)word[i]];
        }
        const size_t want = bpe_merge(t, other, ids, n);
        c->n_ids = 0;
        bpe_encode(t, c, (struct str){word, n});
        assert_int_equal(c->n_ids, want);
        assert_memory_equal(c->ids, ids, want * sizeof *ids);
    }
    mem_free(word);
    mem_free(ids);
    tok_ctx_free(c);
    tok_ctx_free(other);
    tok_free(t);
}

static void out_of_order_merges_are_not_cut_into_blocks(void **unused)
{
    (void)unused;
    struct tok *t = tok_byte_level(3, 400, true, "");
    assert_false(t->meta->flags & META_ORDERED);
    tok_free(t);
}

/* Encoding through the word cache is the same as without it. */
static void cached_words_equal_fresh_words(void **unused)
{
    (void)unused;
    struct dice d = {9};
    struct tok *t = tok_byte_level(2, 600, false, "");
    struct tok_ctx *warm = ctx_of();
    for (int round = 0; round < 3000; round++) {
        char text[64];
        const size_t n = dice_roll(&d, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(dice_roll(&d, 8) == 0 ? ' ' : 'a' + dice_roll(&d, 4));
        struct tok_ids a, b;
        struct error e = {0};
        struct tok_ctx *cold = ctx_of();
        assert_ok(e, tok_encode_user(t, warm, (struct str){text, n}, false, &a, &e));
        assert_ok(e, tok_encode_user(t, cold, (struct str){text, n}, false, &b, &e));
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.p, b.p, a.n * sizeof *a.p);
        tok_ctx_free(cold);
    }
    tok_ctx_free(warm);
    tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_merge_equals_naive_merge),
        cmocka_unit_test(fast_merge_equals_naive_merge_when_ranks_are_out_of_order),
        cmocka_unit_test(naive_comparison_notices_a_wrong_tie),
        cmocka_unit_test(very_long_word_in_blocks_equals_one_merge),
        cmocka_unit_test(out_of_order_merges_are_not_cut_into_blocks),
        cmocka_unit_test(cached_words_equal_fresh_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
