/* Ways through a node. A node's conditions are applied one after another to a shape; where there is a choice (anyOf, a
 * denied schema, a dependency) the way forks, and each branch goes on alone. A way whose shape allows no type is dead.
 *
 * What a keyword does to a shape is an effect; a choice is a list of effects; a fork is a list of choices. Lists are
 * immutable and live in the schema's arena, so that ways share them. */
#ifndef GRAMMAR_SCHEMA_WAY_H
#define GRAMMAR_SCHEMA_WAY_H

#include "grammar/schema_int.h"

enum effect_kind {
    EFFECT_LIT,      /* lit */
    EFFECT_TYPES,    /* a: the types that remain */
    EFFECT_INTS,     /* a: enum int_kind */
    EFFECT_LO,       /* dec, flag: open */
    EFFECT_HI,       /* dec, flag: open */
    EFFECT_MULTIPLE, /* dec, flag: denied */
    EFFECT_NUM_SET,  /* decs */
    EFFECT_NUM_NOT,  /* dec */
    EFFECT_LENGTH,   /* a, b: least and greatest */
    EFFECT_LANG,     /* lang */
    EFFECT_STR_SET,  /* strs */
    EFFECT_ITEMS,    /* a, b */
    EFFECT_PROPS,    /* a, b */
    EFFECT_MEMBER,   /* name, lit, flag: required */
    EFFECT_NAMES,    /* lang */
    EFFECT_OBJECT,   /* lit: an object_rule */
    EFFECT_ARRAY,    /* lit, a: an array_rule with its index */
    EFFECT_CONTAINS, /* lit, a, b: how many */
    EFFECT_REST,     /* lit, flag: of items; of members otherwise */
};

#define INDEX_RULE (NO_MAX) /* an array_rule's lit is a schema or value with items */

struct effect {
    enum effect_kind kind;
    bool flag;
    lit_id lit;
    uint32_t a, b;
    uint32_t place; /* of the keyword, for messages */
    struct dec dec;
    struct str name;
    const struct lang *lang;
    const struct dec_list *decs;
    const struct str_list *strs;
    const struct effect *next;
};
struct choice {
    const struct effect *effects;
    const struct choice *next;
};
struct fork {
    const struct choice *choices;
    const struct scope *scope;
    const struct fork *next;
};
struct lit_list {
    lit_id lit;
    const struct scope *scope;
    const struct lit_list *next;
};

struct way {
    struct shape shape;
    const struct lit_list *todo, *done;
    const struct fork *forks;
    const struct scope *scope; /* of the condition being applied */
};

/* ---- schema_node.c ---- */
enum err way_apply(struct schema *s, struct way *w, const struct effect *x, struct error *e) MUST_CHECK;
enum err way_lit(struct schema *s, struct way *w, lit_id lit, struct error *e) MUST_CHECK; /* to be done */
/* Lists are built from their ends: each call puts one in front. */
enum err effect_add(struct schema *s, const struct effect **list, struct effect x, struct error *e) MUST_CHECK;
enum err choice_add(
    struct schema *s, const struct choice **list, const struct effect *effects, struct error *e) MUST_CHECK;
/* No choice is a dead end, one is no choice. */
enum err way_fork(struct schema *s, struct way *w, const struct choice *choices, struct error *e) MUST_CHECK;

/* ---- schema_apply.c: a schema is satisfied; a value is equalled ---- */
enum err schema_apply(struct schema *s, struct way *w, uint32_t place, struct error *e) MUST_CHECK;
enum err schema_apply_value(struct schema *s, struct way *w, uint32_t place, struct error *e) MUST_CHECK;
uint8_t schema_types(const json_t *type, bool is_nullable, enum int_kind *ints);
uint32_t schema_count(const json_t *j); /* of minLength and the like; NO_MAX - 2 at most */
enum err schema_pattern(struct schema *s, uint32_t place, const char *keyword, const char *text, size_t n,
    const struct lang **out, struct error *e) MUST_CHECK;
enum err schema_format(
    struct schema *s, uint32_t place, const json_t *name, const struct lang **out, struct error *e) MUST_CHECK;

/* ---- schema_deny.c: a schema is not satisfied; a value is not equalled ---- */
enum err schema_deny(struct schema *s, struct way *w, uint32_t place, struct error *e) MUST_CHECK;
enum err schema_deny_value(struct schema *s, struct way *w, uint32_t place, struct error *e) MUST_CHECK;

#endif
