/* The worker team; see team.h.
 *
 * A job is one 64-bit ticket: the number of tiles above, the next tile to claim below. Claiming is one fetch_add, which
 * returns both halves of the same job; so a worker that slept through a job and wakes in the next takes part in that
 * one correctly, and no barrier at the start is needed. Invariants:
 *   1. fn, ctx and done are written only while no claimed tile is unfinished: team_run returns after done == n_tiles.
 *   2. A worker reads fn and ctx only while it holds a claimed tile, hence never while they change.
 *   3. done counts tiles of the current job only: a worker adds its tiles before it lets the caller go.
 *   4. Per job each worker makes at most two failing claims (one may be late from the job before), so the lower half
 *      cannot run into the upper.
 *
 * Two threads of the team on one core (the kernel packs them, or another process holds the other core) would spin
 * against each other; each notes its core and yields in that case. Measured on 2 cores with tiles of 2 us, 4 tiles a
 * job: 4.3 us with both cores; 7.9 us pinned to one core with the yield, up to 30 us without.
 *
 * A worker whose core another process wants is stopped in the middle of a tile, for as long as that process's turn
 * takes (milliseconds), and everybody waits for the tile. So a worker that the kernel kept waiting twice within a short
 * time lies down for a while: the caller then has a core to itself, which is worth more than half of two that stop
 * again and again. It tries again, more and more rarely while that goes on. Once is not enough: a turn that somebody
 * took and will not take again cost less than a nap. Time spent waiting for a core is the kernel's own figure
 * (schedstat).
 *
 * `epoch` counts jobs; it only says "look at the ticket". Sleeping follows the ring's rule: one side stores then looks
 * whether anybody sleeps, the other announces its sleep then looks again; the futex compares the value once more. */
#include "base/team.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define SPINS_PER_LOOK 32 /* pauses between looks at the clock: about 1 us, so the bound holds */
#define CPU_NONE       (-1)
#define LONG_NS        (1 * NS_PER_MS)     /* a job that took longer may have been stopped */
#define STOPPED_NS     (3 * NS_PER_MS / 2) /* waiting for a core this long is another process's turn */
#define LOOK_NS        (10 * NS_PER_MS) /* between looks at the kernel's figure: many short waits are not a long one */

struct team_worker {
    _Alignas(CACHE_LINE) struct team *team;
    pthread_t thread;
    uint32_t index;  /* 1 .. n_threads - 1 */
    _Atomic int cpu; /* where it runs; CPU_NONE while it sleeps */
    /* Its own business: */
    int delays;                   /* schedstat of this thread; -1: not there */
    uint64_t delay_ns, looked_ns; /* its figure, and when it was read */
    uint64_t stopped_ns;          /* when it was last found to have been stopped */
    uint64_t nap_ns, nap_end_ns;  /* the last nap */
};

struct team {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket; /* n_tiles << 32 | next */
    team_fn *fn;                                  /* beside the ticket: who claims needs them next */
    void *ctx;
    _Alignas(CACHE_LINE) _Atomic uint32_t done; /* tiles finished; the caller's futex */
    atomic_bool caller_sleeps;
    _Alignas(CACHE_LINE) _Atomic uint32_t epoch; /* jobs so far; the workers' futex */
    _Atomic uint32_t n_asleep;                   /* workers in the futex or about to be */
    _Atomic int caller_cpu;                      /* where team_run was last called */
    _Atomic uint32_t stopping;                   /* the futex of those who lie down */
    atomic_bool is_passed_on;                    /* of the job: who wakes up wakes the next */
    _Alignas(CACHE_LINE) uint32_t n_threads;     /* constant */
    bool may_spin;                               /* constant */
    bool running;                                /* caller only; catches nested runs */
    uint32_t n_tiles;                            /* caller only; of the job that runs */
    struct clock clock;                          /* constant */
    struct team_worker *workers;                 /* n_threads - 1 */
};

static void futex_wait(_Atomic uint32_t *at, uint32_t value)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); /* any return is a reason to look again */
}

