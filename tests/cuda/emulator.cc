/* Fibers for the threads of a device; see emulator/cuda/kernels.cuh. A switch saves what the x86-64 ABI lets a callee
 * keep, and nothing else. */
#include "cuda/kernels.cuh"

#include <cstdio>
#include <cstdlib>

#define STACK_BYTES ((size_t)64 << 10)
#define TURNS_MAX   2000000000u /* without an end: somebody waits for a barrier that others never reach */

emulated_fiber *emulated_now;
uint3 emulated_grid, emulated_size;
std::function<bool(const void *)> emulated_is_young;

static std::vector<emulated_fiber> fibers;
static std::vector<emulated_block_state> blocks;
static std::vector<emulated_warp> warps;
static std::vector<std::vector<unsigned char>> rooms;
static uint32_t cluster_here;
static uint64_t cluster_turn, n_turns;
static size_t n_alive;
static void *main_sp;
static const std::function<void()> *kernel;

extern "C" void emulator_switch(void **save, void *load);
asm(".globl emulator_switch\n"
    "emulator_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n");

emulated_block_state &emulated_block()
{
    return blocks[emulated_now->block];
}

emulated_block_state &emulated_neighbour(uint32_t rank)
{
    return blocks[rank];
}

emulated_warp &emulated_lanes()
{
    return warps[emulated_now->warp];
}

static void next_fiber()
{
    do
        emulated_now = emulated_now + 1 == fibers.data() + fibers.size() ? fibers.data() : emulated_now + 1;
    while (emulated_now->is_done);
}

void emulated_yield()
{
    emulated_fiber *me = emulated_now;
    if (++n_turns > TURNS_MAX) {
        std::fprintf(stderr, "emulator: threads wait for each other for ever\n");
        std::exit(1);
    }
    next_fiber();
    if (emulated_now != me)
        emulator_switch(&me->sp, emulated_now->sp);
}

static void meet_at(uint32_t &n_here, uint64_t &turn, size_t expected)
{
    const uint64_t mine = turn;
    if (++n_here == expected) {
        n_here = 0;
        turn++;
    }
    while (turn == mine)
        emulated_yield();
}

void emulated_meet_block()
{
    meet_at(emulated_block().n_here, emulated_block().turn, emulated_size.x);
}

void emulated_meet_cluster()
{
    meet_at(cluster_here, cluster_turn, fibers.size());
}

void emulated_meet_warp()
{
    meet_at(emulated_lanes().n_here, emulated_lanes().turn, 32);
}

static void run_fiber()
{
    void *unused;
    (*kernel)();
    emulated_now->is_done = true;
    if (--n_alive == 0)
        emulator_switch(&unused, main_sp);
    next_fiber();
    emulator_switch(&unused, emulated_now->sp);
}

static void start_fiber(emulated_fiber &f, size_t i, uint32_t threads)
{
    f.is_done = f.has_waited = false;
    f.thread = {(uint32_t)(i % threads), 0, 0};
    f.block = (uint32_t)(i / threads);
    f.warp = (uint32_t)(i / 32);
    f.copies = {};
    void **sp = (void **)(((uintptr_t)f.stack.data() + STACK_BYTES) / 64 * 64);
    *--sp = NULL;
    *--sp = (void *)run_fiber;
    for (int k = 0; k < 6; k++) /* what the switch takes off */
        *--sp = NULL;
    f.sp = sp;
}

static void run_cluster(uint3 first, uint32_t threads, size_t shared)
{
    for (size_t c = 0; c < blocks.size(); c++) {
        rooms[c].assign(shared + 64, 0xff);
        blocks[c] = {(unsigned char *)(((uintptr_t)rooms[c].data() + 63) / 64 * 64),
            {first.x + (uint32_t)c, first.y, first.z}, 0, 0};
    }
    std::fill(warps.begin(), warps.end(), emulated_warp{});
    cluster_here = 0;
    n_turns = 0;
    n_alive = fibers.size();
    for (size_t i = 0; i < fibers.size(); i++)
        start_fiber(fibers[i], i, threads);
    emulated_now = fibers.data();
    emulator_switch(&main_sp, emulated_now->sp);
}

void emulated_run(dim3 grid, uint32_t threads, size_t shared, uint32_t cluster, const std::function<void()> &body)
{
    const size_t n = (size_t)cluster * threads;
    assert(threads % 32 == 0 && grid.x % cluster == 0);
    if (fibers.size() != n) {
        fibers.clear();
        fibers.resize(n);
        for (emulated_fiber &f : fibers)
            f.stack.resize(STACK_BYTES);
    }
    kernel = &body;
    blocks.resize(cluster);
    rooms.resize(cluster);
    warps.resize(n / 32);
    emulated_grid = {grid.x, grid.y, grid.z};
    emulated_size = {threads, 1, 1};
    for (uint32_t y = 0; y < grid.y; y++)
        for (uint32_t x = 0; x < grid.x; x += cluster)
            run_cluster({x, y, 0}, threads, shared);
}

void resident_flush(struct dev *)
{
}
