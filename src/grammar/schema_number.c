/* Numbers as automata. Everything is done on decimal digits, as they stand in the schema and in the text that is made;
 * nothing is rounded.
 *
 * A machine reads a number's text from the left. It knows the sign, how many digits came before and behind the point,
 * how the significant digits so far compare with those of each bound (bounds are of the sort 0.d1d2... * 10^k, so
 * digits and magnitude are compared apart), and the remainder for multipleOf. Its states are explored once and become a
 * lang.
 *
 * Spellings, which docs/structured-output.md promises:
 *
 *   plain        at most SCHEMA_INT_DIGITS_MAX digits before the point, SCHEMA_FRAC_DIGITS_MAX behind it, and with a
 *                point SCHEMA_SIG_DIGITS_MAX that count; SCHEMA_EXACT_DIGITS where rounding to a double could move a
 *                number onto an exclusive bound, to an integer, or off a multiple
 *
 *   scientific   one digit from 1 to 9, at most SCHEMA_SCI_DIGITS_MAX behind the point, an exponent of one to three
 *                digits, and no value beyond the range of a double
 *
 *   integers     plain without a point or with ".0": readers of integers dislike exponents. Multiples of whole numbers
 *                may be scientific with at most SCHEMA_SCI_INT_DIGITS digits behind the point and an exponent of at
 *                least that, where powers of ten are multiples */
#include "base/hash.h"
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <string.h>

/* ---- the machine ---- */

enum phase { AT_START, AT_SIGN, AT_ZERO, AT_INT, AT_POINT, AT_FRAC, AT_E, AT_ESIGN, AT_EXP };
enum order { ORDER_EQUAL, ORDER_LESS, ORDER_MORE };

struct machine {
    struct dec bound[2][2]; /* by sign, then least and greatest magnitude */
    bool has_bound[2][2], is_open[2][2];
    bool may_sign[2];    /* any value of that sign */
    bool is_same_signed; /* the sign makes no difference */
    enum int_kind ints;
    bool has_multiple, is_denied;
    uint64_t m;
    int d; /* decimals of the multiple */
    bool may_sci;
    unsigned sci_need; /* the least exponent, where only integers or multiples are allowed; 0: any */
    uint32_t int_digits, frac_digits, sci_digits;
    uint32_t sig_digits; /* of a number with a point */
    bool keeps_exponent; /* some bound is so far out that exponents above 30 differ */
};

struct progress {
    uint8_t phase, sign;
    uint8_t n_int, n_frac;
    uint8_t left;                 /* digits that may still come behind the point */
    uint8_t zeros;                /* behind the point and before the first significant digit */
    uint8_t is_nonzero;           /* a significant digit came */
    uint8_t has_frac;             /* one other than 0 behind the point */
    uint8_t seen[2];              /* digits compared with a bound, while equal */
    uint8_t order[2];             /* of the significant digits against the bound's */
    uint8_t settled[2];           /* of the magnitude, once the point has come: order + 1 */
    uint8_t may_308;              /* the mantissa is below 1.7 */
    uint8_t esign, n_exp, unused; /* no padding: states are compared as bytes */
    uint16_t exponent;
    uint32_t remainder;
};

static void significant(const struct machine *m, struct progress *p, uint8_t digit)
{
    p->is_nonzero = 1;
    for (int i = 0; i < 2; i++) {
        if (!m->has_bound[p->sign][i] || p->order[i] != ORDER_EQUAL)
            continue;
        const struct dec *b = &m->bound[p->sign][i];
        const uint8_t other = p->seen[i] < b->n ? b->digit[p->seen[i]] : 0;
        if (digit != other) {
            p->order[i] = digit < other ? ORDER_LESS : ORDER_MORE;
            p->seen[i] = 0;
        } else if (p->seen[i] < b->n)
            p->seen[i]++;
    }
}

/* What the magnitude 10^k says against bound i, then the digits. */
static enum order order_at(const struct machine *m, const struct progress *p, int i, int k)
{
    const struct dec *b = &m->bound[p->sign][i];
    if (!p->is_nonzero)
        return b->n == 0 ? ORDER_EQUAL : ORDER_LESS;
    if (b->n == 0)
        return ORDER_MORE;
    if (k != b->k)
        return k < b->k ? ORDER_LESS : ORDER_MORE;
    if (p->order[i] == ORDER_EQUAL && p->seen[i] < b->n)
        return ORDER_LESS;
    return (enum order)p->order[i];
}

#define SAME_K INT32_MAX /* the magnitude is the bound's, or settled */

