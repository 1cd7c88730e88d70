/* What the files of the JSON schema front end share.
 *
 * A schema becomes an expression in four steps:
 *   schema_doc.c     places: every subschema with its path, base and checked keywords; references; loops refused
 *   schema_node.c    nodes: a node is a set of conditions that one value meets together; it is taken apart into shapes
 *                    (tables of what remains allowed for each type) by applying keywords (schema_apply.c,
 *                    schema_deny.c) and by going every way where there is a choice
 *   schema_close.c   shapes are closed: members and items get nodes of their own, strings and numbers their languages
 *   schema_emit.c    nodes that something can satisfy become expressions
 * with schema_decimal.c and schema_number.c (numbers as automata) and schema_format.c (formats as regular expressions)
 * below them.
 *
 * A condition (lit_id) is a place and a kind: the value satisfies the schema there, does not satisfy it, equals the
 * value there, or does not equal it. A schema has finitely many places, so sets of conditions are finite too: recursion
 * ends because a set that was met before is the same node. All work is counted in steps, all memory in one arena. */
#ifndef GRAMMAR_SCHEMA_INT_H
#define GRAMMAR_SCHEMA_INT_H

#include "base/json.h"
#include "grammar/grammar_int.h"

typedef uint32_t lit_id;  /* place << 2 | enum lit_kind */
typedef uint32_t node_id; /* in schema.node */
enum lit_kind { LIT_IS = 0, LIT_IS_NOT = 1, LIT_EQUALS = 2, LIT_DIFFERS = 3 };
#define LIT_TRUE  ((lit_id)0)          /* place 0 is the schema true */
#define LIT_FALSE ((lit_id)LIT_IS_NOT) /* and its opposite */
#define NO_MAX    UINT32_MAX

#define SCHEMA_FORMATS 32

enum type_bit {
    T_NULL = 1,
    T_FALSE = 2,
    T_TRUE = 4,
    T_NUMBER = 8,
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127,
    T_SCALAR = 31
};

enum dialect { DIALECT_2020, DIALECT_2019, DIALECT_07 };

struct place {
    const json_t *j;
    uint32_t parent;  /* place; itself at the root */
    const char *step; /* of the path below the parent, as it stands behind '#/'; borrowed or of the arena */
    uint32_t base;    /* resource */
    uint32_t ref;     /* what its $ref names, once checked */
    bool is_checked;
    uint8_t colour; /* of the search for loops: 0 new, 1 under way, 2 done */
};

/* A decimal number: 0.d1d2...dn * 10^k, d1 and dn not 0; zero has n = 0. */
#define DEC_DIGITS_MAX 20
struct dec {
    bool is_negative;
    uint8_t n;
    int16_t k;
    uint8_t digit[DEC_DIGITS_MAX];
};

enum int_kind { INT_ANY, INT_ONLY, INT_NEVER };

struct dec_list {
    struct dec v;
    bool is_denied; /* of a multiple: not a multiple of it */
    const struct dec_list *next;
};

struct num_rule {
    bool has_lo, has_hi, is_lo_open, is_hi_open;
    bool has_set; /* one of set, else any */
    enum int_kind ints;
    struct dec lo, hi;
    const struct dec_list *multiple, *set, *excluded;
};

struct str_list {
    struct str s;
    const struct str_list *next;
};

/* A schema with unevaluatedProperties or unevaluatedItems, on one way: what applies to the same value inside of it
 * evaluates members and items for it. */
struct scope {
    const struct scope *outer;
};

/* One schema's properties, patternProperties and additionalProperties, or one object's members as a value. */
struct object_rule {
    lit_id lit; /* LIT_IS or LIT_EQUALS */
    const struct scope *scope;
    const struct object_rule *next;
};
struct rest_rule { /* what nothing inside its scope evaluates satisfies lit */
    lit_id lit;
    const struct scope *scope;
    const struct rest_rule *next;
};
struct member_rule {
    struct str name;
    lit_id lit;
    bool is_required;
    const struct member_rule *next;
};
struct array_rule { /* the same of items, or of one index */
    lit_id lit;
    uint32_t index; /* NO_MAX: a schema's or value's items; else that item satisfies lit */
    const struct scope *scope;
    const struct array_rule *next;
};

