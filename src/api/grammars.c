/* Compiled grammars, kept by their source; see grammars.h.
 *
 * An entry is in the table from the moment somebody asks for its source: queued, being compiled, or done. Only done
 * entries are thrown out; a queued one goes when nobody waits for it any more. The bytes of a grammar grow with the
 * masks that it has cached, so they are counted anew now and then.
 *
 * A hit is proved: same kind, same whitespace, same text, byte by byte. */
#include "api/grammars.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS      1024
#define RECOUNT      64 /* compilations */
#define COMPILE_NICE 5  /* against threads that compute: a quarter of a core when all are busy */

enum entry_state { ENTRY_QUEUED, ENTRY_COMPILING, ENTRY_DONE };

struct grammars_entry {
    struct grammars_entry *chain;       /* of the bucket */
    struct grammars_entry *next, *prev; /* done: by use, newest first; queued: by arrival */
    uint64_t hash;
    enum entry_state state;
    struct grammar_source src; /* its own text */
    struct grammar *grammar;   /* done; NULL: error */
    struct error error;
    struct grammars_ask *asks;
};

struct entry_list {
    struct grammars_entry *first, *last;
    uint32_t n;
};

struct grammars {
    const struct grammar_vocab *vocab;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t thread;
    bool has_thread, stop;
    struct grammars_entry *buckets[BUCKETS];
    struct entry_list done, queued;
    uint32_t since_count; /* compilations since the bytes of all were counted */
    struct grammars_numbers numbers;
};

/* ---- lists and the table; all under the lock ---- */

static void list_add(struct entry_list *l, struct grammars_entry *x, bool at_front)
{
    x->next = at_front ? l->first : NULL;
    x->prev = at_front ? NULL : l->last;
    *(x->next != NULL ? &x->next->prev : &l->last) = x;
    *(x->prev != NULL ? &x->prev->next : &l->first) = x;
    l->n++;
}

static void list_remove(struct entry_list *l, struct grammars_entry *x)
{
    *(x->next != NULL ? &x->next->prev : &l->last) = x->prev;
    *(x->prev != NULL ? &x->prev->next : &l->first) = x->next;
    l->n--;
}

static struct grammars_entry *find(struct grammars *g, const struct grammar_source *src, uint64_t hash)
{
    struct grammars_entry *x = g->buckets[hash % BUCKETS];
    for (; x != NULL; x = x->chain)
        if (x->hash == hash && x->src.kind == src->kind && x->src.whitespace == src->whitespace &&
            x->src.text.n == src->text.n && (src->text.n == 0 || memcmp(x->src.text.p, src->text.p, src->text.n) == 0))
            return x;
    return NULL;
}

static struct grammars_entry *entry_new(struct grammars *g, const struct grammar_source *src, uint64_t hash)
{
    struct grammars_entry *x = mem_zalloc(sizeof *x);
    char *text = x != NULL ? mem_copy_str(src->text) : NULL;
    if (text == NULL) {
        mem_free(x);
        return NULL;
    }
    *x = (struct grammars_entry){.hash = hash, .src = *src, .chain = g->buckets[hash % BUCKETS]};
    x->src.text.p = text;
    g->buckets[hash % BUCKETS] = x;
    return x;
}

/* It is in no list. */
static void entry_free(struct grammars *g, struct grammars_entry *x)
{
    struct grammars_entry **at = &g->buckets[x->hash % BUCKETS];
    while (*at != x)
        at = &(*at)->chain;
    *at = x->chain;
    grammar_unref(x->grammar);
    mem_free((char *)(uintptr_t)x->src.text.p);
    mem_free(x);
}

static uint64_t entry_bytes(const struct grammars_entry *x)
{
    return sizeof *x + x->src.text.n + (x->grammar != NULL ? grammar_bytes(x->grammar) : 0);
}

/* An entry was added in front. */
static void trim(struct grammars *g)
{
    g->numbers.bytes += entry_bytes(g->done.first);
    if (++g->since_count >= RECOUNT || g->numbers.bytes > GRAMMARS_BYTES_MAX) {
        g->since_count = 0;
        g->numbers.bytes = 0;
        for (const struct grammars_entry *x = g->done.first; x != NULL; x = x->next)
            g->numbers.bytes += entry_bytes(x);
    }
    while (g->done.n > 1 && (g->done.n > GRAMMARS_MAX || g->numbers.bytes > GRAMMARS_BYTES_MAX)) {
        struct grammars_entry *x = g->done.last;
        g->numbers.bytes -= MIN(g->numbers.bytes, entry_bytes(x));
        list_remove(&g->done, x);
        entry_free(g, x);
    }
}

/* ---- asks ---- */

static void ask_unlink(struct grammars_ask **first, struct grammars_ask **last, struct grammars_ask *a)
{
    if (a->next != NULL)
        a->next->prev = a->prev;
    else if (last != NULL)
        *last = a->prev;
    assert(first != NULL);
    if (a->prev != NULL)
        a->prev->next = a->next;
    else
        *first = a->next;
    a->next = a->prev = NULL;
}

static void answer_asks(struct grammars_entry *x)
{
    struct grammars_ask *next;
    for (struct grammars_ask *a = x->asks; a != NULL; a = next) {
        struct grammars_box *box = a->box;
        next = a->next;
        a->entry = NULL;
        a->error = x->error;
        a->grammar = x->grammar;
        if (a->grammar != NULL)
            grammar_ref(a->grammar);
        a->prev = box->last;
        a->next = NULL;
        *(box->last != NULL ? &box->last->next : &box->first) = a;
        box->last = a;
        box->wake(box->ctx);
    }
    x->asks = NULL;
}

