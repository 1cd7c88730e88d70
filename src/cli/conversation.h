/* A conversation: messages, and the prompt that a model's chat template makes of them.
 *
 * When it grows beyond the context, the oldest turns go, a user's message with the answer to it; the system message and
 * the last message stay. Text that is not UTF-8 is kept with U+FFFD for each invalid byte.
 *
 * Threads: one. */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include "cli/load.h"

struct conversation {
    json_t *messages; /* array of {role, content} */
    struct chat_output rendered;
};

enum err conversation_init(struct conversation *c, struct error *e) MUST_CHECK;
void conversation_fini(struct conversation *c);

void conversation_clear(struct conversation *c); /* the system message stays */

/* Set the system message; empty takes it away. */
enum err conversation_system(struct conversation *c, struct str text, struct error *e) MUST_CHECK;
enum err conversation_add(struct conversation *c, const char *role, struct str text, struct error *e) MUST_CHECK;
void conversation_pop(struct conversation *c); /* the last message; nothing when there is none */
bool conversation_ends_with(const struct conversation *c, const char *role);
size_t conversation_count(const struct conversation *c);

/* The ids of the prompt for the next answer, leaving room for `reserve` tokens if dropping old turns can. *dropped =
 * messages that went. ERR_LIMIT when the last message alone is too long. */
enum err conversation_prompt(struct conversation *c, struct load *l, uint32_t reserve, struct tok_ids *ids,
    size_t *dropped, struct error *e) MUST_CHECK;

/* {"messages": [...]} to a file. */
enum err conversation_save(const struct conversation *c, const char *path, struct error *e) MUST_CHECK;

#endif
