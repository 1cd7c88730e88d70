/* A generation being made: fields and prompts into requests for the engine; see generate.h. Nothing here has been
 * handed over yet, so whatever fails is simply freed. */
#include "api/generate.h"

#include "api/prompt.h"

#include <stdio.h>
#include <string.h>

#define EVENT_HEAD_MAX 1024

static struct str copy(struct generation *g, struct str s)
{
    char *p = arena_copy_str(&g->arena, s);
    return p != NULL ? (struct str){p, s.n} : (struct str){0};
}

static bool make_head(struct generation *g)
{
    struct server *s = g->net->s;
    char head[EVENT_HEAD_MAX];
    const int n = snprintf(head, sizeof head,
        "data: {\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":\"%s\",\"system_fingerprint\":\"%s\","
        "\"choices\":[",
        g->id, g->kind == GEN_CHAT ? "chat.completion.chunk" : "text_completion", (long long)g->created_s, s->names[0],
        s->fingerprint);
    if (n < 0 || (size_t)n >= sizeof head)
        return false;
    g->head = copy(g, (struct str){head, (size_t)n});
    return g->head.p != NULL;
}

static bool copy_fields(struct generation *g, const struct fields *f)
{
    g->n = f->n;
    g->n_top = f->n_top;
    g->n_prompt_top = f->n_prompt_top;
    g->stream_interval = f->stream_interval;
    g->stream = f->stream;
    g->include_usage = f->include_usage;
    g->continuous_usage = f->continuous_usage;
    g->include_times = f->include_times;
    g->include_stop = f->include_stop;
    g->show_special = f->show_special;
    g->want_logprobs = f->want_logprobs;
    g->want_prompt_logprobs = f->want_prompt_logprobs;
    g->return_token_ids = f->return_token_ids;
    g->tokens_as_ids = f->tokens_as_ids;
    g->n_stop_ids = f->n_stop_ids;
    memcpy(g->stop_ids, f->stop_ids, f->n_stop_ids * sizeof f->stop_ids[0]);
    g->stops = arena_array(&g->arena, f->n_stops, sizeof *g->stops);
    bool ok = g->stops != NULL;
    for (uint32_t i = 0; ok && i < f->n_stops; i++) {
        g->stops[i] = copy(g, f->stops[i]);
        ok = g->stops[i].p != NULL;
    }
    return ok;
}

struct generation *generation_new(
    struct call *c, enum generation_kind kind, const struct fields *f, uint32_t n_parts, struct api_error *ae)
{
    struct generation *g = mem_zalloc(sizeof *g);
    if (g == NULL) {
        api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
        return NULL;
    }
    arena_init(&g->arena, 64 * MIB);
    g->call = c;
    g->net = c->net;
    g->kind = kind;
    g->tenant = c->tenant;
    g->created_s = clock_wall(c->s->o.clock) / (int64_t)NS_PER_S;
    static const char *const prefixes[] = {
        [GEN_CHAT] = "chatcmpl", [GEN_COMPLETION] = "cmpl", [GEN_EMBEDDING] = "embd", [GEN_MESSAGE] = "msg"};
    snprintf(g->id, sizeof g->id, "%s-%s", prefixes[kind], c->id);
    g->n_parts_max = n_parts;
    g->parts = arena_array(&g->arena, n_parts, sizeof *g->parts);
    if (g->parts == NULL || !copy_fields(g, f) || !make_head(g)) {
        api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
        generation_free(g);
        return NULL;
    }
    return g;
}

void generation_free(struct generation *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 0; g->parts != NULL && i < g->n_parts; i++) {
        for (uint32_t k = 0; k < g->n; k++)
            if (g->parts[i].said[k].speech != NULL)
                speech_fini(g->parts[i].said[k].speech);
        if (g->parts[i].said[0].blocks != NULL)
            blocks_fini(g->parts[i].said[0].blocks);
        request_free(g->parts[i].r);
    }
    tool_ask_free(g->ask);
    if (g->replay != NULL)
        replay_release(g->replay);
    arena_fini(&g->arena);
    mem_free(g);
}

