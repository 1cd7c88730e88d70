/* Resumable streams: a stream that asked for it belongs to the server and not to its connection. Its events are kept,
 * as bytes with their numbers, up to STREAM_REPLAY_BYTES; GET /v1/streams/{id}?from=N gives those from N on and then
 * what still comes. When nobody reads, the request goes on for STREAM_GRACE_S; its events stay as long after the end.
 *
 * The events lie in one buffer behind a mutex. The thread that makes them appends; a reader may sit on any network
 * thread and looks every READ_MS, which is cheap and needs no messages between threads. */
#include "api/api_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_MS 20

struct replay {
    struct replay *next;
    struct server *s;
    char id[CALL_ID_BYTES + 16];
    uint32_t tenant;
    pthread_mutex_t lock;
    struct buf bytes;
    size_t *starts; /* of each event */
    size_t n_events, cap;
    bool has_ended, is_full;
    bool has_maker;     /* its generation lives */
    uint32_t n_readers; /* resumed ones */
    uint64_t wanted_ns; /* when somebody last read or made it */
};

struct replay *replay_new(struct server *s, const char *id, uint32_t tenant)
{
    struct replay *r = mem_zalloc(sizeof *r);
    if (r == NULL || pthread_mutex_init(&r->lock, NULL) != 0) {
        mem_free(r);
        return NULL;
    }
    r->s = s;
    r->tenant = tenant;
    r->has_maker = true;
    r->wanted_ns = clock_now(s->o.clock);
    snprintf(r->id, sizeof r->id, "%s", id);
    buf_init(&r->bytes, STREAM_REPLAY_BYTES);
    pthread_mutex_lock(&s->replays_lock);
    const bool fits = s->n_replays < STREAM_REPLAYS_MAX;
    if (fits) {
        r->next = s->replays;
        s->replays = r;
        s->n_replays++;
    }
    pthread_mutex_unlock(&s->replays_lock);
    if (!fits) {
        pthread_mutex_destroy(&r->lock);
        mem_free(r);
        return NULL;
    }
    return r;
}

