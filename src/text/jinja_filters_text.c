/* Filters that make text. What they cut or copy keeps its trust byte by byte; what they compute from a value is the
 * user's when the value is. */
#include "text/jinja_int.h"

#include <string.h>

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

/* Jinja's filters take anything and make it text first. */
static enum err text_of(struct jrun *r, struct jv v, const struct jstr **out)
{
    struct jv s;
    TRY(jshow(r, v, &s));
    *out = s.u.s;
    return OK;
}

static enum err call_method(
    struct jrun *r, const char *name, struct jv self, const struct jv *pos, size_t n, struct jv *out)
{
    struct jargs a = {.pos = pos, .n_pos = n};
    struct jv s;
    TRY(jshow(r, self, &s));
    return jcall_builtin(r, jmethod_find(J_STR, str_of(name)), s, &a, out);
}

static enum err f_trim(ARGS)
{
    (void)raw;
    return call_method(r, "strip", self, arg, arg[0].type != J_MISSING, out);
}

static enum err f_upper(ARGS)
{
    (void)raw;
    return call_method(r, "upper", self, arg, 0, out);
}

static enum err f_lower(ARGS)
{
    (void)raw;
    return call_method(r, "lower", self, arg, 0, out);
}

static enum err f_capitalize(ARGS)
{
    (void)raw;
    return call_method(r, "capitalize", self, arg, 0, out);
}

static enum err f_center(ARGS)
{
    (void)raw;
    const struct jv width = arg[0].type == J_MISSING ? jint(80) : arg[0];
    return call_method(r, "center", self, &width, 1, out);
}

static enum err f_string(ARGS)
{
    (void)raw;
    (void)arg;
    return jshow(r, self, out);
}

/* title: a letter after white space or one of -({[< is raised, the others lowered. */
static enum err f_title(ARGS)
{
    (void)raw;
    (void)arg;
    const struct jstr *s;
    struct jbuf b;
    size_t len, rest = 0; /* the word after its first letter: jinja2 lowers that part alone */
    bool start = true;
    jbuf_init(&b, r);
    TRY(text_of(r, self, &s));
    TRY(jstep(r, s->n / 8));
    for (size_t i = 0; i < s->n; i += len) {
        int32_t to[3];
        const int32_t c = jchar_at(jstr_str(s), i, &len);
        size_t n = jchar_case(c, start ? JCASE_UPPER : JCASE_LOWER, to);
        if (c == 0x3a3 && !start)
            to[0] = jsigma_is_final((struct str){s->p + rest, s->n - rest}, i - rest) ? 0x3c2 : 0x3c3;
        if (start)
            rest = i + len;
        for (size_t j = 0; j < n; j++)
            jbuf_add_char(&b, to[j], jstr_is_user(s, i));
        start = jchar_is_space(c) || (c < 0x80 && c > 0 && strchr("-({[<", c) != NULL);
    }
    return jbuf_done(&b, out);
}

static enum err f_replace(ARGS)
{
    (void)raw;
    const struct jstr *s, *old, *new;
    int64_t count = -1;
    TRY(text_of(r, self, &s));
    TRY(text_of(r, arg[0], &old));
    TRY(text_of(r, arg[1], &new));
    if (arg[2].type != J_NONE)
        TRY(jarg_int(r, arg[2], "count", -1, &count));
    return jstr_replace(r, s, old, new, count, out);
}

static enum err f_join(ARGS)
{
    (void)raw;
    struct jiter it;
    struct jbuf b;
    struct jv sep = {.type = J_MISSING};
    bool first = true;
    jbuf_init(&b, r);
    TRY(jiter_init(r, self, &it));
    if (arg[0].type != J_MISSING)
        TRY(jshow(r, arg[0], &sep));
    for (;;) {
        struct jv item;
        bool done;
        TRY(jiter_next(r, &it, &item, &done));
        if (done)
            break;
        if (arg[1].type != J_MISSING && arg[1].type != J_NONE)
            TRY(jpath_get(r, item, arg[1], (struct jv){.type = J_MISSING}, &item));
        if (!first && sep.type == J_STR)
            jbuf_add_str(&b, sep.u.s);
        first = false;
        TRY(jshow_into(r, item, &b));
    }
    return jbuf_done(&b, out);
}

