/* From a list of names, flags, scores and merges to the flat sections of a tokenizer; see tok_int.h.
 *
 * Every reader (tokenizer.json, GGUF, SentencePiece) ends here, so the rules that hold for all vocabularies are checked
 * here: sizes, no two tokens of one name, a hole only where the reader allowed it. */
#include "text/tok_int.h"
#include "text/tok_tables.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/limits.h"

#include <string.h>

/* ---- name -> id ---- */

static size_t slot_count(size_t n)
{
    size_t slots = 16;
    while (slots < n * 2)
        slots *= 2;
    return slots;
}

/* Insert id; the id that has the same name already, or TOK_NONE. */
static uint32_t slots_insert(struct tok_slot *slots, size_t n_slots, const struct str *names, uint32_t id)
{
    const uint64_t h = hash64(names[id].p, names[id].n, 0);
    size_t i = (size_t)h & (n_slots - 1);
    for (; slots[i].id_plus != 0; i = (i + 1) & (n_slots - 1))
        if (slots[i].tag == (uint32_t)(h >> 32) && str_eq(names[slots[i].id_plus - 1], names[id]))
            return slots[i].id_plus - 1;
    slots[i] = (struct tok_slot){(uint32_t)(h >> 32), id + 1};
    return TOK_NONE;
}

