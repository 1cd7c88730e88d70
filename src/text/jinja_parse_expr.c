/* Expressions of the template language, by recursive descent in Jinja's own order of binding:
 *   x if c else y  <  or  <  and  <  not  <  == < in ...  <  + -  <  ~  <  * / // %  <  **  <  unary, .x [x] (x),
 * |filter, is A filter binds tighter than arithmetic but not inside a unary minus: -1|abs is (-1)|abs. */
#include "text/jinja_parse_int.h"

#include <string.h>

static enum err parse_unary(struct jparser *p, bool with_filter, const struct jnode **out);

enum err jparse_dive(struct jparser *p)
{
    if (++p->depth > CHAT_NEST_MAX)
        return PFAIL(p, ERR_LIMIT, "nested deeper than %d levels", CHAT_NEST_MAX);
    return OK;
}

enum err jnodes_add(struct jparser *p, struct jnodes *l, const struct jnode *n)
{
    if (l->n == l->cap) {
        const uint32_t cap = l->cap ? l->cap * 2 : 4;
        const struct jnode **v = jparse_take(p, cap, sizeof *v);
        if (v == NULL)
            return ERR_LIMIT;
        if (l->n > 0)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return OK;
}

static enum err list_node(struct jparser *p, enum jkind kind, const struct jnodes *l, struct jnode **out)
{
    TRY(jnode_new(p, kind, out));
    (*out)->list = l->v;
    (*out)->n = l->n;
    return OK;
}

/* A name is read: number it, and tell the macros around it what their bodies ask for. */
static enum err name_node(struct jparser *p, struct str name, const struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_NAME, &n));
    n->name = jparse_name(p, name);
    if (n->name == UINT32_MAX)
        return ERR_LIMIT;
    for (struct jmacro_scope *m = p->macro; m != NULL; m = m->outer) {
        m->def->uses_caller |= str_is(name, "caller");
        m->def->uses_varargs |= str_is(name, "varargs");
        m->def->uses_kwargs |= str_is(name, "kwargs");
    }
    *out = n;
    return OK;
}

static enum err const_node(struct jparser *p, struct jv v, const struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_CONST, &n));
    n->value = v;
    *out = n;
    return OK;
}

/* One string, or several in a row which are one. */
static enum err parse_string(struct jparser *p, const struct jnode **out)
{
    size_t total = 0;
    const struct jtoken *first = p->tok;
    for (; p->tok->type == JT_STRING; p->tok++)
        total += p->tok->text.n;
    struct jstr *s = jparse_take(p, 1, sizeof *s);
    if (s == NULL)
        return ERR_LIMIT;
    if (p->tok == first + 1)
        *s = (struct jstr){.p = first->text.p, .n = first->text.n};
    else {
        char *bytes = jparse_take(p, total + 1, 1);
        if (bytes == NULL)
            return ERR_LIMIT;
        *s = (struct jstr){.p = bytes};
        for (const struct jtoken *t = first; t < p->tok; t++) {
            memcpy(bytes + s->n, t->text.p, t->text.n);
            s->n += t->text.n;
        }
    }
    return const_node(p, (struct jv){.type = J_STR, .u.s = s}, out);
}

static enum err parse_list(struct jparser *p, const struct jnode **out)
{
    struct jnodes l = {0};
    p->tok++;
    while (p->tok->type != JT_RBRACKET) {
        if (l.n > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        if (p->tok->type == JT_RBRACKET)
            break;
        const struct jnode *item;
        TRY(jparse_expr(p, true, &item));
        TRY(jnodes_add(p, &l, item));
    }
    p->tok++;
    struct jnode *n;
    TRY(list_node(p, JN_LIST, &l, &n));
    *out = n;
    return OK;
}

static enum err parse_dict(struct jparser *p, const struct jnode **out)
{
    struct jnodes l = {0};
    p->tok++;
    while (p->tok->type != JT_RBRACE) {
        if (l.n > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        if (p->tok->type == JT_RBRACE)
            break;
        const struct jnode *item;
        TRY(jparse_expr(p, true, &item));
        TRY(jnodes_add(p, &l, item));
        TRY(jparse_expect(p, JT_COLON, "':'"));
        TRY(jparse_expr(p, true, &item));
        TRY(jnodes_add(p, &l, item));
    }
    p->tok++;
    struct jnode *n;
    TRY(list_node(p, JN_DICT, &l, &n));
    *out = n;
    return OK;
}

/* ns.x, allowed as an assignment target. */
static enum err parse_nsref(struct jparser *p, struct str name, const struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_NSREF, &n));
    p->tok++;
    n->attr = p->tok->text;
    TRY(jparse_expect(p, JT_NAME, "a name"));
    n->name = jparse_name(p, name);
    *out = n;
    return n->name == UINT32_MAX ? ERR_LIMIT : OK;
}

