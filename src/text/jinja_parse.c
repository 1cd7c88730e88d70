/* Statements of the template language; expressions are in jinja_parse_expr.c.
 *
 * The result is a tree in the template's arena. What quern leaves out on purpose (include, import, extends, block,
 * autoescape: a chat template is one file and no page) is refused here, by name, when the template is loaded. */
#include "text/jinja_parse_int.h"

#include "base/hash.h"

#include <string.h>

void *jparse_take(struct jparser *p, size_t count, size_t bytes)
{
    void *m = arena_array(&p->tree->arena, count, bytes);
    const struct arena *a = &p->tree->arena;
    if (m == NULL && bytes <= (a->bytes_max - MIN(a->total_bytes, a->bytes_max)) / MAX(count, (size_t)1))
        (void)PFAIL(p, ERR_NOMEM, "no memory for the template");
    else if (m == NULL)
        (void)PFAIL(p, ERR_LIMIT, "the template needs more than %llu bytes", (unsigned long long)CHAT_TREE_BYTES_MAX);
    return m;
}

enum err jnode_new(struct jparser *p, enum jkind kind, struct jnode **out)
{
    *out = jparse_take(p, 1, sizeof **out);
    if (*out == NULL)
        return ERR_LIMIT;
    (*out)->kind = (uint8_t)kind;
    (*out)->line = p->tok->line;
    return OK;
}

static uint32_t *name_slot(const struct jtree *t, struct str name)
{
    size_t at = hash64(name.p, name.n, 0) % (CHAT_NAMES_MAX * 2);
    while (t->name_index[at] != 0 && !str_eq(t->names[t->name_index[at] - 1], name))
        at = (at + 1) % (CHAT_NAMES_MAX * 2);
    return &t->name_index[at];
}

uint32_t jinja_name_find(const struct jtree *t, struct str name)
{
    const uint32_t found = t->name_index != NULL ? *name_slot(t, name) : 0;
    return found != 0 ? found - 1 : UINT32_MAX;
}

uint32_t jparse_name(struct jparser *p, struct str name)
{
    struct jtree *t = p->tree;
    const uint32_t known = jinja_name_find(t, name);
    if (known != UINT32_MAX)
        return known;
    if (t->n_names == CHAT_NAMES_MAX) {
        (void)PFAIL(p, ERR_LIMIT, "more than %d different names", CHAT_NAMES_MAX);
        return UINT32_MAX;
    }
    if (t->n_names == t->cap_names) {
        const uint32_t cap = t->cap_names ? t->cap_names * 2 : 32;
        struct str *names = jparse_take(p, cap, sizeof *names);
        if (names == NULL)
            return UINT32_MAX;
        if (t->n_names > 0)
            memcpy(names, t->names, t->n_names * sizeof *names);
        t->names = names;
        t->cap_names = cap;
    }
    if (t->name_index == NULL)
        t->name_index = jparse_take(p, CHAT_NAMES_MAX * 2, sizeof *t->name_index);
    if (t->name_index == NULL)
        return UINT32_MAX;
    t->names[t->n_names] = name;
    *name_slot(t, name) = t->n_names + 1;
    return t->n_names++;
}

bool jparse_is_name(const struct jparser *p, const char *word)
{
    return p->tok->type == JT_NAME && str_is(p->tok->text, word);
}

bool jparse_skip_name(struct jparser *p, const char *word)
{
    const bool is = jparse_is_name(p, word);
    p->tok += is;
    return is;
}

enum err jparse_expect(struct jparser *p, enum jtok type, const char *what)
{
    char shown[64];
    if (p->tok->type != type)
        return PFAIL(p, ERR_INVALID, "expected %s, got %s", what, jtok_describe(p->tok, shown, sizeof shown));
    p->tok++;
    return OK;
}

static enum err parse_body(
    struct jparser *p, const char *end1, const char *end2, const char *end3, const struct jnode **out);

/* The statements of a block after its opening tag, up to one of the end words, which stays the current token. */
static enum err parse_block(
    struct jparser *p, const char *end1, const char *end2, const char *end3, const struct jnode **out)
{
    if (p->tok->type == JT_COLON)
        p->tok++;
    TRY(jparse_expect(p, JT_BLOCK_END, "'%}'"));
    TRY(jparse_dive(p));
    TRY(parse_body(p, end1, end2, end3, out));
    p->depth--;
    if (p->tok->type == JT_EOF)
        return PFAIL(p, ERR_INVALID, "the template ends before '%s'", end1);
    return OK;
}

/* As parse_block with one end word, which is passed over. A new scope is no soft one. */
static enum err parse_scope(struct jparser *p, const char *end, const struct jnode **out)
{
    const bool soft = p->soft;
    p->soft = false;
    TRY(parse_block(p, end, NULL, NULL, out));
    p->soft = soft;
    p->tok++;
    return OK;
}

