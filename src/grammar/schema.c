/* The JSON schema front end: parse, check, take apart, write down (schema_int.h has the map). This file holds what the
 * steps share: one arena, one count of steps. Both are bounded, so that a hostile schema costs what the bounds allow,
 * and everything is given back when the expression is made. */
#include "base/limits.h"
#include "grammar/build.h"
#include "grammar/schema_int.h"

#include <string.h>

enum err schema_step(struct schema *s, uint64_t n, struct error *e)
{
    s->steps += n;
    if (s->steps > SCHEMA_STEPS_MAX)
        return FAIL(e, ERR_LIMIT, "the schema takes more than %d steps to compile", SCHEMA_STEPS_MAX);
    return build_steps(s->b, n * SCHEMA_STEP_COST) ? OK : build_check(s->b, e); /* one sum bounds the whole */
}

void *schema_take(struct schema *s, size_t count, size_t bytes, struct error *e)
{
    void *p = arena_array(&s->arena, count > 0 ? count : 1, bytes);
    if (p != NULL)
        return p;
    if (s->arena.total_bytes + count * bytes > s->arena.bytes_max)
        (void)FAIL(
            e, ERR_LIMIT, "the schema takes more than %llu bytes to compile", (unsigned long long)SCHEMA_BYTES_MAX);
    else
        (void)FAIL(e, ERR_NOMEM, "no memory to compile a schema");
    return NULL;
}

enum err schema_grow(struct schema *s, void **array, uint32_t n, uint32_t *cap, size_t bytes, struct error *e)
{
    if (n < *cap)
        return OK;
    const uint32_t more = MAX(*cap * 2, 16u);
    void *p = schema_take(s, more, bytes, e);
    if (p == NULL)
        return e->code;
    if (n > 0)
        memcpy(p, *array, n * bytes);
    *array = p;
    *cap = more;
    return OK;
}

static enum err compile(struct schema *s, expr_id *out, struct error *e)
{
    const lit_id no = LIT_FALSE;
    lit_id lit = LIT_TRUE;
    node_id root;
    TRY(schema_doc_open(s, e));
    if (json_is_object(s->doc)) {
        TRY(schema_check(s, 1, e));
        lit = (lit_id)1 << 2 | LIT_IS;
    } else if (json_is_false(s->doc))
        lit = LIT_FALSE;
    TRY(schema_node_of(s, &no, 1, &s->node_false, e));
    TRY(schema_node_of(s, &lit, 1, &root, e));
    return schema_emit(s, root, out, e);
}

enum err schema_build(struct build *b, struct str text, enum grammar_whitespace ws, expr_id *out, struct error *e)
{
    struct error own = {0}; /* the steps read its code */
    struct schema s = {.b = b, .ws = ws};
    *out = 0;
    if (text.n > SCHEMA_TEXT_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "a schema of %zu bytes; the limit is %d", text.n, SCHEMA_TEXT_BYTES_MAX);
    enum err err = json_parse(text, &s.doc, &own);
    if (err == OK) {
        arena_init(&s.arena, SCHEMA_BYTES_MAX);
        err = compile(&s, out, &own);
        arena_fini(&s.arena);
        json_decref(s.doc);
    }
    return err == OK ? OK : FAIL(e, err == ERR_FORMAT ? ERR_INVALID : err, "%s", own.text);
}

enum err schema_any_object(struct build *b, enum grammar_whitespace ws, expr_id *out, struct error *e)
{
    return schema_build(b, STR("{\"type\":\"object\"}"), ws, out, e);
}
