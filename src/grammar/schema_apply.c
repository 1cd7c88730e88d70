/* What it means that a value satisfies a schema: one small function per keyword, each of which narrows the way's shape,
 * puts further conditions on its list, or forks it. Keywords have been checked (schema_check.c), so their values are of
 * the right kinds. */
#include "base/limits.h"
#include "grammar/schema_way.h"

#include <math.h>
#include <string.h>

struct at {
    struct schema *s;
    struct way *w;
    uint32_t place;
    const json_t *j; /* the schema */
    const char *key; /* the keyword under way */
    struct error *e;
};

static enum err narrow(const struct at *a, struct effect x)
{
    x.place = a->place;
    return way_apply(a->s, a->w, &x, a->e);
}

static enum err lit_of(const struct at *a, const json_t *sub, lit_id *out)
{
    return schema_lit(a->s, sub, a->place, a->key, out, a->e);
}

uint32_t schema_count(const json_t *j)
{
    const double d = json_number_value(j);
    return d < (double)(NO_MAX - 2) ? (uint32_t)d : NO_MAX - 2;
}

/* ---- types and values ---- */

uint8_t schema_types(const json_t *type, bool is_nullable, enum int_kind *ints)
{
    static const struct {
        const char *name;
        uint8_t bits;
    } names[] = {{"null", T_NULL}, {"boolean", T_FALSE | T_TRUE}, {"number", T_NUMBER}, {"string", T_STRING},
        {"array", T_ARRAY}, {"object", T_OBJECT}};
    uint8_t bits = is_nullable ? T_NULL : 0;
    bool has_integer = false;
    const size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        has_integer = has_integer || strcmp(name, "integer") == 0;
        for (size_t k = 0; k < COUNT_OF(names); k++)
            bits |= strcmp(names[k].name, name) == 0 ? names[k].bits : 0;
    }
    *ints = has_integer && (bits & T_NUMBER) == 0 ? INT_ONLY : INT_ANY;
    return has_integer ? bits | T_NUMBER : bits;
}

static enum err apply_type(const struct at *a, const json_t *v)
{
    enum int_kind ints;
    const uint8_t bits = schema_types(v, json_is_true(json_object_get(a->j, "nullable")), &ints);
    TRY(narrow(a, (struct effect){.kind = EFFECT_TYPES, .a = bits}));
    return ints == INT_ONLY ? narrow(a, (struct effect){.kind = EFFECT_INTS, .a = INT_ONLY}) : OK;
}

static enum err apply_const(const struct at *a, const json_t *v)
{
    lit_id lit;
    TRY(schema_value_lit(a->s, v, a->place, &lit, a->e));
    return way_lit(a->s, a->w, lit, a->e);
}

/* Scalars together, since they are sets; every array and object is a choice of its own. */
static enum err apply_enum(const struct at *a, const json_t *list)
{
    struct effect types = {.kind = EFFECT_TYPES}, nums = {.kind = EFFECT_NUM_SET}, strs = {.kind = EFFECT_STR_SET};
    const struct choice *choices = NULL;
    for (size_t i = json_array_size(list); i > 0; i--) {
        const json_t *v = json_array_get(list, i - 1);
        TRY(schema_step(a->s, 1, a->e));
        if (json_is_string(v)) {
            struct str_list *x = schema_take(a->s, 1, sizeof *x, a->e);
            if (x == NULL)
                return a->e->code;
            *x = (struct str_list){{json_string_value(v), json_string_length(v)}, strs.strs};
            strs.strs = x;
            types.a |= T_STRING;
        } else if (json_is_number(v)) {
            struct dec_list *x = schema_take(a->s, 1, sizeof *x, a->e);
            if (x == NULL)
                return a->e->code;
            x->next = nums.decs;
            if (dec_from_json(v, &x->v))
                nums.decs = x;
            types.a |= T_NUMBER;
        } else if (json_is_array(v) || json_is_object(v)) {
            const struct effect *effects = NULL;
            lit_id lit;
            TRY(schema_value_lit(a->s, v, a->place, &lit, a->e));
            TRY(effect_add(a->s, &effects, (struct effect){.kind = EFFECT_LIT, .lit = lit}, a->e));
            TRY(choice_add(a->s, &choices, effects, a->e));
        } else
            types.a |= json_is_null(v) ? T_NULL : json_is_true(v) ? T_TRUE : T_FALSE;
    }
    if (types.a != 0) {
        const struct effect *effects = NULL;
        if ((types.a & T_NUMBER) != 0)
            TRY(effect_add(a->s, &effects, nums, a->e));
        if ((types.a & T_STRING) != 0)
            TRY(effect_add(a->s, &effects, strs, a->e));
        TRY(effect_add(a->s, &effects, types, a->e));
        TRY(choice_add(a->s, &choices, effects, a->e));
    }
    return way_fork(a->s, a->w, choices, a->e);
}

