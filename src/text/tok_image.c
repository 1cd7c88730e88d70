/* The checked binary copy of a tokenizer: its sections, one after another, behind a header.
 *
 *   header: magic, version, header bytes, key of the source, hash of everything,
 *           and for each section its offset and size
 *   sections, each at a multiple of 64 bytes
 *
 * Loading maps the file, checks key and hash (XXH3 over a few megabytes: about a millisecond) and then the shape of
 * every section, so that a file with a good hash but wrong content cannot lead a read outside it. The numbers are in
 * the machine's own byte order; the magic says which. */
#include "text/tok_int.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/limits.h"

#include <string.h>

#define IMAGE_MAGIC   0x314B4F544E524551u /* "QERNTOK1" on a little-endian machine */
#define IMAGE_VERSION 1u                  /* raise it when the sections or the builder's rules change */
#define IMAGE_ALIGN   64

struct image_header {
    uint64_t magic;
    uint32_t version, n_sections;
    struct tok_key key;
    uint64_t bytes; /* of the whole file */
    uint64_t hash;  /* of everything, with this field 0 */
    struct {
        uint64_t offset, bytes;
    } sections[SEC_COUNT];
};

struct tok_key tok_key_of(struct str source, struct str config)
{
    const struct hash128 a = hash128(source.p, source.n), b = hash128(config.p, config.n);
    /* the version of the rules is part of the key by being part of the header */
    return (struct tok_key){source.n + ((uint64_t)config.n << 40), a.lo ^ (b.lo * 0x9E3779B97F4A7C15u), a.hi + b.hi};
}

