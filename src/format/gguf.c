/* Reading the header of one GGUF file: magic, version, counts, metadata fields, tensor list, then padding up to the
 * data. Numbers are little endian, strings are a 64-bit length and bytes, arrays a type, a 64-bit count and elements.
 *
 * How long the header is, only reading it tells. So it is read twice. The first pass walks over the bytes and pulls
 * more of the file into one growing buffer as it needs them; it allocates nothing on the word of a count, and ends at
 * the first byte that is not there. Then the buffer stands still, the counts are known to be true, and the second pass
 * (the same functions) writes down fields and tensors that point into it.
 *
 * Memory: the header itself, at most GGUF_HEADER_BYTES_MAX and never more than the file has, while growing up to three
 * times that; plus a field or tensor record for each one that is really there. */
#include "format/format_int.h"

#include "base/reader.h"

#include <string.h>

#define GGUF_DIMS_MAX      4           /* of the format */
#define GGUF_ALIGN_DEFAULT 32          /* of the format */
#define GGUF_FIRST_READ    (256 * KIB) /* most headers without a vocabulary fit; those with one take a few more reads */

/* A reader whose end moves on as more of the file is pulled in. */
struct head {
    struct reader r;
    unsigned char *buf;
    int fd;
    const char *path;
    uint64_t file_bytes;
};

/* Make sure n more bytes are in the buffer; false (and the reader failed) when they cannot be. */
static bool head_need(struct head *h, uint64_t n)
{
    struct reader *r = &h->r;
    if (r->failure != OK || reader_has(r, n))
        return r->failure == OK;
    if (n > h->file_bytes - r->at) {
        READER_FAIL(r, ERR_FORMAT, "the file ends at byte %llu, %llu bytes short", (unsigned long long)h->file_bytes,
            (unsigned long long)(n - (h->file_bytes - r->at)));
        return false;
    }
    if (r->at + n > GGUF_HEADER_BYTES_MAX) {
        READER_FAIL(r, ERR_LIMIT, "the header is longer than the limit of %llu bytes",
            (unsigned long long)GGUF_HEADER_BYTES_MAX);
        return false;
    }
    uint64_t want = MAX(MAX(r->at + n, 2 * r->n), GGUF_FIRST_READ);
    want = MIN(MIN(want, h->file_bytes), GGUF_HEADER_BYTES_MAX);
    unsigned char *grown = mem_resize(h->buf, (size_t)want);
    if (grown == NULL) {
        READER_FAIL(r, ERR_NOMEM, "no memory for a header of %llu bytes", (unsigned long long)want);
        return false;
    }
    h->buf = grown;
    r->failure = file_read_at(h->fd, r->n, h->buf + r->n, (size_t)(want - r->n), h->path, r->error);
    if (r->failure != OK)
        return false;
    r->p = h->buf;
    r->n = want;
    return true;
}

static uint32_t head_u32(struct head *h)
{
    head_need(h, 4);
    return read_u32(&h->r);
}

static uint64_t head_u64(struct head *h)
{
    head_need(h, 8);
    return read_u64(&h->r);
}

static struct str head_str(struct head *h)
{
    const uint64_t n = head_u64(h);
    if (!head_need(h, n))
        return (struct str){"", 0};
    return read_bytes(&h->r, n);
}

static void check_bools(struct head *h, struct str bytes)
{
    for (size_t i = 0; i < bytes.n; i++) {
        if ((unsigned char)bytes.p[i] > 1) {
            h->r.at -= bytes.n - i;
            READER_FAIL(&h->r, ERR_FORMAT, "a bool has the value %u", (unsigned char)bytes.p[i]);
            return;
        }
    }
}

static bool type_is_known(struct head *h, uint32_t type)
{
    if (type >= GGUF_TYPE_COUNT)
        READER_FAIL(&h->r, ERR_FORMAT, "value type %u is unknown", type);
    return h->r.failure == OK;
}

/* Walk over strings that are whole in the buffer, at most n; returns how many. A vocabulary and its merges are half a
 * million strings, so they are not read one call at a time. */
static uint64_t skip_buffered_strings(struct reader *r, uint64_t n)
{
    uint64_t done = 0, at = r->at, bytes;
    while (done < n && r->n - at >= sizeof bytes) {
        memcpy(&bytes, r->p + at, sizeof bytes);
        if (bytes > r->n - at - sizeof bytes)
            break;
        at += sizeof bytes + bytes;
        done++;
    }
    r->at = at;
    return done;
}

