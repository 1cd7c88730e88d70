/* Strings that remember which of their bytes came from the user.
 *
 * A string is flat bytes plus one of: all from the template (JT_CLEAN), all from the user (JT_USER), or a sorted list
 * of user runs (JT_MIXED). Flat and not a rope, because nearly every operation wants the bytes; so that building a
 * prompt by repeated "s = s ~ x" stays linear, a long result leaves room behind it (struct jgrow) and the next
 * concatenation whose left side ends at the block's fill mark is appended in place. Strings made before keep their
 * length, so they do not see the new bytes. Runs are appended the same way; the last run may be lengthened past the end
 * of an older string that shares the list, hence the rule that a run's end is cut to the string's length.
 *
 * When in doubt a byte is the user's: nothing here turns user bytes into clean ones. */
#include "text/jinja_int.h"

#include <string.h>

#define GROW_BYTES_MIN 512 /* shorter results are simply copied */

struct jgrow {
    char *p;
    size_t fill, cap;
    struct jspan *spans;
    size_t n_spans, cap_spans;
};

struct str jstr_str(const struct jstr *s)
{
    return (struct str){s->p, s->n};
}

bool jis_str(struct jv v, const char *literal)
{
    return v.type == J_STR && str_is(jstr_str(v.u.s), literal);
}

bool jstr_any_user(const struct jstr *s)
{
    return s->taint != JT_CLEAN;
}