enum err schema_apply_value(struct schema *s, struct way *w, uint32_t place, struct error *e)
{
    const json_t *v = s->place[place].j;
    const struct at a = {s, w, place, v, "const", e};
    struct str_list str = {.next = NULL};
    struct dec_list dec = {.next = NULL};
    const lit_id lit = place << 2 | LIT_EQUALS;
    switch (json_typeof(v)) {
    case JSON_NULL: return narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_NULL});
    case JSON_TRUE: return narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_TRUE});
    case JSON_FALSE: return narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_FALSE});
    case JSON_STRING:
        str.s = (struct str){json_string_value(v), json_string_length(v)};
        TRY(narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_STRING}));
        return narrow(&a, (struct effect){.kind = EFFECT_STR_SET, .strs = &str});
    case JSON_INTEGER:
    case JSON_REAL:
        if (!dec_from_json(v, &dec.v))
            return FAIL(e, ERR_INVALID, "a number of the schema is not finite");
        TRY(narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_NUMBER}));
        return narrow(&a, (struct effect){.kind = EFFECT_NUM_SET, .decs = &dec});
    case JSON_ARRAY: {
        const uint32_t n = (uint32_t)MIN(json_array_size(v), NO_MAX - 2);
        TRY(narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_ARRAY}));
        TRY(narrow(&a, (struct effect){.kind = EFFECT_ITEMS, .a = n, .b = n}));
        return narrow(&a, (struct effect){.kind = EFFECT_ARRAY, .lit = lit, .a = INDEX_RULE});
    }
    case JSON_OBJECT:
        TRY(narrow(&a, (struct effect){.kind = EFFECT_TYPES, .a = T_OBJECT}));
        return narrow(&a, (struct effect){.kind = EFFECT_OBJECT, .lit = lit});
    }
    return OK;
}

/* ---- numbers ---- */

static enum err apply_bound(const struct at *a, const json_t *v)
{
    struct effect x = {
        .kind = strstr(a->key, "inimum") != NULL ? EFFECT_LO : EFFECT_HI, .flag = strncmp(a->key, "exclusive", 9) == 0};
    if (!dec_from_json(v, &x.dec))
        return FAIL(a->e, ERR_INVALID, "schema keyword '%s' is not a finite number", a->key);
    return narrow(a, x);
}

static enum err apply_multiple(const struct at *a, const json_t *v)
{
    struct effect x = {.kind = EFFECT_MULTIPLE};
    char path[SCHEMA_PATH_MAX];
    if (!dec_from_json(v, &x.dec) || !dec_is_countable(&x.dec))
        return FAIL(a->e, ERR_LIMIT, "schema keyword 'multipleOf' at %s: more than %d without its decimal point",
            schema_path(a->s, a->place, "multipleOf", path), SCHEMA_MULTIPLE_MAX);
    const char *type = json_string_value(json_object_get(a->j, "type"));
    if (type != NULL && strcmp(type, "integer") == 0 && !dec_is_integer(&x.dec))
        return FAIL(a->e, ERR_UNSUPPORTED, "schema keyword 'multipleOf' at %s: of integers it must be an integer",
            schema_path(a->s, a->place, "multipleOf", path));
    return narrow(a, x);
}

/* ---- strings ---- */

static enum err apply_length(const struct at *a, const json_t *v)
{
    const bool is_min = a->key[1] == 'i';
    return narrow(
        a, (struct effect){
               .kind = EFFECT_LENGTH, .a = is_min ? schema_count(v) : 0, .b = is_min ? NO_MAX : schema_count(v)});
}