/* Walk over n values of one type. */
static void skip_values(struct head *h, enum gguf_type type, uint64_t n, int depth)
{
    const uint32_t size = gguf_type_bytes(type);
    if (size > 0) {
        size_t bytes;
        if (!size_mul(n, size, &bytes)) {
            READER_FAIL(&h->r, ERR_FORMAT, "an array of %llu values overflows", (unsigned long long)n);
            return;
        }
        if (!head_need(h, bytes))
            return;
        const struct str run = read_bytes(&h->r, bytes);
        if (type == GGUF_BOOL)
            check_bools(h, run);
        return;
    }
    if (type == GGUF_ARRAY && depth >= GGUF_ARRAY_DEPTH_MAX) {
        READER_FAIL(&h->r, ERR_LIMIT, "arrays are nested deeper than %d levels", GGUF_ARRAY_DEPTH_MAX);
        return;
    }
    for (uint64_t i = 0; i < n && h->r.failure == OK; i++) {
        if (type == GGUF_STRING) {
            i += skip_buffered_strings(&h->r, n - i);
            if (i < n)
                head_str(h);
            continue;
        }
        const uint32_t inner = head_u32(h);
        const uint64_t count = head_u64(h);
        if (type_is_known(h, inner))
            skip_values(h, (enum gguf_type)inner, count, depth + 1);
    }
}

/* One key and value. Pointers in *f are good only while the buffer stands still. */
static enum err read_field(struct head *h, struct gguf_field *f)
{
    struct reader *r = &h->r;
    char shown[120];
    *f = (struct gguf_field){0};
    const struct str key = head_str(h);
    if (r->failure == OK && key.n > GGUF_KEY_BYTES_MAX)
        READER_FAIL(r, ERR_LIMIT, "a key of %zu bytes; the limit is %d", key.n, GGUF_KEY_BYTES_MAX);
    if (r->failure == OK && !source_name_is_clean(key))
        READER_FAIL(
            r, ERR_FORMAT, "key '%s' is empty, not UTF-8 or has control bytes", str_show(key, shown, sizeof shown));
    TRY(r->failure);
    str_show(key, shown, sizeof shown); /* before the buffer may move */
    const uint64_t key_at = r->at - key.n;
    const uint32_t type = head_u32(h);
    if (type_is_known(h, type)) {
        f->type = (enum gguf_type)type;
        f->offset = r->at;
        if (type == GGUF_ARRAY) {
            const uint32_t inner = head_u32(h);
            const uint64_t count = head_u64(h);
            f->array = (struct gguf_array){.type = (enum gguf_type)inner, .n = count};
            f->offset = r->at;
            if (type_is_known(h, inner))
                skip_values(h, (enum gguf_type)inner, count, 1);
        } else
            skip_values(h, f->type, 1, 0);
    }
    if (r->failure != OK) {
        error_prefix(r->error, "key '%s'", shown);
        return r->failure;
    }
    f->key = (struct str){(const char *)r->p + key_at, key.n};
    f->p = f->array.p = r->p + f->offset;
    return OK;
}

/* One entry of the tensor list, with the offset still counted from the data section. */
static enum err read_tensor(struct head *h, struct tensor_claim *c)
{
    struct reader *r = &h->r;
    *c = (struct tensor_claim){0};
    char shown[120];
    const struct str name = head_str(h);
    TRY(r->failure);
    str_show(name, shown, sizeof shown);
    const uint64_t name_at = r->at - name.n;
    const uint32_t n_dims = head_u32(h);
    if (r->failure == OK && n_dims > GGUF_DIMS_MAX) {
        r->at -= 4;
        READER_FAIL(r, ERR_FORMAT, "%u dimensions; GGUF has at most %d", n_dims, GGUF_DIMS_MAX);
    }
    for (uint32_t i = 0; i < n_dims && r->failure == OK; i++)
        c->shape[n_dims - 1 - i] = head_u64(h); /* the file lists the contiguous one first */
    const uint64_t type_at = r->at;
    const uint32_t type = head_u32(h);
    c->n_dims = n_dims;
    c->offset = head_u64(h);
    if (r->failure == OK && dtype_of_gguf(type, &c->dtype, NULL) != OK) {
        r->at = type_at;
        READER_FAIL(r, ERR_UNSUPPORTED, "tensor type %u is unknown", type);
    }
    if (r->failure != OK) {
        error_prefix(r->error, "tensor '%s'", shown);
        return r->failure;
    }
    c->name = (struct str){(const char *)r->p + name_at, name.n};
    return OK;
}

