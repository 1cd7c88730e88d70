/* Fibers for the threads of a device; see emulator/cuda/kernels.cuh. A switch saves what the x86-64 ABI lets a callee
 * keep, and nothing else. A core is a thread of the host that has a block's fibers; one core runs at a time, until all
 * of its fibers wait. */
#include "cuda/tma.cuh"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <semaphore>
#include <thread>

#define STACK_BYTES  ((size_t)64 << 10)
#define ROOM_BYTES   ((size_t)228 << 10)
#define BEFORE_BYTES 1152 /* of something else: shared memory begins at no multiple of TMA_ATOM, as on the card */
#define GUARD_BYTES  128  /* behind it, which nobody may touch */
#define CORES_MAX    256
#define STALLS_MAX   10000 /* of cores, one after the other: somebody waits for what never comes */

__thread emulated_fiber *emulated_now;
uint3 emulated_grid, emulated_size;
std::function<bool(const void *)> emulated_is_young;
std::function<bool()> emulated_hurries, emulated_lags;
bool emulated_is_backwards;
std::map<uint64_t *, std::vector<emulated_load>> emulated_loads;

struct core {
    std::vector<emulated_fiber> fibers;
    std::vector<emulated_warp> warps;
    emulated_block_state block;
    unsigned char *room;
    uint32_t number; /* of the block, among all */
    size_t n_threads, n_alive, n_idle;
    void *main_sp;
    bool is_busy;
    std::binary_semaphore go{0};
};

static __thread core *here;
alignas(TMA_ATOM) static thread_local unsigned char shared_memory[BEFORE_BYTES + ROOM_BYTES + GUARD_BYTES];
static std::vector<core *> cores; /* they stay as long as the program */
static std::vector<emulated_meeting> clusters;
static std::binary_semaphore ended{0};
static const std::function<void()> *kernel;
static uint32_t n_blocks, n_begun, cluster_size;
static size_t shared_bytes, n_stalls;
static bool may_lags_go; /* those who lag, until all wait again */

extern "C" void emulator_switch(void **save, void *load);
asm(".globl emulator_switch\n"
    "emulator_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n");

emulated_block_state &emulated_block()
{
    return here->block;
}

emulated_warp &emulated_lanes()
{
    return here->warps[emulated_now->thread.x / 32];
}

unsigned char *emulated_room()
{
    return here->room;
}

unsigned char *emulated_there(const void *p, uint32_t rank)
{
    const uint32_t number = here->number / cluster_size * cluster_size + rank;
    for (const core *c : cores)
        if (c->is_busy && c->number == number)
            return c->room + ((const unsigned char *)p - here->room);
    emulated_fail("a block of the cluster is not there");
}

void emulated_fail(const char *what)
{
    std::printf("FAILED: emulator: %s (block %u, thread %u)\n", what, here->number, emulated_now->thread.x);
    std::fflush(stdout);
    std::_Exit(1);
}

/* ---- who runs ------------------------------------------------------------------------------------------------------
 */

static void serve(core *c);

/* For a block more, where there is one, else the next whose block is not at its end; NULL = none is. */
static core *next_core()
{
    const size_t mine = (size_t)(std::find(cores.begin(), cores.end(), here) - cores.begin());
    for (size_t i = 1; i <= cores.size(); i++) {
        core *c = cores[(mine + i) % cores.size()];
        if (c->is_busy == (n_begun == n_blocks))
            return c;
    }
    if (n_begun == n_blocks)
        return NULL;
    if (cores.size() == CORES_MAX)
        emulated_fail("more blocks wait than there are places on a chip");
    cores.push_back(new core);
    std::thread(serve, cores.back()).detach();
    return cores.back();
}

/* All fibers here wait. */
static void stall()
{
    if (++n_stalls > STALLS_MAX)
        emulated_fail("threads wait for each other for ever");
    may_lags_go = n_stalls > cores.size();
    core *next = next_core();
    if (next != here) {
        next->is_busy = true;
        next->go.release();
        here->go.acquire();
    }
    here->n_idle = 0;
}

static bool must_stay(const emulated_fiber *f)
{
    return f->is_done || (f->lags && !may_lags_go && ++here->n_idle < 2 * here->n_alive);
}

static void next_fiber()
{
    emulated_fiber *const first = here->fibers.data(), *const last = first + here->n_threads - 1;
    do
        emulated_now = emulated_is_backwards  ? emulated_now == first ? last : emulated_now - 1
                       : emulated_now == last ? first
                                              : emulated_now + 1;
    while (must_stay(emulated_now));
}

void emulated_yield()
{
    emulated_fiber *me = emulated_now;
    if (++here->n_idle >= here->n_alive)
        stall();
    next_fiber();
    if (emulated_now != me)
        emulator_switch(&me->sp, emulated_now->sp);
}

void emulated_go_on()
{
    here->n_idle = n_stalls = 0;
}

void emulated_tell()
{
    emulated_go_on();
    may_lags_go = may_lags_go && !emulated_now->lags;
    emulated_yield();
}

void emulated_meet(emulated_meeting &m, size_t expected)
{
    const uint64_t mine = m.turn;
    assert(m.n_here == 0 || m.expected == expected);
    m.expected = expected;
    if (++m.n_here == expected) {
        m.n_here = 0;
        m.turn++;
    }
    emulated_until([&] { return m.turn != mine; });
}

void emulated_meet_cluster()
{
    emulated_meet(clusters[here->number / cluster_size], (size_t)cluster_size * emulated_size.x);
}