enum err schema_pattern(struct schema *s, uint32_t place, const char *keyword, const char *text, size_t n,
    const struct lang **out, struct error *e)
{
    char path[SCHEMA_PATH_MAX];
    for (const struct pattern_cached *c = s->pattern_cache; c != NULL; c = c->next) {
        if (c->text == text) {
            *out = c->lang;
            return OK;
        }
    }
    *out = lang_regex(s->b, (struct str){text, n}, false, e);
    if (*out == NULL)
        return error_prefix(e, "schema keyword '%s' at %s", keyword, schema_path(s, place, keyword, path));
    struct pattern_cached *c = schema_take(s, 1, sizeof *c, e);
    if (c == NULL)
        return e->code;
    *c = (struct pattern_cached){text, *out, s->pattern_cache};
    s->pattern_cache = c;
    return OK;
}

static enum err apply_pattern(const struct at *a, const json_t *v)
{
    struct effect x = {.kind = EFFECT_LANG};
    if ((a->w->shape.types & T_STRING) == 0 && json_string_length(v) == 0)
        return OK;
    TRY(schema_pattern(a->s, a->place, a->key, json_string_value(v), json_string_length(v), &x.lang, a->e));
    return narrow(a, x);
}

enum err schema_format(struct schema *s, uint32_t place, const json_t *name, const struct lang **out, struct error *e)
{
    char path[SCHEMA_PATH_MAX], shown[60];
    const struct str text = {json_string_value(name), json_string_length(name)};
    TRY(schema_format_lang(s, text, out, e));
    if (*out == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "schema keyword 'format' at %s: the format '%s' is not supported",
            schema_path(s, place, "format", path), str_show(text, shown, sizeof shown));
    return OK;
}

/* OpenAPI's formats of numbers: a range, or nothing that a number here does not satisfy anyway. */
static bool number_format(const char *name, struct effect range[2], bool *has_range)
{
    const bool is_32 = strcmp(name, "int32") == 0;
    *has_range = is_32 || strcmp(name, "int64") == 0;
    range[0] = (struct effect){.kind = EFFECT_LO, .dec = dec_from_int(is_32 ? INT32_MIN : INT64_MIN)};
    range[1] = (struct effect){.kind = EFFECT_HI, .dec = dec_from_int(is_32 ? INT32_MAX : INT64_MAX)};
    return *has_range || strcmp(name, "float") == 0 || strcmp(name, "double") == 0;
}

static enum err apply_format(const struct at *a, const json_t *v)
{
    struct effect x = {.kind = EFFECT_LANG}, range[2];
    bool has_range;
    if (number_format(json_string_value(v), range, &has_range)) {
        if (!has_range)
            return OK;
        TRY(narrow(a, range[0]));
        return narrow(a, range[1]);
    }
    TRY(schema_format(a->s, a->place, v, &x.lang, a->e));
    return narrow(a, x);
}

/* ---- arrays ---- */

static enum err apply_items(const struct at *a, const json_t *v)
{
    (void)v; /* items, prefixItems and additionalItems are one rule, made once */
    const bool is_first = strcmp(a->key, "prefixItems") == 0 || json_object_get(a->j, "prefixItems") == NULL;
    if (!is_first || strcmp(a->key, "additionalItems") == 0)
        return OK;
    return narrow(a, (struct effect){.kind = EFFECT_ARRAY, .lit = a->place << 2 | LIT_IS, .a = INDEX_RULE});
}

static enum err apply_item_count(const struct at *a, const json_t *v)
{
    const bool is_min = a->key[1] == 'i';
    return narrow(
        a, (struct effect){
               .kind = EFFECT_ITEMS, .a = is_min ? schema_count(v) : 0, .b = is_min ? NO_MAX : schema_count(v)});
}

static enum err apply_unique(const struct at *a, const json_t *v)
{
    const json_t *max = json_object_get(a->j, "maxItems");
    if (json_is_false(v) || (max != NULL && schema_count(max) <= 1))
        return OK;
    return schema_refuse(a->s, a->place, a->key, "a grammar cannot remember which items came before", a->e);
}

static enum err apply_contains(const struct at *a, const json_t *v)
{
    const json_t *min = json_object_get(a->j, "minContains"), *max = json_object_get(a->j, "maxContains");
    struct effect x = {.kind = EFFECT_CONTAINS,
        .a = min != NULL ? schema_count(min) : 1,
        .b = max != NULL ? schema_count(max) : NO_MAX};
    if (x.a == 0 && x.b == NO_MAX && a->w->scope == NULL)
        return OK; /* it asserts nothing; inside a scope it evaluates items */
    if (x.a > x.b)
        return narrow(a, (struct effect){.kind = EFFECT_TYPES, .a = T_ALL & ~T_ARRAY});
    TRY(lit_of(a, v, &x.lit));
    return narrow(a, x);
}

