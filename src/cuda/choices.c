/* The table of chosen algorithms and its file; see choices.h.
 *
 * The file, little endian: 8 bytes "quernlta", version, entries (u32 each), the key (2 x u64), the hash of all that
 * follows it (u64); then the entries: the place in the table (u32), ascending, and the algorithm's 64 bytes. Nothing
 * lies behind the last. The hash has the header as its seed, so no byte of the file can change unseen. */
#include "cuda/choices.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/reader.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAGIC        "quernlta"
#define VERSION      1u
#define HEADER_BYTES 32u /* before the hash */
#define ENTRY_BYTES  (4u + CHOICE_ALGO_BYTES)
#define FILE_MAX     ((size_t)HEADER_BYTES + 8 + (size_t)CUDA_CHOICES_MAX * ENTRY_BYTES)

/* ---- the table ----------------------------------------------------------------------------------------------------
 */

bool choices_init(struct choices *c)
{
    *c = (struct choices){.all = mem_zalloc(CUDA_CHOICES_MAX * sizeof *c->all)};
    return c->all != NULL;
}

void choices_fini(struct choices *c)
{
    mem_free(c->all);
    *c = (struct choices){0};
}

static bool same_product(const struct choice_shape *a, const struct choice_shape *b)
{
    return a->n_out == b->n_out && a->n_in == b->n_in && a->ldw == b->ldw && a->ldc == b->ldc && a->type == b->type &&
           a->out_type == b->out_type && a->scaled == b->scaled && a->adds == b->adds;
}

uint32_t choices_note(struct choices *c, const struct choice_shape *s)
{
    for (uint32_t i = c->n; i > 0; i--) /* the newest are asked for most */
        if (c->all[i - 1].shape.rows == s->rows && same_product(&c->all[i - 1].shape, s))
            return i - 1;
    if (c->n == CUDA_CHOICES_MAX)
        return CHOICE_NONE;
    c->all[c->n] = (struct choice){.shape = *s};
    return c->n++;
}

const struct choice *choices_find(const struct choices *c, const struct choice_shape *s)
{
    const struct choice *best = NULL;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct choice *x = &c->all[i];
        if (x->shape.rows >= s->rows && (best == NULL || x->shape.rows < best->shape.rows) &&
            same_product(&x->shape, s))
            best = x;
    }
    return best != NULL && best->has_algo ? best : NULL;
}

uint32_t choices_chosen(const struct choices *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        n += c->all[i].has_algo;
    return n;
}

void choices_forget(struct choices *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        c->all[i].has_algo = false;
}

/* ---- what it is about ---------------------------------------------------------------------------------------------
 */

struct hash128 choices_key(const struct choices *c, const char *machine)
{
    struct hash128 key = hash128(machine, strlen(machine));
    for (uint32_t i = 0; i < c->n; i++) {
        const struct {
            struct hash128 before;
            struct choice_shape shape;
            uint32_t place;
        } x = {key, c->all[i].shape, i};
        _Static_assert(sizeof x == sizeof x.before + sizeof x.shape + sizeof x.place, "padding would be hashed");
        key = hash128(&x, sizeof x);
    }
    return key;
}

uint64_t choices_hash(const struct choices *c)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->all[i].has_algo) {
            h = hash64(&c->all[i].shape, sizeof c->all[i].shape, h);
            h = hash64(c->all[i].algo, CHOICE_ALGO_BYTES, h);
        }
    return h;
}

bool choices_path(const char *dir, struct hash128 key, char *path)
{
    char name[48];
    snprintf(name, sizeof name, "%016llx%016llx", (unsigned long long)key.hi, (unsigned long long)key.lo);
    return path_join(path, dir, name, NULL) == OK;
}

bool choices_can_keep(const char *dir)
{
    return file_make_dirs(dir, NULL) == OK && access(dir, W_OK | X_OK) == 0;
}

/* ---- the file ------------------------------------------------------------------------------------------------------
 */

static void add_little(struct buf *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_add_char(b, (char)(unsigned char)(value >> 8 * i));
}

