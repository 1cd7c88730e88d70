/* Methods of str, dict, list and tuple that templates call, with Python's behaviour. Every string result keeps the
 * trust of the bytes it is made of. Methods Python has and quern does not run are listed at the end: they are refused
 * by name instead of looking undefined. */
#include "text/jinja_int.h"

#include <string.h>

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

/* ---- helpers ---- */

enum err jarg_int(struct jrun *r, struct jv v, const char *what, int64_t dflt, int64_t *out)
{
    *out = dflt;
    if (v.type == J_MISSING)
        return OK;
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type != J_INT && v.type != J_BOOL)
        return JFAIL(r, ERR_INVALID, "'%s' must be an integer, not %s", what, jtype_name(v));
    *out = jint_of(v);
    return OK;
}

enum err jarg_bool(struct jrun *r, struct jv v, bool dflt, bool *out)
{
    *out = dflt;
    return v.type == J_MISSING ? OK : jtruth(r, v, out);
}

enum err jarg_str(struct jrun *r, struct jv v, const char *what, const struct jstr **out)
{
    if (v.type == J_UNDEF)
        return error_code(ERR_INVALID, jfail_undef(r, v));
    if (v.type != J_STR)
        return JFAIL(r, ERR_INVALID, "'%s' must be a string, not %s", what, jtype_name(v));
    *out = v.u.s;
    return OK;
}

static bool is_none(struct jv v)
{
    return v.type == J_MISSING || v.type == J_NONE;
}

/* The character before a byte position. */
static size_t char_before(struct str s, size_t at, int32_t *c)
{
    size_t i = at - 1, len;
    while (i > 0 && ((unsigned char)s.p[i] & 0xc0) == 0x80)
        i--;
    *c = jchar_at(s, i, &len);
    return i;
}

static bool in_set(const struct jstr *set, int32_t c)
{
    if (set == NULL)
        return jchar_is_space(c);
    char bytes[4];
    const size_t n = jutf8_put(c, bytes);
    return jstr_find(jstr_str(set), (struct str){bytes, n}, 0) != SIZE_MAX;
}

static enum err strip_ends(struct jrun *r, const struct jstr *s, struct jv chars, bool left, bool right, struct jv *out)
{
    const struct jstr *set = NULL;
    const struct str text = jstr_str(s);
    size_t start = 0, end = s->n, len;
    int32_t c;
    if (!is_none(chars))
        TRY(jarg_str(r, chars, "chars", &set));
    const uint64_t each = 1 + (set != NULL ? set->n / 64 : 0); /* what one membership test costs */
    while (left && start < end && in_set(set, jchar_at(text, start, &len))) {
        start += len;
        TRY(jstep(r, each - 1));
    }
    while (right && end > start) {
        const size_t at = char_before(text, end, &c);
        if (!in_set(set, c))
            break;
        end = at;
        TRY(jstep(r, each - 1));
    }
    TRY(jstep(r, (s->n - (end - start)) / 16));
    return jstr_sub(r, s, start, end, out);
}

static enum err str_strip(ARGS)
{
    (void)raw;
    return strip_ends(r, self.u.s, arg[0], true, true, out);
}

static enum err str_lstrip(ARGS)
{
    (void)raw;
    return strip_ends(r, self.u.s, arg[0], true, false, out);
}

static enum err str_rstrip(ARGS)
{
    (void)raw;
    return strip_ends(r, self.u.s, arg[0], false, true, out);
}

/* ---- splitting ---- */

struct pieces {
    struct jv *v;
    size_t n, cap;
};

static enum err add_piece(struct jrun *r, struct pieces *l, const struct jstr *s, size_t start, size_t end)
{
    TRY(jstep(r, 1));
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 8;
        struct jv *v = jtake(r, l->cap, sizeof *v);
        if (v == NULL)
            return ERR_LIMIT;
        if (l->n > 0)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
    }
    return jstr_sub(r, s, start, end, &l->v[l->n++]);
}