/* ---- objects ---- */

static enum err apply_properties(const struct at *a, const json_t *v)
{
    (void)v; /* one rule for the three keywords, when the first of them comes */
    const bool has_map = json_object_get(a->j, "properties") != NULL;
    const bool has_patterns = json_object_get(a->j, "patternProperties") != NULL;
    const char *first = has_map ? "properties" : has_patterns ? "patternProperties" : "additionalProperties";
    if (strcmp(a->key, first) != 0)
        return OK;
    return narrow(a, (struct effect){.kind = EFFECT_OBJECT, .lit = a->place << 2 | LIT_IS});
}

static struct effect required(const char *name, size_t n)
{
    return (struct effect){.kind = EFFECT_MEMBER, .name = {name, n}, .lit = LIT_TRUE, .flag = true};
}

static enum err apply_required(const struct at *a, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *name = json_array_get(v, i);
        TRY(narrow(a, required(json_string_value(name), json_string_length(name))));
    }
    return OK;
}

static enum err apply_property_count(const struct at *a, const json_t *v)
{
    const bool is_min = a->key[1] == 'i';
    return narrow(
        a, (struct effect){
               .kind = EFFECT_PROPS, .a = is_min ? schema_count(v) : 0, .b = is_min ? NO_MAX : schema_count(v)});
}

static enum err apply_names(const struct at *a, const json_t *v)
{
    lit_id lit;
    node_id id;
    TRY(lit_of(a, v, &lit));
    if (lit == LIT_TRUE || (a->w->shape.types & T_OBJECT) == 0)
        return OK;
    TRY(schema_node_of(a->s, &lit, 1, &id, a->e));
    if (a->s->node[id].state == NODE_OPEN || a->s->nesting >= SCHEMA_NESTING_MAX)
        return schema_refuse(a->s, a->place, a->key, "names that depend on themselves are not supported", a->e);
    a->s->nesting++;
    TRY(schema_node_open(a->s, id, a->e));
    a->s->nesting--;
    const struct node *n = &a->s->node[id];
    if ((n->types & T_STRING) == 0)
        return narrow(a, (struct effect){.kind = EFFECT_PROPS, .b = 0});
    if (n->is_any_string)
        return OK;
    struct effect x = {.kind = EFFECT_NAMES, .lang = n->str};
    if (n->str_set != NULL) {
        const struct lang *words;
        TRY(schema_words_lang(a->s, a->s->node[id].str_set, &words, a->e));
        x.lang = x.lang == NULL ? words : lang_or(a->s->b, x.lang, words, a->e);
        if (x.lang == NULL)
            return a->e->code;
    }
    return narrow(a, x);
}

/* If the member is there, others are too, or the object satisfies a schema. */
static enum err apply_dependency(const struct at *a, const char *name, const json_t *v)
{
    const struct effect *with = NULL, *without = NULL;
    const struct choice *choices = NULL;
    const struct str member = str_of(name);
    if (json_is_array(v)) {
        for (size_t i = json_array_size(v); i > 0; i--) {
            const json_t *other = json_array_get(v, i - 1);
            TRY(effect_add(a->s, &with, required(json_string_value(other), json_string_length(other)), a->e));
        }
    } else {
        struct effect lit = {.kind = EFFECT_LIT};
        TRY(lit_of(a, v, &lit.lit));
        TRY(effect_add(a->s, &with, lit, a->e));
    }
    TRY(effect_add(a->s, &with, required(member.p, member.n), a->e));
    TRY(effect_add(a->s, &with, (struct effect){.kind = EFFECT_TYPES, .a = T_OBJECT}, a->e));
    const struct effect absent = {.kind = EFFECT_MEMBER, .name = member, .lit = LIT_FALSE};
    TRY(effect_add(a->s, &without, absent, a->e));
    TRY(choice_add(a->s, &choices, without, a->e));
    TRY(choice_add(a->s, &choices, with, a->e));
    return way_fork(a->s, a->w, choices, a->e);
}

static enum err apply_dependencies(const struct at *a, const json_t *v)
{
    const char *name;
    json_t *value;
    if ((a->w->shape.types & T_OBJECT) == 0)
        return OK;
    json_object_foreach((json_t *)(uintptr_t)v, name, value)
    {
        if (!json_is_array(value) || json_array_size(value) > 0)
            TRY(apply_dependency(a, name, value));
    }
    return OK;
}

/* ---- combinations ---- */