/* The first span that ends after a byte. */
static size_t span_at(const struct jstr *s, size_t at)
{
    size_t low = 0, high = s->n_spans;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (s->spans[mid].end <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

bool jstr_is_user(const struct jstr *s, size_t at)
{
    if (s->taint != JT_MIXED)
        return s->taint == JT_USER;
    const size_t i = span_at(s, at);
    return i < s->n_spans && s->spans[i].start <= at;
}

enum err jstr_new(struct jrun *r, struct str text, enum jtaint taint, struct jv *out)
{
    struct jstr *s = jtake(r, 1, sizeof *s);
    if (s == NULL)
        return ERR_LIMIT;
    *s = (struct jstr){.p = text.p, .n = text.n, .taint = taint};
    *out = (struct jv){.type = J_STR, .u.s = s};
    return OK;
}

/* Single ASCII characters are made once per rendering: some templates walk over every character of a prompt. */
static enum err one_char(struct jrun *r, char c, bool user, struct jv *out)
{
    if (r->chars == NULL) {
        struct jstr *made = jtake(r, 256, sizeof *made);
        char *bytes = jtake(r, 128, 1);
        if (made == NULL || bytes == NULL)
            return ERR_LIMIT;
        for (int i = 0; i < 256; i++) {
            bytes[i % 128] = (char)(i % 128);
            made[i] = (struct jstr){.p = bytes + i % 128, .n = 1, .taint = i < 128 ? JT_CLEAN : JT_USER};
        }
        r->chars = made;
    }
    *out = (struct jv){.type = J_STR, .u.s = &r->chars[(unsigned char)c + (user ? 128 : 0)]};
    return OK;
}

enum err jstr_sub(struct jrun *r, const struct jstr *s, size_t start, size_t end, struct jv *out)
{
    assert(start <= end && end <= s->n);
    if (end - start == 1 && (unsigned char)s->p[start] < 0x80)
        return one_char(r, s->p[start], jstr_is_user(s, start), out);
    struct jstr *sub = jtake(r, 1, sizeof *sub);
    if (sub == NULL)
        return ERR_LIMIT;
    *sub = (struct jstr){.p = s->p + start, .n = end - start, .taint = s->taint};
    *out = (struct jv){.type = J_STR, .u.s = sub};
    if (s->taint != JT_MIXED)
        return OK;
    const size_t first = span_at(s, start);
    size_t last = first;
    while (last < s->n_spans && s->spans[last].start < end)
        last++;
    if (first == last) {
        sub->taint = JT_CLEAN;
        return OK;
    }
    if (s->spans[first].start <= start && s->spans[first].end >= end) {
        sub->taint = JT_USER;
        return OK;
    }
    TRY(jstep(r, last - first));
    struct jspan *spans = jtake(r, last - first, sizeof *spans);
    if (spans == NULL)
        return ERR_LIMIT;
    for (size_t i = first; i < last; i++) {
        spans[i - first].start = MAX(s->spans[i].start, start) - start;
        spans[i - first].end = MIN(s->spans[i].end, end) - start;
    }
    sub->spans = spans;
    sub->n_spans = last - first;
    return OK;
}

void jbuf_init(struct jbuf *b, struct jrun *r)
{
    *b = (struct jbuf){.r = r};
}

static bool buf_room(struct jbuf *b, size_t bytes)
{
    if (b->failure != OK)
        return false;
    if (bytes > CHAT_STRING_BYTES_MAX - b->n) {
        b->failure =
            JFAIL(b->r, ERR_LIMIT, "a string longer than %llu bytes", (unsigned long long)CHAT_STRING_BYTES_MAX);
        return false;
    }
    if (b->n + bytes > b->cap) {
        const size_t cap = MAX(b->n + bytes, MAX(b->cap * 2, (size_t)64));
        char *p = jtake(b->r, cap, 1);
        if (p == NULL) {
            b->failure = ERR_LIMIT;
            return false;
        }
        if (b->n > 0)
            memcpy(p, b->p, b->n);
        b->p = p;
        b->cap = cap;
    }
    return true;
}

static void buf_span(struct jbuf *b, size_t start, size_t end)
{
    if (b->n_spans > 0 && b->spans[b->n_spans - 1].end == start) {
        b->spans[b->n_spans - 1].end = end;
        return;
    }
    if (b->n_spans == b->cap_spans) {
        const size_t cap = b->cap_spans ? b->cap_spans * 2 : 4;
        struct jspan *spans = jtake(b->r, cap, sizeof *spans);
        if (spans == NULL) {
            b->failure = ERR_LIMIT;
            return;
        }
        if (b->n_spans > 0)
            memcpy(spans, b->spans, b->n_spans * sizeof *spans);
        b->spans = spans;
        b->cap_spans = cap;
    }
    b->spans[b->n_spans++] = (struct jspan){start, end};
}

void jbuf_add(struct jbuf *b, struct str s, bool user)
{
    if (s.n == 0 || !buf_room(b, s.n))
        return;
    if (jstep(b->r, s.n / 64) != OK) {
        b->failure = ERR_LIMIT;
        return;
    }
    memcpy(b->p + b->n, s.p, s.n);
    if (user)
        buf_span(b, b->n, b->n + s.n);
    b->n += s.n;
}

void jbuf_add_part(struct jbuf *b, const struct jstr *s, size_t start, size_t end)
{
    const size_t at = b->n;
    if (s->taint != JT_MIXED) {
        jbuf_add(b, (struct str){s->p + start, end - start}, s->taint == JT_USER);
        return;
    }
    jbuf_add(b, (struct str){s->p + start, end - start}, false);
    for (size_t i = span_at(s, start); b->failure == OK && i < s->n_spans && s->spans[i].start < end; i++)
        buf_span(b, at + MAX(s->spans[i].start, start) - start, at + MIN(s->spans[i].end, end) - start);
}

void jbuf_add_str(struct jbuf *b, const struct jstr *s)
{
    jbuf_add_part(b, s, 0, s->n);
}

void jbuf_add_char(struct jbuf *b, int32_t code_point, bool user)
{
    char bytes[4];
    jbuf_add(b, (struct str){bytes, jutf8_put(code_point, bytes)}, user);
}

void jbuf_pad(struct jbuf *b, char c, size_t n, bool user)
{
    if (n == 0 || !buf_room(b, n))
        return;
    memset(b->p + b->n, c, n);
    if (user)
        buf_span(b, b->n, b->n + n);
    b->n += n;
}

/* What a list of runs over n bytes amounts to. */
static enum jtaint taint_of(const struct jspan *spans, size_t n_spans, size_t n)
{
    if (n_spans == 0)
        return JT_CLEAN;
    return n_spans == 1 && spans[0].start == 0 && spans[0].end >= n ? JT_USER : JT_MIXED;
}

enum err jbuf_done(struct jbuf *b, struct jv *out)
{
    if (b->failure != OK)
        return b->failure;
    struct jstr *s = jtake(b->r, 1, sizeof *s);
    if (s == NULL)
        return ERR_LIMIT;
    *s = (struct jstr){.p = b->p != NULL ? b->p : "", .n = b->n, .taint = taint_of(b->spans, b->n_spans, b->n)};
    if (s->taint == JT_MIXED) {
        s->spans = b->spans;
        s->n_spans = b->n_spans;
    }
    *out = (struct jv){.type = J_STR, .u.s = s};
    return OK;
}

/* Runs of s, appended to the block at an offset. */
static enum err grow_spans(struct jrun *r, struct jgrow *g, const struct jstr *s, size_t at)
{
    const struct jspan whole = {0, s->n};
    const struct jspan *from = s->taint == JT_USER ? &whole : s->spans;
    const size_t n = s->taint == JT_USER ? 1 : s->taint == JT_MIXED ? s->n_spans : 0;
    if (s->n == 0)
        return OK;
    for (size_t i = 0; i < n; i++) {
        const struct jspan x = {at + from[i].start, at + MIN(from[i].end, s->n)};
        if (g->n_spans > 0 && g->spans[g->n_spans - 1].end == x.start) {
            g->spans[g->n_spans - 1].end = x.end;
            continue;
        }
        if (g->n_spans == g->cap_spans) {
            const size_t cap = g->cap_spans ? g->cap_spans * 2 : 8;
            struct jspan *spans = jtake(r, cap, sizeof *spans);
            if (spans == NULL)
                return ERR_LIMIT;
            if (g->n_spans > 0)
                memcpy(spans, g->spans, g->n_spans * sizeof *spans);
            g->spans = spans;
            g->cap_spans = cap;
        }
        g->spans[g->n_spans++] = x;
    }
    return OK;
}

enum err jstr_concat(struct jrun *r, const struct jstr *a, const struct jstr *b, struct jv *out)
{
    if (b->n == 0 || a->n == 0) {
        *out = (struct jv){.type = J_STR, .u.s = b->n == 0 ? a : b};
        return OK;
    }
    if (b->n > CHAT_STRING_BYTES_MAX - MIN(a->n, CHAT_STRING_BYTES_MAX))
        return JFAIL(r, ERR_LIMIT, "a string longer than %llu bytes", (unsigned long long)CHAT_STRING_BYTES_MAX);
    const size_t n = a->n + b->n;
    if (n < GROW_BYTES_MIN) {
        struct jbuf buf;
        jbuf_init(&buf, r);
        if (buf_room(&buf, n)) {
            jbuf_add_str(&buf, a);
            jbuf_add_str(&buf, b);
        }
        return jbuf_done(&buf, out);
    }
    struct jgrow *g = a->grow;
    if (g == NULL || g->p != a->p || g->fill != a->n || g->cap < n) {
        g = jtake(r, 1, sizeof *g);
        if (g == NULL)
            return ERR_LIMIT;
        *g = (struct jgrow){.cap = n + n / 2};
        g->p = jtake(r, g->cap, 1);
        if (g->p == NULL)
            return ERR_LIMIT;
        TRY(jstep(r, a->n / 64));
        memcpy(g->p, a->p, a->n);
        g->fill = a->n;
        TRY(grow_spans(r, g, a, 0));
    }
    TRY(jstep(r, b->n / 64));
    memcpy(g->p + g->fill, b->p, b->n);
    TRY(grow_spans(r, g, b, a->n));
    g->fill = n;
    struct jstr *s = jtake(r, 1, sizeof *s);
    if (s == NULL)
        return ERR_LIMIT;
    *s = (struct jstr){.p = g->p, .n = n, .taint = taint_of(g->spans, g->n_spans, n), .grow = g};
    s->spans = g->spans;
    s->n_spans = s->taint == JT_MIXED ? g->n_spans : 0;
    *out = (struct jv){.type = J_STR, .u.s = s};
    return OK;
}

size_t jstr_chars(const struct jstr *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
    return n;
}

size_t jstr_offset(const struct jstr *s, size_t chars)
{
    size_t i = 0;
    while (i < s->n && chars > 0) {
        i++;
        while (i < s->n && ((unsigned char)s->p[i] & 0xc0) == 0x80)
            i++;
        chars--;
    }
    return i;
}

size_t jstr_find(struct str s, struct str part, size_t from)
{
    if (from > s.n)
        return SIZE_MAX;
    const char *at = memmem(s.p + from, s.n - from, part.p, part.n);
    return at != NULL ? (size_t)(at - s.p) : SIZE_MAX;
}
