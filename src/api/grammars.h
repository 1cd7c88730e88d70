/* The compiled grammars of a server. Compiling may take a fifth of a second when somebody means ill, so neither the
 * engine's thread nor a network thread does it: one thread of low priority works through a bounded queue, and a call
 * that waits for its grammar is run again when it is there (call_grammar).
 *
 * What was compiled is kept by its source, least recently used out first, within a number of bytes; what did not
 * compile is kept too, with its error. Whoever asks for what is being compiled waits for the same compilation.
 *
 * Threads: any; one mutex, never held while something is compiled, and never met by the engine's thread. */
#ifndef API_GRAMMARS_H
#define API_GRAMMARS_H

#include "grammar/grammar.h"

struct grammars;
struct grammars_entry;
struct grammars_ask;

/* Where answers are put for one thread: it takes them with grammars_next. wake is called from the compiling thread. */
struct grammars_box {
    struct grammars_ask *first, *last; /* under the lock of grammars */
    void (*wake)(void *ctx);
    void *ctx;
};

/* Somebody who waits. Belongs to its asker; grammars knows it until it was taken from the box or forgotten. */
struct grammars_ask {
    struct grammars_box *box;
    void *owner;
    struct grammars_entry *entry; /* NULL: in its box, or nowhere */
    struct grammars_ask *next, *prev;
    bool is_answered;        /* taken from the box: grammar or error */
    struct grammar *grammar; /* a reference of the asker's; NULL: error */
    struct error error;
};

enum err grammars_new(const struct grammar_vocab *v, struct grammars **out, struct error *e) MUST_CHECK;
void grammars_free(struct grammars *g); /* joins its thread; nobody may wait; NULL is fine */

/* OK with *out, a reference of the caller's; or OK with *out NULL: ask was put down and will be in its box. ERR_AGAIN:
 * too many wait already. Else what the compiler said. */
enum err grammars_get(struct grammars *g, const struct grammar_source *src, struct grammars_ask *ask,
    struct grammar **out, struct error *e) MUST_CHECK;
struct grammars_ask *grammars_next(struct grammars *g, struct grammars_box *box); /* NULL: nothing is there */
void grammars_forget(struct grammars *g, struct grammars_ask *ask);               /* wherever it is */

struct grammars_numbers {
    uint64_t hits, misses, failures, refused; /* asks: found, compiled for, with errors, queue full */
    uint64_t compile_ns, compile_max_ns;      /* of processor time */
    uint64_t bytes;
    uint32_t n, n_queued;
};
void grammars_numbers(struct grammars *g, struct grammars_numbers *out);

#endif
