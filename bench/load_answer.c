/* Reading of answers; see load.h. A small machine over lines: head, chunk sizes and events are all lines, so there is
 * one way to collect one. Of an event only three things are wanted: is there text, is it an error, how many tokens does
 * the usage name; they are looked for as bytes, since parsing JSON would cost more than the servers take to write it.
 */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LINE_MAX_BYTES (1024 * 1024)      /* an event; answers here have some hundred bytes */
#define BODY_MAX_BYTES (16 * 1024 * 1024) /* a whole answer */

void load_answer_init(struct load_answer *a, void (*on_token)(void *ctx), void *ctx)
{
    *a = (struct load_answer){.on_token = on_token, .ctx = ctx};
    buf_init(&a->line, LINE_MAX_BYTES);
    buf_init(&a->text, BODY_MAX_BYTES);
}

void load_answer_start(struct load_answer *a)
{
    const struct load_answer old = *a;
    *a = (struct load_answer){.line = old.line, .text = old.text, .on_token = old.on_token, .ctx = old.ctx};
    buf_clear(&a->line);
    buf_clear(&a->text);
}

void load_answer_fini(struct load_answer *a)
{
    buf_fini(&a->line);
    buf_fini(&a->text);
}

static void note_error(struct load_answer *a, struct str what)
{
    if (!a->has_error)
        snprintf(a->why, sizeof a->why, "%u %.*s", a->status, (int)MIN(what.n, (size_t)140), what.p);
    a->has_error = true;
}

static const char *find(struct str in, const char *what)
{
    return in.n > 0 ? memmem(in.p, in.n, what, strlen(what)) : NULL;
}

/* The number behind "name": or "name": with a blank. */
static void find_usage(struct load_answer *a, struct str in)
{
    static const char name[] = "\"completion_tokens\":", time[] = "\"token_time_ns\":";
    const char *p = find(in, name), *t = find(in, time);
    if (p != NULL) /* the buffer ends with a NUL */
        a->n_out = (uint32_t)strtoul(p + sizeof name - 1, NULL, 10);
    if (t != NULL)
        a->t_token = strtoull(t + sizeof time - 1, NULL, 10);
}

static void take_event(struct load_answer *a, struct str line)
{
    static const char data[] = "data: ", text[] = "\"text\":\"";
    if (line.n < sizeof data - 1 || memcmp(line.p, data, sizeof data - 1) != 0)
        return;
    const struct str body = {line.p + sizeof data - 1, line.n - (sizeof data - 1)};
    if (body.n >= 6 && memcmp(body.p, "[DONE]", 6) == 0) {
        a->is_end = true;
        return;
    }
    if (body.n >= 8 && memcmp(body.p, "{\"error\"", 8) == 0)
        note_error(a, body);
    find_usage(a, body);
    const char *p = find(body, text);
    if (p != NULL && p[sizeof text - 1] != '"')
        a->on_token(a->ctx);
}

/* Moves what belongs to the line from *p into to; true when it is whole. */
static bool take_line(struct buf *to, const char **p, size_t *n)
{
    const char *end = memchr(*p, '\n', *n);
    const size_t take = end != NULL ? (size_t)(end - *p) + 1 : *n;
    buf_add(to, (struct str){*p, take});
    *p += take;
    *n -= take;
    if (end == NULL || to->failure != OK)
        return false;
    while (to->n > 0 && (to->p[to->n - 1] == '\n' || to->p[to->n - 1] == '\r'))
        to->p[--to->n] = '\0';
    return true;
}

static void take_body(struct load_answer *a, const char *p, size_t n)
{
    if (!a->is_stream) {
        buf_add(&a->text, (struct str){p, n});
        return;
    }
    while (n > 0)
        if (take_line(&a->text, &p, &n)) {
            take_event(a, buf_str(&a->text));
            buf_clear(&a->text);
        }
}

static void end_answer(struct load_answer *a)
{
    a->state = LOAD_DONE;
    if (a->status != 200)
        note_error(a, buf_str(&a->text));
    else if (!a->is_stream) {
        a->is_end = true;
        find_usage(a, buf_str(&a->text));
    }
}

static enum err take_head_line(struct load_answer *a, struct error *e)
{
    const struct str line = buf_str(&a->line);
    if (a->status == 0) {
        if (line.n < 12 || memcmp(line.p, "HTTP/1.", 7) != 0)
            return FAIL(e, ERR_FORMAT, "an answer begins with %.*s", (int)MIN(line.n, (size_t)40), line.p);
        a->status = (uint32_t)strtoul(line.p + 9, NULL, 10);
    } else if (strncasecmp(line.p, "content-length:", 15) == 0)
        a->left = strtoull(line.p + 15, NULL, 10);
    else if (strncasecmp(line.p, "transfer-encoding: chunked", 26) == 0)
        a->is_chunked = true;
    else if (strncasecmp(line.p, "content-type: text/event-stream", 31) == 0)
        a->is_stream = true;
    else if (strncasecmp(line.p, "connection: close", 17) == 0)
        a->closes = true;
    return OK;
}

static enum err take_any_line(struct load_answer *a, struct error *e)
{
    const bool is_blank = a->line.n == 0;
    switch (a->state) {
    case LOAD_HEAD:
        if (!is_blank)
            return take_head_line(a, e);
        if (a->is_chunked)
            a->state = LOAD_CHUNK_SIZE;
        else if (a->left > 0)
            a->state = LOAD_FIXED;
        else
            end_answer(a);
        break;
    case LOAD_CHUNK_SIZE:
        a->left = strtoull(a->line.p, NULL, 16);
        a->state = a->left > 0 ? LOAD_CHUNK : LOAD_TRAILER;
        break;
    case LOAD_CHUNK_END: a->state = LOAD_CHUNK_SIZE; break;
    default:
        if (is_blank)
            end_answer(a);
    }
    return OK;
}

enum err load_answer_feed(struct load_answer *a, const char *p, size_t n, struct error *e)
{
    a->has_bytes = true;
    while (n > 0) {
        if (a->state == LOAD_DONE)
            return FAIL(e, ERR_FORMAT, "%zu bytes follow the answer", n);
        if (a->state == LOAD_FIXED || a->state == LOAD_CHUNK) {
            const size_t take = (size_t)MIN((uint64_t)n, a->left);
            take_body(a, p, take);
            p += take;
            n -= take;
            a->left -= take;
            if (a->left == 0 && a->state == LOAD_FIXED)
                end_answer(a);
            else if (a->left == 0)
                a->state = LOAD_CHUNK_END;
        } else if (take_line(&a->line, &p, &n)) {
            TRY(take_any_line(a, e));
            buf_clear(&a->line);
        }
        TRY(buf_check(&a->line, "a line of an answer", e));
        TRY(buf_check(&a->text, "an answer", e));
    }
    return OK;
}
