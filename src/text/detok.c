/* The streaming detokeniser. Bytes pass three stations, each of which may hold some back:
 *
 *   token bytes -> lead rule (drops) -> stop automaton (holds what may become a stop) -> characters (hold a part) ->
 * out
 *
 * The automaton is Aho and Corasick's: a trie of the stops where each node also knows the longest proper suffix of its
 * path that is a path too (fail). After any input the current node spells the longest suffix of the input that begins a
 * stop. That gives three things at once:
 *   1. what must be held back is exactly the path of the node, no less and no more;
 *   2. the held bytes need no buffer: they are the beginning of a stop, so the node says where to read them;
 *   3. the state of a stream is one number, which the engine keeps per request.
 * A byte costs one step down and any number of steps up the fail links; each step up was paid for by one down, so the
 * time is linear in the bytes. A node has at most as many children as there are stops, so a plain list of them will do;
 * the root, where nearly all text is spent, has a table instead, and runs that start no stop are passed on unread.
 *
 * Invariants: (1) path(node) = the last depth(node) bytes fed; (2) a node where a stop ends is current only within the
 * first min_ids ids, where it is passed over; later, reaching one ends the stream; (3) part[0..n_part) could be
 * completed to one character; (4) detok.bytes counts every byte that left the lead rule, held or not. */
#include "text/detok.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

#define NO_STOP UINT16_MAX

struct stop_node {
    uint16_t child, sibling; /* 0: none; the root is nobody's child */
    uint16_t fail;           /* longest proper suffix of the path that is a path; 0 is the empty one */
    uint16_t depth;          /* bytes of the path */
    uint16_t of;             /* a stop that begins with the path */
    uint16_t ends;           /* the longest stop that ends here, or NO_STOP */
    uint8_t byte;            /* last byte of the path */
};

struct stop_set {
    struct stop_node *nodes;
    char *bytes;                /* of all stops, one after another */
    uint32_t at[STOPS_MAX + 1]; /* where each begins */
    uint32_t n, n_nodes;
    uint16_t from_root[256]; /* child of the root for each byte, or 0 */
};

_Static_assert(STOPS_BYTES_MAX < UINT16_MAX, "node numbers and depths are 16 bits");
_Static_assert(STOPS_MAX < NO_STOP, "stop numbers are 16 bits");

/* ---- compiling ---- */

static uint16_t child_of(const struct stop_set *s, uint16_t node, uint8_t byte)
{
    if (node == 0)
        return s->from_root[byte];
    uint16_t c = s->nodes[node].child;
    while (c != 0 && s->nodes[c].byte != byte)
        c = s->nodes[c].sibling;
    return c;
}

static void trie_add(struct stop_set *s, uint16_t stop, struct str text)
{
    uint16_t node = 0;
    for (size_t i = 0; i < text.n; i++) {
        const uint8_t byte = (uint8_t)text.p[i];
        uint16_t next = child_of(s, node, byte);
        if (next == 0) {
            next = (uint16_t)s->n_nodes++;
            s->nodes[next] = (struct stop_node){
                .sibling = s->nodes[node].child, .depth = (uint16_t)(i + 1), .of = stop, .ends = NO_STOP, .byte = byte};
            s->nodes[node].child = next;
            if (node == 0)
                s->from_root[byte] = next;
        }
        node = next;
    }
    if (s->nodes[node].ends == NO_STOP)
        s->nodes[node].ends = stop;
}

/* Fail links, level by level: those of a node need the links of all shorter paths. The queue holds each node once. */
static void link_suffixes(struct stop_set *s, uint16_t *queue)
{
    uint32_t head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        const uint16_t node = queue[head++];
        for (uint16_t c = s->nodes[node].child; c != 0; c = s->nodes[c].sibling) {
            uint16_t up = s->nodes[node].fail, to = 0;
            if (node != 0) {
                while ((to = child_of(s, up, s->nodes[c].byte)) == 0 && up != 0)
                    up = s->nodes[up].fail;
            }
            s->nodes[c].fail = to;
            if (s->nodes[c].ends == NO_STOP)
                s->nodes[c].ends = s->nodes[to].ends;
            queue[tail++] = c;
        }
    }
    assert(tail == s->n_nodes);
}