static void replay_free(struct replay *r)
{
    buf_fini(&r->bytes);
    mem_free(r->starts);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static bool note_start(struct replay *r)
{
    if (r->n_events == r->cap) {
        const size_t cap = MAX(r->cap * 2, (size_t)64);
        size_t *starts = mem_resize(r->starts, cap * sizeof *starts);
        if (starts == NULL)
            return false;
        r->starts = starts;
        r->cap = cap;
    }
    r->starts[r->n_events++] = r->bytes.n;
    return true;
}

void replay_add(struct replay *r, struct str event)
{
    pthread_mutex_lock(&r->lock);
    const uint64_t n = r->n_events;
    if (!r->is_full && note_start(r)) {
        buf_addf(&r->bytes, "id: %llu\n", (unsigned long long)n);
        buf_add(&r->bytes, event);
    }
    if (r->bytes.failure != OK && !r->is_full) {
        r->is_full = true; /* a later resume is told that the rest is gone */
        r->n_events--;
        r->bytes.n = r->starts[r->n_events];
    }
    pthread_mutex_unlock(&r->lock);
}

uint64_t replay_count(struct replay *r)
{
    pthread_mutex_lock(&r->lock);
    const uint64_t n = r->n_events;
    pthread_mutex_unlock(&r->lock);
    return n;
}

struct str replay_events(const struct replay *r)
{
    return buf_str(&r->bytes);
}

void replay_end(struct replay *r, uint64_t now_ns)
{
    pthread_mutex_lock(&r->lock);
    r->has_ended = true;
    r->wanted_ns = now_ns;
    pthread_mutex_unlock(&r->lock);
}

bool replay_is_wanted(struct replay *r, uint64_t now_ns)
{
    pthread_mutex_lock(&r->lock);
    const bool wanted = r->n_readers > 0 || now_ns - r->wanted_ns < (uint64_t)STREAM_GRACE_S * NS_PER_S;
    pthread_mutex_unlock(&r->lock);
    return wanted;
}

void replay_release(struct replay *r)
{
    pthread_mutex_lock(&r->lock);
    r->has_maker = false;
    r->has_ended = true;
    pthread_mutex_unlock(&r->lock);
}

void replays_sweep(struct server *s, uint64_t now_ns)
{
    pthread_mutex_lock(&s->replays_lock);
    for (struct replay **at = &s->replays; *at != NULL;) {
        struct replay *r = *at;
        pthread_mutex_lock(&r->lock);
        const bool old =
            !r->has_maker && r->n_readers == 0 && now_ns - r->wanted_ns > (uint64_t)STREAM_GRACE_S * NS_PER_S;
        pthread_mutex_unlock(&r->lock);
        if (old) {
            *at = r->next;
            s->n_replays--;
            replay_free(r);
        } else
            at = &r->next;
    }
    pthread_mutex_unlock(&s->replays_lock);
}

void replays_free(struct server *s)
{
    while (s->replays != NULL) {
        struct replay *r = s->replays;
        s->replays = r->next;
        replay_free(r);
    }
}

/* ---- reading one again ---- */

struct reader {
    struct call *call;
    struct replay *r;
    struct event *timer;
    uint64_t next; /* event */
};

static struct replay *find(struct server *s, struct str id, uint32_t tenant)
{
    struct replay *found = NULL;
    pthread_mutex_lock(&s->replays_lock);
    for (struct replay *r = s->replays; r != NULL && found == NULL; r = r->next)
        if (str_is(id, r->id) && r->tenant == tenant)
            found = r;
    if (found != NULL) {
        pthread_mutex_lock(&found->lock);
        found->n_readers++;
        pthread_mutex_unlock(&found->lock);
    }
    pthread_mutex_unlock(&s->replays_lock);
    return found;
}

static void reader_free(struct reader *rd)
{
    pthread_mutex_lock(&rd->r->lock);
    rd->r->n_readers--;
    rd->r->wanted_ns = clock_now(rd->r->s->o.clock);
    pthread_mutex_unlock(&rd->r->lock);
    if (rd->timer != NULL)
        event_free(rd->timer);
    rd->call->reader = NULL;
    mem_free(rd);
}

void reader_client_left(struct reader *rd)
{
    struct call *c = rd->call;
    reader_free(rd);
    call_done(c);
}

/* Everything that is there since the last look. */
void reader_tick(struct reader *rd)
{
    struct replay *r = rd->r;
    struct call *c = rd->call;
    if (call_unsent(c) > SSE_HIGH_WATER)
        return;
    pthread_mutex_lock(&r->lock);
    const bool ended = r->has_ended, full = r->is_full;
    if (rd->next < r->n_events) {
        const size_t from = r->starts[rd->next];
        call_stream_write(c, (struct str){r->bytes.p + from, r->bytes.n - from});
        rd->next = r->n_events;
    }
    pthread_mutex_unlock(&r->lock);
    if (!ended && !full) {
        const uint64_t ping_ns = (uint64_t)c->s->o.ping_s * NS_PER_S;
        if (ping_ns != 0 && clock_now(c->s->o.clock) - c->t_last_write > ping_ns)
            call_stream_write(c, STR(": waiting\n\n"));
        return;
    }
    if (full)
        call_stream_write(c, STR("data: {\"error\":{\"message\":\"the rest of this stream was not kept\","
                                 "\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\ndata: [DONE]\n\n"));
    call_stream_end(c);
    reader_free(rd);
    call_done(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    reader_tick(arg);
}

void route_stream(struct call *c)
{
    const struct timeval every = {.tv_usec = READ_MS * 1000};
    struct api_error ae = {0};
    char text[24];
    const struct str from = call_query(c, "from", text, sizeof text);
    char *end = NULL;
    const uint64_t n = from.n > 0 && from.p[0] != '-' ? strtoull(text, &end, 10) : 0;
    struct reader *rd = mem_zalloc(sizeof *rd);
    if (rd == NULL)
        api_fail_err(&ae, &(struct error){.code = ERR_NOMEM}, NULL);
    else if (from.p != NULL && (end == NULL || *end != '\0'))
        api_fail(&ae, 400, "from", "'from' must be the number of an event");
    else if ((rd->r = find(c->s, c->path_id, c->tenant)) == NULL)
        api_fail(&ae, 404, NULL, "there is no such stream, or it was not resumable, or it is gone");
    if (rd == NULL || ae.status != 0) {
        mem_free(rd);
        call_reply_error(c, &ae);
        return;
    }
    rd->call = c;
    rd->next = n;
    c->reader = rd;
    rd->timer = event_new(c->net->base, -1, EV_PERSIST, on_timer, rd);
    if (rd->timer == NULL || event_add(rd->timer, &every) != 0) {
        reader_free(rd);
        api_fail_err(&ae, &(struct error){.code = ERR_NOMEM}, NULL);
        call_reply_error(c, &ae);
        return;
    }
    call_watch(c);
    call_stream_start(c, "text/event-stream");
}
