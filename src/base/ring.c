/* Bounded queues; see ring.h.
 *
 * Every slot carries a turn number. A slot at position p (counted for ever) is free for the producer when its turn is
 * p, and full for the consumer when its turn is p + 1; emptying it sets p + n_slots, its position one lap later. So a
 * producer that claimed a slot and was interrupted delays the items behind it but corrupts nothing, and producers
 * meet only at `tail`. With one producer the claim is a plain store.
 *
 * Sleep without lost wakes (Dekker): the producer stores the turn and then reads `armed`; the consumer stores `armed`
 * and then reads the turn. All four are sequentially consistent, so at least one of them sees the other. Fences would
 * do the same but ThreadSanitizer cannot follow them. */
#include "base/ring.h"

#include "base/fault.h"
#include "base/limits.h"
#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum err wake_init(struct wake *w, struct error *e)
{
    atomic_init(&w->armed, false);
    if (fault_hit(FAULT_SYS)) {
        w->fd = -1;
        errno = EIO;
    } else
        w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return w->fd >= 0 ? OK : FAIL(e, ERR_IO, "cannot create an eventfd: %s", strerror(errno));
}

void wake_fini(struct wake *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

void wake_arm(struct wake *w)
{
    atomic_store(&w->armed, true);
}

static void swallow(struct wake *w)
{
    uint64_t n;
    ssize_t rc;
    do
        rc = read(w->fd, &n, sizeof n); /* EAGAIN: there was no signal */
    while (rc < 0 && errno == EINTR);
}

void wake_disarm(struct wake *w)
{
    /* A signaller that took the flag from us writes the eventfd a moment later; that stray signal ends one later sleep
     * early, which every consumer loop bears. */
    atomic_store(&w->armed, false);
    swallow(w);
}

enum err wake_wait(struct wake *w, uint64_t ns)
{
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    const int n =
        ppoll(&p, 1, ns == UINT64_MAX ? NULL : &t, NULL); /* a signal handler ends it early: a spurious wake */
    wake_disarm(w);
    return n == 0 ? ERR_AGAIN : OK;
}

void wake_signal(struct wake *w)
{
    if (!atomic_load(&w->armed) || !atomic_exchange(&w->armed, false))
        return;
    const uint64_t one = 1;
    ssize_t rc;
    do
        rc = write(w->fd, &one, sizeof one); /* EAGAIN needs 2^64 signals unread: already awake */
    while (rc < 0 && errno == EINTR);
}

/* A slot: its turn, then the item. */
static _Atomic uint64_t *slot_turn(const struct ring *r, uint64_t at)
{
    return (_Atomic uint64_t *)(void *)(r->slots + (at & (r->n_slots - 1)) * r->slot_bytes);
}

static void *slot_item(_Atomic uint64_t *turn)
{
    return turn + 1;
}

enum err ring_init(
    struct ring *r, enum ring_kind kind, uint32_t n_slots, size_t item_bytes, struct wake *wake, struct error *e)
{
    assert(n_slots >= 2 && (n_slots & (n_slots - 1)) == 0 && item_bytes > 0);
    memset(r, 0, sizeof *r);
    if (n_slots > RING_SLOTS_MAX || item_bytes > RING_ITEM_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "ring of %u slots of %zu bytes; the limits are %u and %u", n_slots, item_bytes,
            RING_SLOTS_MAX, RING_ITEM_BYTES_MAX);
    r->kind = kind;
    r->n_slots = n_slots;
    r->item_bytes = item_bytes;
    r->slot_bytes = (sizeof(uint64_t) + item_bytes + 7) & ~(size_t)7;
    r->wake = wake;
    r->slots = mem_aligned(CACHE_LINE, n_slots * r->slot_bytes);
    if (r->slots == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a ring of %u slots of %zu bytes", n_slots, item_bytes);
    for (uint64_t i = 0; i < n_slots; i++)
        atomic_init(slot_turn(r, i), i);
    return OK;
}

void ring_fini(struct ring *r)
{
    mem_free(r->slots);
    memset(r, 0, sizeof *r);
}

/* The position of a free slot that is now the caller's, or false when the ring is full. */
static bool claim(struct ring *r, uint64_t *at)
{
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    for (;;) {
        const uint64_t turn = atomic_load_explicit(slot_turn(r, tail), memory_order_acquire);
        const int64_t behind = (int64_t)(turn - tail);
        if (behind < 0)
            return false; /* the item of one lap ago is still there */
        if (behind > 0) { /* another producer was faster */
            tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
            continue;
        }
        *at = tail;
        if (r->kind == RING_SPSC) {
            atomic_store_explicit(&r->tail, tail + 1, memory_order_relaxed);
            return true;
        }
        if (atomic_compare_exchange_weak_explicit(
                &r->tail, &tail, tail + 1, memory_order_relaxed, memory_order_relaxed))
            return true;
    }
}

enum err ring_put(struct ring *r, const void *item)
{
    uint64_t at;
    if (!claim(r, &at))
        return ERR_AGAIN;
    _Atomic uint64_t *turn = slot_turn(r, at);
    memcpy(slot_item(turn), item, r->item_bytes);
    atomic_store(turn, at + 1);
    if (r->wake != NULL)
        wake_signal(r->wake);
    return OK;
}

enum err ring_take(struct ring *r, void *item)
{
    const uint64_t at = atomic_load_explicit(&r->head, memory_order_relaxed);
    _Atomic uint64_t *turn = slot_turn(r, at);
    if (atomic_load_explicit(turn, memory_order_acquire) != at + 1)
        return ERR_AGAIN;
    memcpy(item, slot_item(turn), r->item_bytes);
    atomic_store_explicit(turn, at + r->n_slots, memory_order_release);
    atomic_store_explicit(&r->head, at + 1, memory_order_relaxed);
    return OK;
}

bool ring_is_empty(const struct ring *r)
{
    const uint64_t at = atomic_load_explicit(&r->head, memory_order_relaxed);
    return atomic_load(slot_turn(r, at)) != at + 1;
}

uint64_t ring_count(const struct ring *r)
{
    const uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    const uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    return tail > head ? MIN(tail - head, r->n_slots) : 0;
}
