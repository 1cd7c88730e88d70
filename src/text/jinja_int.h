/* Private to the chat-template half of text/: the values, the tree and the running state of our Jinja.
 *
 * Life of a template: jinja_lex.c cuts the source into tokens, jinja_parse*.c builds a tree of struct jnode in the
 * template's arena, which is never written again. A rendering is a struct jrun on the caller's stack with an arena of
 * its own; every value lives there and all of it goes at once.
 *
 * Values are immutable, as the sandbox of transformers makes them: list.append and friends are refused. The exceptions
 * are namespaces, loops, cyclers, joiners and one-shot iterators, which the language itself changes.
 *
 * Threads: a tree is shared and constant; a run belongs to one thread. */
#ifndef TEXT_JINJA_INT_H
#define TEXT_JINJA_INT_H

#include "base/base.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

struct jrun;
struct jnode;

/* ---- values ---- */

enum jtype {
    J_MISSING, /* no value at all: an argument not given, a variable not set; never seen by a template */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW, /* dict.keys(), .values(), .items() */
    J_RANGE,
    J_ITER, /* one-shot: what map, select, reverse, items... give */
    J_NS,   /* namespace() */
    J_MACRO,
    J_FUNC,   /* a global such as range */
    J_METHOD, /* bound: "x".upper */
    J_LOOP,
    J_CYCLER,
    J_JOINER
};

struct jv {
    uint8_t type;
    bool user; /* a number, bool or None that came from the user; strings keep their own record */
    union {
        bool b;
        int64_t i;
        double f;
        const struct jstr *s;
        const struct jlist *l; /* J_LIST, J_TUPLE */
        const struct jdict *d;
        const struct jview *view;
        const struct jrange *range;
        struct jiter *it;
        struct jns *ns;
        const struct jmacro *macro;
        const struct jfunc *fn;
        const struct jmethod *m;
        struct jloop *loop;
        struct jcycler *cycler;
        struct jjoiner *joiner;
        const struct jundef *undef; /* may be NULL */
    } u;
};

enum jtaint { JT_CLEAN, JT_USER, JT_MIXED };

struct jspan {
    size_t start, end; /* bytes that came from the user; end may lie past the string's end, see struct jgrow */
};

/* A string: valid UTF-8, flat, borrowed or in an arena. */
struct jstr {
    const char *p;
    size_t n;
    const struct jspan *spans; /* JT_MIXED only: sorted, apart */
    size_t n_spans;
    enum jtaint taint;
    struct jgrow *grow; /* the block p lies in, when it may be appended in place; or NULL */
};

struct jlist {
    const struct jv *items;
    size_t n;
    bool is_group; /* a pair of groupby: also .grouper and .list */
};

struct jpair {
    struct jv key, value;
};

struct jdict {
    struct jpair *pairs; /* in insertion order */
    size_t n, cap;
    uint32_t *index; /* open addressing, pair number + 1; NULL while small */
    size_t index_cap;
};

enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };

struct jview {
    const struct jdict *d;
    enum jview_kind kind;
};

struct jrange {
    int64_t start, stop, step;
    size_t n;
};

struct jundef {
    struct str name;   /* what was asked for */
    const char *owner; /* the type it was asked of, or NULL for a variable */
    bool unsafe;       /* the sandbox refused it */
};

struct jns {
    struct jdict d;
};

struct jcycler {
    const struct jv *items;
    size_t n, at;
};

struct jjoiner {
    struct jv sep;
    bool used;
};

/* ---- calls ---- */

#define JARGS_MAX 12 /* most parameters any builtin takes */

struct jkw {
    struct str name;
    struct jv value;
    bool user; /* the name itself came from the user, through ** */
};

struct jargs {
    const struct jv *pos;
    size_t n_pos;
    const struct jkw *kw;
    size_t n_kw;
};

/* A builtin: self is the filtered value, the tested value or the method's object. arg holds the bound parameters
 * (J_MISSING when not given); raw is what the call said. */
typedef enum err (*jbuiltin_fn)(
    struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out);

struct jbuiltin {
    const char *name;
    jbuiltin_fn fn;
    const char *params; /* "old new count"; a leading '/' makes them positional only; NULL: fn reads raw */
    uint8_t required;
};

struct jfunc {
    struct jbuiltin b;
};

struct jmethod {
    const struct jbuiltin *b;
    struct jv self;
};

