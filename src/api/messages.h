/* Anthropic's Messages API over the same generations as chat: a request becomes a chat request (messages_in.c), and the
 * answer is told as blocks that begin, grow and end (messages_out.c).
 *
 * Threads: the network thread of the call. */
#ifndef API_MESSAGES_H
#define API_MESSAGES_H

#include "api/json_in.h"
#include "text/tool_syntax.h"

struct generation;
struct part;

/* The same request as chat would say it; NULL with ae set. The caller owns it. */
json_t *messages_to_chat(const json_t *doc, bool wants_answer, struct api_error *ae);

/* The answer of one choice in blocks: as the elements of `content`, or as events of a stream. */
enum block_kind { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_TOOL };
struct blocks {
    bool is_stream; /* out holds events, the last without its empty line; what was told is forgotten */
    struct buf out;
    struct buf input; /* of the call being written; not a stream: it must be whole to be JSON */
    enum block_kind open;
    uint32_t n; /* blocks begun */
};
void blocks_init(struct blocks *b, bool is_stream);
void blocks_fini(struct blocks *b);
void blocks_event(struct blocks *b, const struct tool_event *ev, struct str id); /* id: of a call that begins */
void blocks_text(struct blocks *b, struct str text);
void blocks_end(struct blocks *b);

/* Events of a stream, into out, the last without its empty line. */
void messages_start(const struct part *p, struct buf *out);
void messages_end(const struct part *p, struct buf *out);
void messages_whole(struct generation *g, struct buf *out);
void messages_error_json(const struct api_error *ae, struct buf *out); /* {"type":"error",...} */

#endif