static void futex_wait_for(_Atomic uint32_t *at, uint32_t value, uint64_t ns)
{
    const struct timespec t = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *at, uint32_t n)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void team_flush_denormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ and DAZ */
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | (uint64_t)1 << 24)); /* FZ */
#endif
}

uint32_t team_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint32_t)MAX(CPU_COUNT(&set), 1);
    const long n = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 cores: the set is too small */
    return n > 0 ? (uint32_t)n : 1;
}

/* Does the thread we would spin for share our core? That happens when another process took the core next to ours, and
 * then spinning keeps it from running. A guess: threads move. */
static bool is_crowded(const struct team *t, uint32_t worker)
{
    const int cpu = sched_getcpu();
    if (worker > 0)
        return cpu == atomic_load_explicit(&t->caller_cpu, memory_order_relaxed);
    for (uint32_t i = 1; i < t->n_threads; i++)
        if (cpu == atomic_load_explicit(&t->workers[i - 1].cpu, memory_order_relaxed))
            return true;
    return false;
}

/* Spin until *at differs from value (wanted false) or equals it (wanted true); false when it is time to sleep. */
static bool spin_until(const struct team *t, uint32_t worker, const _Atomic uint32_t *at, uint32_t value, bool wanted)
{
    if (!t->may_spin)
        return (atomic_load(at) == value) == wanted;
    uint64_t end = 0;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if ((atomic_load_explicit(at, memory_order_acquire) == value) == wanted)
                return true;
            pause_cpu();
        }
        if (is_crowded(t, worker))
            sched_yield(); /* not a sleep: only threads that are ready to run are moved to a core that falls free */
        const uint64_t now = clock_now(&t->clock);
        if (end == 0)
            end = now + TEAM_SPIN_NS_MAX;
        else if (now >= end)
            return false;
    } while (true);
}

/* Claim and run tiles until there are none left; returns how many. */
static uint32_t work(struct team *t, uint32_t worker)
{
    uint32_t n = 0;
    for (;;) {
        const uint64_t claim = atomic_fetch_add_explicit(&t->ticket, 1, memory_order_acq_rel);
        const uint32_t tile = (uint32_t)claim;
        if (tile >= (uint32_t)(claim >> 32))
            return n;
        t->fn(t->ctx, tile, worker);
        n++;
    }
}

static void report(struct team *t, uint32_t n)
{
    /* Our tiles are not reported yet, so the ticket is still that of their job. */
    const uint32_t n_tiles = (uint32_t)(atomic_load_explicit(&t->ticket, memory_order_relaxed) >> 32);
    if (atomic_fetch_add(&t->done, n) + n == n_tiles && atomic_load(&t->caller_sleeps))
        futex_wake(&t->done, 1);
}

/* Write only what changed: the line stays shared in every cache. */
static void note_cpu(_Atomic int *at)
{
    const int cpu = sched_getcpu();
    if (atomic_load_explicit(at, memory_order_relaxed) != cpu)
        atomic_store_explicit(at, cpu, memory_order_relaxed);
}

/* Nanoseconds that this thread was ready to run and waited for a core, since it began. */
static uint64_t read_delay(const struct team_worker *w)
{
    char text[96];
    const ssize_t n = pread(w->delays, text, sizeof text - 1, 0);
    text[MAX(n, 0)] = '\0';
    const char *second = strchr(text, ' '); /* time on a core, time waiting for one, turns */
    return second != NULL ? strtoull(second, NULL, 10) : 0;
}

/* Another process had our core: a nap when it did so a short time ago, or when we have just got up. */
static void lie_down(struct team_worker *w)
{
    struct team *t = w->team;
    const uint64_t now = clock_now(&t->clock), last = w->stopped_ns;
    const bool again = w->nap_ns > 0 && now - w->nap_end_ns < TEAM_NAP_NS_MIN;
    w->stopped_ns = now;
    if (!again && (last == 0 || now - last > TEAM_NAP_NS_MIN))
        return;
    w->nap_ns = again ? MIN(2 * w->nap_ns, (uint64_t)TEAM_NAP_NS_MAX) : TEAM_NAP_NS_MIN;
    const struct timespec nap = {0, (long)w->nap_ns};
    atomic_store_explicit(&w->cpu, CPU_NONE, memory_order_relaxed);
    syscall(SYS_futex, &t->stopping, FUTEX_WAIT_PRIVATE, 0, &nap, NULL, 0);
    w->nap_end_ns = w->looked_ns = clock_now(&t->clock);
    w->delay_ns = read_delay(w);
}