static enum err apply_ref(const struct at *a, const json_t *v)
{
    (void)v;
    const uint32_t target = a->s->place[a->place].ref;
    return way_lit(a->s, a->w, target == UINT32_MAX ? LIT_FALSE : target << 2 | LIT_IS, a->e);
}

static enum err apply_all(const struct at *a, const json_t *v)
{
    for (size_t i = json_array_size(v); i > 0; i--) {
        lit_id lit;
        TRY(lit_of(a, json_array_get(v, i - 1), &lit));
        TRY(way_lit(a->s, a->w, lit, a->e));
    }
    return OK;
}

/* The same branch again, which generated schemas have; a few are looked at. */
static bool has_choice(const struct choice *choices, lit_id lit)
{
    for (int i = 0; choices != NULL && i < 16; choices = choices->next, i++)
        if (choices->effects->lit == lit)
            return true;
    return false;
}

/* Where members are evaluated, every branch that matches counts: one choice for each set of branches. */
static enum err apply_any_sets(const struct at *a, const json_t *v)
{
    const size_t n = json_array_size(v);
    const struct choice *choices = NULL;
    if (n > SCHEMA_ANY_SETS_MAX)
        return schema_refuse(
            a->s, a->place, a->key, "so many branches beside unevaluated members are not supported", a->e);
    for (unsigned set = 1; set < 1u << n; set++) {
        const struct effect *effects = NULL;
        for (size_t i = n; i > 0; i--) {
            struct effect x = {.kind = EFFECT_LIT};
            if ((set >> (i - 1) & 1) == 0)
                continue;
            TRY(lit_of(a, json_array_get(v, i - 1), &x.lit));
            TRY(effect_add(a->s, &effects, x, a->e));
        }
        TRY(choice_add(a->s, &choices, effects, a->e));
    }
    return way_fork(a->s, a->w, choices, a->e);
}

static enum err apply_any(const struct at *a, const json_t *v)
{
    if (a->w->scope != NULL)
        return apply_any_sets(a, v);
    const struct choice *choices = NULL;
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct effect x = {.kind = EFFECT_LIT};
        const struct effect *effects = NULL;
        TRY(lit_of(a, json_array_get(v, i), &x.lit));
        if (x.lit == LIT_TRUE)
            return OK;
        if (x.lit == LIT_FALSE || has_choice(choices, x.lit = schema_simplest(a->s, x.lit)))
            continue;
        TRY(effect_add(a->s, &effects, x, a->e));
        TRY(choice_add(a->s, &choices, effects, a->e));
    }
    return way_fork(a->s, a->w, choices, a->e);
}

/* Each branch, and none of those that may match beside it. */
static enum err apply_one(const struct at *a, const json_t *v)
{
    const uint32_t n = (uint32_t)json_array_size(v);
    char path[SCHEMA_PATH_MAX];
    if (n > SCHEMA_ONE_OF_MAX)
        return FAIL(a->e, ERR_LIMIT, "schema keyword 'oneOf' at %s: more than %d branches",
            schema_path(a->s, a->place, "oneOf", path), SCHEMA_ONE_OF_MAX);
    lit_id lit[SCHEMA_ONE_OF_MAX];
    uint64_t overlaps[SCHEMA_ONE_OF_MAX] = {0};
    for (uint32_t i = 0; i < n; i++)
        TRY(lit_of(a, json_array_get(v, i), &lit[i]));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const lit_id pair[2] = {lit[i], lit[j]};
            TRY(schema_step(a->s, 1, a->e));
            if (!schema_is_disjoint(a->s, pair, 2)) {
                overlaps[i] |= (uint64_t)1 << j;
                overlaps[j] |= (uint64_t)1 << i;
            }
        }
    }
    const struct choice *choices = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const struct effect *effects = NULL;
        for (uint32_t j = 0; j < n; j++)
            if ((overlaps[i] >> j & 1) != 0)
                TRY(effect_add(a->s, &effects, (struct effect){.kind = EFFECT_LIT, .lit = lit[j] ^ 1}, a->e));
        if (lit[i] == LIT_FALSE)
            continue;
        TRY(effect_add(a->s, &effects, (struct effect){.kind = EFFECT_LIT, .lit = lit[i]}, a->e));
        TRY(choice_add(a->s, &choices, effects, a->e));
    }
    return way_fork(a->s, a->w, choices, a->e);
}

