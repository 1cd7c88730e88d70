/* What it means that a value does not satisfy a schema: it breaks one keyword at least, so there is a choice for each
 * way of breaking one. not, if, dependencies, maxContains and branches of oneOf that may overlap come here.
 *
 * What would take remembering (that some member or other breaks patternProperties) is refused by name. */
#include "base/limits.h"
#include "grammar/schema_way.h"

#include <string.h>

struct denial {
    struct schema *s;
    uint32_t place;
    const json_t *j;
    const char *key;
    const struct choice *choices;
    struct error *e;
};

/* One way of breaking it: values of these types with up to two effects. */
static enum err choose(struct denial *d, uint8_t types, const struct effect *x, const struct effect *y)
{
    const struct effect *effects = NULL;
    if (y != NULL)
        TRY(effect_add(d->s, &effects, *y, d->e));
    if (x != NULL)
        TRY(effect_add(d->s, &effects, *x, d->e));
    if (types != T_ALL)
        TRY(effect_add(d->s, &effects, (struct effect){.kind = EFFECT_TYPES, .a = types}, d->e));
    return choice_add(d->s, &d->choices, effects, d->e);
}

static enum err lit_of(const struct denial *d, const json_t *sub, lit_id *out)
{
    return schema_lit(d->s, sub, d->place, d->key, out, d->e);
}

static enum err refuse(const struct denial *d)
{
    return schema_refuse(d->s, d->place, d->key,
        "its opposite is not supported, and not, if, maxContains or branches of oneOf that may overlap need it", d->e);
}

static struct effect member(const char *name, size_t n, bool is_required, lit_id lit)
{
    return (struct effect){.kind = EFFECT_MEMBER, .name = {name, n}, .lit = lit, .flag = is_required};
}

static enum err deny_type(struct denial *d, const json_t *v)
{
    enum int_kind ints;
    const uint8_t bits = schema_types(v, json_is_true(json_object_get(d->j, "nullable")), &ints);
    const struct effect never = {.kind = EFFECT_INTS, .a = INT_NEVER};
    const uint8_t others = (uint8_t)(T_ALL & ~bits);
    return ints == INT_ONLY ? choose(d, others | T_NUMBER, &never, NULL) : choose(d, others, NULL, NULL);
}

static enum err deny_const(struct denial *d, const json_t *v)
{
    struct effect x = {.kind = EFFECT_LIT};
    TRY(schema_value_lit(d->s, v, d->place, &x.lit, d->e));
    x.lit ^= 1;
    return choose(d, T_ALL, &x, NULL);
}

static enum err deny_enum(struct denial *d, const json_t *v)
{
    const struct effect *effects = NULL;
    for (size_t i = json_array_size(v); i > 0; i--) {
        struct effect x = {.kind = EFFECT_LIT};
        TRY(schema_value_lit(d->s, json_array_get(v, i - 1), d->place, &x.lit, d->e));
        x.lit ^= 1;
        TRY(effect_add(d->s, &effects, x, d->e));
    }
    return choice_add(d->s, &d->choices, effects, d->e);
}

static enum err deny_bound(struct denial *d, const json_t *v)
{
    const bool is_min = strstr(d->key, "inimum") != NULL;
    struct effect x = {.kind = is_min ? EFFECT_HI : EFFECT_LO, .flag = strncmp(d->key, "exclusive", 9) != 0};
    return dec_from_json(v, &x.dec) ? choose(d, T_NUMBER, &x, NULL) : refuse(d);
}

static enum err deny_multiple(struct denial *d, const json_t *v)
{
    struct effect x = {.kind = EFFECT_MULTIPLE, .flag = true};
    return dec_from_json(v, &x.dec) && dec_is_countable(&x.dec) ? choose(d, T_NUMBER, &x, NULL) : refuse(d);
}

/* minLength, maxItems and the like: a count on the other side. */
static enum err deny_count(struct denial *d, const json_t *v)
{
    const uint32_t n = schema_count(v);
    const bool is_min = d->key[1] == 'i';
    struct effect x = {.kind = EFFECT_LENGTH, .a = is_min ? 0 : n + 1, .b = is_min ? n - 1 : NO_MAX};
    uint8_t type = T_STRING;
    if (strstr(d->key, "Items") != NULL) {
        x.kind = EFFECT_ITEMS;
        type = T_ARRAY;
    } else if (strstr(d->key, "Properties") != NULL) {
        x.kind = EFFECT_PROPS;
        type = T_OBJECT;
    }
    return is_min && n == 0 ? OK : choose(d, type, &x, NULL);
}

