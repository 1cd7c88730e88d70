/* From a token's name to the bytes it adds to a text, by the decoder of the spec.
 *
 * The decoders of tokenizer.json work on a list of strings, but all those in use treat each token by itself, except for
 * what they take from the front of the text. So decoding is a table made once (SEC_BYTES) and a rule for the front
 * (struct tok_lead). A decoder that cannot be told that way (CTC, BPEDecoder) is refused by name. */
#include "text/tok_int.h"

#include "base/buf.h"
#include "base/limits.h"

#include <string.h>

enum decoder_kind {
    DEC_BYTE_LEVEL,
    DEC_REPLACE,
    DEC_BYTE_FALLBACK,
    DEC_STRIP, /* before a Fuse: of each token */
    DEC_JOIN,  /* a space in front of each token, unless it is a continuation */
    DEC_CLEANUP,
    DEC_SPM
};

struct decoder_step {
    enum decoder_kind kind;
    struct str a, b; /* borrowed from the spec */
    uint64_t start, stop;
};

struct decoder {
    struct decoder_step steps[PIPE_STEPS_MAX];
    size_t n_steps;
    bool fused;
    struct buf text, next;
};

static enum err step_add(struct decoder *d, struct decoder_step step, struct error *e)
{
    if (d->n_steps == PIPE_STEPS_MAX)
        return FAIL(e, ERR_LIMIT, "decoder has more than %d steps", PIPE_STEPS_MAX);
    d->steps[d->n_steps++] = step;
    return OK;
}

static enum err read_strip(const json_t *j, struct decoder *d, struct tok_lead *lead, struct error *e)
{
    struct str content = STR(" ");
    uint64_t start = 0, stop = 0;
    TRY(json_get_str(j, "content", &content, e));
    TRY(json_get_u64(j, "start", 0, UINT32_MAX, &start, e));
    TRY(json_get_u64(j, "stop", 0, UINT32_MAX, &stop, e));
    if (!d->fused)
        return step_add(d, (struct decoder_step){DEC_STRIP, content, {0}, start, stop}, e);
    if (!str_is(content, " ") || stop != 0)
        return FAIL(e, ERR_UNSUPPORTED, "decoder Strip of anything but spaces at the start of a text");
    lead->spaces = (uint32_t)start;
    return OK;
}

static enum err read_metaspace(const json_t *j, struct decoder *d, struct tok_lead *lead, struct error *e)
{
    struct str mark = STR("\xE2\x96\x81"), scheme = {NULL, 0};
    bool prefix = true;
    TRY(json_get_str(j, "replacement", &mark, e));
    TRY(json_get_bool(j, "add_prefix_space", &prefix, e));
    TRY(json_get_str(j, "prepend_scheme", &scheme, e));
    if (scheme.p != NULL)
        prefix = !str_is(scheme, "never");
    if (prefix)
        *lead = (struct tok_lead){UINT32_MAX, true};
    return step_add(d, (struct decoder_step){DEC_REPLACE, mark, STR(" "), 0, 0}, e);
}

static enum err read_wordpiece(const json_t *j, struct decoder *d, struct tok_lead *lead, struct error *e)
{
    struct str prefix = STR("##");
    bool cleanup = true;
    TRY(json_get_str(j, "prefix", &prefix, e));
    TRY(json_get_bool(j, "cleanup", &cleanup, e));
    *lead = (struct tok_lead){1, true};
    TRY(step_add(d, (struct decoder_step){DEC_JOIN, prefix, {0}, 0, 0}, e));
    return cleanup ? step_add(d, (struct decoder_step){.kind = DEC_CLEANUP}, e) : OK;
}

static enum err read_replace(const json_t *j, struct decoder *d, struct error *e)
{
    const json_t *pattern = NULL;
    struct str from = {NULL, 0}, to = {"", 0};
    TRY(json_get_object(j, "pattern", &pattern, e));
    TRY(json_get_str(pattern, "String", &from, e));
    TRY(json_get_str(j, "content", &to, e));
    if (from.p == NULL || from.n == 0)
        return FAIL(e, ERR_UNSUPPORTED, "decoder Replace with a pattern that is not a string");
    return step_add(d, (struct decoder_step){DEC_REPLACE, from, to, 0, 0}, e);
}

static enum err read_decoder(const json_t *j, struct decoder *d, struct tok_lead *lead, int depth, struct error *e)
{
    struct str type = {"", 0};
    char shown[60];
    if (depth > 4)
        return FAIL(e, ERR_LIMIT, "decoder nested deeper than 4");
    TRY(json_get_str(j, "type", &type, e));
    if (str_is(type, "Sequence")) {
        const json_t *list = NULL;
        TRY(json_get_array(j, "decoders", &list, e));
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_decoder(json_array_get(list, i), d, lead, depth + 1, e));
        return OK;
    }
    if (str_is(type, "ByteLevel"))
        return step_add(d, (struct decoder_step){.kind = DEC_BYTE_LEVEL}, e);
    if (str_is(type, "ByteFallback"))
        return step_add(d, (struct decoder_step){.kind = DEC_BYTE_FALLBACK}, e);
    if (str_is(type, "Fuse")) {
        d->fused = true;
        return OK;
    }
    if (str_is(type, "Replace"))
        return read_replace(j, d, e);
    if (str_is(type, "Strip"))
        return read_strip(j, d, lead, e);
    if (str_is(type, "Metaspace"))
        return read_metaspace(j, d, lead, e);
    if (str_is(type, "WordPiece"))
        return read_wordpiece(j, d, lead, e);
    if (str_is(type, "QuernSpm")) {
        uint64_t spaces = 0;
        TRY(json_get_u64(j, "spaces", 0, UINT32_MAX, &spaces, e));
        lead->spaces = (uint32_t)spaces;
        return step_add(d, (struct decoder_step){.kind = DEC_SPM}, e);
    }
    return FAIL(e, ERR_UNSUPPORTED, "decoder '%s' is not supported", str_show(type, shown, sizeof shown));
}

