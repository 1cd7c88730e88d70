/* Every keyword that a used schema contains is looked up in one table, before anything is made of it: an unknown or
 * unsupported one is refused with its path, and a value of the wrong kind is an error of the user's. So the steps
 * behind this one read keywords without asking again, and nothing is ever passed over silently.
 *
 * The same table says where subschemas are, which is how places are found and loops of references detected: a schema
 * that applies to the same value as itself would never be done with. */
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum arg {
    ARG_ANY,
    ARG_BOOL,
    ARG_COUNT,
    ARG_NUMBER,
    ARG_POSITIVE,
    ARG_STRING,
    ARG_NAMES, /* an array of strings */
    ARG_SCHEMA,
    ARG_SCHEMAS,   /* a non-empty array of schemas */
    ARG_MAP,       /* an object of schemas */
    ARG_ITEMS,     /* a schema or an array of schemas */
    ARG_NAMES_MAP, /* an object of arrays of strings */
    ARG_MIXED_MAP, /* an object of either */
    ARG_TYPE,
    ARG_LIST, /* an array of anything */
    ARG_REFUSED
};

enum { IN_2020 = 1, IN_2019 = 2, IN_07 = 4, IN_ALL = 7, SAME_VALUE = 8, DEFINITION = 16, BESIDE_REF = 32 };

struct keyword {
    const char *name;
    enum arg arg;
    unsigned flags;
};

static const struct keyword keywords[] = {
    /* annotations */
    {"title", ARG_ANY, IN_ALL | BESIDE_REF},
    {"description", ARG_ANY, IN_ALL | BESIDE_REF},
    {"default", ARG_ANY, IN_ALL | BESIDE_REF},
    {"examples", ARG_ANY, IN_ALL | BESIDE_REF},
    {"example", ARG_ANY, IN_ALL | BESIDE_REF},
    {"$comment", ARG_ANY, IN_ALL | BESIDE_REF},
    {"deprecated", ARG_ANY, IN_ALL | BESIDE_REF},
    {"readOnly", ARG_ANY, IN_ALL | BESIDE_REF},
    {"writeOnly", ARG_ANY, IN_ALL | BESIDE_REF},
    {"discriminator", ARG_ANY, IN_ALL | BESIDE_REF}, /* of OpenAPI: which branch, not whether one */
    {"externalDocs", ARG_ANY, IN_ALL | BESIDE_REF},
    {"contentEncoding", ARG_STRING, IN_ALL},
    {"contentMediaType", ARG_STRING, IN_ALL},
    {"contentSchema", ARG_ANY, IN_ALL},
    /* identity */
    {"$schema", ARG_STRING, IN_ALL | BESIDE_REF},
    {"$id", ARG_STRING, IN_ALL},
    {"$anchor", ARG_STRING, IN_2020 | IN_2019},
    {"$dynamicAnchor", ARG_STRING, IN_2020},
    {"$ref", ARG_STRING, IN_ALL | BESIDE_REF},
    {"$defs", ARG_MAP, IN_ALL | DEFINITION | BESIDE_REF},
    {"definitions", ARG_MAP, IN_ALL | DEFINITION | BESIDE_REF},
    /* assertions */
    {"type", ARG_TYPE, IN_ALL},
    {"nullable", ARG_BOOL, IN_ALL},
    {"enum", ARG_LIST, IN_ALL},
    {"const", ARG_ANY, IN_ALL},
    {"minimum", ARG_NUMBER, IN_ALL},
    {"maximum", ARG_NUMBER, IN_ALL},
    {"exclusiveMinimum", ARG_NUMBER, IN_ALL},
    {"exclusiveMaximum", ARG_NUMBER, IN_ALL},
    {"multipleOf", ARG_POSITIVE, IN_ALL},
    {"minLength", ARG_COUNT, IN_ALL},
    {"maxLength", ARG_COUNT, IN_ALL},
    {"pattern", ARG_STRING, IN_ALL},
    {"format", ARG_STRING, IN_ALL},
    {"minItems", ARG_COUNT, IN_ALL},
    {"maxItems", ARG_COUNT, IN_ALL},
    {"uniqueItems", ARG_BOOL, IN_ALL},
    {"minContains", ARG_COUNT, IN_2020 | IN_2019},
    {"maxContains", ARG_COUNT, IN_2020 | IN_2019},
    {"minProperties", ARG_COUNT, IN_ALL},
    {"maxProperties", ARG_COUNT, IN_ALL},
    {"required", ARG_NAMES, IN_ALL},
    {"dependentRequired", ARG_NAMES_MAP, IN_2020 | IN_2019},
    /* applicators */
    {"properties", ARG_MAP, IN_ALL},
    {"patternProperties", ARG_MAP, IN_ALL},
    {"additionalProperties", ARG_SCHEMA, IN_ALL},
    {"propertyNames", ARG_SCHEMA, IN_ALL},
    {"items", ARG_ITEMS, IN_ALL},
    {"prefixItems", ARG_SCHEMAS, IN_2020},
    {"additionalItems", ARG_SCHEMA, IN_ALL},
    {"contains", ARG_SCHEMA, IN_ALL},
    {"unevaluatedProperties", ARG_SCHEMA, IN_2020 | IN_2019},
    {"unevaluatedItems", ARG_SCHEMA, IN_2020 | IN_2019},
    {"allOf", ARG_SCHEMAS, IN_ALL | SAME_VALUE},
    {"anyOf", ARG_SCHEMAS, IN_ALL | SAME_VALUE},
    {"oneOf", ARG_SCHEMAS, IN_ALL | SAME_VALUE},
    {"not", ARG_SCHEMA, IN_ALL | SAME_VALUE},
    {"if", ARG_SCHEMA, IN_ALL | SAME_VALUE},
    {"then", ARG_SCHEMA, IN_ALL | SAME_VALUE},
    {"else", ARG_SCHEMA, IN_ALL | SAME_VALUE},
    {"dependentSchemas", ARG_MAP, IN_2020 | IN_2019 | SAME_VALUE},
    {"dependencies", ARG_MIXED_MAP, IN_ALL | SAME_VALUE},
    /* what would be an assertion, and is not supported */
    {"$dynamicRef", ARG_REFUSED, IN_ALL},
    {"$recursiveRef", ARG_REFUSED, IN_ALL},
    {"$recursiveAnchor", ARG_REFUSED, IN_ALL},
    {"$vocabulary", ARG_REFUSED, IN_ALL},
};

