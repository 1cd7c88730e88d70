/* A vocabulary of scored pieces, as SentencePiece has it, from whichever file; private to text/. */
#ifndef TEXT_TOK_PIECES_H
#define TEXT_TOK_PIECES_H

#include "text/tok_int.h"

/* Numbers as both files have them. */
enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };

struct piece_vocab {
    uint32_t n;
    const struct str *names;
    const float *scores;
    const int32_t *types;
    bool unigram;            /* else BPE */
    bool dummy_prefix, trim; /* add_dummy_prefix, remove_extra_whitespaces */
    bool suffix, escape_spaces;
    struct str charsmap;
    struct tok_roles roles;
    bool add_bos, add_eos;
};

enum err tok_from_pieces(const struct piece_vocab *v, struct tok **out, struct error *e) MUST_CHECK;

/* Parts of a spec that both GGUF kinds need. spec_new gives an empty object of our own. */
enum err spec_new(json_t **spec, struct error *e) MUST_CHECK;
enum err spec_set(
    json_t *o, const char *key, json_t *value, struct error *e) MUST_CHECK; /* takes value over; NULL fails */
enum err spec_around(json_t *spec, uint32_t bos, uint32_t eos, struct error *e) MUST_CHECK;
enum err spec_added(
    json_t *spec, const struct str *names, const uint8_t *flags, uint32_t n, bool user_raw, struct error *e) MUST_CHECK;

#endif
