/* Memory. All heap memory of quern comes from here (tools/tidy forbids malloc elsewhere), so that one place counts it
 * and one place can make it fail.
 *
 * Three lifetimes: process (mem_*), request or parse (arena, freed in one call), turn (arena reset). Fixed-size things
 * that come and go (requests, connections) live in a pool sized at start.
 *
 * Threads: mem_* any thread; an arena or a pool belongs to one thread at a time. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/base.h"

/* NULL when out of memory (or when fault injection says so). A size of 0 gives a valid unique pointer. */
void *mem_alloc(size_t bytes) MUST_CHECK;
void *mem_zalloc(size_t bytes) MUST_CHECK;
void *mem_array(size_t count, size_t bytes) MUST_CHECK;   /* zeroed; NULL when count * bytes overflows */
void *mem_resize(void *p, size_t bytes) MUST_CHECK;       /* p stays valid when NULL comes back */
void *mem_aligned(size_t align, size_t bytes) MUST_CHECK; /* align: a power of two; free with mem_free */
char *mem_copy_str(struct str s) MUST_CHECK;              /* NUL-terminated copy */
void mem_free(void *p);                                   /* NULL is fine */

/* For a process that serves for months. The C library keeps freed blocks of the size of the largest that it ever gave
 * back, so a few large ones at the same time stay resident for good: from now on they always go back. Once, early. */
void mem_keep_little(void);
/* Give free pages back to the system. It takes the allocator's locks: for a moment when nobody is served. */
void mem_trim(void);

/* Allocations made by the calling thread since it started; tests assert that the engine thread stops counting. */
uint64_t mem_thread_allocs(void);

/* Arena: bump allocation in chunks, everything freed at once. bytes_max bounds the sum; beyond it arena_take gives
 * NULL, so a hostile input can only cost what its arena allows. */
struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used, cap;           /* within the newest chunk */
    size_t total_bytes, bytes_max;
};

void arena_init(struct arena *a, size_t bytes_max);
void *arena_take(struct arena *a, size_t bytes) MUST_CHECK; /* 16-byte aligned, zeroed */
void *arena_array(struct arena *a, size_t count, size_t bytes) MUST_CHECK;
char *arena_copy_str(struct arena *a, struct str s) MUST_CHECK; /* NUL-terminated */
void arena_reset(struct arena *a);                              /* keeps the newest chunk */
void arena_fini(struct arena *a);

/* Pool: n slots of one size, taken and given in O(1), never growing. */
struct pool {
    unsigned char *slots;
    uint32_t *next_free; /* per slot: the next free one, or POOL_TAKEN */
    size_t slot_bytes;
    uint32_t n_slots, n_free, first_free;
};

enum err pool_init(struct pool *p, uint32_t n_slots, size_t slot_bytes, struct error *e) MUST_CHECK;
void *pool_take(struct pool *p) MUST_CHECK; /* zeroed; NULL when all are taken */
void pool_give(struct pool *p, void *slot); /* asserts that slot is one of ours and taken */
void pool_fini(struct pool *p);             /* asserts nothing: slots may still be out when a process ends */

#endif