static bool is_within(const struct machine *m, const struct progress *p, int k)
{
    for (int i = 0; i < 2; i++) {
        if (!m->has_bound[p->sign][i])
            continue;
        const int own = k == SAME_K ? m->bound[p->sign][i].k : k;
        const enum order o = p->settled[i] != 0 ? (enum order)(p->settled[i] - 1) : order_at(m, p, i, own);
        if (o == (i == 0 ? ORDER_LESS : ORDER_MORE) || (o == ORDER_EQUAL && m->is_open[p->sign][i]))
            return false;
    }
    return m->may_sign[p->sign];
}

#define NO_MULTIPLE UINT32_MAX /* a remainder that no further digit mends */

static bool is_multiple_now(const struct machine *m, const struct progress *p)
{
    uint64_t r = p->remainder;
    for (int i = p->n_frac; i < m->d; i++)
        r = r * 10 % m->m;
    return !m->has_multiple || (p->remainder != NO_MULTIPLE && r % m->m == 0) != m->is_denied;
}

static bool is_final(const struct machine *m, const struct progress *p)
{
    switch (p->phase) {
    case AT_ZERO:
    case AT_INT: return m->ints != INT_NEVER && is_multiple_now(m, p) && is_within(m, p, p->n_int);
    case AT_FRAC:
        if ((m->ints == INT_NEVER && !p->has_frac) || (m->ints == INT_ONLY && (p->has_frac || p->n_frac > 1)))
            return false;
        return is_multiple_now(m, p) && is_within(m, p, p->n_int > 1 ? SAME_K : p->n_int > 0 ? 1 : -(int)p->zeros);
    case AT_EXP: {
        const int exponent = p->esign ? -(int)p->exponent : (int)p->exponent;
        if (m->ints == INT_NEVER && exponent >= 0)
            return false;
        if (m->sci_need > 0 && exponent < (int)m->sci_need)
            return false;
        return is_within(m, p, exponent + 1);
    }
    default: return false;
    }
}

static bool int_digit(const struct machine *m, struct progress *p, uint8_t digit)
{
    if (p->phase == AT_ZERO || (p->phase == AT_INT && p->n_int >= m->int_digits))
        return false;
    if (p->phase != AT_INT && digit == 0) {
        p->phase = AT_ZERO;
        return true;
    }
    p->may_308 = p->phase != AT_INT && digit == 1;
    p->phase = AT_INT;
    p->n_int++;
    significant(m, p, digit);
    if (m->has_multiple)
        p->remainder = (uint32_t)((p->remainder * (uint64_t)10 + digit) % m->m);
    return true;
}

static bool frac_digit(const struct machine *m, struct progress *p, uint8_t digit)
{
    const bool may_sci = p->n_int == 1 && m->may_sci && p->n_frac < m->sci_digits;
    if (p->left == 0 || (m->ints == INT_ONLY && !may_sci && (p->n_frac > 0 || digit != 0)))
        return false;
    if (p->n_frac == 0)
        p->may_308 = p->may_308 && digit <= 6;
    p->phase = AT_FRAC;
    if (m->has_multiple && p->n_frac >= m->d && digit != 0)
        p->remainder = NO_MULTIPLE; /* unless an exponent follows */
    else if (m->has_multiple && p->n_frac < m->d && p->remainder != NO_MULTIPLE)
        p->remainder = (uint32_t)((p->remainder * (uint64_t)10 + digit) % m->m);
    p->n_frac++;
    p->left--;
    p->has_frac |= digit != 0;
    if (p->is_nonzero || digit != 0) {
        if (!p->is_nonzero)
            p->left = (uint8_t)MIN(p->left, m->sig_digits - 1);
        significant(m, p, digit);
    } else
        p->zeros++;
    return true;
}

static bool exp_digit(const struct machine *m, struct progress *p, uint8_t digit)
{
    const unsigned e = p->exponent * 10u + digit;
    if (p->n_exp >= 3 || e > (p->may_308 || p->esign ? 308u : 307u))
        return false;
    p->n_exp++;
    p->exponent = (uint16_t)e;
    p->phase = AT_EXP;
    if (!m->keeps_exponent && e > 30) {
        p->exponent = 31; /* no third digit fits, and all of these are alike */
        p->n_exp = 3;
        p->may_308 = 0;
    }
    return true;
}

