/* Inside text/: the parts of a tokenizer. Nobody outside this folder includes it, except the unit tests of its parts.
 *
 * How a tokenizer is kept. Everything large is a section: a flat array without pointers (names, decoded bytes, hash
 * tables, merges). The small rest, the pipeline, is one JSON text, the section SEC_SPEC: the components of
 * tokenizer.json as they stand there; for GGUF and SentencePiece sources the same components written down for them,
 * plus the few kinds of our own that tokenizer.json lacks. So the binary copy is the sections one after another,
 * loading it is mapping them and compiling the spec, and there is one compiler for all three sources.
 *
 * How text runs through it (tok_encode, tok.c):
 *   parts -> added tokens found in the raw text (tok_added) -> each rest normalised (tok_norm) -> added tokens found in
 *   the normalised text -> each rest through the pre-tokeniser steps, depth first (tok_pre) -> each word to the model
 *   (tok_bpe, tok_unigram, tok_wordpiece) through the word cache -> ids. */
#ifndef TEXT_TOK_INT_H
#define TEXT_TOK_INT_H

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/text.h"
#include "text/tok_regex.h"

/* ---- sections ---- */

enum tok_section {
    SEC_META,       /* struct tok_meta */
    SEC_SPEC,       /* JSON text of the pipeline */
    SEC_NAMES,      /* the vocabulary's own spelling of each token */
    SEC_NAME_AT,    /* uint32 n+1 */
    SEC_BYTES,      /* what each token decodes to */
    SEC_BYTE_AT,    /* uint32 n+1 */
    SEC_KEYS,       /* what each token looks like to the model: raw bytes in a byte-level vocabulary, else the name */
    SEC_KEY_AT,     /* uint32 n+1 */
    SEC_FLAGS,      /* uint8 n */
    SEC_NAME_SLOTS, /* struct tok_slot, power of two */
    SEC_KEY_SLOTS,  /* struct tok_slot, power of two; only tokens the model may make */
    SEC_MERGES,     /* struct tok_merge, power of two */
    SEC_BYTE_PAIRS, /* struct tok_pair_value [256*256] in a byte-level vocabulary */
    SEC_SCORES,     /* double n, Unigram */
    SEC_TRIE,       /* struct tok_trie_slot, power of two, Unigram */
    SEC_TRIE_IDS,   /* uint32 per trie node */
    SEC_BIGRAMS,    /* uint64, power of two: pairs of characters that stand next to each other in a merge result */
    SEC_COUNT
};

struct tok_slot {
    uint32_t tag;     /* high half of the hash */
    uint32_t id_plus; /* id + 1; 0 = empty */
};

struct tok_merge {
    uint32_t left, right; /* TOK_NONE, TOK_NONE = empty */
    uint32_t rank, id;
};

struct tok_pair_value {
    uint32_t rank, id; /* rank TOK_NONE: no merge */
};

struct tok_trie_slot {
    uint32_t key;   /* parent node << 8 | byte, plus 1; 0 = empty */
    uint32_t child; /* node number */
};

enum tok_model_kind { TOK_BPE = 1, TOK_UNIGRAM, TOK_WORDPIECE, TOK_WORDLEVEL };

enum tok_meta_flag {
    META_BYTE_LEVEL = 1,    /* keys are raw bytes; words are runs of bytes */
    META_BYTE_FALLBACK = 2, /* characters without a token become <0xNN> tokens */
    META_IGNORE_MERGES = 4, /* a word that is a token is that token */
    META_FUSE_UNK = 8,      /* unknown characters side by side become one unknown token */
    META_SPM = 16,          /* merges and scores as the sentencepiece library has them */
    META_CHAR_SPLIT = 32,   /* words may be cut where no merge result holds both neighbours (SEC_BIGRAMS) */
    META_SINGLE_FLOAT = 64, /* Unigram scores are summed in single precision, as sentencepiece does */
    META_ORDERED = 128      /* every merge ranks after the merges that make its halves */
};

struct tok_meta {
    uint32_t n, model, flags;
    uint32_t n_trie_nodes;
    struct tok_roles roles;
    struct tok_lead lead;
    uint32_t unk;            /* what the model gives for the unknown; TOK_NONE */
    uint32_t word_chars_max; /* WordPiece: longer words are unknown */
    uint32_t byte_ids[256];  /* byte-level: the token of a byte; byte fallback: <0xNN>; TOK_NONE */
    double unk_score;        /* Unigram: of an unknown character */
};

/* ---- pipeline steps ---- */

enum norm_kind {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_PREPEND,
    NORM_REPLACE,
    NORM_REPLACE_REGEX,
    NORM_CHARSMAP, /* as `tokenizers` applies a precompiled map: by grapheme */
    NORM_BERT,
    NORM_NMT,
    NORM_SPM /* the whole normaliser of the sentencepiece library */
};