enum err name_table_init(
    struct name_table *nt, const struct str *names, uint32_t n, uint32_t *twin_a, uint32_t *twin_b, struct error *e)
{
    *nt = (struct name_table){.names = names, .n_slots = slot_count(n)};
    nt->slots = mem_array(nt->n_slots, sizeof *nt->slots);
    if (nt->slots == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a vocabulary of %u tokens", n);
    for (uint32_t id = 0; id < n; id++) {
        if (names[id].p == NULL)
            continue;
        const uint32_t twin = slots_insert(nt->slots, nt->n_slots, names, id);
        if (twin == TOK_NONE)
            continue;
        if (twin_a != NULL) {
            if (*twin_a == TOK_NONE) {
                *twin_a = twin;
                *twin_b = id;
            }
            continue;
        }
        char shown[80];
        name_table_fini(nt);
        return FAIL(e, ERR_FORMAT, "tokens %u and %u have the same name '%s'", twin, id,
            str_show(names[id], shown, sizeof shown));
    }
    return OK;
}

static uint32_t slots_find(
    const struct tok_slot *slots, size_t n_slots, struct str name, const char *bytes, const uint32_t *at)
{
    const uint64_t h = hash64(name.p, name.n, 0);
    for (size_t i = (size_t)h & (n_slots - 1); slots[i].id_plus != 0; i = (i + 1) & (n_slots - 1)) {
        if (slots[i].tag != (uint32_t)(h >> 32))
            continue;
        const uint32_t id = slots[i].id_plus - 1;
        if (at[id + 1] - at[id] == name.n && memcmp(bytes + at[id], name.p, name.n) == 0)
            return id;
    }
    return TOK_NONE;
}

uint32_t name_table_find(const struct name_table *nt, struct str name)
{
    const uint64_t h = hash64(name.p, name.n, 0);
    for (size_t i = (size_t)h & (nt->n_slots - 1); nt->slots[i].id_plus != 0; i = (i + 1) & (nt->n_slots - 1))
        if (nt->slots[i].tag == (uint32_t)(h >> 32) && str_eq(nt->names[nt->slots[i].id_plus - 1], name))
            return nt->slots[i].id_plus - 1;
    return TOK_NONE;
}

void name_table_fini(struct name_table *nt)
{
    mem_free(nt->slots);
    nt->slots = NULL;
}

uint32_t tok_find(const struct tok *t, struct str name)
{
    return slots_find(t->sec[SEC_NAME_SLOTS].p, t->sec[SEC_NAME_SLOTS].bytes / sizeof(struct tok_slot), name,
        t->sec[SEC_NAMES].p, t->sec[SEC_NAME_AT].p);
}

uint32_t tok_key_find(const struct tok *t, struct str key)
{
    return slots_find(t->sec[SEC_KEY_SLOTS].p, t->sec[SEC_KEY_SLOTS].bytes / sizeof(struct tok_slot), key,
        t->sec[SEC_KEYS].p, t->sec[SEC_KEY_AT].p);
}

/* ---- sections ---- */

enum err tok_own(struct tok *t, enum tok_section which, void *p, size_t bytes, struct error *e)
{
    if (p == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a vocabulary");
    t->owned[which] = p;
    t->sec[which] = (struct tok_section_view){p, bytes};
    return OK;
}

static enum err build_names(struct tok_build *b, struct tok *t, struct error *e)
{
    size_t total = 0;
    char shown[80];
    for (uint32_t id = 0; id < b->n; id++) {
        if (b->names[id].n > TOK_NAME_BYTES_MAX)
            return FAIL(e, ERR_LIMIT, "token %u '%s...' has %zu bytes; the limit is %d", id,
                str_show((struct str){b->names[id].p, 40}, shown, sizeof shown), b->names[id].n, TOK_NAME_BYTES_MAX);
        total += b->names[id].n;
    }
    if (total > TOK_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "the vocabulary's names have %zu bytes; the limit is %llu", total,
            (unsigned long long)TOK_BYTES_MAX);
    TRY(tok_own(t, SEC_NAMES, mem_alloc(total), total, e));
    TRY(tok_own(t, SEC_NAME_AT, mem_array((size_t)b->n + 1, sizeof(uint32_t)), (b->n + 1) * sizeof(uint32_t), e));
    char *names = t->owned[SEC_NAMES];
    uint32_t *at = t->owned[SEC_NAME_AT];
    for (uint32_t id = 0; id < b->n; id++) {
        if (b->names[id].n > 0)
            memcpy(names + at[id], b->names[id].p, b->names[id].n);
        at[id + 1] = at[id] + (uint32_t)b->names[id].n;
    }
    if (b->table.slots == NULL)
        TRY(name_table_init(&b->table, b->names, b->n, NULL, NULL, e));
    TRY(tok_own(t, SEC_NAME_SLOTS, b->table.slots, b->table.n_slots * sizeof *b->table.slots, e));
    b->table.slots = NULL;
    return OK;
}

static enum err build_bytes(struct tok_build *b, struct tok *t, struct error *e)
{
    struct decoder *d = NULL;
    struct buf out;
    buf_init(&out, TOK_BYTES_MAX);
    enum err err = decoder_new(b->spec, &d, &b->meta.lead, e);
    uint32_t *at = mem_array((size_t)b->n + 1, sizeof *at);
    if (err == OK)
        err = tok_own(t, SEC_BYTE_AT, at, (b->n + 1) * sizeof *at, e);
    for (uint32_t id = 0; id < b->n && err == OK; id++) {
        if ((b->flags[id] & VOCAB_HOLE) == 0)
            err = decoder_bytes(d, b->names[id], b->flags[id], &out, e);
        at[id + 1] = (uint32_t)out.n;
    }
    decoder_free(d);
    if (err == OK)
        err = buf_check(&out, "the vocabulary's text", e);
    if (err == OK && out.p == NULL && buf_room(&out, 1) == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory for a vocabulary");
    if (err == OK)
        err = tok_own(t, SEC_BYTES, out.p, out.n, e);
    else
        buf_fini(&out);
    if (t->owned[SEC_BYTE_AT] == NULL)
        mem_free(at);
    return err;
}

/* The keys: raw bytes for a byte-level vocabulary, otherwise the names. Only what the model may make gets a slot: no
 * special token, so that a user's spelling of one can never become it. */
static enum err build_keys(struct tok_build *b, struct tok *t, struct error *e)
{
    const bool byte_level = (b->meta.flags & META_BYTE_LEVEL) != 0;
    const size_t total = t->sec[SEC_NAMES].bytes;
    TRY(tok_own(t, SEC_KEYS, mem_alloc(total), total, e));
    TRY(tok_own(t, SEC_KEY_AT, mem_array((size_t)b->n + 1, sizeof(uint32_t)), (b->n + 1) * sizeof(uint32_t), e));
    /* only whole words and single characters are looked up */
    const bool finds = !byte_level || (b->meta.flags & META_IGNORE_MERGES) != 0;
    const size_t n_slots = slot_count(finds ? b->n : 0);
    TRY(tok_own(t, SEC_KEY_SLOTS, mem_array(n_slots, sizeof(struct tok_slot)), n_slots * sizeof(struct tok_slot), e));
    struct str *keys = mem_array(b->n, sizeof *keys);
    if (keys == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a vocabulary");
    char *bytes = t->owned[SEC_KEYS];
    uint32_t *at = t->owned[SEC_KEY_AT];
    for (uint32_t id = 0; id < b->n; id++) {
        size_t n = 0;
        const struct str name = b->names[id];
        if (byte_level) {
            if ((b->flags[id] & VOCAB_HOLE) != 0 || !byte_unspell(name, bytes + at[id], &n))
                n = 0;
        } else if (name.n > 0) {
            memcpy(bytes + at[id], name.p, name.n);
            n = name.n;
        }
        keys[id] = (struct str){bytes + at[id], n};
        at[id + 1] = at[id] + (uint32_t)n;
        const bool makes = n > 0 && (b->flags[id] & (VOCAB_SPECIAL | VOCAB_HOLE | VOCAB_BYTE | VOCAB_OUTSIDE)) == 0;
        if (makes && finds)
            slots_insert(t->owned[SEC_KEY_SLOTS], n_slots, keys, id);
        if (makes && byte_level && n == 1)
            b->meta.byte_ids[(unsigned char)bytes[at[id]]] = id;
    }
    t->sec[SEC_KEYS].bytes = at[b->n];
    mem_free(keys);
    return OK;
}

/* What two bytes side by side become. Few merges are of two bytes, so those are looked for and not all pairs. */
static enum err build_byte_pairs(struct tok_build *b, struct tok *t, struct error *e)
{
    const size_t bytes = 65536 * sizeof(struct tok_pair_value);
    TRY(tok_own(t, SEC_BYTE_PAIRS, mem_alloc(bytes), bytes, e));
    struct tok_pair_value *pairs = t->owned[SEC_BYTE_PAIRS];
    uint16_t *byte_plus = mem_array(b->n, sizeof *byte_plus); /* the byte a token stands for, plus 1 */
    if (byte_plus == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a vocabulary");
    for (uint32_t i = 0; i < 256; i++)
        if (b->meta.byte_ids[i] != TOK_NONE)
            byte_plus[b->meta.byte_ids[i]] = (uint16_t)(i + 1);
    memset(pairs, 0xFF, bytes); /* TOK_NONE */
    for (size_t i = 0; i < b->n_merges; i++) {
        const struct tok_merge *m = &b->merges[i];
        const uint32_t left = byte_plus[m->left], right = byte_plus[m->right];
        if (left != 0 && right != 0) {
            struct tok_pair_value *to = &pairs[(left - 1) << 8 | (right - 1)];
            bpe_pair(t, m->left, m->right, &to->rank, &to->id);
        }
    }
    mem_free(byte_plus);
    return OK;
}

static enum err build_merges(struct tok_build *b, struct tok *t, struct error *e)
{
    struct tok_merge *slots = NULL;
    size_t n_slots = 0;
    TRY(bpe_table_build(b, &slots, &n_slots, e));
    TRY(tok_own(t, SEC_MERGES, slots, n_slots * sizeof *slots, e));
    if (b->meta.flags & META_BYTE_LEVEL)
        return build_byte_pairs(b, t, e);
    return bigrams_build(b, t, e);
}

static enum err build_model(struct tok_build *b, struct tok *t, struct error *e)
{
    if (b->meta.model == TOK_BPE)
        TRY(build_merges(b, t, e));
    if (b->meta.model == TOK_UNIGRAM) {
        const size_t bytes = b->n * sizeof(double);
        TRY(tok_own(t, SEC_SCORES, mem_alloc(bytes), bytes, e));
        memcpy(t->owned[SEC_SCORES], b->scores, bytes);
        TRY(unigram_build(b, t, e));
    }
    return OK;
}

static enum err build_sections(struct tok_build *b, struct tok *t, struct error *e)
{
    TRY(build_names(b, t, e));
    TRY(build_bytes(b, t, e));
    TRY(tok_own(t, SEC_FLAGS, mem_alloc(b->n), b->n, e));
    memcpy(t->owned[SEC_FLAGS], b->flags, b->n);
    TRY(build_keys(b, t, e));
    TRY(build_model(b, t, e));
    char *spec = json_dumps(b->spec, JSON_COMPACT | JSON_ENSURE_ASCII);
    TRY(tok_own(t, SEC_SPEC, spec, spec != NULL ? strlen(spec) : 0, e));
    TRY(tok_own(t, SEC_META, mem_alloc(sizeof b->meta), sizeof b->meta, e));
    memcpy(t->owned[SEC_META], &b->meta, sizeof b->meta);
    return OK;
}

enum err tok_build_finish(struct tok_build *b, struct tok **out, struct error *e)
{
    *out = NULL;
    struct tok *t = mem_zalloc(sizeof *t);
    enum err err = t != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a vocabulary");
    b->meta.n = b->n;
    if (err == OK && b->n == 0)
        err = FAIL(e, ERR_FORMAT, "the vocabulary is empty");
    if (err == OK)
        err = build_sections(b, t, e);
    if (err == OK)
        err = tok_bind(t, e);
    if (err != OK) {
        tok_free(t);
        return err;
    }
    *out = t;
    return OK;
}
