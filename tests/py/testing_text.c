/* Doors for the Python oracle tests of text/: whole batches per call, so that the tests spend their time in the code
 * under test. A batch of strings or of id lists is one flat array and n + 1 offsets. */
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "text/detok.h"
#include "text/text.h"

#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

struct handle {
    struct tok *tok;
    struct tok_ctx *ctx;
};

static struct handle *handle_new(struct tok *tok, struct error *e)
{
    struct handle *h = mem_zalloc(sizeof *h);
    if (h == NULL || tok_ctx_new(&h->ctx, e) != OK) {
        tok_free(tok);
        mem_free(h);
        return NULL;
    }
    h->tok = tok;
    return h;
}

EXPORT struct handle *quern_tok_json(
    const char *json, size_t n, const char *config, size_t n_config, const char *copy_path, struct error *e)
{
    struct tok *t = NULL;
    const struct str a = {json, n}, b = {config, n_config};
    const enum err code = copy_path != NULL ? tok_from_json_cached(a, b, copy_path, &t, e) : tok_from_json(a, b, &t, e);
    return code == OK ? handle_new(t, e) : NULL;
}

EXPORT struct handle *quern_tok_spm(const char *model, size_t n, int add_bos, int add_eos, struct error *e)
{
    struct tok *t = NULL;
    return tok_from_spm((struct str){model, n}, add_bos != 0, add_eos != 0, &t, e) == OK ? handle_new(t, e) : NULL;
}

static struct str *strs_of(const char *bytes, const uint64_t *at, size_t n)
{
    struct str *out = mem_array(n + 1, sizeof *out);
    for (size_t i = 0; out != NULL && i < n; i++)
        out[i] = (struct str){bytes + at[i], at[i + 1] - at[i]};
    return out;
}

/* roles: bos eos eot eom unk pad; flags: add_bos add_eos add_space_prefix remove_extra_whitespaces */
EXPORT struct handle *quern_tok_gguf(const char *model, const char *pre, const char *tokens, const uint64_t *token_at,
    size_t n_tokens, const float *scores, const int32_t *types, const char *merges, const uint64_t *merge_at,
    size_t n_merges, const uint32_t *roles, const int32_t *flags, const char *charsmap, size_t n_charsmap,
    struct error *e)
{
    struct tok_gguf g;
    struct tok *t = NULL;
    struct handle *h = NULL;
    tok_gguf_init(&g);
    struct str *token_strs = strs_of(tokens, token_at, n_tokens), *merge_strs = strs_of(merges, merge_at, n_merges);
    g.model = str_of(model);
    g.pre = str_of(pre);
    g.tokens = token_strs;
    g.n_tokens = n_tokens;
    g.merges = merge_strs;
    g.n_merges = n_merges;
    g.scores = scores;
    g.types = types;
    g.bos = roles[0];
    g.eos = roles[1];
    g.eot = roles[2];
    g.eom = roles[3];
    g.unk = roles[4];
    g.pad = roles[5];
    g.add_bos = (enum tok_tristate)flags[0];
    g.add_eos = (enum tok_tristate)flags[1];
    g.add_space_prefix = (enum tok_tristate)flags[2];
    g.remove_extra_whitespaces = (enum tok_tristate)flags[3];
    g.charsmap = (struct str){charsmap, n_charsmap};
    if (token_strs != NULL && merge_strs != NULL && tok_from_gguf(&g, &t, e) == OK)
        h = handle_new(t, e);
    mem_free(token_strs);
    mem_free(merge_strs);
    return h;
}

EXPORT void quern_tok_free(struct handle *h)
{
    tok_ctx_free(h->ctx);
    tok_free(h->tok);
    mem_free(h);
}

EXPORT size_t quern_tok_error_bytes(void)
{
    return sizeof(struct error);
}

EXPORT const char *quern_tok_error_text(const struct error *e)
{
    return e->text;
}

EXPORT int quern_tok_error_code(const struct error *e)
{
    return (int)e->code;
}

/* Encode n texts; out_at gets n + 1 offsets. Returns the number of ids, or -1. When cap is too small nothing is lost
 * but the ids beyond it: the count is still right. */
EXPORT int64_t quern_tok_encode(struct handle *h, const char *text, const uint64_t *at, size_t n, int trusted,
    int add_special, uint32_t *out, size_t cap, uint64_t *out_at, struct error *e)
{
    size_t total = 0;
    out_at[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct tok_part part = {{text + at[i], at[i + 1] - at[i]}, trusted != 0};
        struct tok_ids ids;
        if (tok_encode(h->tok, h->ctx, &part, 1, add_special != 0, &ids, e) != OK)
            return -1;
        if (ids.n > 0 && total + ids.n <= cap)
            memcpy(out + total, ids.p, ids.n * sizeof *out);
        total += ids.n;
        out_at[i + 1] = total;
    }
    return (int64_t)total;
}