static size_t aligned(size_t n)
{
    return (n + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
}

static uint64_t image_hash(struct image_header h, const void *rest, size_t n)
{
    h.hash = 0;
    return hash64(rest, n, hash64(&h, sizeof h, 0));
}

enum err tok_save(const struct tok *t, const char *path, struct tok_key key, struct error *e)
{
    struct image_header h = {.magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .n_sections = SEC_COUNT, .key = key};
    size_t at = aligned(sizeof h);
    for (size_t i = 0; i < SEC_COUNT; i++) {
        h.sections[i].offset = at;
        h.sections[i].bytes = t->sec[i].bytes;
        at += aligned(t->sec[i].bytes);
    }
    h.bytes = at;
    char *image = mem_zalloc(at);
    if (image == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to write '%s'", path);
    for (size_t i = 0; i < SEC_COUNT; i++)
        if (t->sec[i].bytes > 0)
            memcpy(image + h.sections[i].offset, t->sec[i].p, t->sec[i].bytes);
    h.hash = image_hash(h, image + sizeof h, at - sizeof h);
    memcpy(image, &h, sizeof h);
    const enum err err = file_write_atomic(path, (struct str){image, at}, e);
    mem_free(image);
    return err;
}

/* ---- checks ---- */

static bool is_power_of_two(size_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* n + 1 offsets that never fall and end within the bytes. */
static bool offsets_fit(const struct tok *t, enum tok_section at_section, enum tok_section bytes_section, uint32_t n)
{
    const uint32_t *at = t->sec[at_section].p;
    if (t->sec[at_section].bytes != ((size_t)n + 1) * sizeof *at || at[0] != 0 || at[n] > t->sec[bytes_section].bytes)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (at[i] > at[i + 1])
            return false;
    return true;
}

/* A hash table with at least one empty slot, whose ids exist. */
static bool slots_fit(const struct tok *t, enum tok_section which, uint32_t n)
{
    const struct tok_slot *slots = t->sec[which].p;
    const size_t count = t->sec[which].bytes / sizeof *slots;
    size_t used = 0;
    if (!is_power_of_two(count) || t->sec[which].bytes % sizeof *slots != 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (slots[i].id_plus > n)
            return false;
        used += slots[i].id_plus != 0;
    }
    return used < count;
}

static bool merges_fit(const struct tok *t, uint32_t n)
{
    const struct tok_merge *m = t->sec[SEC_MERGES].p;
    const size_t count = t->sec[SEC_MERGES].bytes / sizeof *m;
    size_t used = 0;
    if (!is_power_of_two(count) || t->sec[SEC_MERGES].bytes % sizeof *m != 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (m[i].left == TOK_NONE)
            continue;
        if (m[i].left >= n || m[i].right >= n || m[i].id >= n || m[i].rank == TOK_NONE)
            return false;
        used++;
    }
    return used < count;
}

static bool byte_pairs_fit(const struct tok *t, uint32_t n)
{
    const struct tok_pair_value *p = t->sec[SEC_BYTE_PAIRS].p;
    if (t->sec[SEC_BYTE_PAIRS].bytes != 65536 * sizeof *p)
        return false;
    for (size_t i = 0; i < 65536; i++)
        if (p[i].rank != TOK_NONE && p[i].id >= n)
            return false;
    return true;
}

static bool trie_fits(const struct tok *t, uint32_t n)
{
    const struct tok_trie_slot *s = t->sec[SEC_TRIE].p;
    const uint32_t *ids = t->sec[SEC_TRIE_IDS].p;
    const size_t count = t->sec[SEC_TRIE].bytes / sizeof *s, nodes = t->sec[SEC_TRIE_IDS].bytes / sizeof *ids;
    size_t used = 0;
    if (!is_power_of_two(count) || t->sec[SEC_SCORES].bytes != n * sizeof(double))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (s[i].key != 0 && (s[i].child == 0 || s[i].child >= nodes))
            return false;
        used += s[i].key != 0;
    }
    for (size_t i = 0; i < nodes; i++)
        if (ids[i] != TOK_NONE && ids[i] >= n)
            return false;
    return used < count;
}

static bool meta_fits(const struct tok_meta *m)
{
    const struct tok_roles r = m->roles;
    const uint32_t ids[] = {r.bos, r.eos, r.eot, r.eom, r.unk, r.pad, m->unk};
    if (m->n == 0 || m->n > TOK_COUNT_MAX || m->model < TOK_BPE || m->model > TOK_WORDLEVEL)
        return false;
    for (size_t i = 0; i < COUNT_OF(ids); i++)
        if (ids[i] != TOK_NONE && ids[i] >= m->n)
            return false;
    for (size_t i = 0; i < 256; i++)
        if (m->byte_ids[i] != TOK_NONE && m->byte_ids[i] >= m->n)
            return false;
    return true;
}

static enum err check_sections(const struct tok *t, struct error *e)
{
    const struct tok_meta *m = t->sec[SEC_META].p;
    const char *wrong = NULL;
    if (t->sec[SEC_META].bytes != sizeof *m || !meta_fits(m))
        return FAIL(e, ERR_FORMAT, "its section 'meta' does not fit");
    const uint32_t n = m->n;
    if (!offsets_fit(t, SEC_NAME_AT, SEC_NAMES, n) || !slots_fit(t, SEC_NAME_SLOTS, n))
        wrong = "names";
    else if (!offsets_fit(t, SEC_BYTE_AT, SEC_BYTES, n) || t->sec[SEC_FLAGS].bytes != n)
        wrong = "bytes";
    else if (!offsets_fit(t, SEC_KEY_AT, SEC_KEYS, n) || !slots_fit(t, SEC_KEY_SLOTS, n))
        wrong = "keys";
    else if (m->model == TOK_BPE && !merges_fit(t, n))
        wrong = "merges";
    else if (m->model == TOK_BPE && (m->flags & META_BYTE_LEVEL) && !byte_pairs_fit(t, n))
        wrong = "byte pairs";
    else if ((m->flags & META_CHAR_SPLIT) && !is_power_of_two(t->sec[SEC_BIGRAMS].bytes))
        wrong = "bigrams";
    else if (m->model == TOK_UNIGRAM && !trie_fits(t, n))
        wrong = "trie";
    return wrong != NULL ? FAIL(e, ERR_FORMAT, "its section '%s' does not fit", wrong) : OK;
}

static enum err map_sections(struct tok *t, struct tok_key key, struct error *e)
{
    struct image_header h;
    if (t->map.bytes < sizeof h)
        return FAIL(e, ERR_FORMAT, "it has %llu bytes, less than a header", (unsigned long long)t->map.bytes);
    memcpy(&h, t->map.p, sizeof h);
    if (h.magic != IMAGE_MAGIC || h.version != IMAGE_VERSION || h.n_sections != SEC_COUNT)
        return FAIL(e, ERR_FORMAT, "it is not a vocabulary copy of this version of quern");
    if (memcmp(&h.key, &key, sizeof key) != 0)
        return FAIL(e, ERR_HASH, "it was made from another tokenizer");
    if (h.bytes != t->map.bytes || image_hash(h, t->map.p + sizeof h, t->map.bytes - sizeof h) != h.hash)
        return FAIL(e, ERR_HASH, "it is damaged");
    for (size_t i = 0; i < SEC_COUNT; i++) {
        const uint64_t at = h.sections[i].offset, n = h.sections[i].bytes;
        if (at % IMAGE_ALIGN != 0 || at > h.bytes || n > h.bytes - at)
            return FAIL(e, ERR_FORMAT, "section %zu lies outside it", i);
        t->sec[i] = (struct tok_section_view){t->map.p + at, n};
    }
    return check_sections(t, e);
}

enum err tok_load(const char *path, struct tok_key key, struct tok **out, struct error *e)
{
    *out = NULL;
    struct tok *t = mem_zalloc(sizeof *t);
    if (t == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a vocabulary");
    enum err err = file_map_open(&t->map, path, e);
    t->mapped = err == OK;
    if (err == OK) {
        err = map_sections(t, key, e);
        if (err == OK)
            err = tok_bind(t, e);
        if (err != OK)
            error_prefix(e, "vocabulary copy '%s'", path);
    }
    if (err != OK) {
        tok_free(t);
        return err;
    }
    *out = t;
    return OK;
}

enum err tok_from_json_cached(
    struct str json, struct str config, const char *copy_path, struct tok **out, struct error *e)
{
    struct tok_key key = {0, 0, 0};
    if (copy_path != NULL) {
        key = tok_key_of(json, config);
        if (tok_load(copy_path, key, out, NULL) == OK)
            return OK;
    }
    TRY(tok_from_json(json, config, out, e));
    if (copy_path != NULL) {
        struct error unused = {0}; /* without the copy the next start is slower, nothing else */
        const enum err saved = tok_save(*out, copy_path, key, &unused);
        (void)saved;
    }
    return OK;
}
