/* The door of the tokenizers: encode, decode, ask. See text.h for the contract and tok_int.h for the way of a text. */
#include "text/tok_added.h"
#include "text/tok_int.h"
#include "text/tok_unicode.h"

#include "base/buf.h"
#include "base/limits.h"

#include <stdatomic.h>
#include <string.h>

/* ---- lifecycle ---- */

enum err tok_bind(struct tok *t, struct error *e)
{
    static atomic_uint_fast64_t serial = 0;
    t->serial = atomic_fetch_add(&serial, 1) + 1;
    t->meta = t->sec[SEC_META].p;
    t->view = (struct vocab_view){t->meta->n, t->sec[SEC_BYTES].p, t->sec[SEC_BYTE_AT].p, t->sec[SEC_FLAGS].p};
    return pipe_compile(t, e);
}

void tok_free(struct tok *t)
{
    if (t == NULL)
        return;
    pipe_fini(&t->pipe);
    json_decref(t->spec);
    for (size_t i = 0; i < SEC_COUNT; i++)
        mem_free(t->owned[i]);
    if (t->mapped)
        file_map_close(&t->map);
    mem_free(t);
}

enum err tok_ctx_new(struct tok_ctx **out, struct error *e)
{
    *out = NULL;
    struct tok_ctx *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for tokenising");
    const enum err err = regex_ctx_new(&c->regex, e);
    if (err != OK) {
        tok_ctx_free(c);
        return err;
    }
    *out = c;
    return OK;
}

void tok_ctx_free(struct tok_ctx *c)
{
    if (c == NULL)
        return;
    struct scratch *one[] = {&c->whole, &c->valid, &c->clean, &c->norm[0], &c->norm[1], &c->word, &c->model, &c->shadow,
        &c->code_points, &c->trust, &c->ranges};
    for (size_t i = 0; i < COUNT_OF(one); i++)
        mem_free(one[i]->p);
    for (size_t i = 0; i < PIPE_STEPS_MAX; i++)
        mem_free(c->pre[i].p);
    regex_ctx_free(c->regex);
    mem_free(c->words);
    mem_free(c->ids);
    mem_free(c);
}

/* ---- scratch ---- */

enum err ctx_fail(struct tok_ctx *c, enum err code, const char *what)
{
    if (c->failure == OK)
        c->failure = FAIL(c->e, code, "%s", what);
    return c->failure;
}

bool scratch_reserve(struct tok_ctx *c, struct scratch *s, size_t bytes)
{
    if (bytes <= s->cap && s->p != NULL)
        return true;
    size_t cap = MAX(s->cap, (size_t)256);
    while (cap < bytes)
        cap += cap / 2;
    char *p = mem_resize(s->p, cap);
    if (p == NULL)
        return ctx_fail(c, ERR_NOMEM, "no memory to tokenise this text"), false;
    s->p = p;
    s->cap = cap;
    return true;
}

bool scratch_add(struct tok_ctx *c, struct scratch *s, struct str text)
{
    if (text.n == 0)
        return scratch_reserve(c, s, s->n + 1);
    if (!scratch_reserve(c, s, s->n + text.n))
        return false;
    memcpy(s->p + s->n, text.p, text.n);
    s->n += text.n;
    return true;
}

bool ctx_grow_ids(struct tok_ctx *c, size_t more)
{
    size_t cap = MAX(c->cap_ids, (size_t)1024);
    while (cap - c->n_ids < more)
        cap += cap / 2;
    uint32_t *ids = mem_resize(c->ids, cap * sizeof *ids);
    if (ids == NULL)
        return ctx_fail(c, ERR_NOMEM, "no memory to tokenise this text"), false;
    c->ids = ids;
    c->cap_ids = cap;
    return true;
}

/* ---- added tokens ---- */

/* A text with the ranges of it that no special token may touch. */
struct trusted_text {
    struct str text;
    size_t at; /* where it starts in the ranges' numbering */
    const struct range *untrusted;
    size_t n_untrusted;
};

enum touch { TOUCH_NONE, TOUCH_SOME, TOUCH_ALL };

