/* text: bytes to token ids and back, exactly as the model's own tokenizer does it.
 *
 * A struct tok owns one vocabulary with its whole pipeline: added tokens, normaliser, pre-tokeniser, model (BPE,
 * Unigram, WordPiece, WordLevel), post-processor, decoder. It is immutable after it was made, so any number of threads
 * may share it. A struct tok_ctx owns the scratch memory of one thread: buffers, word cache, regex match data, and the
 * ids of the last encode. Encoding allocates only when those buffers must grow, never per token.
 *
 * Who wrote the text decides what it may become. A trusted part (chat template, raw completion by the operator) may
 * contain special tokens; an untrusted part (what a user wrote) never becomes one, whatever it spells. Added tokens
 * that are not special ("<think>" of some models) are ordinary vocabulary and are found in both. Parts are tokenised as
 * one text: where the cuts lie changes nothing but which special tokens are recognised; a spelling that reaches into an
 * untrusted part is not recognised.
 *
 * Input that is not valid UTF-8 has a defined result. In a byte-level vocabulary each run of invalid bytes is a word of
 * its own, made of byte tokens, so that decoding gives the bytes back. In all others each invalid byte reads as U+FFFD.
 *
 * Chat templates are in chat.h, the streaming detokeniser in detok.h. */
#ifndef TEXT_TEXT_H
#define TEXT_TEXT_H

#include "base/base.h"
#include "base/vocab.h"

struct tok;
struct tok_ctx;

#define TOK_NONE UINT32_MAX /* no such token */

/* ---- making one ---- */

/* From the text of a tokenizer.json; config is the text of tokenizer_config.json, or empty. Of the config only the
 * names of the bos, eos, pad and unk tokens are used: tokenizer.json alone decides how text becomes ids. A component
 * quern does not do is ERR_UNSUPPORTED and named. */
enum err tok_from_json(struct str json, struct str config, struct tok **out, struct error *e) MUST_CHECK;

/* From a SentencePiece tokenizer.model: BPE or Unigram. Agrees with the `sentencepiece` library; add_special puts in
 * front the bos token when add_bos, behind the eos token when add_eos. */
enum err tok_from_spm(struct str model, bool add_bos, bool add_eos, struct tok **out, struct error *e) MUST_CHECK;

/* The vocabulary of a GGUF file, as plain views: this room does not know the format. Strings are fetched one at a time,
 * because in the file they lie behind one another without an index. Fields that the file does not have keep the value
 * that tok_gguf_init gives them. */
enum tok_tristate { TOK_UNSET = -1, TOK_NO = 0, TOK_YES = 1 };

struct tok_gguf {
    struct str
        model; /* tokenizer.ggml.model: "gpt2" (byte-level BPE), "llama" (SentencePiece BPE), "t5" (Unigram), "bert" */
    struct str pre;           /* tokenizer.ggml.pre: which pre-split pattern; empty = "default" */
    const struct str *tokens; /* n_tokens */
    const float *scores;      /* n_tokens, or NULL */
    const int32_t *types;     /* n_tokens, or NULL: 1 normal 2 unknown 3 control 4 user defined 5 unused 6 byte */
    const struct str *merges; /* n_merges: "left right", byte-level spelling */
    size_t n_tokens, n_merges;
    uint32_t bos, eos, eot, eom, unk, pad; /* ids or TOK_NONE */
    enum tok_tristate add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
    struct str charsmap; /* tokenizer.ggml.precompiled_charsmap, or empty */
};

void tok_gguf_init(struct tok_gguf *g);
enum err tok_from_gguf(const struct tok_gguf *g, struct tok **out, struct error *e) MUST_CHECK;

void tok_free(struct tok *t); /* NULL is fine */

/* ---- the checked binary copy ---- */

/* What a copy was made from: size and hash of the source's bytes. */
struct tok_key {
    uint64_t bytes, hash_lo, hash_hi;
};
struct tok_key tok_key_of(struct str source, struct str config);

/* Write t to path (atomically), to be found again under key. */
enum err tok_save(const struct tok *t, const char *path, struct tok_key key, struct error *e) MUST_CHECK;

