/* The streaming detokeniser: ids in, one at a time; text out, in whole characters; stop strings found on the way.
 *
 * The text of a sequence is defined by tok_decode (text.h): the bytes of its tokens, less special tokens when skipped,
 * less what the lead rule takes from the front. Where those bytes are not UTF-8, every maximal part of a character that
 * cannot be completed reads as one U+FFFD. A stream gives exactly that text, however its ids arrive.
 *
 * Stops are matched on the bytes, before U+FFFD replaces anything, and without regard to where tokens begin. The stop
 * that ends first wins; of several that end at the same byte, the one that begins first. The text then ends before it,
 * or behind it with include_stop; later ids are ignored. Until then a stream holds back only the bytes that could still
 * become a stop, and the beginning of an unfinished character.
 *
 * Two users. The engine thread feeds ids at COMMIT without an output buffer, to learn that and where a request ends; it
 * needs only the plain table of base/vocab.h. A network thread feeds the same ids with a buffer, to make text. Both are
 * the same function of the same bytes, so they find the same end. A struct detok is plain data: a copy of it is a way
 * back, for example over speculated tokens that are refused.
 *
 * Threads: a stop set does not change after it was made and may be shared; a stream belongs to one thread at a time.
 * Nothing here allocates except stop_set_new and the growth of the caller's buffer. */
#ifndef TEXT_DETOK_H
#define TEXT_DETOK_H

#include "base/buf.h"
#include "base/vocab.h"
#include "text/text.h"

struct stop_set;

/* Copy and compile n stops. An empty stop is ERR_INVALID: it would end every text before it begins. More than STOPS_MAX
 * of them, one longer than STOP_BYTES_MAX, or more than STOPS_BYTES_MAX in all: ERR_LIMIT. n may be 0. */
enum err stop_set_new(struct stop_set **out, const struct str *stops, size_t n, struct error *e) MUST_CHECK;
void stop_set_free(struct stop_set *s); /* NULL is fine */
uint32_t stop_set_count(const struct stop_set *s);
struct str stop_set_at(const struct stop_set *s, uint32_t i); /* as it was given; borrowed */

struct detok_opts {
    bool show_special; /* special tokens appear by name; otherwise they add nothing */
    bool continues;    /* other text comes before this one (a prompt): the lead rule does not apply */
    bool include_stop; /* the stop belongs to the text */
    bool mark_special; /* special tokens appear as DETOK_MARK, name, DETOK_MARK_END: for who must tell a control token
                        * from a text that spells it. What was held is given before, so no stop spans one; show_special
                        * has no effect */
    uint32_t min_ids;  /* a stop that ends within the first so many ids is passed over */
};

/* Bytes that no UTF-8 text has. */
#define DETOK_MARK     '\xFF'
#define DETOK_MARK_END '\xFE'

/* One stream. The first group may be read by anyone; the second is private. */
struct detok {
    uint64_t bytes;      /* of the text so far, as bytes: all that were decoded; after a stop, those before the cut */
    bool stopped;        /* a stop was found */
    uint32_t stop_index; /* which one, in the order given to stop_set_new; the first of equal ones */

    const struct vocab_view *vocab;
    const struct stop_set *stops; /* NULL: none */
    struct detok_opts opts;
    struct tok_lead lead; /* how many spaces may still be dropped */
    uint32_t n_ids;       /* fed, up to min_ids + 1 */
    uint32_t node;        /* of the stop automaton: says which bytes are held */
    unsigned char part[4];
    uint8_t n_part; /* bytes of an unfinished character */
};

/* vocab and stops are borrowed for the life of the stream; stops may be NULL. */
void detok_init(struct detok *d, const struct vocab_view *vocab, struct tok_lead lead, const struct stop_set *stops,
    struct detok_opts opts);

/* Take one id and append the text that is now certain; out may be NULL when only the stop matters, but then always.
 * ERR_INVALID: the id is outside the vocabulary. ERR_LIMIT, ERR_NOMEM: out cannot grow, and the stream is lost. */
enum err detok_feed(struct detok *d, uint32_t id, struct buf *out, struct error *e) MUST_CHECK;

/* No more ids: append what was held back; an unfinished character reads as U+FFFD. After a stop this adds nothing. */
enum err detok_end(struct detok *d, struct buf *out, struct error *e) MUST_CHECK;

/* Bytes held back now: those that may become a stop, and those of an unfinished character. */
size_t detok_held(const struct detok *d);

#endif
