/* Choosing tokens where the logits are, so that only ids travel: a block per row. The definition, and the numbers of
 * the steps, are in sample/sample.h; what is done here and what is left to the host is said in tensor/ops.h.
 *
 * Floats are treated exactly as on the host: no multiplication is fused with an addition, exponentials and logarithms
 * are the same polynomials. Cuts and draws over candidates are sums in double, one after the other, by one thread, over
 * exponentials that all threads have made. Only sums over the whole vocabulary are taken in pieces: every thread a run
 * of ids, then the runs ascending.
 *
 * An order is made of the near candidates (sample.c): a histogram of their logits says how far down to look, those are
 * gathered in any order and sorted by (logit, id), which is total, so nothing depends on who came first. What does not
 * fit goes the wide way. */
#include "cuda/sample_wide.cuh"

extern "C" {
#include "base/mem.h"
#include "base/rng.h"
}

/* ---- steps ---------------------------------------------------------------------------------------------------------
 */

/* Of one mask; they are made of 64 bits each. */
__host__ __device__ static uint32_t mask_words(uint32_t n)
{
    return (n + 63) / 64 * 2;
}

/* Whether steps 1 to 4 leave the largest where it is. */
__device__ static bool is_as_it_is(const struct sample_ask &a)
{
    return a.mask == SAMPLE_NO_MASK && a.n_banned == 0 && a.n_bias == 0 && a.n_history == 0;
}

/* Steps 1 to 4 into l; what is out is -infinity. */
__device__ static void adjust(
    const struct sample_ask &a, const float *x, uint32_t n, const uint32_t *words, const uint32_t *masks, float *l)
{
    const uint32_t *mask = a.mask != SAMPLE_NO_MASK ? masks + (size_t)a.mask * mask_words(n) : NULL;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const bool is_in = mask == NULL || (mask[i / 32] >> i % 32 & 1) != 0;
        l[i] = is_in && x[i] == x[i] ? x[i] : -INFINITY;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_banned; i += THREADS)
        if (words[a.banned_at + i] < n)
            l[words[a.banned_at + i]] = -INFINITY;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_bias; i += THREADS) {
        const uint32_t *all = words + a.bias_at, id = all[2 * i];
        bool is_first = id < n;
        for (uint32_t k = 0; k < i; k++)
            is_first = is_first && all[2 * k] != id;
        for (uint32_t k = i; is_first && k < a.n_bias; k++) /* an id may be named twice: in their order */
            if (all[2 * k] == id)
                l[id] = __fadd_rn(l[id], __uint_as_float(all[2 * k + 1]));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.n_history; i += THREADS) {
        const uint32_t id = words[a.history_at + 2 * i], count = words[a.history_at + 2 * i + 1];
        if (id >= n)
            continue;
        float v = l[id];
        if (a.repetition != 1.0f)
            v = v > 0.0f ? __fdiv_rn(v, a.repetition) : __fmul_rn(v, a.repetition);
        if (count > 0)
            v = __fsub_rn(v, __fadd_rn(__fmul_rn(a.frequency, (float)count), a.presence));
        l[id] = v;
    }
    __syncthreads();
}

__device__ __forceinline__ uint32_t bin_of(float v)
{
    return min((uint32_t)(-v * (BINS / NEAR)), BINS - 1u);
}

/* The near candidates down to a bin into room.cands, sorted; room.n of them. With top_k as few bins as hold so many,
 * otherwise as many as there is room for. False when that cannot be. */
