/* POST /tokenize and /detokenize, in vLLM's forms; llama.cpp's `content` is understood too. */
#include "api/generate.h"
#include "api/prompt.h"

static void add_names(struct call *c, struct tok_ids ids, struct buf *out)
{
    const struct tok *t = c->s->serving->tok;
    buf_add(out, STR(",\"token_strs\":["));
    for (size_t i = 0; i < ids.n && t != NULL; i++) {
        if (i > 0)
            buf_add_char(out, ',');
        buf_add_json_str(out, tok_name(t, ids.p[i]));
    }
    buf_add_char(out, ']');
}

static bool ids_of(struct call *c, const json_t *doc, struct tok_ids *ids, struct api_error *ae)
{
    const struct in in = {doc, ae};
    struct str text = {0};
    bool add_special = true;
    if (in_get(in, "messages") != NULL)
        return prompt_from_chat(c, doc, ids, ae);
    if (!in_str(in, "content", TEXT_BYTES_MAX, &text) || !in_str(in, "prompt", TEXT_BYTES_MAX, &text) ||
        !in_bool(in, "add_special_tokens", &add_special))
        return false;
    if (text.p == NULL)
        return api_fail(ae, 400, "prompt", "'prompt' or 'messages' is needed");
    return prompt_from_text(c, text, add_special, "prompt", ids, ae);
}

void route_tokenize(struct call *c)
{
    struct api_error ae = {0};
    struct tok_ids ids = {0};
    json_t *doc = NULL;
    bool names = false;
    if (!call_json(c, &doc, &ae) || !model_check(c, (struct in){doc, &ae}) ||
        !in_bool((struct in){doc, &ae}, "return_token_strs", &names) || !ids_of(c, doc, &ids, &ae))
        call_reply_error(c, &ae);
    else {
        struct buf out;
        buf_init(&out, REQ_ANSWER_BYTES_MAX);
        buf_addf(&out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", ids.n, c->s->serving->fit.context);
        answer_ids(ids.p, (uint32_t)ids.n, &out);
        if (names)
            add_names(c, ids, &out);
        buf_add_char(&out, '}');
        call_reply_buf(c, &out);
        buf_fini(&out);
    }
    json_decref(doc);
}

static bool text_of(struct call *c, const json_t *doc, struct buf *text, struct api_error *ae)
{
    const json_t *list = NULL;
    uint32_t *ids = NULL;
    size_t n = 0;
    if (!in_array((struct in){doc, ae}, "tokens", REQ_VALUES_MAX, &list))
        return false;
    if (list == NULL)
        return api_fail(ae, 400, "tokens", "'tokens' is needed: an array of token ids");
    struct error e = {0};
    bool ok = prompt_from_ids(c, list, "tokens", &ids, &n, ae);
    if (ok && c->s->serving->tok == NULL)
        ok = api_fail(ae, 400, "model", "the model has no tokenizer");
    if (ok && tok_decode(c->s->serving->tok, ids, n, false, text, &e) != OK)
        ok = api_fail_err(ae, &e, "tokens");
    mem_free(ids);
    return ok;
}

void route_detokenize(struct call *c)
{
    struct api_error ae = {0};
    json_t *doc = NULL;
    struct buf text;
    buf_init(&text, REQ_ANSWER_BYTES_MAX);
    if (!call_json(c, &doc, &ae) || !model_check(c, (struct in){doc, &ae}) || !text_of(c, doc, &text, &ae))
        call_reply_error(c, &ae);
    else {
        struct buf out;
        buf_init(&out, REQ_ANSWER_BYTES_MAX);
        buf_add(&out, STR("{\"prompt\":"));
        buf_add_json_str(&out, buf_str(&text));
        buf_add(&out, STR(",\"content\":"));
        buf_add_json_str(&out, buf_str(&text));
        buf_add_char(&out, '}');
        call_reply_buf(c, &out);
        buf_fini(&out);
    }
    buf_fini(&text);
    json_decref(doc);
}