/* What remains allowed. Lists are shared between shapes and only grow at their heads. */
struct shape {
    uint8_t types;
    bool has_str_set, has_contains;
    struct num_rule num;
    const struct lang *str; /* NULL: any */
    const struct str_list *str_set;
    uint32_t len_min, len_max, items_min, items_max, props_min, props_max;
    const struct array_rule *items;
    const struct object_rule *objects;
    const struct member_rule *members;
    const struct rest_rule *rest_members, *rest_items; /* unevaluatedProperties and unevaluatedItems */
    const struct lang *names;                          /* of members; NULL: any */
    lit_id contains;
    uint32_t contains_min, contains_max;
};

/* A closed shape of an array: item i is of node[i], items behind of rest. */
struct array_alt {
    uint32_t n_prefix, min, max;
    const node_id *prefix;
    node_id rest;
    bool has_contains; /* node ids of the same items that also match, or may not match */
    const node_id *prefix_hit, *prefix_miss;
    node_id rest_hit, rest_miss;
    uint32_t hits_min, hits_max;
    const struct array_alt *next;
};

struct slot {
    struct str name;
    node_id node;
    bool is_required;
};
struct cell {
    const struct lang *keys; /* NULL: any text */
    bool is_spelled;         /* keys are as JSON spells them, without the quotes; else as they read */
    node_id node;
};
struct object_alt {
    uint32_t n_slots, n_cells, min, max;
    const struct slot *slot;
    const struct cell *cell;
    const struct object_alt *next;
};

enum node_state { NODE_NEW, NODE_OPEN, NODE_CLOSED };

struct node {
    const lit_id *lit;
    uint32_t n_lits;
    enum node_state state;
    bool is_proven_empty, is_productive, is_reached;
    uint8_t types; /* of scalars, and whether there are arrays and objects */
    bool is_any_string;
    const struct lang *str, *num;
    const struct str_list *str_set;
    const struct dec_list *num_set;
    const struct array_alt *arrays;
    const struct object_alt *objects;
    expr_id rule, expr; /* once emitted; a rule when it is met while under way */
    bool has_rule, is_emitting, is_emitted;
};

struct resource {
    const char *uri; /* absolute or as written; "" for the document */
    uint32_t place;
};
struct anchor {
    uint32_t resource, place;
    const char *name;
};

struct pattern_cached {
    const char *text; /* its address in the document */
    const struct lang *lang;
    struct pattern_cached *next;
};

struct num_cached {
    struct num_rule key;
    const struct lang *lang;
    struct num_cached *next;
};

struct schema {
    struct build *b;
    struct arena arena;
    enum grammar_whitespace ws;
    enum dialect dialect;
    uint64_t steps;
    json_t *doc;
    json_t *value_true; /* the schema true, for place 0 */

    struct place *place;
    uint32_t n_places, cap_places;
    uint32_t *place_table; /* by address; 0 is free */
    uint32_t n_place_table;
    struct resource *resource;
    uint32_t n_resources, cap_resources;
    struct anchor *anchor;
    uint32_t n_anchors, cap_anchors;

    struct node *node;
    uint32_t n_nodes, cap_nodes;
    uint32_t *node_table;
    uint32_t n_node_table;
    node_id node_false; /* the one nothing satisfies */

    struct num_cached *num_cache;
    struct pattern_cached *pattern_cache;
    const struct lang *format[SCHEMA_FORMATS]; /* once used */
    const struct lang *spellings;              /* of any text, see schema_words.c; once used */
    uint32_t disjoint_depth;                   /* questions asked while answering one */
    uint32_t nesting;                          /* nodes opened while opening one */
    expr_id blank, comma, colon;               /* made once; blank: what may stand between tokens */
};

/* ---- schema.c: memory and steps ---- */
enum err schema_step(struct schema *s, uint64_t n, struct error *e) MUST_CHECK;
void *schema_take(struct schema *s, size_t count, size_t bytes, struct error *e) MUST_CHECK; /* NULL: e is set */
enum err schema_grow(
    struct schema *s, void **array, uint32_t n, uint32_t *cap, size_t bytes, struct error *e) MUST_CHECK;

/* ---- schema_doc.c ---- */
enum err schema_doc_open(struct schema *s, struct error *e) MUST_CHECK;
/* The place of a subschema or value, made when it is new. */
enum err schema_place(struct schema *s, const json_t *j, uint32_t parent, const char *step, uint32_t base,
    uint32_t *out, struct error *e) MUST_CHECK;
