/* One network thread: an event loop with its evhttp, its engine client and its tokenizer context.
 *
 * Four things wake it: a connection, a notice of the engine (mail), the owner (nudge: the phase changed), and the clock
 * once a second (tick: pings, streams that broke, replays). Notices are taken in bounded bites, so that a flood of
 * tokens does not keep the loop from its sockets. */
#include "api/api_int.h"

#include "engine/engine.h"

#include <errno.h>
#include <event2/http_struct.h>
#include <event2/listener.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define MAIL_BITE   256 /* notices between two looks at the sockets */
#define MAIL_HAND   8   /* notices whose memory is fetched while the ones before are being answered */
#define SCRATCH_MAX SSE_EVENT_BYTES_MAX

/* ---- the engine's notices ---- */

/* A few notices. What each of thousands of streams needs for one event is long out of the caches: it is asked for
 * before it is waited for. */
static bool take_hand(struct net *n)
{
    struct notice hand[MAIL_HAND];
    uint32_t k = 0;
    while (k < MAIL_HAND && engine_client_next(n->client, &hand[k]) == OK)
        generation_prefetch(hand[k++].request, 0);
    for (uint32_t depth = 1; depth <= 2 && k > 1; depth++)
        for (uint32_t i = 0; i < k; i++)
            generation_prefetch(hand[i].request, depth);
    for (uint32_t i = 0; i < k; i++)
        generation_notice(hand[i].request, hand[i].is_final);
    return k == MAIL_HAND;
}

void net_take_mail(struct net *n)
{
    for (uint32_t i = 0; i < MAIL_BITE && n->client != NULL && take_hand(n); i += MAIL_HAND)
        ;
}

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    struct net *n = arg;
    struct wake *w = engine_client_wake(n->client);
    (void)fd;
    (void)what;
    wake_disarm(w); /* also swallows the signal */
    net_take_mail(n);
    wake_arm(w);
    if (engine_client_has(n->client)) /* more came, or was left */
        event_active(n->mail, EV_READ, 0);
}

/* The model is there: open what this thread needs for it. */
static void attach(struct net *n)
{
    struct serving *sv = n->s->serving;
    struct error e = {0};
    enum err err = engine_client_new(sv->engine, &n->client, &e);
    if (err == OK && sv->tok != NULL)
        err = tok_ctx_new(&n->tok_ctx, &e);
    if (err == OK) {
        struct wake *w = engine_client_wake(n->client);
        n->mail = event_new(n->base, w->fd, EV_READ | EV_PERSIST, on_mail, n);
        if (n->mail == NULL || event_add(n->mail, NULL) != 0)
            err = FAIL(&e, ERR_NOMEM, "no memory for the engine's mail");
        else
            event_active(n->mail, EV_READ, 0); /* arms */
    }
    if (err != OK)
        LOG(n->s->o.log, LOG_ERROR, "http", "cannot attach", log_cstr("why", e.text));
    else
        atomic_fetch_add(&n->s->n_attached, 1);
}

/* ---- phases ---- */

static void on_nudge(evutil_socket_t fd, short what, void *arg)
{
    const struct timeval last_words = {.tv_usec = 50000}; /* for what is in the sockets' buffers */
    struct net *n = arg;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
        return;
    const int phase = atomic_load_explicit(&n->s->phase, memory_order_acquire);
    if (n->client == NULL && atomic_load(&n->s->has_model))
        attach(n);
    calls_go_on(n);
    bodies_go_on(n);
    if (phase == PHASE_CLOSING)
        event_base_loopexit(n->base, &last_words);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct net *n = arg;
    const uint64_t now = clock_now(n->s->o.clock);
    (void)fd;
    (void)what;
    for (struct call *c = n->calls, *next; c != NULL; c = next) {
        next = c->next;
        if (c->gen != NULL)
            generation_tick(c->gen, now);
    }
    for (uint32_t i = 0; i < n->n_doors && n->is_full; i++)
        evconnlistener_enable(n->doors[i]);
    n->is_full = false;
    if (n->index == 0)
        replays_sweep(n->s, now);
    if (n->has_worked && server_busy(n->s) == 0) {
        n->has_worked = false;
        mem_trim();
    }
}