/* ---- iteration ---- */

enum jiter_kind { JIT_ARRAY, JIT_DICT, JIT_VIEW, JIT_CHARS, JIT_RANGE, JIT_MAP, JIT_SELECT, JIT_SHARED };

struct jpipe; /* what map and select apply, jinja_filters_seq.c */

struct jiter {
    enum jiter_kind kind;
    size_t at;
    union {
        struct jlist array;
        const struct jdict *d;
        struct jview view;
        const struct jstr *s;
        struct jrange range;
        struct jpipe *pipe;
        struct jiter *shared;
    } u;
};

/* ---- the tree ---- */

enum jkind {
    /* statements */
    JN_DATA,     /* value */
    JN_PRINT,    /* a */
    JN_IF,       /* list: test, body (JN_BLOCK), test, body...; a: else body or NULL */
    JN_FOR,      /* a target, b iterable, c test or NULL, list: body, else body or NULL; flag: recursive */
    JN_SET,      /* a target, b value */
    JN_SETBLOCK, /* a target, b filter chain over JN_CAPTURED or NULL, c body */
    JN_MACRO,    /* def */
    JN_CALL,     /* a: the JN_CALLEXPR; def: the caller */
    JN_FILTER,   /* b filter chain over JN_CAPTURED, c body */
    JN_WITH,     /* list: target, value, target, value...; c body */
    JN_SCOPE,    /* c body: {% generation %} */
    JN_BREAK,
    JN_CONTINUE,
    JN_BLOCK, /* list of statements */
    /* expressions */
    JN_CONST, /* value */
    JN_NAME,  /* name */
    JN_NSREF, /* name, attr: assignment target only */
    JN_TUPLE, /* list */
    JN_LIST,  /* list */
    JN_DICT,  /* list: key, value, key, value... */
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_AND,
    JN_OR,
    JN_BINARY,     /* op, a, b */
    JN_CONCAT,     /* list */
    JN_COMPARE,    /* a, then list of operands with ops[i] */
    JN_COND,       /* a test, b then, c else or NULL */
    JN_ATTR,       /* a, attr */
    JN_ITEM,       /* a, b */
    JN_SLICE,      /* list of 3, each may be NULL; only as b of JN_ITEM */
    JN_CALLEXPR,   /* a callee, call */
    JN_FILTEREXPR, /* a input, builtin (or NULL: unknown, attr is its name), call */
    JN_TESTEXPR,   /* as a filter */
    JN_CAPTURED    /* the text a set or filter block captured */
};

enum jop { JOP_ADD, JOP_SUB, JOP_MUL, JOP_DIV, JOP_FLOORDIV, JOP_MOD, JOP_POW };
enum jcmp { JCMP_EQ, JCMP_NE, JCMP_LT, JCMP_LE, JCMP_GT, JCMP_GE, JCMP_IN, JCMP_NOTIN };

struct jcall {
    const struct jnode **args;
    const struct jnode **kw_values;
    struct str *kw_names;
    uint32_t n_args, n_kw;
    const struct jnode *star, *star2; /* *args and **kwargs, or NULL */
};

struct jmacro_def {
    struct str name;  /* empty for a caller */
    uint32_t *params; /* name ids */
    struct str *param_names;
    const struct jnode **defaults; /* NULL where there is none */
    uint32_t n_params;
    const struct jnode *body;
    bool uses_caller, uses_varargs, uses_kwargs;
};

struct jnode {
    uint8_t kind, op;
    bool flag;
    uint32_t line, name, n;
    const struct jnode *a, *b, *c;
    const struct jnode **list;
    const uint8_t *ops;
    struct str attr;
    const struct jbuiltin *builtin;
    const struct jcall *call;
    const struct jmacro_def *def;
    struct jv value;
};

/* A parsed template. Names are numbered so that scopes hold numbers. */
struct jtree {
    struct arena arena;
    const struct jnode *body;
    struct str *names;
    uint32_t n_names, cap_names;
    uint32_t *name_index; /* open addressing over CHAT_NAMES_MAX * 2 slots: number + 1 */
    uint32_t id_loop, id_caller, id_varargs, id_kwargs;
};

/* ---- running ---- */

struct jvar {
    uint32_t name;
    struct jv value;
};