/* A scope that runs as a function of its own: no loop outside it can be left from inside. */
static enum err parse_function_scope(struct jparser *p, const char *end, const struct jnode **out)
{
    const bool in_loop = p->in_loop;
    p->in_loop = false;
    TRY(parse_scope(p, end, out));
    p->in_loop = in_loop;
    return OK;
}

static enum err parse_if(struct jparser *p, struct jnode **out)
{
    struct jnodes parts = {0};
    const bool soft = p->soft;
    TRY(jnode_new(p, JN_IF, out));
    do {
        const struct jnode *test, *body;
        p->tok++;
        TRY(jparse_tuple(p, false, JEND_NONE, false, &test));
        p->soft = true;
        TRY(parse_block(p, "endif", "elif", "else", &body));
        p->soft = soft;
        TRY(jnodes_add(p, &parts, test));
        TRY(jnodes_add(p, &parts, body));
    } while (jparse_is_name(p, "elif"));
    if (jparse_skip_name(p, "else")) {
        p->soft = true;
        TRY(parse_block(p, "endif", NULL, NULL, &(*out)->a));
        p->soft = soft;
    }
    p->tok++;
    (*out)->list = parts.v;
    (*out)->n = parts.n;
    return OK;
}

static enum err parse_for(struct jparser *p, struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_FOR, &n));
    *out = n;
    p->tok++;
    TRY(jparse_target(p, false, JEND_IN, &n->a));
    if (n->a->kind == JN_NAME && str_is(p->tree->names[n->a->name], "loop"))
        return PFAIL(p, ERR_INVALID, "the loop variable cannot be called 'loop'");
    if (!jparse_skip_name(p, "in"))
        return PFAIL(p, ERR_INVALID, "expected 'in'");
    TRY(jparse_tuple(p, false, JEND_RECURSIVE, false, &n->b));
    const bool soft = p->soft, in_loop = p->in_loop;
    p->soft = false;
    if (jparse_skip_name(p, "if"))
        TRY(jparse_expr(p, true, &n->c));
    n->flag = jparse_skip_name(p, "recursive");
    struct jnodes bodies = {0};
    const struct jnode *body;
    p->in_loop = true;
    TRY(parse_block(p, "endfor", "else", NULL, &body));
    p->in_loop = in_loop;
    TRY(jnodes_add(p, &bodies, body));
    const bool has_else = jparse_is_name(p, "else");
    p->tok++;
    if (has_else) {
        TRY(parse_block(p, "endfor", NULL, NULL, &body));
        p->tok++;
    }
    TRY(jnodes_add(p, &bodies, has_else ? body : NULL));
    p->soft = soft;
    n->list = bodies.v;
    n->n = 2;
    return OK;
}

/* A filter chain that starts from the captured text of a block. */
static enum err parse_captured_filters(struct jparser *p, bool inline_start, const struct jnode **out)
{
    struct jnode *captured;
    TRY(jnode_new(p, JN_CAPTURED, &captured));
    return jparse_filters(p, captured, inline_start, out);
}

static enum err parse_set(struct jparser *p, struct jnode **out)
{
    struct jnode *n;
    TRY(jnode_new(p, JN_SET, &n));
    *out = n;
    p->tok++;
    TRY(jparse_target(p, true, JEND_NONE, &n->a));
    if (p->tok->type == JT_ASSIGN) {
        p->tok++;
        return jparse_tuple(p, true, JEND_NONE, false, &n->b);
    }
    n->kind = JN_SETBLOCK;
    TRY(parse_captured_filters(p, false, &n->b));
    return parse_scope(p, "endset", &n->c);
}

