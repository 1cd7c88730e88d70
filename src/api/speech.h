/* One choice of a chat answer that is looked through for calls and reasoning: from the parser's events to what a client
 * is told. The events know nothing of a wire format; the functions below write OpenAI's, whole and in deltas, and
 * struct blocks Anthropic's.
 *
 * Threads: the network thread of its call. */
#ifndef API_SPEECH_H
#define API_SPEECH_H

#include "api/messages.h"
#include "api/tools.h"

struct speech {
    struct tool_parser *parser;
    const struct tool_ask *ask;
    const struct tool_dialect *dialect;
    uint64_t id_seed;      /* of the ids of its calls: a function of the request */
    bool is_stream;        /* what was told is forgotten */
    struct blocks *blocks; /* told in blocks instead of the three below; borrowed */
    struct buf content, reasoning;
    struct buf calls; /* elements of tool_calls */
    bool is_open;     /* the last of them is still being written */
    uint32_t n_calls;
    uint32_t n_reasoning; /* tokens */
    enum err failure;
};

/* Prompt ids and the choice's number say what the ids of its calls are. */
bool speech_init(struct speech *s, struct call *c, const struct tool_ask *ask, bool is_stream, bool show_special,
    uint64_t id_seed, struct api_error *ae);
void speech_fini(struct speech *s);

/* The text of one more token (marked control tokens and all), and the end. */
enum err speech_feed(struct speech *s, struct str text);
enum err speech_end(struct speech *s);

bool speech_has(const struct speech *s); /* there is something to tell */

/* Members of a message, each with a comma before it but the first: "content":...,"tool_calls":[...] */
void speech_message(struct speech *s, struct buf *out);
/* The same of a delta; what was told is forgotten. */
void speech_delta(struct speech *s, struct buf *out);

#endif