static const struct keyword *keyword_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(keywords); i++)
        if (strcmp(keywords[i].name, name) == 0)
            return &keywords[i];
    return NULL;
}

/* ---- subschemas ---- */

/* "keyword/name" with the name's '~' and '/' escaped. */
static const char *step_of(struct schema *s, const char *keyword, const char *name, struct error *e)
{
    const size_t n = strlen(keyword), m = strlen(name);
    char *step = schema_take(s, n + 2 * m + 2, 1, e);
    if (step == NULL)
        return NULL;
    size_t at = 0;
    while (at < n) {
        step[at] = keyword[at];
        at++;
    }
    step[at++] = '/';
    for (size_t i = 0; i < m; i++) {
        if (name[i] == '~' || name[i] == '/') {
            step[at++] = '~';
            step[at++] = name[i] == '~' ? '0' : '1';
        } else
            step[at++] = name[i];
    }
    return step;
}

static enum err visit_one(struct schema *s, const json_t *sub, uint32_t place, const char *keyword, const char *name,
    schema_visit *visit, void *with, struct error *e)
{
    if (!json_is_object(sub))
        return OK;
    TRY(schema_step(s, 1, e));
    const char *step = name != NULL ? step_of(s, keyword, name, e) : keyword;
    uint32_t child;
    if (step == NULL)
        return e->code;
    TRY(schema_place(s, sub, place, step, s->place[place].base, &child, e));
    return visit(s, child, with, e);
}

enum err schema_each_child(
    struct schema *s, uint32_t place, enum children which, schema_visit *visit, void *with, struct error *e)
{
    const char *key;
    json_t *value, *sub;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)s->place[place].j, key, value)
    {
        const struct keyword *k = keyword_find(key);
        if (k == NULL || (which == CHILDREN_USED && (k->flags & DEFINITION) != 0) ||
            (which == CHILDREN_IN_PLACE && (k->flags & SAME_VALUE) == 0))
            continue;
        if (k->arg == ARG_SCHEMA || (k->arg == ARG_ITEMS && json_is_object(value)))
            TRY(visit_one(s, value, place, key, NULL, visit, with, e));
        else if ((k->arg == ARG_SCHEMAS || k->arg == ARG_ITEMS) && json_is_array(value)) {
            json_array_foreach(value, i, sub)
            {
                char index[24];
                snprintf(index, sizeof index, "%zu", i);
                TRY(visit_one(s, sub, place, key, index, visit, with, e));
            }
        } else if ((k->arg == ARG_MAP || k->arg == ARG_MIXED_MAP) && json_is_object(value)) {
            const char *name;
            json_object_foreach(value, name, sub) TRY(visit_one(s, sub, place, key, name, visit, with, e));
        }
    }
    return OK;
}

/* ---- values of keywords ---- */

