/* Private to `quern run`: the parts of a running verb that the conversation on a terminal and the single answer share.
 */
#ifndef CLI_RUN_INT_H
#define CLI_RUN_INT_H

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/generate.h"

struct run {
    struct options o; /* a copy: /set changes it */
    struct out *out;
    struct load *load;
    struct generate generate;
    struct conversation talk;
    struct stop_set *stops;
    struct buf answer;  /* the text of the answer so far */
    bool chat;          /* through the template; otherwise texts are continued as they stand */
    bool terminal;      /* the answer goes to a terminal: control bytes are shown, not sent */
    atomic_bool cancel; /* set by Ctrl-C */
};

/* The prompt of a text, with the conversation so far when there is one. Notes when turns were dropped. */
enum err run_prompt(struct run *r, struct str text, struct tok_ids *ids, struct error *e) MUST_CHECK;

/* Answer: text to r->out as it comes and to r->answer. */
enum err run_answer(struct run *r, const struct generate_params *p, struct tok_ids ids, struct generate_result *result,
    struct error *e) MUST_CHECK;

/* The line about speed, on standard error. */
void run_say_speed(const struct run *r, const struct generate_result *result);

/* run_chat.c: the conversation on a terminal. */
enum err run_chat(struct run *r, struct error *e) MUST_CHECK;

/* run_json.c: one answer as one JSON object. */
enum err run_json(struct run *r, const struct generate_params *p, struct tok_ids ids, struct error *e) MUST_CHECK;

#endif
