/* The door: a source becomes a build, the build an automaton, and the automaton a grammar that is counted by
 * references. */
#include "base/json.h"
#include "grammar/walk.h"

#include <string.h>

static enum err choice_items(struct build *b, const json_t *list, expr_id *out, struct error *e)
{
    const size_t n = json_is_array(list) ? json_array_size(list) : 0;
    if (n == 0)
        return FAIL(e, ERR_INVALID, "choice: must be an array of at least one string");
    expr_id *x = build_take(b, n, sizeof *x);
    if (x == NULL)
        return build_check(b, e);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item) || json_string_length(item) == 0)
            return FAIL(e, ERR_INVALID, "choice[%zu]: must be a string that is not empty", i);
        x[i] = expr_bytes(b, (struct str){json_string_value(item), json_string_length(item)});
    }
    *out = expr_alt(b, x, (uint32_t)n);
    return build_check(b, e);
}

static enum err choice_build(struct build *b, struct str text, expr_id *out, struct error *e)
{
    json_t *list = NULL;
    TRY(json_parse(text, &list, e));
    const enum err err = choice_items(b, list, out, e);
    json_decref(list);
    return err;
}

static enum err source_build(struct build *b, const struct grammar_source *src, expr_id *out, struct error *e)
{
    if (src->text.n > GRAMMAR_TEXT_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "the grammar has %zu bytes; the limit is %d", src->text.n, GRAMMAR_TEXT_BYTES_MAX);
    switch (src->kind) {
    case GRAMMAR_REGEX: *out = regex_expr(b, src->text, true, e); return build_check(b, e);
    case GRAMMAR_CHOICE: return choice_build(b, src->text, out, e);
    case GRAMMAR_JSON_SCHEMA: return schema_build(b, src->text, src->whitespace, out, e);
    case GRAMMAR_JSON_OBJECT: return schema_any_object(b, src->whitespace, out, e);
    case GRAMMAR_EBNF: return ebnf_build(b, src->text, out, e);
    case GRAMMAR_STRUCTURE: return structure_build(b, src->text, src->whitespace, out, e);
    }
    return FAIL(e, ERR_INTERNAL, "no such kind of grammar: %d", (int)src->kind);
}

enum err grammar_compile(
    const struct grammar_source *src, const struct grammar_vocab *v, struct grammar **out, struct error *e)
{
    struct build b;
    expr_id root = 0;
    struct grammar *g = mem_zalloc(sizeof *g);
    if (g == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for a grammar");
    build_init(&b, v);
    enum err err = source_build(&b, src, &root, e);
    if (err == OK)
        err = automaton_make(&b, root, &g->a, e);
    build_fini(&b);
    g->vocab = v;
    atomic_init(&g->refs, 1);
    if (err == OK)
        err = mask_cache_new(&g->a, &g->masks, e);
    if (err == OK)
        err = grammar_prepare(g, e);
    if (err == OK)
        err = grammar_cuts(g, e);
    if (err == OK)
        *out = g;
    else
        grammar_unref(g);
    return err;
}

void grammar_ref(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void grammar_unref(struct grammar *g)
{
    if (g == NULL || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    mask_cache_free(g->masks);
    mem_free(g->class_of);
    mem_free(g->cut);
    automaton_fini(&g->a);
    mem_free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return sizeof *g + g->a.bytes + g->a.n_states * (1 + (g->cut != NULL ? sizeof *g->cut : 0)) +
           mask_cache_bytes(g->masks);
}

bool grammar_is_prefix(struct grammar *g, struct str text)
{
    struct grammar_walk w;
    grammar_walk_init(&w, g);
    return walk_bytes(&w, text);
}

bool grammar_matches(struct grammar *g, struct str text)
{
    struct grammar_walk w;
    grammar_walk_init(&w, g);
    return walk_bytes(&w, text) && w.complete;
}