static enum touch untrusted_touch(const struct trusted_text *x, size_t start, size_t end)
{
    start += x->at;
    end += x->at;
    size_t low = 0, high = x->n_untrusted;
    while (low < high) { /* the first range that ends behind start */
        const size_t mid = (low + high) / 2;
        if (x->untrusted[mid].end <= start)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == x->n_untrusted || x->untrusted[low].start >= end)
        return TOUCH_NONE;
    return x->untrusted[low].start <= start && x->untrusted[low].end >= end ? TOUCH_ALL : TOUCH_SOME;
}

static bool is_word_before(struct str text, size_t at)
{
    size_t start = at, n;
    if (at == 0)
        return false;
    do
        start--;
    while (start > 0 && ((unsigned char)text.p[start] & 0xC0) == 0x80);
    return unicode_is_word(utf8_get(text.p + start, &n));
}

static bool is_word_after(struct str text, size_t at)
{
    size_t n;
    return at < text.n && unicode_is_word(utf8_get(text.p + at, &n));
}

static size_t spaces_before(struct str text, size_t at)
{
    while (at > 0) {
        size_t start = at, n;
        do
            start--;
        while (start > 0 && ((unsigned char)text.p[start] & 0xC0) == 0x80);
        if (!unicode_is_space(utf8_get(text.p + start, &n)))
            break;
        at = start;
    }
    return at;
}

static size_t spaces_after(struct str text, size_t at)
{
    size_t n;
    while (at < text.n && unicode_is_space(utf8_get(text.p + at, &n)))
        at += n;
    return at;
}

/* What to do with the text between added tokens. */
typedef void (*rest_fn)(
    const struct tok *t, struct tok_ctx *c, const struct trusted_text *whole, size_t start, size_t end, bool first);

/* Find added tokens, give the rests to fn and the tokens to the ids, in order. first: x is the start of the input. */
static void for_each_rest(const struct tok *t, struct tok_ctx *c, const struct matcher *m, const struct trusted_text *x,
    bool first, rest_fn fn)
{
    size_t from = 0, done = 0, start, end;
    uint32_t index;
    while (c->failure == OK && m != NULL && matcher_next(m, x->text, from, &start, &end, &index)) {
        const struct added_token *a = &t->pipe.added[index];
        from = end;
        if (a->special) {
            const enum touch touch = untrusted_touch(x, start, end);
            if (touch == TOUCH_SOME) /* a trusted spelling may start inside this one */
                from = start + 1;
            if (touch != TOUCH_NONE)
                continue;
        }
        if (a->single_word && (is_word_before(x->text, start) || is_word_after(x->text, end)))
            continue;
        if (a->lstrip)
            start = MAX(spaces_before(x->text, start), done);
        if (a->rstrip)
            end = spaces_after(x->text, end);
        if (done < start)
            fn(t, c, x, done, start, first && done == 0);
        ctx_push(c, a->id);
        done = end;
    }
    if (done < x->text.n)
        fn(t, c, x, done, x->text.n, first && done == 0);
}

static void rest_to_words(
    const struct tok *t, struct tok_ctx *c, const struct trusted_text *x, size_t start, size_t end, bool first)
{
    pre_run(t, c, 0, (struct piece){{x->text.p + start, end - start}, first});
}

/* Where the untrusted ranges of a rest lie once it is normalised: each stretch is normalised by itself to learn its
 * length. A character that forms across a border is counted on one side; no special token has such a one at its ends.
 */
static bool map_trust(const struct tok *t, struct tok_ctx *c, const struct trusted_text *x, size_t start, size_t end)
{
    c->trust.n = 0;
    size_t at = start, to = 0;
    for (size_t i = 0; i <= x->n_untrusted && at < end; i++) {
        const bool tail = i == x->n_untrusted;
        const size_t a = tail ? end + x->at : x->untrusted[i].start, b = tail ? a : x->untrusted[i].end;
        if (b <= at + x->at && !tail)
            continue;
        const size_t cut[2] = {MIN(MAX(a - MIN(a, x->at), at), end), MIN(b - MIN(b, x->at), end)};
        struct range r = {0, 0};
        for (int side = 0; side < 2; side++) {
            struct str out = {NULL, 0};
            if (cut[side] > at && norm_run(t, c, (struct str){x->text.p + at, cut[side] - at}, at > start, &out) != OK)
                return false;
            at = MAX(cut[side], at);
            to += out.n;
            if (side == 0)
                r.start = to;
        }
        r.end = to;
        if (r.end > r.start && !scratch_add(c, &c->trust, (struct str){(const char *)&r, sizeof r}))
            return false;
    }
    return true;
}

