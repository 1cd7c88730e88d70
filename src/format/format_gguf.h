/* The metadata of a GGUF model: typed fields by key. Values lie in the header bytes the source keeps; nothing is
 * copied, strings are not NUL-terminated. Everything here was bounds-checked when the file was opened, so iteration
 * cannot run out of the header.
 *
 * Getters follow base/json.h: a missing key leaves *out as it is (set your default first) and is OK; a value of another
 * type or out of range is ERR_INVALID naming the key.
 *
 * Threads: any; all of it is read-only. */
#ifndef FORMAT_FORMAT_GGUF_H
#define FORMAT_FORMAT_GGUF_H

#include "format/format.h"

/* The numbers are the file's own. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
    GGUF_TYPE_COUNT
};

/* A run of values of one type, and a cursor over it: the next functions move p and count down n. */
struct gguf_array {
    enum gguf_type type; /* of the elements */
    uint64_t n;          /* elements left */
    const unsigned char *p;
};

struct gguf_field {
    struct str key;
    enum gguf_type type;
    uint64_t offset;         /* of the value in the file, for messages */
    const unsigned char *p;  /* the value's bytes; for GGUF_ARRAY, of its elements */
    struct gguf_array array; /* when type is GGUF_ARRAY */
};

struct gguf; /* the fields of one model; of a split set, those of its first file */

const struct gguf *model_source_gguf(const struct model_source *s); /* NULL for safetensors */
uint32_t gguf_version(const struct gguf *g);

/* Fields in file order. */
uint64_t gguf_field_count(const struct gguf *g);
const struct gguf_field *gguf_field_at(const struct gguf *g, uint64_t i);
const struct gguf_field *gguf_find(const struct gguf *g, const char *key); /* NULL when absent */
struct str gguf_field_bytes(const struct gguf *g); /* all of them as they lie in the file, to tell files apart by */

/* Any integer type is taken for an integer, any number for a double. */
enum err gguf_get_u64(
    const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct error *e) MUST_CHECK;
enum err gguf_get_i64(
    const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out, struct error *e) MUST_CHECK;
enum err gguf_get_f64(
    const struct gguf *g, const char *key, double min, double max, double *out, struct error *e) MUST_CHECK;
enum err gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *e) MUST_CHECK;
enum err gguf_get_str(const struct gguf *g, const char *key, struct str *out, struct error *e) MUST_CHECK;

/* An array whose elements have that type. */
enum err gguf_get_array(
    const struct gguf *g, const char *key, enum gguf_type type, struct gguf_array *out, struct error *e) MUST_CHECK;

/* The next element; false at the end or when the type is not of that family (strings, arrays, integers, numbers). */
bool gguf_next_str(struct gguf_array *a, struct str *out);
bool gguf_next_array(struct gguf_array *a, struct gguf_array *out);
bool gguf_next_i64(struct gguf_array *a, int64_t *out); /* a U64 beyond INT64_MAX gives INT64_MAX */
bool gguf_next_f64(struct gguf_array *a, double *out);

/* All strings of an array at once, for random access; the caller frees *out with mem_free, the bytes stay borrowed. */
enum err gguf_strings(const struct gguf_array *a, struct str **out, struct error *e) MUST_CHECK;

/* A scalar as text for people: "32", "1e-05", "true"; strings come escaped and cut to cap; arrays as "[i32 x 7]". */
const char *gguf_show(const struct gguf_field *f, char *out, size_t cap);
const char *gguf_type_name(enum gguf_type t);

#endif
