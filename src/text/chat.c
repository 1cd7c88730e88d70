/* The chat-template door: compiling, rendering, choosing among a model's templates; see chat.h.
 *
 * A rendering is: an arena, the variables the template names filled in from the input (everything from the user marked
 * so), one walk over the tree, and the finished text copied out together with its runs. Only names the template says
 * are looked up, so a large kwargs object costs nothing that is not asked for, except the check of reserved names. */
#include "text/chat.h"

#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

struct chat_template {
    char *name, *source;
    size_t n_source;
    struct jtree tree;
};

enum err chat_template_new(struct chat_template **out, const char *name, struct str source, struct error *e)
{
    *out = NULL;
    struct chat_template *t = mem_zalloc(sizeof *t);
    if (t == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for template %s", name);
    t->name = mem_copy_str(str_of(name));
    t->source = mem_copy_str(source);
    t->n_source = source.n;
    if (t->name == NULL || t->source == NULL) {
        chat_template_free(t);
        return FAIL(e, ERR_NOMEM, "no memory for template %s", name);
    }
    uint32_t line;
    const enum err err = jinja_parse(&t->tree, source, &line, e);
    if (err != OK) {
        char shown[80];
        error_prefix(e, "template %s line %u", str_show(str_of(name), shown, sizeof shown), line);
        chat_template_free(t);
        return err;
    }
    *out = t;
    return OK;
}

void chat_template_free(struct chat_template *t)
{
    if (t == NULL)
        return;
    arena_fini(&t->tree.arena);
    mem_free(t->name);
    mem_free(t->source);
    mem_free(t);
}

const char *chat_template_name(const struct chat_template *t)
{
    return t->name;
}

struct str chat_template_source(const struct chat_template *t)
{
    return (struct str){t->source, t->n_source};
}

bool chat_template_reads(const struct chat_template *t, const char *variable)
{
    return jinja_name_find(&t->tree, str_of(variable)) != UINT32_MAX;
}

void chat_output_init(struct chat_output *o)
{
    *o = (struct chat_output){0};
    buf_init(&o->text, CHAT_OUTPUT_BYTES_MAX);
}

void chat_output_fini(struct chat_output *o)
{
    buf_fini(&o->text);
    mem_free(o->segments);
    *o = (struct chat_output){0};
}

/* ---- variables ---- */

/* Names that belong to the conversation or to the language: kwargs may not stand in for them. */
static const char *const reserved[] = {"messages", "tools", "documents", "add_generation_prompt", "bos_token",
    "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token", "additional_special_tokens",
    "raise_exception", "strftime_now", "range", "namespace", "dict", "cycler", "joiner", "lipsum", "loop", "caller",
    "varargs", "kwargs", "self"};

static enum err check_kwargs(const struct chat_input *in, struct error *e)
{
    json_t *o = (json_t *)(uintptr_t)in->kwargs; /* jansson's iterators do not write */
    if (o != NULL && !json_is_object(o))
        return FAIL(e, ERR_INVALID, "the template's extra variables must be an object");
    for (void *it = o != NULL ? json_object_iter(o) : NULL; it != NULL; it = json_object_iter_next(o, it)) {
        const struct str key = {json_object_iter_key(it), json_object_iter_key_len(it)};
        bool taken = false;
        for (size_t i = 0; i < COUNT_OF(reserved); i++)
            taken |= str_is(key, reserved[i]);
        for (size_t i = 0; i < in->n_tokens; i++)
            taken |= str_is(key, in->tokens[i].name);
        char shown[80];
        if (taken)
            return FAIL(e, ERR_INVALID, "the template variable '%s' is reserved and cannot be set",
                str_show(key, shown, sizeof shown));
    }
    return OK;
}

static struct jv *variable(struct jrun *r, const char *name)
{
    const uint32_t id = jinja_name_find(r->tree, str_of(name));
    return id != UINT32_MAX ? &r->base[id] : NULL;
}

static enum err set_json(struct jrun *r, const char *name, const json_t *j)
{
    struct jv *v = variable(r, name);
    if (v == NULL)
        return OK;
    *v = jnone();
    return j != NULL ? jfrom_json(r, j, v) : OK;
}

/* Templates build control tokens from roles ("<|" + role + "|>"), so the well-known names count as template text. */
static bool is_known_role(struct str s)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer", "function", "ipython",
        "observation", "tool_response", "tool_call", "documents", "context", "model"};
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (str_is(s, roles[i]))
            return true;
    return false;
}