static uint64_t body_hash(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    return hash64(p + HEADER_BYTES + 8, n - HEADER_BYTES - 8, hash64(p, HEADER_BYTES, 0));
}

static void encode(const struct choices *c, struct hash128 key, struct buf *b)
{
    buf_add(b, STR(MAGIC));
    add_little(b, VERSION, 4);
    add_little(b, choices_chosen(c), 4);
    add_little(b, key.lo, 8);
    add_little(b, key.hi, 8);
    add_little(b, 0, 8); /* the hash, below */
    for (uint32_t i = 0; i < c->n; i++)
        if (c->all[i].has_algo) {
            add_little(b, i, 4);
            buf_add(b, (struct str){(const char *)c->all[i].algo, CHOICE_ALGO_BYTES});
        }
    if (b->failure != OK)
        return;
    const uint64_t h = body_hash(b->p, b->n);
    for (size_t i = 0; i < 8; i++)
        b->p[HEADER_BYTES + i] = (char)(unsigned char)(h >> 8 * i);
}

/* All of it is looked at before anything is taken. */
static enum err check(const struct choices *c, struct hash128 key, struct reader *r, uint32_t *n)
{
    const struct str magic = read_bytes(r, sizeof MAGIC - 1);
    const uint32_t version = read_u32(r);
    *n = read_u32(r);
    const uint64_t lo = read_u64(r), hi = read_u64(r), hash = read_u64(r);
    if (r->failure != OK)
        return r->failure;
    if (!str_eq(magic, STR(MAGIC)) || version != VERSION)
        return READER_FAIL(r, ERR_FORMAT, "this is no file of chosen algorithms of version %u", VERSION);
    if (lo != key.lo || hi != key.hi)
        return READER_FAIL(r, ERR_FORMAT, "it is about another card, library or model");
    if (*n > c->n || r->n != HEADER_BYTES + 8 + (uint64_t)*n * ENTRY_BYTES)
        return READER_FAIL(r, ERR_FORMAT, "%u entries in %llu bytes", *n, (unsigned long long)r->n);
    if (hash != body_hash(r->p, r->n))
        return READER_FAIL(r, ERR_FORMAT, "it does not have its own hash");
    uint32_t after = 0;
    for (uint32_t i = 0; i < *n; i++) {
        const uint32_t place = read_u32(r);
        reader_skip(r, CHOICE_ALGO_BYTES);
        if (place < after || place >= c->n)
            return READER_FAIL(r, ERR_FORMAT, "place %u is not of this table, or out of order", place);
        after = place + 1;
    }
    return r->failure;
}

enum err choices_parse(struct choices *c, struct hash128 key, const void *bytes, size_t n, struct error *e)
{
    struct reader r;
    uint32_t entries;
    reader_init(&r, bytes, n, e);
    TRY(check(c, key, &r, &entries));
    reader_init(&r, bytes, n, e);
    reader_skip(&r, HEADER_BYTES + 8);
    choices_forget(c);
    for (uint32_t i = 0; i < entries; i++) {
        struct choice *x = &c->all[read_u32(&r)];
        const struct str algo = read_bytes(&r, CHOICE_ALGO_BYTES);
        x->has_algo = true;
        memcpy(x->algo, algo.p, CHOICE_ALGO_BYTES);
    }
    return OK;
}

enum err choices_read(struct choices *c, struct hash128 key, const char *path, struct error *e)
{
    char *bytes;
    size_t n;
    TRY(file_read_all(path, FILE_MAX, &bytes, &n, e));
    const enum err err = choices_parse(c, key, bytes, n, e);
    mem_free(bytes);
    return err;
}

enum err choices_write(const struct choices *c, struct hash128 key, const char *path, struct error *e)
{
    struct buf b;
    buf_init(&b, FILE_MAX);
    encode(c, key, &b);
    enum err err = buf_check(&b, "a file of chosen algorithms", e);
    if (err == OK)
        err = file_write_atomic(path, buf_str(&b), e);
    buf_fini(&b);
    return err;
}
