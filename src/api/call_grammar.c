/* A call that needs a grammar. When it has to be compiled the call is kept, and its route is run again from its
 * beginning when the grammar is there: parsing a body twice costs less than keeping half a request, and nothing has
 * been taken from anybody's budget by then. */
#include "api/fields.h"
#include "api/tools.h"

static bool refuse(const struct error *e, const struct fields *f, struct api_error *ae)
{
    const char *field = f->constraint_field;
    struct error named = *e;
    if (f->constraint.kind == GRAMMAR_STRUCTURE)
        tools_explain(f->constraint.text, &named);
    if (e->code != ERR_AGAIN) {
        (void)error_prefix(&named, "'%s'", field);
        return api_fail_err(ae, &named, field);
    }
    api_fail(ae, 429, field, "the server is busy: %s", e->text);
    ae->retry_s = 1;
    return false;
}

bool call_grammar(struct call *c, struct fields *f, bool *waits, struct api_error *ae)
{
    struct error e = {0};
    *waits = false;
    if (f->constraint_field == NULL)
        return true;
    if (c->s->grammars == NULL)
        return api_fail(ae, 400, f->constraint_field,
            "'%s' is refused: the model has no tokenizer, and grammars are about text", f->constraint_field);
    struct grammars_ask *ask = c->ask;
    if (ask != NULL) { /* this is the second time */
        assert(ask->is_answered);
        f->grammar = ask->grammar;
        e = ask->error;
        c->ask = NULL;
        mem_free(ask);
        return f->grammar != NULL || refuse(&e, f, ae);
    }
    ask = mem_zalloc(sizeof *ask);
    if (ask == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    *ask = (struct grammars_ask){.box = &c->net->box, .owner = c};
    const enum err err = grammars_get(c->s->grammars, &f->constraint, ask, &f->grammar, &e);
    if (err == OK && f->grammar == NULL) {
        *waits = true;
        c->ask = ask;
        call_watch(c);
        return true;
    }
    mem_free(ask);
    return err == OK || refuse(&e, f, ae);
}

void call_forget_grammar(struct call *c)
{
    grammars_forget(c->s->grammars, c->ask);
    mem_free(c->ask);
    c->ask = NULL;
}

void calls_go_on(struct net *n)
{
    struct grammars_ask *ask;
    while (n->s->grammars != NULL && (ask = grammars_next(n->s->grammars, &n->box)) != NULL) {
        struct call *c = ask->owner;
        c->route->run(c);
        if (c->ask != NULL) /* the route ended before it came to its grammar */
            call_forget_grammar(c);
        call_maybe_done(c);
    }
}