static enum err deny_lang(struct denial *d, const json_t *v)
{
    struct effect x = {.kind = EFFECT_LANG};
    const char *name = json_string_value(v);
    if (strcmp(d->key, "format") == 0 &&
        (strncmp(name, "int", 3) == 0 || strcmp(name, "float") == 0 || strcmp(name, "double") == 0))
        return refuse(d);
    if (strcmp(d->key, "format") == 0)
        TRY(schema_format(d->s, d->place, v, &x.lang, d->e));
    else
        TRY(schema_pattern(d->s, d->place, d->key, json_string_value(v), json_string_length(v), &x.lang, d->e));
    x.lang = lang_not(d->s->b, x.lang, d->e);
    return x.lang != NULL ? choose(d, T_STRING, &x, NULL) : d->e->code;
}

/* ---- arrays ---- */

static enum err deny_prefix(struct denial *d, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct effect x = {.kind = EFFECT_ARRAY, .a = (uint32_t)i};
        const struct effect enough = {.kind = EFFECT_ITEMS, .a = (uint32_t)i + 1, .b = NO_MAX};
        TRY(lit_of(d, json_array_get(v, i), &x.lit));
        x.lit ^= 1;
        if (x.lit != LIT_FALSE)
            TRY(choose(d, T_ARRAY, &x, &enough));
    }
    return OK;
}

static enum err deny_items(struct denial *d, const json_t *v)
{
    if (json_is_array(v))
        return deny_prefix(d, v);
    struct effect x = {.kind = EFFECT_CONTAINS, .a = 1, .b = NO_MAX, .place = d->place};
    const uint32_t prefix = (uint32_t)json_array_size(json_object_get(d->j, "prefixItems"));
    TRY(lit_of(d, v, &x.lit));
    x.lit ^= 1;
    if (x.lit == LIT_FALSE)
        return OK;
    if (x.lit == LIT_TRUE)
        return choose(d, T_ARRAY, &(struct effect){.kind = EFFECT_ITEMS, .a = prefix + 1, .b = NO_MAX}, NULL);
    return prefix == 0 ? choose(d, T_ARRAY, &x, NULL) : refuse(d);
}

static enum err deny_more_items(struct denial *d, const json_t *v)
{
    const json_t *items = json_object_get(d->j, "items");
    const uint32_t n = (uint32_t)json_array_size(items);
    if (!json_is_array(items) || json_is_true(v))
        return OK;
    if (!json_is_false(v))
        return refuse(d);
    return choose(d, T_ARRAY, &(struct effect){.kind = EFFECT_ITEMS, .a = n + 1, .b = NO_MAX}, NULL);
}

static enum err deny_contains(struct denial *d, const json_t *v)
{
    const json_t *min = json_object_get(d->j, "minContains"), *max = json_object_get(d->j, "maxContains");
    const uint32_t least = min != NULL ? schema_count(min) : 1;
    struct effect x = {.kind = EFFECT_CONTAINS, .a = 0, .b = least - 1, .place = d->place};
    TRY(lit_of(d, v, &x.lit));
    if (least > 0)
        TRY(choose(d, T_ARRAY, &x, NULL));
    x.a = max != NULL ? schema_count(max) + 1 : 0;
    x.b = NO_MAX;
    return max != NULL ? choose(d, T_ARRAY, &x, NULL) : OK;
}

static enum err deny_unique(struct denial *d, const json_t *v)
{
    return json_is_true(v) ? refuse(d) : OK;
}

/* ---- objects ---- */

static enum err deny_properties(struct denial *d, const json_t *v)
{
    const char *name;
    json_t *sub;
    json_object_foreach((json_t *)(uintptr_t)v, name, sub)
    {
        lit_id lit;
        TRY(lit_of(d, sub, &lit));
        const struct effect x = member(name, strlen(name), true, lit ^ 1);
        if (lit != LIT_TRUE)
            TRY(choose(d, T_OBJECT, &x, NULL));
    }
    return OK;
}

static enum err deny_required(struct denial *d, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *name = json_array_get(v, i);
        const struct effect x = member(json_string_value(name), json_string_length(name), false, LIT_FALSE);
        TRY(choose(d, T_OBJECT, &x, NULL));
    }
    return OK;
}

/* Nothing is broken by true; and where no member is declared, one member breaks false. */
static enum err deny_free(struct denial *d, const json_t *v)
{
    if (json_is_true(v) || (json_is_object(v) && json_object_size(v) == 0))
        return OK;
    const bool declares =
        json_object_get(d->j, "properties") != NULL || json_object_get(d->j, "patternProperties") != NULL;
    const bool is_names = strcmp(d->key, "propertyNames") == 0;
    if (!json_is_false(v) || (declares && !is_names))
        return refuse(d);
    return choose(d, T_OBJECT, &(struct effect){.kind = EFFECT_PROPS, .a = 1, .b = NO_MAX}, NULL);
}