/* ---- blocks --------------------------------------------------------------------------------------------------------
 */

static void run_fiber()
{
    void *unused;
    (*kernel)();
    if (!emulated_now->products.empty() || !emulated_now->copies.open.empty())
        emulated_fail("a thread ends and does not wait for what it has begun");
    emulated_now->is_done = true;
    emulated_go_on();
    if (--here->n_alive == 0)
        emulator_switch(&unused, here->main_sp);
    next_fiber();
    emulator_switch(&unused, emulated_now->sp);
}

static void start_fiber(emulated_fiber &f, uint32_t thread)
{
    if (f.stack == NULL)
        f.stack = std::make_unique_for_overwrite<unsigned char[]>(STACK_BYTES);
    f.is_done = f.has_waited = false;
    f.thread = {thread, 0, 0};
    f.copies = {};
    void **sp = (void **)(((uintptr_t)f.stack.get() + STACK_BYTES) / 64 * 64);
    *--sp = NULL;
    *--sp = (void *)run_fiber;
    for (int k = 0; k < 6; k++) /* what the switch takes off */
        *--sp = NULL;
    f.sp = sp;
}

static void run_block(core *c, uint32_t number)
{
    const uint32_t at = emulated_is_backwards ? n_blocks - 1 - number : number;
    unsigned char *const shared = c->room + BEFORE_BYTES, *const end = shared + shared_bytes;
    std::memset(shared, 0xff, shared_bytes);
    std::memset(end, 0xa5, GUARD_BYTES);
    c->block = {};
    c->block.shared = shared;
    c->block.index = {at % emulated_grid.x, at / emulated_grid.x, 0};
    c->number = at;
    c->n_threads = c->n_alive = emulated_size.x;
    c->n_idle = 0;
    if (c->fibers.size() < c->n_threads)
        c->fibers.resize(c->n_threads);
    c->warps.assign(c->n_threads / 32, emulated_warp{});
    for (uint32_t i = 0; i < c->n_threads; i++) {
        emulated_now = &c->fibers[i];
        start_fiber(c->fibers[i], i);
        c->fibers[i].lags = emulated_lags && emulated_lags();
    }
    emulated_now = c->fibers.data();
    emulator_switch(&c->main_sp, emulated_now->sp);
    for (const unsigned char *p = end; p < end + GUARD_BYTES; p++)
        if (*p != 0xa5)
            emulated_fail("something was written behind the shared memory");
}

static void serve(core *c)
{
    here = c;
    c->room = shared_memory;
    while (true) {
        c->go.acquire();
        while (n_begun < n_blocks)
            run_block(c, n_begun++);
        c->is_busy = false;
        core *next = next_core();
        (next != NULL ? next->go : ended).release();
    }
}

void emulated_start_again()
{
    cores.clear();
}

void emulated_run(dim3 grid, uint32_t threads, size_t shared, uint32_t cluster, const std::function<void()> &body)
{
    assert(threads % 32 == 0 && grid.x % cluster == 0 && shared <= ROOM_BYTES - 1024);
    kernel = &body;
    emulated_grid = {grid.x, grid.y, grid.z};
    emulated_size = {threads, 1, 1};
    shared_bytes = shared;
    n_blocks = grid.x * grid.y;
    n_begun = 0;
    n_stalls = 0;
    cluster_size = cluster;
    clusters.assign(n_blocks / cluster, {});
    core *first = next_core();
    first->is_busy = true;
    first->go.release();
    ended.acquire();
    if (!emulated_loads.empty()) {
        std::printf("FAILED: emulator: the kernel ends and nobody waits for what it asked for\n");
        std::_Exit(1);
    }
}

/* ---- what the room's host code calls -------------------------------------------------------------------------------
 */

/* As the driver: a description, refused where it is none. */
static CUresult encode(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *base, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    emulated_map m = {(const unsigned char *)base, {1, 1, 1, 1, 1}, {}, {1, 1, 1, 1, 1}};
    bool ok = (uintptr_t)base % 16 == 0 && rank <= 5 && box[0] == TMA_COLUMN;
    for (uint32_t i = 0; i < rank; i++) {
        ok = ok && sizes[i] > 0 && sizes[i] <= (uint64_t)1 << 32 && box[i] > 0 && box[i] <= 256;
        ok = ok && (i == 0 || (strides[i - 1] % 16 == 0 && strides[i - 1] < (uint64_t)1 << 40));
        m.sizes[i] = sizes[i];
        m.strides[i] = i == 0 ? 1 : strides[i - 1];
        m.box[i] = (uint16_t)box[i];
    }
    static_assert(sizeof m <= sizeof *map, "what a description may have");
    std::memcpy((void *)map, &m, sizeof m);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(
    const char *, void **found, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *)
{
    *found = (void *)encode;
    return cudaSuccess;
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int)
{
    return cudaSuccess;
}

void resident_flush(struct dev *)
{
}

__attribute__((weak)) void cuda_note(struct dev *, int status, const char *where)
{
    if (status != 0) {
        std::printf("FAILED: %s: %d\n", where, status);
        std::_Exit(1);
    }
}

/* Rooms begin as zeros, and stay. */
__attribute__((weak)) void *cuda_room(struct dev *, void **p, size_t *have, size_t want)
{
    if (*have < want) {
        std::free(*p);
        *p = std::aligned_alloc(1024, (want + 1023) / 1024 * 1024);
        std::memset(*p, 0, want);
        *have = want;
    }
    return *p;
}