/* A scope between the root and here. Small, so lookups are linear. */
struct jframe {
    struct jframe *parent; /* NULL: the root scope, which is r->root */
    struct jvar *vars;
    uint32_t n, cap;
    bool captured; /* a macro keeps it: do not reuse */
};

struct jmacro {
    const struct jmacro_def *def;
    struct jframe *frame;
};

enum jflow { JFLOW_ON, JFLOW_BREAK, JFLOW_CONTINUE };

struct jrun {
    const struct jtree *tree;
    struct arena arena;
    struct error *e;
    struct jv *base; /* per name: what the caller or the language gives, or J_MISSING */
    struct jv *root; /* per name: what the template set at its top level */
    struct jframe *frame;
    struct jbuf *out;
    const struct jv *captured; /* for JN_CAPTURED */
    uint64_t steps, steps_max;
    uint32_t line, depth;
    enum jflow flow;
    struct jstr *chars;         /* the ASCII characters, clean and the user's; made when first needed */
    const struct jundef *undef; /* the last one made: loops ask for the same missing thing again and again */
    int64_t now_s;              /* local seconds since 1970, for strftime_now */
};

#define JFAIL(r, code, ...) FAIL((r)->e, (code), __VA_ARGS__)

/* ---- jinja_parse.c ---- */
/* Parse into t (zeroed; its arena is initialised here and freed by the caller, also after a failure). Borrows source,
 * which must live as long as the tree. *line is where it failed. */
enum err jinja_parse(struct jtree *t, struct str source, uint32_t *line, struct error *e) MUST_CHECK;
uint32_t jinja_name_find(const struct jtree *t, struct str name); /* UINT32_MAX when the template never says it */

/* ---- jinja_exec.c, jinja_eval.c, jinja_loop.c ---- */
enum err jexec(struct jrun *r, const struct jnode *n) MUST_CHECK;
enum err jeval(struct jrun *r, const struct jnode *n, struct jv *out) MUST_CHECK;
enum err jassign(struct jrun *r, struct jframe *f, const struct jnode *target, struct jv v) MUST_CHECK;
enum err jframe_set(struct jrun *r, struct jframe *f, uint32_t name, struct jv v) MUST_CHECK;
struct jv jlookup(struct jrun *r, uint32_t name);
void jframe_keep(struct jframe *f); /* a macro closes over it */
enum err jcall_value(struct jrun *r, struct jv callee, const struct jargs *a, struct jv *out) MUST_CHECK;
enum err jcall_builtin(
    struct jrun *r, const struct jbuiltin *b, struct jv self, const struct jargs *a, struct jv *out) MUST_CHECK;
enum err jcall_args(struct jrun *r, const struct jcall *c, struct jargs *out) MUST_CHECK;
enum err jcall_macro(struct jrun *r, const struct jmacro *m, const struct jargs *a, struct jv *out) MUST_CHECK;
enum err jexec_for(struct jrun *r, const struct jnode *n) MUST_CHECK;
enum err jloop_attr(struct jrun *r, struct jloop *l, struct str name, struct jv *out) MUST_CHECK;
enum err jloop_call(struct jrun *r, struct jloop *l, const struct jargs *a, struct jv *out) MUST_CHECK;
enum err jloop_show(struct jrun *r, struct jloop *l, struct jbuf *b) MUST_CHECK;
enum err jdive(struct jrun *r) MUST_CHECK; /* one level deeper; undo with r->depth-- */
enum err jstep(struct jrun *r, uint64_t n) MUST_CHECK;

/* ---- jinja_access.c: x.name, x[y], slices, attribute paths ---- */
enum err jattr_get(struct jrun *r, struct jv v, struct str name, struct jv *out) MUST_CHECK;
enum err jitem_get(struct jrun *r, struct jv v, struct jv key, struct jv *out) MUST_CHECK;
enum err jslice_get(struct jrun *r, struct jv v, const struct jv *bounds, struct jv *out) MUST_CHECK;
enum err jattr_own(struct jrun *r, struct jv v, struct str name, struct jv *out) MUST_CHECK; /* J_MISSING: none */
struct jv jundef_of(struct jrun *r, struct str name, const char *owner);
enum err jfail_undef(struct jrun *r, struct jv v) MUST_CHECK;