/* work, and a nap after a job in which another process had our core. */
static void take_part(struct team_worker *w)
{
    struct team *t = w->team;
    const uint64_t start = clock_now(&t->clock);
    if (w->delays >= 0 && start - w->looked_ns > LOOK_NS) {
        w->looked_ns = start;
        w->delay_ns = read_delay(w);
    }
    const uint32_t n = work(t, w->index);
    if (n > 0)
        report(t, n);
    if (w->delays < 0 || clock_now(&t->clock) - start < LONG_NS)
        return;
    const uint64_t delay = read_delay(w);
    const bool stopped = delay - w->delay_ns > STOPPED_NS;
    w->delay_ns = delay;
    if (stopped)
        lie_down(w);
}

static void worker_sleep(struct team *t, uint32_t seen)
{
    atomic_fetch_add(&t->n_asleep, 1);
    while (atomic_load(&t->epoch) == seen)
        futex_wait(&t->epoch, seen);
    atomic_fetch_sub(&t->n_asleep, 1);
}

/* Wake the next worker, if there is more than we are about to take. It may find nothing left; then it sleeps again. */
static void pass_on(struct team *t)
{
    if (!atomic_load_explicit(&t->is_passed_on, memory_order_relaxed) || atomic_load(&t->n_asleep) == 0)
        return;
    const uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_relaxed);
    if ((uint32_t)ticket + 1 < (uint32_t)(ticket >> 32))
        futex_wake(&t->epoch, 1);
}

static void *worker_main(void *arg)
{
    struct team_worker *w = arg;
    struct team *t = w->team;
    char name[16]; /* the kernel's limit */
    snprintf(name, sizeof name, "quern-w%u", w->index % 1000000);
    pthread_setname_np(pthread_self(), name);
    team_flush_denormals();
    w->delays = t->may_spin ? open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC) : -1;
    uint32_t seen = 0;
    for (;;) {
        if (!spin_until(t, w->index, &t->epoch, seen, false)) {
            atomic_store_explicit(&w->cpu, CPU_NONE, memory_order_relaxed);
            worker_sleep(t, seen);
        }
        if (t->may_spin)
            note_cpu(&w->cpu);
        seen = atomic_load(&t->epoch);
        if (atomic_load(&t->stopping) != 0)
            break;
        pass_on(t);
        take_part(w);
    }
    if (w->delays >= 0)
        close(w->delays);
    return NULL;
}

static void announce(struct team *t, uint32_t n_wanted)
{
    atomic_fetch_add(&t->epoch, 1);
    if (atomic_load(&t->n_asleep) > 0)
        futex_wake(&t->epoch, n_wanted);
}

/* A job that others may take part in. */
static void publish_job(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx)
{
    assert(!t->running && n_tiles < UINT32_MAX - 4 * TEAM_THREADS_MAX); /* invariant 4 */
    t->running = true;
    t->fn = fn;
    t->ctx = ctx;
    t->n_tiles = n_tiles;
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->ticket, (uint64_t)n_tiles << 32, memory_order_release);
    if (t->may_spin)
        note_cpu(&t->caller_cpu);
}

void team_start(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx)
{
    atomic_store_explicit(&t->is_passed_on, false, memory_order_relaxed);
    publish_job(t, n_tiles, fn, ctx);
    if (n_tiles > 0 && t->n_threads > 1)
        announce(t, MIN(n_tiles, t->n_threads - 1));
}