static enum err check_stops(const struct str *stops, size_t n, size_t *bytes, struct error *e)
{
    if (n > STOPS_MAX)
        return FAIL(e, ERR_LIMIT, "%zu stop strings, at most %d are allowed", n, STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (stops[i].n == 0)
            return FAIL(e, ERR_INVALID, "stop string %zu is empty", i);
        if (stops[i].n > STOP_BYTES_MAX)
            return FAIL(
                e, ERR_LIMIT, "stop string %zu has %zu bytes, at most %d are allowed", i, stops[i].n, STOP_BYTES_MAX);
        *bytes += stops[i].n;
    }
    if (*bytes > STOPS_BYTES_MAX)
        return FAIL(
            e, ERR_LIMIT, "stop strings have %zu bytes in all, at most %d are allowed", *bytes, STOPS_BYTES_MAX);
    return OK;
}

enum err stop_set_new(struct stop_set **out, const struct str *stops, size_t n, struct error *e)
{
    size_t bytes = 0;
    TRY(check_stops(stops, n, &bytes, e));
    struct stop_set *s = mem_zalloc(sizeof *s);
    uint16_t *queue = mem_array(bytes + 1, sizeof *queue);
    if (s != NULL) {
        s->nodes = mem_array(bytes + 1, sizeof *s->nodes);
        s->bytes = mem_alloc(bytes);
    }
    if (s == NULL || queue == NULL || s->nodes == NULL || s->bytes == NULL) {
        mem_free(queue);
        stop_set_free(s);
        return FAIL(e, ERR_NOMEM, "out of memory for %zu stop strings", n);
    }
    s->nodes[0].ends = NO_STOP;
    s->n_nodes = 1;
    s->n = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(s->bytes + s->at[i], stops[i].p, stops[i].n);
        s->at[i + 1] = s->at[i] + (uint32_t)stops[i].n;
        trie_add(s, (uint16_t)i, stops[i]);
    }
    link_suffixes(s, queue);
    mem_free(queue);
    *out = s;
    return OK;
}

uint32_t stop_set_count(const struct stop_set *s)
{
    return s->n;
}

struct str stop_set_at(const struct stop_set *s, uint32_t i)
{
    assert(i < s->n);
    return (struct str){s->bytes + s->at[i], s->at[i + 1] - s->at[i]};
}

void stop_set_free(struct stop_set *s)
{
    if (s == NULL)
        return;
    mem_free(s->nodes);
    mem_free(s->bytes);
    mem_free(s);
}

/* ---- characters ---- */

enum part_kind { PART_WHOLE, PART_OPEN, PART_BAD };

/* What the first n bytes of a character are: a whole one, the beginning of one, or neither. n is 1 to 4, and all but
 * the last byte are already known to be a beginning. */
static enum part_kind part_kind_of(const unsigned char *p, unsigned n)
{
    const unsigned lead = p[0];
    const unsigned want = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (want == 0)
        return PART_BAD;
    if (n == 2) { /* overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte */
        const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (p[1] < low || p[1] > high)
            return PART_BAD;
    } else if (n > 2 && (p[n - 1] & 0xC0) != 0x80) {
        return PART_BAD;
    }
    return n == want ? PART_WHOLE : PART_OPEN;
}

static const struct str replacement = {"\xEF\xBF\xBD", 3};

static void char_put(struct detok *d, unsigned char byte, struct buf *out)
{
    for (;;) {
        d->part[d->n_part++] = byte;
        const enum part_kind kind = part_kind_of(d->part, d->n_part);
        if (kind == PART_OPEN)
            return;
        const unsigned n = d->n_part;
        d->n_part = 0;
        if (kind == PART_WHOLE) {
            buf_add(out, (struct str){(const char *)d->part, n});
            return;
        }
        buf_add(out, replacement);
        if (n == 1)
            return; /* the byte itself was bad; otherwise it ends a bad part and begins anew */
    }
}

static void chars_put(struct detok *d, struct str s, struct buf *out)
{
    if (out == NULL)
        return;
    size_t i = 0;
    while (i < s.n) {
        size_t start = i, len = 0;
        if (d->n_part == 0) {
            while (i < s.n && (len = utf8_len((struct str){s.p + i, s.n - i})) > 0)
                i += len;
            buf_add(out, (struct str){s.p + start, i - start});
        }
        if (i < s.n)
            char_put(d, (unsigned char)s.p[i++], out);
    }
}

static void chars_end(struct detok *d, struct buf *out)
{
    if (out != NULL && d->n_part > 0)
        buf_add(out, replacement);
    d->n_part = 0;
}

/* ---- stops ---- */

/* The first n bytes of a node's path. */
static struct str path_of(const struct stop_set *s, uint32_t node, size_t n)
{
    return (struct str){s->bytes + s->at[s->nodes[node].of], n};
}

