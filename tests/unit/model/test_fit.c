/* What is named when a large model does not fit, over random sizes: it holds when it is counted again. That a device
 * really starts with it is engine/test_memory.c's. */
#include "model/testing_model.h"

#include "base/mem.h"
#include "base/rng.h"
#include "model/dummy.h"
#include "model/fit.h"

#include <stdlib.h>

#define GIB ((uint64_t)1 << 30)

struct asked {
    struct fit_wants wants;
    uint64_t max_model_len;
    uint32_t n_blocks;
};

static uint32_t draw(uint64_t seed, uint32_t index, uint32_t n)
{
    return (uint32_t)(rng_u64((struct rng_key){.seed = seed, .index = index, .purpose = RNG_DUMMY}) % n);
}

static enum err count(const struct asked *a, const struct model_config *cfg, struct fit *f, struct error *e)
{
    *e = (struct error){0};
    TRY(fit_measure(f, cfg, NULL, &a->wants, e));
    f->n_blocks = a->n_blocks;
    return fit_choose(f, cfg, a->max_model_len, 32768, e);
}

static bool number(const char *text, const char *option, uint64_t *out)
{
    const char *at = strstr(text, option);
    if (at != NULL)
        *out = strtoull(at + strlen(option), NULL, 10);
    return at != NULL;
}

static void what_is_named_fits(void **state)
{
    (void)state;
    struct ops card = {.name = "card", .has_fp8 = true, .spare_bytes = GIB / 2};
    uint32_t n_lengths = 0, n_rows = 0, n_blocks = 0, n_f8 = 0, n_files = 0, n_missing = 0;
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    assert_non_null(cfg);
    for (uint64_t seed = 0; seed < 4000; seed++) {
        struct error e;
        struct fit f;
        assert_ok(e, dummy_config(draw(seed, 0, 2) ? "llama-3.1-8b" : "qwen3-30b-a3b", cfg, &e));
        struct asked a = {.wants = {.kv_dtype = draw(seed, 1, 2) ? DTYPE_F16 : DTYPE_F8_E4M3,
                              .dummy_dtype = draw(seed, 2, 2) ? DTYPE_BF16 : DTYPE_Q8_0,
                              .ops = &card,
                              .memory_bytes = 4 * GIB + draw(seed, 3, 100) * GIB,
                              .seqs = 1 + draw(seed, 4, 1024)},
            .max_model_len = draw(seed, 5, 2) ? 1 + draw(seed, 6, cfg->context_length) : 0,
            .n_blocks = draw(seed, 7, 3) == 0 ? 2048 + draw(seed, 8, 100000) : 0};
        a.wants.rows = MAX(a.wants.seqs, 1 + draw(seed, 9, 65536));
        a.wants.out_rows = MAX(a.wants.seqs, 64u);
        if (count(&a, cfg, &f, &e) == OK) {
            assert_true(fit_fixed_bytes(&f) + fit_sequence_bytes(&f, f.context) <= a.wants.memory_bytes);
            continue;
        }
        assert_int_equal(e.code, ERR_LIMIT);
        uint64_t x;
        const bool knows = strstr(e.text, "it fits with ") != NULL;
        const bool lengths = number(e.text, "--max-model-len ", &x);
        if (lengths)
            a.max_model_len = x;
        if (number(e.text, "--max-num-batched-tokens ", &x)) {
            assert_true(x < a.wants.rows);
            a.wants.rows = (uint32_t)x;
            n_rows++;
        } else if (lengths)
            n_lengths++;
        if (number(e.text, "--max-num-seqs ", &x))
            a.wants.seqs = (uint32_t)x;
        if (number(e.text, "--num-gpu-blocks-override ", &x)) {
            assert_true(x <= a.n_blocks);
            a.n_blocks = (uint32_t)x;
            n_blocks++;
        }
        a.wants.fp8 = strstr(e.text, "--quantization fp8") != NULL;
        n_f8 += a.wants.fp8;
        const bool is_file = strstr(e.text, "a file of the same model in ") != NULL;
        if (is_file)
            a.wants.dummy_dtype = strstr(e.text, "Q4_K")   ? DTYPE_Q4_K
                                  : strstr(e.text, "Q6_K") ? DTYPE_Q6_K
                                                           : DTYPE_Q8_0;
        n_files += is_file;
        n_missing += !knows;
        assert_int_equal(knows, strstr(e.text, " are missing") == NULL);
        a.wants.out_rows = MAX(a.wants.seqs, 64u);
        if (knows)
            assert_ok(e, count(&a, cfg, &f, &e));
        else
            assert_true(count(&a, cfg, &f, &e) == ERR_LIMIT);
    }
    mem_free(cfg);
    assert_true(n_lengths > 50 && n_rows > 50 && n_blocks > 50 && n_f8 > 50 && n_files > 50 && n_missing > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_named_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