void team_join(struct team *t)
{
    const uint32_t n_tiles = t->n_tiles, mine = work(t, 0);
    assert(t->running);
    if (atomic_fetch_add(&t->done, mine) + mine != n_tiles && !spin_until(t, 0, &t->done, n_tiles, true)) {
        atomic_store(&t->caller_sleeps, true);
        uint32_t done;
        while ((done = atomic_load(&t->done)) != n_tiles)
            futex_wait(&t->done, done);
        atomic_store(&t->caller_sleeps, false);
    }
    t->running = false;
}

void team_start_others(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx)
{
    atomic_store_explicit(&t->is_passed_on, true, memory_order_relaxed);
    publish_job(t, n_tiles, fn, ctx);
    if (n_tiles > 0 && t->n_threads > 1)
        announce(t, 1);
}

uint64_t team_join_late(struct team *t, uint64_t help_ns)
{
    const uint64_t start = clock_now(&t->clock), until = start + (t->n_threads > 1 ? help_ns : 0);
    uint64_t now = start;
    uint32_t done;
    atomic_store(&t->caller_sleeps, true);
    while ((done = atomic_load(&t->done)) != t->n_tiles) {
        if (now >= until)
            break;
        futex_wait_for(&t->done, done, until - now);
        now = clock_now(&t->clock);
    }
    atomic_store(&t->caller_sleeps, false);
    team_join(t);
    return now - start;
}

void team_run(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx)
{
    if (n_tiles < 2 || t->n_threads == 1) { /* nothing to share */
        assert(!t->running);
        t->running = true;
        for (uint32_t i = 0; i < n_tiles; i++)
            fn(ctx, i, 0);
        t->running = false;
        return;
    }
    atomic_store_explicit(&t->is_passed_on, false, memory_order_relaxed);
    publish_job(t, n_tiles, fn, ctx);
    announce(t, MIN(n_tiles, t->n_threads) - 1);
    team_join(t);
}

static enum err start_workers(struct team *t, struct error *e)
{
    /* Workers inherit a full signal mask: signals are the main thread's business. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    enum err err = OK;
    const uint32_t wanted = t->n_threads;
    for (t->n_threads = 1; err == OK && t->n_threads < wanted;) {
        struct team_worker *w = &t->workers[t->n_threads - 1];
        *w = (struct team_worker){.team = t, .index = t->n_threads, .cpu = CPU_NONE};
        const int rc = fault_hit(FAULT_SYS) ? EAGAIN : pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0)
            err = FAIL(e, ERR_IO, "cannot start worker thread %u of %u: %s", t->n_threads, wanted - 1, strerror(rc));
        else
            t->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}

enum err team_new(struct team **out, uint32_t n_threads, struct error *e)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > TEAM_THREADS_MAX)
        return FAIL(e, ERR_LIMIT, "%u worker threads; the limits are 1 and %d", n_threads, TEAM_THREADS_MAX);
    struct team *t = mem_aligned(CACHE_LINE, sizeof *t);
    if (t == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a team of %u threads", n_threads);
    memset(t, 0, sizeof *t);
    clock_init(&t->clock);
    t->n_threads = n_threads;
    t->may_spin = n_threads <= team_cores();
    t->workers = mem_aligned(CACHE_LINE, n_threads * sizeof *t->workers);
    enum err err = OK;
    if (t->workers == NULL) {
        t->n_threads = 1;
        err = FAIL(e, ERR_NOMEM, "no memory for a team of %u threads", n_threads);
    } else
        err = start_workers(t, e);
    if (err != OK) {
        team_free(t);
        return err;
    }
    *out = t;
    return OK;
}

void team_free(struct team *t)
{
    if (t == NULL)
        return;
    atomic_store(&t->stopping, 1);
    futex_wake(&t->stopping, t->n_threads);
    announce(t, t->n_threads);
    for (uint32_t i = 1; i < t->n_threads; i++)
        pthread_join(t->workers[i - 1].thread, NULL);
    mem_free(t->workers);
    mem_free(t);
}

uint32_t team_size(const struct team *t)
{
    return t->n_threads;
}
