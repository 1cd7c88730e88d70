/* The server: opening, attaching a model, draining, closing; see api.h. */
#include "api/api_int.h"

#include "base/team.h"
#include "text/tool_syntax.h"

#include <event2/event.h>
#include <event2/thread.h>
#include <stdio.h>
#include <string.h>

/* ---- the whole process ---- */

static void on_libevent_log(int severity, const char *text)
{
    (void)severity; /* it warns of ordinary requests; what matters we see ourselves */
    (void)text;
}

/* libevent's memory stays malloc's: it does not survive a failed allocation, so injecting one would only show that. */
static void set_up_process(void)
{
    mem_keep_little();
    event_set_log_callback(on_libevent_log);
}

/* ---- life ---- */

static enum err start_nets(struct server *s, struct error *e)
{
    /* Two: a step that gives thousands of streams a token is a burst of work, and they sleep otherwise. */
    s->n_nets = s->o.threads != 0 ? s->o.threads : team_cores() > 1 ? 2 : 1;
    if (s->n_nets > HTTP_NET_THREADS_MAX)
        return FAIL(e, ERR_LIMIT, "at most %d network threads", HTTP_NET_THREADS_MAX);
    s->nets = mem_array(s->n_nets, sizeof *s->nets);
    if (s->nets == NULL) {
        s->n_nets = 0;
        return FAIL(e, ERR_NOMEM, "no memory for network threads");
    }
    for (uint32_t i = 0; i < s->n_nets; i++)
        s->nets[i].nudge_fd = -1;
    for (uint32_t i = 0; i < s->n_nets; i++)
        TRY(net_init(&s->nets[i], s, i, e));
    for (uint32_t i = 0; i < s->n_nets; i++)
        TRY(net_start(&s->nets[i], e));
    return OK;
}

enum err server_open(const struct server_options *o, struct server **out, struct error *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up_process);
    *out = NULL;
    if (o->body_max > HTTP_BODY_BYTES_MAX || o->connections_max > HTTP_CONNECTIONS_MAX)
        return FAIL(e, ERR_LIMIT, "a body limit above %llu bytes or a connection limit above %d",
            (unsigned long long)HTTP_BODY_BYTES_MAX, HTTP_CONNECTIONS_MAX);
    struct server *s = mem_zalloc(sizeof *s);
    if (s == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a server");
    s->o = *o;
    s->o.body_max = o->body_max != 0 ? o->body_max : HTTP_BODY_BYTES_DEFAULT;
    s->o.idle_s = o->idle_s != 0 ? o->idle_s : HTTP_IDLE_S;
    s->t_open = clock_now(o->clock);
    atomic_store(&s->progress, "opening");
    enum err err = keys_init(&s->keys, e);
    if (err != OK || pthread_mutex_init(&s->replays_lock, NULL) != 0) {
        mem_free(s);
        return err != OK ? err : FAIL(e, ERR_NOMEM, "no mutex for the server");
    }
    if (o->n_keys > 0 || o->key_file != NULL)
        err = keys_load(&s->keys, o->keys, o->n_keys, o->key_file, e);
    if (err == OK && o->cert_path != NULL)
        err = tls_new(o->cert_path, o->key_path, &s->tls, e);
    if (err == OK)
        err = listen_open(s, e);
    if (err == OK)
        err = guard_init(s, e);
    if (err == OK)
        err = bodies_start(&s->bodies, e);
    if (err == OK)
        err = start_nets(s, e);
    if (err != OK)
        server_close(s);
    else
        *out = s;
    return err;
}

const char *server_url(const struct server *s)
{
    return s->url;
}

void server_progress(struct server *s, const char *phase, uint32_t percent)
{
    atomic_store(&s->progress, phase);
    atomic_store(&s->percent, percent);
}

static void nudge_all(struct server *s)
{
    for (uint32_t i = 0; i < s->n_nets; i++)
        if (s->nets[i].nudge_fd >= 0)
            net_nudge(&s->nets[i]);
}

static void send_weights(struct server *s)
{
    char name[TENANT_NAME_MAX];
    double weight = 1;
    const uint32_t n = tenant_name(&s->keys, 0, name, &weight);
    for (uint32_t i = 0; i < n; i++) {
        tenant_name(&s->keys, i, name, &weight);
        engine_tenant_weight(s->serving->engine, i, weight);
    }
}

static void measure_tokens(struct server *s)
{
    const struct tok *t = s->serving->tok;
    const struct vocab_view *v = t != NULL ? tok_vocab(t) : NULL;
    s->token_bytes_max = 1;
    for (uint32_t i = 0; v != NULL && i < v->n; i++)
        s->token_bytes_max = MAX(s->token_bytes_max, v->offsets[i + 1] - v->offsets[i]);
}

static uint32_t find_token(const struct vocab_view *v, struct str name)
{
    for (uint32_t i = 0; v != NULL && name.n > 0 && i < v->n; i++)
        if (str_eq(vocab_bytes(v, i), name))
            return i;
    return TOK_NONE;
}