__device__ static bool gather_sorted(
    struct sampler_room &room, const struct sample_ask &a, const float *l, uint32_t n, float top)
{
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS)
        room.bins[i] = 0;
    if (threadIdx.x == 0)
        room.cut = NO_ID;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const float v = scaled(l[i], top, a.temperature);
        if (v >= -NEAR)
            atomicAdd(&room.bins[bin_of(v)], 1u);
    }
    __syncthreads();
    const uint32_t b = 2 * threadIdx.x, first = room.bins[b], second = room.bins[b + 1];
    const uint32_t upto = sum_before(room, first + second) + first; /* all up to bin b */
    const uint32_t near = room.n, want = a.top_k > 0 ? a.top_k : CANDS;
    if (a.top_k > 0 && near <= a.top_k)
        return false;
    /* top_k: the first bin up to which there are enough. Otherwise: the last up to which there is room. */
    if (a.top_k > 0) {
        if (upto >= want && upto - first < want)
            room.cut = b;
        else if (upto + second >= want && upto < want)
            room.cut = b + 1;
    } else {
        const uint32_t after = b + 2 < BINS ? room.bins[b + 2] : 0;
        if (upto <= want && upto + second > want)
            room.cut = b;
        else if (upto + second <= want && (upto + second + after > want || b + 2 == BINS))
            room.cut = b + 1;
    }
    __syncthreads();
    const uint32_t cut = room.cut;
    if (cut == NO_ID)
        return false;
    if (cut / 2 == threadIdx.x)
        room.n = cut % 2 == 0 ? upto : upto + second;
    __syncthreads();
    const uint32_t count = room.n;
    if (count > CANDS)
        return false;
    __syncthreads();
    if (threadIdx.x == 0)
        room.n = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const float v = scaled(l[i], top, a.temperature);
        if (v >= -NEAR && bin_of(v) <= cut) {
            const struct cand c = {v, i};
            room.cands[atomicAdd(&room.n, 1u)] = c;
        }
    }
    uint32_t width = 2;
    while (width < count)
        width *= 2;
    __syncthreads();
    for (uint32_t i = count + threadIdx.x; i < width; i += THREADS) {
        const struct cand none = {0.0f, NO_ID};
        room.cands[i] = none;
    }
    __syncthreads();
    for (uint32_t size = 2; size <= width; size *= 2) /* bitonic */
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            for (uint32_t i = threadIdx.x; i < width / 2; i += THREADS) {
                const uint32_t lo = i / step * 2 * step + i % step, hi = lo + step;
                const struct cand x = room.cands[lo], y = room.cands[hi];
                const bool up = (lo & size) == 0;
                if (up ? comes_before(y, x) : comes_before(x, y)) {
                    room.cands[lo] = y;
                    room.cands[hi] = x;
                }
            }
            __syncthreads();
        }
    return true;
}

/* Step 8 where nothing is ordered: those that stay, by ascending id. False when they are too many. */
__device__ static bool gather_likely(
    struct sampler_room &room, const struct sample_ask &a, const float *l, uint32_t n, float top)
{
    const struct run r = run_of(n, threadIdx.x);
    uint32_t mine = 0;
    for (uint32_t i = r.lo; i < r.hi; i++) {
        const float v = scaled(l[i], top, a.temperature);
        mine += v >= -FLT_MAX && exp_exact(v) >= a.min_p;
    }
    uint32_t at = sum_before(room, mine);
    if (room.n > CANDS)
        return false;
    for (uint32_t i = r.lo; i < r.hi; i++) {
        const float v = scaled(l[i], top, a.temperature);
        if (v >= -FLT_MAX && exp_exact(v) >= a.min_p) {
            const struct cand c = {v, i};
            room.cands[at++] = c;
        }
    }
    __syncthreads();
    return true;
}

__device__ static double sum_of(const float *e, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)e[i];
    return sum;
}

/* Steps 7, 8 and 10 over the candidates as they lie, by one thread. False when they are not enough. */
__device__ static bool cut_and_draw(struct sampler_room &room, const struct sample_ask &a, double draw)
{
    uint32_t n = room.n;
    if (a.top_k > 0)
        n = min(n, a.top_k);
    if (a.top_p < 1.0f) {
        const double need = (double)a.top_p * (a.top_k > 0 ? sum_of(room.e, n) : room.total);
        double sum = 0.0;
        uint32_t kept = 0;
        while (kept < n && sum < need)
            sum += (double)room.e[kept++];
        if (a.top_k == 0 && sum < need)
            return false; /* the cut falls behind these */
        n = kept;
    }
    if (a.min_p > 0.0f && (a.top_k > 0 || a.top_p < 1.0f)) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (room.e[i] >= a.min_p) {
                room.e[kept] = room.e[i];
                room.cands[kept++].id = room.cands[i].id;
            }
        n = kept;
    }
    const double aim = draw * sum_of(room.e, n);
    double sum = 0.0;
    uint32_t i = 0;
    for (; i + 1 < n; i++) {
        sum += (double)room.e[i];
        if (sum > aim)
            break;
    }
    room.id = room.cands[i].id;
    return true;
}

