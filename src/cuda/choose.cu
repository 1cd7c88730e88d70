/* Choosing the library's algorithms by measurement. cuBLASLt names several for a product and puts the one in front that
 * it holds for the fastest; of the first eight another is faster by 5 to 15% for a third of the shapes of a model.
 *
 * What a model multiplies is found by looking: its ops run as steps of a ladder of row counts, in a capture that is
 * thrown away, and each call of the library is written down where it would have been made, with all that the ops
 * decided about it, its buffers, and the matrices of that shape in up to 32 layers. Then each (product, rows) pair is
 * measured on just those: all candidates once, then those that were no slower than the first in several rounds by
 * turns, of which the median counts. Matrices take turns from call to call, so that the second-level cache does not
 * have them. Inputs are random: zeros are multiplied faster. A candidate is taken when it is clearly faster than the
 * first.
 *
 * A product of other rows takes what was chosen for the next rung of the ladder, if the library says that it can: so
 * the rungs lie where the tiles of 64 and 128 rows end, and F8 products meet there in both of their modes
 * (cuda_leaves_scales). Rungs at which a product is not the library's (many.cuh) are passed over.
 *
 * Bits: they depend on the algorithm, so choices are kept (choices.h) and are the same after each start. Where they
 * cannot be kept nothing is measured, and the library's first stands, which is the same each time too. With
 * --deterministic nothing is chosen by a clock. Candidates that would round partial sums to bf16 are left out.
 *
 * Time: what is used most is measured first, and after BUDGET_S the rest keeps the library's first, for good. */
extern "C" {
#include "base/limits.h"
#include "base/mem.h"
#include "cuda/choices.h"
}
#include "cuda/library.h"

#include <cstdio>
#include <cstring>
#include <ctime>

#define CANDIDATES   8
#define FINALISTS    4      /* with the first */
#define ROUNDS       5      /* of the finalists */
#define CLEARLY      0.98   /* of the first's time */
#define NEAR_BEST    1.08   /* of the fastest's, when all are measured once: worth a closer look */
#define BURST_S      100e-6 /* a measurement lasts at least about so long, */
#define BURST_MOST   8      /* and has at most so many calls */
#define LONG_S       500e-6 /* a product that takes longer has half the candidates, and fewer rounds: gains are small */
#define LONG_ROUNDS  3
#define WEIGHTS_MAX  32
#define BUDGET_S     0.8
#define MACHINE_TEXT 512

/* Rows of the steps that are looked at, and d->rows_max behind them; and in which order they are measured. */
static const uint32_t ladder[] = {
    16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 576, 768, 832, 1024, 1536, 2048, 4096, 8192};
static const uint32_t by_use[] = {
    256, 2048, 64, 128, 512, 32, 1024, 576, 320, 192, 384, 96, 768, 1536, 832, 16, 4096, 8192};

/* A product that was seen, beside its place in the table. */
struct looked {
    struct lt_call call;
    const void *w[WEIGHTS_MAX]; /* matrices of that shape */
    uint32_t n_w;
    bool is_done;
};

struct chooser {
    struct choices choices;
    struct looked *looked; /* [CUDA_CHOICES_MAX]; NULL when it is over */
    bool takes_last;
    double start; /* of looking */
    char dir[PATH_BYTES_MAX];
};

static double now_s(void) /* base/clock.h has types that C++ does not */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool takes_last = false;

extern "C" void cuda_choose_last(bool on)
{
    takes_last = on;
}

bool cuda_choose_open(struct dev *d, const char *dir)
{
    if (dir == NULL || dir[0] == '\0' || d->deterministic || strlen(dir) >= PATH_BYTES_MAX)
        return true;
    struct chooser *ch = (struct chooser *)mem_zalloc(sizeof *ch);
    d->chooser = ch;
    if (ch == NULL)
        return false;
    ch->looked = (struct looked *)mem_zalloc(CUDA_CHOICES_MAX * sizeof *ch->looked);
    ch->takes_last = takes_last;
    snprintf(ch->dir, sizeof ch->dir, "%s", dir);
    return choices_init(&ch->choices) && ch->looked != NULL;
}

void cuda_choose_close(struct dev *d)
{
    if (d->chooser == NULL)
        return;
    choices_fini(&d->chooser->choices);
    mem_free(d->chooser->looked);
    mem_free(d->chooser);
    d->chooser = NULL;
}

/* ---- looking -------------------------------------------------------------------------------------------------------
 */

static uint32_t rung(const struct dev *d, uint32_t i)
{
    uint32_t n = 0;
    while (n < COUNT_OF(ladder) && ladder[n] <= d->rows_max)
        n++;
    if (i < n)
        return ladder[i];
    return i == n && (n == 0 || ladder[n - 1] < d->rows_max) ? d->rows_max : 0;
}