/* indent(width=4, first=false, blank=false) */
static enum err f_indent(ARGS)
{
    (void)raw;
    const struct jstr *s = NULL, *pad;
    struct jv pad_v, lines;
    bool first, blank;
    int64_t width;
    struct jbuf b;
    TRY(jarg_str(r, self, "value", &s));
    TRY(jarg_bool(r, arg[1], false, &first));
    TRY(jarg_bool(r, arg[2], false, &blank));
    if (arg[0].type == J_STR)
        pad = arg[0].u.s;
    else {
        const struct jstr one = {.p = " ", .n = 1};
        TRY(jarg_int(r, arg[0], "width", 4, &width));
        TRY(jbinary(r, JOP_MUL, (struct jv){.type = J_STR, .u.s = &one}, jint(width), &pad_v));
        pad = pad_v.u.s;
    }
    const struct jstr newline = {.p = "\n", .n = 1};
    struct jv whole;
    TRY(jstr_concat(r, s, &newline, &whole));
    TRY(call_method(r, "splitlines", whole, NULL, 0, &lines));
    jbuf_init(&b, r);
    if (first)
        jbuf_add_str(&b, pad);
    for (size_t i = 0; i < lines.u.l->n; i++) {
        const struct jstr *line = lines.u.l->items[i].u.s;
        if (i > 0) {
            jbuf_add_str(&b, &newline);
            if (blank || line->n > 0)
                jbuf_add_str(&b, pad);
        }
        jbuf_add_str(&b, line);
    }
    return jbuf_done(&b, out);
}

static enum err f_truncate(ARGS)
{
    (void)raw;
    const struct jstr *s = NULL, dots = {.p = "...", .n = 3}, *end = &dots;
    int64_t length, leeway;
    bool kill;
    int64_t n_value;
    TRY(jlength(r, self, &n_value));
    TRY(jarg_int(r, arg[0], "length", 255, &length));
    TRY(jarg_bool(r, arg[1], false, &kill));
    if (arg[2].type != J_MISSING)
        TRY(jarg_str(r, arg[2], "end", &end));
    leeway = 5;
    if (arg[3].type != J_NONE)
        TRY(jarg_int(r, arg[3], "leeway", 5, &leeway));
    const int64_t n_end = (int64_t)jstr_chars(end);
    if (length < n_end || leeway < 0)
        return JFAIL(
            r, ERR_INVALID, "truncate needs a length of at least %lld and no negative leeway", (long long)n_end);
    if (n_value - leeway <= length) {
        *out = self;
        return OK;
    }
    TRY(jarg_str(r, self, "value", &s));
    struct jv head;
    TRY(jstr_sub(r, s, 0, jstr_offset(s, (size_t)(length - n_end)), &head));
    if (!kill) {
        const char *space = memrchr(head.u.s->p, ' ', head.u.s->n);
        if (space != NULL)
            TRY(jstr_sub(r, head.u.s, 0, (size_t)(space - head.u.s->p), &head));
    }
    return jstr_concat(r, head.u.s, end, out);
}

static enum err f_wordcount(ARGS)
{
    (void)raw;
    (void)arg;
    const struct jstr *s;
    int64_t n = 0;
    bool in_word = false;
    size_t len;
    TRY(text_of(r, self, &s));
    TRY(jstep(r, s->n / 16));
    for (size_t i = 0; i < s->n; i += len) {
        const bool word = jchar_is_word(jchar_at(jstr_str(s), i, &len));
        n += word && !in_word;
        in_word = word;
    }
    *out = jint(n);
    return OK;
}

