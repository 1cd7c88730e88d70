/* Metadata fields of a GGUF file: finding them, reading them as what the caller expects; see format_gguf.h. gguf.c has
 * walked over every value before anybody gets here, so lengths inside the header are trusted; types and ranges are
 * what the file says and are checked against what the caller wants. */
#include "format/format_int.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t bytes;
} type_rows[] = {
    [GGUF_U8] = {"u8", 1},
    [GGUF_I8] = {"i8", 1},
    [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},
    [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},
    [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0},
    [GGUF_U64] = {"u64", 8},
    [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};
_Static_assert(COUNT_OF(type_rows) == GGUF_TYPE_COUNT, "every type has a row");

uint32_t gguf_type_bytes(enum gguf_type t)
{
    return type_rows[t].bytes;
}

const char *gguf_type_name(enum gguf_type t)
{
    return t < GGUF_TYPE_COUNT ? type_rows[t].name : "unknown";
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

uint64_t gguf_field_count(const struct gguf *g)
{
    return g->n_fields;
}

struct str gguf_field_bytes(const struct gguf *g)
{
    const size_t start = g->n_fields > 0 ? (size_t)((const unsigned char *)g->fields[0].key.p - g->header) : 0;
    return (struct str){(const char *)g->header + start, g->n_fields > 0 ? (size_t)g->fields_end - start : 0};
}

const struct gguf_field *gguf_field_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_fields);
    return &g->fields[i];
}

const struct gguf_field *gguf_find(const struct gguf *g, const char *key)
{
    return name_index_find(&g->index, g->fields, sizeof *g->fields, str_of(key));
}

/* An integer of any width: sign apart, so that all of u64 and i64 fit. */
struct whole {
    bool negative;
    uint64_t magnitude;
};

static struct whole whole_of(int64_t v)
{
    return (struct whole){v < 0, v < 0 ? 0 - (uint64_t)v : (uint64_t)v};
}

static bool read_whole(enum gguf_type type, const unsigned char *p, struct whole *out)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v = {0};
    memcpy(&v, p, MIN((size_t)type_rows[type].bytes, sizeof v));
    switch (type) {
    case GGUF_U8: *out = (struct whole){false, v.u8}; return true;
    case GGUF_U16: *out = (struct whole){false, v.u16}; return true;
    case GGUF_U32: *out = (struct whole){false, v.u32}; return true;
    case GGUF_U64: *out = (struct whole){false, v.u64}; return true;
    case GGUF_I8: *out = whole_of(v.i8); return true;
    case GGUF_I16: *out = whole_of(v.i16); return true;
    case GGUF_I32: *out = whole_of(v.i32); return true;
    case GGUF_I64: *out = whole_of(v.i64); return true;
    default: return false;
    }
}

static bool read_number(enum gguf_type type, const unsigned char *p, double *out)
{
    struct whole w;
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, p, sizeof f);
        *out = (double)f;
    } else if (type == GGUF_F64)
        memcpy(out, p, sizeof *out);
    else if (read_whole(type, p, &w))
        *out = w.negative ? -(double)w.magnitude : (double)w.magnitude;
    else
        return false;
    return true;
}

static int64_t whole_clamped(struct whole w)
{
    if (w.negative)
        return w.magnitude > (uint64_t)INT64_MAX ? INT64_MIN : -(int64_t)w.magnitude;
    return w.magnitude > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)w.magnitude;
}

static struct str read_str(const unsigned char *p)
{
    uint64_t n;
    memcpy(&n, p, sizeof n);
    return (struct str){(const char *)p + sizeof n, (size_t)n};
}

static enum err fail_type(const char *key, const struct gguf_field *f, const char *wanted, struct error *e)
{
    return FAIL(e, ERR_INVALID, "key '%s' must be %s; the file has %s%s", key, wanted, gguf_type_name(f->type),
        f->type == GGUF_ARRAY ? " values" : "");
}

enum err gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    struct whole w;
    if (f == NULL)
        return OK;
    if (!read_whole(f->type, f->p, &w))
        return fail_type(key, f, "a whole number", e);
    if ((w.negative && w.magnitude > 0) || w.magnitude < min || w.magnitude > max)
        return FAIL(e, ERR_INVALID, "key '%s' is %s%llu; it must be from %llu to %llu", key, w.negative ? "-" : "",
            (unsigned long long)w.magnitude, (unsigned long long)min, (unsigned long long)max);
    *out = w.magnitude;
    return OK;
}

enum err gguf_get_i64(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    struct whole w;
    if (f == NULL)
        return OK;
    if (!read_whole(f->type, f->p, &w))
        return fail_type(key, f, "a whole number", e);
    const int64_t v = whole_clamped(w);
    const bool fits = w.negative || w.magnitude <= (uint64_t)INT64_MAX;
    if (!fits || v < min || v > max)
        return FAIL(e, ERR_INVALID, "key '%s' is %s%llu; it must be from %lld to %lld", key, w.negative ? "-" : "",
            (unsigned long long)w.magnitude, (long long)min, (long long)max);
    *out = v;
    return OK;
}

