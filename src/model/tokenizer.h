/* The tokenizer and the chat templates of an opened model, wherever its files keep them: GGUF metadata, tokenizer.json
 * with tokenizer_config.json, or a SentencePiece tokenizer.model. This is the only place that knows both format/ and
 * text/.
 *
 * Threads: any; what comes back follows text.h and chat.h. */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include "format/format.h"
#include "text/chat.h"
#include "text/text.h"

/* copies is a folder for checked binary copies of large vocabularies, made when it is missing; NULL: none.
 * ERR_NOT_FOUND when the model has no tokenizer. Errors start with the file's path. */
enum err model_tokenizer_open(
    const struct model_source *s, const char *copies, struct tok **out, struct error *e) MUST_CHECK;

/* A tokenizer without a model: the path of a tokenizer.json or a tokenizer.model. A tokenizer_config.json beside it is
 * read as well. */
enum err model_tokenizer_open_file(const char *path, const char *copies, struct tok **out, struct error *e) MUST_CHECK;
bool model_tokenizer_is_file(const char *path); /* a regular file with such a name */

/* All chat templates of the model; an empty set when it has none. */
enum err model_chat_open(const struct model_source *s, struct chat_set **out, struct error *e) MUST_CHECK;

/* The tokens that templates know by name, into out (at least 4); how many there are. Borrowed from t. */
size_t model_chat_tokens(const struct tok *t, struct chat_token out[4]);

#endif