static enum err parse_primary(struct jparser *p, bool ns, const struct jnode **out)
{
    const struct jtoken *t = p->tok;
    char shown[64];
    switch (t->type) {
    case JT_NAME:
        p->tok++;
        if (str_is(t->text, "true") || str_is(t->text, "True"))
            return const_node(p, jbool(true), out);
        if (str_is(t->text, "false") || str_is(t->text, "False"))
            return const_node(p, jbool(false), out);
        if (str_is(t->text, "none") || str_is(t->text, "None"))
            return const_node(p, jnone(), out);
        if (ns && p->tok->type == JT_DOT)
            return parse_nsref(p, t->text, out);
        return name_node(p, t->text, out);
    case JT_STRING: return parse_string(p, out);
    case JT_INTEGER: p->tok++; return const_node(p, jint(t->i), out);
    case JT_FLOAT: p->tok++; return const_node(p, jfloat(t->f), out);
    case JT_LPAREN:
        p->tok++;
        TRY(jparse_tuple(p, true, JEND_NONE, true, out));
        return jparse_expect(p, JT_RPAREN, "')'");
    case JT_LBRACKET: return parse_list(p, out);
    case JT_LBRACE: return parse_dict(p, out);
    default: return PFAIL(p, ERR_INVALID, "unexpected %s", jtok_describe(t, shown, sizeof shown));
    }
}

/* One subscript: an expression or start:stop:step. */
static enum err parse_subscript(struct jparser *p, const struct jnode **out)
{
    const struct jnode **part = jparse_take(p, 3, sizeof *part);
    if (part == NULL)
        return ERR_LIMIT;
    if (p->tok->type != JT_COLON) {
        TRY(jparse_expr(p, true, &part[0]));
        if (p->tok->type != JT_COLON) {
            *out = part[0];
            return OK;
        }
    }
    for (int i = 1; i < 3 && p->tok->type == JT_COLON; i++) {
        p->tok++;
        if (p->tok->type != JT_COLON && p->tok->type != JT_RBRACKET && p->tok->type != JT_COMMA)
            TRY(jparse_expr(p, true, &part[i]));
    }
    struct jnode *n;
    TRY(jnode_new(p, JN_SLICE, &n));
    n->list = part;
    n->n = 3;
    *out = n;
    return OK;
}