/* Step 10 over everybody. */
__device__ static void draw_from_all(
    struct sampler_room &room, const struct sample_ask &a, double draw, const float *l, uint32_t n, float top)
{
    const double aim = draw * room.total;
    const struct run r = run_of(n, threadIdx.x);
    const double before = room.sums[threadIdx.x];
    const double after = threadIdx.x + 1 < THREADS ? room.sums[threadIdx.x + 1] : room.total;
    if (threadIdx.x == 0)
        room.id = NO_ID;
    __syncthreads();
    uint32_t last = NO_ID;
    if (after > aim && before <= aim) { /* one run at most: the sums ascend */
        double sum = 0.0;
        for (uint32_t i = r.lo; i < r.hi; i++) {
            const float e = exp_exact(scaled(l[i], top, a.temperature));
            last = e > 0.0f ? i : last;
            sum += (double)e;
            if (before + sum > aim)
                break;
        }
        room.id = last;
    }
    __syncthreads();
    if (room.id != NO_ID)
        return;
    /* Rounding: the draw is behind the last one. */
    struct cand mine = {0.0f, NO_ID};
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        if (l[i] > -INFINITY) {
            const struct cand c = {(float)i, i};
            mine = c;
        }
    const struct cand end = first_of_block(room, mine);
    if (threadIdx.x == 0)
        room.id = end.id;
    __syncthreads();
}

/* Steps 5 to 10; top is the largest logit that is left. */
__device__ static void pick_random(
    struct sampler_room &room, const struct sample_ask &a, double draw, const float *l, uint32_t n, float top)
{
    const bool is_ordered = a.top_k > 0 || a.top_p < 1.0f, is_cut = is_ordered || a.min_p > 0.0f;
    if (a.top_k == 0 && (is_ordered || !is_cut))
        sum_all(room, n, [&](uint32_t i) { return exp_exact(scaled(l[i], top, a.temperature)); });
    if (!is_cut) {
        draw_from_all(room, a, draw, l, n, top);
        return;
    }
    bool is_done = a.top_k <= TOP_K_MAX;
    if (is_done)
        is_done = is_ordered ? gather_sorted(room, a, l, n, top) : gather_likely(room, a, l, n, top);
    __syncthreads();
    if (is_done) {
        for (uint32_t i = threadIdx.x; i < room.n; i += THREADS)
            room.e[i] = exp_exact(room.cands[i].key);
        __syncthreads();
        if (threadIdx.x == 0)
            room.cut = cut_and_draw(room, a, draw);
        __syncthreads();
        is_done = room.cut != 0;
        __syncthreads();
    }
    if (!is_done)
        wide_draw(room, a, draw, l, n, top);
}

/* ---- log-probabilities ---------------------------------------------------------------------------------------------
 */

__device__ static float logprob_of(float logit, double lse)
{
    return isfinite(lse) ? (float)((double)logit - lse) : (double)logit == lse ? 0.0f : -INFINITY;
}

/* Of the raw logits, of the chosen id and the most likely ones. */
__device__ static void give_logprobs(struct sampler_room &room, const struct sample_ask &a, const float *x, uint32_t n,
    struct sample_got &got, struct sample_top *top)
{
    const struct cand none = {0.0f, NO_ID};
    struct cand c = best_after(room, x, n, none);
    const float most = c.id != NO_ID ? c.key : -INFINITY;
    double lse = (double)most;
    if (isfinite(most)) {
        sum_all(room, n, [&](uint32_t i) { return exp_exact(x[i] == x[i] ? __fsub_rn(x[i], most) : -INFINITY); });
        lse = (double)most + log_exact(room.total);
    }
    got.logprob = got.id != NO_ID ? logprob_of(x[got.id], lse) : 0.0f;
    for (uint32_t i = 0; i < min(a.n_top, SAMPLE_TOP_MAX) && c.id != NO_ID; i++) {
        if (threadIdx.x == 0) {
            const struct sample_top one = {c.id, logprob_of(c.key, lse)};
            top[i] = one;
        }
        got.n_top = i + 1;
        __syncthreads();
        c = best_after(room, x, n, c);
    }
}

/* An ask as it travels. */
struct ask_sent {
    struct sample_ask a;
    double draw;
};