struct norm_step {
    enum norm_kind kind;
    struct str a, b; /* PREPEND: a; REPLACE: a by b; owned by the spec */
    struct regex *regex;
    struct charsmap *map;                           /* may be NULL: no map */
    bool left, right;                               /* STRIP */
    bool clean, chinese, accents, lower;            /* BERT */
    bool dummy_prefix, trim, suffix, escape_spaces; /* SPM */
};

enum pre_kind {
    PRE_SPLIT_REGEX,
    PRE_SPLIT_STR,
    PRE_BYTE_LEVEL,
    PRE_METASPACE,
    PRE_DIGITS,
    PRE_WHITESPACE,
    PRE_WHITESPACE_SPLIT,
    PRE_PUNCTUATION,
    PRE_BERT_SPACES, /* BertPreTokenizer is this, then PRE_PUNCTUATION isolated */
    PRE_FIXED_LENGTH
};

enum split_behaviour { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS };

struct pre_step {
    enum pre_kind kind;
    enum split_behaviour behaviour;
    bool invert, individual, add_prefix_space;
    bool remap;          /* BYTE_LEVEL with steps behind it: those see the printable spelling of the bytes */
    int prepend;         /* METASPACE: 0 never, 1 first, 2 always */
    bool split;          /* METASPACE */
    uint32_t length;     /* FIXED_LENGTH, characters */
    struct regex *regex; /* NULL: no split */
    struct str pattern;
};

struct added_token {
    struct str content; /* owned by the spec */
    uint32_t id;
    bool special, normalized, single_word, lstrip, rstrip;
};

#define PIPE_STEPS_MAX 32 /* of one kind in one tokenizer; real ones have under 8 */

struct tok_pipe {
    struct norm_step norms[PIPE_STEPS_MAX];
    size_t n_norms;
    struct pre_step pres[PIPE_STEPS_MAX];
    size_t n_pres;
    uint32_t *before, *after; /* ids that add_special puts around the text */
    size_t n_before, n_after;
    struct added_token *added;
    size_t n_added;
    struct matcher *raw, *normal; /* over the raw and over the normalised text; NULL = no such tokens */
    struct matcher *protect;      /* SPM: user-defined symbols, kept as they are by the normaliser */
    struct str prefix, suffix;    /* BPE, WordPiece: continuing_subword_prefix, end_of_word_suffix */
    bool remaps;                  /* some ByteLevel step remaps: words come in the printable spelling */
    bool has_special_normal;      /* some token of `normal` is special */
};

/* ---- the tokenizer ---- */

struct tok_section_view {
    const void *p;
    size_t bytes;
};

struct tok {
    struct tok_section_view sec[SEC_COUNT];
    void *owned[SEC_COUNT]; /* the sections' memory when built; NULL when mapped */
    struct file_map map;
    bool mapped;
    const struct tok_meta *meta;
    struct vocab_view view;
    json_t *spec; /* the pipeline's strings live here */
    struct tok_pipe pipe;
    uint64_t serial; /* tells tokenizers apart, for the word cache */
};

/* A name table for the readers, before there is a tok: name -> id. */
struct name_table {
    struct tok_slot *slots;
    size_t n_slots;
    const struct str *names;
};

/* What the three readers hand to the builder. Names are borrowed; p NULL is a hole. */
struct tok_build {
    uint32_t n;
    struct str *names;
    uint8_t *flags;
    const double *scores;     /* Unigram */
    struct tok_merge *merges; /* ranks given; n_merges */
    size_t n_merges;
    struct tok_meta meta;
    json_t *spec;            /* borrowed */
    struct name_table table; /* of all names, when the reader has made one; taken over */
};

enum err tok_build_finish(struct tok_build *b, struct tok **out, struct error *e) MUST_CHECK;

/* Point t's views at its sections and compile the spec; used by the builder and by tok_load. */
enum err tok_bind(struct tok *t, struct error *e) MUST_CHECK;

enum err name_table_init(struct name_table *nt, const struct str *names, uint32_t n, uint32_t *twin_a, uint32_t *twin_b,
    struct error *e) MUST_CHECK; /* two equal names are an error unless twin_a is given; it is told the first two */
uint32_t name_table_find(const struct name_table *nt, struct str name);
void name_table_fini(struct name_table *nt);

uint32_t tok_key_find(const struct tok *t, struct str key); /* what the model may make; TOK_NONE */

static inline struct str tok_key_at(const struct tok *t, uint32_t id)
{
    const uint32_t *at = t->sec[SEC_KEY_AT].p;
    return (struct str){(const char *)t->sec[SEC_KEYS].p + at[id], at[id + 1] - at[id]};
}