static enum err parse_dot_or_bracket(struct jparser *p, const struct jnode *left, const struct jnode **out)
{
    const bool dot = p->tok->type == JT_DOT;
    struct jnode *n;
    TRY(jnode_new(p, dot && p->tok[1].type == JT_NAME ? JN_ATTR : JN_ITEM, &n));
    n->a = left;
    p->tok++;
    *out = n;
    if (dot) {
        if (p->tok->type == JT_NAME)
            n->attr = p->tok->text;
        else if (p->tok->type == JT_INTEGER)
            TRY(const_node(p, jint(p->tok->i), &n->b));
        else
            return PFAIL(p, ERR_INVALID, "expected a name or a number after '.'");
        p->tok++;
        return OK;
    }
    struct jnodes l = {0};
    while (p->tok->type != JT_RBRACKET) {
        if (l.n > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        const struct jnode *item;
        TRY(parse_subscript(p, &item));
        TRY(jnodes_add(p, &l, item));
    }
    p->tok++;
    if (l.n == 1) {
        n->b = l.v[0];
        return OK;
    }
    struct jnode *tuple;
    TRY(list_node(p, JN_TUPLE, &l, &tuple));
    n->b = tuple;
    return OK;
}

/* One keyword argument: name=value. */
static enum err parse_keyword(struct jparser *p, struct jcall *c, struct jnodes *values, uint32_t *cap)
{
    if (c->n_kw == *cap) {
        const uint32_t grown = *cap ? *cap * 2 : 4;
        struct str *names = jparse_take(p, grown, sizeof *names);
        if (names == NULL)
            return ERR_LIMIT;
        if (c->n_kw > 0)
            memcpy(names, c->kw_names, c->n_kw * sizeof *names);
        c->kw_names = names;
        *cap = grown;
    }
    if (c->n_kw == CHAT_KEYWORDS_MAX)
        return PFAIL(p, ERR_LIMIT, "more than %d keyword arguments in a call", CHAT_KEYWORDS_MAX);
    for (uint32_t i = 0; i < c->n_kw; i++)
        if (str_eq(c->kw_names[i], p->tok->text))
            return PFAIL(
                p, ERR_INVALID, "keyword argument '%.*s' is given twice", (int)MIN(p->tok->text.n, 60), p->tok->text.p);
    c->kw_names[c->n_kw++] = p->tok->text;
    p->tok += 2;
    const struct jnode *v;
    TRY(jparse_expr(p, true, &v));
    return jnodes_add(p, values, v);
}

static enum err parse_call_args(struct jparser *p, const struct jcall **out)
{
    struct jcall *c = jparse_take(p, 1, sizeof *c);
    if (c == NULL)
        return ERR_LIMIT;
    struct jnodes args = {0}, values = {0};
    uint32_t cap = 0;
    bool comma = false;
    TRY(jparse_expect(p, JT_LPAREN, "'('"));
    while (p->tok->type != JT_RPAREN) {
        if (comma) {
            TRY(jparse_expect(p, JT_COMMA, "','"));
            if (p->tok->type == JT_RPAREN)
                break;
        }
        comma = true;
        const struct jnode *v;
        if (c->star2 != NULL)
            return PFAIL(p, ERR_INVALID, "invalid order of call arguments");
        if (p->tok->type == JT_MUL && c->star == NULL) {
            p->tok++;
            TRY(jparse_expr(p, true, &c->star));
        } else if (p->tok->type == JT_POW) {
            p->tok++;
            TRY(jparse_expr(p, true, &c->star2));
        } else if (p->tok->type == JT_NAME && p->tok[1].type == JT_ASSIGN)
            TRY(parse_keyword(p, c, &values, &cap));
        else if (c->star != NULL || c->n_kw > 0)
            return PFAIL(p, ERR_INVALID, "invalid order of call arguments");
        else {
            TRY(jparse_expr(p, true, &v));
            TRY(jnodes_add(p, &args, v));
        }
    }
    p->tok++;
    c->args = args.v;
    c->n_args = args.n;
    c->kw_values = values.v;
    *out = c;
    return OK;
}

static enum err parse_call(struct jparser *p, const struct jnode *callee, const struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_CALLEXPR, &n));
    n->a = callee;
    *out = n;
    return parse_call_args(p, &n->call);
}

/* name or name.name, as filters and tests may be called. */
static enum err builtin_name(struct jparser *p, struct str *out)
{
    *out = p->tok->text;
    TRY(jparse_expect(p, JT_NAME, "a name"));
    while (p->tok->type == JT_DOT) {
        p->tok++;
        const struct str part = p->tok->text;
        TRY(jparse_expect(p, JT_NAME, "a name"));
        out->n = (size_t)(part.p + part.n - out->p);
    }
    return OK;
}

/* A filter or test quern does not have: an error now, unless it stands inside an if and may never run. */
static void note_unknown(struct jparser *p, const struct jtoken *name)
{
    if (!p->soft && p->unknown == NULL)
        p->unknown = name;
}