/* The point: a number of several digits knows its magnitude now. */
static void settle(const struct machine *m, struct progress *p)
{
    for (int i = 0; i < 2; i++) {
        if (!m->has_bound[p->sign][i] || p->n_int == 0)
            continue;
        const struct dec *b = &m->bound[p->sign][i];
        if (p->n_int > 1 && (b->n == 0 || p->n_int != b->k)) {
            p->settled[i] = (uint8_t)(1 + (b->n > 0 && p->n_int < b->k ? ORDER_LESS : ORDER_MORE));
            p->seen[i] = 0;
            p->order[i] = ORDER_MORE;
        }
    }
}

/* What can decide nothing any more is forgotten, so that few states are different. False: this leads nowhere. */
static bool forget(const struct machine *m, struct progress *p)
{
    const bool *has = m->has_bound[p->sign];
    if (p->phase > AT_SIGN && m->is_same_signed)
        p->sign = 0;
    if (!has[0] && !has[1])
        p->zeros = 0;
    if (!m->has_multiple)
        p->remainder = 0;
    if (m->ints == INT_ANY)
        p->has_frac = 0;
    if (p->n_int > 1) {
        p->may_308 = 0;
        const struct dec *most = &m->bound[p->sign][1];
        if (p->phase == AT_INT && has[1] && (int)p->n_int > MAX(most->k, 0))
            return false;
    }
    if (p->phase >= AT_POINT)
        p->n_int = MIN(p->n_int, 2);
    if (!m->has_multiple && m->sci_need == 0)
        p->n_frac = MIN(p->n_frac, 2);
    if (p->phase < AT_E)
        return true;
    p->n_frac = p->zeros = p->has_frac = p->left = 0;
    p->remainder = 0;
    for (int i = 0; i < 2; i++) {
        if (has[i] && p->order[i] == ORDER_EQUAL && p->seen[i] < m->bound[p->sign][i].n) {
            p->order[i] = ORDER_LESS;
            p->seen[i] = 0;
        }
    }
    return true;
}

static bool read_byte(const struct machine *m, struct progress *p, char c)
{
    const bool is_digit = c >= '0' && c <= '9';
    switch (p->phase) {
    case AT_START:
    case AT_SIGN:
        if (c == '-' && p->phase == AT_START) {
            p->sign = 1;
            p->phase = AT_SIGN;
            return true;
        }
        return is_digit && int_digit(m, p, (uint8_t)(c - '0'));
    case AT_ZERO:
    case AT_INT:
        if (c == '.') {
            settle(m, p);
            p->phase = AT_POINT;
            p->left = (uint8_t)(p->n_int < m->sig_digits ? MIN(m->frac_digits, m->sig_digits - p->n_int) : 0);
            return p->left > 0;
        }
        break;
    case AT_POINT: return is_digit && frac_digit(m, p, (uint8_t)(c - '0'));
    case AT_FRAC:
        if (is_digit)
            return frac_digit(m, p, (uint8_t)(c - '0'));
        break;
    case AT_E:
        if (c == '+' || c == '-') {
            p->phase = AT_ESIGN;
            p->esign = c == '-';
            return c == '+' || m->sci_need == 0;
        }
        return is_digit && exp_digit(m, p, (uint8_t)(c - '0'));
    default: return is_digit && exp_digit(m, p, (uint8_t)(c - '0'));
    }
    if (c == 'e' || c == 'E') {
        p->phase = AT_E;
        return p->n_int == 1 && p->n_frac <= m->sci_digits && m->may_sci;
    }
    return is_digit && int_digit(m, p, (uint8_t)(c - '0'));
}

static bool machine_step(const struct machine *m, struct progress *p, char c)
{
    return read_byte(m, p, c) && forget(m, p);
}

/* ---- from the rule to the machine ---- */

static void bound_set(struct machine *m, int sign, int which, const struct dec *v, bool is_open)
{
    m->has_bound[sign][which] = true;
    m->is_open[sign][which] = is_open;
    m->bound[sign][which] = *v;
    m->bound[sign][which].is_negative = false;
    if (v->n > 0 && (v->k > 30 || v->k < -28))
        m->keeps_exponent = true;
}