__global__ static void __launch_bounds__(THREADS)
    sample_kernel(const float *logits, uint32_t n, const struct ask_sent *asks, const uint32_t *words,
        const uint32_t *masks, float *adjusted, struct sample_got *out, struct sample_top *tops, uint32_t *chosen)
{
    __shared__ struct sampler_room room;
    launch_wait();
    const struct sample_ask a = asks[blockIdx.x].a;
    const float *x = logits + (size_t)a.row * n;
    float *l = adjusted + (size_t)blockIdx.x * n;
    struct sample_got got = {NO_ID, 0.0f, 0, 0};
    const struct cand none = {0.0f, NO_ID};
    const bool is_read_once = a.temperature == 0.0f && is_as_it_is(a); /* most of a greedy request's rows */
    if (!is_read_once)
        adjust(a, x, n, words, masks, l);
    const struct cand best = best_after(room, is_read_once ? x : l, n, none);
    if (best.id != NO_ID && best.key > -INFINITY) {
        if (threadIdx.x == 0)
            room.id = best.id;
        __syncthreads();
        if (a.temperature != 0.0f)
            pick_random(room, a, asks[blockIdx.x].draw, l, n, best.key);
        got.id = room.id;
        __syncthreads();
    }
    if (a.want_logprob || a.n_top > 0)
        give_logprobs(room, a, x, n, got, tops + (size_t)blockIdx.x * SAMPLE_TOP_MAX);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = got;
        chosen[a.row] = got.id;
    }
}

/* ---- launching -----------------------------------------------------------------------------------------------------
 */

bool cuda_sample_open(struct dev *d)
{
    d->asks_host = mem_zalloc((size_t)d->out_max * sizeof(struct ask_sent));
    return d->asks_host != NULL;
}

bool cuda_sample_rooms(struct dev *d, uint32_t n)
{
    const size_t rows = d->out_max;
    return cuda_room(d, &d->asks, &d->asks_bytes, rows * sizeof(struct ask_sent)) != NULL &&
           cuda_room(d, (void **)&d->words, &d->words_bytes, ENGINE_ASK_WORDS * sizeof *d->words) != NULL &&
           cuda_room(d, (void **)&d->masks, &d->masks_bytes, rows * mask_words(n) * sizeof *d->masks) != NULL &&
           cuda_room(d, (void **)&d->adjusted, &d->adjusted_bytes, rows * n * sizeof(float)) != NULL;
}

void cuda_sample(struct dev *d, const struct sample_args *a)
{
    const size_t words = a->n_words * sizeof *a->words, piece = WRITE_BYTES / 8;
    const size_t mask_bytes = mask_words(a->n) * sizeof *d->masks;
    assert(a->n_words <= ENGINE_ASK_WORDS);
    if (!cuda_sample_rooms(d, a->n))
        return;
    struct ask_sent *sent = (struct ask_sent *)d->asks_host;
    for (uint32_t i = 0; i < a->n_asks; i++) {
        const struct rng_key key = {a->asks[i].seed, a->asks[i].index, a->asks[i].choice, RNG_SAMPLE};
        sent[i].a = a->asks[i];
        sent[i].draw = rng_f64(key);
    }
    cuda_write(d, d->asks, sent, a->n_asks * sizeof *sent);
    for (size_t at = 0; at < words; at += piece) /* each through the ring, so that nothing waits */
        cuda_write(d, (char *)d->words + at, (const char *)a->words + at, MIN(words - at, piece));
    if (a->n_masks > 0)
        cuda_write_aside(d, d->masks, a->masks, a->n_masks * mask_bytes);
    cuda_launch(d, sample_kernel, dim3(a->n_asks), THREADS, 0, a->x, a->n, (const struct ask_sent *)d->asks,
        (const uint32_t *)d->words, (const uint32_t *)d->masks, d->adjusted, a->out, a->top, a->chosen);
    if (a->n_masks > 0)
        cuda_aside_read(d);
}

/* ---- tokens that nobody has read ------------------------------------------------------------------------------------
 */

__global__ static void take_kernel(int32_t *token, uint32_t n_rows, const uint32_t *from, uint32_t n)
{
    launch_wait();
    const uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < n_rows && token[row] < 0) {
        const uint32_t id = from[-1 - token[row]];
        token[row] = id < n ? (int32_t)id : 0;
    }
}

void cuda_tokens_take(struct dev *d, int32_t *token, uint32_t n_rows, const uint32_t *from, uint32_t n)
{
    cuda_launch(d, take_kernel, dim3((n_rows + 255) / 256), 256, 0, token, n_rows, from, n);
}