/* Magic, version and the two counts. A version whose low half is empty is the file of a big-endian machine. */
static enum err read_start(struct head *h, struct gguf *g)
{
    struct reader *r = &h->r;
    if (head_need(h, 4) && !str_is(read_bytes(r, 4), "GGUF")) {
        r->at = 0;
        READER_FAIL(r, ERR_FORMAT, "not a GGUF file");
    }
    g->version = head_u32(h);
    TRY(r->failure);
    r->at -= 4;
    if (g->version != 0 && (g->version & 0xffff) == 0)
        return READER_FAIL(r, ERR_UNSUPPORTED, "this GGUF file is big endian; quern reads little-endian files only");
    if (g->version != 2 && g->version != 3)
        return READER_FAIL(r, ERR_UNSUPPORTED, "GGUF version %u; quern reads versions 2 and 3", g->version);
    r->at += 4;
    g->n_tensors = head_u64(h);
    if (r->failure == OK && g->n_tensors > MODEL_TENSORS_MAX)
        READER_FAIL(r, ERR_LIMIT, "%llu tensors; the limit is %u", (unsigned long long)g->n_tensors, MODEL_TENSORS_MAX);
    g->n_fields = head_u64(h);
    if (r->failure == OK && g->n_fields > GGUF_FIELDS_MAX)
        READER_FAIL(
            r, ERR_LIMIT, "%llu metadata keys; the limit is %d", (unsigned long long)g->n_fields, GGUF_FIELDS_MAX);
    return r->failure;
}

/* First pass: everything is there and well formed; the buffer ends where the header ends. */
static enum err walk_header(struct head *h, struct gguf *g)
{
    struct gguf_field field;
    struct tensor_claim claim;
    TRY(read_start(h, g));
    for (uint64_t i = 0; i < g->n_fields; i++)
        TRY(read_field(h, &field));
    for (uint64_t i = 0; i < g->n_tensors; i++)
        TRY(read_tensor(h, &claim));
    unsigned char *fitted = mem_resize(h->buf, (size_t)h->r.at);
    if (fitted == NULL)
        return READER_FAIL(&h->r, ERR_NOMEM, "no memory for a header of %llu bytes", (unsigned long long)h->r.at);
    h->buf = fitted;
    g->header_bytes = h->r.at;
    return OK;
}

static enum err read_alignment(struct gguf *g, struct error *e)
{
    g->alignment = GGUF_ALIGN_DEFAULT;
    TRY(gguf_get_u64(g, "general.alignment", 8, GGUF_ALIGN_MAX, &g->alignment, e));
    if ((g->alignment & (g->alignment - 1)) != 0)
        return FAIL(
            e, ERR_INVALID, "key 'general.alignment': %llu is not a power of two", (unsigned long long)g->alignment);
    return OK;
}

/* Second pass: nothing moves any more. */
static enum err build_fields(struct head *h, struct gguf *g, struct error *e)
{
    g->fields = mem_array(g->n_fields, sizeof *g->fields);
    if (g->fields == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %llu metadata keys", (unsigned long long)g->n_fields);
    reader_init(&h->r, g->header, g->header_bytes, e);
    TRY(read_start(h, g));
    for (uint64_t i = 0; i < g->n_fields; i++)
        TRY(read_field(h, &g->fields[i]));
    g->fields_end = h->r.at;
    TRY(name_index_build(&g->index, g->fields, sizeof *g->fields, g->n_fields, "key", e));
    return read_alignment(g, e);
}

static enum err build_tensors(
    struct head *h, struct gguf *g, struct model_source *s, struct source_part *p, struct error *e)
{
    const uint64_t data_at = (g->header_bytes + g->alignment - 1) & ~(g->alignment - 1);
    TRY(source_tensors_reserve(s, g->n_tensors, e));
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct tensor_claim c;
        char shown[120];
        TRY(read_tensor(h, &c));
        if (c.offset % g->alignment != 0)
            return FAIL(e, ERR_FORMAT, "tensor '%s': offset %llu is not a multiple of the alignment %llu",
                str_show(c.name, shown, sizeof shown), (unsigned long long)c.offset, (unsigned long long)g->alignment);
        if (__builtin_add_overflow(c.offset, data_at, &c.offset))
            return FAIL(e, ERR_FORMAT, "tensor '%s': the offset overflows", str_show(c.name, shown, sizeof shown));
        TRY(source_tensor_add(s, p, &c, e));
    }
    return source_part_check(s, p, data_at, false, e);
}

enum err gguf_part_read(struct model_source *s, struct source_part *p, struct error *e)
{
    struct gguf *g = p->gguf = mem_zalloc(sizeof *g);
    if (g == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to open %s", p->path);
    struct head h = {.fd = p->fd, .path = p->path, .file_bytes = p->map.bytes};
    reader_init(&h.r, "", 0, e);
    enum err err = walk_header(&h, g);
    g->header = h.buf; /* freed with g, also after a failure */
    if (err == OK)
        err = build_fields(&h, g, e);
    if (err == OK)
        err = build_tensors(&h, g, s, p, e);
    if (err != OK)
        source_error_prefix(e, p->path);
    return err;
}

void gguf_free(struct gguf *g)
{
    if (g == NULL)
        return;
    name_index_fini(&g->index);
    mem_free(g->fields);
    mem_free(g->header);
    mem_free(g);
}
