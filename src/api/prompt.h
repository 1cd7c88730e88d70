/* From what a request says to token ids: texts, ids as they are, conversations through the model's template.
 *
 * Threads: the network thread; ids are borrowed from its tokenizer context until the next call. */
#ifndef API_PROMPT_H
#define API_PROMPT_H

#include "api/json_in.h"

/* A text, in which special tokens are recognised. */
bool prompt_from_text(
    struct call *c, struct str text, bool add_special, const char *key, struct tok_ids *out, struct api_error *ae);

/* An array of ids; *room is the caller's to free. */
bool prompt_from_ids(
    struct call *c, const json_t *ids, const char *key, uint32_t **room, size_t *n, struct api_error *ae);

/* messages of doc, with tools, documents and chat_template_kwargs; the text stays in net->chat. */
bool prompt_from_chat(struct call *c, const json_t *doc, struct tok_ids *out, struct api_error *ae);

bool model_check(struct call *c, struct in in); /* models.c */

/* How many prompts a field holds that is a string, token ids, or an array of either; at most max. */
bool prompts_count(const json_t *v, const char *key, uint32_t max, uint32_t *out, struct api_error *ae);

#endif