static enum err apply_not(const struct at *a, const json_t *v)
{
    lit_id lit;
    TRY(lit_of(a, v, &lit));
    return way_lit(a->s, a->w, lit ^ 1, a->e);
}

static enum err apply_if(const struct at *a, const json_t *v)
{
    const json_t *then = json_object_get(a->j, "then"), *otherwise = json_object_get(a->j, "else");
    struct effect x = {.kind = EFFECT_LIT}, y = {.kind = EFFECT_LIT, .lit = LIT_TRUE}, z = y;
    const struct effect *first = NULL, *second = NULL;
    const struct choice *choices = NULL;
    if (then == NULL && otherwise == NULL && a->w->scope == NULL)
        return OK;
    TRY(lit_of(a, v, &x.lit));
    if (then != NULL)
        TRY(schema_lit(a->s, then, a->place, "then", &y.lit, a->e));
    if (otherwise != NULL)
        TRY(schema_lit(a->s, otherwise, a->place, "else", &z.lit, a->e));
    TRY(effect_add(a->s, &first, y, a->e));
    TRY(effect_add(a->s, &first, x, a->e));
    x.lit ^= 1;
    TRY(effect_add(a->s, &second, z, a->e));
    TRY(effect_add(a->s, &second, x, a->e));
    if (x.lit != LIT_TRUE && y.lit != LIT_FALSE)
        TRY(choice_add(a->s, &choices, first, a->e));
    if (x.lit != LIT_FALSE && z.lit != LIT_FALSE)
        TRY(choice_add(a->s, &choices, second, a->e));
    return way_fork(a->s, a->w, choices, a->e);
}

/* Those not named here say nothing by themselves. Types first, since they leave less to do for the others. */
static const struct handler {
    const char *name;
    enum err (*apply)(const struct at *a, const json_t *v);
} handlers[] = {
    {"type", apply_type},
    {"const", apply_const},
    {"enum", apply_enum},
    {"minimum", apply_bound},
    {"maximum", apply_bound},
    {"exclusiveMinimum", apply_bound},
    {"exclusiveMaximum", apply_bound},
    {"multipleOf", apply_multiple},
    {"minLength", apply_length},
    {"maxLength", apply_length},
    {"pattern", apply_pattern},
    {"format", apply_format},
    {"prefixItems", apply_items},
    {"items", apply_items},
    {"minItems", apply_item_count},
    {"maxItems", apply_item_count},
    {"uniqueItems", apply_unique},
    {"contains", apply_contains},
    {"properties", apply_properties},
    {"patternProperties", apply_properties},
    {"additionalProperties", apply_properties},
    {"required", apply_required},
    {"minProperties", apply_property_count},
    {"maxProperties", apply_property_count},
    {"propertyNames", apply_names},
    {"dependentRequired", apply_dependencies},
    {"dependentSchemas", apply_dependencies},
    {"dependencies", apply_dependencies},
    {"if", apply_if},
    {"oneOf", apply_one},
    {"anyOf", apply_any},
    {"not", apply_not},
    {"allOf", apply_all}, /* on a stack: $ref is done before allOf, that before not */
    {"$ref", apply_ref},
};

static enum err apply_rest(struct at *a, const json_t *sub, const char *key, bool is_items)
{
    struct effect x = {.kind = EFFECT_REST, .flag = is_items};
    if (sub == NULL)
        return OK;
    a->key = key;
    TRY(lit_of(a, sub, &x.lit));
    return narrow(a, x);
}

enum err schema_apply(struct schema *s, struct way *w, uint32_t place, struct error *e)
{
    struct at a = {s, w, place, s->place[place].j, NULL, e};
    const json_t *members = json_object_get(a.j, "unevaluatedProperties"),
                 *items = json_object_get(a.j, "unevaluatedItems");
    if (members != NULL || items != NULL) {
        struct scope *scope = schema_take(s, 1, sizeof *scope, e);
        if (scope == NULL)
            return e->code;
        scope->outer = w->scope;
        w->scope = scope;
    }
    TRY(apply_rest(&a, members, "unevaluatedProperties", false));
    TRY(apply_rest(&a, items, "unevaluatedItems", true));
    for (size_t i = 0; i < COUNT_OF(handlers); i++) {
        const json_t *v = json_object_get(a.j, handlers[i].name);
        a.key = handlers[i].name;
        if (v == NULL)
            continue;
        TRY(schema_step(s, 1, e));
        TRY(handlers[i].apply(&a, v));
    }
    return OK;
}