static void bounds_set(struct machine *m, const struct num_rule *r)
{
    m->may_sign[0] = m->may_sign[1] = true;
    if (r->has_lo) {
        if (r->lo.is_negative)
            bound_set(m, 1, 1, &r->lo, r->is_lo_open);
        else {
            bound_set(m, 0, 0, &r->lo, r->is_lo_open);
            m->may_sign[1] = r->lo.n == 0 && !r->is_lo_open; /* -0 */
            if (m->may_sign[1])
                bound_set(m, 1, 1, &r->lo, false);
        }
    }
    if (r->has_hi) {
        if (!r->hi.is_negative && (r->hi.n > 0 || !r->is_hi_open))
            bound_set(m, 0, 1, &r->hi, r->is_hi_open);
        else if (r->hi.n > 0)
            m->may_sign[0] = false;
        if (r->hi.is_negative)
            bound_set(m, 1, 0, &r->hi, r->is_hi_open);
        if (r->hi.n == 0 && r->is_hi_open) {
            m->may_sign[0] = false;
            bound_set(m, 1, 0, &r->hi, true);
        }
    }
}

static void multiple_set(struct machine *m, const struct dec_list *x)
{
    m->has_multiple = true;
    m->is_denied = x->is_denied;
    dec_multiple_parts(&x->v, &m->m, &m->d);
    m->may_sci = m->may_sci && !x->is_denied;
    if (x->is_denied)
        return;
    /* Multiples of p / q, in lowest terms; q does not matter. Numbers with an exponent are so large that a double of
     * their size is a multiple of a small power of two, whatever its digits are; so p must be one. */
    uint64_t p = m->m;
    for (int i = 0; i < m->d; i++) {
        const uint64_t two = p % 2 == 0 ? 2 : 1, five = p % 5 == 0 ? 5 : 1;
        p /= two * five;
    }
    unsigned twos = 0;
    while (p > 1 && p % 2 == 0) {
        p /= 2;
        twos++;
    }
    m->may_sci = m->may_sci && p == 1 && twos <= 10;
    m->sci_digits = SCHEMA_SCI_INT_DIGITS;
    m->sci_need = SCHEMA_SCI_INT_DIGITS + twos;
    if (m->d == 0)
        m->ints = INT_ONLY;
}

struct exploring {
    struct schema *s;
    const struct machine *m;
    struct progress *state;
    uint32_t n, cap;
    uint32_t *table;
    uint32_t n_table;
    struct lang_edge *edge;
    uint32_t n_edges, cap_edges;
};

static enum err state_of(struct exploring *x, const struct progress *p, uint32_t *out, struct error *e)
{
    uint64_t at = hash64(p, sizeof *p, 0) & (x->n_table - 1);
    for (; x->table[at] != 0; at = (at + 1) & (x->n_table - 1)) {
        if (memcmp(&x->state[x->table[at] - 1], p, sizeof *p) == 0) {
            *out = x->table[at] - 1;
            return OK;
        }
    }
    if (2 * (x->n + 1) > x->n_table) {
        if (x->n >= SCHEMA_NUMBER_STATES_MAX)
            return FAIL(
                e, ERR_LIMIT, "a number's bounds and multipleOf need more than %d states", SCHEMA_NUMBER_STATES_MAX);
        const uint32_t n = x->n_table * 2;
        uint32_t *table = schema_take(x->s, n, sizeof *table, e);
        if (table == NULL)
            return e->code;
        for (uint32_t i = 0; i < x->n; i++) {
            uint64_t slot = hash64(&x->state[i], sizeof x->state[i], 0) & (n - 1);
            while (table[slot] != 0)
                slot = (slot + 1) & (n - 1);
            table[slot] = i + 1;
        }
        x->table = table;
        x->n_table = n;
        return state_of(x, p, out, e);
    }
    TRY(schema_step(x->s, 8, e)); /* each symbol will be tried */
    TRY(schema_grow(x->s, (void **)&x->state, x->n, &x->cap, sizeof x->state[0], e));
    x->state[x->n] = *p;
    *out = x->n++;
    x->table[at] = x->n;
    return OK;
}

static enum err explore(struct schema *s, const struct machine *m, const struct lang **out, struct error *e)
{
    static const char symbols[] = "+-.0123456789Ee";
    struct exploring x = {.s = s, .m = m, .n_table = 256};
    uint32_t start;
    const struct progress begin = {0};
    x.table = schema_take(s, x.n_table, sizeof *x.table, e);
    if (x.table == NULL)
        return e->code;
    TRY(state_of(&x, &begin, &start, e));
    for (uint32_t i = 0; i < x.n; i++) {
        for (const char *c = symbols; *c != '\0'; c++) {
            struct progress p = x.state[i];
            uint32_t to = 0;
            if (!machine_step(m, &p, *c))
                continue;
            TRY(state_of(&x, &p, &to, e));
            struct lang_edge *last = x.n_edges > 0 ? &x.edge[x.n_edges - 1] : NULL;
            if (last != NULL && last->from == i && last->to == to && last->hi + 1 == (uint8_t)*c) {
                last->hi++;
                continue;
            }
            TRY(schema_grow(s, (void **)&x.edge, x.n_edges, &x.cap_edges, sizeof x.edge[0], e));
            x.edge[x.n_edges++] = (struct lang_edge){i, to, (uint8_t)*c, (uint8_t)*c};
        }
    }
    bool *final = schema_take(s, x.n, sizeof *final, e);
    if (final == NULL)
        return e->code;
    for (uint32_t i = 0; i < x.n; i++)
        final[i] = is_final(m, &x.state[i]);
    *out = lang_edges(s->b, x.n, x.edge, x.n_edges, final, e);
    return *out != NULL ? OK : e->code;
}

