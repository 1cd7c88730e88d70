/* Finding tensors and metadata fields by name. A table of indices into an array that somebody else owns: 4 bytes a
 * slot, at most half full, linear probing. Built once when a file is opened, read-only afterwards. */
#include "format/format_int.h"

#include "base/hash.h"

#include <sys/random.h>

static const struct str *name_at(const void *items, size_t stride, uint64_t i)
{
    return (const struct str *)(const void *)((const char *)items + i * stride);
}

/* A seed the file cannot know. Without the kernel's randomness the table's own address must do. */
static uint64_t fresh_seed(const void *p)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)(uintptr_t)p;
    return seed;
}

enum err name_index_build(
    struct name_index *ix, const void *items, size_t stride, uint64_t n, const char *what, struct error *e)
{
    *ix = (struct name_index){0};
    if (n == 0)
        return OK;
    assert(n < UINT32_MAX / 4);
    uint64_t n_slots = 8;
    while (n_slots < 2 * n + 1)
        n_slots *= 2;
    ix->slots = mem_array(n_slots, sizeof *ix->slots);
    if (ix->slots == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to index %llu names", (unsigned long long)n);
    ix->n_slots = n_slots;
    ix->seed = fresh_seed(ix->slots);
    for (uint64_t i = 0; i < n; i++) {
        const struct str name = *name_at(items, stride, i);
        uint64_t at = hash64(name.p, name.n, ix->seed) & (n_slots - 1);
        for (; ix->slots[at] != 0; at = (at + 1) & (n_slots - 1)) {
            if (str_eq(*name_at(items, stride, ix->slots[at] - 1), name)) {
                char shown[160];
                name_index_fini(ix);
                return FAIL(e, ERR_FORMAT, "%s '%s' is there twice", what, str_show(name, shown, sizeof shown));
            }
        }
        ix->slots[at] = (uint32_t)(i + 1);
    }
    return OK;
}

const void *name_index_find(const struct name_index *ix, const void *items, size_t stride, struct str name)
{
    if (ix->n_slots == 0)
        return NULL;
    uint64_t at = hash64(name.p, name.n, ix->seed) & (ix->n_slots - 1);
    for (; ix->slots[at] != 0; at = (at + 1) & (ix->n_slots - 1)) {
        const struct str *found = name_at(items, stride, ix->slots[at] - 1);
        if (str_eq(*found, name))
            return found;
    }
    return NULL;
}

void name_index_fini(struct name_index *ix)
{
    mem_free(ix->slots);
    *ix = (struct name_index){0};
}