uint32_t generation_room(const struct call *c, const struct fields *f, size_t n_prompt, struct api_error *ae)
{
    const uint32_t context = c->s->serving->fit.context;
    const char *key = f->pool != POOL_NONE ? "input" : "prompt";
    if (n_prompt == 0) {
        api_fail(ae, 400, key, "the %s has no tokens", key);
        return 0;
    }
    if (n_prompt >= context) {
        api_fail_code(ae, 400, key, "context_length_exceeded",
            "This model's maximum context length is %u tokens. However, your prompt has %zu tokens, which leaves no "
            "room for an answer. Please reduce the length of the prompt.",
            context, n_prompt);
        return 0;
    }
    const uint32_t room = context - (uint32_t)n_prompt;
    if (f->max_tokens != UINT32_MAX && f->max_tokens > room) {
        api_fail_code(ae, 400, "max_tokens", "context_length_exceeded",
            "This model's maximum context length is %u tokens. However, you requested %u tokens (%zu in the prompt, %u "
            "in the completion). Please reduce the length of the prompt or of the completion.",
            context, f->max_tokens + (uint32_t)n_prompt, n_prompt, f->max_tokens);
        return 0;
    }
    return f->max_tokens != UINT32_MAX ? MAX(f->max_tokens, 1u) : room;
}

static int32_t priority_of(const struct call *c, const struct fields *f)
{
    int32_t priority = f->priority;
    (void)tenant_priority(&c->s->keys, c->tenant, &priority); /* a tenant's own wins over what it asks for */
    return priority;
}

/* The ids that end an answer: the model's own and the request's. */
static uint32_t gather_stop_ids(const struct serving *sv, const struct fields *f, uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sv->n_stop_ids && !f->ignore_eos; i++)
        out[n++] = sv->stop_ids[i];
    for (uint32_t i = 0; i < f->n_stop_ids; i++)
        out[n++] = f->stop_ids[i];
    return n;
}

/* A budget for reasoning is kept by the scheduler, by its marks. Guesses would blur where it ends. */
static bool budget_thinking(const struct generation *g, struct request_options *o, struct api_error *ae)
{
    const struct server *s = g->net->s;
    if (g->ask->budget == THINK_ANY)
        return true;
    if (s->think_begin == TOK_NONE || s->think_end == TOK_NONE)
        return api_fail_code(ae, 400, "thinking_budget", "unsupported_parameter",
            "a budget for thinking is refused: the model's marks around reasoning are not single tokens");
    o->think_budget = MAX(g->ask->budget, 1u);
    o->think_begin = s->think_begin;
    o->think_end = s->think_end;
    o->think_head = s->think_head;
    o->think_mark = s->think_mark;
    if (o->think_head.n > 0)
        o->vocab = tok_vocab(s->serving->tok);
    o->is_thinking = g->ask->start == REASONING_OPEN;
    o->spec = SPEC_NONE;
    return true;
}

static bool make_request(struct generation *g, const struct fields *f, const uint32_t *ids, uint32_t n, uint32_t room,
    struct request **out, struct api_error *ae)
{
    const struct serving *sv = g->net->s->serving;
    uint32_t stop_ids[REQ_STOP_IDS_MAX + SERVING_STOP_IDS_MAX];
    struct error e = {0};
    struct stop_set *stops = NULL;
    struct request_options o = {.prompt = ids,
        .n_prompt = n,
        .max_tokens = room,
        .min_tokens = MIN(f->min_tokens, room),
        .n_choices = f->n,
        .sample = f->sample,
        .stop_ids = stop_ids,
        .banned_ids = sv->stop_ids,
        .n_banned_ids = f->ignore_eos ? sv->n_stop_ids : 0,
        .vocab = sv->tok != NULL ? tok_vocab(sv->tok) : NULL,
        .lead = sv->tok != NULL ? tok_lead_rule(sv->tok) : (struct tok_lead){0},
        .show_special = f->show_special,
        .mark_special = g->ask != NULL && g->ask->parses,
        .allowed = f->allowed,
        .vocab_size = sv->config.vocab,
        .n_top = MAX(f->n_top, f->n_prompt_top),
        .pool = f->pool,
        .n_hidden = sv->config.hidden,
        .want_logprobs = f->want_logprobs,
        .want_prompt_logprobs = f->want_prompt_logprobs || (g->echo && f->want_logprobs),
        .tenant = g->tenant,
        .priority = priority_of(g->call, f),
        .salt = f->salt,
        .read_window = f->stream ? SSE_UNREAD_TOKENS : 0};
    o.n_stop_ids = gather_stop_ids(sv, f, stop_ids);
    if (sample_params_check(&f->sample, sv->config.vocab, &e) != OK)
        return api_fail_err(ae, &e, NULL);
    if (serving_spec(sv, f->spec, f->spec_k, &o, &e) != OK)
        return api_fail_code(ae, 400, "speculative", "unsupported_parameter", "'speculative' is refused: %s", e.text);
    if (g->ask != NULL && !budget_thinking(g, &o, ae))
        return false;
    if (f->n_stops > 0 && sv->tok != NULL && stop_set_new(&stops, f->stops, f->n_stops, &e) != OK)
        return api_fail_err(ae, &e, "stop");
    o.stops = stops;
    o.grammar = f->grammar;
    if (f->grammar != NULL)
        grammar_ref(f->grammar);
    if (request_new(&o, out, &e) != OK) {
        stop_set_free(stops);
        grammar_unref(f->grammar);
        return api_fail_err(ae, &e, NULL);
    }
    return true;
}

