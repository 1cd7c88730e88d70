/* How slim products are cut: no card is needed to know that nothing is left out and that no two lanes meet in a bank.
 */
#include "testing.h"

#include "cuda/slim_shape.h"

#define KC 256u /* inputs of a chunk */

static void chains_follow_the_shape_of_the_matrix(void **state)
{
    (void)state;
    assert_int_equal(slim_chains(6144, 4096), 4);
    assert_int_equal(slim_chains(4096, 4096), 8);
    assert_int_equal(slim_chains(28672, 4096), 1);
    assert_int_equal(slim_chains(4096, 14336), 8);
    assert_int_equal(slim_chains(128256, 4096), 1);
    assert_int_equal(slim_chains(16, 64), 1);
    assert_int_equal(slim_chains(16, 768), 2);
}

static void every_slice_is_in_one_chain_and_flights_are_whole(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 460; n++)
        for (uint32_t chains = 1; chains <= SLIM_CHAINS; chains *= 2)
            for (uint32_t flight = 1; flight <= 4; flight *= 2) {
                uint32_t next = 0;
                for (uint32_t i = 0; i < chains; i++) {
                    uint32_t lo, hi;
                    slim_range(n, chains, flight, i, &lo, &hi);
                    assert_int_equal(lo, next);
                    assert_true(hi >= lo);
                    assert_true(hi == n || (hi - lo) % flight == 0); /* what is over is behind the last slice */
                    next = hi;
                }
                assert_int_equal(next, n);
            }
}

/* Do the eight lanes of a quarter of a warp read from eight banks of 16 bytes, in every slice and part? */
static bool banks_are_apart(uint32_t e, uint32_t (*unit)(uint32_t e, uint32_t u, uint32_t row))
{
    for (uint32_t slice = 0; slice < KC / (4 * e); slice++)
        for (uint32_t part = 0; part < e / 8; part++)
            for (uint32_t quarter = 0; quarter < 4; quarter++) {
                uint32_t seen = 0;
                for (uint32_t lane = 8 * quarter; lane < 8 * quarter + 8; lane++) {
                    const uint32_t g = lane / 4, t = lane % 4;
                    const uint32_t at = g * (KC / 8) + unit(e, slice * (e / 2) + t * (e / 8) + part, g);
                    seen |= 1u << at % 8;
                }
                if (seen != 0xff)
                    return false;
            }
    return true;
}

static uint32_t moved(uint32_t e, uint32_t u, uint32_t row)
{
    return slim_unit(e, u, row);
}

static uint32_t left_where_it_is(uint32_t e, uint32_t u, uint32_t row)
{
    (void)e;
    (void)row;
    return u;
}

static void lanes_meet_in_no_bank(void **state)
{
    (void)state;
    for (uint32_t e = 8; e <= 32; e *= 2) {
        assert_true(banks_are_apart(e, moved));
        assert_false(banks_are_apart(e, left_where_it_is));
    }
}

static void units_of_a_row_stay_apart_and_within_their_line(void **state)
{
    (void)state;
    for (uint32_t e = 8; e <= 32; e *= 2)
        for (uint32_t row = 0; row < 16; row++)
            for (uint32_t line = 0; line < KC / 64; line++) {
                uint32_t seen = 0;
                for (uint32_t u = 8 * line; u < 8 * line + 8; u++) {
                    assert_int_equal(slim_unit(e, u, row) / 8, line);
                    seen |= 1u << slim_unit(e, u, row) % 8;
                }
                assert_int_equal(seen, 0xff);
            }
}

/* Rows 8n + g are found from row g by adding: a unit may not depend on n. */
static void rows_eight_apart_lie_alike(void **state)
{
    (void)state;
    for (uint32_t e = 8; e <= 32; e *= 2)
        for (uint32_t u = 0; u < KC / 8; u++)
            for (uint32_t row = 0; row < 64; row++)
                assert_int_equal(slim_unit(e, u, row), slim_unit(e, u, row % 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_follow_the_shape_of_the_matrix),
        cmocka_unit_test(every_slice_is_in_one_chain_and_flights_are_whole),
        cmocka_unit_test(lanes_meet_in_no_bank),
        cmocka_unit_test(units_of_a_row_stay_apart_and_within_their_line),
        cmocka_unit_test(rows_eight_apart_lie_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
