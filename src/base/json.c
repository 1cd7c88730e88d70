/* The JSON door; see json.h. */
#include "base/json.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

/* jansson does not survive a failed allocation: its lexer drops the character that did not fit and goes on, which cuts
 * strings without a word, writes behind them, or ends the process in one of its asserts. So while it parses, a failed
 * allocation does not return to it: we jump back to json_parse and free what jansson holds. For that, every allocation
 * and release of the parse is noted; the notes cost 16 bytes each and are gone when the parse ends. */
struct note {
    void *p;
    uint32_t order;
    bool is_release;
};

struct parse {
    jmp_buf escape;
    struct note *notes;
    uint32_t n, cap;
};

static _Thread_local struct parse *parsing; /* NULL outside json_parse */

static bool note(struct parse *ps, void *p, bool is_release)
{
    if (ps->n == ps->cap) {
        const uint32_t cap = ps->cap < UINT32_MAX / 2 ? MAX(ps->cap * 2, (uint32_t)256) : 0;
        struct note *notes = cap > 0 ? mem_resize(ps->notes, cap * sizeof *notes) : NULL;
        if (notes == NULL)
            return false;
        ps->notes = notes;
        ps->cap = cap;
    }
    ps->notes[ps->n] = (struct note){p, ps->n, is_release};
    ps->n++;
    return true;
}

static void *json_alloc(size_t bytes)
{
    void *p = mem_alloc(bytes);
    if (parsing != NULL && (p == NULL || !note(parsing, p, false))) {
        mem_free(p);
        longjmp(parsing->escape, 1);
    }
    return p;
}

static void json_release(void *p)
{
    if (parsing != NULL && p != NULL && !note(parsing, p, true))
        longjmp(parsing->escape, 1); /* p counts as held and is freed with the rest */
    mem_free(p);
}

static int by_address_then_order(const void *a, const void *b)
{
    const struct note *x = a, *y = b;
    if (x->p != y->p)
        return (uintptr_t)x->p < (uintptr_t)y->p ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* An address is held when the last thing that happened to it was an allocation. */
static void free_what_is_held(struct parse *ps)
{
    if (ps->n > 0)
        qsort(ps->notes, ps->n, sizeof ps->notes[0], by_address_then_order);
    for (uint32_t i = 0; i < ps->n; i++) {
        const bool is_last = i + 1 == ps->n || ps->notes[i + 1].p != ps->notes[i].p;
        if (is_last && !ps->notes[i].is_release)
            mem_free(ps->notes[i].p);
    }
}

/* False when memory ran out. */
static bool load_guarded(struct str text, json_t **doc, json_error_t *je)
{
    struct parse ps = {.notes = NULL};
    if (setjmp(ps.escape) != 0) {
        struct parse *const failed = parsing;
        parsing = NULL;
        free_what_is_held(failed);
        mem_free(failed->notes);
        return false;
    }
    parsing = &ps;
    *doc = json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, je);
    parsing = NULL;
    mem_free(ps.notes);
    return true;
}

static void use_counted_memory(void)
{
    json_set_alloc_funcs(json_alloc, json_release);
}

/* Depth of nesting, counted over the raw bytes: jansson recurses, so depth is refused before it starts. */
static bool is_too_deep(struct str text)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.n; i++) {
        const char c = text.p[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"')
            in_string = true;
        else if (c == '[' || c == '{') {
            if (++depth > JSON_DEPTH_MAX)
                return true;
        } else if (c == ']' || c == '}')
            depth--;
    }
    return false;
}

enum err json_parse(struct str text, json_t **out, struct error *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, use_counted_memory);
    *out = NULL;
    if (text.n > JSON_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "JSON of %zu bytes; the limit is %llu", text.n, (unsigned long long)JSON_BYTES_MAX);
    if (is_too_deep(text))
        return FAIL(e, ERR_LIMIT, "JSON nested deeper than %d levels", JSON_DEPTH_MAX);
    json_error_t je = {0};
    json_t *doc = NULL;
    if (!load_guarded(text, &doc, &je))
        return FAIL(e, ERR_NOMEM, "no memory to parse JSON of %zu bytes", text.n);
    if (doc == NULL) {
        char shown[160];
        return FAIL(e, ERR_FORMAT, "invalid JSON at line %d column %d: %s", je.line, je.column,
            str_show(str_of(je.text), shown, sizeof shown));
    }
    *out = doc;
    return OK;
}

enum err json_parse_file(const char *path, uint64_t bytes_max, json_t **out, struct error *e)
{
    char *text;
    size_t n;
    *out = NULL;
    TRY(file_read_all(path, bytes_max, &text, &n, e));
    const enum err err = json_parse((struct str){text, n}, out, e);
    mem_free(text);
    if (err != OK)
        error_prefix(e, "%s", path);
    return err;
}

static const json_t *field(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v == NULL || json_is_null(v) ? NULL : v;
}

enum err json_get_u64(const json_t *o, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct error *e)
{
    const json_t *v = field(o, key);
    if (v == NULL)
        return OK;
    uint64_t n = 0;
    bool whole = false;
    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        n = (uint64_t)json_integer_value(v);
        whole = true;
    } else if (json_is_real(v)) {
        const double d = json_real_value(v);
        whole = d >= 0 && d < 9007199254740992.0 && d == floor(d); /* 2^53: exact in a double */
        n = whole ? (uint64_t)d : 0;
    }
    if (!whole || n < min || n > max)
        return FAIL(e, ERR_INVALID, "field '%s' must be a whole number from %llu to %llu", key, (unsigned long long)min,
            (unsigned long long)max);
    *out = n;
    return OK;
}

enum err json_get_f64(const json_t *o, const char *key, double min, double max, double *out, struct error *e)
{
    const json_t *v = field(o, key);
    if (v == NULL)
        return OK;
    const double d = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(d >= min && d <= max))
        return FAIL(e, ERR_INVALID, "field '%s' must be a number from %g to %g", key, min, max);
    *out = d;
    return OK;
}

enum err json_get_bool(const json_t *o, const char *key, bool *out, struct error *e)
{
    const json_t *v = field(o, key);
    if (v == NULL)
        return OK;
    if (!json_is_boolean(v))
        return FAIL(e, ERR_INVALID, "field '%s' must be true or false", key);
    *out = json_is_true(v);
    return OK;
}

enum err json_get_str(const json_t *o, const char *key, struct str *out, struct error *e)
{
    const json_t *v = field(o, key);
    if (v == NULL)
        return OK;
    if (!json_is_string(v))
        return FAIL(e, ERR_INVALID, "field '%s' must be a string", key);
    *out = (struct str){json_string_value(v), json_string_length(v)};
    return OK;
}

enum err json_get_object(const json_t *o, const char *key, const json_t **out, struct error *e)
{
    const json_t *v = field(o, key);
    if (v == NULL)
        return OK;
    if (!json_is_object(v))
        return FAIL(e, ERR_INVALID, "field '%s' must be an object", key);
    *out = v;
    return OK;
}

enum err json_get_array(const json_t *o, const char *key, const json_t **out, struct error *e)
{
    const json_t *v = field(o, key);
    if (v == NULL)
        return OK;
    if (!json_is_array(v))
        return FAIL(e, ERR_INVALID, "field '%s' must be an array", key);
    *out = v;
    return OK;
}
