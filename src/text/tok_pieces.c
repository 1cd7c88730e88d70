/* Vocabularies of scored pieces: SentencePiece BPE and Unigram.
 *
 * The file has no list of merges. sentencepiece joins any two neighbours whose joint text is a piece, best score first,
 * leftmost of equals. So the merges are all ways to cut a piece into two pieces, ranked by the score of the whole;
 * pieces of equal score share a rank, which leaves the choice between them to the position, as there. */
#include "text/tok_pieces.h"
#include "text/tok_charsmap.h"

#include "base/buf.h"
#include "base/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the spec ---- */

enum err spec_new(json_t **spec, struct error *e)
{
    return json_parse(STR("{}"), spec, e); /* the parser makes jansson count its memory */
}

enum err spec_set(json_t *o, const char *key, json_t *value, struct error *e)
{
    return json_object_set_new(o, key, value) == 0 ? OK : FAIL(e, ERR_NOMEM, "no memory for a tokenizer");
}

static enum err set_id_list(json_t *o, const char *key, uint32_t id, struct error *e)
{
    json_t *list = json_array();
    if (list != NULL && id != TOK_NONE)
        json_array_append_new(list, json_integer(id));
    return spec_set(o, key, list, e);
}

enum err spec_around(json_t *spec, uint32_t bos, uint32_t eos, struct error *e)
{
    json_t *post = json_object();
    TRY(spec_set(spec, "post_processor", post, e));
    TRY(spec_set(post, "type", json_string("QuernAround"), e));
    TRY(set_id_list(post, "before", bos, e));
    return set_id_list(post, "after", eos, e);
}

enum err spec_added(
    json_t *spec, const struct str *names, const uint8_t *flags, uint32_t n, bool user_raw, struct error *e)
{
    json_t *list = json_array();
    TRY(spec_set(spec, "added_tokens", list, e));
    for (uint32_t id = 0; id < n; id++) {
        if ((flags[id] & VOCAB_ADDED) == 0)
            continue;
        const bool special = (flags[id] & VOCAB_SPECIAL) != 0;
        if (json_array_size(list) == TOK_ADDED_MAX)
            return FAIL(e, ERR_LIMIT, "more than %u control and user-defined tokens", TOK_ADDED_MAX);
        if (!utf8_is_valid(names[id]))
            return FAIL(e, ERR_FORMAT, "token %u is not valid UTF-8", id);
        json_t *a = json_object();
        if (json_array_append_new(list, a) != 0)
            return FAIL(e, ERR_NOMEM, "no memory for a tokenizer");
        TRY(spec_set(a, "id", json_integer(id), e));
        TRY(spec_set(a, "content", json_stringn(names[id].p, names[id].n), e));
        TRY(spec_set(a, "special", json_boolean(special), e));
        TRY(spec_set(a, "normalized", json_boolean(!special && !user_raw), e));
    }
    return OK;
}

static enum err make_spec(const struct piece_vocab *v, struct tok_build *b, struct error *e)
{
    TRY(spec_new(&b->spec, e));
    json_t *norm = json_object(), *decoder = json_object();
    enum err err = spec_set(b->spec, "normalizer", norm, e);
    if (spec_set(b->spec, "decoder", decoder, e) != OK || err != OK)
        return ERR_NOMEM;
    TRY(spec_set(norm, "type", json_string("QuernSpm"), e));
    TRY(spec_set(norm, "dummy_prefix", json_boolean(v->dummy_prefix), e));
    TRY(spec_set(norm, "trim", json_boolean(v->trim), e));
    TRY(spec_set(norm, "suffix", json_boolean(v->suffix), e));
    TRY(spec_set(norm, "escape_spaces", json_boolean(v->escape_spaces), e));
    if (v->charsmap.n > 0) {
        struct buf text;
        buf_init(&text, 2 * TOK_CHARSMAP_MAX);
        charsmap_base64(v->charsmap, &text);
        err = buf_check(&text, "the precompiled charsmap", e);
        if (err == OK)
            err = spec_set(norm, "charsmap", json_stringn(text.p, text.n), e);
        buf_fini(&text);
        TRY(err);
    }
    TRY(spec_set(decoder, "type", json_string("QuernSpm"), e));
    TRY(spec_set(decoder, "spaces", json_integer(v->trim ? UINT32_MAX : v->dummy_prefix ? 1 : 0), e));
    TRY(spec_around(b->spec, v->add_bos ? v->roles.bos : TOK_NONE, v->add_eos ? v->roles.eos : TOK_NONE, e));
    return spec_added(b->spec, b->names, b->flags, b->n, false, e);
}

/* ---- flags ---- */

static enum err read_flags(const struct piece_vocab *v, struct tok_build *b, struct error *e)
{
    char shown[80];
    for (uint32_t id = 0; id < v->n; id++) {
        const int32_t type = v->types != NULL ? v->types[id] : PIECE_NORMAL;
        const int byte = byte_token_value(v->names[id]);
        switch (type) {
        case PIECE_UNKNOWN:
            b->flags[id] = VOCAB_UNKNOWN;
            b->meta.unk = b->meta.unk == TOK_NONE ? id : b->meta.unk;
            break;
        case PIECE_CONTROL: b->flags[id] = VOCAB_SPECIAL | VOCAB_ADDED; break;
        case PIECE_USER: b->flags[id] = VOCAB_ADDED; break;
        case PIECE_BYTE:
            if (byte < 0)
                return FAIL(e, ERR_FORMAT, "byte piece %u is called '%s', not <0xNN>", id,
                    str_show(v->names[id], shown, sizeof shown));
            b->flags[id] = VOCAB_BYTE;
            b->meta.byte_ids[byte] = id;
            b->meta.flags |= META_BYTE_FALLBACK;
            break;
        case PIECE_NORMAL:
        case PIECE_UNUSED: break;
        default: return FAIL(e, ERR_FORMAT, "piece %u has the unknown type %d", id, type);
        }
        if (v->scores != NULL && isnan(v->scores[id]))
            return FAIL(e, ERR_FORMAT, "piece %u has no number as score", id);
        if ((b->flags[id] & VOCAB_SPECIAL) == 0 && !utf8_is_valid(v->names[id]))
            return FAIL(e, ERR_FORMAT, "piece %u is not valid UTF-8", id);
        if (type == PIECE_UNUSED) /* known by name only: it must not come out of the model */
            b->flags[id] = VOCAB_SPECIAL;
    }
    return OK;
}