static void rest_to_normal(
    const struct tok *t, struct tok_ctx *c, const struct trusted_text *x, size_t start, size_t end, bool first)
{
    struct trusted_text normal = {.at = 0};
    const bool moves = t->pipe.n_norms > 0;
    if (moves && t->pipe.has_special_normal && x->n_untrusted > 0) {
        if (!map_trust(t, c, x, start, end))
            return;
        normal.untrusted = (const struct range *)(const void *)c->trust.p;
        normal.n_untrusted = c->trust.n / sizeof(struct range);
    } else if (!moves) {
        normal = *x;
        normal.at = x->at + start;
    }
    if (norm_run(t, c, (struct str){x->text.p + start, end - start}, false, &normal.text) != OK)
        return;
    if (t->pipe.normal == NULL && normal.text.n > 0)
        pre_run(t, c, 0, (struct piece){normal.text, first});
    else
        for_each_rest(t, c, t->pipe.normal, &normal, first, rest_to_words);
}

/* ---- encoding ---- */

/* Invalid bytes in a byte-level vocabulary: each run is a word of its own. */
static void encode_with_raw_bytes(const struct tok *t, struct tok_ctx *c, struct trusted_text x)
{
    const struct str text = x.text;
    size_t at = 0;
    while (at < text.n && c->failure == OK) {
        const size_t good = utf8_valid_prefix((struct str){text.p + at, text.n - at});
        if (good > 0) {
            const struct trusted_text part = {{text.p + at, good}, at, x.untrusted, x.n_untrusted};
            for_each_rest(t, c, t->pipe.raw, &part, at == 0, rest_to_normal);
            at += good;
        }
        size_t bad = at;
        while (bad < text.n && utf8_len((struct str){text.p + bad, text.n - bad}) == 0)
            bad++;
        if (bad > at)
            word_encode(t, c, (struct str){text.p + at, bad - at});
        at = bad;
    }
}

/* Invalid bytes elsewhere: U+FFFD each. The ranges move along. */
static bool replace_invalid(struct tok_ctx *c, struct trusted_text *x)
{
    struct range *ranges = (struct range *)(void *)c->ranges.p;
    const struct str text = x->text;
    size_t next_start = 0, next_end = 0, previous = 0; /* previous: where the last character was written */
    c->valid.n = 0;
    for (size_t at = 0; at < text.n;) {
        for (; next_start < x->n_untrusted && ranges[next_start].start <= at; next_start++)
            ranges[next_start].start = ranges[next_start].start == at ? c->valid.n : previous;
        while (next_end < x->n_untrusted && ranges[next_end].end <= at)
            ranges[next_end++].end = c->valid.n;
        const size_t n = utf8_len((struct str){text.p + at, text.n - at});
        previous = c->valid.n;
        if (!scratch_add(c, &c->valid, n > 0 ? (struct str){text.p + at, n} : STR("\xEF\xBF\xBD")))
            return false;
        at += MAX(n, (size_t)1);
    }
    for (; next_start < x->n_untrusted; next_start++)
        ranges[next_start].start = c->valid.n;
    for (; next_end < x->n_untrusted; next_end++)
        ranges[next_end].end = c->valid.n;
    x->text = (struct str){c->valid.p, c->valid.n};
    return true;
}

static void encode_text(const struct tok *t, struct tok_ctx *c, struct trusted_text x)
{
    if (utf8_valid_prefix(x.text) < x.text.n) {
        if (t->meta->flags & META_BYTE_LEVEL) {
            encode_with_raw_bytes(t, c, x);
            return;
        }
        if (!replace_invalid(c, &x))
            return;
    }
    if (x.text.n > 0)
        for_each_rest(t, c, t->pipe.raw, &x, true, rest_to_normal);
}

