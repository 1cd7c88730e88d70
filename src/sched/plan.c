/* Plans as bytes; see plan.h. One allocation: the header, then each array at its capacity, so that the offsets never
 * change while a plan is used again and again, and a recorded plan is a straight copy. */
#include "sched/plan.h"

#include "base/mem.h"

#include <string.h>

struct layout {
    uint32_t *at;
    uint32_t count, bytes_each;
};

#define N_ARRAYS 12

/* The arrays in the order in which they lie. */
static void plan_arrays(struct plan *p, struct layout out[N_ARRAYS])
{
    const struct layout all[N_ARRAYS] = {
        {&p->at_token, p->rows_max, sizeof(int32_t)},
        {&p->at_pos, p->rows_max, sizeof(uint32_t)},
        {&p->at_seq_of_row, p->rows_max, sizeof(uint32_t)},
        {&p->at_kv_slot, p->rows_max, sizeof(uint32_t)},
        {&p->at_out_row, p->rows_max, sizeof(uint32_t)},
        {&p->at_seqs, p->seqs_max, sizeof(struct plan_seq)},
        {&p->at_table, p->table_max, sizeof(uint32_t)},
        {&p->at_copies, p->copies_max, sizeof(struct kv_copy)},
        {&p->at_out_copies, p->copies_max, sizeof(struct kv_copy)},
        {&p->at_in_copies, p->copies_max, sizeof(struct kv_copy)},
        {&p->at_evictions, p->copies_max, sizeof(struct kv_copy)},
        {&p->at_restores, p->copies_max, sizeof(struct kv_copy)},
    };
    memcpy(out, all, sizeof all);
}

/* Fill the offsets from the capacities; false when the plan would not fit 32 bits. */
static bool plan_lay_out(struct plan *p)
{
    struct layout arrays[N_ARRAYS];
    plan_arrays(p, arrays);
    uint64_t at = sizeof *p;
    for (int i = 0; i < N_ARRAYS; i++) {
        if (at > UINT32_MAX)
            return false;
        *arrays[i].at = (uint32_t)at;
        at += (uint64_t)arrays[i].count * arrays[i].bytes_each;
    }
    p->bytes = (uint32_t)at;
    return at <= UINT32_MAX;
}

_Static_assert(sizeof(struct plan) % 8 == 0, "arrays of 32-bit numbers follow the header");

enum err plan_new(
    uint32_t rows_max, uint32_t seqs_max, uint32_t table_max, uint32_t copies_max, struct plan **out, struct error *e)
{
    struct plan head = {.version = PLAN_VERSION,
        .rows_max = rows_max,
        .seqs_max = seqs_max,
        .table_max = table_max,
        .copies_max = copies_max};
    if (!plan_lay_out(&head))
        return FAIL(e, ERR_LIMIT, "a plan of %u rows, %u sequences, %u table entries and %u copies is over 4 GiB",
            rows_max, seqs_max, table_max, copies_max);
    struct plan *p = mem_zalloc(head.bytes);
    if (p == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a plan of %u bytes", head.bytes);
    *p = head;
    *out = p;
    return OK;
}

void plan_free(struct plan *p)
{
    mem_free(p);
}

void plan_reset(struct plan *p)
{
    p->step = p->now_ns = 0;
    p->depth = 0;
    p->n_rows = p->n_seqs = p->n_table = p->n_out = p->n_copies = p->n_out_copies = p->n_in_copies = 0;
    p->n_evictions = p->n_restores = 0;
}

/* ---- checking what came from elsewhere ---- */

static enum err check_head(const struct plan *p, size_t bytes, struct error *e)
{
    if (bytes < sizeof *p || p->version != PLAN_VERSION || p->bytes != bytes)
        return FAIL(e, ERR_FORMAT, "a plan of %zu bytes is not whole, or of another version", bytes);
    struct plan want = {
        .rows_max = p->rows_max, .seqs_max = p->seqs_max, .table_max = p->table_max, .copies_max = p->copies_max};
    struct layout mine[N_ARRAYS], theirs[N_ARRAYS];
    struct plan copy = *p;
    bool same = plan_lay_out(&want) && want.bytes == p->bytes;
    plan_arrays(&want, mine);
    plan_arrays(&copy, theirs);
    for (int i = 0; same && i < N_ARRAYS; i++)
        same = *mine[i].at == *theirs[i].at;
    if (!same)
        return FAIL(e, ERR_FORMAT, "a plan's offsets are not those of its capacities");
    if (p->n_rows > p->rows_max || p->n_out > p->rows_max || p->n_seqs > p->seqs_max || p->n_table > p->table_max ||
        p->n_copies > p->copies_max || p->n_out_copies > p->copies_max || p->n_in_copies > p->copies_max ||
        p->n_evictions > p->copies_max || p->n_restores > p->copies_max)
        return FAIL(e, ERR_FORMAT, "a plan counts more than it has room for");
    return OK;
}

static enum err check_seq(const struct plan *p, uint32_t i, uint32_t *next_row, uint32_t *next_out, struct error *e)
{
    const struct plan_seq *q = &plan_seqs(p)[i];
    if (q->n_rows == 0 || q->first_row != *next_row || q->n_rows > p->n_rows - q->first_row)
        return FAIL(
            e, ERR_FORMAT, "sequence %u of a plan has rows %u + %u of %u", i, q->first_row, q->n_rows, p->n_rows);
    if (q->n_spec >= q->n_rows || q->samples > 1 || (q->samples == 1 && q->n_out == 0))
        return FAIL(e, ERR_FORMAT, "sequence %u of a plan guesses %u of %u rows", i, q->n_spec, q->n_rows);
    if (q->n_kv < q->n_rows || q->first_pos > q->n_kv - q->n_rows)
        return FAIL(e, ERR_FORMAT, "sequence %u of a plan has position %u of %u", i, q->first_pos, q->n_kv);
    if (q->table_at > p->n_table || q->n_table > p->n_table - q->table_at)
        return FAIL(e, ERR_FORMAT, "sequence %u of a plan has a table of %u at %u", i, q->n_table, q->table_at);
    if (q->n_out > 0 && (q->first_out != *next_out || q->n_out > p->n_out - q->first_out || q->n_out > q->n_rows))
        return FAIL(e, ERR_FORMAT, "sequence %u of a plan has outputs %u + %u", i, q->first_out, q->n_out);
    for (uint32_t k = 0; k < q->n_rows; k++) {
        const uint32_t row = q->first_row + k;
        if (plan_pos(p)[row] != q->first_pos + k || plan_seq_of_row(p)[row] != i)
            return FAIL(e, ERR_FORMAT, "row %u of a plan is not the next of sequence %u", row, i);
    }
    for (uint32_t k = 0; k < q->n_out; k++)
        if (plan_out_row(p)[q->first_out + k] != q->first_row + q->n_rows - q->n_out + k)
            return FAIL(e, ERR_FORMAT, "output %u of a plan is not a last row of sequence %u", q->first_out + k, i);
    *next_row += q->n_rows;
    *next_out += q->n_out;
    return OK;
}

enum err plan_check(const struct plan *p, size_t bytes, struct error *e)
{
    TRY(check_head(p, bytes, e));
    uint32_t rows = 0, outs = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++)
        TRY(check_seq(p, i, &rows, &outs, e));
    if (rows != p->n_rows || outs != p->n_out)
        return FAIL(e, ERR_FORMAT, "a plan of %u rows and %u outputs has sequences for %u and %u", p->n_rows, p->n_out,
            rows, outs);
    return OK;
}