/* ---- merges ---- */

static bool can_merge(const struct tok_build *b, uint32_t id)
{
    return id != TOK_NONE && (b->flags[id] & (VOCAB_SPECIAL | VOCAB_ADDED | VOCAB_BYTE | VOCAB_UNKNOWN)) == 0;
}

struct scored {
    float score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The rank of each piece: how many different scores are better. */
static enum err rank_pieces(const struct piece_vocab *v, uint32_t *ranks, struct error *e)
{
    struct scored *all = mem_array(v->n, sizeof *all);
    if (all == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %u scores", v->n);
    for (uint32_t id = 0; id < v->n; id++)
        all[id] = (struct scored){v->scores[id], id};
    qsort(all, v->n, sizeof *all, by_score);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        rank += i > 0 && all[i].score != all[i - 1].score;
        ranks[all[i].id] = rank;
    }
    mem_free(all);
    return OK;
}

static enum err add_merge(struct tok_build *b, size_t *cap, struct tok_merge m, struct error *e)
{
    if (b->n_merges == TOK_MERGES_MAX)
        return FAIL(e, ERR_LIMIT, "the pieces can be joined in more than %u ways", TOK_MERGES_MAX);
    if (b->n_merges == *cap) {
        const size_t more = MAX(*cap * 2, (size_t)4096);
        struct tok_merge *grown = mem_resize(b->merges, more * sizeof *grown);
        if (grown == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for %zu merges", more);
        b->merges = grown;
        *cap = more;
    }
    b->merges[b->n_merges++] = m;
    return OK;
}

static enum err find_merges(const struct piece_vocab *v, struct tok_build *b, struct error *e)
{
    uint32_t *ranks = mem_array(v->n, sizeof *ranks);
    size_t cap = 0;
    enum err err = ranks != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for %u scores", v->n);
    if (err == OK && v->scores == NULL)
        err = FAIL(e, ERR_FORMAT, "the vocabulary has no scores");
    if (err == OK)
        err = rank_pieces(v, ranks, e);
    if (err == OK)
        err = name_table_init(&b->table, v->names, v->n, NULL, NULL, e);
    for (uint32_t id = 0; id < v->n && err == OK; id++) {
        const struct str name = v->names[id];
        if (!can_merge(b, id) || name.n > TOK_NAME_BYTES_MAX)
            continue;
        for (size_t cut = 1; cut < name.n && err == OK; cut++) {
            if (((unsigned char)name.p[cut] & 0xC0) == 0x80)
                continue;
            const uint32_t left = name_table_find(&b->table, (struct str){name.p, cut});
            if (!can_merge(b, left))
                continue;
            const uint32_t right = name_table_find(&b->table, (struct str){name.p + cut, name.n - cut});
            if (can_merge(b, right))
                err = add_merge(b, &cap, (struct tok_merge){left, right, ranks[id], id}, e);
        }
    }
    mem_free(ranks);
    return err;
}

/* ---- the whole ---- */

static enum err build(
    const struct piece_vocab *v, struct tok_build *b, double *scores, struct tok **out, struct error *e)
{
    TRY(read_flags(v, b, e));
    for (uint32_t id = 0; id < v->n; id++)
        scores[id] = v->scores != NULL ? (double)v->scores[id] : 0;
    b->scores = scores;
    b->meta.flags |= META_SPM | META_FUSE_UNK | (v->unigram ? META_SINGLE_FLOAT : 0);
    b->meta.model = v->unigram ? TOK_UNIGRAM : TOK_BPE;
    b->meta.roles = v->roles;
    if (b->meta.roles.unk == TOK_NONE)
        b->meta.roles.unk = b->meta.unk;
    if (!v->unigram)
        TRY(find_merges(v, b, e));
    TRY(make_spec(v, b, e));
    return tok_build_finish(b, out, e);
}

enum err tok_from_pieces(const struct piece_vocab *v, struct tok **out, struct error *e)
{
    *out = NULL;
    if (v->n == 0 || v->n > TOK_COUNT_MAX)
        return FAIL(e, v->n == 0 ? ERR_FORMAT : ERR_LIMIT, "the vocabulary has %u pieces; from 1 to %u are allowed",
            v->n, TOK_COUNT_MAX);
    struct tok_build b = {.n = v->n};
    memset(b.meta.byte_ids, 0xFF, sizeof b.meta.byte_ids);
    b.meta.unk = TOK_NONE;
    b.names = mem_array(v->n, sizeof *b.names);
    b.flags = mem_array(v->n, 1);
    double *scores = mem_array(v->n, sizeof *scores);
    enum err err = OK;
    if (b.names == NULL || b.flags == NULL || scores == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory for %u pieces", v->n);
    else {
        memcpy(b.names, v->names, v->n * sizeof *b.names);
        err = build(v, &b, scores, out, e);
    }
    json_decref(b.spec);
    name_table_fini(&b.table);
    mem_free(b.names);
    mem_free(b.flags);
    mem_free(b.merges);
    mem_free(scores);
    return err;
}
