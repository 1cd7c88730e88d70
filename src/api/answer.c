/* What was generated, as JSON: text, log-probabilities, usage; whole or piece by piece. See generate.h.
 *
 * A token's text is its bytes alone. Where they are not valid UTF-8, chat shows U+FFFD and lists the bytes;
 * completions, where texts are keys of an object, spell them as bytes:\xNN so that keys differ. */
#include "api/generate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TOKEN_TEXT_MAX (TOK_NAME_BYTES_MAX * 4 + 16)

static const struct vocab_view *vocab_of(const struct generation *g)
{
    const struct tok *t = g->net->s->serving->tok;
    return t != NULL ? tok_vocab(t) : NULL;
}

const char *answer_finish(const struct part *p, uint32_t i_choice)
{
    const struct speech *speech = p->said[i_choice].speech;
    if (p->g->echo_only)
        return "length";
    switch ((enum req_end)atomic_load_explicit(&p->r->choices[i_choice].end, memory_order_acquire)) {
    case END_EOS:
    case END_STOP: return speech != NULL && speech->n_calls > 0 ? "tool_calls" : "stop";
    case END_LENGTH: return "length";
    default: return "abort";
    }
}

void answer_stop_reason(const struct part *p, uint32_t i_choice, struct buf *out)
{
    const struct generation *g = p->g;
    const struct choice *ch = &p->r->choices[i_choice];
    const int end = atomic_load_explicit(&ch->end, memory_order_acquire);
    const uint32_t n_out = atomic_load_explicit(&ch->n_out, memory_order_acquire);
    if (end == END_STOP) {
        buf_add_json_str(out, g->stops[ch->stop_index]);
        return;
    }
    for (uint32_t i = 0; end == END_EOS && n_out > 0 && i < g->n_stop_ids; i++)
        if (g->stop_ids[i] == ch->ids[n_out - 1]) {
            buf_addf(out, "%u", g->stop_ids[i]);
            return;
        }
    buf_add(out, STR("null"));
}

/* How guesses fared and what was reasoning, under OpenAI's names; of requests that may have had some. */
static void add_details(const struct generation *g, struct buf *out)
{
    uint64_t drafted = 0, accepted = 0, reasoning = 0;
    bool guesses = false, reasons = false;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const struct part *p = &g->parts[i];
        for (uint32_t k = 0; k < g->n && p->said[k].speech != NULL; k++) {
            reasons |= tool_dialect_reasoning(g->net->s->dialect) != NULL;
            reasoning += p->said[k].speech->n_reasoning;
        }
        if (!p->is_back || p->r->o.spec == SPEC_NONE) /* the counts are the engine's until then */
            continue;
        guesses = true;
        drafted += p->r->spec_drafted;
        accepted += p->r->spec_accepted;
    }
    if (!guesses && !reasons)
        return;
    buf_add(out, STR(",\"completion_tokens_details\":{"));
    if (reasons) {
        buf_add(out, STR("\"reasoning_tokens\":"));
        buf_add_u64(out, reasoning);
    }
    if (guesses) {
        buf_addf(out, "%s\"accepted_prediction_tokens\":", reasons ? "," : "");
        buf_add_u64(out, accepted);
        buf_add(out, STR(",\"rejected_prediction_tokens\":"));
        buf_add_u64(out, drafted - accepted);
    }
    buf_add(out, STR("}"));
}

void answer_usage(const struct generation *g, struct buf *out)
{
    uint64_t prompt = 0, output = 0, cached = 0;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const struct request *r = g->parts[i].r;
        prompt += r->o.n_prompt;
        cached += r->n_cached;
        for (uint32_t k = 0; k < r->n_choices && !g->echo_only; k++)
            output += atomic_load_explicit(&r->choices[k].n_out, memory_order_acquire);
    }
    buf_add(out, STR("{\"prompt_tokens\":"));
    buf_add_u64(out, prompt);
    buf_add(out, STR(",\"completion_tokens\":"));
    buf_add_u64(out, output);
    buf_add(out, STR(",\"total_tokens\":"));
    buf_add_u64(out, prompt + output);
    buf_add(out, STR(",\"prompt_tokens_details\":{\"cached_tokens\":"));
    buf_add_u64(out, cached);
    buf_add(out, STR("}"));
    add_details(g, out);
    buf_add(out, STR("}"));
}

/* ---- tokens ---- */

static struct str token_bytes(const struct generation *g, uint32_t id, struct tok_text *t)
{
    const struct vocab_view *v = vocab_of(g);
    if (v != NULL && id < v->n)
        return vocab_bytes(v, id);
    const int n = snprintf(t->room, sizeof t->room, "%u ", id);
    return (struct str){t->room, (size_t)n};
}