static bool make_speeches(struct generation *g, struct part *p, const struct fields *f, struct api_error *ae)
{
    const uint64_t seed = hash64(p->r->o.prompt, p->r->o.n_prompt * sizeof *p->r->o.prompt, 1);
    for (uint32_t k = 0; k < f->n; k++) {
        struct speech *s = arena_take(&g->arena, sizeof *s);
        if (s == NULL)
            return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
        p->said[k].speech = s;
        if (!speech_init(s, g->call, g->ask, f->stream, f->show_special, seed + (uint64_t)k * 1000003, ae))
            return false;
        s->blocks = p->said[k].blocks;
    }
    return true;
}

static bool make_blocks(struct generation *g, struct part *p, const struct fields *f, struct api_error *ae)
{
    struct blocks *b = arena_take(&g->arena, sizeof *b);
    if (b == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    blocks_init(b, f->stream);
    p->said[0].blocks = b;
    return true;
}

bool generation_prompt(
    struct generation *g, const struct fields *f, const uint32_t *ids, size_t n, struct api_error *ae)
{
    const struct serving *sv = g->net->s->serving;
    assert(g->n_parts < g->n_parts_max);
    if (f->truncate > 0 && n > f->truncate) {
        ids += n - f->truncate;
        n = f->truncate;
    }
    const uint32_t room = generation_room(g->call, f, n, ae);
    if (room == 0)
        return false;
    struct part *p = &g->parts[g->n_parts];
    *p = (struct part){.g = g, .index = g->n_parts, .is_back = true};
    p->said = arena_array(&g->arena, f->n, sizeof *p->said);
    if (p->said == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    if (!make_request(g, f, ids, (uint32_t)n, room, &p->r, ae))
        return false;
    p->r->user = p;
    g->n_parts++;
    g->reserved += n + (uint64_t)f->n * room;
    for (uint32_t k = 0; k < f->n && sv->tok != NULL; k++)
        detok_init(&p->said[k].detok, tok_vocab(sv->tok), tok_lead_rule(sv->tok), p->r->o.stops,
            (struct detok_opts){.show_special = f->show_special,
                .continues = true,
                .include_stop = f->include_stop,
                .min_ids = p->r->o.min_tokens,
                .mark_special = p->r->o.mark_special});
    if (g->kind == GEN_MESSAGE && !make_blocks(g, p, f, ae))
        return false;
    return g->ask == NULL || !g->ask->parses || make_speeches(g, p, f, ae);
}

static bool add_prompt(struct generation *g, const struct fields *f, const json_t *v, bool add_special, const char *key,
    struct api_error *ae)
{
    struct tok_ids ids = {0};
    uint32_t *room = NULL;
    size_t n = 0;
    bool ok;
    if (json_is_string(v)) {
        const struct str text = {json_string_value(v), json_string_length(v)};
        ok = prompt_from_text(g->call, text, add_special, key, &ids, ae) && generation_prompt(g, f, ids.p, ids.n, ae);
    } else if (json_is_array(v)) {
        ok = prompt_from_ids(g->call, v, key, &room, &n, ae) && generation_prompt(g, f, room, n, ae);
    } else
        ok = api_fail(ae, 400, key, "'%s' must be all strings or all arrays of token ids", key);
    mem_free(room);
    return ok;
}

bool generation_prompts(struct generation *g, const struct fields *f, const json_t *v, bool add_special,
    const char *key, struct api_error *ae)
{
    const json_t *first = json_array_get(v, 0);
    const bool is_one = !json_is_string(first) && !json_is_array(first);
    bool ok = true;
    for (uint32_t i = 0; ok && i < g->n_parts_max; i++)
        ok = add_prompt(g, f, is_one ? v : json_array_get(v, i), add_special, key, ae);
    return ok;
}