static bool is_whole(const json_t *j)
{
    if (json_is_integer(j))
        return json_integer_value(j) >= 0;
    const double d = json_is_real(j) ? json_real_value(j) : -1;
    return d >= 0 && d < 9007199254740992.0 && d == floor(d);
}

static bool is_schema(const json_t *j)
{
    return json_is_object(j) || json_is_boolean(j);
}

static bool are_names(const json_t *j)
{
    const json_t *item;
    size_t i;
    bool ok = json_is_array(j);
    json_array_foreach(j, i, item) ok = ok && json_is_string(item);
    return ok;
}

static bool are_schemas(const json_t *j)
{
    const json_t *item;
    size_t i;
    bool ok = json_is_array(j) && json_array_size(j) > 0;
    json_array_foreach(j, i, item) ok = ok && is_schema(item);
    return ok;
}

static bool is_type_name(const json_t *j)
{
    static const char *const names[] = {"null", "boolean", "number", "integer", "string", "array", "object"};
    for (size_t i = 0; json_is_string(j) && i < COUNT_OF(names); i++)
        if (strcmp(json_string_value(j), names[i]) == 0)
            return true;
    return false;
}

static bool is_type(const json_t *j)
{
    const json_t *item;
    size_t i;
    bool ok = json_is_array(j) && json_array_size(j) > 0;
    json_array_foreach(j, i, item) ok = ok && is_type_name(item);
    return ok || is_type_name(j);
}

static bool is_map(const json_t *j, bool may_schema, bool may_names)
{
    const char *key;
    json_t *value;
    if (!json_is_object(j))
        return false;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if (!(may_schema && is_schema(value)) && !(may_names && are_names(value)))
            return false;
    }
    return true;
}

/* NULL when the value is of the kind, else what it must be. */
static const char *arg_fault(enum arg arg, const json_t *v)
{
    switch (arg) {
    case ARG_ANY:
    case ARG_REFUSED: return NULL;
    case ARG_BOOL: return json_is_boolean(v) ? NULL : "true or false";
    case ARG_COUNT: return is_whole(v) ? NULL : "a whole number of at least 0";
    case ARG_NUMBER: return json_is_number(v) ? NULL : "a number";
    case ARG_POSITIVE: return json_is_number(v) && json_number_value(v) > 0 ? NULL : "a number greater than 0";
    case ARG_STRING: return json_is_string(v) ? NULL : "a string";
    case ARG_NAMES: return are_names(v) ? NULL : "an array of strings";
    case ARG_SCHEMA: return is_schema(v) ? NULL : "a schema";
    case ARG_SCHEMAS: return are_schemas(v) ? NULL : "a non-empty array of schemas";
    case ARG_MAP: return is_map(v, true, false) ? NULL : "an object of schemas";
    case ARG_ITEMS:
        return is_schema(v) || are_schemas(v) || (json_is_array(v) && json_array_size(v) == 0) ? NULL
                                                                                               : "a schema or an array "
                                                                                                 "of schemas";
    case ARG_NAMES_MAP: return is_map(v, false, true) ? NULL : "an object of arrays of strings";
    case ARG_MIXED_MAP: return is_map(v, true, true) ? NULL : "an object of schemas and arrays of strings";
    case ARG_TYPE:
        return is_type(v) ? NULL
                          : "the name of a type (null, boolean, number, integer, string, array, object), or some";
    case ARG_LIST: return json_is_array(v) ? NULL : "an array";
    }
    return "known";
}

/* What depends on more than the keyword's own value. */
static enum err check_company(struct schema *s, uint32_t at, const struct keyword *k, const json_t *v, struct error *e)
{
    const json_t *j = s->place[at].j;
    const unsigned dialect = s->dialect == DIALECT_2020 ? IN_2020 : s->dialect == DIALECT_2019 ? IN_2019 : IN_07;
    if (k->arg == ARG_REFUSED)
        return schema_refuse(s, at, k->name, "it is not supported", e);
    if ((k->flags & dialect) == 0)
        return schema_refuse(s, at, k->name, "the schema's dialect does not have it", e);
    if (s->dialect == DIALECT_07 && json_object_get(j, "$ref") != NULL && (k->flags & BESIDE_REF) == 0)
        return schema_refuse(s, at, k->name, "beside $ref, draft-07 has no meaning for it", e);
    if (strcmp(k->name, "$schema") == 0 && at != 1 && json_object_get(s->doc, "$schema") != NULL &&
        !json_equal(v, json_object_get(s->doc, "$schema")))
        return schema_refuse(s, at, k->name, "a part in another dialect is not supported", e);
    if (strcmp(k->name, "nullable") == 0 && json_is_true(v) && json_object_get(j, "type") == NULL)
        return schema_refuse(s, at, k->name, "it needs a type beside it", e);
    const bool is_array_form = json_is_array(json_object_get(j, "items"));
    if (strcmp(k->name, "items") == 0 && is_array_form && json_object_get(j, "prefixItems") != NULL)
        return schema_refuse(s, at, k->name, "beside prefixItems it must be a schema", e);
    if (strcmp(k->name, "items") == 0 && is_array_form && s->dialect == DIALECT_2020 &&
        json_object_get(s->doc, "$schema") != NULL)
        return schema_refuse(s, at, k->name, "an array of schemas is called prefixItems in 2020-12", e);
    if (strcmp(k->name, "additionalItems") == 0 && !is_array_form && s->dialect == DIALECT_2020)
        return schema_refuse(s, at, k->name, "it has a meaning only beside an array of items", e);
    return OK;
}