/* The parts as one text with its untrusted ranges. */
static bool join_parts(struct tok_ctx *c, const struct tok_part *parts, size_t n_parts, struct trusted_text *x)
{
    size_t total = 0;
    c->ranges.n = 0;
    c->whole.n = 0;
    for (size_t i = 0; i < n_parts; i++) {
        const size_t n = parts[i].text.n;
        if (n > TEXT_BYTES_MAX - total)
            return ctx_fail(c, ERR_LIMIT, "the text has more than 64 MiB, the limit of one request"), false;
        if (!parts[i].trusted && n > 0) {
            struct range *last = c->ranges.n > 0 ? (struct range *)(void *)(c->ranges.p + c->ranges.n) - 1 : NULL;
            const struct range r = {total, total + n};
            if (last != NULL && last->end == total)
                last->end = total + n;
            else if (!scratch_add(c, &c->ranges, (struct str){(const char *)&r, sizeof r}))
                return false;
        }
        if (n_parts > 1 && !scratch_add(c, &c->whole, parts[i].text))
            return false;
        total += n;
    }
    x->text = n_parts == 1 ? parts[0].text : (struct str){c->whole.p, c->whole.n};
    x->at = 0;
    x->untrusted = (const struct range *)(const void *)c->ranges.p;
    x->n_untrusted = c->ranges.n / sizeof(struct range);
    return true;
}

enum err tok_encode(const struct tok *t, struct tok_ctx *c, const struct tok_part *parts, size_t n_parts,
    bool add_special, struct tok_ids *out, struct error *e)
{
    *out = (struct tok_ids){NULL, 0};
    c->e = e;
    c->failure = OK;
    c->n_ids = 0;
    struct trusted_text x = {.at = 0};
    if (words_reset(c, t->serial) != OK || (c->ids == NULL && !ctx_grow_ids(c, 1)) ||
        !join_parts(c, parts, n_parts, &x))
        return c->failure;
    for (size_t i = 0; i < t->pipe.n_before && add_special; i++)
        ctx_push(c, t->pipe.before[i]);
    encode_text(t, c, x);
    for (size_t i = 0; i < t->pipe.n_after && add_special; i++)
        ctx_push(c, t->pipe.after[i]);
    c->e = NULL;
    if (c->failure != OK)
        return c->failure;
    *out = (struct tok_ids){c->ids, c->n_ids};
    return OK;
}

enum err tok_encode_user(
    const struct tok *t, struct tok_ctx *c, struct str text, bool add_special, struct tok_ids *out, struct error *e)
{
    return tok_encode(t, c, &(struct tok_part){text, false}, 1, add_special, out, e);
}

enum err tok_encode_template(
    const struct tok *t, struct tok_ctx *c, struct str text, bool add_special, struct tok_ids *out, struct error *e)
{
    return tok_encode(t, c, &(struct tok_part){text, true}, 1, add_special, out, e);
}

/* ---- decoding and asking ---- */

enum err tok_decode(
    const struct tok *t, const uint32_t *ids, size_t n, bool skip_special, struct buf *out, struct error *e)
{
    uint32_t spaces = t->meta->lead.spaces;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= t->meta->n)
            return FAIL(e, ERR_INVALID, "token id %u is not in the vocabulary of %u", ids[i], t->meta->n);
        if (skip_special && (t->view.flags[ids[i]] & VOCAB_SPECIAL))
            continue;
        struct str text = vocab_bytes(&t->view, ids[i]);
        while (spaces > 0 && text.n > 0 && text.p[0] == ' ') {
            text = (struct str){text.p + 1, text.n - 1};
            spaces--;
        }
        if (text.n > 0 || t->meta->lead.first_token_only)
            spaces = 0;
        buf_add(out, text);
    }
    return buf_check(out, "the decoded text", e);
}

const struct vocab_view *tok_vocab(const struct tok *t)
{
    return &t->view;
}

struct tok_lead tok_lead_rule(const struct tok *t)
{
    return t->meta->lead;
}

uint32_t tok_count(const struct tok *t)
{
    return t->meta->n;
}

bool tok_is_special(const struct tok *t, uint32_t id)
{
    return id < t->meta->n && (t->view.flags[id] & VOCAB_SPECIAL) != 0;
}

struct str tok_name(const struct tok *t, uint32_t id)
{
    const uint32_t *at = t->sec[SEC_NAME_AT].p;
    if (id >= t->meta->n)
        return (struct str){"", 0};
    return (struct str){(const char *)t->sec[SEC_NAMES].p + at[id], at[id + 1] - at[id]};
}

const struct tok_roles *tok_roles_of(const struct tok *t)
{
    return &t->meta->roles;
}