uint32_t cuda_look_begin(struct dev *d, uint32_t i)
{
    if (d->chooser == NULL || d->chooser->looked == NULL || d->failed != 0 || rung(d, i) == 0)
        return 0;
    if (i == 0)
        d->chooser->start = now_s();
    cuda_upload_end(d);
    d->batch_version++;
    d->is_looking = true;
    CUDA_DO(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    return rung(d, i);
}

void cuda_look_end(struct dev *d)
{
    cudaGraph_t graph = NULL;
    CUDA_DO(d, cudaStreamEndCapture(d->stream, &graph));
    if (graph != NULL)
        CUDA_DO(d, cudaGraphDestroy(graph));
    d->is_looking = false;
    d->batch_version++; /* the plan that was made was not */
}

static struct choice_shape shape_of(const struct lt_call *c)
{
    struct choice_shape s = {};
    s.n_out = c->n_out;
    s.n_in = c->k;
    s.ldw = c->ldw;
    s.ldc = c->ldc;
    s.type = (uint32_t)c->type;
    s.out_type = (uint32_t)c->out_type;
    s.scaled = c->w_scale != NULL;
    s.adds = c->add;
    s.rows = c->rows;
    return s;
}

void cuda_look_at(struct dev *d, const struct lt_call *c)
{
    const struct choice_shape s = shape_of(c);
    const uint32_t i = choices_note(&d->chooser->choices, &s);
    if (i == CHOICE_NONE)
        return;
    struct looked *x = &d->chooser->looked[i];
    if (x->n_w == 0)
        x->call = *c;
    if (x->n_w < WEIGHTS_MAX && (x->n_w == 0 || x->w[x->n_w - 1] != c->w))
        x->w[x->n_w++] = c->w;
}

/* ---- what was chosen -----------------------------------------------------------------------------------------------
 */

static bool algo_runs(struct dev *d, const struct lt_parts *l, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r = {};
    return cublasLtMatmulAlgoCheck(d->lt, l->op, l->w, l->a, l->c, l->c, algo, &r) == CUBLAS_STATUS_SUCCESS &&
           r.state == CUBLAS_STATUS_SUCCESS && r.workspaceSize <= LT_BYTES;
}

bool cuda_chosen(struct dev *d, const struct lt_parts *l, const struct lt_call *c, cublasLtMatmulAlgo_t *out)
{
    static_assert(sizeof *out == CHOICE_ALGO_BYTES, "an algorithm is kept as it is");
    if (d->chooser == NULL)
        return false;
    const struct choice_shape s = shape_of(c);
    const struct choice *x = choices_find(&d->chooser->choices, &s);
    if (x == NULL)
        return false;
    memcpy(out, x->algo, sizeof *out);
    return algo_runs(d, l, out);
}

/* ---- measuring -----------------------------------------------------------------------------------------------------
 */

/* One product with its candidates. */
struct contest {
    const struct looked *x;
    struct lt_parts l;
    cublasLtMatmulAlgo_t algo[CANDIDATES];
    double seconds[CANDIDATES][ROUNDS]; /* of a call; negative: it does not run */
    bool is_final[CANDIDATES];
    int n;
    uint32_t calls, turn; /* of a burst; matrices used so far */
};

struct stopwatch {
    cudaEvent_t from[CANDIDATES], to[CANDIDATES];
};

static size_t type_bytes(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : t == CUDA_R_8F_E4M3 ? 1 : 2;
}

/* Roughly, on any card of these years: it only says how many calls make a measurement. */
static double guess_seconds(const struct lt_call *c)
{
    const double rate = c->type == CUDA_R_8F_E4M3 ? 1.2e15 : c->type == CUDA_R_32F ? 3e13 : 6e14;
    const double ops = 2.0 * c->rows * c->n_out * c->k, bytes = (double)c->n_out * c->k * type_bytes(c->type);
    return 2e-6 + (ops / rate > bytes / 3.5e12 ? ops / rate : bytes / 3.5e12);
}

/* Whether partial sums keep their bits. What does not say how it adds them does not cut. */
static bool keeps_sums(const struct lt_call *c, const cublasLtMatmulAlgo_t *algo)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t got = 0;
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &got);
    return c->out_type == CUDA_R_32F || scheme == CUBLASLT_REDUCTION_SCHEME_NONE ||
           scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static bool call_once(struct dev *d, struct contest *t, int i)
{
    const void *w = t->x->w[t->turn++ % t->x->n_w];
    if (lt_call_now(d, &t->l, &t->x->call, w, &t->algo[i]) == 0)
        return true;
    cudaGetLastError(); /* a candidate that cannot is an answer, not a fault */
    return false;
}