/* The condition that a subschema of `place` is satisfied; true and false become LIT_TRUE and LIT_FALSE. */
enum err schema_lit(
    struct schema *s, const json_t *sub, uint32_t place, const char *step, lit_id *out, struct error *e) MUST_CHECK;
enum err schema_value_lit(
    struct schema *s, const json_t *value, uint32_t place, lit_id *out, struct error *e) MUST_CHECK;
enum err schema_ref(struct schema *s, uint32_t place, struct str ref, uint32_t *out, struct error *e) MUST_CHECK;
#define SCHEMA_PATH_MAX 200
const char *schema_path(const struct schema *s, uint32_t place, const char *keyword, char out[SCHEMA_PATH_MAX]);
enum err schema_refuse(struct schema *s, uint32_t place, const char *keyword, const char *why, struct error *e);

/* ---- schema_check.c: keywords are known and well formed; references resolve; nothing refers to itself ---- */
enum err schema_check(struct schema *s, uint32_t place, struct error *e) MUST_CHECK;
/* Call visit for each subschema below a place that is no boolean. */
enum children {
    CHILDREN_ALL,
    CHILDREN_USED,    /* without $defs and definitions, which count only where something refers to them */
    CHILDREN_IN_PLACE /* those about the same value; not $ref */
};
typedef enum err schema_visit(struct schema *s, uint32_t child, void *with, struct error *e);
enum err schema_each_child(
    struct schema *s, uint32_t place, enum children which, schema_visit *visit, void *with, struct error *e) MUST_CHECK;

/* ---- schema_node.c ---- */
struct way; /* one way of taking a node apart; see schema_way.h */
enum err schema_node_of(struct schema *s, const lit_id *lit, uint32_t n, node_id *out, struct error *e) MUST_CHECK;
lit_id schema_simplest(const struct schema *s, lit_id lit); /* a bare reference is what it refers to */
enum err schema_node_open(struct schema *s, node_id id, struct error *e) MUST_CHECK;
/* True when no value satisfies all of these; false also when that could not be shown cheaply. */
bool schema_is_disjoint(struct schema *s, const lit_id *lit, uint32_t n);

/* ---- schema_close.c ---- */
enum err schema_shape_close(struct schema *s, node_id id, const struct shape *x, struct error *e) MUST_CHECK;

/* ---- schema_emit.c ---- */
enum err schema_emit(struct schema *s, node_id root, expr_id *out, struct error *e) MUST_CHECK;

/* ---- schema_decimal.c, schema_number.c ---- */
bool dec_from_json(const json_t *j, struct dec *out); /* false: not a finite number */
struct dec dec_from_int(int64_t n);
int dec_compare(const struct dec *a, const struct dec *b);
bool dec_is_integer(const struct dec *a);
bool dec_is_countable(const struct dec *a); /* as a multiple, small enough to count remainders of */
/* A multiple as an integer m with d decimals: m / 10^d. False when m is beyond what is counted. */
bool dec_multiple_parts(const struct dec *v, uint64_t *m, int *d);
bool num_rule_allows(const struct num_rule *r, const struct dec *v); /* all but set and excluded */
enum err schema_number_lang(
    struct schema *s, const struct num_rule *r, const struct lang **out, struct error *e) MUST_CHECK;
/* The spellings of one number: as an integer, with .0, and as Python writes it. At most DEC_TEXTS_MAX. */
#define DEC_TEXTS_MAX      4
#define DEC_TEXT_BYTES_MAX 352
uint32_t dec_texts(const struct dec *v, char text[DEC_TEXTS_MAX][DEC_TEXT_BYTES_MAX]);

/* ---- schema_words.c: sets of texts ---- */
enum err schema_words_lang(
    struct schema *s, const struct str_list *words, const struct lang **out, struct error *e) MUST_CHECK;

/* As JSON: quoted, and escaped as Python's json.dumps does without ASCII. */
enum err schema_json_text(struct schema *s, struct str text, struct str *out, struct error *e) MUST_CHECK;
/* The spellings, without quotes, of every text but these words. */
enum err schema_other_spellings(
    struct schema *s, const struct str_list *words, const struct lang **out, struct error *e) MUST_CHECK;

/* ---- schema_format.c ---- */
/* *out NULL when the format is unknown */
enum err schema_format_lang(struct schema *s, struct str name, const struct lang **out, struct error *e) MUST_CHECK;

#endif
