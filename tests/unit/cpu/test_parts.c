/* Law 1 over contexts of several parts (512 positions, see cpu/x86_attend.h), where a decode step shares out one
 * sequence's positions among the workers and prefill does not. */
#include "testing_cpu.h"

static void expect_same(const struct rig *rig, const struct seq_check *c)
{
    const struct verdict v = check_seqs(rig, c);
    assert_true(v.rows > c->len);
    if (v.differ > 0)
        fail_msg(
            "%s: %llu of %llu rows differ", rig->ops->name, (unsigned long long)v.differ, (unsigned long long)v.rows);
}

static void a_token_behind_several_parts_equals_the_token_alone(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct seq_check c = {.weight = DTYPE_F32,
            .kv = DTYPE_F16,
            .hidden = 21,
            .n_heads = 3,
            .n_kv_heads = 1,
            .head_dim = 32,
            .rope = ROPE_HALVES,
            .rope_dims = 32,
            .len = 1100,
            .rounds = ROUNDS,
            .seed = 1200};
        expect_same(&rig, &c);
        c.window = 600; /* begins inside a part, and leaves some behind */
        c.kv = DTYPE_Q8_0;
        c.seed++;
        expect_same(&rig, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_behind_several_parts_equals_the_token_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
