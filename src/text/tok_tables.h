/* Tables that the builder makes for the models; private to tok_build.c and the files of the models. */
#ifndef TEXT_TOK_TABLES_H
#define TEXT_TOK_TABLES_H

#include "text/tok_int.h"

/* The merges as a hash table of n_slots; sets META_ORDERED where it holds. */
enum err bpe_table_build(struct tok_build *b, struct tok_merge **out, size_t *n_slots, struct error *e) MUST_CHECK;

/* SEC_TRIE and SEC_TRIE_IDS over the keys, and the scores of the unknown. */
enum err unigram_build(struct tok_build *b, struct tok *t, struct error *e) MUST_CHECK;

/* SEC_BIGRAMS, and META_CHAR_SPLIT where cutting words there is exact. */
enum err bigrams_build(struct tok_build *b, struct tok *t, struct error *e) MUST_CHECK;

/* A section's memory, handed over; NULL is ERR_NOMEM. */
enum err tok_own(struct tok *t, enum tok_section which, void *p, size_t bytes, struct error *e) MUST_CHECK;

/* Whether a merge may hold a then b, as neighbours. May say yes wrongly, never no. */
bool bigrams_has(const struct tok *t, uint32_t a, uint32_t b);

#endif