static enum err trust_roles(struct jrun *r, struct jv messages)
{
    if (messages.type != J_LIST)
        return OK;
    for (size_t i = 0; i < messages.u.l->n; i++) {
        const struct jv m = messages.u.l->items[i];
        for (size_t k = 0; m.type == J_DICT && k < m.u.d->n; k++) {
            struct jpair *p = &m.u.d->pairs[k];
            if (jis_str(p->key, "role") && p->value.type == J_STR && is_known_role(jstr_str(p->value.u.s)))
                TRY(jstr_new(r, jstr_str(p->value.u.s), JT_CLEAN, &p->value));
        }
    }
    return OK;
}

static enum err set_variables(struct jrun *r, const struct chat_input *in)
{
    for (uint32_t i = 0; i < r->tree->n_names; i++) {
        const struct jfunc *f = jglobal_find(r->tree->names[i]);
        if (f != NULL)
            r->base[i] = (struct jv){.type = J_FUNC, .u.fn = f};
    }
    for (uint32_t i = 0; in->kwargs != NULL && i < r->tree->n_names; i++) {
        const json_t *v = json_object_getn(in->kwargs, r->tree->names[i].p, r->tree->names[i].n);
        if (v != NULL)
            TRY(jfrom_json(r, v, &r->base[i]));
    }
    for (size_t i = 0; i < in->n_tokens; i++) {
        struct jv *v = variable(r, in->tokens[i].name);
        if (!utf8_is_valid(in->tokens[i].text))
            return JFAIL(r, ERR_INVALID, "the token '%s' is not valid UTF-8", in->tokens[i].name);
        if (v != NULL)
            TRY(jstr_new(r, in->tokens[i].text, JT_CLEAN, v));
    }
    if (!json_is_array(in->messages))
        return JFAIL(r, ERR_INVALID, "messages must be an array");
    TRY(set_json(r, "messages", in->messages));
    const struct jv *messages = variable(r, "messages");
    if (messages != NULL)
        TRY(trust_roles(r, *messages));
    TRY(set_json(r, "tools", in->tools));
    TRY(set_json(r, "documents", in->documents));
    struct jv *v = variable(r, "add_generation_prompt");
    if (v != NULL)
        *v = jbool(in->add_generation_prompt);
    return OK;
}

/* ---- output ---- */

static enum err add_segment(struct chat_output *o, size_t *cap, size_t start, size_t end, bool trusted, struct error *e)
{
    if (start == end)
        return OK;
    if (o->n_segments == *cap) {
        const size_t grown = *cap ? *cap * 2 : 16;
        struct chat_segment *s = mem_resize(o->segments, grown * sizeof *s);
        if (s == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for %zu segments", grown);
        o->segments = s;
        *cap = grown;
    }
    o->segments[o->n_segments++] = (struct chat_segment){start, end, trusted};
    return OK;
}

static enum err copy_out(const struct jbuf *b, struct chat_output *o, struct error *e)
{
    size_t at = 0, cap = 0;
    buf_add(&o->text, (struct str){b->p, b->n});
    TRY(buf_check(&o->text, "the rendered prompt", e));
    mem_free(o->segments);
    o->segments = NULL;
    o->n_segments = 0;
    for (size_t i = 0; i < b->n_spans; i++) {
        TRY(add_segment(o, &cap, at, b->spans[i].start, true, e));
        TRY(add_segment(o, &cap, b->spans[i].start, b->spans[i].end, false, e));
        at = b->spans[i].end;
    }
    return add_segment(o, &cap, at, b->n, true, e);
}

static enum err render(struct jrun *r, const struct chat_input *in, struct chat_output *o)
{
    struct jbuf out;
    const size_t n = r->tree->n_names;
    r->base = jtake(r, n, sizeof *r->base);
    r->root = jtake(r, n, sizeof *r->root);
    if (r->base == NULL || r->root == NULL)
        return ERR_LIMIT;
    jbuf_init(&out, r);
    r->out = &out;
    enum err err = set_variables(r, in);
    if (err == OK)
        err = jexec(r, r->tree->body);
    if (err == OK)
        err = copy_out(&out, o, r->e);
    r->out = NULL;
    return err;
}

enum err chat_render(const struct chat_template *t, const struct chat_input *in, struct chat_output *o, struct error *e)
{
    buf_clear(&o->text);
    o->n_segments = 0;
    o->steps = 0;
    o->arena_bytes = 0;
    TRY(check_kwargs(in, e));
    struct error local = {0}; /* so that the prefix is put on even when the caller wants only the code */
    struct jrun r = {.tree = &t->tree,
        .e = &local,
        .steps_max = CHAT_STEPS_MAX,
        .line = 1,
        .now_s = in->now_unix_s + in->utc_offset_s};
    arena_init(&r.arena, CHAT_RENDER_BYTES_MAX);
    enum err err = render(&r, in, o);
    o->steps = r.steps;
    o->arena_bytes = r.arena.total_bytes;
    arena_fini(&r.arena);
    if (err != OK) {
        char shown[80];
        err = local.code != OK ? local.code : err; /* an arena's "limit" may have been the machine's memory */
        buf_clear(&o->text);
        o->n_segments = 0;
        error_prefix(&local, "template %s line %u", str_show(str_of(t->name), shown, sizeof shown), r.line);
        return FAIL(e, err, "%s", local.text);
    }
    return OK;
}

/* ---- the templates of a model ---- */

struct chat_set {
    struct chat_template *templates[CHAT_SET_MAX];
    size_t n;
};

enum err chat_set_new(struct chat_set **out, struct error *e)
{
    *out = mem_zalloc(sizeof **out);
    return *out != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for chat templates");
}

void chat_set_free(struct chat_set *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n; i++)
        chat_template_free(s->templates[i]);
    mem_free(s);
}