enum err decoder_new(const json_t *spec, struct decoder **out, struct tok_lead *lead, struct error *e)
{
    *out = NULL;
    *lead = (struct tok_lead){0, false};
    struct decoder *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a decoder");
    buf_init(&d->text, TOK_BYTES_MAX);
    buf_init(&d->next, TOK_BYTES_MAX);
    const json_t *j = json_object_get(spec, "decoder");
    enum err err = OK;
    if (j == NULL || json_is_null(j)) { /* names with a space between them */
        *lead = (struct tok_lead){1, true};
        err = step_add(d, (struct decoder_step){.kind = DEC_JOIN}, e);
    } else if (!json_is_object(j)) {
        err = FAIL(e, ERR_FORMAT, "decoder must be an object");
    } else {
        err = read_decoder(j, d, lead, 0, e);
    }
    if (err != OK) {
        decoder_free(d);
        return err;
    }
    *out = d;
    return OK;
}

void decoder_free(struct decoder *d)
{
    if (d == NULL)
        return;
    buf_fini(&d->text);
    buf_fini(&d->next);
    mem_free(d);
}

/* <0x4A> -> 0x4A, or -1 */
int byte_token_value(struct str name)
{
    if (name.n != 6 || memcmp(name.p, "<0x", 3) != 0 || name.p[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        const char c = name.p[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void add_replaced(struct buf *out, struct str s, struct str from, struct str to)
{
    size_t at = 0;
    while (at < s.n) {
        const char *hit = memmem(s.p + at, s.n - at, from.p, from.n);
        if (hit == NULL)
            break;
        buf_add(out, (struct str){s.p + at, (size_t)(hit - s.p) - at});
        buf_add(out, to);
        at = (size_t)(hit - s.p) + from.n;
    }
    buf_add(out, (struct str){s.p + at, s.n - at});
}

static struct str strip_token(const struct decoder_step *s, struct str text)
{
    for (uint64_t i = 0; i < s->start && s->a.n > 0 && str_has_prefix(text, s->a); i++)
        text = (struct str){text.p + s->a.n, text.n - s->a.n};
    for (uint64_t i = 0; i < s->stop && s->a.n > 0 && str_has_suffix(text, s->a); i++)
        text.n -= s->a.n;
    return text;
}

/* The spaces that WordPiece puts in front of punctuation are taken out again. */
static void add_cleaned(struct decoder *d, struct str text)
{
    static const struct {
        struct str from, to;
    } rules[] = {{STR(" ."), STR(".")}, {STR(" ?"), STR("?")}, {STR(" !"), STR("!")}, {STR(" ,"), STR(",")},
        {STR(" ' "), STR("'")}, {STR(" n't"), STR("n't")}, {STR(" 'm"), STR("'m")}, {STR(" do not"), STR(" don't")},
        {STR(" 's"), STR("'s")}, {STR(" 've"), STR("'ve")}, {STR(" 're"), STR("'re")}};
    buf_add(&d->next, text);
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        struct buf now = d->next;
        d->next = d->text;
        d->text = now;
        buf_clear(&d->next);
        add_replaced(&d->next, buf_str(&d->text), rules[i].from, rules[i].to);
    }
}

static void spm_bytes(struct str name, uint8_t flags, struct buf *out)
{
    const int byte = flags & VOCAB_BYTE ? byte_token_value(name) : -1;
    if (byte >= 0)
        buf_add_char(out, (char)byte);
    else if (flags & VOCAB_UNKNOWN)
        buf_add(out, STR(" \xE2\x81\x87 "));
    else if (flags & VOCAB_SPECIAL)
        buf_add(out, name);
    else
        add_replaced(out, name, STR("\xE2\x96\x81"), STR(" "));
}

static void run_step(struct decoder *d, const struct decoder_step *s, struct str text, uint8_t flags)
{
    char raw[TOK_NAME_BYTES_MAX];
    size_t n;
    const int byte = byte_token_value(text);
    switch (s->kind) {
    case DEC_BYTE_LEVEL:
        if (text.n <= sizeof raw && byte_unspell(text, raw, &n))
            text = (struct str){raw, n};
        buf_add(&d->next, text);
        break;
    case DEC_REPLACE: add_replaced(&d->next, text, s->a, s->b); break;
    case DEC_BYTE_FALLBACK:
        if (byte >= 0)
            buf_add_char(&d->next, (char)byte);
        else
            buf_add(&d->next, text);
        break;
    case DEC_STRIP: buf_add(&d->next, strip_token(s, text)); break;
    case DEC_JOIN:
        if (s->a.n > 0 && str_has_prefix(text, s->a)) {
            buf_add(&d->next, (struct str){text.p + s->a.n, text.n - s->a.n});
        } else {
            buf_add_char(&d->next, ' ');
            buf_add(&d->next, text);
        }
        break;
    case DEC_CLEANUP: add_cleaned(d, text); break;
    case DEC_SPM: spm_bytes(text, flags, &d->next); break;
    }
}

enum err decoder_bytes(struct decoder *d, struct str name, uint8_t flags, struct buf *out, struct error *e)
{
    struct str text = name;
    for (size_t i = 0; i < d->n_steps; i++) {
        buf_clear(&d->next);
        run_step(d, &d->steps[i], text, flags);
        const struct buf now = d->next;
        d->next = d->text;
        d->text = now;
        text = buf_str(&d->text);
    }
    buf_add(out, text);
    return buf_check(out, "the vocabulary's text", e);
}