enum err jparse_filters(struct jparser *p, const struct jnode *input, bool inline_start, const struct jnode **out)
{
    while (p->tok->type == JT_PIPE || inline_start) {
        if (!inline_start)
            p->tok++;
        inline_start = false;
        struct jnode *n;
        TRY(jnode_new(p, JN_FILTEREXPR, &n));
        n->a = input;
        const struct jtoken *name = p->tok;
        TRY(builtin_name(p, &n->attr));
        n->builtin = jfilter_find(n->attr);
        if (n->builtin == NULL)
            note_unknown(p, name);
        if (p->tok->type == JT_LPAREN)
            TRY(parse_call_args(p, &n->call));
        input = n;
    }
    *out = input;
    return OK;
}

static bool starts_test_arg(const struct jparser *p)
{
    switch (p->tok->type) {
    case JT_NAME: return !jparse_is_name(p, "else") && !jparse_is_name(p, "or") && !jparse_is_name(p, "and");
    case JT_STRING:
    case JT_INTEGER:
    case JT_FLOAT:
    case JT_LBRACKET:
    case JT_LBRACE: return true;
    default: return false;
    }
}

static enum err parse_postfix(struct jparser *p, const struct jnode **node)
{
    for (;;) {
        if (p->tok->type == JT_DOT || p->tok->type == JT_LBRACKET)
            TRY(parse_dot_or_bracket(p, *node, node));
        else if (p->tok->type == JT_LPAREN)
            TRY(parse_call(p, *node, node));
        else
            return OK;
    }
}

static enum err parse_test(struct jparser *p, const struct jnode *input, const struct jnode **out)
{
    p->tok++;
    const bool negated = jparse_skip_name(p, "not");
    struct jnode *n;
    TRY(jnode_new(p, JN_TESTEXPR, &n));
    n->a = input;
    const struct jtoken *name = p->tok;
    TRY(builtin_name(p, &n->attr));
    n->builtin = jtest_find(n->attr);
    if (n->builtin == NULL)
        note_unknown(p, name);
    if (p->tok->type == JT_LPAREN)
        TRY(parse_call_args(p, &n->call));
    else if (starts_test_arg(p)) {
        if (jparse_is_name(p, "is"))
            return PFAIL(p, ERR_INVALID, "tests cannot be chained with 'is'");
        const struct jnode *arg;
        TRY(parse_primary(p, false, &arg));
        TRY(parse_postfix(p, &arg));
        struct jcall *c = jparse_take(p, 1, sizeof *c);
        struct jnodes l = {0};
        if (c == NULL)
            return ERR_LIMIT;
        TRY(jnodes_add(p, &l, arg));
        c->args = l.v;
        c->n_args = 1;
        n->call = c;
    }
    *out = n;
    if (!negated)
        return OK;
    struct jnode *not_node;
    TRY(jnode_new(p, JN_NOT, &not_node));
    not_node->a = n;
    *out = not_node;
    return OK;
}

static enum err parse_unary(struct jparser *p, bool with_filter, const struct jnode **out)
{
    TRY(jparse_dive(p));
    if (p->tok->type == JT_SUB || p->tok->type == JT_ADD) {
        struct jnode *n;
        TRY(jnode_new(p, p->tok->type == JT_SUB ? JN_NEG : JN_POS, &n));
        p->tok++;
        TRY(parse_unary(p, false, &n->a));
        *out = n;
    } else
        TRY(parse_primary(p, false, out));
    TRY(parse_postfix(p, out));
    while (with_filter) {
        if (p->tok->type == JT_PIPE)
            TRY(jparse_filters(p, *out, false, out));
        else if (jparse_is_name(p, "is"))
            TRY(parse_test(p, *out, out));
        else if (p->tok->type == JT_LPAREN)
            TRY(parse_call(p, *out, out));
        else
            break;
    }
    p->depth--;
    return OK;
}

static enum err binary_node(
    struct jparser *p, enum jop op, const struct jnode *a, const struct jnode *b, const struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_BINARY, &n));
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    *out = n;
    return OK;
}