enum err grammars_get(struct grammars *g, const struct grammar_source *src, struct grammars_ask *ask,
    struct grammar **out, struct error *e)
{
    const uint64_t hash = hash64(src->text.p, src->text.n, (uint64_t)src->kind * 4 + (uint64_t)src->whitespace);
    enum err err = OK;
    *out = NULL;
    pthread_mutex_lock(&g->lock);
    struct grammars_entry *x = find(g, src, hash);
    if (x != NULL && x->state == ENTRY_DONE) {
        list_remove(&g->done, x);
        list_add(&g->done, x, true);
        g->numbers.hits++;
        if (x->grammar != NULL) {
            grammar_ref(x->grammar);
            *out = x->grammar;
        } else {
            *e = x->error;
            err = x->error.code;
        }
    } else if (x == NULL && g->queued.n >= GRAMMARS_QUEUE_MAX) {
        g->numbers.refused++;
        err = FAIL(e, ERR_AGAIN, "%d grammars wait to be compiled already", GRAMMARS_QUEUE_MAX);
    } else {
        if (x == NULL && (x = entry_new(g, src, hash)) != NULL) {
            g->numbers.misses++;
            list_add(&g->queued, x, false);
            pthread_cond_signal(&g->work);
        } else if (x != NULL)
            g->numbers.hits++; /* it is on its way */
        if (x != NULL) {
            ask->entry = x;
            ask->prev = NULL;
            ask->next = x->asks;
            if (x->asks != NULL)
                x->asks->prev = ask;
            x->asks = ask;
        } else
            err = FAIL(e, ERR_NOMEM, "no memory for a grammar");
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

struct grammars_ask *grammars_next(struct grammars *g, struct grammars_box *box)
{
    pthread_mutex_lock(&g->lock);
    struct grammars_ask *a = box->first;
    if (a != NULL) {
        ask_unlink(&box->first, &box->last, a);
        a->is_answered = true;
    }
    pthread_mutex_unlock(&g->lock);
    return a;
}

void grammars_forget(struct grammars *g, struct grammars_ask *a)
{
    pthread_mutex_lock(&g->lock);
    struct grammars_entry *x = a->entry;
    if (x != NULL) {
        ask_unlink(&x->asks, NULL, a);
        if (x->asks == NULL && x->state == ENTRY_QUEUED) { /* nobody wants it any more */
            list_remove(&g->queued, x);
            entry_free(g, x);
        }
    } else if (!a->is_answered)
        ask_unlink(&a->box->first, &a->box->last, a);
    pthread_mutex_unlock(&g->lock);
    grammar_unref(a->grammar);
    a->entry = NULL;
    a->grammar = NULL;
    a->is_answered = true;
}

/* ---- the thread ---- */

/* Processor time of this thread: how long it had to wait for a core says nothing about a grammar. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void compile(struct grammars *g, struct grammars_entry *x)
{
    struct grammar *made = NULL;
    struct error e = {0};
    const uint64_t start = cpu_ns();
    if (grammar_compile(&x->src, g->vocab, &made, &e) != OK)
        made = NULL;
    const uint64_t ns = cpu_ns() - start;
    pthread_mutex_lock(&g->lock);
    x->state = ENTRY_DONE;
    x->grammar = made;
    x->error = e;
    g->numbers.failures += made == NULL;
    g->numbers.compile_ns += ns;
    g->numbers.compile_max_ns = MAX(g->numbers.compile_max_ns, ns);
    answer_asks(x);
    if (e.code == ERR_NOMEM) { /* it may work the next time */
        entry_free(g, x);
    } else {
        list_add(&g->done, x, true);
        trim(g);
    }
    pthread_mutex_unlock(&g->lock);
}

static void *run(void *ctx)
{
    struct grammars *g = ctx;
    pthread_setname_np(pthread_self(), "quern-grammar");
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), COMPILE_NICE); /* of this thread alone */
    for (;;) {
        pthread_mutex_lock(&g->lock);
        while (!g->stop && g->queued.first == NULL)
            pthread_cond_wait(&g->work, &g->lock);
        struct grammars_entry *x = g->queued.first;
        const bool stop = g->stop;
        if (x != NULL) {
            list_remove(&g->queued, x);
            x->state = ENTRY_COMPILING;
        }
        pthread_mutex_unlock(&g->lock);
        if (stop) {
            if (x != NULL)
                entry_free(g, x);
            return NULL;
        }
        compile(g, x);
    }
}

/* ---- life ---- */

enum err grammars_new(const struct grammar_vocab *v, struct grammars **out, struct error *e)
{
    struct grammars *g = mem_zalloc(sizeof *g);
    if (g == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for grammars");
    g->vocab = v;
    if (pthread_mutex_init(&g->lock, NULL) != 0 || pthread_cond_init(&g->work, NULL) != 0) {
        mem_free(g);
        return FAIL(e, ERR_NOMEM, "no mutex for grammars");
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's */
    g->has_thread = pthread_create(&g->thread, NULL, run, g) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!g->has_thread) {
        grammars_free(g);
        return FAIL(e, ERR_IO, "cannot start the thread that compiles grammars");
    }
    *out = g;
    return OK;
}

void grammars_free(struct grammars *g)
{
    if (g == NULL)
        return;
    if (g->has_thread) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_cond_signal(&g->work);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
    }
    for (size_t i = 0; i < BUCKETS; i++)
        while (g->buckets[i] != NULL)
            entry_free(g, g->buckets[i]);
    pthread_cond_destroy(&g->work);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

void grammars_numbers(struct grammars *g, struct grammars_numbers *out)
{
    pthread_mutex_lock(&g->lock);
    *out = g->numbers;
    out->n = g->done.n;
    out->n_queued = g->queued.n;
    pthread_mutex_unlock(&g->lock);
}