static bool burst(struct dev *d, struct contest *t, int i, const struct stopwatch *s)
{
    bool ok = true;
    CUDA_DO(d, cudaEventRecord(s->from[i], d->stream));
    for (uint32_t k = 0; k < t->calls && ok; k++)
        ok = call_once(d, t, i);
    CUDA_DO(d, cudaEventRecord(s->to[i], d->stream));
    return ok;
}

static double burst_seconds(struct dev *d, const struct contest *t, int i, const struct stopwatch *s)
{
    float ms = 0.0f;
    CUDA_DO(d, cudaEventElapsedTime(&ms, s->from[i], s->to[i]));
    return ms / 1e3 / t->calls;
}

/* Each once, behind a call that brings its kernel onto the card. The first is among the finalists, and those beside it
 * that may be the best. */
static void first_round(struct dev *d, struct contest *t, const struct stopwatch *s)
{
    double best = 1e9;
    for (int i = 0; i < t->n; i++)
        t->seconds[i][0] = call_once(d, t, i) && burst(d, t, i, s) ? 0.0 : -1.0;
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    for (int i = 0; i < t->n && d->failed == 0; i++)
        if (t->seconds[i][0] >= 0.0) {
            t->seconds[i][0] = burst_seconds(d, t, i, s);
            best = t->seconds[i][0] < best ? t->seconds[i][0] : best;
        }
    t->is_final[0] = t->seconds[0][0] >= 0.0;
    for (int n = 1; n < FINALISTS; n++) {
        int next = 0;
        for (int i = 1; i < t->n; i++) {
            const double x = t->seconds[i][0];
            if (!t->is_final[i] && x >= 0.0 && x < t->seconds[0][0] && x <= NEAR_BEST * best &&
                (next == 0 || x < t->seconds[next][0]))
                next = i;
        }
        if (next == 0)
            return;
        t->is_final[next] = true;
    }
}

static double median(double *x, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && x[k] < x[k - 1]; k--) {
            const double y = x[k];
            x[k] = x[k - 1];
            x[k - 1] = y;
        }
    return x[n / 2];
}

/* The finalists by turns. */
static int last_rounds(struct dev *d, struct contest *t, int rounds, const struct stopwatch *s)
{
    for (int r = 0; r < rounds; r++) {
        bool ok = call_once(d, t, 0); /* the host is ahead of the card from here on */
        for (int k = 0; k < t->n; k++) {
            const int i = (k + r) % t->n;
            if (t->is_final[i])
                ok = burst(d, t, i, s) && ok;
        }
        CUDA_DO(d, cudaStreamSynchronize(d->stream));
        if (!ok || d->failed != 0)
            return 0;
        for (int i = 0; i < t->n; i++)
            if (t->is_final[i])
                t->seconds[i][r] = burst_seconds(d, t, i, s);
    }
    const double first = median(t->seconds[0], rounds);
    double least = first;
    int best = 0;
    for (int i = 1; i < t->n; i++) {
        const double x = t->is_final[i] ? median(t->seconds[i], rounds) : 1e9;
        if (x < least) {
            least = x;
            best = i;
        }
    }
    return least <= CLEARLY * first ? best : 0;
}

/* The place among the candidates of the one to take; 0 is the library's first. */
static int hold_contest(struct dev *d, const struct chooser *ch, struct contest *t, const struct stopwatch *s)
{
    const struct lt_call *c = &t->x->call;
    const double guess = guess_seconds(c);
    const bool is_long = guess > LONG_S;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count;
    if (lt_candidates(d, &t->l, is_long ? CANDIDATES / 2 : CANDIDATES, found, &count) != 0)
        return 0;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && (t->n == 0 || keeps_sums(c, &found[i].algo)))
            t->algo[t->n++] = found[i].algo;
    if (ch->takes_last) {
        while (t->n > 1 && !(algo_runs(d, &t->l, &t->algo[t->n - 1]) && call_once(d, t, t->n - 1)))
            t->n--;
        return t->n > 1 ? t->n - 1 : 0;
    }
    const double calls = BURST_S / guess;
    t->calls = calls < 1.0 ? 1 : calls > BURST_MOST ? BURST_MOST : (uint32_t)calls;
    if (t->n < 2)
        return 0;
    first_round(d, t, s);
    bool any = false;
    for (int i = 1; i < t->n; i++)
        any = any || t->is_final[i];
    return t->is_final[0] && any && d->failed == 0 ? last_rounds(d, t, is_long ? LONG_ROUNDS : ROUNDS, s) : 0;
}

