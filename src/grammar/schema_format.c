/* Formats as regular languages. Each is what its RFC says, where that is regular; where it is not, or where libraries
 * disagree, the language is a part that all of them accept:
 *   date, date-time   years 0001 to 9999, days that exist
 *   time, date-time   an offset is required; a leap second only where it is 23:59:60 in UTC, at offsets of whole
 *                     quarters of an hour, as all zones have them (each offset takes states of its own)
 *   hostname          at most 253 bytes by the numbers and lengths of labels; none with "--" as third and fourth
 *                     character, since what may follow "xn--" is not regular
 *   email             a local part, quoted or not, and a hostname or an address in brackets
 * docs/structured-output.md repeats this for users. The name decides; an unknown name is refused by the caller. */
#include "base/buf.h"
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <string.h>

#define YEAR  "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define FOURS "(?:0[48]|[2468][048]|[13579][26])"
#define LEAP  "(?:[0-9]{2}" FOURS "|" FOURS "00)"
#define DATE                                                                                                           \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"               \
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define FRACTION "(?:\\.[0-9]{1,18})?"
#define TIME                                                                                                           \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]" FRACTION "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"               \
    "|23:59:60" FRACTION "(?:[Zz]|[+-]00:00)"
#define LEAP_FRACTION "(?:\\.[0-9]{1,3})?" /* at other offsets: written out for each of them */

#define NUM    "[0-9]+"
#define D_DAY  NUM "D"
#define D_DATE "(?:" NUM "Y(?:" NUM "M(?:" D_DAY ")?)?|" NUM "M(?:" D_DAY ")?|" D_DAY ")"
#define D_TIME "T(?:" NUM "H(?:" NUM "M(?:" NUM "S)?)?|" NUM "M(?:" NUM "S)?|" NUM "S)"

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4  "(?:" OCTET "\\.){3}" OCTET
#define H16   "[0-9A-Fa-f]{1,4}"
#define LS32  "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16            \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16      \
    ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16   \
    "|(?:(?:" H16 ":){0,6}" H16 ")?::)"

#define LABEL(n) "[A-Za-z0-9](?:[A-Za-z0-9-]{0," #n "}[A-Za-z0-9])?"
#define HOST                                                                                                           \
    "(?:(?:" LABEL(61) "\\.){0,2}" LABEL(13) "(?:\\." LABEL(13) "){0,6}|" LABEL(61) "(?:\\." LABEL(61) "){0,2})"

#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define LOCAL "(?:" ATEXT "+(?:\\." ATEXT "+)*|\"(?:[\\x20\\x21\\x23-\\x5B\\x5D-\\x7E]|\\\\[\\x20-\\x7E])*\")"
#define EMAIL LOCAL "@(?:" HOST "|\\[" IPV4 "\\]|\\[IPv6:" IPV6 "\\])"

/* RFC 3986 and, with more characters, RFC 3987. X: further characters of a path. */
#define PCT "%[0-9A-Fa-f]{2}"
#define UCS                                                                                                            \
    "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF"                                                                    \
    "\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}\\u{30000}-\\u{3FFFD}\\u{40000}-\\u{4FFFD}\\u{50000}-\\u{5FFFD}\\u{"    \
    "60000}-\\u{6FFFD}\\u{70000}-\\u{7FFFD}"                                                                           \
    "\\u{80000}-\\u{8FFFD}\\u{90000}-\\u{9FFFD}\\u{A0000}-\\u{AFFFD}\\u{B0000}-\\u{BFFFD}\\u{C0000}-\\u{CFFFD}\\u{"    \
    "D0000}-\\u{DFFFD}\\u{E1000}-\\u{EFFFD}"
#define PRIVATE      "\\uE000-\\uF8FF\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}"
#define PCHAR(X)     "(?:[A-Za-z0-9._~!$&'()*+,;=:@" X "-]|" PCT ")"
#define PCHAR_NC(X)  "(?:[A-Za-z0-9._~!$&'()*+,;=@" X "-]|" PCT ")"
#define REG(X)       "(?:[A-Za-z0-9._~!$&'()*+,;=" X "-]|" PCT ")*"
#define USER(X)      "(?:[A-Za-z0-9._~!$&'()*+,;=:" X "-]|" PCT ")*"
#define IP_LITERAL   "\\[(?:" IPV6 "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]"
#define AUTHORITY(X) "(?:" USER(X) "@)?(?:" IP_LITERAL "|" REG(X) ")(?::[0-9]*)?"
#define SLASHES(X)   "(?:/" PCHAR(X) "*)*"
#define ABSOLUTE(X)  "/(?:" PCHAR(X) "+" SLASHES(X) ")?"
#define TAIL(X, Q)   "(?:\\?(?:" PCHAR(X) "|[/?" Q "])*)?(?:#(?:" PCHAR(X) "|[/?])*)?"
#define FULL(X, Q)                                                                                                     \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY(X) SLASHES(X) "|" ABSOLUTE(X) "|" PCHAR(X) "+" SLASHES(X) "|)" TAIL(X, Q)
#define RELATIVE(X, Q) "(?://" AUTHORITY(X) SLASHES(X) "|" ABSOLUTE(X) "|" PCHAR_NC(X) "+" SLASHES(X) "|)" TAIL(X, Q)

