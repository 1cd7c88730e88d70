/* Allocation, arenas and pools; see mem.h. The only file that calls the C allocator. */
#include "base/mem.h"

#include "base/fault.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>

#define ARENA_CHUNK_BYTES ((size_t)64 << 10) /* large enough that a config file costs a handful of chunks */
#define LARGE_BYTES       (256 << 10)        /* blocks of this size are pages of their own */
#define POOL_TAKEN        UINT32_MAX
#define POOL_END          (UINT32_MAX - 1)

static _Thread_local uint64_t thread_allocs;

static bool may_allocate(void)
{
    thread_allocs++;
    return !fault_hit(FAULT_ALLOC);
}

void *mem_alloc(size_t bytes)
{
    return may_allocate() ? malloc(bytes ? bytes : 1) : NULL;
}

void *mem_zalloc(size_t bytes)
{
    return may_allocate() ? calloc(1, bytes ? bytes : 1) : NULL;
}

void *mem_array(size_t count, size_t bytes)
{
    size_t total;
    return size_mul(count, bytes, &total) ? mem_zalloc(total) : NULL;
}

void *mem_resize(void *p, size_t bytes)
{
    return may_allocate() ? realloc(p, bytes ? bytes : 1) : NULL;
}

void *mem_aligned(size_t align, size_t bytes)
{
    assert(align >= sizeof(void *) && (align & (align - 1)) == 0);
    void *p = NULL;
    return may_allocate() && posix_memalign(&p, align, bytes ? bytes : 1) == 0 ? p : NULL;
}

char *mem_copy_str(struct str s)
{
    char *copy = s.n < SIZE_MAX ? mem_alloc(s.n + 1) : NULL;
    if (copy == NULL)
        return NULL;
    if (s.n > 0)
        memcpy(copy, s.p, s.n);
    copy[s.n] = '\0';
    return copy;
}

void mem_free(void *p)
{
    free(p);
}

void mem_keep_little(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES); /* naming it stops it from moving */
    (void)mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
#endif
}

void mem_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

uint64_t mem_thread_allocs(void)
{
    return thread_allocs;
}

struct arena_chunk {
    struct arena_chunk *older;
    size_t cap;
    _Alignas(16) unsigned char bytes[];
};

void arena_init(struct arena *a, size_t bytes_max)
{
    *a = (struct arena){.bytes_max = bytes_max};
}

void *arena_take(struct arena *a, size_t bytes)
{
    if (bytes > MIN(a->bytes_max, (size_t)PTRDIFF_MAX - ARENA_CHUNK_BYTES)) /* the sums below cannot wrap */
        return NULL;
    const size_t need = (MAX(bytes, (size_t)1) + 15) & ~(size_t)15;
    if (a->cap - a->used < need) {
        const size_t cap = MAX(need, ARENA_CHUNK_BYTES);
        if (need > a->bytes_max - a->total_bytes)
            return NULL;
        struct arena_chunk *c = mem_alloc(sizeof *c + cap);
        if (c == NULL)
            return NULL;
        c->older = a->chunks;
        c->cap = cap;
        a->chunks = c;
        a->used = 0;
        a->cap = cap;
    }
    if (need > a->bytes_max - a->total_bytes)
        return NULL;
    void *p = a->chunks->bytes + a->used;
    a->used += need;
    a->total_bytes += need;
    memset(p, 0, need);
    return p;
}

void *arena_array(struct arena *a, size_t count, size_t bytes)
{
    size_t total;
    return size_mul(count, bytes, &total) ? arena_take(a, total) : NULL;
}

char *arena_copy_str(struct arena *a, struct str s)
{
    char *copy = s.n < SIZE_MAX ? arena_take(a, s.n + 1) : NULL;
    if (copy != NULL && s.n > 0)
        memcpy(copy, s.p, s.n);
    return copy;
}

static void free_chunks(struct arena_chunk *c)
{
    while (c != NULL) {
        struct arena_chunk *older = c->older;
        mem_free(c);
        c = older;
    }
}

void arena_reset(struct arena *a)
{
    if (a->chunks != NULL) {
        free_chunks(a->chunks->older);
        a->chunks->older = NULL;
    }
    a->used = 0;
    a->total_bytes = 0;
}

void arena_fini(struct arena *a)
{
    free_chunks(a->chunks);
    *a = (struct arena){.bytes_max = a->bytes_max};
}

enum err pool_init(struct pool *p, uint32_t n_slots, size_t slot_bytes, struct error *e)
{
    assert(n_slots > 0 && n_slots < POOL_END && slot_bytes > 0);
    const size_t rounded = (slot_bytes + 15) & ~(size_t)15;
    *p = (struct pool){.slot_bytes = rounded, .n_slots = n_slots, .n_free = n_slots};
    p->slots = mem_array(n_slots, rounded);
    p->next_free = mem_array(n_slots, sizeof *p->next_free);
    if (p->slots == NULL || p->next_free == NULL) {
        pool_fini(p);
        return FAIL(e, ERR_NOMEM, "no memory for a pool of %u slots of %zu bytes", n_slots, rounded);
    }
    for (uint32_t i = 0; i < n_slots; i++)
        p->next_free[i] = i + 1 < n_slots ? i + 1 : POOL_END;
    return OK;
}

void *pool_take(struct pool *p)
{
    if (p->n_free == 0)
        return NULL;
    const uint32_t i = p->first_free;
    p->first_free = p->next_free[i];
    p->next_free[i] = POOL_TAKEN;
    p->n_free--;
    void *slot = p->slots + (size_t)i * p->slot_bytes;
    memset(slot, 0, p->slot_bytes);
    return slot;
}

void pool_give(struct pool *p, void *slot)
{
    const size_t at = (size_t)((unsigned char *)slot - p->slots);
    assert((unsigned char *)slot >= p->slots && at % p->slot_bytes == 0 && at / p->slot_bytes < p->n_slots);
    const uint32_t i = (uint32_t)(at / p->slot_bytes);
    assert(p->next_free[i] == POOL_TAKEN);
    p->next_free[i] = p->n_free > 0 ? p->first_free : POOL_END;
    p->first_free = i;
    p->n_free++;
}

void pool_fini(struct pool *p)
{
    mem_free(p->slots);
    mem_free(p->next_free);
    *p = (struct pool){0};
}