/* Buffers are random while they are measured, and zeros, as they were, behind it. */
static void measure(struct dev *d, struct chooser *ch, uint32_t i, const struct stopwatch *s)
{
    struct contest t = {};
    t.x = &ch->looked[i];
    const struct lt_call *c = &t.x->call;
    const size_t a_bytes = (size_t)c->rows * c->k * type_bytes(c->type);
    const size_t c_bytes = ((size_t)(c->rows - 1) * c->ldc + c->n_out) * type_bytes(c->out_type);
    cuda_noise(d, (void *)c->a, a_bytes, c->type == CUDA_R_8F_E4M3);
    if (c->w == d->unpacked)
        cuda_noise(d, d->unpacked, (size_t)c->n_out * c->k * type_bytes(c->type), false);
    if (lt_parts_make(&t.l, c) == 0) {
        const int best = hold_contest(d, ch, &t, s);
        struct choice *to = &ch->choices.all[i];
        to->has_algo = best > 0;
        memcpy(to->algo, &t.algo[best], sizeof to->algo);
    }
    lt_parts_drop(&t.l);
    CUDA_DO(d, cudaMemsetAsync((void *)c->a, 0, a_bytes, d->stream));
    CUDA_DO(d, cudaMemsetAsync(c->c, 0, c_bytes, d->stream));
}

static uint32_t use_of(const struct looked *x)
{
    uint32_t i = 0;
    while (i < COUNT_OF(by_use) && by_use[i] != x->call.rows)
        i++;
    return i;
}

/* The next to be measured: of the most useful rows, the largest matrix. */
static struct looked *next_of(struct chooser *ch)
{
    struct looked *best = NULL;
    for (uint32_t i = 0; i < ch->choices.n; i++) {
        struct looked *x = &ch->looked[i];
        if (x->is_done)
            continue;
        const uint64_t size = (uint64_t)x->call.n_out * x->call.k;
        if (best == NULL || use_of(x) < use_of(best) ||
            (use_of(x) == use_of(best) && size > (uint64_t)best->call.n_out * best->call.k))
            best = x;
    }
    return best;
}

/* How many were measured until then. */
static uint32_t measure_all(struct dev *d, struct chooser *ch, double until)
{
    struct stopwatch s = {};
    uint32_t n = 0;
    for (int i = 0; i < CANDIDATES; i++) {
        CUDA_DO(d, cudaEventCreate(&s.from[i]));
        CUDA_DO(d, cudaEventCreate(&s.to[i]));
    }
    struct looked *x;
    while (d->failed == 0 && (ch->takes_last || now_s() < until) && (x = next_of(ch)) != NULL) {
        measure(d, ch, (uint32_t)(x - ch->looked), &s);
        x->is_done = true;
        n++;
    }
    CUDA_DO(d, cudaStreamSynchronize(d->stream));
    for (int i = 0; i < CANDIDATES; i++) {
        if (s.from[i] != NULL)
            cudaEventDestroy(s.from[i]);
        if (s.to[i] != NULL)
            cudaEventDestroy(s.to[i]);
    }
    return n;
}

/* All that an algorithm's bytes, and its time, depend on beside the shapes. */
static void describe_machine(const struct dev *d, const struct chooser *ch, char *text)
{
    struct cuda_card card = {};
    int driver = 0, runtime = 0;
    cuda_describe(0, &card);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, MACHINE_TEXT, "%s %u.%u with %u units, driver %d, runtime %d, library %zu, %zu bytes, %d of %d%s",
        card.name, card.capability / 10, card.capability % 10, d->n_sms, driver, runtime, cublasLtGetVersion(),
        LT_BYTES, FINALISTS, CANDIDATES, ch->takes_last ? ", the last" : "");
}

void cuda_choose(struct dev *d, struct device_choices *out)
{
    struct chooser *ch = d->chooser;
    memset(out, 0, sizeof *out);
    if (ch == NULL || ch->looked == NULL)
        return;
    char machine[MACHINE_TEXT], path[PATH_BYTES_MAX];
    struct error ignored = {};
    describe_machine(d, ch, machine);
    const struct hash128 key = choices_key(&ch->choices, machine);
    if (ch->choices.n > 0 && d->failed == 0 && choices_path(ch->dir, key, path)) {
        if (choices_read(&ch->choices, key, path, &ignored) == OK)
            out->was_read = true;
        else if (choices_can_keep(ch->dir)) {
            out->n_measured = measure_all(d, ch, now_s() + BUDGET_S);
            ignored = {};
            out->was_read = choices_read(&ch->choices, key, path, &ignored) == OK; /* another start was quicker */
            ignored = {};
            if (d->failed != 0 || (!out->was_read && choices_write(&ch->choices, key, path, &ignored) != OK))
                choices_forget(&ch->choices);
        }
    }
    out->n_shapes = ch->choices.n;
    out->n_chosen = choices_chosen(&ch->choices);
    out->hash = choices_hash(&ch->choices);
    out->seconds = now_s() - ch->start;
    mem_free(ch->looked);
    ch->looked = NULL;
}