static enum err split_space(struct jrun *r, const struct jstr *s, int64_t max, struct pieces *l)
{
    const struct str text = jstr_str(s);
    size_t at = 0, len;
    for (;;) {
        while (at < s->n && jchar_is_space(jchar_at(text, at, &len)))
            at += len;
        if (at >= s->n)
            return OK;
        size_t end = at;
        if (max >= 0 && (int64_t)l->n >= max)
            return add_piece(r, l, s, at, s->n);
        while (end < s->n && !jchar_is_space(jchar_at(text, end, &len)))
            end += len;
        TRY(add_piece(r, l, s, at, end));
        at = end;
    }
}

/* From the right: pieces are found last first and turned round at the end. */
static enum err rsplit_space(struct jrun *r, const struct jstr *s, int64_t max, struct pieces *l)
{
    const struct str text = jstr_str(s);
    size_t end = s->n, i;
    int32_t c;
    for (;;) {
        while (end > 0 && (i = char_before(text, end, &c), jchar_is_space(c)))
            end = i;
        if (end == 0)
            return OK;
        size_t start = end;
        if (max >= 0 && (int64_t)l->n >= max)
            return add_piece(r, l, s, 0, end);
        while (start > 0 && (i = char_before(text, start, &c), !jchar_is_space(c)))
            start = i;
        TRY(add_piece(r, l, s, start, end));
        end = start;
    }
}

/* The last place part stands at in the first end bytes of s, or SIZE_MAX. Comparing at many places with a long part is
 * quadratic, so each comparison is paid for. */
static enum err find_last(struct jrun *r, struct str s, struct str part, size_t end, size_t *out)
{
    *out = SIZE_MAX;
    if (part.n > end)
        return OK;
    for (size_t i = end - part.n + 1; i-- > 0;) {
        if (part.n > 0 && (s.p[i] != part.p[0] || s.p[i + part.n - 1] != part.p[part.n - 1]))
            continue;
        TRY(jstep(r, part.n / 64));
        if (part.n == 0 || memcmp(s.p + i, part.p, part.n) == 0) {
            *out = i;
            return OK;
        }
    }
    return OK;
}

static enum err split_by(
    struct jrun *r, const struct jstr *s, struct str sep, int64_t max, bool right, struct pieces *l)
{
    const struct str text = jstr_str(s);
    size_t start = 0, end = s->n;
    while (max < 0 || (int64_t)l->n < max) {
        size_t at = SIZE_MAX;
        if (right)
            TRY(find_last(r, text, sep, end, &at));
        else
            at = jstr_find(text, sep, start);
        if (at == SIZE_MAX)
            break;
        TRY(add_piece(r, l, s, right ? at + sep.n : start, right ? end : at));
        start = right ? start : at + sep.n;
        end = right ? at : end;
    }
    return add_piece(r, l, s, start, end);
}

static enum err split(struct jrun *r, struct jv self, const struct jv *arg, bool right, struct jv *out)
{
    struct pieces l = {0};
    int64_t max;
    const struct jstr *sep = NULL, *s = self.u.s;
    TRY(jarg_int(r, arg[1], "maxsplit", -1, &max));
    if (!is_none(arg[0]))
        TRY(jarg_str(r, arg[0], "sep", &sep));
    TRY(jstep(r, s->n / (right && sep != NULL ? 8 : 32)));
    if (sep == NULL)
        TRY(right ? rsplit_space(r, s, max, &l) : split_space(r, s, max, &l));
    else if (sep->n == 0)
        return JFAIL(r, ERR_INVALID, "an empty separator");
    else
        TRY(split_by(r, s, jstr_str(sep), max, right, &l));
    for (size_t i = 0; right && i < l.n / 2; i++) {
        const struct jv v = l.v[i];
        l.v[i] = l.v[l.n - 1 - i];
        l.v[l.n - 1 - i] = v;
    }
    return jlist_of(r, (struct jlist){.items = l.v, .n = l.n}, out);
}