static void add_number(struct buf *out, float x)
{
    if (isfinite(x))
        buf_addf(out, "%.9g", (double)x);
    else
        buf_add(out, STR("-9999.0")); /* as OpenAI writes what cannot happen */
}

static void add_token(const struct generation *g, uint32_t id, bool as_key, struct buf *out)
{
    struct tok_text t;
    const struct str s = token_bytes(g, id, &t);
    if (g->tokens_as_ids) {
        buf_addf(out, "\"token_id:%u\"", id);
    } else if (as_key && !utf8_is_valid(s)) {
        buf_add(out, STR("\"bytes:"));
        for (size_t i = 0; i < s.n; i++)
            buf_addf(out, "\\\\x%02x", (unsigned char)s.p[i]);
        buf_add_char(out, '"');
    } else
        buf_add_json_str(out, s);
}

static void add_chat_logprob(const struct generation *g, uint32_t id, float logprob, struct buf *out)
{
    struct tok_text t;
    const struct str s = token_bytes(g, id, &t);
    buf_add(out, STR("{\"token\":"));
    add_token(g, id, false, out);
    buf_add(out, STR(",\"logprob\":"));
    add_number(out, logprob);
    buf_add(out, STR(",\"bytes\":["));
    for (size_t i = 0; i < s.n; i++)
        buf_addf(out, "%s%u", i > 0 ? "," : "", (unsigned char)s.p[i]);
    buf_add_char(out, ']');
}

void answer_logprobs(const struct part *p, uint32_t i_choice, uint32_t from, uint32_t to, struct buf *out)
{
    const struct generation *g = p->g;
    const struct choice *ch = &p->r->choices[i_choice];
    const uint32_t n_top = p->r->o.n_top;
    if (!g->want_logprobs) {
        buf_add(out, STR("null"));
        return;
    }
    buf_add(out, STR("{\"content\":["));
    for (uint32_t i = from; i < to; i++) {
        if (i > from)
            buf_add_char(out, ',');
        add_chat_logprob(g, ch->ids[i], ch->logprobs[i], out);
        buf_add(out, STR(",\"top_logprobs\":["));
        for (uint32_t k = 0; k < MIN(g->n_top, n_top); k++) {
            const struct token_logprob *t = &ch->top[(size_t)i * n_top + k];
            if (k > 0)
                buf_add_char(out, ',');
            add_chat_logprob(g, t->id, t->logprob, out);
            buf_add_char(out, '}');
        }
        buf_add(out, STR("]}"));
    }
    buf_add(out, STR("],\"refusal\":null}"));
}

uint64_t answer_count_chars(struct str text)
{
    uint64_t n = 0;
    for (size_t i = 0; i < text.n; i++)
        n += ((unsigned char)text.p[i] & 0xc0) != 0x80;
    return n;
}

/* One array of the completions' logprobs at a time, over the prompt (with echo) and then the output. */
enum column { COLUMN_TOKENS, COLUMN_LOGPROBS, COLUMN_TOP, COLUMN_OFFSETS };

struct row {
    uint32_t id;
    bool has_logprob;
    float logprob;
    const struct token_logprob *top;
};

static void add_cell(
    const struct generation *g, enum column col, const struct row *r, uint32_t n_top, uint64_t offset, struct buf *out)
{
    switch (col) {
    case COLUMN_TOKENS: add_token(g, r->id, true, out); return;
    case COLUMN_LOGPROBS:
        if (r->has_logprob)
            add_number(out, r->logprob);
        else
            buf_add(out, STR("null"));
        return;
    case COLUMN_OFFSETS: buf_addf(out, "%llu", (unsigned long long)offset); return;
    case COLUMN_TOP: break;
    }
    if (!r->has_logprob) {
        buf_add(out, STR("null"));
        return;
    }
    bool has_own = false;
    buf_add_char(out, '{');
    for (uint32_t k = 0; k < n_top; k++) {
        if (k > 0)
            buf_add_char(out, ',');
        add_token(g, r->top[k].id, true, out);
        buf_add_char(out, ':');
        add_number(out, r->top[k].logprob);
        has_own |= r->top[k].id == r->id;
    }
    if (!has_own) {
        if (n_top > 0)
            buf_add_char(out, ',');
        add_token(g, r->id, true, out);
        buf_add_char(out, ':');
        add_number(out, r->logprob);
    }
    buf_add_char(out, '}');
}

static struct row prompt_row(const struct request *r, uint32_t i)
{
    const bool has = i > 0 && r->prompt_logprobs != NULL && i < r->n_prompt_logprobs;
    return (struct row){.id = r->o.prompt[i],
        .has_logprob = has,
        .logprob = has ? r->prompt_logprobs[i].logprob : 0,
        .top = r->prompt_top != NULL ? &r->prompt_top[(size_t)i * r->o.n_top] : NULL};
}

