/* Reading a SentencePiece tokenizer.model: a protocol buffer with the pieces, the trainer's settings and the
 * normaliser's. Only the fields that change how text is encoded are looked at; all others are stepped over. Every
 * length is checked against what is left, nothing recurses, and the pieces borrow from the file's bytes. */
#include "text/tok_pieces.h"

#include "base/limits.h"
#include "base/reader.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* Field numbers of sentencepiece_model.proto. */
enum { MODEL_PIECES = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TRAINER_MODEL_TYPE = 3,
    TRAINER_SUFFIX = 24,
    TRAINER_UNK_ID = 40,
    TRAINER_BOS_ID = 41,
    TRAINER_EOS_ID = 42,
    TRAINER_PAD_ID = 43
};
enum { NORM_MAP = 2, NORM_DUMMY_PREFIX = 3, NORM_TRIM = 4, NORM_ESCAPE = 5 };
enum { TYPE_UNIGRAM = 1, TYPE_BPE = 2 };

struct field {
    uint32_t number, wire;
    uint64_t value;   /* varint or fixed */
    struct str bytes; /* WIRE_BYTES */
};

static uint64_t read_varint(struct reader *r)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t byte = read_u8(r);
        value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0)
            return value;
    }
    READER_FAIL(r, ERR_FORMAT, "a number has more than 10 bytes");
    return 0;
}

/* The next field; false at the end or after a failure. */
static bool next_field(struct reader *r, struct field *f)
{
    if (r->failure != OK || r->at == r->n)
        return false;
    const uint64_t tag = read_varint(r);
    *f = (struct field){.number = (uint32_t)(tag >> 3), .wire = (uint32_t)(tag & 7)};
    switch (f->wire) {
    case WIRE_VARINT: f->value = read_varint(r); break;
    case WIRE_64: f->value = read_u64(r); break;
    case WIRE_32: f->value = read_u32(r); break;
    case WIRE_BYTES: f->bytes = read_bytes(r, read_varint(r)); break;
    default: READER_FAIL(r, ERR_FORMAT, "field %u has the unknown wire type %u", f->number, f->wire); break;
    }
    return r->failure == OK;
}

struct spm_file {
    struct piece_vocab v;
    struct str *names;
    float *scores;
    int32_t *types;
    int64_t type, unk, bos, eos, pad;
};

static enum err read_piece(struct str bytes, struct spm_file *s, uint32_t id, struct error *e)
{
    struct reader r;
    struct field f;
    reader_init(&r, bytes.p, bytes.n, e);
    s->names[id] = (struct str){"", 0};
    s->types[id] = PIECE_NORMAL;
    while (next_field(&r, &f)) {
        if (f.number == PIECE_TEXT && f.wire == WIRE_BYTES)
            s->names[id] = f.bytes;
        else if (f.number == PIECE_SCORE && f.wire == WIRE_32) {
            const uint32_t bits = (uint32_t)f.value;
            memcpy(&s->scores[id], &bits, sizeof bits);
        } else if (f.number == PIECE_TYPE && f.wire == WIRE_VARINT)
            s->types[id] = f.value <= PIECE_BYTE ? (int32_t)f.value : -1;
    }
    if (r.failure != OK)
        error_prefix(e, "piece %u", id);
    return r.failure;
}

static enum err read_trainer(struct str bytes, struct spm_file *s, struct error *e)
{
    struct reader r;
    struct field f;
    reader_init(&r, bytes.p, bytes.n, e);
    while (next_field(&r, &f)) {
        if (f.wire != WIRE_VARINT)
            continue;
        const int64_t value = (int32_t)f.value;
        switch (f.number) {
        case TRAINER_MODEL_TYPE: s->type = value; break;
        case TRAINER_SUFFIX: s->v.suffix = f.value != 0; break;
        case TRAINER_UNK_ID: s->unk = value; break;
        case TRAINER_BOS_ID: s->bos = value; break;
        case TRAINER_EOS_ID: s->eos = value; break;
        case TRAINER_PAD_ID: s->pad = value; break;
        default: break;
        }
    }
    if (r.failure != OK)
        error_prefix(e, "trainer_spec");
    return r.failure;
}

