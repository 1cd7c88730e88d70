/* Large bodies become JSON on a thread of their own: a megabyte takes some 10 ms, and the streams of a network thread
 * should not wait for that. A call with such a body is kept before its route runs; the bytes are moved to a job; when
 * the job is done the network thread is nudged and the route runs with the document (call_json finds it). Small bodies
 * are parsed where they are.
 *
 * Who frees: a job belongs to the queue until it is done, then to the box of its network thread. A call that goes away
 * before that only takes itself out of its job.
 *
 * Threads: one mutex around queue and boxes, never held while something is parsed. */
#include "api/api_int.h"

#include <event2/buffer.h>
#include <signal.h>

struct body_job {
    struct body_job *next;
    struct net *net;
    struct call *call; /* NULL: it went away */
    char *text;
    size_t n;
    json_t *doc; /* NULL: ae says why */
    struct api_error ae;
};

static void job_free(struct body_job *j)
{
    json_decref(j->doc);
    mem_free(j->text);
    mem_free(j);
}

static void *run(void *arg)
{
    struct bodies *b = arg;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->first == NULL && !b->stop)
            pthread_cond_wait(&b->work, &b->lock);
        struct body_job *j = b->first;
        if (b->stop || j == NULL)
            break;
        b->first = j->next;
        b->n--;
        const bool is_wanted = j->call != NULL;
        pthread_mutex_unlock(&b->lock);
        if (is_wanted)
            (void)body_parse((struct str){j->text, j->n}, &j->doc, &j->ae);
        mem_free(j->text);
        j->text = NULL;
        pthread_mutex_lock(&b->lock);
        j->next = j->net->bodies;
        j->net->bodies = j;
        net_nudge(j->net);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

enum err bodies_start(struct bodies *b, struct error *e)
{
    sigset_t all, old;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's */
    b->has_thread = pthread_create(&b->thread, NULL, run, b) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return b->has_thread ? OK : FAIL(e, ERR_IO, "no thread for large bodies");
}

void bodies_stop(struct bodies *b)
{
    if (!b->has_thread)
        return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->work);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
}

static void free_list(struct body_job *j)
{
    for (struct body_job *next; j != NULL; j = next) {
        next = j->next;
        job_free(j);
    }
}

void bodies_free(struct bodies *b, struct net *nets, uint32_t n_nets)
{
    if (!b->has_thread)
        return;
    free_list(b->first);
    for (uint32_t i = 0; i < n_nets; i++)
        free_list(nets[i].bodies);
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
}

bool body_is_large(const struct call *c)
{
    return evbuffer_get_length(evhttp_request_get_input_buffer(c->req)) > BODY_INLINE_MAX;
}

bool body_send(struct call *c, struct api_error *ae)
{
    struct bodies *b = &c->s->bodies;
    struct evbuffer *in = evhttp_request_get_input_buffer(c->req);
    struct body_job *j = mem_zalloc(sizeof *j);
    if (j == NULL || (j->text = mem_alloc(evbuffer_get_length(in))) == NULL) {
        mem_free(j);
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    }
    j->net = c->net;
    j->call = c;
    pthread_mutex_lock(&b->lock);
    const bool fits = b->n < BODIES_QUEUE_MAX;
    if (fits) {
        j->n = (size_t)evbuffer_remove(in, j->text, evbuffer_get_length(in));
        struct body_job **at = &b->first;
        while (*at != NULL)
            at = &(*at)->next;
        *at = j;
        b->n++;
        pthread_cond_signal(&b->work);
    }
    pthread_mutex_unlock(&b->lock);
    if (!fits) {
        job_free(j);
        api_fail(ae, 429, NULL, "the server is busy: %d large bodies wait to be read", BODIES_QUEUE_MAX);
        ae->retry_s = 1;
        return false;
    }
    c->body = j;
    call_watch(c);
    return true;
}

void body_forget(struct call *c)
{
    pthread_mutex_lock(&c->s->bodies.lock);
    c->body->call = NULL;
    pthread_mutex_unlock(&c->s->bodies.lock);
    c->body = NULL;
}

void bodies_go_on(struct net *n)
{
    for (;;) {
        pthread_mutex_lock(&n->s->bodies.lock);
        struct body_job *j = n->bodies;
        if (j != NULL)
            n->bodies = j->next;
        pthread_mutex_unlock(&n->s->bodies.lock);
        if (j == NULL)
            return;
        struct call *c = j->call;
        if (c != NULL) {
            c->body = NULL;
            if (j->doc != NULL) {
                c->doc = json_incref(j->doc);
                c->route->run(c);
            } else
                call_reply_error(c, &j->ae);
            call_maybe_done(c);
        }
        job_free(j);
    }
}
