/* Prompt lookup finds what is there, the longest agreement first, and costs the same at any length. */
#include "testing.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sched/ngram.h"

#define TOKENS 3000u

struct lookup {
    struct ngram_index x;
    uint32_t head[4096], prev[TOKENS], text[TOKENS];
};

static void setup(struct lookup *l, uint32_t min, uint32_t max)
{
    memset(l, 0, sizeof *l);
    assert_int_equal(ngram_cap(TOKENS), 4096);
    l->x = (struct ngram_index){.head = l->head, .prev = l->prev, .cap = 4096, .n_max = TOKENS, .min = min, .max = max};
}

/* The same by looking everywhere. */
static uint32_t look_everywhere(const struct lookup *l, uint32_t n, uint32_t *best)
{
    uint32_t at = 0, looked = 0;
    *best = 0;
    for (uint32_t p = n - 1; p-- > 0 && looked < NGRAM_CHAIN_MAX;) {
        uint32_t m = 0;
        while (m < l->x.max && m <= p && l->text[p - m] == l->text[n - 1 - m])
            m++;
        if (m >= l->x.min) {
            looked++;
            if (m > *best) {
                *best = m;
                at = p + 1;
            }
            if (*best == l->x.max)
                break;
        }
    }
    return at;
}

static void a_search_finds_what_looking_everywhere_finds(void **state)
{
    static struct lookup l;
    uint32_t found = 0;
    for (uint32_t seed = 0; seed < 40; seed++) {
        setup(&l, 1 + seed % 3, 3 + seed % 5);
        const uint32_t kinds = 2 + seed * 3, n_prompt = 1 + seed * 7;
        for (uint32_t i = 0; i < 400; i++)
            l.text[i] = (uint32_t)(rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY}) % kinds);
        for (uint32_t n = n_prompt + 1; n < 400; n++) {
            const struct ngram_text t = {
                .prompt = l.text, .n_prompt = n_prompt, .output = l.text + n_prompt, .n_output = n - n_prompt};
            uint32_t ids[4], matched, best;
            const uint32_t got = ngram_guess(&l.x, &t, 4, ids, &matched), at = look_everywhere(&l, n, &best);
            if (n <= l.x.min)
                best = 0;
            assert_int_equal(matched, best);
            assert_int_equal(got, best > 0 ? 4 : 0);
            for (uint32_t i = 0; i < got; i++)
                assert_int_equal(ids[i], at + i < n ? l.text[at + i] : ids[at + i - n]);
            found += got > 0;
        }
    }
    assert_true(found > 2000);
    (void)state;
}

static void a_repeated_beat_goes_on(void **state)
{
    static struct lookup l;
    uint32_t ids[SPEC_K_MAX], matched;
    setup(&l, 2, 8);
    for (uint32_t i = 0; i < 30; i++)
        l.text[i] = i % 3;
    const struct ngram_text t = {.prompt = l.text, .n_prompt = 30};
    assert_int_equal(ngram_guess(&l.x, &t, SPEC_K_MAX, ids, &matched), SPEC_K_MAX);
    for (uint32_t i = 0; i < SPEC_K_MAX; i++)
        assert_int_equal(ids[i], i % 3);
    (void)state;
}

static void short_and_unknown_texts_have_no_guess(void **state)
{
    static struct lookup l;
    uint32_t ids[1], matched;
    setup(&l, 2, 4);
    for (uint32_t i = 0; i < TOKENS; i++)
        l.text[i] = i;
    for (uint32_t n = 1; n < TOKENS; n += n < 10 ? 1 : 97) {
        const struct ngram_text t = {.prompt = l.text, .n_prompt = n};
        assert_int_equal(ngram_guess(&l.x, &t, 1, ids, &matched), 0);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_search_finds_what_looking_everywhere_finds),
        cmocka_unit_test(a_repeated_beat_goes_on),
        cmocka_unit_test(short_and_unknown_texts_have_no_guess),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