/* One text made of parts with their own trust. */
EXPORT int64_t quern_tok_encode_parts(struct handle *h, const char *text, const uint64_t *at, const uint8_t *trusted,
    size_t n, int add_special, uint32_t *out, size_t cap, struct error *e)
{
    struct tok_ids ids = {0};
    struct tok_part *parts = mem_array(n + 1, sizeof *parts);
    int64_t total = -1;
    for (size_t i = 0; parts != NULL && i < n; i++)
        parts[i] = (struct tok_part){{text + at[i], at[i + 1] - at[i]}, trusted[i] != 0};
    if (parts != NULL && tok_encode(h->tok, h->ctx, parts, n, add_special != 0, &ids, e) == OK && ids.n <= cap) {
        memcpy(out, ids.p, ids.n * sizeof *out);
        total = (int64_t)ids.n;
    }
    mem_free(parts);
    return total;
}

/* Decode n id lists to bytes, all at once (stream 0) or id by id through the detokeniser (stream 1), which gives text.
 */
EXPORT int64_t quern_tok_decode(struct handle *h, const uint32_t *ids, const uint64_t *at, size_t n, int skip_special,
    int stream, char *out, size_t cap, uint64_t *out_at, struct error *e)
{
    struct buf b;
    int64_t total = -1;
    buf_init(&b, GIB);
    out_at[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (!stream) {
            if (tok_decode(h->tok, ids + at[i], at[i + 1] - at[i], skip_special != 0, &b, e) != OK)
                goto out;
        } else {
            struct detok d;
            detok_init(
                &d, tok_vocab(h->tok), tok_lead_rule(h->tok), NULL, (struct detok_opts){.show_special = !skip_special});
            for (uint64_t k = at[i]; k < at[i + 1]; k++) {
                if (detok_feed(&d, ids[k], &b, e) != OK)
                    goto out;
            }
            if (detok_end(&d, &b, e) != OK)
                goto out;
        }
        out_at[i + 1] = b.n;
    }
    total = (int64_t)b.n;
    if (b.n > 0 && b.n <= cap)
        memcpy(out, b.p, b.n);
out:
    buf_fini(&b);
    return total;
}

EXPORT uint32_t quern_tok_count(const struct handle *h)
{
    return tok_count(h->tok);
}

EXPORT uint32_t quern_tok_find(const struct handle *h, const char *name, size_t n)
{
    return tok_find(h->tok, (struct str){name, n});
}

EXPORT int quern_tok_is_special(const struct handle *h, uint32_t id)
{
    return tok_is_special(h->tok, id);
}

/* Allocations of this thread during repeated encodes of one text: for "none once the buffers have grown". */
EXPORT int64_t quern_tok_encode_allocs(struct handle *h, const char *text, size_t n, int times, struct error *e)
{
    const uint64_t before = mem_thread_allocs();
    for (int i = 0; i < times; i++) {
        struct tok_ids ids;
        if (tok_encode_user(h->tok, h->ctx, (struct str){text, n}, true, &ids, e) != OK)
            return -1;
    }
    return (int64_t)(mem_thread_allocs() - before);
}

/* Seconds of this thread's processor time that one encode takes. */
EXPORT double quern_tok_encode_seconds(struct handle *h, const char *text, size_t n, struct error *e)
{
    struct timespec a, b;
    struct tok_ids ids;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    if (tok_encode_user(h->tok, h->ctx, (struct str){text, n}, false, &ids, e) != OK)
        return -1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* One list through the detokeniser with stops: the text to out, where[0] = bytes before the cut, where[1] = ids fed
 * when the stop was found, or all. Returns the bytes of text, or -1. */
EXPORT int64_t quern_tok_stream(struct handle *h, const uint32_t *ids, size_t n, int include_stop, const char *stops,
    const uint64_t *stop_at, size_t n_stops, char *out, size_t cap, uint64_t where[2], struct error *e)
{
    struct stop_set *set = NULL;
    struct detok d;
    struct buf b;
    int64_t total = -1;
    struct str *strs = strs_of(stops, stop_at, n_stops);
    buf_init(&b, GIB);
    if (strs == NULL || stop_set_new(&set, strs, n_stops, e) != OK)
        goto out;
    detok_init(
        &d, tok_vocab(h->tok), tok_lead_rule(h->tok), set, (struct detok_opts){.include_stop = include_stop != 0});
    where[1] = n;
    for (size_t i = 0; i < n; i++) {
        if (detok_feed(&d, ids[i], &b, e) != OK)
            goto out;
        if (d.stopped && where[1] == n)
            where[1] = i + 1;
    }
    if (detok_end(&d, &b, e) != OK)
        goto out;
    where[0] = d.bytes;
    total = (int64_t)b.n;
    if (b.n > 0 && b.n <= cap)
        memcpy(out, b.p, b.n);
out:
    buf_fini(&b);
    stop_set_free(set);
    mem_free(strs);
    return total;
}