/* How the model writes calls and reasoning, from the template that would be told of tools. */
static enum err choose_dialect(struct server *s, const struct serving *sv, struct error *e)
{
    const struct chat_template *t = sv->chat;
    const struct vocab_view *v = sv->tok != NULL ? tok_vocab(sv->tok) : NULL;
    if (t != NULL)
        TRY(chat_set_pick(sv->chats, NULL, true, &t, e));
    const struct tool_dialect_options o = {.template = t != NULL ? chat_template_source(t) : (struct str){0},
        .vocab = v,
        .calls = s->o.tool_call_parser,
        .reasoning = s->o.reasoning_parser};
    TRY(tool_dialect_new(&o, &s->dialect, e));
    const char *calls = tool_dialect_calls(s->dialect), *reasoning = tool_dialect_reasoning(s->dialect);
    LOG(s->o.log, LOG_INFO, "http", "syntax", log_cstr("tool_calls", calls != NULL ? calls : "none"),
        log_cstr("reasoning", reasoning != NULL ? reasoning : "none"),
        log_bool("in_template", !tool_dialect_is_guest(s->dialect)));
    s->think_begin = find_token(v, tool_dialect_think_begin(s->dialect));
    s->think_end = find_token(v, tool_dialect_think_end(s->dialect));
    struct str mark;
    if (tool_dialect_think_head(s->dialect, &mark, &s->think_head)) {
        s->think_mark = find_token(v, mark);
        s->think_begin = s->think_mark != TOK_NONE ? s->think_begin : TOK_NONE;
    } else
        s->think_head = (struct str){0};
    return OK;
}

enum err server_attach(struct server *s, const struct server_model *m, struct error *e)
{
    TRY(choose_dialect(s, m->serving, e));
    if (m->n_names == 0 || m->n_names > COUNT_OF(s->names))
        return FAIL(e, ERR_LIMIT, "a model has 1 to %zu names", COUNT_OF(s->names));
    for (size_t i = 0; i < m->n_names; i++) {
        const struct str name = str_of(m->names[i]);
        for (size_t k = 0; k < name.n; k++)
            if ((unsigned char)name.p[k] < 0x20 || name.p[k] == '"' || name.p[k] == '\\')
                return FAIL(e, ERR_INVALID, "a model's name may not contain quotes or control characters");
        if (name.n == 0 || name.n >= MODEL_NAME_BYTES_MAX || !utf8_is_valid(name))
            return FAIL(e, ERR_INVALID, "a model's name must have 1 to %d bytes of UTF-8", MODEL_NAME_BYTES_MAX - 1);
        snprintf(s->names[i], sizeof s->names[i], "%s", m->names[i]);
    }
    s->n_names = (uint32_t)m->n_names;
    s->created_s = clock_wall(s->o.clock) / (int64_t)NS_PER_S;
    s->serving = m->serving;
    snprintf(s->fingerprint, sizeof s->fingerprint, "quern-%s-%08llx", QUERN_VERSION,
        (unsigned long long)(m->serving->numerics & 0xffffffff));
    measure_tokens(s);
    if (m->serving->grammar_vocab != NULL)
        TRY(grammars_new(m->serving->grammar_vocab, &s->grammars, e));
    send_weights(s);
    atomic_store(&s->has_model, true);
    nudge_all(s);
    for (uint32_t tries = 0; atomic_load(&s->n_attached) < s->n_nets; tries++) {
        struct clock c;
        clock_init(&c);
        if (tries > 50000)
            return FAIL(e, ERR_INTERNAL, "the network threads did not take the model");
        clock_sleep(&c, 100 * NS_PER_US);
    }
    server_progress(s, "ready", 100);
    atomic_store_explicit(&s->phase, PHASE_READY, memory_order_release);
    return OK;
}

void server_drain(struct server *s)
{
    atomic_store(&s->phase, PHASE_DRAINING);
    server_progress(s, "draining", 100);
}

uint32_t server_busy(const struct server *s)
{
    return atomic_load_explicit(&((struct server *)(uintptr_t)s)->n_calls, memory_order_acquire);
}

enum err server_reload(struct server *s, struct error *e)
{
    TRY(keys_load(&s->keys, s->o.keys, s->o.n_keys, s->o.key_file, e));
    if (s->tls != NULL)
        TRY(tls_reload(s->tls, e));
    if (atomic_load(&s->has_model))
        send_weights(s);
    return OK;
}

void server_close(struct server *s)
{
    if (s == NULL)
        return;
    atomic_store(&s->phase, PHASE_CLOSING);
    nudge_all(s);
    bodies_stop(&s->bodies);
    for (uint32_t i = 0; i < s->n_nets; i++)
        net_fini(&s->nets[i]);
    bodies_free(&s->bodies, s->nets, s->n_nets);
    listen_close(s);
    grammars_free(s->grammars);
    replays_free(s);
    tls_free(s->tls);
    keys_fini(&s->keys);
    tool_dialect_free(s->dialect);
    pthread_mutex_destroy(&s->replays_lock);
    mem_free(s->nets);
    mem_free(s->conns);
    mem_free(s);
}