void net_nudge(struct net *n)
{
    const uint64_t one = 1;
    if (write(n->nudge_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is awake already */
}

static void wake(void *ctx)
{
    net_nudge(ctx);
}

/* ---- making one ---- */

static void on_request(struct evhttp_request *req, void *arg)
{
    struct net *n = arg;
    call_open(n, req);
    net_take_mail(n);
}

/* No descriptor is left. Trying again at once would turn the loop into a spin; connections wait in the backlog. */
static void on_accept_error(struct evconnlistener *door, void *arg)
{
    struct net *n = guard_net();
    (void)door;
    (void)arg; /* evhttp's */
    for (uint32_t i = 0; i < n->n_doors; i++)
        evconnlistener_disable(n->doors[i]);
    if (!n->is_full)
        LOG(n->s->o.log, LOG_WARN, "http", "no descriptor for a connection", log_cstr("why", strerror(errno)));
    n->is_full = true;
}

static enum err open_http(struct net *n, struct error *e)
{
    struct server *s = n->s;
    n->http = evhttp_new(n->base);
    if (n->http == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the HTTP server");
    evhttp_set_max_headers_size(n->http, HTTP_HEAD_BYTES_MAX);
    evhttp_set_max_body_size(n->http, (ev_ssize_t)(2 * s->o.body_max)); /* up to there the 413 is our own */
    evhttp_set_flags(n->http, EVHTTP_SERVER_LINGERING_CLOSE); /* a body that is too large is read, then told so */
    evhttp_set_timeout(n->http, (int)s->o.idle_s);
    evhttp_set_allowed_methods(n->http, 0xffff); /* what we do not take is told so by ourselves */
    evhttp_set_default_content_type(n->http, NULL);
    evhttp_set_bevcb(n->http, guard_bufferevent, n);
    evhttp_set_gencb(n->http, on_request, n);
    for (uint32_t i = 0; i < s->n_listeners; i++) {
        const int fd = dup(s->listeners[i]); /* each thread closes its own */
        struct evhttp_bound_socket *bound = fd >= 0 ? evhttp_accept_socket_with_handle(n->http, fd) : NULL;
        if (bound == NULL)
            return FAIL(e, ERR_IO, "cannot listen: %s", strerror(errno));
        n->doors[n->n_doors++] = evhttp_bound_socket_get_listener(bound);
        evconnlistener_set_error_cb(n->doors[i], on_accept_error);
    }
    return OK;
}

enum err net_init(struct net *n, struct server *s, uint32_t index, struct error *e)
{
    const struct timeval second = {.tv_sec = 1};
    *n = (struct net){.s = s, .index = index, .nudge_fd = -1, .box = {.wake = wake, .ctx = n}};
    buf_init(&n->scratch, SCRATCH_MAX);
    buf_init(&n->text, SCRATCH_MAX);
    chat_output_init(&n->chat);
    if (getrandom(&n->id_seed, sizeof n->id_seed, 0) != (ssize_t)sizeof n->id_seed)
        n->id_seed = (uint64_t)clock_wall(s->o.clock) + index;
    n->nudge_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (n->nudge_fd < 0)
        return FAIL(e, ERR_IO, "no eventfd: %s", strerror(errno));
    n->base = event_base_new();
    if (n->base == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for an event loop");
    n->nudge = event_new(n->base, n->nudge_fd, EV_READ | EV_PERSIST, on_nudge, n);
    n->tick = event_new(n->base, -1, EV_PERSIST, on_tick, n);
    if (n->nudge == NULL || n->tick == NULL || event_add(n->nudge, NULL) != 0 || event_add(n->tick, &second) != 0)
        return FAIL(e, ERR_NOMEM, "no memory for an event loop");
    return open_http(n, e);
}

static void *run(void *arg)
{
    struct net *n = arg;
    guard_adopt(n);
    event_base_dispatch(n->base);
    return NULL;
}

enum err net_start(struct net *n, struct error *e)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's */
    const int rc = pthread_create(&n->thread, NULL, run, n);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return FAIL(e, ERR_IO, "no network thread: %s", strerror(rc));
    n->has_thread = true;
    return OK;
}

/* What the engine still has of ours comes back: its owner has aborted it. */
static void collect(struct net *n)
{
    while (n->client != NULL && n->calls != NULL) {
        struct notice notice;
        bool waits = false;
        for (struct call *c = n->calls; c != NULL; c = c->next)
            waits |= c->gen != NULL;
        if (!waits)
            return;
        if (engine_client_next(n->client, &notice) == OK)
            generation_notice(notice.request, notice.is_final);
        else {
            struct wake *w = engine_client_wake(n->client);
            wake_arm(w);
            if (!engine_client_has(n->client))
                (void)wake_wait(w, 100 * NS_PER_MS);
            else
                wake_disarm(w);
        }
    }
}

void net_fini(struct net *n)
{
    if (n->has_thread)
        pthread_join(n->thread, NULL);
    if (n->mail != NULL)
        event_free(n->mail);
    for (struct call *c = n->calls, *next; c != NULL; c = next) {
        next = c->next;
        call_abandon(c); /* nobody is written to any more */
    }
    collect(n);
    if (n->http != NULL)
        evhttp_free(n->http);
    engine_client_free(n->client);
    tok_ctx_free(n->tok_ctx);
    chat_output_fini(&n->chat);
    buf_fini(&n->scratch);
    buf_fini(&n->text);
    if (n->tick != NULL)
        event_free(n->tick);
    if (n->nudge != NULL)
        event_free(n->nudge);
    if (n->base != NULL)
        event_base_free(n->base);
    if (n->nudge_fd >= 0)
        close(n->nudge_fd);
}
