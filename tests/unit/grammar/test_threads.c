/* Threads that ask one grammar for masks at once get the same ones, and threads that compile at once share what a
 * vocabulary keeps of classes. The rest of grammar/ belongs to one thread: this is what the thread sanitizer looks at.
 */
#include "base/mem.h"
#include "testing_vocab.h"

#include <pthread.h>

static const char SCHEMA[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":30},\"b\":{"
                             "\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}},\"required\":[\"a\"]}";

struct asker {
    pthread_t thread;
    struct grammar *g;
    uint64_t hash, seed;
};

static void *ask(void *arg)
{
    struct asker *a = arg;
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes());
    uint64_t mask[(TEST_TOKENS + 63) / 64];
    for (uint64_t text = 0; text < 6; text++) {
        grammar_walk_init(w, a->g);
        for (uint64_t i = 0; i < 40; i++) {
            if (grammar_mask(w, NULL, 0, mask) == 0)
                break;
            uint32_t id = 0, at = (uint32_t)(test_random(text, i) % TEST_TOKENS);
            for (uint32_t k = 0; k < TEST_TOKENS && id == 0; k++, at = (at + 1) % TEST_TOKENS)
                id = (mask[at / 64] >> (at % 64) & 1) != 0 ? at : 0;
            for (size_t k = 0; k < COUNT_OF(mask); k++)
                a->hash = (a->hash ^ mask[k]) * UINT64_C(0x100000001B3);
            if (grammar_accept(w, id, NULL) != OK)
                a->hash = 0;
        }
    }
    mem_free(w);
    grammar_unref(a->g);
    return NULL;
}

static void threads_share_a_grammar(void **state)
{
    (void)state;
    struct grammar *g = test_compile(GRAMMAR_JSON_SCHEMA, SCHEMA);
    struct asker askers[4];
    for (size_t i = 0; i < COUNT_OF(askers); i++) {
        askers[i] = (struct asker){.g = g, .hash = 1};
        grammar_ref(g);
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    grammar_unref(g); /* they hold it */
    for (size_t i = 0; i < COUNT_OF(askers); i++)
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
    for (size_t i = 1; i < COUNT_OF(askers); i++)
        assert_int_equal(askers[i].hash, askers[0].hash);
    assert_int_not_equal(askers[0].hash, 0);
}

static void *compile(void *arg)
{
    struct asker *a = arg;
    a->g = test_compile(GRAMMAR_REGEX, a->seed % 2 == 0 ? "[a-z0-9_]{2,40}!" : "[a-zA-Z]+( [a-zA-Z]+)*\\.");
    return ask(a);
}

static void threads_share_the_classes_of_a_vocabulary(void **state)
{
    (void)state;
    struct asker askers[4];
    for (size_t i = 0; i < COUNT_OF(askers); i++) {
        askers[i] = (struct asker){.seed = i, .hash = 1};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, compile, &askers[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(askers); i++)
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
    for (size_t i = 2; i < COUNT_OF(askers); i++)
        assert_int_equal(askers[i].hash, askers[i - 2].hash);
    assert_int_not_equal(askers[0].hash, askers[1].hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_share_a_grammar),
        cmocka_unit_test(threads_share_the_classes_of_a_vocabulary),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
