/* What quern plan measures: the host's memory is read only where it is the device's. */
#include "testing.h"

#include "cli/measure.h"
#include "cpu/cpu.h"

static uint64_t memory_free(void)
{
    return 1 << 30;
}

static void the_hosts_memory_is_not_a_cards(void **state)
{
    (void)state;
    struct error e;
    struct measured m;
    const struct fit f = {.main_dtype = DTYPE_Q8_0, .work_dtype = DTYPE_Q8_0};
    struct ops ops = *cpu_ops();
    assert_ok(e, measure_machine(&ops, &f, 256, 1, &m, &e));
    assert_true(m.read_bytes_s > 0 && m.vector_bytes_s > 0 && m.matrix_flops > 0);
    ops.memory_free = memory_free; /* as a device says that has its own */
    assert_ok(e, measure_machine(&ops, &f, 256, 1, &m, &e));
    assert_true(m.read_bytes_s == 0 && m.vector_bytes_s > 0 && m.matrix_flops > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_hosts_memory_is_not_a_cards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
