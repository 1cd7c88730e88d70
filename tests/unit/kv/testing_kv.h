/* What the tests of blocks and of the prefix cache share: a small pool over ids that say where they stand. */
#ifndef TESTING_KV_H
#define TESTING_KV_H

#include "testing.h"

#include "kv/kv_int.h"

static uint32_t ids[4096];

static inline struct kv *pool_make(uint32_t n_blocks, uint32_t n_host, bool prefix_cache)
{
    struct error e = {0};
    struct kv *kv = NULL;
    for (uint32_t i = 0; i < COUNT_OF(ids); i++)
        ids[i] = i * 7 + 1;
    const struct kv_options o = {.n_blocks = n_blocks,
        .n_host_blocks = n_host,
        .block_tokens = 16,
        .seqs_max = 8,
        .seq_blocks_max = 64,
        .prefix_cache = prefix_cache};
    assert_ok(e, kv_new(&o, &kv, &e));
    return kv;
}

static inline void check(const struct kv *kv)
{
    struct error e;
    assert_ok(e, kv_check(kv, &e));
}

/* Without a copy. */
static inline void grow(struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint32_t first_write)
{
    struct kv_copy copy;
    uint32_t n_copies;
    assert_int_equal(kv_seq_grow(kv, s, n_tokens, first_write, &copy, &n_copies, 0), OK);
    assert_int_equal(n_copies, 0);
    check(kv);
}

#endif