/* Map the copy at path. ERR_NOT_FOUND: no such file. ERR_HASH or ERR_FORMAT: damaged, of another version of quern, or
 * made from another source; the caller makes it again. */
enum err tok_load(const char *path, struct tok_key key, struct tok **out, struct error *e) MUST_CHECK;

/* tokenizer.json through its copy: load it when it is good, otherwise make it from the text and try to write the copy
 * (failing to write is no error). copy_path may be NULL. */
enum err tok_from_json_cached(
    struct str json, struct str config, const char *copy_path, struct tok **out, struct error *e) MUST_CHECK;

/* ---- encoding ---- */

struct tok_part {
    struct str text;
    bool trusted; /* special tokens are recognised */
};

struct tok_ids {
    const uint32_t *p; /* borrowed from the ctx; valid until its next encode */
    size_t n;
};

/* One per thread; works with any tok, best with always the same one (the word cache is emptied on a change). */
enum err tok_ctx_new(struct tok_ctx **out, struct error *e) MUST_CHECK;
void tok_ctx_free(struct tok_ctx *c); /* NULL is fine */

/* The parts as one text. add_special: put the tokens around it that the post-processor says (bos, eos...).
 * ERR_LIMIT: more than TEXT_BYTES_MAX bytes in all. */
enum err tok_encode(const struct tok *t, struct tok_ctx *c, const struct tok_part *parts, size_t n_parts,
    bool add_special, struct tok_ids *out, struct error *e) MUST_CHECK;

/* The two common cases: all of it written by a user, all of it by a template. */
enum err tok_encode_user(const struct tok *t, struct tok_ctx *c, struct str text, bool add_special, struct tok_ids *out,
    struct error *e) MUST_CHECK;
enum err tok_encode_template(const struct tok *t, struct tok_ctx *c, struct str text, bool add_special,
    struct tok_ids *out, struct error *e) MUST_CHECK;

/* A piece out of the middle of a user's text: its ids, and how many; 0 when the tokenizer cannot say. Any thread may
 * ask; one at a time is answered. tok is borrowed. */
struct tok_cutter;
enum err tok_cutter_new(const struct tok *t, struct tok_cutter **out, struct error *e) MUST_CHECK;
void tok_cutter_free(struct tok_cutter *c); /* NULL is fine */
uint32_t tok_cutter_cut(void *cutter, struct str text, uint32_t *ids, uint32_t max);

/* ---- decoding ---- */

/* The text of a sequence is the bytes of its tokens (vocab_bytes) one after another, less what the lead rule takes from
 * the front, less special tokens where the caller skips them. That is all there is to decoding, so it can be done one
 * id at a time. Bytes are given as they are: a sequence cut inside a character ends in part of it. */
const struct vocab_view *tok_vocab(const struct tok *t);

/* SentencePiece texts begin with a space that nobody wrote. Drop up to `spaces` space bytes from the front of the
 * decoded text; with first_token_only, only as far as the bytes of the first (not skipped) token go. */
struct tok_lead {
    uint32_t spaces; /* 0: nothing to drop */
    bool first_token_only;
};
struct tok_lead tok_lead_rule(const struct tok *t);

struct buf;
/* The whole at once, appended to out. ERR_INVALID: an id outside the vocabulary. */
enum err tok_decode(
    const struct tok *t, const uint32_t *ids, size_t n, bool skip_special, struct buf *out, struct error *e) MUST_CHECK;

/* ---- asking ---- */

uint32_t tok_count(const struct tok *t); /* ids are below this */
bool tok_is_special(const struct tok *t, uint32_t id);
uint32_t tok_find(const struct tok *t, struct str name); /* by its name as the vocabulary spells it; TOK_NONE */
struct str tok_name(const struct tok *t, uint32_t id);   /* that spelling; empty for a hole */

struct tok_roles {
    uint32_t bos, eos, eot, eom, unk, pad; /* ids or TOK_NONE; eot: end of turn, eom: end of message */
};
const struct tok_roles *tok_roles_of(const struct tok *t);

#endif