static enum err str_split(ARGS)
{
    (void)raw;
    return split(r, self, arg, false, out);
}

static enum err str_rsplit(ARGS)
{
    (void)raw;
    return split(r, self, arg, true, out);
}

static enum err str_splitlines(ARGS)
{
    (void)raw;
    const struct jstr *s = self.u.s;
    struct pieces l = {0};
    bool keep;
    size_t start = 0, len;
    TRY(jarg_bool(r, arg[0], false, &keep));
    TRY(jstep(r, s->n / 16));
    for (size_t i = 0; i < s->n;) {
        const int32_t c = jchar_at(jstr_str(s), i, &len);
        if (!jchar_is_line_end(c)) {
            i += len;
            continue;
        }
        if (c == '\r' && i + 1 < s->n && s->p[i + 1] == '\n')
            len = 2;
        TRY(add_piece(r, &l, s, start, keep ? i + len : i));
        i += len;
        start = i;
    }
    if (start < s->n)
        TRY(add_piece(r, &l, s, start, s->n));
    return jlist_of(r, (struct jlist){.items = l.v, .n = l.n}, out);
}

static enum err partition(struct jrun *r, struct jv self, struct jv sep_v, bool right, struct jv *out)
{
    const struct jstr *sep = NULL, *s = self.u.s;
    struct jv *items;
    TRY(jarg_str(r, sep_v, "sep", &sep));
    if (sep->n == 0)
        return JFAIL(r, ERR_INVALID, "an empty separator");
    TRY(jstep(r, s->n / 8));
    size_t at = SIZE_MAX;
    if (right)
        TRY(find_last(r, jstr_str(s), jstr_str(sep), s->n, &at));
    else
        at = jstr_find(jstr_str(s), jstr_str(sep), 0);
    TRY(jtuple_new(r, 3, &items, out));
    const bool found = at != SIZE_MAX;
    const size_t a = found ? at : right ? 0 : s->n, b = found ? at + sep->n : a;
    TRY(jstr_sub(r, s, 0, a, &items[0]));
    TRY(jstr_sub(r, s, a, b, &items[1]));
    return jstr_sub(r, s, b, s->n, &items[2]);
}

static enum err str_partition(ARGS)
{
    (void)raw;
    return partition(r, self, arg[0], false, out);
}

static enum err str_rpartition(ARGS)
{
    (void)raw;
    return partition(r, self, arg[0], true, out);
}

/* ---- searching ---- */

/* The byte range that start and end (in characters) mean; false when start lies past the end. */
static enum err char_range(
    struct jrun *r, const struct jstr *s, const struct jv *arg, size_t *from, size_t *to, bool *ok)
{
    *ok = true;
    *from = 0;
    *to = s->n;
    if (is_none(arg[0]) && is_none(arg[1]))
        return OK;
    const int64_t n = (int64_t)jstr_chars(s);
    int64_t a = 0, b = n;
    if (!is_none(arg[0]))
        TRY(jarg_int(r, arg[0], "start", 0, &a));
    if (!is_none(arg[1]))
        TRY(jarg_int(r, arg[1], "end", n, &b));
    a = a < 0 ? MAX(a + n, 0) : a;
    b = b < 0 ? MAX(b + n, 0) : MIN(b, n);
    *ok = a <= b;
    if (*ok) {
        *from = jstr_offset(s, (size_t)a);
        *to = jstr_offset(s, (size_t)b);
    }
    return jstep(r, s->n / 32);
}

static enum err affix(struct jrun *r, struct jv self, const struct jv *arg, bool at_end, struct jv *out)
{
    size_t from = 0, to = 0;
    bool ok, yes = false;
    struct jv one = arg[0];
    const struct jlist single = {.items = &one, .n = 1};
    const struct jlist *wanted = arg[0].type == J_TUPLE ? arg[0].u.l : &single;
    TRY(char_range(r, self.u.s, arg + 1, &from, &to, &ok));
    for (size_t i = 0; i < wanted->n; i++) {
        const struct jstr *w = NULL;
        TRY(jarg_str(r, wanted->items[i], "prefix or suffix", &w));
        const struct str text = {self.u.s->p + from, to - from};
        yes |= ok && (at_end ? str_has_suffix(text, jstr_str(w)) : str_has_prefix(text, jstr_str(w)));
    }
    *out = jbool(yes);
    return OK;
}

