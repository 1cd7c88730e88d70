/* Places of a schema document: each subschema has one, with its path for messages and the resource whose $id is the
 * base of its references. All resources and anchors are found before anything is resolved, since a reference may point
 * forward. References are resolved inside the document only: nothing is ever fetched.
 *
 * A place is known by the address of its JSON value, which jansson allocates for each position on its own; true, false
 * and null are the exception, and as schemas they need no place. */
#include "base/buf.h"
#include "base/hash.h"
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <stdio.h>
#include <string.h>

static enum err table_grow(struct schema *s, struct error *e)
{
    const uint32_t n = MAX(s->n_place_table * 2, 256u);
    uint32_t *table = schema_take(s, n, sizeof *table, e);
    if (table == NULL)
        return e->code;
    for (uint32_t i = 1; i < s->n_places; i++) {
        uint64_t at = hash64(&s->place[i].j, sizeof s->place[i].j, 0) & (n - 1);
        while (table[at] != 0)
            at = (at + 1) & (n - 1);
        table[at] = i;
    }
    s->place_table = table;
    s->n_place_table = n;
    return OK;
}

enum err schema_place(
    struct schema *s, const json_t *j, uint32_t parent, const char *step, uint32_t base, uint32_t *out, struct error *e)
{
    if (2 * s->n_places >= s->n_place_table)
        TRY(table_grow(s, e));
    uint64_t at = hash64(&j, sizeof j, 0) & (s->n_place_table - 1);
    for (; s->place_table[at] != 0; at = (at + 1) & (s->n_place_table - 1)) {
        if (s->place[s->place_table[at]].j == j) {
            *out = s->place_table[at];
            return OK;
        }
    }
    TRY(schema_step(s, 1, e));
    TRY(schema_grow(s, (void **)&s->place, s->n_places, &s->cap_places, sizeof s->place[0], e));
    s->place[s->n_places] = (struct place){.j = j, .parent = parent, .step = step, .base = base};
    s->place_table[at] = s->n_places;
    *out = s->n_places++;
    return OK;
}

enum err schema_lit(struct schema *s, const json_t *sub, uint32_t place, const char *step, lit_id *out, struct error *e)
{
    if (json_is_boolean(sub)) {
        *out = json_is_true(sub) ? LIT_TRUE : LIT_FALSE;
        return OK;
    }
    uint32_t at;
    TRY(schema_place(s, sub, place, step, s->place[place].base, &at, e));
    *out = at << 2 | LIT_IS;
    return OK;
}

enum err schema_value_lit(struct schema *s, const json_t *value, uint32_t place, lit_id *out, struct error *e)
{
    uint32_t at;
    TRY(schema_place(s, value, place, "const", s->place[place].base, &at, e));
    *out = at << 2 | LIT_EQUALS;
    return OK;
}

const char *schema_path(const struct schema *s, uint32_t place, const char *keyword, char out[SCHEMA_PATH_MAX])
{
    /* From the end, so that a path too long for a message loses its beginning. */
    char text[SCHEMA_PATH_MAX];
    size_t at = sizeof text - 1;
    text[at] = '\0';
    bool is_cut = false;
    for (const char *step = keyword;;) {
        const size_t n = step != NULL ? strlen(step) : 0;
        is_cut = n + 24 > at;
        if (!is_cut && n > 0) {
            at -= n;
            memcpy(text + at, step, n);
            text[--at] = '/';
        }
        if (is_cut || s->place[place].parent == place)
            break;
        step = s->place[place].step;
        place = s->place[place].parent;
    }
    char shown[SCHEMA_PATH_MAX];
    str_show((struct str){text + at, sizeof text - 1 - at}, shown, sizeof shown - 8);
    const int len = snprintf(out, SCHEMA_PATH_MAX, "%s%s", is_cut ? "#/..." : "#", shown);
    if (len < 0)
        out[0] = '\0';
    return out;
}

enum err schema_refuse(struct schema *s, uint32_t place, const char *keyword, const char *why, struct error *e)
{
    char path[SCHEMA_PATH_MAX];
    return FAIL(
        e, ERR_UNSUPPORTED, "schema keyword '%s' at %s: %s", keyword, schema_path(s, place, keyword, path), why);
}