static enum err deny_rest(struct denial *d, const json_t *v)
{
    return json_is_true(v) || (json_is_object(v) && json_object_size(v) == 0) ? OK : refuse(d);
}

static enum err deny_dependencies(struct denial *d, const json_t *v)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, name, value)
    {
        const struct effect present = member(name, strlen(name), true, LIT_TRUE);
        for (size_t i = 0; i < json_array_size(value); i++) {
            const json_t *other = json_array_get(value, i);
            const struct effect x = member(json_string_value(other), json_string_length(other), false, LIT_FALSE);
            TRY(choose(d, T_OBJECT, &present, &x));
        }
        if (!json_is_array(value)) {
            struct effect x = {.kind = EFFECT_LIT};
            TRY(lit_of(d, value, &x.lit));
            x.lit ^= 1;
            TRY(choose(d, T_OBJECT, &present, &x));
        }
    }
    return OK;
}

/* ---- combinations ---- */

static enum err deny_ref(struct denial *d, const json_t *v)
{
    (void)v;
    const uint32_t target = d->s->place[d->place].ref;
    const struct effect x = {.kind = EFFECT_LIT, .lit = target == UINT32_MAX ? LIT_TRUE : target << 2 | LIT_IS_NOT};
    return choose(d, T_ALL, &x, NULL);
}

static enum err deny_all(struct denial *d, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct effect x = {.kind = EFFECT_LIT};
        TRY(lit_of(d, json_array_get(v, i), &x.lit));
        x.lit ^= 1;
        if (x.lit != LIT_FALSE)
            TRY(choose(d, T_ALL, &x, NULL));
    }
    return OK;
}

static enum err deny_any(struct denial *d, const json_t *v)
{
    const struct effect *effects = NULL;
    for (size_t i = json_array_size(v); i > 0; i--) {
        struct effect x = {.kind = EFFECT_LIT};
        TRY(lit_of(d, json_array_get(v, i - 1), &x.lit));
        x.lit ^= 1;
        TRY(effect_add(d->s, &effects, x, d->e));
    }
    return choice_add(d->s, &d->choices, effects, d->e);
}

/* None of them, or two. */
static enum err deny_one(struct denial *d, const json_t *v)
{
    TRY(deny_any(d, v));
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct effect x = {.kind = EFFECT_LIT}, y = x;
        TRY(lit_of(d, json_array_get(v, i), &x.lit));
        for (size_t j = 0; j < i; j++) {
            TRY(lit_of(d, json_array_get(v, j), &y.lit));
            TRY(choose(d, T_ALL, &x, &y));
        }
    }
    return OK;
}

static enum err deny_not(struct denial *d, const json_t *v)
{
    struct effect x = {.kind = EFFECT_LIT};
    TRY(lit_of(d, v, &x.lit));
    return choose(d, T_ALL, &x, NULL);
}

static enum err deny_if(struct denial *d, const json_t *v)
{
    const json_t *then = json_object_get(d->j, "then"), *otherwise = json_object_get(d->j, "else");
    struct effect x = {.kind = EFFECT_LIT}, y = x;
    TRY(lit_of(d, v, &x.lit));
    if (then != NULL) {
        TRY(schema_lit(d->s, then, d->place, "then", &y.lit, d->e));
        y.lit ^= 1;
        TRY(choose(d, T_ALL, &x, &y));
    }
    if (otherwise != NULL) {
        TRY(schema_lit(d->s, otherwise, d->place, "else", &y.lit, d->e));
        x.lit ^= 1;
        y.lit ^= 1;
        TRY(choose(d, T_ALL, &x, &y));
    }
    return OK;
}

static const struct {
    const char *name;
    enum err (*deny)(struct denial *d, const json_t *v);
} handlers[] = {
    {"type", deny_type},
    {"const", deny_const},
    {"enum", deny_enum},
    {"minimum", deny_bound},
    {"maximum", deny_bound},
    {"exclusiveMinimum", deny_bound},
    {"exclusiveMaximum", deny_bound},
    {"multipleOf", deny_multiple},
    {"minLength", deny_count},
    {"maxLength", deny_count},
    {"pattern", deny_lang},
    {"format", deny_lang},
    {"prefixItems", deny_prefix},
    {"items", deny_items},
    {"additionalItems", deny_more_items},
    {"minItems", deny_count},
    {"maxItems", deny_count},
    {"uniqueItems", deny_unique},
    {"contains", deny_contains},
    {"properties", deny_properties},
    {"patternProperties", deny_free},
    {"additionalProperties", deny_free},
    {"required", deny_required},
    {"minProperties", deny_count},
    {"maxProperties", deny_count},
    {"propertyNames", deny_free},
    {"unevaluatedProperties", deny_rest},
    {"unevaluatedItems", deny_rest},
    {"dependentRequired", deny_dependencies},
    {"dependentSchemas", deny_dependencies},
    {"dependencies", deny_dependencies},
    {"allOf", deny_all},
    {"anyOf", deny_any},
    {"oneOf", deny_one},
    {"not", deny_not},
    {"if", deny_if},
    {"$ref", deny_ref},
};