static enum err str_startswith(ARGS)
{
    (void)raw;
    return affix(r, self, arg, false, out);
}

static enum err str_endswith(ARGS)
{
    (void)raw;
    return affix(r, self, arg, true, out);
}

static enum err find(struct jrun *r, struct jv self, const struct jv *arg, bool last, bool must, struct jv *out)
{
    const struct jstr *sub = NULL, *s = self.u.s;
    size_t from = 0, to = 0, at = SIZE_MAX;
    bool ok;
    TRY(jarg_str(r, arg[0], "sub", &sub));
    TRY(char_range(r, s, arg + 1, &from, &to, &ok));
    if (ok) {
        TRY(jstep(r, (to - from) / 8));
        const struct str text = {s->p + from, to - from};
        if (last)
            TRY(find_last(r, text, jstr_str(sub), text.n, &at));
        else
            at = jstr_find(text, jstr_str(sub), 0);
    }
    if (at == SIZE_MAX && must)
        return JFAIL(r, ERR_INVALID, "substring not found");
    const struct jstr head = {.p = s->p, .n = at == SIZE_MAX ? 0 : from + at};
    *out = jint(at == SIZE_MAX ? -1 : (int64_t)jstr_chars(&head));
    return OK;
}

static enum err str_find(ARGS)
{
    (void)raw;
    return find(r, self, arg, false, false, out);
}

static enum err str_rfind(ARGS)
{
    (void)raw;
    return find(r, self, arg, true, false, out);
}

static enum err str_index(ARGS)
{
    (void)raw;
    return find(r, self, arg, false, true, out);
}

static enum err str_rindex(ARGS)
{
    (void)raw;
    return find(r, self, arg, true, true, out);
}

static enum err str_count(ARGS)
{
    (void)raw;
    const struct jstr *sub = NULL, *s = self.u.s;
    size_t from = 0, to = 0;
    bool ok;
    int64_t n = 0;
    TRY(jarg_str(r, arg[0], "sub", &sub));
    TRY(char_range(r, s, arg + 1, &from, &to, &ok));
    TRY(jstep(r, s->n / 32));
    const struct jstr range = {.p = s->p + from, .n = to - from};
    if (ok && sub->n == 0)
        n = (int64_t)jstr_chars(&range) + 1;
    for (size_t at = 0; ok && sub->n > 0 && (at = jstr_find(jstr_str(&range), jstr_str(sub), at)) != SIZE_MAX;
         at += sub->n)
        n++;
    *out = jint(n);
    return OK;
}

/* ---- making new strings ---- */

enum err jstr_replace(
    struct jrun *r, const struct jstr *s, const struct jstr *old, const struct jstr *new, int64_t count, struct jv *out)
{
    struct jbuf b;
    size_t at = 0, next;
    jbuf_init(&b, r);
    TRY(jstep(r, s->n / 32));
    for (int64_t done = 0; count < 0 || done < count; done++) {
        if (old->n > 0)
            next = jstr_find(jstr_str(s), jstr_str(old), at);
        else if (done == 0)
            next = 0;
        else if (at < s->n) {
            size_t len;
            jchar_at(jstr_str(s), at, &len);
            next = at + len;
        } else
            break;
        if (next == SIZE_MAX)
            break;
        TRY(jstep(r, 1));
        jbuf_add_part(&b, s, at, next);
        jbuf_add_str(&b, new);
        at = next + old->n;
    }
    jbuf_add_part(&b, s, at, s->n);
    return jbuf_done(&b, out);
}