static enum err parse_pow(struct jparser *p, const struct jnode **out)
{
    TRY(parse_unary(p, true, out));
    while (p->tok->type == JT_POW) {
        const struct jnode *right;
        p->tok++;
        TRY(parse_unary(p, true, &right));
        TRY(binary_node(p, JOP_POW, *out, right, out));
    }
    return OK;
}

static enum err parse_product(struct jparser *p, const struct jnode **out)
{
    TRY(parse_pow(p, out));
    for (;;) {
        enum jop op;
        switch (p->tok->type) {
        case JT_MUL: op = JOP_MUL; break;
        case JT_DIV: op = JOP_DIV; break;
        case JT_FLOORDIV: op = JOP_FLOORDIV; break;
        case JT_MOD: op = JOP_MOD; break;
        default: return OK;
        }
        const struct jnode *right;
        p->tok++;
        TRY(parse_pow(p, &right));
        TRY(binary_node(p, op, *out, right, out));
    }
}

static enum err parse_concat(struct jparser *p, const struct jnode **out)
{
    TRY(parse_product(p, out));
    if (p->tok->type != JT_TILDE)
        return OK;
    struct jnodes l = {0};
    TRY(jnodes_add(p, &l, *out));
    while (p->tok->type == JT_TILDE) {
        const struct jnode *item;
        p->tok++;
        TRY(parse_product(p, &item));
        TRY(jnodes_add(p, &l, item));
    }
    struct jnode *n;
    TRY(list_node(p, JN_CONCAT, &l, &n));
    *out = n;
    return OK;
}

static enum err parse_sum(struct jparser *p, const struct jnode **out)
{
    TRY(parse_concat(p, out));
    while (p->tok->type == JT_ADD || p->tok->type == JT_SUB) {
        const enum jop op = p->tok->type == JT_ADD ? JOP_ADD : JOP_SUB;
        const struct jnode *right;
        p->tok++;
        TRY(parse_concat(p, &right));
        TRY(binary_node(p, op, *out, right, out));
    }
    return OK;
}

static int compare_op(struct jparser *p)
{
    switch (p->tok->type) {
    case JT_EQ: p->tok++; return JCMP_EQ;
    case JT_NE: p->tok++; return JCMP_NE;
    case JT_LT: p->tok++; return JCMP_LT;
    case JT_LE: p->tok++; return JCMP_LE;
    case JT_GT: p->tok++; return JCMP_GT;
    case JT_GE: p->tok++; return JCMP_GE;
    default: break;
    }
    if (jparse_skip_name(p, "in"))
        return JCMP_IN;
    if (jparse_is_name(p, "not") && p->tok[1].type == JT_NAME && str_is(p->tok[1].text, "in")) {
        p->tok += 2;
        return JCMP_NOTIN;
    }
    return -1;
}

static enum err parse_compare(struct jparser *p, const struct jnode **out)
{
    TRY(parse_sum(p, out));
    struct jnodes l = {0};
    uint8_t *ops = NULL;
    uint32_t cap = 0;
    for (int op; (op = compare_op(p)) >= 0;) {
        if (l.n == cap) {
            uint8_t *grown = jparse_take(p, cap ? cap * 2 : 4, 1);
            if (grown == NULL)
                return ERR_LIMIT;
            if (cap > 0)
                memcpy(grown, ops, cap);
            ops = grown;
            cap = cap ? cap * 2 : 4;
        }
        ops[l.n] = (uint8_t)op;
        const struct jnode *right;
        TRY(parse_sum(p, &right));
        TRY(jnodes_add(p, &l, right));
    }
    if (l.n == 0)
        return OK;
    struct jnode *n;
    TRY(list_node(p, JN_COMPARE, &l, &n));
    n->a = *out;
    n->ops = ops;
    *out = n;
    return OK;
}

static enum err parse_not(struct jparser *p, const struct jnode **out)
{
    if (!jparse_is_name(p, "not"))
        return parse_compare(p, out);
    TRY(jparse_dive(p));
    struct jnode *n;
    TRY(jnode_new(p, JN_NOT, &n));
    p->tok++;
    TRY(parse_not(p, &n->a));
    *out = n;
    p->depth--;
    return OK;
}

