/* quern tokenize MODEL: text on standard input to token ids on one line, or ids back to text; a conversation through
 * the model's chat template to ids. Reads headers and vocabularies, never weights. */
#include "cli/cli.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "hub/hub.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tokenize {
    const struct options *o;
    struct model_source *source; /* NULL for a bare tokenizer file */
    struct tok *tok;
    struct tok_ctx *ctx;
};

static enum err read_input(struct buf *in, struct error *e)
{
    for (;;) {
        char *p = buf_room(in, 64 * KIB);
        if (p == NULL)
            return buf_check(in, "standard input", e);
        const ssize_t n = read(STDIN_FILENO, p, 64 * KIB);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL(e, ERR_IO, "cannot read standard input: %s", strerror(errno));
        if (n == 0)
            return OK;
        in->n += (size_t)n;
    }
}

static void print_ids(const struct options *o, struct out *out, struct tok_ids ids)
{
    out_text(out, o->json ? "[" : "");
    for (size_t i = 0; i < ids.n; i++)
        out_printf(out, "%s%u", i == 0 ? "" : o->json ? "," : " ", ids.p[i]);
    out_text(out, o->json ? "]\n" : "\n");
}

/* ---- ids to text ---- */

/* Numbers separated by anything that is not a letter or digit, so that both our outputs can be read back. */
static enum err parse_ids(struct str text, struct buf *ids, struct error *e)
{
    for (size_t i = 0; i < text.n;) {
        const char c = text.p[i];
        if (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']') {
            i++;
            continue;
        }
        uint64_t id = 0;
        size_t digits = 0;
        for (; i < text.n && text.p[i] >= '0' && text.p[i] <= '9' && id <= UINT32_MAX; i++, digits++)
            id = id * 10 + (uint64_t)(text.p[i] - '0');
        if (digits == 0 || id > UINT32_MAX)
            return FAIL(
                e, ERR_INVALID, "standard input at byte %zu: a token id is a whole number up to %u", i, UINT32_MAX);
        const uint32_t small = (uint32_t)id;
        buf_add(ids, (struct str){(const char *)&small, sizeof small});
    }
    return buf_check(ids, "the list of ids", e);
}

static enum err decode(struct tokenize *x, struct str text, struct out *out, struct error *e)
{
    struct buf ids, decoded;
    buf_init(&ids, TEXT_BYTES_MAX);
    buf_init(&decoded, 4 * TEXT_BYTES_MAX);
    enum err err = parse_ids(text, &ids, e);
    if (err == OK)
        err = tok_decode(x->tok, (const uint32_t *)(const void *)(ids.p != NULL ? ids.p : ""), ids.n / sizeof(uint32_t),
            !x->o->special, &decoded, e);
    if (err == OK && x->o->json) {
        out_json_str(out, buf_str(&decoded));
        out_text(out, "\n");
    } else if (err == OK) {
        out_add(out, buf_str(&decoded));
    }
    buf_fini(&ids);
    buf_fini(&decoded);
    return err;
}

/* ---- a conversation ---- */

/* [{"role": ...}, ...], or an object with messages and, if it likes, tools, documents, add_generation_prompt and
 * chat_template_kwargs, as a request to the server has them. */
static enum err read_conversation(json_t *doc, struct chat_input *in, struct error *e)
{
    *in = (struct chat_input){.add_generation_prompt = true, .now_unix_s = (int64_t)time(NULL)};
    if (json_is_array(doc)) {
        in->messages = doc;
        return OK;
    }
    if (!json_is_object(doc))
        return FAIL(e, ERR_INVALID, "a conversation is a list of messages, or an object that has one");
    TRY(json_get_array(doc, "messages", &in->messages, e));
    TRY(json_get_array(doc, "tools", &in->tools, e));
    TRY(json_get_array(doc, "documents", &in->documents, e));
    TRY(json_get_object(doc, "chat_template_kwargs", &in->kwargs, e));
    TRY(json_get_bool(doc, "add_generation_prompt", &in->add_generation_prompt, e));
    return in->messages != NULL ? OK : FAIL(e, ERR_INVALID, "field 'messages' is missing");
}