void answer_completion_logprobs(const struct part *p, uint32_t i_choice, struct answer_span span, struct buf *out)
{
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    const struct generation *g = p->g;
    const struct request *r = p->r;
    const struct choice *ch = &r->choices[i_choice];
    const uint32_t n_prompt = span.with_prompt ? r->o.n_prompt : 0, from = span.from, to = span.to;
    if (!g->want_logprobs) {
        buf_add(out, STR("null"));
        return;
    }
    for (enum column col = COLUMN_TOKENS; col <= COLUMN_OFFSETS; col++) {
        uint64_t offset = span.first_char;
        bool comma = false;
        buf_addf(out, "%c\"%s\":[", col == COLUMN_TOKENS ? '{' : ',', names[col]);
        for (uint32_t i = 0; i < n_prompt + (to - from); i++) {
            struct tok_text t;
            const uint32_t k = from + i - n_prompt;
            const struct row row = i < n_prompt ? prompt_row(r, i)
                                                : (struct row){ch->ids[k], true, ch->logprobs[k],
                                                      ch->top != NULL ? &ch->top[(size_t)k * r->o.n_top] : NULL};
            if (comma)
                buf_add_char(out, ',');
            comma = true;
            add_cell(g, col, &row, row.top != NULL ? MIN(g->n_top, r->o.n_top) : 0, offset, out);
            offset += answer_count_chars(token_bytes(g, row.id, &t));
        }
        buf_add_char(out, ']');
    }
    buf_add_char(out, '}');
}

/* vLLM's form: null for the first token, then {"id": {"logprob", "rank", "decoded_token"}} of the token and the best.
 */
