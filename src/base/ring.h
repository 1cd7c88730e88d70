/* Bounded queues between threads. A ring carries items of one fixed size (a pointer is an item) from one producer
 * (RING_SPSC) or several (RING_MPSC) to one consumer; nobody ever waits inside it: full and empty are ERR_AGAIN.
 *
 * Sleeping is apart. A wake is an eventfd plus a flag that says whether the consumer sleeps, so a put costs a system
 * call only then. Several rings may share one wake, and its descriptor can sit in epoll or libevent. The consumer:
 *
 *     for (;;) {
 *         while (ring_take(r, &item) == OK) use(item);
 *         wake_arm(w);                              from here on, a put writes the eventfd
 *         if (ring_is_empty(r)) wake_wait(w, ns);   look again: a put may have come before the arm
 *         else wake_disarm(w);
 *     }
 *
 * Threads: ring_put the producer(s), ring_take and ring_is_empty the consumer, ring_count anybody; wake_signal anybody,
 * the other wake calls the consumer. init and fini: when nobody else looks. */
#ifndef BASE_RING_H
#define BASE_RING_H

#include "base/base.h"

#include <stdatomic.h>

#define CACHE_LINE 64

struct wake {
    _Alignas(CACHE_LINE) atomic_bool armed; /* the consumer sleeps or is about to */
    int fd;                                 /* eventfd; readable when somebody signalled an armed wake */
};

enum err wake_init(struct wake *w, struct error *e) MUST_CHECK;
void wake_fini(struct wake *w);
void wake_arm(struct wake *w);
void wake_disarm(struct wake *w); /* also swallows a signal that came meanwhile */

/* Sleep until a signal or for that long (UINT64_MAX: for ever). Disarms. ERR_AGAIN when the time passed. */
enum err wake_wait(struct wake *w, uint64_t ns);

/* Wake the consumer if it sleeps. What it must see (an item, a stop flag) is to be stored before, the flag with
 * memory_order_seq_cst. */
void wake_signal(struct wake *w);

enum ring_kind { RING_SPSC, RING_MPSC };

struct ring {
    _Alignas(CACHE_LINE) _Atomic uint64_t tail; /* next slot to fill; producers */
    _Alignas(CACHE_LINE) _Atomic uint64_t head; /* next slot to empty; consumer */
    _Alignas(CACHE_LINE) unsigned char *slots;  /* constant from here on */
    struct wake *wake;                          /* may be NULL; borrowed */
    uint64_t n_slots, slot_bytes, item_bytes;
    enum ring_kind kind;
};

/* n_slots: a power of two up to RING_SLOTS_MAX. wake may be NULL. */
enum err ring_init(struct ring *r, enum ring_kind kind, uint32_t n_slots, size_t item_bytes, struct wake *wake,
    struct error *e) MUST_CHECK;
void ring_fini(struct ring *r); /* forgets what is inside: the owner drains first when items own something */

enum err ring_put(struct ring *r, const void *item) MUST_CHECK; /* ERR_AGAIN when full */
enum err ring_take(struct ring *r, void *item) MUST_CHECK;      /* ERR_AGAIN when empty */
bool ring_is_empty(const struct ring *r);
uint64_t ring_count(const struct ring *r); /* a moment's estimate, for metrics */

#endif
