/* Counted allocation, arena, pool. */
#include "base_testing.h"

#include "base/mem.h"

static size_t opaque(size_t n) /* keeps the compiler from judging absurd sizes */
{
    volatile size_t v = n;
    return v;
}

static void allocations_are_counted_and_absurd_sizes_refused(void **state)
{
    (void)state;
    const uint64_t before = mem_thread_allocs();
    void *a = mem_alloc(0), *b = mem_zalloc(0);
    assert_true(a != NULL && b != NULL && a != b);
    unsigned char *z = mem_array(100, 3);
    for (size_t i = 0; i < 300; i++)
        assert_int_equal(z[i], 0);
    assert_int_equal(mem_thread_allocs() - before, 3);
    assert_null(mem_array(opaque(SIZE_MAX / 2), 3));
    assert_null(mem_alloc(opaque(SIZE_MAX - 1)));
    char *same = mem_resize(z, opaque(SIZE_MAX - 64));
    assert_null(same);
    z[299] = 1; /* still ours */
    assert_null(mem_copy_str((struct str){"x", opaque(SIZE_MAX)}));
    mem_free(a);
    mem_free(b);
    mem_free(z);
    mem_free(NULL);
}

static void aligned_memory_is_aligned(void **state)
{
    (void)state;
    for (size_t align = 8; align <= 4096; align *= 2) {
        void *p = mem_aligned(align, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        mem_free(p);
    }
}

static void copies_end_with_a_nul(void **state)
{
    (void)state;
    char *c = mem_copy_str((struct str){"hello", 2});
    assert_string_equal(c, "he");
    mem_free(c);
    c = mem_copy_str((struct str){NULL, 0});
    assert_string_equal(c, "");
    mem_free(c);
}

static void arena_gives_zeroed_aligned_separate_memory(void **state)
{
    (void)state;
    enum { N = 3000 };
    static struct {
        unsigned char *p;
        size_t n;
    } got[N];
    struct arena a;
    arena_init(&a, (size_t)64 << 20);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < N; i++) {
            got[i].n = rnd(2, i) % (i % 100 == 0 ? 200000 : 300);
            got[i].p = arena_take(&a, got[i].n);
            assert_non_null(got[i].p);
            assert_int_equal((uintptr_t)got[i].p % 16, 0);
            for (size_t k = 0; k < got[i].n; k++)
                assert_int_equal(got[i].p[k], 0);
            memset(got[i].p, (int)(i & 0xff), got[i].n);
        }
        for (uint64_t i = 0; i < N; i++)
            for (size_t k = 0; k < got[i].n; k++)
                assert_int_equal(got[i].p[k], i & 0xff);
        arena_reset(&a); /* and again over dirty memory */
        assert_int_equal(a.total_bytes, 0);
    }
    arena_fini(&a);
}

static void arena_keeps_its_maximum(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 1000);
    assert_null(arena_take(&a, 1001));
    assert_non_null(arena_take(&a, 900));
    assert_null(arena_take(&a, 97));
    assert_non_null(arena_take(&a, 80));
    assert_null(arena_take(&a, 32));
    arena_reset(&a);
    assert_non_null(arena_take(&a, 900));
    assert_null(arena_array(&a, opaque(SIZE_MAX / 2), 4));
    arena_fini(&a);
    arena_init(&a, SIZE_MAX); /* no maximum: sizes that would wrap are still refused */
    assert_null(arena_take(&a, opaque(SIZE_MAX)));
    assert_null(arena_take(&a, opaque(SIZE_MAX - 20)));
    assert_null(arena_copy_str(&a, (struct str){"x", opaque(SIZE_MAX)}));
    assert_string_equal(arena_copy_str(&a, STR("word")), "word");
    arena_fini(&a);
    arena_fini(&a); /* twice is fine */
}

static enum err fill_arena(void *ctx, struct error *e)
{
    (void)ctx;
    struct arena a;
    enum err err = OK;
    arena_init(&a, (size_t)1 << 20);
    for (int i = 0; i < 5 && err == OK; i++)
        if (arena_array(&a, 10000, 5) == NULL)
            err = FAIL(e, ERR_NOMEM, "arena");
    arena_fini(&a);
    return err;
}

static enum err make_pool(void *ctx, struct error *e)
{
    (void)ctx;
    struct pool p;
    TRY(pool_init(&p, 10, 24, e));
    pool_fini(&p);
    return OK;
}

static void failing_allocations_are_answers(void **state)
{
    (void)state;
    assert_int_equal(fail_each(FAULT_ALLOC, fill_arena, NULL), 5);
    assert_int_equal(fail_each(FAULT_ALLOC, make_pool, NULL), 2);
}

static void pool_slots_are_distinct_and_come_back(void **state)
{
    (void)state;
    struct error e;
    struct pool p;
    enum { N = 17 };
    assert_ok(e, pool_init(&p, N, 13, &e));
    unsigned char *slot[N] = {0};
    uint32_t out = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        const uint64_t k = rnd(3, i) % N;
        if (slot[k] == NULL) {
            slot[k] = pool_take(&p);
            assert_non_null(slot[k]);
            for (int b = 0; b < 13; b++)
                assert_int_equal(slot[k][b], 0);
            memset(slot[k], (int)k + 1, 13);
            out++;
        } else {
            for (int b = 0; b < 13; b++)
                assert_int_equal(slot[k][b], k + 1);
            pool_give(&p, slot[k]);
            slot[k] = NULL;
            out--;
        }
        assert_int_equal(p.n_free, N - out);
    }
    while (p.n_free > 0)
        assert_non_null(pool_take(&p));
    assert_null(pool_take(&p));
    pool_fini(&p);
}

static void give_twice(void *ctx)
{
    struct pool *p = ctx;
    void *slot = pool_take(p);
    pool_give(p, slot);
    pool_give(p, slot);
}
static void give_inside(void *ctx)
{
    struct pool *p = ctx;
    pool_give(p, (unsigned char *)pool_take(p) + 1);
}
static void give_foreign(void *ctx)
{
    static char foreign[64];
    pool_give(ctx, foreign);
}
static void give_properly(void *ctx)
{
    pool_give(ctx, pool_take(ctx));
}

static void pool_asserts_on_what_is_not_its_own(void **state)
{
    (void)state;
    struct error e;
    struct pool p;
    assert_ok(e, pool_init(&p, 4, 16, &e));
    assert_true(dies(give_twice, &p));
    assert_true(dies(give_inside, &p));
    assert_true(dies(give_foreign, &p));
    assert_false(dies(give_properly, &p)); /* the check itself can say no */
    pool_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_counted_and_absurd_sizes_refused),
        cmocka_unit_test(aligned_memory_is_aligned),
        cmocka_unit_test(copies_end_with_a_nul),
        cmocka_unit_test(arena_gives_zeroed_aligned_separate_memory),
        cmocka_unit_test(arena_keeps_its_maximum),
        cmocka_unit_test(failing_allocations_are_answers),
        cmocka_unit_test(pool_slots_are_distinct_and_come_back),
        cmocka_unit_test(pool_asserts_on_what_is_not_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