enum err schema_deny(struct schema *s, struct way *w, uint32_t place, struct error *e)
{
    struct denial d = {s, place, s->place[place].j, NULL, NULL, e};
    for (size_t i = 0; i < COUNT_OF(handlers); i++) {
        const json_t *v = json_object_get(d.j, handlers[i].name);
        d.key = handlers[i].name;
        if (v == NULL)
            continue;
        TRY(schema_step(s, 1, e));
        TRY(handlers[i].deny(&d, v));
    }
    return way_fork(s, w, d.choices, e);
}

/* ---- values ---- */

static enum err deny_array_value(struct denial *d, const json_t *v)
{
    const uint32_t n = (uint32_t)json_array_size(v);
    TRY(choose(d, T_ALL & ~T_ARRAY, NULL, NULL));
    TRY(choose(d, T_ARRAY, &(struct effect){.kind = EFFECT_ITEMS, .a = n + 1, .b = NO_MAX}, NULL));
    if (n > 0)
        TRY(choose(d, T_ARRAY, &(struct effect){.kind = EFFECT_ITEMS, .a = 0, .b = n - 1}, NULL));
    for (uint32_t i = 0; i < n; i++) {
        struct effect x = {.kind = EFFECT_ARRAY, .a = i};
        const struct effect enough = {.kind = EFFECT_ITEMS, .a = i + 1, .b = NO_MAX};
        TRY(schema_value_lit(d->s, json_array_get(v, i), d->place, &x.lit, d->e));
        x.lit ^= 1;
        TRY(choose(d, T_ARRAY, &x, &enough));
    }
    return OK;
}

static enum err deny_object_value(struct denial *d, const json_t *v)
{
    const char *name;
    json_t *sub;
    const uint32_t n = (uint32_t)json_object_size(v);
    TRY(choose(d, T_ALL & ~T_OBJECT, NULL, NULL));
    TRY(choose(d, T_OBJECT, &(struct effect){.kind = EFFECT_PROPS, .a = n + 1, .b = NO_MAX}, NULL));
    json_object_foreach((json_t *)(uintptr_t)v, name, sub)
    {
        lit_id lit;
        TRY(schema_value_lit(d->s, sub, d->place, &lit, d->e));
        const struct effect absent = member(name, strlen(name), false, LIT_FALSE);
        const struct effect other = member(name, strlen(name), true, lit ^ 1);
        TRY(choose(d, T_OBJECT, &absent, NULL));
        TRY(choose(d, T_OBJECT, &other, NULL));
    }
    return OK;
}

enum err schema_deny_value(struct schema *s, struct way *w, uint32_t place, struct error *e)
{
    const json_t *v = s->place[place].j;
    struct denial d = {s, place, v, "const", NULL, e};
    struct effect x = {.kind = EFFECT_NUM_NOT};
    uint8_t without = T_ALL;
    switch (json_typeof(v)) {
    case JSON_NULL: without = T_ALL & ~T_NULL; break;
    case JSON_TRUE: without = T_ALL & ~T_TRUE; break;
    case JSON_FALSE: without = T_ALL & ~T_FALSE; break;
    case JSON_INTEGER:
    case JSON_REAL: return dec_from_json(v, &x.dec) ? way_apply(s, w, &x, e) : refuse(&d);
    case JSON_STRING:
        x.kind = EFFECT_LANG;
        x.lang = lang_text(s->b, (struct str){json_string_value(v), json_string_length(v)}, e);
        x.lang = x.lang != NULL ? lang_not(s->b, x.lang, e) : NULL;
        return x.lang != NULL ? way_apply(s, w, &x, e) : e->code;
    case JSON_ARRAY: TRY(deny_array_value(&d, v)); return way_fork(s, w, d.choices, e);
    case JSON_OBJECT: TRY(deny_object_value(&d, v)); return way_fork(s, w, d.choices, e);
    }
    x = (struct effect){.kind = EFFECT_TYPES, .a = without};
    return way_apply(s, w, &x, e);
}