/* ---- URIs, as far as references between parts of one document need them ---- */

static size_t scheme_len(struct str u)
{
    for (size_t i = 0; i < u.n; i++) {
        const char c = u.p[i];
        const bool is_alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (c == ':')
            return i > 0 ? i + 1 : 0;
        if (!is_alpha && (i == 0 || !((c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.')))
            return 0;
    }
    return 0;
}

static size_t authority_end(struct str u)
{
    size_t at = scheme_len(u);
    if (u.n >= at + 2 && u.p[at] == '/' && u.p[at + 1] == '/') {
        at += 2;
        while (at < u.n && u.p[at] != '/' && u.p[at] != '?')
            at++;
    }
    return at;
}

/* Takes "." and ".." out of the path that starts at `from`; in place. */
static size_t remove_dots(char *text, size_t n, size_t from)
{
    size_t out = from;
    for (size_t i = from; i < n;) {
        size_t end = i + 1;
        while (end < n && text[end] != '/')
            end++;
        const size_t len = end - i; /* "/segment", or a first segment without '/' */
        const bool is_dot = len == 2 && text[i] == '/' && text[i + 1] == '.';
        const bool is_up = len == 3 && text[i] == '/' && text[i + 1] == '.' && text[i + 2] == '.';
        if (is_up) {
            while (out > from && text[out - 1] != '/')
                out--;
            if (out > from)
                out--;
        } else if (!is_dot) {
            memmove(text + out, text + i, len);
            out += len;
        }
        if ((is_dot || is_up) && end == n)
            text[out++] = '/';
        i = end;
    }
    return out;
}

/* ref without its fragment, made absolute; in the arena. */
static enum err uri_join(struct schema *s, const char *base, struct str ref, const char **out, struct error *e)
{
    const struct str b = str_of(base);
    size_t keep = 0;
    if (ref.n == 0)
        keep = b.n;
    else if (scheme_len(ref) > 0)
        keep = 0;
    else if (ref.n >= 2 && ref.p[0] == '/' && ref.p[1] == '/')
        keep = scheme_len(b);
    else {
        const size_t root = authority_end(b);
        keep = root;
        for (size_t i = root; ref.p[0] != '/' && i < b.n && b.p[i] != '?'; i++)
            if (b.p[i] == '/')
                keep = i + 1;
    }
    char *text = schema_take(s, keep + ref.n + 2, 1, e);
    if (text == NULL)
        return e->code;
    memcpy(text, b.p, keep);
    if (ref.n > 0)
        memcpy(text + keep, ref.p, ref.n);
    const size_t n = keep + ref.n;
    const size_t end =
        scheme_len(ref) == 0 && ref.n > 0 ? remove_dots(text, n, authority_end((struct str){text, n})) : n;
    text[end] = '\0';
    *out = text;
    return OK;
}

/* ---- references ---- */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static enum err percent_decode(struct schema *s, struct str in, struct str *out, struct error *e)
{
    char *text = schema_take(s, in.n + 1, 1, e);
    if (text == NULL)
        return e->code;
    size_t n = 0;
    for (size_t i = 0; i < in.n; i++) {
        const bool is_hex =
            in.p[i] == '%' && i + 2 < in.n && hex_value(in.p[i + 1]) >= 0 && hex_value(in.p[i + 2]) >= 0;
        text[n++] = is_hex ? (char)(hex_value(in.p[i + 1]) * 16 + hex_value(in.p[i + 2])) : in.p[i];
        i += is_hex ? 2 : 0;
    }
    *out = (struct str){text, n};
    return OK;
}

/* One step of a pointer with ~0 and ~1 taken back; in place. */
static size_t pointer_unescape(char *text, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '~' && i + 1 < n && (text[i + 1] == '0' || text[i + 1] == '1'))
            c = text[++i] == '0' ? '~' : '/';
        text[out++] = c;
    }
    return out;
}

static const json_t *child_of(const json_t *j, const char *name, size_t n)
{
    if (json_is_object(j))
        return json_object_getn(j, name, n);
    if (!json_is_array(j) || n == 0 || n > 9)
        return NULL;
    size_t index = 0;
    for (size_t i = 0; i < n; i++) {
        if (name[i] < '0' || name[i] > '9')
            return NULL;
        index = index * 10 + (size_t)(name[i] - '0');
    }
    return json_array_get(j, index);
}

static enum err pointer_follow(struct schema *s, uint32_t from, struct str pointer, uint32_t *out, struct error *e)
{
    const json_t *j = s->place[from].j;
    uint32_t base = s->place[from].base;
    for (size_t i = 0; i < pointer.n && j != NULL;) {
        size_t end = ++i;
        while (end < pointer.n && pointer.p[end] != '/')
            end++;
        TRY(schema_step(s, 1, e));
        char *name = schema_take(s, end - i + 1, 1, e);
        if (name == NULL)
            return e->code;
        memcpy(name, pointer.p + i, end - i);
        j = child_of(j, name, pointer_unescape(name, end - i));
        i = end;
    }
    char shown[120];
    if (j == NULL)
        return FAIL(e, ERR_INVALID, "the schema has nothing at '#%s'", str_show(pointer, shown, sizeof shown));
    if (json_is_boolean(j)) {
        *out = json_is_true(j) ? 0 : UINT32_MAX;
        return OK;
    }
    if (!json_is_object(j))
        return FAIL(e, ERR_INVALID, "what is at '#%s' is no schema", str_show(pointer, shown, sizeof shown));
    char *step = schema_take(s, pointer.n + 1, 1, e);
    if (step == NULL)
        return e->code;
    if (pointer.n > 1)
        memcpy(step, pointer.p + 1, pointer.n - 1);
    return schema_place(s, j, from, step, base, out, e);
}

/* *out: a place; 0 for true and UINT32_MAX for false. */
enum err schema_ref(struct schema *s, uint32_t place, struct str ref, uint32_t *out, struct error *e)
{
    size_t hash = 0;
    while (hash < ref.n && ref.p[hash] != '#')
        hash++;
    const char *uri = "";
    char shown[120];
    TRY(uri_join(s, s->resource[s->place[place].base].uri, (struct str){ref.p, hash}, &uri, e));
    uint32_t resource = s->n_resources;
    for (uint32_t i = 0; i < s->n_resources && resource == s->n_resources; i++)
        if (strcmp(s->resource[i].uri, uri) == 0)
            resource = i;
    if (hash == 0)
        resource = s->place[place].base;
    if (resource == s->n_resources)
        return schema_refuse(s, place, "$ref", "it names another document, and only this one is read", e);
    struct str fragment = {"", 0};
    if (hash < ref.n)
        TRY(percent_decode(s, (struct str){ref.p + hash + 1, ref.n - hash - 1}, &fragment, e));
    if (fragment.n == 0 || fragment.p[0] == '/')
        return pointer_follow(s, s->resource[resource].place, fragment, out, e);
    TRY(schema_step(s, s->n_anchors / 4, e));
    for (uint32_t i = 0; i < s->n_anchors; i++) {
        if (s->anchor[i].resource == resource && str_is(fragment, s->anchor[i].name)) {
            *out = s->anchor[i].place;
            return OK;
        }
    }
    return FAIL(e, ERR_INVALID, "the schema has no anchor '%s'", str_show(fragment, shown, sizeof shown));
}

/* ---- finding resources and anchors ---- */

static enum err anchor_add(struct schema *s, uint32_t place, const char *name, struct error *e)
{
    TRY(schema_grow(s, (void **)&s->anchor, s->n_anchors, &s->cap_anchors, sizeof s->anchor[0], e));
    s->anchor[s->n_anchors++] = (struct anchor){s->place[place].base, place, name};
    return OK;
}

static enum err place_identify(struct schema *s, uint32_t at, struct error *e)
{
    const json_t *j = s->place[at].j;
    const json_t *id = json_object_get(j, "$id");
    if (s->dialect == DIALECT_07 && json_object_get(j, "$ref") != NULL)
        return OK; /* siblings of $ref are refused there, if the place is used */
    if (json_is_string(id)) {
        const struct str text = {json_string_value(id), json_string_length(id)};
        size_t n = 0;
        while (n < text.n && text.p[n] != '#')
            n++;
        if (n > 0) {
            const char *uri = "";
            TRY(uri_join(s, s->resource[s->place[at].base].uri, (struct str){text.p, n}, &uri, e));
            for (uint32_t i = 0; i < s->n_resources; i++)
                if (at != 1 && strcmp(s->resource[i].uri, uri) == 0)
                    return FAIL(e, ERR_INVALID, "two parts of the schema have the same $id");
            if (at == 1)
                s->resource[0].uri = uri;
            else {
                TRY(schema_grow(s, (void **)&s->resource, s->n_resources, &s->cap_resources, sizeof s->resource[0], e));
                s->place[at].base = s->n_resources;
                s->resource[s->n_resources++] = (struct resource){uri, at};
            }
            TRY(schema_step(s, s->n_resources, e)); /* they are compared one by one */
        }
        if (n + 1 < text.n && s->dialect == DIALECT_07)
            TRY(anchor_add(s, at, text.p + n + 1, e));
    }
    const char *const names[] = {"$anchor", "$dynamicAnchor"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const json_t *a = json_object_get(j, names[i]);
        if (json_is_string(a))
            TRY(anchor_add(s, at, json_string_value(a), e));
    }
    return OK;
}

static enum err take_note(struct schema *s, uint32_t child, void *with, struct error *e)
{
    return (void)s, (void)child, (void)with, (void)e, OK;
}

static enum err read_dialect(struct schema *s, struct error *e)
{
    const json_t *j = json_object_get(s->doc, "$schema");
    s->dialect = DIALECT_2020;
    if (j == NULL) {
        return OK;
    }
    if (!json_is_string(j))
        return FAIL(e, ERR_INVALID, "schema keyword '$schema' must be a string");
    static const struct {
        const char *uri;
        enum dialect dialect;
    } known[] = {
        {"https://json-schema.org/draft/2020-12/schema", DIALECT_2020},
        {"https://json-schema.org/draft/2019-09/schema", DIALECT_2019},
        {"http://json-schema.org/draft-07/schema", DIALECT_07},
        {"https://json-schema.org/draft-07/schema", DIALECT_07},
        {"http://json-schema.org/draft-06/schema", DIALECT_07},
        {"http://json-schema.org/schema", DIALECT_2020},
        {"https://json-schema.org/schema", DIALECT_2020},
    };
    struct str uri = {json_string_value(j), json_string_length(j)};
    if (uri.n > 0 && uri.p[uri.n - 1] == '#')
        uri.n--;
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (str_is(uri, known[i].uri)) {
            s->dialect = known[i].dialect;
            return OK;
        }
    }
    char shown[120];
    return FAIL(e, ERR_UNSUPPORTED, "schema keyword '$schema' at #/$schema: the dialect '%s' is not known",
        str_show(uri, shown, sizeof shown));
}

enum err schema_doc_open(struct schema *s, struct error *e)
{
    uint32_t root = 0;
    TRY(schema_grow(s, (void **)&s->place, 0, &s->cap_places, sizeof s->place[0], e));
    TRY(schema_grow(s, (void **)&s->resource, 0, &s->cap_resources, sizeof s->resource[0], e));
    s->place[0] = (struct place){.j = json_true(), .is_checked = true, .colour = 2};
    s->n_places = 1;
    s->resource[0] = (struct resource){"", 1};
    s->n_resources = 1;
    if (json_is_boolean(s->doc))
        return OK;
    if (!json_is_object(s->doc))
        return FAIL(e, ERR_INVALID, "a schema must be an object, true or false");
    TRY(read_dialect(s, e));
    TRY(schema_place(s, s->doc, 1, NULL, 0, &root, e));
    for (uint32_t i = 1; i < s->n_places; i++) { /* children append themselves */
        if (!json_is_object(s->place[i].j))
            continue; /* the check says so, if it is used */
        TRY(place_identify(s, i, e));
        TRY(schema_each_child(s, i, CHILDREN_ALL, take_note, NULL, e));
    }
    return OK;
}