/* ---- the walk over what is used ---- */

struct queue {
    uint32_t *place;
    uint32_t n, cap;
};

static enum err enqueue(struct schema *s, uint32_t child, void *with, struct error *e)
{
    struct queue *q = with;
    if (child == UINT32_MAX || s->place[child].is_checked)
        return OK;
    s->place[child].is_checked = true;
    TRY(schema_grow(s, (void **)&q->place, q->n, &q->cap, sizeof q->place[0], e));
    q->place[q->n++] = child;
    return OK;
}

static enum err check_one(struct schema *s, uint32_t at, struct queue *q, struct error *e)
{
    const char *key;
    json_t *value;
    char path[SCHEMA_PATH_MAX];
    const json_t *j = s->place[at].j;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        const struct keyword *k = keyword_find(key);
        TRY(schema_step(s, 1, e));
        if (k == NULL && strncmp(key, "x-", 2) == 0)
            continue; /* an annotation, by the convention of OpenAPI and of the next JSON schema */
        if (k == NULL) {
            char shown[80];
            str_show(str_of(key), shown, sizeof shown);
            return FAIL(e, ERR_UNSUPPORTED, "schema keyword '%s' at %s: it is not known", shown,
                schema_path(s, at, shown, path));
        }
        const char *fault = arg_fault(k->arg, value);
        if (fault != NULL && strncmp(key, "exclusive", 9) == 0 && json_is_boolean(value))
            return schema_refuse(s, at, key, "the boolean form of draft-04 is not supported", e);
        if (fault != NULL)
            return FAIL(
                e, ERR_INVALID, "schema keyword '%s' at %s must be %s", key, schema_path(s, at, key, path), fault);
        TRY(check_company(s, at, k, value, e));
    }
    TRY(schema_each_child(s, at, CHILDREN_USED, enqueue, q, e));
    const json_t *ref = json_object_get(j, "$ref");
    if (ref == NULL)
        return OK;
    uint32_t target;
    const struct str text = {json_string_value(ref), json_string_length(ref)};
    const enum err err = schema_ref(s, at, text, &target, e);
    if (err == ERR_INVALID)
        error_prefix(e, "schema keyword '$ref' at %s", schema_path(s, at, "$ref", path));
    if (err != OK)
        return err;
    s->place[at].ref = target;
    return enqueue(s, target, q, e);
}

struct search {
    uint32_t depth;
};

static enum err find_loop(struct schema *s, uint32_t at, void *with, struct error *e)
{
    struct search *search = with;
    char path[SCHEMA_PATH_MAX];
    if (at == UINT32_MAX || s->place[at].colour == 2)
        return OK;
    if (s->place[at].colour == 1)
        return FAIL(e, ERR_INVALID, "the schema at %s refers to itself for the same value, which has no meaning",
            schema_path(s, at, NULL, path));
    if (++search->depth > SCHEMA_REF_DEPTH_MAX)
        return FAIL(e, ERR_LIMIT, "the schema at %s: more than %d references or combinations within each other",
            schema_path(s, at, NULL, path), SCHEMA_REF_DEPTH_MAX);
    s->place[at].colour = 1;
    TRY(schema_each_child(s, at, CHILDREN_IN_PLACE, find_loop, with, e));
    if (json_object_get(s->place[at].j, "$ref") != NULL)
        TRY(find_loop(s, s->place[at].ref, with, e));
    s->place[at].colour = 2;
    search->depth--;
    return OK;
}

enum err schema_check(struct schema *s, uint32_t place, struct error *e)
{
    struct queue q = {0};
    TRY(enqueue(s, place, &q, e));
    for (uint32_t i = 0; i < q.n; i++)
        TRY(check_one(s, q.place[i], &q, e));
    for (uint32_t i = 0; i < q.n; i++) {
        struct search search = {0};
        TRY(find_loop(s, q.place[i], &search, e));
    }
    return OK;
}