static enum err str_replace(ARGS)
{
    (void)raw;
    const struct jstr *old = NULL, *new = NULL;
    int64_t count;
    TRY(jarg_str(r, arg[0], "old", &old));
    TRY(jarg_str(r, arg[1], "new", &new));
    TRY(jarg_int(r, arg[2], "count", -1, &count));
    return jstr_replace(r, self.u.s, old, new, count, out);
}

static enum err str_join(ARGS)
{
    (void)raw;
    struct jlist l;
    struct jbuf b;
    jbuf_init(&b, r);
    TRY(jcollect(r, arg[0], &l));
    for (size_t i = 0; i < l.n; i++) {
        const struct jstr *s = NULL;
        TRY(jarg_str(r, l.items[i], "joined item", &s));
        TRY(jstep(r, 1));
        if (i > 0)
            jbuf_add_str(&b, self.u.s);
        jbuf_add_str(&b, s);
    }
    return jbuf_done(&b, out);
}

static enum err str_format(ARGS)
{
    (void)arg;
    return jformat_braces(r, self.u.s, raw, out);
}

static enum err cut_affix(struct jrun *r, struct jv self, struct jv v, bool at_end, struct jv *out)
{
    const struct jstr *w = NULL, *s = self.u.s;
    TRY(jarg_str(r, v, "affix", &w));
    if (at_end)
        return jstr_sub(r, s, 0, s->n - (str_has_suffix(jstr_str(s), jstr_str(w)) ? w->n : 0), out);
    return jstr_sub(r, s, str_has_prefix(jstr_str(s), jstr_str(w)) ? w->n : 0, s->n, out);
}

static enum err str_removeprefix(ARGS)
{
    (void)raw;
    return cut_affix(r, self, arg[0], false, out);
}

static enum err str_removesuffix(ARGS)
{
    (void)raw;
    return cut_affix(r, self, arg[0], true, out);
}

/* Pad to a width: left and right take the missing characters. */
static enum err pad(struct jrun *r, struct jv self, const struct jv *arg, int side, struct jv *out)
{
    const struct jstr *s = self.u.s, space = {.p = " ", .n = 1}, *fill = &space;
    int64_t width;
    TRY(jarg_int(r, arg[0], "width", 0, &width));
    TRY(jstep(r, s->n / 32));
    if (arg[1].type != J_MISSING)
        TRY(jarg_str(r, arg[1], "fillchar", &fill));
    const int64_t n = (int64_t)jstr_chars(s), missing = width > n ? width - n : 0;
    if (jstr_chars(fill) != 1)
        return JFAIL(r, ERR_INVALID, "the fill character must be one character");
    if ((uint64_t)missing > CHAT_STRING_BYTES_MAX)
        return JFAIL(r, ERR_LIMIT, "a width of %lld", (long long)width);
    const int64_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
    struct jbuf b;
    jbuf_init(&b, r);
    TRY(jstep(r, (uint64_t)missing));
    for (int64_t i = 0; i < left; i++)
        jbuf_add_str(&b, fill);
    jbuf_add_str(&b, s);
    for (int64_t i = left; i < missing; i++)
        jbuf_add_str(&b, fill);
    return jbuf_done(&b, out);
}

static enum err str_ljust(ARGS)
{
    (void)raw;
    return pad(r, self, arg, -1, out);
}

static enum err str_rjust(ARGS)
{
    (void)raw;
    return pad(r, self, arg, 1, out);
}

static enum err str_center(ARGS)
{
    (void)raw;
    return pad(r, self, arg, 0, out);
}

