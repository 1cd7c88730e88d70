/* One connection of the load generator: sends a request, reads its answer (whole, or server-sent events), and says what
 * came when. It speaks as much HTTP/1.1 as the servers under measurement do: lengths, chunks, connections that stay.
 *
 * Threads: one. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "base/buf.h"

enum load_state {
    LOAD_HEAD,
    LOAD_FIXED,      /* a body of a known length */
    LOAD_CHUNK_SIZE, /* a line */
    LOAD_CHUNK,
    LOAD_CHUNK_END, /* the line end behind a chunk */
    LOAD_TRAILER,
    LOAD_DONE,
};

struct load_answer {
    enum load_state state;
    struct buf line, text; /* of head and chunk sizes; of the body: a line of events, or all of it */
    uint64_t left;         /* of the body or chunk */
    uint32_t status, n_out;
    uint64_t t_token; /* when the server made the newest token, as the event says; 0 = it does not */
    bool is_chunked, is_stream, closes; /* is_stream: the body is events */
    bool is_end, has_error;             /* [DONE] came; an error did */
    bool has_bytes;
    char why[160]; /* of the first error */

    void (*on_token)(void *ctx); /* an event with text in it */
    void *ctx;
};

void load_answer_init(struct load_answer *a, void (*on_token)(void *ctx), void *ctx);
void load_answer_start(struct load_answer *a); /* for the next request of the connection */
void load_answer_fini(struct load_answer *a);

/* Bytes that came. ERR_FORMAT when they are not HTTP. What follows a finished answer is an error. */
enum err load_answer_feed(struct load_answer *a, const char *p, size_t n, struct error *e) MUST_CHECK;

#endif