static enum err f_escape(ARGS)
{
    (void)raw;
    (void)arg;
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const struct jstr *s;
    struct jbuf b;
    size_t plain = 0;
    jbuf_init(&b, r);
    TRY(text_of(r, self, &s));
    TRY(jstep(r, s->n / 32));
    for (size_t i = 0; i < s->n; i++) {
        const char *at = s->p[i] != '\0' ? strchr(from, s->p[i]) : NULL;
        if (at == NULL)
            continue;
        jbuf_add_part(&b, s, plain, i);
        jbuf_add(&b, str_of(to[at - from]), jstr_is_user(s, i));
        plain = i + 1;
    }
    jbuf_add_part(&b, s, plain, s->n);
    return jbuf_done(&b, out);
}

static void quote_url(struct jbuf *b, const struct jstr *s, bool query)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s->n; i++) {
        const unsigned char c = (unsigned char)s->p[i];
        const bool user = jstr_is_user(s, i);
        const bool safe = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          (c != 0 && strchr("_.-~", c) != NULL) || (c == '/' && !query);
        const char esc[3] = {'%', hex[c >> 4], hex[c & 15]};
        if (safe)
            jbuf_add(b, (struct str){s->p + i, 1}, user);
        else if (c == ' ' && query)
            jbuf_add(b, STR("+"), user);
        else
            jbuf_add(b, (struct str){esc, 3}, user);
    }
}

static enum err f_urlencode(ARGS)
{
    (void)raw;
    (void)arg;
    struct jbuf b;
    const struct jstr *s;
    struct jlist items;
    struct jv pairs = self;
    jbuf_init(&b, r);
    if (self.type == J_STR || !jis_iterable(self)) {
        TRY(text_of(r, self, &s));
        TRY(jstep(r, s->n / 8));
        quote_url(&b, s, false);
        return jbuf_done(&b, out);
    }
    if (self.type == J_DICT)
        TRY(jcall_builtin(r, jmethod_find(J_DICT, STR("items")), self, &(struct jargs){0}, &pairs));
    TRY(jcollect(r, pairs, &items));
    for (size_t i = 0; i < items.n; i++) {
        struct jlist pair;
        TRY(jcollect(r, items.items[i], &pair));
        if (pair.n != 2)
            return JFAIL(r, ERR_INVALID, "urlencode needs pairs");
        if (i > 0)
            jbuf_add(&b, STR("&"), false);
        for (int k = 0; k < 2; k++) {
            TRY(text_of(r, pair.items[k], &s));
            TRY(jstep(r, s->n / 8));
            quote_url(&b, s, true);
            if (k == 0)
                jbuf_add(&b, STR("="), false);
        }
    }
    return jbuf_done(&b, out);
}

static enum err f_format(ARGS)
{
    (void)arg;
    const struct jstr *s;
    if (raw->n_pos > 0 && raw->n_kw > 0)
        return JFAIL(r, ERR_INVALID, "format takes positional or keyword arguments, not both");
    TRY(text_of(r, self, &s));
    return jformat_percent(r, s, raw, false, out);
}

const struct jbuiltin jfilters_text[] = {{"trim", f_trim, "chars", 0}, {"upper", f_upper, "", 0},
    {"lower", f_lower, "", 0}, {"capitalize", f_capitalize, "", 0}, {"title", f_title, "", 0},
    {"center", f_center, "width", 0}, {"string", f_string, "", 0}, {"safe", f_string, "", 0},
    {"replace", f_replace, "old new count", 2}, {"join", f_join, "d attribute", 0},
    {"indent", f_indent, "width first blank", 0}, {"truncate", f_truncate, "length killwords end leeway", 0},
    {"wordcount", f_wordcount, "", 0}, {"escape", f_escape, "", 0}, {"e", f_escape, "", 0},
    {"forceescape", f_escape, "", 0}, {"urlencode", f_urlencode, "", 0}, {"format", f_format, NULL, 0},
    {"tojson", jfilter_tojson, "ensure_ascii indent separators sort_keys", 0}, {NULL, NULL, NULL, 0}};