/* The rule without its excluded numbers, and with one multiple at most. */
static enum err machine_lang(struct schema *s, const struct num_rule *r, const struct dec_list *multiple,
    const struct lang **out, struct error *e)
{
    struct machine m = {.ints = r->ints,
        .may_sci = r->ints != INT_ONLY,
        .sci_digits = SCHEMA_SCI_DIGITS_MAX, /* not more than an integer may have */
        .int_digits = SCHEMA_INT_DIGITS_MAX,
        .frac_digits = SCHEMA_FRAC_DIGITS_MAX,
        .sig_digits = SCHEMA_SIG_DIGITS_MAX};
    _Static_assert(SCHEMA_SCI_DIGITS_MAX <= SCHEMA_SCI_INT_DIGITS, "integers");
    bounds_set(&m, r);
    m.is_same_signed = !r->has_lo && !r->has_hi;
    const bool is_lo_sharp = r->has_lo && r->is_lo_open && r->lo.n > 0;
    const bool is_hi_sharp = r->has_hi && r->is_hi_open && r->hi.n > 0;
    if (is_lo_sharp || is_hi_sharp || r->ints == INT_NEVER || multiple != NULL || r->excluded != NULL)
        m.sig_digits = SCHEMA_EXACT_DIGITS;
    if (multiple != NULL) {
        multiple_set(&m, multiple);
        m.int_digits = SCHEMA_EXACT_DIGITS;
        if (!m.is_denied)
            m.frac_digits = (uint32_t)MAX(MAX(m.d, 1), m.may_sci ? SCHEMA_SCI_INT_DIGITS : 0);
    }
    return explore(s, &m, out, e);
}

static bool is_same_rule(const struct num_rule *a, const struct num_rule *b)
{
    return a->has_lo == b->has_lo && a->has_hi == b->has_hi && a->is_lo_open == b->is_lo_open &&
           a->is_hi_open == b->is_hi_open && a->ints == b->ints && (!a->has_lo || dec_compare(&a->lo, &b->lo) == 0) &&
           (!a->has_hi || dec_compare(&a->hi, &b->hi) == 0) && a->multiple == b->multiple && a->excluded == b->excluded;
}

enum err schema_number_lang(struct schema *s, const struct num_rule *r, const struct lang **out, struct error *e)
{
    for (const struct num_cached *c = s->num_cache; c != NULL; c = c->next) {
        if (is_same_rule(&c->key, r)) {
            *out = c->lang;
            return OK;
        }
    }
    const struct lang *x = NULL;
    TRY(machine_lang(s, r, r->multiple, &x, e));
    const struct num_rule plain = {0};
    for (const struct dec_list *m = r->multiple != NULL ? r->multiple->next : NULL; m != NULL; m = m->next) {
        const struct lang *y = NULL;
        TRY(machine_lang(s, &plain, m, &y, e));
        x = x != NULL && y != NULL ? lang_and(s->b, x, y, e) : NULL;
        if (x == NULL)
            return e->code;
    }
    for (const struct dec_list *d = r->excluded; d != NULL; d = d->next) {
        const struct num_rule equal = {.has_lo = true, .has_hi = true, .lo = d->v, .hi = d->v};
        const struct lang *y = NULL;
        TRY(machine_lang(s, &equal, NULL, &y, e));
        y = y != NULL ? lang_not(s->b, y, e) : NULL;
        x = x != NULL && y != NULL ? lang_and(s->b, x, y, e) : NULL;
        if (x == NULL)
            return e->code;
    }
    struct num_cached *c = schema_take(s, 1, sizeof *c, e);
    if (c == NULL)
        return e->code;
    *c = (struct num_cached){*r, x, s->num_cache};
    s->num_cache = c;
    *out = x;
    return OK;
}