void answer_prompt_logprobs(const struct part *p, struct buf *out)
{
    const struct generation *g = p->g;
    const struct request *r = p->r;
    if (!g->want_prompt_logprobs) {
        buf_add(out, STR("null"));
        return;
    }
    buf_add(out, STR("[null"));
    for (uint32_t i = 1; i < r->o.n_prompt && i < r->n_prompt_logprobs; i++) {
        const struct row row = prompt_row(r, i);
        buf_addf(out, ",{\"%u\":{\"logprob\":", row.id);
        add_number(out, row.logprob);
        buf_addf(out, ",\"rank\":%u,\"decoded_token\":", r->prompt_logprobs[i].rank);
        add_token(g, row.id, false, out);
        buf_add_char(out, '}');
        for (uint32_t k = 0; row.top != NULL && k < MIN(g->n_prompt_top, r->o.n_top); k++) {
            if (row.top[k].id == row.id)
                continue;
            buf_addf(out, ",\"%u\":{\"logprob\":", row.top[k].id);
            add_number(out, row.top[k].logprob);
            buf_addf(out, ",\"rank\":%u,\"decoded_token\":", k + 1);
            add_token(g, row.top[k].id, false, out);
            buf_add_char(out, '}');
        }
        buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
}

void answer_ids(const uint32_t *ids, uint32_t n, struct buf *out)
{
    buf_add_char(out, '[');
    for (uint32_t i = 0; i < n; i++)
        buf_addf(out, "%s%u", i > 0 ? "," : "", ids[i]);
    buf_add_char(out, ']');
}

/* The model's end token is no part of the text and of its log-probabilities. */
uint32_t answer_n_told(const struct generation *g, const struct choice *ch, uint32_t n_out, bool ended)
{
    const bool eos = ended && atomic_load_explicit(&ch->end, memory_order_acquire) == END_EOS;
    return g->echo_only ? 0 : eos && n_out > 0 && !g->include_stop ? n_out - 1 : n_out;
}

/* ---- text ---- */

/* Token by token: those of the reasoning are counted. Nothing is left in out. */
static enum err feed_speech(struct said *said, const struct choice *ch, uint32_t n, bool ended, struct buf *out)
{
    for (; said->n_fed < n; said->n_fed++) {
        TRY(detok_feed(&said->detok, ch->ids[said->n_fed], out, NULL));
        TRY(speech_feed(said->speech, buf_str(out)));
        buf_clear(out);
    }
    if (!ended)
        return OK;
    TRY(detok_end(&said->detok, out, NULL));
    if (out->n > 0)
        TRY(speech_feed(said->speech, buf_str(out)));
    buf_clear(out);
    return speech_end(said->speech);
}

enum err answer_feed(struct part *p, uint32_t i_choice, uint32_t n_out, bool ended, struct buf *out)
{
    struct said *said = &p->said[i_choice];
    const struct choice *ch = &p->r->choices[i_choice];
    const uint32_t n = answer_n_told(p->g, ch, n_out, ended);
    const bool has_tok = p->g->net->s->serving->tok != NULL;
    if (said->speech != NULL)
        return feed_speech(said, ch, n, ended, out);
    for (; said->n_fed < n; said->n_fed++) {
        if (has_tok)
            TRY(detok_feed(&said->detok, ch->ids[said->n_fed], out, NULL));
        else
            buf_addf(out, "%u ", ch->ids[said->n_fed]);
    }
    if (ended && has_tok)
        TRY(detok_end(&said->detok, out, NULL));
    return out->failure;
}

void answer_prompt_text(const struct part *p, struct buf *out)
{
    const struct tok *t = p->g->net->s->serving->tok;
    if (t == NULL || tok_decode(t, p->r->o.prompt, p->r->o.n_prompt, false, out, NULL) != OK)
        for (uint32_t i = 0; t == NULL && i < p->r->o.n_prompt; i++)
            buf_addf(out, "%u ", p->r->o.prompt[i]);
}

/* ---- whole answers ---- */

static void add_chat_choice(struct part *p, uint32_t k, struct str text, struct buf *out)
{
    const struct generation *g = p->g;
    const struct choice *ch = &p->r->choices[k];
    const uint32_t n_out = atomic_load_explicit(&ch->n_out, memory_order_acquire);
    buf_addf(out, "{\"index\":%u,\"message\":{\"role\":\"assistant\",", k);
    if (p->said[k].speech != NULL)
        speech_message(p->said[k].speech, out);
    else {
        buf_add(out, STR("\"content\":"));
        buf_add_json_str(out, text);
    }
    buf_add(out, STR(",\"refusal\":null},\"logprobs\":"));
    answer_logprobs(p, k, 0, answer_n_told(g, ch, n_out, true), out);
    buf_addf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", answer_finish(p, k));
    answer_stop_reason(p, k, out);
    if (g->return_token_ids) {
        buf_add(out, STR(",\"token_ids\":"));
        answer_ids(ch->ids, n_out, out);
    }
    buf_add_char(out, '}');
}

static void add_completion_choice(struct part *p, uint32_t k, struct str text, struct buf *out)
{
    const struct generation *g = p->g;
    const struct choice *ch = &p->r->choices[k];
    const uint32_t n_out = g->echo_only ? 0 : atomic_load_explicit(&ch->n_out, memory_order_acquire);
    buf_addf(out, "{\"index\":%u,\"text\":", p->index * g->n + k);
    buf_add_json_str(out, text);
    buf_add(out, STR(",\"logprobs\":"));
    answer_completion_logprobs(
        p, k, (struct answer_span){.to = answer_n_told(g, ch, n_out, true), .with_prompt = g->echo}, out);
    buf_addf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", answer_finish(p, k));
    answer_stop_reason(p, k, out);
    buf_add(out, STR(",\"prompt_logprobs\":"));
    answer_prompt_logprobs(p, out);
    if (g->return_token_ids) {
        buf_add(out, STR(",\"token_ids\":"));
        answer_ids(ch->ids, n_out, out);
        buf_add(out, STR(",\"prompt_token_ids\":"));
        answer_ids(p->r->o.prompt, p->r->o.n_prompt, out);
    }
    buf_add_char(out, '}');
}

void answer_whole(struct generation *g, struct buf *out)
{
    struct buf text;
    const bool chat = g->kind == GEN_CHAT;
    buf_init(&text, REQ_ANSWER_BYTES_MAX);
    buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id,
        chat ? "chat.completion" : "text_completion", (long long)g->created_s);
    buf_add_json_str(out, str_of(g->net->s->names[0]));
    buf_addf(out, ",\"system_fingerprint\":\"%s\",\"service_tier\":null,\"choices\":[", g->net->s->fingerprint);
    for (uint32_t i = 0; i < g->n_parts; i++)
        for (uint32_t k = 0; k < g->n; k++) {
            struct part *p = &g->parts[i];
            buf_clear(&text);
            if (g->echo)
                answer_prompt_text(p, &text);
            const enum err err =
                answer_feed(p, k, atomic_load_explicit(&p->r->choices[k].n_out, memory_order_acquire), true, &text);
            if (err != OK && out->failure == OK)
                out->failure = err;
            if (i + k > 0)
                buf_add_char(out, ',');
            (chat ? add_chat_choice : add_completion_choice)(p, k, buf_str(&text), out);
        }
    buf_add(out, STR("],\"usage\":"));
    answer_usage(g, out);
    if (chat) {
        buf_add(out, STR(",\"prompt_logprobs\":"));
        answer_prompt_logprobs(&g->parts[0], out);
        if (g->return_token_ids) {
            buf_add(out, STR(",\"prompt_token_ids\":"));
            answer_ids(g->parts[0].r->o.prompt, g->parts[0].r->o.n_prompt, out);
        }
    }
    buf_add_char(out, '}');
    buf_fini(&text);
}