static enum err encode_segments(struct tokenize *x, const struct chat_output *o, struct tok_ids *ids, struct error *e)
{
    struct tok_part *parts = mem_array(o->n_segments + 1, sizeof *parts);
    if (parts == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %zu parts", o->n_segments);
    for (size_t i = 0; i < o->n_segments; i++)
        parts[i] = (struct tok_part){
            {o->text.p + o->segments[i].start, o->segments[i].end - o->segments[i].start}, o->segments[i].trusted};
    /* the template writes the special tokens itself */
    const enum err err = tok_encode(x->tok, x->ctx, parts, o->n_segments, false, ids, e);
    mem_free(parts);
    return err;
}

static enum err encode_chat(struct tokenize *x, struct out *out, struct error *e)
{
    struct chat_set *set = NULL;
    struct chat_input in;
    struct chat_output rendered;
    struct chat_token tokens[4];
    const struct chat_template *t = NULL;
    struct tok_ids ids;
    json_t *doc = NULL;
    if (x->source == NULL)
        return FAIL(e, ERR_INVALID, "--chat needs a model: a tokenizer file alone has no chat template");
    chat_output_init(&rendered);
    enum err err = json_parse_file(x->o->chat, JSON_BYTES_MAX, &doc, e);
    if (err == OK && (err = read_conversation(doc, &in, e)) != OK)
        error_prefix(e, "%s", x->o->chat);
    if (err == OK)
        err = model_chat_open(x->source, &set, e);
    if (err == OK && chat_set_count(set) == 0)
        err = FAIL(e, ERR_NOT_FOUND, "%s has no chat template", model_source_path(x->source));
    if (err == OK)
        err = chat_set_pick(set, NULL, in.tools != NULL, &t, e);
    if (err == OK) {
        in.tokens = tokens;
        in.n_tokens = model_chat_tokens(x->tok, tokens);
        err = chat_render(t, &in, &rendered, e);
    }
    if (err == OK)
        err = encode_segments(x, &rendered, &ids, e);
    if (err == OK)
        print_ids(x->o, out, ids);
    chat_output_fini(&rendered);
    chat_set_free(set);
    json_decref(doc);
    return err;
}

/* ---- the verb ---- */

enum err verb_tokenize_check(const struct options *o, struct error *e)
{
    if (o->ids && o->decode)
        return FAIL(e, ERR_INVALID, "--ids and --decode contradict each other");
    if (o->chat != NULL && (o->decode || o->user))
        return FAIL(e, ERR_INVALID, "--chat makes ids from a conversation; it does not go with --%s",
            o->decode ? "decode" : "user");
    return OK;
}

static enum err open_model(struct tokenize *x, struct error *e)
{
    char path[PATH_BYTES_MAX], copies[PATH_BYTES_MAX];
    const char *model = x->o->n_args > 0 ? x->o->args[0] : NULL; /* NULL is the default model */
    struct hub *hub = NULL;
    struct hub_options ho;
    hub_options_init(&ho);
    ho.cache_dir = x->o->cache_dir;
    ho.offline = true; /* tokenising never fetches */
    TRY(hub_open(&hub, &ho, e));
    enum err err = path_join(copies, hub_cache_dir(hub), "vocab", e);
    if (err == OK && model != NULL && model_tokenizer_is_file(model)) {
        err = model_tokenizer_open_file(model, copies, &x->tok, e);
    } else if (err == OK) {
        err = hub_resolve(hub, model, path, e);
        if (err == OK)
            err = model_source_open(path, &x->source, e);
        if (err == OK)
            err = model_tokenizer_open(x->source, copies, &x->tok, e);
    }
    hub_close(hub);
    return err;
}

static enum err run_text(struct tokenize *x, struct out *out, struct error *e)
{
    struct buf in;
    struct tok_ids ids;
    buf_init(&in, TEXT_BYTES_MAX + 64 * KIB);
    enum err err = read_input(&in, e);
    const struct str text = err == OK ? buf_str(&in) : (struct str){"", 0};
    if (err == OK && x->o->decode) {
        err = decode(x, text, out, e);
    } else if (err == OK) {
        err = tok_encode(x->tok, x->ctx, &(struct tok_part){text, !x->o->user}, 1, x->o->special, &ids, e);
        if (err == OK)
            print_ids(x->o, out, ids);
    }
    buf_fini(&in);
    return err;
}

enum err verb_tokenize(const struct options *o, struct out *out, struct error *e)
{
    struct tokenize x = {.o = o};
    enum err err = open_model(&x, e);
    if (err == OK)
        err = tok_ctx_new(&x.ctx, e);
    if (err == OK)
        err = o->chat != NULL ? encode_chat(&x, out, e) : run_text(&x, out, e);
    tok_ctx_free(x.ctx);
    tok_free(x.tok);
    model_source_close(x.source);
    return err;
}