static enum err str_zfill(ARGS)
{
    (void)raw;
    const struct jstr *s = self.u.s;
    int64_t width;
    TRY(jarg_int(r, arg[0], "width", 0, &width));
    TRY(jstep(r, s->n / 32));
    const int64_t n = (int64_t)jstr_chars(s), missing = width > n ? width - n : 0;
    if ((uint64_t)missing > CHAT_STRING_BYTES_MAX)
        return JFAIL(r, ERR_LIMIT, "a width of %lld", (long long)width);
    const size_t sign = s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
    struct jbuf b;
    jbuf_init(&b, r);
    jbuf_add_part(&b, s, 0, sign);
    jbuf_pad(&b, '0', (size_t)missing, false);
    jbuf_add_part(&b, s, sign, s->n);
    return jbuf_done(&b, out);
}

/* ---- dict, list, tuple ---- */

static enum err dict_get(ARGS)
{
    (void)raw;
    const struct jv *found;
    TRY(jdict_find(r, self.u.d, arg[0], &found));
    *out = found != NULL ? *found : arg[1].type == J_MISSING ? jnone() : arg[1];
    return OK;
}

static enum err view(struct jrun *r, struct jv self, enum jview_kind kind, struct jv *out)
{
    struct jview *v = jtake(r, 1, sizeof *v);
    if (v == NULL)
        return ERR_LIMIT;
    *v = (struct jview){self.u.d, kind};
    *out = (struct jv){.type = J_VIEW, .u.view = v};
    return OK;
}

static enum err dict_keys(ARGS)
{
    (void)raw;
    (void)arg;
    return view(r, self, JVIEW_KEYS, out);
}

static enum err dict_values(ARGS)
{
    (void)raw;
    (void)arg;
    return view(r, self, JVIEW_VALUES, out);
}

static enum err dict_items(ARGS)
{
    (void)raw;
    (void)arg;
    return view(r, self, JVIEW_ITEMS, out);
}

/* Values never change, so a copy is the thing itself. */
static enum err copy(ARGS)
{
    (void)r;
    (void)raw;
    (void)arg;
    *out = self;
    return OK;
}

static enum err seq_count(ARGS)
{
    (void)raw;
    int64_t n = 0;
    for (size_t i = 0; i < self.u.l->n; i++) {
        bool same;
        TRY(jequal(r, self.u.l->items[i], arg[0], &same));
        n += same;
    }
    *out = jint(n);
    return OK;
}

static enum err seq_index(ARGS)
{
    (void)raw;
    const int64_t n = (int64_t)self.u.l->n;
    int64_t start, stop;
    TRY(jarg_int(r, arg[1], "start", 0, &start));
    TRY(jarg_int(r, arg[2], "stop", n, &stop));
    start = start < 0 ? MAX(start + n, 0) : start;
    stop = stop < 0 ? stop + n : MIN(stop, n);
    for (int64_t i = start; i < stop; i++) {
        bool same;
        TRY(jequal(r, self.u.l->items[i], arg[0], &same));
        if (same) {
            *out = jint(i);
            return OK;
        }
    }
    return JFAIL(r, ERR_INVALID, "the value is not in the list");
}

static enum err cycler_next(ARGS)
{
    (void)r;
    (void)raw;
    (void)arg;
    struct jcycler *c = self.u.cycler;
    *out = c->items[c->at];
    c->at = (c->at + 1) % c->n;
    return OK;
}

static enum err cycler_reset(ARGS)
{
    (void)r;
    (void)raw;
    (void)arg;
    self.u.cycler->at = 0;
    *out = jnone();
    return OK;
}

/* ---- tables ---- */

