/* The two large members of tokenizer.json, model.vocab and model.merges, read straight from its text.
 *
 * They are nearly all of the file: a million strings, of which the JSON library would make a million objects, in ten
 * times the file's size of memory and more than half of the time it takes to make a tokenizer. Their form is fixed and
 * flat, so they are cut out, the rest of the file goes to the library as it is, and these two are read by the functions
 * below: strictly, in one pass, borrowing every string that has no escapes.
 *
 * Threads: one at a time. */
#ifndef TEXT_TOK_MEMBERS_H
#define TEXT_TOK_MEMBERS_H

#include "base/base.h"
#include "base/buf.h"
#include "base/mem.h"

struct members {
    struct str vocab, merges; /* the values' text with its brackets; p NULL when there is none */
    struct buf rest;          /* the file with both values empty */
};

/* Cut the file. What is not well formed is left for the JSON library to complain about. */
enum err members_find(struct str json, struct members *out, struct error *e) MUST_CHECK;
void members_fini(struct members *m);

/* A cursor over one of the values; strings with escapes are copied into the arena. */
struct member_reader {
    const char *p, *start, *end;
    struct arena *arena;
    const char *what; /* "model.vocab", for messages */
    struct error *e;
    bool first;
};

enum err member_open(struct member_reader *r, struct str value, char bracket, const char *what, struct arena *arena,
    struct error *e) MUST_CHECK;

/* Go to the next element: *more is false at the closing bracket. */
enum err member_next(struct member_reader *r, bool *more) MUST_CHECK;

enum err member_str(struct member_reader *r, struct str *out) MUST_CHECK;
enum err member_int(struct member_reader *r, int64_t *out) MUST_CHECK;
enum err member_f64(struct member_reader *r, double *out) MUST_CHECK;
enum err member_char(struct member_reader *r, char c) MUST_CHECK; /* that character, spaces around it skipped */
bool member_at(struct member_reader *r, char c);                  /* the next character, spaces skipped, is c */

#endif
