/* What the tests of cpu/ share: a rig (what is under test: a row of the table of variants, or one with a planted
 * fault), data from a seed, weights of any dtype, and the checks of law 1 (testing_rows.c, testing_seqs.c), which count
 * rows that came out differently in company and never assert, so that a planted fault can be seen to be caught. */
#ifndef TESTING_CPU_H
#define TESTING_CPU_H

#include "testing.h"

#include "cpu/cpu_int.h"

/* The thread sanitizer makes arithmetic some fifty times slower and looks at who touches what, not at numbers: under it
 * the sweeps take every STRIDE-th case, fewer rounds and shorter sequences. */
#if defined(__SANITIZE_THREAD__)
#define STRIDE 6
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define STRIDE 6
#endif
#endif
#ifndef STRIDE
#define STRIDE 1
#endif
#if defined(__SANITIZE_ADDRESS__) /* memory is touched alike in every round; the bits are looked at in release */
#define ROUNDS 1
#else
#define ROUNDS (STRIDE > 1 ? 1 : 3)
#endif
#define SHORT(n) (STRIDE > 1 ? (n) / 2 : (n)) /* lengths; still over one tile of attention */

/* kernels == NULL: the device is opened by ops->dev_open; otherwise with these kernels under the same ops. */
struct rig {
    const struct ops *ops;
    const struct kernels *kernels;
};

/* Threads of the device opened last; planted faults look at it. */
extern uint32_t rig_threads;

struct dev *rig_open(const struct rig *rig, uint32_t threads, uint32_t rows_max);

/* Every row of the table of variants that runs here, in turn; false behind the last. Says which are skipped. */
bool rig_next(struct rig *rig, uint32_t *at);

/* ---- data from a seed ------------------------------------------------------------------------------------------ */

struct dice {
    uint64_t state;
};
uint64_t dice_roll(struct dice *d);
uint32_t dice_below(struct dice *d, uint32_t n); /* 0 .. n-1 */
void dice_shuffle(struct dice *d, uint32_t *items, uint32_t n);

void *room(size_t bytes); /* zeroed, aligned; mem_free it */
void fill_noise(float *x, size_t n, uint64_t seed, float size);

/* What a row is made of. Those from ROW_TINY on are there to be bad company: they may come out as NaN. */
enum row_kind {
    ROW_PLAIN,
    ROW_LARGE,   /* about 1e4 */
    ROW_SMALL,   /* about 1e-4 */
    ROW_OUTLIER, /* one element 1000 times the others */
    ROW_ZERO,
    ROW_HALF,     /* some groups zero */
    ROW_TINY,     /* about 1e-37: the inverse of its scale overflows */
    ROW_DENORMAL, /* about 1e-40 */
    ROW_HUGE,     /* about 1e37: squares overflow */
    ROW_ONE_NAN,
    ROW_ALL_NAN,
    ROW_INF,
    ROW_KINDS
};
void fill_row(float *x, uint32_t n, enum row_kind kind, uint64_t seed);

/* Same bits, or NaN where the other is NaN. */
bool same_floats(const float *a, const float *b, size_t n);

/* ---- weights -------------------------------------------------------------------------------------------------- */

/* Every dtype the backend binds. */
extern const enum dtype weight_dtypes[];
extern const uint32_t n_weight_dtypes;
extern const enum dtype kv_dtypes[];
extern const uint32_t n_kv_dtypes;

/* A small inner dimension for the dtype: not whole vectors for floats, an odd number of groups for small blocks. */
uint32_t inner_of(enum dtype dtype);

/* Random blocks of the format (every bit pattern of the small integers, sane scales), bound on the device. */
struct matrix {
    struct weight w;
    unsigned char *bytes;
    float *bias;
};
void matrix_make(struct matrix *m, const struct rig *rig, struct dev *d, enum dtype dtype, uint32_t n_mats,
    uint32_t n_out, uint32_t n_in, uint64_t seed, bool bias);
void matrix_drop(struct matrix *m, const struct rig *rig, struct dev *d);
/* Element [mat][o][k] as the format defines it, for references. */
void matrix_row(const struct matrix *m, uint32_t mat, uint32_t o, float *out);

/* ---- activations ---------------------------------------------------------------------------------------------- */

struct acts *acts_make(const struct rig *rig, struct dev *d, uint32_t rows, uint32_t n, uint32_t forms);
void acts_put(struct dev *d, struct acts *a, uint32_t row, const float *x); /* and its other forms */

/* What poisoned memory is filled with: NaN, or a small number. Rows alone are made over the one and rows in company
 * over the other, so that a result that leans on what a buffer held shows. */
#define POISON_NAN    0xff
#define POISON_NUMBER 0x3c
void acts_poison(struct acts *a, int byte);

/* One row's result: floats (compared by bits, NaN like NaN) and bytes (compared as they are). */
struct result {
    uint32_t n_floats, n_bytes;
    float *floats;        /* [rows][n_floats] */
    unsigned char *bytes; /* [rows][n_bytes] */
};
void result_make(struct result *r, uint32_t rows, uint32_t n_floats, uint32_t n_bytes);
void result_drop(struct result *r);
bool result_same(const struct result *a, uint32_t row_a, const struct result *b, uint32_t row_b);
/* All forms of activation row `row` as row `to` of a result made with acts_floats and acts_bytes. */
uint32_t acts_floats(const struct acts *a);
uint32_t acts_bytes(const struct acts *a);
void acts_get(const struct acts *a, uint32_t row, struct result *r, uint32_t to);

/* ---- law 1 ---------------------------------------------------------------------------------------------------- */

enum row_op { OP_EMBED, OP_NORM, OP_PROJECT, OP_POST_NORM, OP_GATE_UP, OP_ROUTE, OP_EXPERTS, OP_LOGITS, ROW_OPS };
const char *row_op_name(enum row_op op);

/* Rows of one op alone against the same rows in random company, with 1, 2 and 3 threads. */
struct row_check {
    enum row_op op;
    enum dtype dtype;
    uint32_t rounds; /* batches per thread count */
    uint64_t seed;
};
/* How many rows of how many differed. */
struct verdict {
    uint64_t rows, differ;
    uint32_t rows_in_batch_max;
};
struct verdict check_rows(const struct rig *rig, const struct row_check *c);

/* Sequences token by token, alone, against the same sequences in random chunks and company: q, the attention's output
 * and the bytes of the cache. */
struct seq_check {
    enum dtype weight, kv;
    uint32_t hidden; /* 0 = inner_of(weight) */
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window;
    float cap;
    enum rope_style rope;
    uint32_t rope_dims;
    bool qk_norm;
    uint32_t len;    /* of the longest sequence */
    uint32_t rounds; /* schedules; thread counts and block sizes take turns */
    uint64_t seed;
};
struct verdict check_seqs(const struct rig *rig, const struct seq_check *c);

#endif