static enum err parse_logic(struct jparser *p, bool is_or, const struct jnode **out)
{
    TRY(is_or ? parse_logic(p, false, out) : parse_not(p, out));
    while (jparse_skip_name(p, is_or ? "or" : "and")) {
        struct jnode *n;
        TRY(jnode_new(p, is_or ? JN_OR : JN_AND, &n));
        n->a = *out;
        TRY(is_or ? parse_logic(p, false, &n->b) : parse_not(p, &n->b));
        *out = n;
    }
    return OK;
}

/* What is unknown inside "x if c else y" fails only when it runs, and x is read before the "if" is seen: so unknown
 * names are only noted (p->unknown) and forgotten again when an "if" follows. */
static enum err parse_cond(struct jparser *p, const struct jnode **out)
{
    const struct jtoken *before = p->unknown;
    TRY(parse_logic(p, true, out));
    if (!jparse_is_name(p, "if"))
        return OK;
    while (jparse_skip_name(p, "if")) {
        struct jnode *n;
        TRY(jnode_new(p, JN_COND, &n));
        n->b = *out;
        TRY(parse_logic(p, true, &n->a));
        if (jparse_skip_name(p, "else"))
            TRY(jparse_expr(p, true, &n->c));
        *out = n;
    }
    p->unknown = before;
    return OK;
}

enum err jparse_expr(struct jparser *p, bool cond, const struct jnode **out)
{
    TRY(jparse_dive(p));
    TRY(cond ? parse_cond(p, out) : parse_logic(p, true, out));
    p->depth--;
    return OK;
}

static bool is_tuple_end(const struct jparser *p, enum jtuple_end end)
{
    const enum jtok t = p->tok->type;
    return t == JT_VAR_END || t == JT_BLOCK_END || t == JT_RPAREN || (end == JEND_IN && jparse_is_name(p, "in")) ||
           (end == JEND_RECURSIVE && jparse_is_name(p, "recursive"));
}

/* simple: only names and literals, as an assignment target has them. */
static enum err parse_items(
    struct jparser *p, bool simple, bool flag, enum jtuple_end end, bool parens, const struct jnode **out)
{
    struct jnodes l = {0};
    bool is_tuple = false;
    for (;;) {
        if (l.n > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        if (is_tuple_end(p, end))
            break;
        const struct jnode *item;
        TRY(simple ? parse_primary(p, flag, &item) : jparse_expr(p, flag, &item));
        TRY(jnodes_add(p, &l, item));
        if (p->tok->type != JT_COMMA)
            break;
        is_tuple = true;
    }
    if (!is_tuple && l.n > 0) {
        *out = l.v[0];
        return OK;
    }
    char shown[64];
    if (!is_tuple && !parens)
        return PFAIL(p, ERR_INVALID, "expected an expression, got %s", jtok_describe(p->tok, shown, sizeof shown));
    struct jnode *n;
    TRY(list_node(p, JN_TUPLE, &l, &n));
    *out = n;
    return OK;
}

enum err jparse_tuple(struct jparser *p, bool cond, enum jtuple_end end, bool parens, const struct jnode **out)
{
    return parse_items(p, false, cond, end, parens, out);
}

static bool can_assign(const struct jnode *n)
{
    if (n->kind == JN_TUPLE || n->kind == JN_LIST) {
        for (uint32_t i = 0; i < n->n; i++)
            if (!can_assign(n->list[i]))
                return false;
        return n->kind == JN_TUPLE;
    }
    return n->kind == JN_NAME || n->kind == JN_NSREF;
}

enum err jparse_target(struct jparser *p, bool ns, enum jtuple_end end, const struct jnode **out)
{
    struct jmacro_scope *macro = p->macro;
    p->macro = NULL; /* a name that is stored is not one that is read */
    TRY(parse_items(p, true, ns, end, false, out));
    p->macro = macro;
    if (!can_assign(*out))
        return PFAIL(p, ERR_INVALID, "this cannot be assigned to");
    return OK;
}
