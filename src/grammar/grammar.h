/* grammar: what text may come next, as a mask over the vocabulary. Owns the compiling of JSON schemas, regular
 * expressions, EBNF grammars, lists of choices and structures of these into one kind of automaton, and the walk of a
 * sequence through it.
 *
 * Three things with three lifetimes:
 *   struct grammar_vocab   a trie over the bytes of every token; made once for a model, shared by all threads
 *   struct grammar         a compiled grammar with its cache of masks; shared by all threads and requests, counted by
 *                          references
 *   struct grammar_walk    where one sequence stands; plain data of bounded size, one thread at a time; a copy of it is
 *                          a way back (speculation, forks)
 *
 * Everything is over bytes, so a token that spans a boundary of the grammar, or ends inside a character, is handled
 * exactly: a token is allowed when behind its bytes the grammar can still be completed. A control token is the byte
 * GRAMMAR_CONTROL and then its name: no text contains that byte, so a control token is allowed only where a structure
 * asks for it by name.
 *
 * Bounds. Compiling costs at most GRAMMAR_STEPS_MAX steps and GRAMMAR_BYTES_MAX of memory and answers ERR_LIMIT beyond
 * them; it runs on the asker's thread, never on the engine's. What is not supported is ERR_UNSUPPORTED and names the
 * keyword with its path; nothing is ever silently ignored.
 *
 * Threads: as above. grammar_mask, grammar_mask_key, grammar_accept and grammar_jump do not allocate and take no lock
 * that is held for longer than a copy of a mask. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include "base/base.h"
#include "base/vocab.h"

#define GRAMMAR_CONTROL 0xFF

struct grammar_vocab;
enum err grammar_vocab_new(const struct vocab_view *v, struct grammar_vocab **out, struct error *e) MUST_CHECK;
void grammar_vocab_free(struct grammar_vocab *v); /* NULL is fine */

/* How the model's tokenizer cuts a text: ids, and how many; 0 when it cannot say. Set before grammars are compiled, and
 * called by the threads that compile. Without it forced text is cut into the longest tokens. */
typedef uint32_t grammar_cut_fn(void *ctx, struct str text, uint32_t *ids, uint32_t max);
void grammar_vocab_cutter(struct grammar_vocab *v, grammar_cut_fn *fn, void *ctx);

enum grammar_kind {
    GRAMMAR_JSON_SCHEMA, /* text: a schema; true or {} = any JSON value */
    GRAMMAR_JSON_OBJECT, /* any JSON object; text unused */
    GRAMMAR_REGEX,       /* the whole output matches */
    GRAMMAR_EBNF,        /* GBNF dialect; the rule `root` */
    GRAMMAR_CHOICE,      /* text: a JSON array of strings */
    GRAMMAR_STRUCTURE,   /* text: JSON, a tree of parts; see docs/structured-output.md and structure.c */
};

/* Between the tokens of a JSON text: exactly what Jinja's tojson and Python's json.dumps write (one space behind ':'
 * and ','), nothing, or runs of blanks and newlines of bounded length. */
enum grammar_whitespace { GRAMMAR_WS_SPACED, GRAMMAR_WS_COMPACT, GRAMMAR_WS_FLEXIBLE };

struct grammar_source {
    enum grammar_kind kind;
    struct str text;
    enum grammar_whitespace whitespace;
};

struct grammar;
enum err grammar_compile(
    const struct grammar_source *src, const struct grammar_vocab *v, struct grammar **out, struct error *e) MUST_CHECK;
void grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g);         /* NULL is fine */
size_t grammar_bytes(const struct grammar *g); /* with its masks, as of now */

struct grammar_walk; /* opaque; grammar_walk_bytes() long, aligned as a uint64_t */
size_t grammar_walk_bytes(void);
void grammar_walk_init(struct grammar_walk *w, struct grammar *g); /* borrows g */
void grammar_walk_copy(struct grammar_walk *to, const struct grammar_walk *from);

/* Bits of the tokens allowed next: bit id % 64 of word id / 64, (vocabulary + 63) / 64 words. The tokens of ends[] are
 * set when the text so far is complete, and otherwise only where a structure names such a control token here. Returns
 * how many are allowed, counted up to 2. Never 0 on a walk that only took allowed tokens. */
uint32_t grammar_mask(const struct grammar_walk *w, const uint32_t *ends, uint32_t n_ends, uint64_t *mask);

/* What that mask depends on, of walks whose sets are all there already (false: they are not, or are too many). Two
 * walks with the same key have the same mask for the same ends. Names memory of the grammar: to be compared only while
 * both grammars live, and words behind n are not set. */
#define GRAMMAR_KEY_WORDS 14
struct grammar_key {
    uint32_t n;
    uint64_t words[GRAMMAR_KEY_WORDS];
};
bool grammar_mask_key(const struct grammar_walk *w, struct grammar_key *out);

/* Go on by a token. ERR_INVALID when the grammar does not allow it; the walk stays where it was. */
enum err grammar_accept(struct grammar_walk *w, uint32_t id, struct error *e) MUST_CHECK;
/* Ask for the memory that grammar_accept is about to read, and wait for none of it: for many walks in turn, all of them
 * at one stage (0, 1, 2) and then at the next. Changes nothing. */
void grammar_fetch(const struct grammar_walk *w, uint32_t id, uint32_t stage);
bool grammar_is_complete(const struct grammar_walk *w); /* the text may end here */

/* The rule of jumping: where the grammar leaves exactly one text for the next bytes (and the text may not end here),
 * the token that the tokenizer cuts off that text, or where it was not asked (cut.c) the longest one that lies wholly
 * inside it, is the next token, without asking the model. A function of the grammar and the walk alone, so it is the
 * same under any load; false when nothing is forced. */
bool grammar_jump(const struct grammar_walk *w, uint32_t *id);

/* Plain recognisers over bytes, for tests: is this a whole text of the grammar, or the beginning of one? */
bool grammar_matches(struct grammar *g, struct str text);
bool grammar_is_prefix(struct grammar *g, struct str text);

#endif