size_t chat_set_count(const struct chat_set *s)
{
    return s->n;
}

static const struct chat_template *set_find(const struct chat_set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->templates[i]->name, name) == 0)
            return s->templates[i];
    return NULL;
}

enum err chat_set_add(struct chat_set *s, const char *name, struct str source, struct error *e)
{
    char shown[80];
    if (set_find(s, name) != NULL)
        return FAIL(e, ERR_EXISTS, "two chat templates are called '%s'", str_show(str_of(name), shown, sizeof shown));
    if (s->n == CHAT_SET_MAX)
        return FAIL(e, ERR_LIMIT, "more than %d chat templates", CHAT_SET_MAX);
    TRY(chat_template_new(&s->templates[s->n], name, source, e));
    s->n++;
    return OK;
}

enum err chat_set_add_json(struct chat_set *s, const json_t *j, struct error *e)
{
    if (json_is_string(j))
        return chat_set_add(s, "default", (struct str){json_string_value(j), json_string_length(j)}, e);
    if (json_is_object(j)) { /* name: template, as newer files have it */
        json_t *o = (json_t *)(uintptr_t)j;
        for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it)) {
            const json_t *v = json_object_iter_value(it);
            if (!json_is_string(v))
                return FAIL(e, ERR_INVALID, "field 'chat_template' must hold strings");
            TRY(chat_set_add(
                s, json_object_iter_key(it), (struct str){json_string_value(v), json_string_length(v)}, e));
        }
        return OK;
    }
    if (!json_is_array(j))
        return FAIL(e, ERR_INVALID, "field 'chat_template' must be a string or a list of templates");
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *o = json_array_get(j, i);
        struct str name = {0}, source = {0};
        if (!json_is_object(o))
            return FAIL(e, ERR_INVALID, "field 'chat_template' item %zu must be an object", i);
        TRY(json_get_str(o, "name", &name, e));
        TRY(json_get_str(o, "template", &source, e));
        if (name.p == NULL || source.p == NULL)
            return FAIL(e, ERR_INVALID, "field 'chat_template' item %zu needs 'name' and 'template'", i);
        TRY(chat_set_add(s, name.p, source, e));
    }
    return OK;
}

enum err chat_set_pick(
    const struct chat_set *s, const char *wanted, bool has_tools, const struct chat_template **out, struct error *e)
{
    char shown[80];
    *out = NULL;
    if (wanted != NULL) {
        *out = set_find(s, wanted);
        return *out != NULL ? OK
                            : FAIL(e, ERR_NOT_FOUND, "the model has no chat template called '%s'",
                                  str_show(str_of(wanted), shown, sizeof shown));
    }
    if (has_tools)
        *out = set_find(s, "tool_use");
    if (*out == NULL)
        *out = set_find(s, "default");
    if (*out == NULL && s->n == 1)
        *out = s->templates[0];
    if (*out == NULL)
        return FAIL(e, ERR_NOT_FOUND,
            s->n == 0 ? "the model has no chat template"
                      : "the model has several chat templates and none is called 'default'");
    return OK;
}
