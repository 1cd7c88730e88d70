/* Moves of blocks over a stream of their own, against a runtime that is made up: streams are queues, and whatever their
 * events allow may come next. Steps one ahead of the host read and overwrite blocks; swaps go out and come in as plans
 * have them. Everything must find what it would find if all were done in the order of the calls. Without the one or the
 * other wait it must not: those are the twins. There is no call here that waits on the host, so none can be linked. */
#include "testing_cuda.h"

#include "cuda/move_blocks.cu"

#include <deque>

#define N_BLOCKS 12u
#define N_PLACES 6u
#define N_STEPS  400u

enum pace { STEPS_FIRST, MOVES_FIRST, ANY };

struct item {
    std::function<void()> work;
    uint64_t waits_for = 0, is = 0; /* records of events: numbers, 0 = none */
};

static std::deque<item> streams[2]; /* the steps', the moves' */
static uint64_t events[2], n_records, n_beside[2];
static std::vector<bool> recorded;
static uint64_t cells[N_BLOCKS], places[N_PLACES]; /* a block of 8 bytes */
static int dropped;                                /* the stream whose waits are forgotten; -1 = none */
static uint32_t launched, executed;
static uint64_t n_wrong;
static pace pace_now;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(random_bits()() % n);
}

/* ---- the runtime ---- */

template <class T> static T handle(size_t i)
{
    return (T)(i + 1);
}

static size_t number(void *p)
{
    return (size_t)p - 1;
}

extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    streams[number(s)].push_back({[=] {
        n_beside[kind == cudaMemcpyHostToDevice] += executed < launched;
        std::memcpy(to, from, bytes);
    }});
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    events[number(e)] = ++n_records;
    recorded.push_back(false);
    streams[number(s)].push_back({nullptr, 0, n_records});
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int)
{
    if ((int)number(s) != dropped)
        streams[number(s)].push_back({nullptr, events[number(e)], 0});
    return cudaSuccess;
}

void cuda_note(struct dev *, int status, const char *where)
{
    expect(status == 0, where);
}

static bool can_run(int s)
{
    return !streams[s].empty() && (streams[s].front().waits_for == 0 || recorded[streams[s].front().waits_for]);
}

/* One item of one stream. */
static void run_some()
{
    const int first = pace_now == ANY ? (int)below(2) : pace_now == MOVES_FIRST;
    const int s = can_run(first) ? first : 1 - first;
    if (!can_run(s)) {
        std::printf("FAILED: the streams wait for each other for ever\n");
        std::exit(1);
    }
    const item now = streams[s].front();
    streams[s].pop_front();
    if (now.work)
        now.work();
    if (now.is != 0)
        recorded[now.is] = true;
}

/* ---- steps ---- */

static uint32_t touched[N_BLOCKS]; /* the last step that may touch a block */
static uint64_t want[N_BLOCKS], want_place[N_PLACES];

static void step(uint32_t t)
{
    std::vector<uint64_t> seen(want, want + N_BLOCKS), next(N_BLOCKS, 0);
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        if (below(2) == 0) { /* reads it, and may overwrite it */
            next[b] = below(2) == 0 ? random_bits()() | 1 : seen[b];
            want[b] = next[b];
            touched[b] = t;
        }
    launched = t;
    streams[0].push_back({[=] {
        for (uint32_t b = 0; b < N_BLOCKS; b++)
            if (next[b] != 0) {
                n_wrong += cells[b] != seen[b];
                cells[b] = next[b];
            }
        executed = t;
    }});
}

/* Blocks go out, those that nothing in flight touches beside it (evictions), then any (swaps). */
static void moves_out(struct dev *d, const struct kv_cache *kv, uint32_t done, bool waits)
{
    std::vector<uint32_t> src, dst;
    for (uint32_t p = 0; p < N_PLACES; p++) {
        const uint32_t b = below(N_BLOCKS);
        if (below(4) != 0 || (!waits && touched[b] > done))
            continue;
        src.push_back(b);
        dst.push_back(p);
        want_place[p] = want[b];
    }
    const struct move_blocks_args a = {
        kv, (unsigned char *)places, src.data(), dst.data(), (uint32_t)src.size(), true, waits};
    if (a.n > 0)
        cuda_move_blocks(d, &a);
}

/* And come in where nothing in flight touches. */
static void moves_in(struct dev *d, const struct kv_cache *kv, uint32_t done)
{
    std::vector<uint32_t> src, dst;
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        if (touched[b] <= done && below(4) == 0) {
            src.push_back(below(N_PLACES));
            dst.push_back(b);
            want[b] = want_place[src.back()];
        }
    const struct move_blocks_args a = {
        kv, (unsigned char *)places, src.data(), dst.data(), (uint32_t)src.size(), false, false};
    if (a.n > 0)
        cuda_move_blocks(d, &a);
    std::fill(src.begin(), src.end(), UINT32_MAX); /* they were the caller's again */
    std::fill(dst.begin(), dst.end(), UINT32_MAX);
}

/* How much was found that is not as it would be in the order of the calls. */
static uint64_t run_all(pace p, int without_waits_of)
{
    struct dev d = {};
    struct kv_cache kv = {};
    d.stream = handle<cudaStream_t>(0);
    d.moves = handle<cudaStream_t>(1);
    d.moves_from = handle<cudaEvent_t>(0);
    d.moves_done = handle<cudaEvent_t>(1);
    kv.blocks = (unsigned char *)cells;
    kv.n_blocks = N_BLOCKS;
    kv.block_bytes = sizeof cells[0];
    pace_now = p;
    dropped = without_waits_of;
    launched = executed = 0;
    n_wrong = n_records = n_beside[0] = n_beside[1] = 0;
    recorded.assign(1, true);
    std::memset(touched, 0, sizeof touched);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        want[i] = cells[i] = 1000 + i;
    for (uint32_t i = 0; i < N_PLACES; i++)
        want_place[i] = places[i] = 2000 + i;
    for (uint32_t t = 1; t <= N_STEPS; t++) {
        const uint32_t done = executed;
        if (below(3) == 0)
            moves_out(&d, &kv, done, false);
        if (below(3) == 0)
            moves_out(&d, &kv, done, true);
        if (below(3) == 0)
            moves_in(&d, &kv, done);
        step(t);
        while (executed + 1 < t || (executed < t && below(4) == 0)) /* the host is one step ahead, or none */
            run_some();
    }
    while (!streams[0].empty() || !streams[1].empty())
        run_some();
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        n_wrong += cells[i] != want[i];
    for (uint32_t i = 0; i < N_PLACES; i++)
        n_wrong += places[i] != want_place[i];
    return n_wrong;
}

int main()
{
    for (const pace p : {STEPS_FIRST, MOVES_FIRST, ANY}) {
        expect(run_all(p, -1) == 0, "moves and steps are seen in the order of the calls");
        if (p == MOVES_FIRST)
            expect(n_beside[0] > 0 && n_beside[1] > 0, "blocks go out and come in beside a step that flies");
    }
    expect(run_all(STEPS_FIRST, 0) > 0, "a step that does not wait for a move is seen");
    expect(run_all(MOVES_FIRST, 1) > 0, "a move out that does not wait for the step before it is seen");
    return verdict("moves");
}
