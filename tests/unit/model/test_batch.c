/* Buckets of steps: which step is filled up to which size, and that filling up changes no bit. The machine here records
 * nothing; a table that claims to makes the decoder fill its steps up all the same. */
#include "base/mem.h"
#include "model/testing_model.h"

#include <string.h>

#define SEQS 18u
#define ROWS 64u

static struct graph_key bucket(uint32_t n_seqs, uint32_t each, uint32_t n_out, bool fills)
{
    struct batch_seq seqs[ROWS];
    for (uint32_t i = 0; i < n_seqs; i++)
        seqs[i] = (struct batch_seq){.n_rows = each};
    const struct step s = {.n_rows = n_seqs * each, .n_seqs = n_seqs, .n_out = n_out, .seqs = seqs};
    const struct decoder_options o = {.rows_max = 256, .out_max = 60, .seqs_max = 60};
    return decoder_bucket(&s, &o, fills);
}

static void assert_key(struct graph_key k, uint32_t rows, uint32_t seqs, uint32_t out, uint32_t seq_rows)
{
    assert_int_equal(k.n_rows, rows);
    assert_int_equal(k.n_seqs, seqs);
    assert_int_equal(k.n_out, out);
    assert_int_equal(k.seq_rows, seq_rows);
}

static void few_rows_are_their_own_bucket(void **state)
{
    (void)state;
    assert_key(bucket(1, 1, 1, true), 1, 1, 1, 1);
    assert_key(bucket(1, 6, 6, true), 6, 1, 6, 8);
    assert_key(bucket(16, 1, 16, true), 16, 16, 16, 1);
}

static void decoding_and_verifying_are_filled_up(void **state)
{
    (void)state;
    assert_key(bucket(33, 1, 33, true), 40, 40, 40, 1);
    assert_key(bucket(5, 4, 20, true), 24, 8, 24, 4);
    assert_key(bucket(33, 1, 33, false), 33, 33, 33, 1);
}

static void what_does_not_fit_or_is_no_decoding_stays_as_it_is(void **state)
{
    (void)state;
    assert_key(bucket(59, 1, 59, true), 59, 59, 59, 1); /* 64 are over out_max */
    assert_key(bucket(1, 50, 1, true), 50, 1, 1, 64);   /* a prompt */
    assert_key(bucket(1, 50, 50, true), 50, 1, 50, 64); /* a prompt that is scored */
}

static void only_steps_that_come_again_are_recorded(void **state)
{
    (void)state;
    assert_true(graph_is_worth(bucket(1, 6, 6, true)));
    assert_true(graph_is_worth(bucket(33, 1, 33, true)));
    assert_false(graph_is_worth(bucket(1, 50, 1, true)));
    assert_false(graph_is_worth(bucket(1, 50, 50, true)));
}

/* ---- filled steps --------------------------------------------------------------------------------------------------
 */

static bool replay_nothing(struct dev *d, struct graph_key key)
{
    (void)d;
    (void)key;
    return false;
}

static uint32_t widest; /* rows of the largest step that ran */

static void begin(struct dev *d, struct graph_key key)
{
    (void)d;
    widest = MAX(widest, key.n_rows);
}

static void end(struct dev *d)
{
    (void)d;
}

/* As if rows of padding wrote keys. */
static void qkv_writes_padding(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    uint32_t slot[ROWS];
    memcpy(slot, b->kv_slot[0], b->n_rows * sizeof *slot);
    for (uint32_t i = 0; i < b->n_rows; i++)
        slot[i] = slot[i] == KV_SLOT_NONE ? 0 : slot[i];
    const uint32_t *const slots[] = {slot};
    struct batch wrong = *b;
    wrong.kv_slot = slots;
    cpu_ops()->qkv(d, &wrong, kv, a);
}

/* Two steps of SEQS sequences of one row; the logits of the second. */
static void run_two(const struct ops *ops, float *out)
{
    struct rig r;
    struct error e;
    struct decoder_options o = rig_options(32);
    o.ops = ops;
    o.threads = 1;
    o.rows_max = o.out_max = ROWS;
    o.seqs_max = 2 * SEQS;
    o.n_blocks = 2 * SEQS;
    rig_open_tiny(&r, &o);
    uint32_t pos[SEQS], seq[SEQS], table[2 * SEQS], slot[SEQS], out_row[SEQS];
    int32_t token[SEQS];
    struct batch_seq seqs[SEQS];
    for (uint32_t step = 0; step < 2; step++) {
        for (uint32_t i = 0; i < SEQS; i++) {
            token[i] = (int32_t)(7 * i + 11 + step);
            pos[i] = step;
            seq[i] = out_row[i] = i;
            table[i] = i;
            slot[i] = i * o.block_tokens + step;
            seqs[i] = (struct batch_seq){.first_row = i, .n_rows = 1, .n_kv = step + 1, .table_at = i};
        }
        const struct step s = {.n_rows = SEQS,
            .n_seqs = SEQS,
            .n_out = SEQS,
            .n_table = SEQS,
            .token = token,
            .pos = pos,
            .seq = seq,
            .seqs = seqs,
            .table = table,
            .kv_slot = slot,
            .out_row = out_row};
        assert_ok(e, decoder_step(r.d, &s, &e));
    }
    const uint32_t vocab = decoder_vocab(r.d);
    for (uint32_t i = 0; i < SEQS; i++)
        assert_ok(e, decoder_read_logits(r.d, i, out + (size_t)i * vocab, &e));
    rig_close(&r);
}

static void filling_up_changes_no_bit(void **state)
{
    (void)state;
    const size_t n = (size_t)SEQS * 4096; /* tiny-1m has fewer tokens */
    float *exact = mem_array(n, sizeof *exact), *filled = mem_array(n, sizeof *filled);
    struct ops records = *cpu_ops();
    assert_non_null(exact);
    assert_non_null(filled);
    records.graph_replay = replay_nothing;
    records.graph_begin = begin;
    records.graph_end = end;
    widest = 0;
    run_two(cpu_ops(), exact);
    run_two(&records, filled);
    assert_int_equal(widest, 24);
    assert_memory_equal(exact, filled, n * sizeof *exact);
    records.qkv = qkv_writes_padding;
    run_two(&records, filled);
    assert_memory_not_equal(exact, filled, n * sizeof *exact);
    mem_free(exact);
    mem_free(filled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_are_their_own_bucket),
        cmocka_unit_test(decoding_and_verifying_are_filled_up),
        cmocka_unit_test(what_does_not_fit_or_is_no_decoding_stays_as_it_is),
        cmocka_unit_test(only_steps_that_come_again_are_recorded),
        cmocka_unit_test(filling_up_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