/* ---- compile the spec (tok_pipe.c, tok_spec.c) ---- */

enum err pipe_compile(struct tok *t, struct error *e) MUST_CHECK;
void pipe_fini(struct tok_pipe *p);
enum err added_token_read(const json_t *j, struct added_token *a, struct error *e) MUST_CHECK;

/* decoder of the spec -> bytes of one token; and the lead rule (tok_decoder.c) */
struct decoder;
enum err decoder_new(const json_t *spec, struct decoder **out, struct tok_lead *lead, struct error *e) MUST_CHECK;
void decoder_free(struct decoder *d);
int byte_token_value(struct str name); /* "<0x4A>" -> 0x4A; -1 for any other name */
enum err decoder_bytes(struct decoder *d, struct str name, uint8_t flags, struct buf *out, struct error *e) MUST_CHECK;

/* ---- byte-level spelling (tok_bytes.c) ---- */

/* The printable character that stands for a byte, as UTF-8 into out[2]; its length. */
size_t byte_spell(unsigned char b, char out[2]);
/* The bytes a spelling stands for, written to out (at least s.n); false when a character stands for none. */
bool byte_unspell(struct str s, char *out, size_t *n);

/* ---- the scratch of one thread ---- */

struct scratch {
    char *p;
    size_t n, cap;
};

struct word_slot;
struct tok_ctx;
enum err words_reset(struct tok_ctx *c, uint64_t serial) MUST_CHECK; /* make or empty the word cache */

struct tok_ctx {
    uint32_t *ids;
    size_t n_ids, cap_ids;
    struct scratch whole;   /* the parts, when there is more than one */
    struct scratch valid;   /* input with invalid bytes replaced */
    struct scratch clean;   /* normaliser: BERT's first half */
    struct scratch norm[2]; /* normaliser steps write them in turn */
    struct scratch pre[PIPE_STEPS_MAX];
    struct scratch word;        /* a word with prefix or suffix */
    struct scratch model;       /* arrays of the model */
    struct scratch shadow;      /* normaliser: what its regex sees, and second thoughts */
    struct scratch code_points; /* normaliser */
    struct scratch ranges;      /* struct range: untrusted ranges of the input */
    struct scratch trust;       /* struct range: the same in the normalised text */
    struct regex_ctx *regex;
    struct word_slot *words;
    uint64_t words_serial;
    struct error *e; /* of the running encode; the first failure wins */
    enum err failure;
};

bool scratch_reserve(struct tok_ctx *c, struct scratch *s, size_t bytes); /* content kept; false sets the failure */
bool scratch_add(struct tok_ctx *c, struct scratch *s, struct str text);
enum err ctx_fail(struct tok_ctx *c, enum err code, const char *what);

static inline bool ctx_push(struct tok_ctx *c, uint32_t id);
bool ctx_grow_ids(struct tok_ctx *c, size_t more);
static inline bool ctx_push(struct tok_ctx *c, uint32_t id)
{
    if (c->n_ids == c->cap_ids && !ctx_grow_ids(c, 1))
        return false;
    c->ids[c->n_ids++] = id;
    return true;
}

/* ---- the stages ---- */

/* A piece of text on its way; first: it starts where the whole text starts. */
struct piece {
    struct str text;
    bool first;
};

/* Untrusted byte ranges of a text, in order. */
struct range {
    size_t start, end;
};

/* Normalise text; *out is borrowed from the ctx or is the text itself. middle: the text is a cut of a longer one, so
 * steps that act on the ends (Prepend, Strip) are left out. */
enum err norm_run(const struct tok *t, struct tok_ctx *c, struct str text, bool middle, struct str *out) MUST_CHECK;

/* Run the pre-tokeniser from step i on, and the model on every word. */
void pre_run(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece);

/* The model on one word, through the word cache; appends ids. */
void word_encode(const struct tok *t, struct tok_ctx *c, struct str word);
void bpe_encode(const struct tok *t, struct tok_ctx *c, struct str word);
void unigram_encode(const struct tok *t, struct tok_ctx *c, struct str word);
void wordpiece_encode(const struct tok *t, struct tok_ctx *c, struct str word);
void wordlevel_encode(const struct tok *t, struct tok_ctx *c, struct str word);

/* The merge loop alone: ids[0..n) in place, the new count back. rank scratch comes from the ctx. */
size_t bpe_merge(const struct tok *t, struct tok_ctx *c, uint32_t *ids, size_t n);
size_t bpe_merge_naive(const struct tok *t, uint32_t *ids, size_t n); /* the definition, for tests */
bool bpe_pair(const struct tok *t, uint32_t left, uint32_t right, uint32_t *rank, uint32_t *id);

#endif
