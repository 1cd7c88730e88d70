/* Decimal numbers: those of a schema, compared and divided digit by digit. What the parser has read as a double is
 * taken at its shortest spelling, which is how it was written. */
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dec dec_from_text(const char *text)
{
    struct dec v = {0}, *out = &v;
    int exponent = 0, before = 0;
    bool behind_point = false;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '-')
            out->is_negative = true;
        else if (*p == '.')
            behind_point = true;
        else if (*p == 'E') {
            exponent = (int)strtol(p + 1, NULL, 10);
            break;
        } else {
            before += behind_point ? 0 : 1;
            if (out->n < DEC_DIGITS_MAX)
                out->digit[out->n++] = (uint8_t)(*p - '0');
        }
    }
    uint8_t zeros = 0;
    while (zeros < out->n && out->digit[zeros] == 0)
        zeros++;
    out->n = (uint8_t)(out->n - zeros);
    memmove(out->digit, out->digit + zeros, out->n);
    memset(out->digit + out->n, 0, (size_t)(DEC_DIGITS_MAX - out->n));
    while (out->n > 0 && out->digit[out->n - 1] == 0)
        out->n--;
    out->k = out->n > 0 ? (int16_t)(exponent + before - zeros) : 0;
    out->is_negative = out->is_negative && out->n > 0;
    return v;
}

struct dec dec_from_int(int64_t n)
{
    char text[40];
    snprintf(text, sizeof text, "%lldE0", (long long)n);
    return dec_from_text(text);
}

bool dec_from_json(const json_t *j, struct dec *out)
{
    char text[40];
    *out = (struct dec){0};
    if (json_is_integer(j)) {
        *out = dec_from_int(json_integer_value(j));
        return true;
    }
    const double d = json_real_value(j);
    if (!json_is_real(j) || !isfinite(d))
        return false;
    for (int digits = 14; digits <= 16; digits++) {
        snprintf(text, sizeof text, "%.*E", digits, d);
        if (strtod(text, NULL) == d)
            break;
    }
    *out = dec_from_text(text);
    return true;
}

static int compare_magnitudes(const struct dec *a, const struct dec *b)
{
    if (a->n == 0 || b->n == 0)
        return (a->n > 0) - (b->n > 0);
    if (a->k != b->k)
        return a->k < b->k ? -1 : 1;
    return memcmp(a->digit, b->digit, sizeof a->digit);
}

int dec_compare(const struct dec *a, const struct dec *b)
{
    if (a->is_negative != b->is_negative)
        return a->is_negative ? -1 : 1;
    const int c = compare_magnitudes(a, b);
    return a->is_negative ? -c : c;
}

bool dec_is_integer(const struct dec *a)
{
    return a->n <= MAX(a->k, 0);
}

/* v as an integer after moving the point `places` to the right, modulo m; false when it is none. */
static bool remainder_of(const struct dec *v, int places, uint64_t m, uint64_t *out)
{
    uint64_t r = 0;
    if (m == 0 || v->n > v->k + places)
        return false;
    for (int i = 0; i < v->k + places; i++)
        r = (r * 10 + (i < v->n ? v->digit[i] : 0)) % m;
    *out = r;
    return true;
}

bool dec_multiple_parts(const struct dec *v, uint64_t *m, int *d)
{
    *m = 0;
    *d = MAX(v->n - v->k, 0);
    for (int i = 0; i < v->k + *d; i++) {
        *m = *m * 10 + (i < v->n ? v->digit[i] : 0);
        if (*m > SCHEMA_MULTIPLE_MAX)
            return false;
    }
    return true;
}

bool dec_is_countable(const struct dec *a)
{
    uint64_t m;
    int d;
    return dec_multiple_parts(a, &m, &d) && d <= SCHEMA_FRAC_DIGITS_MAX;
}

static bool is_multiple(const struct dec *v, const struct dec *of)
{
    uint64_t m = 1, r = 1;
    int d = 0;
    return dec_multiple_parts(of, &m, &d) && remainder_of(v, d, m, &r) && r == 0;
}

bool num_rule_allows(const struct num_rule *r, const struct dec *v)
{
    const int lo = r->has_lo ? dec_compare(v, &r->lo) : 1, hi = r->has_hi ? dec_compare(v, &r->hi) : -1;
    if (lo < 0 || (lo == 0 && r->is_lo_open) || hi > 0 || (hi == 0 && r->is_hi_open))
        return false;
    if ((r->ints == INT_ONLY && !dec_is_integer(v)) || (r->ints == INT_NEVER && dec_is_integer(v)))
        return false;
    for (const struct dec_list *x = r->multiple; x != NULL; x = x->next)
        if (is_multiple(v, &x->v) == x->is_denied)
            return false;
    for (const struct dec_list *x = r->excluded; x != NULL; x = x->next)
        if (dec_compare(v, &x->v) == 0)
            return false;
    return true;
}

uint32_t dec_texts(const struct dec *v, char text[DEC_TEXTS_MAX][DEC_TEXT_BYTES_MAX])
{
    uint32_t n = 0;
    const char *sign = v->is_negative ? "-" : "";
    char digits[DEC_DIGITS_MAX + 1] = {0};
    for (int i = 0; i < v->n; i++)
        digits[i] = (char)('0' + v->digit[i]);
    if (v->n == 0) {
        const char *const zeros[] = {"0", "0.0", "-0.0"};
        for (; n < COUNT_OF(zeros); n++)
            snprintf(text[n], DEC_TEXT_BYTES_MAX, "%s", zeros[n]);
        return n;
    }
    const int whole = MAX(v->n, v->k); /* digits of an integer */
    if (dec_is_integer(v) && whole <= SCHEMA_INT_DIGITS_MAX) {
        static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
        snprintf(text[n++], DEC_TEXT_BYTES_MAX, "%s%s%.*s", sign, digits, whole - v->n, zeros);
        snprintf(text[n++], DEC_TEXT_BYTES_MAX, "%s%s%.*s.0", sign, digits, whole - v->n, zeros);
    } else if (v->k > 0 && v->k < v->n)
        snprintf(text[n++], DEC_TEXT_BYTES_MAX, "%s%.*s.%s", sign, v->k, digits, digits + v->k);
    else if (v->k <= 0 && v->k > -8)
        snprintf(text[n++], DEC_TEXT_BYTES_MAX, "%s0.%.*s%s", sign, -v->k, "00000000", digits);
    if (v->k > 16 || v->k < -3) /* where Python writes an exponent, of at least two digits */
        snprintf(text[n++], DEC_TEXT_BYTES_MAX, "%s%c%s%se%c%02d", sign, digits[0], v->n > 1 ? "." : "", digits + 1,
            v->k > 0 ? '+' : '-', abs(v->k - 1));
    return n;
}