enum err gguf_get_f64(const struct gguf *g, const char *key, double min, double max, double *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    double v;
    if (f == NULL)
        return OK;
    if (!read_number(f->type, f->p, &v))
        return fail_type(key, f, "a number", e);
    if (!(v >= min && v <= max)) /* NaN fails both */
        return FAIL(e, ERR_INVALID, "key '%s' is %g; it must be from %g to %g", key, v, min, max);
    *out = v;
    return OK;
}

enum err gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    if (f == NULL)
        return OK;
    if (f->type != GGUF_BOOL)
        return fail_type(key, f, "a bool", e);
    *out = *f->p != 0;
    return OK;
}

enum err gguf_get_str(const struct gguf *g, const char *key, struct str *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    if (f == NULL)
        return OK;
    if (f->type != GGUF_STRING)
        return fail_type(key, f, "a string", e);
    *out = read_str(f->p);
    return OK;
}

enum err gguf_get_array(
    const struct gguf *g, const char *key, enum gguf_type type, struct gguf_array *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    if (f == NULL)
        return OK;
    if (f->type != GGUF_ARRAY)
        return fail_type(key, f, "an array", e);
    if (f->array.type != type)
        return FAIL(e, ERR_INVALID, "key '%s' must be an array of %s; the file has an array of %s", key,
            gguf_type_name(type), gguf_type_name(f->array.type));
    *out = f->array;
    return OK;
}

bool gguf_next_str(struct gguf_array *a, struct str *out)
{
    if (a->n == 0 || a->type != GGUF_STRING)
        return false;
    *out = read_str(a->p);
    a->p += sizeof(uint64_t) + out->n;
    a->n--;
    return true;
}

/* The first byte after all elements. Depth is bounded by GGUF_ARRAY_DEPTH_MAX, which gguf.c has checked. */
static const unsigned char *array_end(struct gguf_array a)
{
    struct str s;
    struct gguf_array inner;
    if (type_rows[a.type].bytes > 0)
        return a.p + a.n * type_rows[a.type].bytes;
    while (a.n > 0)
        if (!gguf_next_str(&a, &s))
            gguf_next_array(&a, &inner);
    return a.p;
}

bool gguf_next_array(struct gguf_array *a, struct gguf_array *out)
{
    if (a->n == 0 || a->type != GGUF_ARRAY)
        return false;
    uint32_t type;
    memcpy(&type, a->p, sizeof type);
    memcpy(&out->n, a->p + sizeof type, sizeof out->n);
    out->type = (enum gguf_type)type;
    out->p = a->p + sizeof type + sizeof out->n;
    a->p = array_end(*out);
    a->n--;
    return true;
}

bool gguf_next_i64(struct gguf_array *a, int64_t *out)
{
    struct whole w;
    if (a->n == 0 || !read_whole(a->type, a->p, &w))
        return false;
    *out = whole_clamped(w);
    a->p += type_rows[a->type].bytes;
    a->n--;
    return true;
}

bool gguf_next_f64(struct gguf_array *a, double *out)
{
    if (a->n == 0 || !read_number(a->type, a->p, out))
        return false;
    a->p += type_rows[a->type].bytes;
    a->n--;
    return true;
}

enum err gguf_strings(const struct gguf_array *a, struct str **out, struct error *e)
{
    *out = NULL;
    if (a->type != GGUF_STRING)
        return FAIL(e, ERR_INVALID, "the array holds %s, not strings", gguf_type_name(a->type));
    struct str *all = mem_array(a->n, sizeof *all);
    if (all == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %llu strings", (unsigned long long)a->n);
    struct gguf_array at = *a;
    for (uint64_t i = 0; gguf_next_str(&at, &all[i]); i++)
        if (at.n == 0)
            break;
    *out = all;
    return OK;
}

const char *gguf_show(const struct gguf_field *f, char *out, size_t cap)
{
    struct whole w;
    double v;
    if (f->type == GGUF_STRING)
        return str_show(read_str(f->p), out, cap);
    if (f->type == GGUF_ARRAY)
        snprintf(out, cap, "[%s x %llu]", gguf_type_name(f->array.type), (unsigned long long)f->array.n);
    else if (f->type == GGUF_BOOL)
        snprintf(out, cap, "%s", *f->p != 0 ? "true" : "false");
    else if (read_whole(f->type, f->p, &w))
        snprintf(out, cap, "%s%llu", w.negative ? "-" : "", (unsigned long long)w.magnitude);
    else if (read_number(f->type, f->p, &v))
        snprintf(out, cap, "%.*g", f->type == GGUF_F32 ? 7 : 15, v);
    return out;
}