/* ---- jinja_value.c ---- */
void *jtake(struct jrun *r, size_t count, size_t bytes); /* NULL after recording the error */
struct jv jnone(void);
struct jv jbool(bool b);
struct jv jint(int64_t i);
struct jv jfloat(double f);
const char *jtype_name(struct jv v);
bool jis_number(struct jv v);  /* int, float or bool */
int64_t jint_of(struct jv v);  /* of an int or bool */
double jfloat_of(struct jv v); /* of a number */
enum err jtruth(struct jrun *r, struct jv v, bool *out) MUST_CHECK;
enum err jequal(struct jrun *r, struct jv a, struct jv b, bool *out) MUST_CHECK;
enum err jorder(struct jrun *r, struct jv a, struct jv b, enum jcmp op, bool *out) MUST_CHECK;
enum err jcontains(struct jrun *r, struct jv box, struct jv v, bool *out) MUST_CHECK;
enum err jlength(struct jrun *r, struct jv v, int64_t *out) MUST_CHECK; /* ERR_INVALID when it has none */
bool jhas_length(struct jv v);
enum err jlist_new(struct jrun *r, size_t n, struct jv **items, struct jv *out) MUST_CHECK;
enum err jtuple_new(struct jrun *r, size_t n, struct jv **items, struct jv *out) MUST_CHECK;
enum err jdict_new(struct jrun *r, size_t cap, struct jdict **out) MUST_CHECK;
enum err jdict_put(struct jrun *r, struct jdict *d, struct jv key, struct jv value) MUST_CHECK;
enum err jdict_find(struct jrun *r, const struct jdict *d, struct jv key, const struct jv **out) MUST_CHECK;
const struct jv *jdict_find_str(const struct jdict *d, struct str key);
struct jv jdict_value(const struct jdict *d);
enum err jpair_tuple(struct jrun *r, struct jv a, struct jv b, struct jv *out) MUST_CHECK;

/* ---- jinja_iter.c ---- */
enum err jiter_init(struct jrun *r, struct jv v, struct jiter *it) MUST_CHECK;
bool jis_iterable(struct jv v);
enum err jiter_next(struct jrun *r, struct jiter *it, struct jv *out, bool *done) MUST_CHECK;
enum err jiter_value(struct jrun *r, const struct jiter *it, struct jv *out) MUST_CHECK;
enum err jcollect(struct jrun *r, struct jv v, struct jlist *out) MUST_CHECK; /* list(v) */
enum err jlist_of(struct jrun *r, struct jlist l, struct jv *out) MUST_CHECK;
enum err jpipe_next(struct jrun *r, struct jpipe *p, struct jv *out, bool *done) MUST_CHECK;

/* ---- jinja_text.c: strings that remember where their bytes came from ---- */
struct jbuf {
    struct jrun *r;
    char *p;
    size_t n, cap;
    struct jspan *spans;
    size_t n_spans, cap_spans;
    enum err failure;
};

void jbuf_init(struct jbuf *b, struct jrun *r);
void jbuf_add(struct jbuf *b, struct str s, bool user);
void jbuf_add_str(struct jbuf *b, const struct jstr *s);
void jbuf_add_part(struct jbuf *b, const struct jstr *s, size_t start, size_t end);
void jbuf_add_char(struct jbuf *b, int32_t code_point, bool user);
void jbuf_pad(struct jbuf *b, char c, size_t n, bool user);
enum err jbuf_done(struct jbuf *b, struct jv *out) MUST_CHECK;
bool jstr_is_user(const struct jstr *s, size_t at); /* byte at */
bool jstr_any_user(const struct jstr *s);
enum err jstr_new(struct jrun *r, struct str s, enum jtaint taint, struct jv *out) MUST_CHECK; /* borrows the bytes */
enum err jstr_sub(struct jrun *r, const struct jstr *s, size_t start, size_t end, struct jv *out) MUST_CHECK;
enum err jstr_concat(struct jrun *r, const struct jstr *a, const struct jstr *b, struct jv *out) MUST_CHECK;
struct str jstr_str(const struct jstr *s);
size_t jstr_chars(const struct jstr *s);                      /* code points */
size_t jstr_offset(const struct jstr *s, size_t chars);       /* byte offset of a code point */
size_t jstr_find(struct str s, struct str part, size_t from); /* SIZE_MAX when absent */
bool jis_str(struct jv v, const char *literal);