static enum err read_normalizer(struct str bytes, struct spm_file *s, struct error *e)
{
    struct reader r;
    struct field f;
    reader_init(&r, bytes.p, bytes.n, e);
    while (next_field(&r, &f)) {
        if (f.number == NORM_MAP && f.wire == WIRE_BYTES)
            s->v.charsmap = f.bytes;
        else if (f.number == NORM_DUMMY_PREFIX && f.wire == WIRE_VARINT)
            s->v.dummy_prefix = f.value != 0;
        else if (f.number == NORM_TRIM && f.wire == WIRE_VARINT)
            s->v.trim = f.value != 0;
        else if (f.number == NORM_ESCAPE && f.wire == WIRE_VARINT)
            s->v.escape_spaces = f.value != 0;
    }
    if (r.failure != OK)
        error_prefix(e, "normalizer_spec");
    return r.failure;
}

/* Two passes: the first counts the pieces, so that the arrays are made once. */
static enum err read_model(struct str model, struct spm_file *s, struct error *e)
{
    struct reader r;
    struct field f;
    uint64_t n = 0;
    reader_init(&r, model.p, model.n, e);
    while (next_field(&r, &f))
        n += f.number == MODEL_PIECES && f.wire == WIRE_BYTES;
    if (r.failure != OK)
        return r.failure;
    if (n == 0 || n > TOK_COUNT_MAX)
        return FAIL(e, n == 0 ? ERR_FORMAT : ERR_LIMIT, "it has %llu pieces; from 1 to %u are allowed",
            (unsigned long long)n, TOK_COUNT_MAX);
    s->v.n = (uint32_t)n;
    s->names = mem_array(n, sizeof *s->names);
    s->scores = mem_array(n, sizeof *s->scores);
    s->types = mem_array(n, sizeof *s->types);
    if (s->names == NULL || s->scores == NULL || s->types == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %llu pieces", (unsigned long long)n);
    uint32_t id = 0;
    reader_init(&r, model.p, model.n, e);
    while (next_field(&r, &f)) {
        if (f.wire != WIRE_BYTES)
            continue;
        if (f.number == MODEL_PIECES)
            TRY(read_piece(f.bytes, s, id++, e));
        else if (f.number == MODEL_TRAINER)
            TRY(read_trainer(f.bytes, s, e));
        else if (f.number == MODEL_NORMALIZER)
            TRY(read_normalizer(f.bytes, s, e));
    }
    return r.failure;
}

static uint32_t role(const struct spm_file *s, int64_t id)
{
    return id >= 0 && id < s->v.n ? (uint32_t)id : TOK_NONE;
}

enum err tok_from_spm(struct str model, bool add_bos, bool add_eos, struct tok **out, struct error *e)
{
    *out = NULL;
    if (model.n > TOK_SPM_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "SentencePiece model of %zu bytes; the limit is %llu", model.n,
            (unsigned long long)TOK_SPM_BYTES_MAX);
    /* what a file does not say has the value that sentencepiece gives it */
    struct spm_file s = {
        .v = {.dummy_prefix = true, .trim = true, .escape_spaces = true, .add_bos = add_bos, .add_eos = add_eos},
        .type = TYPE_UNIGRAM,
        .unk = 0,
        .bos = 1,
        .eos = 2,
        .pad = -1};
    enum err err = read_model(model, &s, e);
    if (err == OK && s.type != TYPE_UNIGRAM && s.type != TYPE_BPE)
        err = FAIL(e, ERR_UNSUPPORTED, "model type %lld (only Unigram 1 and BPE 2 are supported)", (long long)s.type);
    if (err == OK) {
        s.v.names = s.names;
        s.v.scores = s.scores;
        s.v.types = s.types;
        s.v.unigram = s.type == TYPE_UNIGRAM;
        s.v.roles =
            (struct tok_roles){role(&s, s.bos), role(&s, s.eos), TOK_NONE, TOK_NONE, role(&s, s.unk), role(&s, s.pad)};
        err = tok_from_pieces(&s.v, out, e);
    }
    if (err != OK)
        error_prefix(e, "SentencePiece model");
    mem_free(s.names);
    mem_free(s.scores);
    mem_free(s.types);
    return err;
}