static const struct jbuiltin str_methods[] = {{"strip", str_strip, "/chars", 0}, {"lstrip", str_lstrip, "/chars", 0},
    {"rstrip", str_rstrip, "/chars", 0}, {"split", str_split, "sep maxsplit", 0},
    {"rsplit", str_rsplit, "sep maxsplit", 0}, {"splitlines", str_splitlines, "keepends", 0},
    {"partition", str_partition, "/sep", 1}, {"rpartition", str_rpartition, "/sep", 1},
    {"startswith", str_startswith, "/prefix start end", 1}, {"endswith", str_endswith, "/suffix start end", 1},
    {"find", str_find, "/sub start end", 1}, {"rfind", str_rfind, "/sub start end", 1},
    {"index", str_index, "/sub start end", 1}, {"rindex", str_rindex, "/sub start end", 1},
    {"count", str_count, "/sub start end", 1}, {"replace", str_replace, "/old new count", 2},
    {"join", str_join, "/iterable", 1}, {"format", str_format, NULL, 0},
    {"removeprefix", str_removeprefix, "/prefix", 1}, {"removesuffix", str_removesuffix, "/suffix", 1},
    {"ljust", str_ljust, "/width fillchar", 1}, {"rjust", str_rjust, "/width fillchar", 1},
    {"center", str_center, "/width fillchar", 1}, {"zfill", str_zfill, "/width", 1}};
static const struct jbuiltin dict_methods[] = {{"get", dict_get, "/key default", 1}, {"keys", dict_keys, "/", 0},
    {"values", dict_values, "/", 0}, {"items", dict_items, "/", 0}, {"copy", copy, "/", 0}};
static const struct jbuiltin list_methods[] = {
    {"count", seq_count, "/value", 1}, {"index", seq_index, "/value start stop", 1}, {"copy", copy, "/", 0}};
static const struct jbuiltin cycler_methods[] = {{"next", cycler_next, "/", 0}, {"reset", cycler_reset, "/", 0}};

static const struct jbuiltin *find_in(const struct jbuiltin *table, size_t n, struct str name)
{
    for (size_t i = 0; i < n; i++)
        if (str_is(name, table[i].name))
            return &table[i];
    return NULL;
}

const struct jbuiltin *jmethod_find(uint8_t type, struct str name)
{
    switch (type) {
    case J_STR: {
        const struct jbuiltin *b = find_in(str_methods, COUNT_OF(str_methods), name);
        return b != NULL ? b : jmethod_case_find(name);
    }
    case J_DICT: return find_in(dict_methods, COUNT_OF(dict_methods), name);
    case J_LIST: return find_in(list_methods, COUNT_OF(list_methods), name);
    case J_TUPLE: return find_in(list_methods, 2, name);
    case J_CYCLER: return find_in(cycler_methods, COUNT_OF(cycler_methods), name);
    default: return NULL;
    }
}

static bool named(const char *list, struct str name)
{
    for (const char *p = list; *p != '\0';) {
        const size_t n = strcspn(p, " ");
        if (str_eq((struct str){p, n}, name))
            return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

enum jmutates jmethod_refused(uint8_t type, struct str name)
{
    switch (type) {
    case J_LIST:
        return named("append clear pop reverse insert sort extend remove", name) ? JMETHOD_MUTATES : JMETHOD_NONE;
    case J_DICT:
        if (named("clear pop popitem setdefault update", name))
            return JMETHOD_MUTATES;
        return named("fromkeys", name) ? JMETHOD_LEFT_OUT : JMETHOD_NONE;
    case J_STR:
        return named("encode expandtabs format_map maketrans translate isidentifier", name) ? JMETHOD_LEFT_OUT
                                                                                            : JMETHOD_NONE;
    case J_INT:
    case J_BOOL:
        return named("as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real "
                     "to_bytes",
                   name)
                   ? JMETHOD_LEFT_OUT
                   : JMETHOD_NONE;
    case J_FLOAT:
        return named("as_integer_ratio conjugate fromhex hex imag is_integer real", name) ? JMETHOD_LEFT_OUT
                                                                                          : JMETHOD_NONE;
    case J_RANGE: return named("count index start step stop", name) ? JMETHOD_LEFT_OUT : JMETHOD_NONE;
    case J_VIEW: return named("isdisjoint mapping", name) ? JMETHOD_LEFT_OUT : JMETHOD_NONE;
    case J_MACRO:
        return named("arguments catch_kwargs catch_varargs caller explicit_caller", name) ? JMETHOD_LEFT_OUT
                                                                                          : JMETHOD_NONE;
    default: return JMETHOD_NONE;
    }
}