/* The node was reached by the byte before which `before` was current, and a stop ends there. */
static void stop_at(struct detok *d, uint32_t before, uint16_t stop, struct buf *out)
{
    const struct stop_set *s = d->stops;
    const uint32_t stop_bytes = s->at[stop + 1] - s->at[stop];
    const uint32_t held = s->nodes[before].depth; /* the stop is a suffix of these and the last byte */
    chars_put(d, path_of(s, before, held + 1 - stop_bytes), out);
    if (d->opts.include_stop)
        chars_put(d, (struct str){s->bytes + s->at[stop], stop_bytes}, out);
    else
        d->bytes -= stop_bytes;
    chars_end(d, out);
    d->stopped = true;
    d->stop_index = stop;
    d->node = 0;
}

static void stops_put(struct detok *d, struct str text, struct buf *out)
{
    const struct stop_set *s = d->stops;
    if (s == NULL || s->n == 0) {
        d->bytes += text.n;
        chars_put(d, text, out);
        return;
    }
    for (size_t i = 0; i < text.n;) {
        if (d->node == 0) {
            const size_t start = i;
            while (i < text.n && s->from_root[(uint8_t)text.p[i]] == 0)
                i++;
            d->bytes += i - start;
            chars_put(d, (struct str){text.p + start, i - start}, out);
            if (i == text.n)
                return;
        }
        const uint32_t before = d->node;
        const uint8_t byte = (uint8_t)text.p[i++];
        uint16_t node = (uint16_t)before, next;
        while ((next = child_of(s, node, byte)) == 0 && node != 0)
            node = s->nodes[node].fail;
        d->bytes++;
        if (s->nodes[next].ends != NO_STOP && d->n_ids > d->opts.min_ids) {
            stop_at(d, before, s->nodes[next].ends, out);
            return;
        }
        while (s->nodes[next].ends != NO_STOP && s->nodes[next].child == 0)
            next = s->nodes[next].fail; /* passed over: only what can still become a stop is held */
        /* held: path(before) + byte; still held: path(next), its end. The rest is now certain. */
        const uint32_t held = s->nodes[before].depth, free_bytes = held + 1u - s->nodes[next].depth;
        chars_put(d, path_of(s, before, MIN(held, free_bytes)), out);
        if (free_bytes > held)
            chars_put(d, (struct str){(const char *)&byte, 1}, out);
        d->node = next;
    }
}

/* ---- the stream ---- */

void detok_init(struct detok *d, const struct vocab_view *vocab, struct tok_lead lead, const struct stop_set *stops,
    struct detok_opts opts)
{
    *d = (struct detok){.vocab = vocab, .stops = stops, .opts = opts, .lead = lead};
    if (opts.continues)
        d->lead.spaces = 0;
}

static struct str lead_drop(struct detok *d, struct str text)
{
    while (d->lead.spaces > 0 && text.n > 0) {
        if (text.p[0] != ' ') {
            d->lead.spaces = 0;
            break;
        }
        text.p++;
        text.n--;
        d->lead.spaces--;
    }
    if (d->lead.first_token_only)
        d->lead.spaces = 0;
    return text;
}

static enum err mark_put(struct detok *d, struct str name, struct buf *out, struct error *e)
{
    TRY(detok_end(d, out, e));
    if (out == NULL)
        return OK;
    buf_add_char(out, DETOK_MARK);
    buf_add(out, name);
    buf_add_char(out, DETOK_MARK_END);
    return buf_check(out, "text", e);
}

enum err detok_feed(struct detok *d, uint32_t id, struct buf *out, struct error *e)
{
    if (id >= d->vocab->n)
        return FAIL(e, ERR_INVALID, "token id %u is outside the vocabulary of %u", id, d->vocab->n);
    const bool special = (d->vocab->flags[id] & VOCAB_SPECIAL) != 0;
    d->n_ids += d->n_ids <= d->opts.min_ids;
    if (special && d->opts.mark_special && !d->stopped)
        return mark_put(d, vocab_bytes(d->vocab, id), out, e);
    if (d->stopped || (special && !d->opts.show_special))
        return OK;
    stops_put(d, lead_drop(d, vocab_bytes(d->vocab, id)), out);
    return out != NULL ? buf_check(out, "text", e) : OK;
}

enum err detok_end(struct detok *d, struct buf *out, struct error *e)
{
    if (d->node != 0) {
        chars_put(d, path_of(d->stops, d->node, d->stops->nodes[d->node].depth), out);
        d->node = 0;
    }
    chars_end(d, out);
    return out != NULL ? buf_check(out, "text", e) : OK;
}

size_t detok_held(const struct detok *d)
{
    return (d->node != 0 ? d->stops->nodes[d->node].depth : 0u) + d->n_part;
}
