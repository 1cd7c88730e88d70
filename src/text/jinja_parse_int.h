/* Private to the lexer and the two halves of the parser: tokens and the parser's state. */
#ifndef TEXT_JINJA_PARSE_INT_H
#define TEXT_JINJA_PARSE_INT_H

#include "text/jinja_int.h"

enum jtok {
    JT_EOF,
    JT_DATA,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INTEGER,
    JT_FLOAT,
    JT_ADD,
    JT_SUB,
    JT_MUL,
    JT_DIV,
    JT_FLOORDIV,
    JT_MOD,
    JT_POW,
    JT_TILDE,
    JT_LBRACKET,
    JT_RBRACKET,
    JT_LPAREN,
    JT_RPAREN,
    JT_LBRACE,
    JT_RBRACE,
    JT_EQ,
    JT_NE,
    JT_GT,
    JT_GE,
    JT_LT,
    JT_LE,
    JT_ASSIGN,
    JT_DOT,
    JT_COLON,
    JT_PIPE,
    JT_COMMA,
    JT_SEMICOLON
};

struct jtoken {
    enum jtok type;
    uint32_t line;
    struct str text; /* data, name, or the string with its escapes resolved */
    int64_t i;
    double f;
};

/* Cut the source into tokens ending with JT_EOF, all in the arena. */
enum err jinja_lex(struct arena *a, struct str source, struct jtoken **out, uint32_t *line, struct error *e) MUST_CHECK;
const char *jtok_describe(const struct jtoken *t, char *out, size_t cap);

/* What a macro's body mentions decides what the macro accepts. */
struct jmacro_scope {
    struct jmacro_scope *outer;
    struct jmacro_def *def;
};

struct jparser {
    struct jtree *tree;
    const struct jtoken *tok; /* the current one */
    struct error *e;
    uint32_t depth;
    bool soft;                    /* inside an if of this scope: an unknown filter fails only when it runs */
    const struct jtoken *unknown; /* the first filter or test that quern does not have and that will surely run */
    bool in_loop;                 /* break and continue have a loop */
    struct jmacro_scope *macro;
};

#define PFAIL(p, code, ...) FAIL((p)->e, (code), __VA_ARGS__)

void *jparse_take(struct jparser *p, size_t count, size_t bytes); /* NULL after recording the error */
enum err jnode_new(struct jparser *p, enum jkind kind, struct jnode **out) MUST_CHECK;
uint32_t jparse_name(struct jparser *p, struct str name); /* its number; UINT32_MAX after recording the error */
bool jparse_is_name(const struct jparser *p, const char *word);
bool jparse_skip_name(struct jparser *p, const char *word);
enum err jparse_expect(struct jparser *p, enum jtok type, const char *what) MUST_CHECK;
enum err jparse_dive(struct jparser *p) MUST_CHECK;

/* A growing list of nodes while its length is unknown. */
struct jnodes {
    const struct jnode **v;
    uint32_t n, cap;
};
enum err jnodes_add(struct jparser *p, struct jnodes *l, const struct jnode *n) MUST_CHECK;

enum jtuple_end { JEND_NONE, JEND_IN, JEND_RECURSIVE };

/* jinja_parse_expr.c */
enum err jparse_expr(struct jparser *p, bool cond, const struct jnode **out) MUST_CHECK;
enum err jparse_tuple(
    struct jparser *p, bool cond, enum jtuple_end end, bool parens, const struct jnode **out) MUST_CHECK;
enum err jparse_target(struct jparser *p, bool ns, enum jtuple_end end, const struct jnode **out) MUST_CHECK;
enum err jparse_filters(
    struct jparser *p, const struct jnode *input, bool inline_start, const struct jnode **out) MUST_CHECK;

#endif