static enum err parse_signature(struct jparser *p, struct jmacro_def *d)
{
    uint32_t cap = 0;
    bool defaults = false;
    TRY(jparse_expect(p, JT_LPAREN, "'('"));
    while (p->tok->type != JT_RPAREN) {
        if (d->n_params > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        if (d->n_params == cap) {
            const uint32_t grown = cap ? cap * 2 : 4;
            uint32_t *ids = jparse_take(p, grown, sizeof *ids);
            struct str *names = jparse_take(p, grown, sizeof *names);
            const struct jnode **values = jparse_take(p, grown, sizeof *values);
            if (ids == NULL || names == NULL || values == NULL)
                return ERR_LIMIT;
            for (uint32_t i = 0; i < d->n_params; i++) {
                ids[i] = d->params[i];
                names[i] = d->param_names[i];
                values[i] = d->defaults[i];
            }
            d->params = ids;
            d->param_names = names;
            d->defaults = values;
            cap = grown;
        }
        const struct str name = p->tok->text;
        TRY(jparse_expect(p, JT_NAME, "a parameter name"));
        d->param_names[d->n_params] = name;
        d->params[d->n_params] = jparse_name(p, name);
        if (d->params[d->n_params] == UINT32_MAX)
            return ERR_LIMIT;
        if (p->tok->type == JT_ASSIGN) {
            p->tok++;
            TRY(jparse_expr(p, true, &d->defaults[d->n_params]));
            defaults = true;
        } else if (defaults)
            return PFAIL(p, ERR_INVALID, "a parameter without a default follows one with a default");
        d->n_params++;
    }
    p->tok++;
    return OK;
}

/* The body of a macro or of a call block. What the parameters already name is not asked for from outside. */
static enum err parse_macro_body(struct jparser *p, struct jmacro_def *d, const char *end)
{
    struct jmacro_scope scope = {.outer = p->macro, .def = d};
    p->macro = &scope;
    const enum err err = parse_function_scope(p, end, &d->body);
    p->macro = scope.outer;
    if (err != OK)
        return err;
    for (uint32_t i = 0; i < d->n_params; i++) {
        d->uses_caller &= !str_is(d->param_names[i], "caller");
        d->uses_varargs &= !str_is(d->param_names[i], "varargs");
        d->uses_kwargs &= !str_is(d->param_names[i], "kwargs");
    }
    return OK;
}

static enum err parse_macro(struct jparser *p, struct jnode **out)
{
    TRY(jnode_new(p, JN_MACRO, out));
    struct jmacro_def *d = jparse_take(p, 1, sizeof *d);
    if (d == NULL)
        return ERR_LIMIT;
    p->tok++;
    d->name = p->tok->text;
    TRY(jparse_expect(p, JT_NAME, "a macro name"));
    (*out)->name = jparse_name(p, d->name);
    if ((*out)->name == UINT32_MAX)
        return ERR_LIMIT;
    (*out)->def = d;
    TRY(parse_signature(p, d));
    return parse_macro_body(p, d, "endmacro");
}

static enum err parse_call_block(struct jparser *p, struct jnode **out)
{
    TRY(jnode_new(p, JN_CALL, out));
    struct jmacro_def *d = jparse_take(p, 1, sizeof *d);
    if (d == NULL)
        return ERR_LIMIT;
    d->name = STR("caller");
    (*out)->def = d;
    p->tok++;
    if (p->tok->type == JT_LPAREN)
        TRY(parse_signature(p, d));
    TRY(jparse_expr(p, true, &(*out)->a));
    if ((*out)->a->kind != JN_CALLEXPR)
        return PFAIL(p, ERR_INVALID, "a call block needs a call");
    return parse_macro_body(p, d, "endcall");
}

static enum err parse_with(struct jparser *p, struct jnode **out)
{
    TRY(jnode_new(p, JN_WITH, out));
    struct jnodes l = {0};
    p->tok++;
    while (p->tok->type != JT_BLOCK_END) {
        const struct jnode *part;
        if (l.n > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        TRY(jparse_target(p, false, JEND_NONE, &part));
        TRY(jnodes_add(p, &l, part));
        TRY(jparse_expect(p, JT_ASSIGN, "'='"));
        TRY(jparse_expr(p, true, &part));
        TRY(jnodes_add(p, &l, part));
    }
    (*out)->list = l.v;
    (*out)->n = l.n;
    return parse_scope(p, "endwith", &(*out)->c);
}

static enum err parse_loop_control(struct jparser *p, enum jkind kind, struct jnode **out)
{
    TRY(jnode_new(p, kind, out));
    if (!p->in_loop)
        return PFAIL(p, ERR_INVALID, "'%s' outside a loop", kind == JN_BREAK ? "break" : "continue");
    p->tok++;
    return OK;
}

static enum err parse_print(struct jparser *p, struct jnode **out)
{
    struct jnodes l = {0};
    TRY(jnode_new(p, JN_BLOCK, out));
    p->tok++;
    while (p->tok->type != JT_BLOCK_END) {
        struct jnode *n;
        if (l.n > 0)
            TRY(jparse_expect(p, JT_COMMA, "','"));
        TRY(jnode_new(p, JN_PRINT, &n));
        TRY(jparse_expr(p, true, &n->a));
        TRY(jnodes_add(p, &l, n));
    }
    (*out)->list = l.v;
    (*out)->n = l.n;
    return OK;
}

static enum err parse_statement(struct jparser *p, struct jnode **out)
{
    static const char *const left_out[] = {"include", "import", "from", "extends", "block", "autoescape"};
    char shown[64];
    if (p->tok->type != JT_NAME)
        return PFAIL(p, ERR_INVALID, "expected a tag name, got %s", jtok_describe(p->tok, shown, sizeof shown));
    if (jparse_is_name(p, "if"))
        return parse_if(p, out);
    if (jparse_is_name(p, "for"))
        return parse_for(p, out);
    if (jparse_is_name(p, "set"))
        return parse_set(p, out);
    if (jparse_is_name(p, "macro"))
        return parse_macro(p, out);
    if (jparse_is_name(p, "call"))
        return parse_call_block(p, out);
    if (jparse_is_name(p, "with"))
        return parse_with(p, out);
    if (jparse_is_name(p, "print"))
        return parse_print(p, out);
    if (jparse_is_name(p, "break"))
        return parse_loop_control(p, JN_BREAK, out);
    if (jparse_is_name(p, "continue"))
        return parse_loop_control(p, JN_CONTINUE, out);
    if (jparse_is_name(p, "generation")) {
        TRY(jnode_new(p, JN_SCOPE, out));
        p->tok++;
        return parse_function_scope(p, "endgeneration", &(*out)->c);
    }
    if (jparse_is_name(p, "filter")) {
        TRY(jnode_new(p, JN_FILTER, out));
        p->tok++;
        TRY(parse_captured_filters(p, true, &(*out)->b));
        return parse_scope(p, "endfilter", &(*out)->c);
    }
    for (size_t i = 0; i < COUNT_OF(left_out); i++)
        if (jparse_is_name(p, left_out[i]))
            return PFAIL(p, ERR_UNSUPPORTED, "the tag '%s' is not supported in chat templates", left_out[i]);
    return PFAIL(p, ERR_INVALID, "unexpected tag %s", jtok_describe(p->tok, shown, sizeof shown));
}

static bool at_end_word(const struct jparser *p, const char *end1, const char *end2, const char *end3)
{
    return (end1 != NULL && jparse_is_name(p, end1)) || (end2 != NULL && jparse_is_name(p, end2)) ||
           (end3 != NULL && jparse_is_name(p, end3));
}

static enum err data_node(struct jparser *p, struct jnode **out)
{
    TRY(jnode_new(p, JN_DATA, out));
    struct jstr *s = jparse_take(p, 1, sizeof *s);
    if (s == NULL)
        return ERR_LIMIT;
    *s = (struct jstr){.p = p->tok->text.p, .n = p->tok->text.n};
    (*out)->value = (struct jv){.type = J_STR, .u.s = s};
    p->tok++;
    return OK;
}

static enum err parse_body(
    struct jparser *p, const char *end1, const char *end2, const char *end3, const struct jnode **out)
{
    struct jnodes l = {0};
    struct jnode *block;
    TRY(jnode_new(p, JN_BLOCK, &block));
    while (p->tok->type != JT_EOF) {
        struct jnode *n;
        if (p->tok->type == JT_DATA)
            TRY(data_node(p, &n));
        else if (p->tok->type == JT_VAR_BEGIN) {
            TRY(jnode_new(p, JN_PRINT, &n));
            p->tok++;
            TRY(jparse_tuple(p, true, JEND_NONE, false, &n->a));
            TRY(jparse_expect(p, JT_VAR_END, "'}}'"));
        } else {
            p->tok++;
            if (at_end_word(p, end1, end2, end3))
                break;
            TRY(parse_statement(p, &n));
            TRY(jparse_expect(p, JT_BLOCK_END, "'%}'"));
        }
        TRY(jnodes_add(p, &l, n));
    }
    block->list = l.v;
    block->n = l.n;
    *out = block;
    return OK;
}

enum err jinja_parse(struct jtree *t, struct str source, uint32_t *line, struct error *e)
{
    struct jparser p = {.tree = t, .e = e};
    arena_init(&t->arena, CHAT_TREE_BYTES_MAX);
    *line = 1;
    if (source.n > CHAT_TEMPLATE_BYTES_MAX)
        return FAIL(
            e, ERR_LIMIT, "%zu bytes; the limit is %llu", source.n, (unsigned long long)CHAT_TEMPLATE_BYTES_MAX);
    if (!utf8_is_valid(source))
        return FAIL(e, ERR_FORMAT, "not valid UTF-8");
    struct jtoken *toks;
    TRY(jinja_lex(&t->arena, source, &toks, line, e));
    p.tok = toks;
    const enum err err = parse_body(&p, NULL, NULL, NULL, &t->body);
    *line = p.tok->line;
    if (err != OK)
        return err;
    if (p.unknown != NULL) {
        char shown[80];
        *line = p.unknown->line;
        return FAIL(e, ERR_UNSUPPORTED, "no filter or test named '%s'", str_show(p.unknown->text, shown, sizeof shown));
    }
    static const char *const special[] = {"loop", "caller", "varargs", "kwargs"};
    uint32_t *const ids[] = {&t->id_loop, &t->id_caller, &t->id_varargs, &t->id_kwargs};
    for (size_t i = 0; i < COUNT_OF(special); i++) {
        *ids[i] = jparse_name(&p, str_of(special[i]));
        if (*ids[i] == UINT32_MAX)
            return ERR_LIMIT;
    }
    return OK;
}