#define VARNAME  "(?:[A-Za-z0-9_]|" PCT ")(?:\\.?(?:[A-Za-z0-9_]|" PCT "))*"
#define VARSPEC  VARNAME "(?:\\*|:[1-9][0-9]{0,3})?"
#define TEMPLATE "(?:[!#-$&-;=?-\\[\\]_a-z~" UCS "]|" PCT "|\\{[+#./;?&=,!@|]?" VARSPEC "(?:," VARSPEC ")*\\})*"

#define UUID(V) "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" V "[0-9a-fA-F]{3}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"

#define POINTER "(?:/(?:[^/~]|~[01])*)*"

static const struct {
    const char *name, *pattern; /* NULL: any text */
} formats[] = {
    {"date", DATE},
    {"time", TIME}, /* these two less leap seconds elsewhere than in UTC: format_leaps */
    {"date-time", DATE "[Tt](?:" TIME},
    {"duration", "P(?:" NUM "W|" D_DATE "(?:" D_TIME ")?|" D_TIME ")"},
    {"email", EMAIL},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", UUID("[0-9a-fA-F]")},
    {"uuid1", UUID("1")},
    {"uuid3", UUID("3")},
    {"uuid4", UUID("4")},
    {"uuid5", UUID("5")},
    {"uri", FULL("", "")},
    {"uri-reference", FULL("", "") "|" RELATIVE("", "")},
    {"iri", FULL(UCS, PRIVATE)},
    {"iri-reference", FULL(UCS, PRIVATE) "|" RELATIVE(UCS, PRIVATE)},
    {"uri-template", TEMPLATE},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,8})(?:#|" POINTER ")"},
    {"password", NULL}, /* these say what a text is for, not what it looks like */
    {"binary", NULL},
    {"path", NULL},
    {"file-path", NULL},
    {"directory-path", NULL},
};

/* The leap seconds of every offset: what the clock shows there when it is 23:59:60 in UTC, then the offset. */
static void format_leaps(struct buf *b)
{
    enum { DAY = 24 * 60, QUARTER = 15, UTC = DAY - 1 };
    for (int t = UTC - QUARTER; t > 0; t -= QUARTER) { /* minutes of the day; UTC itself is in the pattern */
        const int east = (t + DAY - UTC) % DAY, west = UTC - t;
        buf_addf(b, "|%02d:%02d:60" LEAP_FRACTION "(?:\\+%02d:%02d|-%02d:%02d)", t / 60, t % 60, east / 60, east % 60,
            west / 60, west % 60);
    }
}

static const struct lang *format_regex(struct schema *s, const char *pattern, bool has_leaps, struct error *e)
{
    if (!has_leaps)
        return lang_regex(s->b, str_of(pattern), true, e);
    struct buf b;
    const struct lang *x = NULL;
    buf_init(&b, GRAMMAR_TEXT_BYTES_MAX);
    buf_add(&b, str_of(pattern));
    format_leaps(&b);
    buf_add(&b, str_of(strchr(pattern, 'T') != NULL ? ")" : ""));
    if (buf_check(&b, "the pattern of a format", e) == OK)
        x = lang_regex(s->b, buf_str(&b), true, e);
    buf_fini(&b);
    return x;
}

enum err schema_format_lang(struct schema *s, struct str name, const struct lang **out, struct error *e)
{
    *out = NULL;
    size_t i = 0;
    while (i < COUNT_OF(formats) && !str_is(name, formats[i].name))
        i++;
    if (i == COUNT_OF(formats))
        return OK;
    if (s->format[i] == NULL) {
        const struct lang *x = formats[i].pattern == NULL ? lang_any(s->b, e)
                                                          : format_regex(s, formats[i].pattern,
                                                                str_is(name, "time") || str_is(name, "date-time"), e);
        if (x != NULL && (str_is(name, "hostname") || str_is(name, "email"))) {
            const struct lang *dashes = lang_regex(s->b, STR("(?:^|[.@])[A-Za-z0-9-]{2}--[A-Za-z0-9.-]*$"), false, e);
            dashes = dashes != NULL ? lang_not(s->b, dashes, e) : NULL;
            x = dashes != NULL ? lang_and(s->b, x, dashes, e) : NULL;
        }
        if (x == NULL)
            return e->code;
        s->format[i] = x;
    }
    *out = s->format[i];
    _Static_assert(COUNT_OF(formats) <= SCHEMA_FORMATS, "a slot for each format");
    return OK;
}
