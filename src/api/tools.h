/* Tool calls and reasoning of a chat request: what it asks for, and what it says when messages are sent back.
 *
 * A struct tool_ask is made from the request's fields, completed when the prompt is rendered (whether the model begins
 * inside its reasoning shows there), and belongs to the generation from then on.
 *
 * Threads: the network thread of its call. */
#ifndef API_TOOLS_H
#define API_TOOLS_H

#include "api/json_in.h"
#include "text/tool_syntax.h"

struct fields; /* fields.h */

#define THINK_ANY UINT32_MAX

struct tool_ask {
    json_t *json;              /* the tools as sent; a reference; NULL = none */
    struct tool *tools;        /* [TOOLS_MAX at most] */
    struct tool_list list;     /* all of them */
    struct tool_list callable; /* those that may be called: one, when one is named */
    enum tool_choice choice;
    bool parallel;
    bool include_reasoning;
    uint32_t budget; /* tokens of reasoning; THINK_ANY = no limit */
    enum reasoning_start start;
    bool parses; /* the answer is looked through for calls or reasoning */
};

/* From the fields of a chat request; *out is the caller's to free. */
bool tool_ask_read(struct call *c, const json_t *doc, struct tool_ask **out, struct api_error *ae);
void tool_ask_free(struct tool_ask *t); /* NULL is fine */

/* The prompt is rendered: whether reasoning has begun shows at its end. What the answer must obey becomes one grammar:
 * reasoning, then calls or what the request's own constraint says. */
bool tool_ask_prompt(struct tool_ask *t, struct call *c, struct str prompt, struct fields *f, struct api_error *ae);

/* The grammar did not compile: its error in terms of a tool, or of the request's schema, and not of the structure. */
void tools_explain(struct str structure, struct error *e);

/* A message that may carry calls or reasoning, made ready for a template: arguments as JSON instead of text, names
 * before arguments, reasoning under the name templates know. */
bool tools_message(json_t *message, size_t i, struct api_error *ae);

/* Tools for a template that does not know them: in the system message, which is made if there is none. */
bool tools_instruct(struct call *c, const json_t *tools, json_t *messages, struct api_error *ae);

/* Variables of the template that stand for fields: reasoning_effort, enable_thinking. */
bool tools_kwargs(const json_t *doc, json_t *kwargs, struct api_error *ae);

#endif