/* ---- jinja_unicode.c ---- */
int32_t jchar_at(struct str s, size_t at, size_t *len); /* valid UTF-8 assumed */
bool jchar_is_space(int32_t c);
bool jchar_is_word(int32_t c);
bool jchar_is_printable(int32_t c);
bool jchar_is_line_end(int32_t c);
enum jchar_class { JCHAR_ALPHA, JCHAR_DECIMAL, JCHAR_DIGIT, JCHAR_NUMERIC, JCHAR_UPPER, JCHAR_LOWER, JCHAR_CASED };
bool jchar_is(int32_t c, enum jchar_class k);
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE, JCASE_FOLD };
size_t jchar_case(int32_t c, enum jcase k, int32_t out[3]);
enum err jstr_case(struct jrun *r, const struct jstr *s, enum jcase k, struct jv *out) MUST_CHECK;
size_t jutf8_put(int32_t c, char out[4]);
bool jsigma_is_final(struct str s, size_t at); /* of a capital sigma at a byte */

/* ---- jinja_show.c ---- */
enum err jshow(struct jrun *r, struct jv v, struct jv *out) MUST_CHECK;      /* str(v): a J_STR */
enum err jshow_into(struct jrun *r, struct jv v, struct jbuf *b) MUST_CHECK; /* the same, appended */
enum err jrepr_into(struct jrun *r, struct jv v, struct jbuf *b) MUST_CHECK;
#define JFLOAT_TEXT_MAX 32
size_t jfloat_show(double f, char out[JFLOAT_TEXT_MAX]); /* Python's repr */
bool jany_user(struct jrun *r, struct jv v);             /* anything in it came from the user */

/* ---- jinja_ops.c ---- */
enum err jbinary(struct jrun *r, enum jop op, struct jv a, struct jv b, struct jv *out) MUST_CHECK;
enum err jnegate(struct jrun *r, struct jv v, bool minus, struct jv *out) MUST_CHECK;

/* ---- jinja_json.c ---- */
enum err jfrom_json(struct jrun *r, const json_t *j, struct jv *out) MUST_CHECK;
enum err jfilter_tojson(struct jrun *r, struct jv v, const struct jargs *raw, const struct jv *arg, struct jv *out);

/* ---- jinja_format.c ---- */
/* single: the right side of % was one value and no tuple, so a list or dict may stay unused */
enum err jformat_percent(
    struct jrun *r, const struct jstr *f, const struct jargs *a, bool single, struct jv *out) MUST_CHECK;
enum err jformat_braces(struct jrun *r, const struct jstr *f, const struct jargs *a, struct jv *out) MUST_CHECK;
enum err jformat_time(struct jrun *r, const struct jstr *f, int64_t local_s, struct jv *out) MUST_CHECK;

/* ---- tables: jinja_filters.c, jinja_tests.c, jinja_methods.c, jinja_globals.c ---- */
const struct jbuiltin *jfilter_find(struct str name);
const struct jbuiltin *jtest_find(struct str name);
const struct jbuiltin *jmethod_find(uint8_t type, struct str name);
const struct jbuiltin *jmethod_case_find(struct str name);
enum err jstr_replace(struct jrun *r, const struct jstr *s, const struct jstr *old, const struct jstr *new,
    int64_t count, struct jv *out) MUST_CHECK;
enum err jstr_capitalize(struct jrun *r, const struct jstr *s, struct jv *out) MUST_CHECK;
bool jstr_is_case(const struct jstr *s, enum jchar_class wanted); /* isupper, islower */
const struct jfunc *jglobal_find(struct str name);
extern const struct jbuiltin jfilters_text[], jfilters_seq[], jfilters_value[]; /* each ends with a NULL name */
enum jmutates { JMETHOD_NONE, JMETHOD_MUTATES, JMETHOD_LEFT_OUT };
enum jmutates jmethod_refused(uint8_t type, struct str name); /* a method Python has and quern does not run */
enum err jtest_named(
    struct jrun *r, struct jv name, struct jv v, const struct jargs *a, bool *out) MUST_CHECK; /* select("odd") */
enum err jpath_get(struct jrun *r, struct jv v, struct jv path, struct jv dflt, struct jv *out) MUST_CHECK;
enum err jarg_int(struct jrun *r, struct jv v, const char *what, int64_t dflt, int64_t *out) MUST_CHECK;
enum err jarg_bool(struct jrun *r, struct jv v, bool dflt, bool *out) MUST_CHECK;
enum err jarg_str(struct jrun *r, struct jv v, const char *what, const struct jstr **out) MUST_CHECK;

#endif
