/* quern serve [MODEL]: the server's life as its operator sees it. Listens first, so that probes are answered while the
 * model is found and loaded; prints one line when it is ready; then only waits for signals.
 *
 *   SIGTERM, SIGINT   drain: not ready any more, running answers finish, at most --shutdown-timeout; again: end them
 * now SIGHUP            read keys, certificate and the config file's log level again
 *
 * While the model is still loading there is nothing to drain, and SIGTERM ends the process. */
#include "api/api.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/find.h"
#include "cli/load.h"
#include "cli/note.h"
#include "cli/serve_args.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FAILED_LOOK_MS 200  /* how soon a failed engine ends the process */
#define ABORT_WAIT_MS  5000 /* for the last events of aborted answers to leave */
#define KEYS_LISTED    32   /* of --api-key */
#define LOG_RING_LINES 1024
#define LOG_LATE_NS    (50 * NS_PER_MS)

/* What a server has to say goes through a ring to a thread of its own: a standard error that nobody reads must not
 * stop the network threads. Lines that find the ring full are counted and the count is reported. */
struct serve_log {
    struct log out, log; /* the descriptor's; the ring that everybody writes to */
    struct wake wake;
    pthread_t thread;
    atomic_bool stop;
    bool has_out, has_ring, has_thread;
};

struct serve {
    struct serve_log log; /* first: its rings are aligned */
    const struct options *o;
    struct clock clock;
    struct server *server;
    struct serving *serving;
    struct fake_runner_options fake;
    char path[PATH_BYTES_MAX], draft_path[PATH_BYTES_MAX], copies[PATH_BYTES_MAX];
    char choices[PATH_BYTES_MAX], said[256];
    char name[MODEL_NAME_BYTES_MAX]; /* what clients call it */
    char key_text[KEYS_LISTED * 64];
    const char *keys[KEYS_LISTED];
    size_t n_keys;
};

/* ---- signals ---- */

static _Atomic int n_stops, n_hups;
static atomic_bool is_loaded;
static int signal_fd = -1;

static void on_signal(int number)
{
    const uint64_t one = 1;
    const int saved = errno;
    if (number == SIGHUP)
        atomic_fetch_add(&n_hups, 1);
    else {
        if (!atomic_load(&is_loaded))
            _exit(EXIT_OK);
        atomic_fetch_add(&n_stops, 1);
    }
    if (write(signal_fd, &one, sizeof one) < 0)
        return; /* the counter is full: the main thread is awake */
    errno = saved;
}

static enum err catch_signals(struct error *e)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    if (signal_fd < 0)
        signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (signal_fd < 0)
        return FAIL(e, ERR_IO, "no eventfd: %s", strerror(errno));
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (sigaction(numbers[i], &a, NULL) != 0)
            return FAIL(e, ERR_IO, "cannot catch signal %d: %s", numbers[i], strerror(errno));
    return OK;
}

static void wait_for_signal(int ms)
{
    uint64_t count;
    struct pollfd p = {.fd = signal_fd, .events = POLLIN};
    if (poll(&p, 1, ms) > 0 && read(signal_fd, &count, sizeof count) < 0)
        return; /* somebody else read it: the counters say what happened */
}

/* ---- the log ---- */

static void *run_log(void *arg)
{
    struct serve_log *l = arg;
    while (!atomic_load(&l->stop)) {
        log_drain(&l->log);
        (void)wake_wait(&l->wake, LOG_LATE_NS); /* late by that much at most */
    }
    log_drain(&l->log);
    return NULL;
}

static enum err log_open(struct serve_log *l, const struct options *o, const struct clock *clock, struct error *e)
{
    const struct log_levels levels = {.base = (enum log_level)o->log_level};
    sigset_t all, old;
    TRY(log_init(&l->out, STDERR_FILENO, (enum log_format)o->log_format, &levels, clock, e));
    l->has_out = true;
    TRY(wake_init(&l->wake, e));
    TRY(log_init_ring(&l->log, &l->out, LOG_RING_LINES, NULL, e));
    l->has_ring = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    l->has_thread = pthread_create(&l->thread, NULL, run_log, l) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return l->has_thread ? OK : FAIL(e, ERR_IO, "no thread for the log");
}

/* False: the thread hangs in a write that nobody reads; the process ends without it. */
static bool log_close(struct serve_log *l)
{
    struct timespec end;
    atomic_store(&l->stop, true);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 1;
    if (l->has_thread && pthread_timedjoin_np(l->thread, NULL, &end) != 0)
        return false;
    if (l->has_ring)
        log_fini(&l->log);
    if (l->has_out) {
        wake_fini(&l->wake);
        log_fini(&l->out);
    }
    return true;
}

/* ---- opening ---- */

enum err verb_serve_check(const struct options *o, struct error *e)
{
    if ((o->cert_file == NULL) != (o->cert_key_file == NULL))
        return FAIL(e, ERR_INVALID, "options --ssl-certfile and --ssl-keyfile need each other");
    if (o->fake_step_us != OPTION_UNSET && o->load_format == LOAD_DUMMY)
        return FAIL(e, ERR_INVALID, "options --fake-step and --load-format dummy exclude each other");
    return OK;
}

static enum err split_keys(struct serve *v, struct error *e)
{
    if (v->o->api_key == NULL)
        return OK;
    if (strlen(v->o->api_key) >= sizeof v->key_text)
        return FAIL(e, ERR_LIMIT, "option --api-key: more than %zu bytes; use --key-file", sizeof v->key_text - 1);
    snprintf(v->key_text, sizeof v->key_text, "%s", v->o->api_key);
    for (char *p = v->key_text, *next; p != NULL; p = next) {
        next = strchr(p, ',');
        if (next != NULL)
            *next++ = '\0';
        if (v->n_keys == KEYS_LISTED)
            return FAIL(e, ERR_LIMIT, "option --api-key: more than %d keys; use --key-file", KEYS_LISTED);
        v->keys[v->n_keys++] = p;
    }
    return OK;
}

static enum err open_server(struct serve *v, struct error *e)
{
    const struct options *o = v->o;
    clock_init(&v->clock);
    TRY(log_open(&v->log, o, &v->clock, e));
    TRY(split_keys(v, e));
    const struct server_options so = {.host = o->host,
        .port = (uint16_t)o->port,
        .unix_path = o->unix_socket,
        .take_inherited = true,
        .threads = (uint32_t)o->net_threads,
        .cert_path = o->cert_file,
        .key_path = o->cert_key_file,
        .keys = v->keys,
        .n_keys = v->n_keys,
        .key_file = o->key_file,
        .origins = o->origins.v,
        .n_origins = o->origins.n,
        .hosts = o->hosts.v,
        .n_hosts = o->hosts.n,
        .body_max = o->max_body_bytes,
        .connections_max = (uint32_t)o->max_connections,
        .ping_s = (uint32_t)o->ping_s,
        .stuck_s = (uint32_t)o->stuck_s,
        .tool_call_parser = o->tool_call_parser,
        .reasoning_parser = o->reasoning_parser,
        .structured_whitespace = (enum grammar_whitespace)o->structured_whitespace,
        .no_page = !o->page,
        .access_log = o->access_log,
        .log = &v->log.log,
        .clock = &v->clock};
    return server_open(&so, &v->server, e);
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct serve *v = ctx;
    server_progress(v->server, "loading weights", total > 0 ? (uint32_t)(done * 100 / total) : 0);
}

static enum err find_it(struct serve *v, struct error *e)
{
    const struct options *o = v->o;
    server_progress(v->server, "finding the model", 0);
    if (o->load_format == LOAD_DUMMY && o->n_args > 0) {
        snprintf(v->path, sizeof v->path, "%s", o->args[0]); /* a shape's name, or a model's */
        struct model_config config;
        if (dummy_config(o->args[0], &config, NULL) == OK)
            return OK;
    }
    return find_model(o, FIND_FALLBACK, v->path, e);
}

/* The draft is a model like any other; with --load-format dummy it may be a shape's name. */
static enum err find_draft(struct serve *v, struct serving_options *so, struct error *e)
{
    const char *name = serve_args_draft(v->o);
    if (name == NULL)
        return OK;
    so->draft_path = v->draft_path;
    struct model_config config;
    if (v->o->load_format == LOAD_DUMMY && dummy_config(name, &config, NULL) == OK) {
        snprintf(v->draft_path, sizeof v->draft_path, "%s", name);
        return OK;
    }
    struct options o = *v->o;
    o.args[0] = name;
    o.n_args = 1;
    return find_model(&o, FIND_FETCH, v->draft_path, e);
}

static enum err open_model(struct serve *v, struct error *e)
{
    const struct options *o = v->o;
    struct serving_options so;
    TRY(find_it(v, e));
    TRY(serve_args(o, v->path, load_cache_dir(o, "vocab", v->copies), &so, v->said, e));
    if (v->said[0] != '\0')
        note(o, "%s", v->said);
    TRY(find_draft(v, &so, e));
    TRY(catch_signals(e)); /* fetching has its own */
    so.choices_dir = load_cache_dir(o, "choices", v->choices);
    so.clock = &v->clock;
    so.log = &v->log.log;
    so.progress = on_progress;
    so.progress_ctx = v;
    so.sched.tenants_max = TENANTS_MAX;
    if (o->fake_step_us != OPTION_UNSET) {
        v->fake = (struct fake_runner_options){.base_ns = o->fake_step_us * NS_PER_US, .clock = &v->clock};
        if (o->fake_step_us == 0)
            v->fake.clock = NULL;
        so.fake = &v->fake;
    }
    v->serving = mem_zalloc(sizeof *v->serving);
    if (v->serving == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to serve a model");
    server_progress(v->server, "loading weights", 0);
    return serving_open(v->serving, &so, e);
}

/* A model of the cache goes by its name there: the folder below models/. Otherwise by its file's. */
static void name_it(struct serve *v)
{
    const struct str path = str_of(v->path);
    snprintf(v->name, sizeof v->name, "%s", v->serving->name);
    size_t n = v->copies[0] != '\0' ? strlen(v->copies) - strlen("vocab") : 0; /* the cache, with its slash */
    const struct str models = STR("models/");
    if (n == 0 || path.n < n + models.n || memcmp(path.p, v->copies, n) != 0 ||
        memcmp(path.p + n, models.p, models.n) != 0)
        return;
    const char *folder = v->path + n + models.n, *end = strchr(folder, '/');
    const struct str name = {folder, end != NULL ? (size_t)(end - folder) : strlen(folder)};
    if (name.n > 0 && name.n < sizeof v->name)
        str_show(name, v->name, sizeof v->name);
}

static enum err attach(struct serve *v, struct error *e)
{
    const struct options *o = v->o;
    name_it(v);
    const char *const own[] = {v->name, v->serving->name};
    const struct server_model m = {.serving = v->serving,
        .names = o->served_names.n > 0 ? o->served_names.v : own,
        .n_names = o->served_names.n > 0         ? o->served_names.n
                   : strcmp(own[0], own[1]) == 0 ? 1
                                                 : 2};
    return server_attach(v->server, &m, e);
}

/* ---- running ---- */

static void say_ready(const struct serve *v, uint64_t start_ns)
{
    const struct serving *sv = v->serving;
    char choices[LOAD_CHOICES_TEXT], rows[DESCRIBE_BYTES];
    if (sv->decoder != NULL)
        note(v->o, "%s", decoder_describe(sv->decoder, rows));
    note(v->o, "quern: serving %s at %s (%s, %s%s, context %u, %u KV blocks of %u tokens in %s, ready in %.2f s)",
        v->o->served_names.n > 0 ? v->o->served_names.v[0] : v->name, server_url(v->server),
        v->o->fake_step_us != OPTION_UNSET ? "made-up tokens" : sv->ops->name, dtype_name(sv->fit.work_dtype),
        load_choices_text(sv->decoder, choices), sv->fit.context, sv->n_blocks, sv->block_tokens,
        dtype_name(sv->fit.kv_dtype), (double)(clock_now(&v->clock) - start_ns) / 1e9);
}

static void reload(struct serve *v)
{
    struct error e = {0};
    int level = 0;
    server_notify("RELOADING=1");
    if (options_log_level_again(v->o, &level, &e) != OK || server_reload(v->server, &e) != OK)
        LOG(&v->log.log, LOG_ERROR, "http", "reload failed, the old keys stay", log_cstr("why", e.text));
    else {
        log_set_level(&v->log.log, (enum log_level)level);
        LOG(&v->log.log, LOG_INFO, "http", "keys, certificate and log level read again");
    }
    server_notify("READY=1");
}

/* Answers finish, or their time is over, or a second signal comes. */
static void drain(struct serve *v)
{
    const uint64_t end_ns = clock_now(&v->clock) + v->o->shutdown_s * NS_PER_S;
    server_notify("STOPPING=1");
    server_drain(v->server);
    LOG(&v->log.log, LOG_INFO, "http", "draining", log_u64("answers", server_busy(v->server)));
    while (server_busy(v->server) > 0 && atomic_load(&n_stops) < 2 && clock_now(&v->clock) < end_ns)
        wait_for_signal(20);
    engine_abort(v->serving->engine);
    for (int ms = 0; server_busy(v->server) > 0 && ms < ABORT_WAIT_MS; ms += 20)
        wait_for_signal(20);
}

static enum err serve(struct serve *v, struct error *e)
{
    const uint64_t start_ns = clock_now(&v->clock);
    TRY(open_model(v, e));
    TRY(attach(v, e));
    atomic_store(&is_loaded, true);
    say_ready(v, start_ns);
    server_notify("READY=1");
    int seen_hups = 0;
    while (atomic_load(&n_stops) == 0 && engine_state(v->serving->engine) != ENGINE_FAILED) {
        wait_for_signal(FAILED_LOOK_MS);
        if (atomic_load(&n_hups) != seen_hups) {
            seen_hups = atomic_load(&n_hups);
            reload(v);
        }
    }
    drain(v);
    if (engine_state(v->serving->engine) != ENGINE_FAILED)
        return OK;
    /* Everyone has been answered. A device that has failed stays so as long as the process has it: whoever supervises
     * us starts another. */
    struct error why = {0};
    engine_error(v->serving->engine, &why);
    return FAIL(e, ERR_INTERNAL, "the engine has failed: %s", why.text);
}

enum err verb_serve(const struct options *o, struct out *out, struct error *e)
{
    (void)out;
    struct serve *v = mem_aligned(CACHE_LINE, sizeof *v);
    if (v == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to serve");
    memset(v, 0, sizeof *v);
    v->o = o;
    enum err err = open_server(v, e);
    if (err == OK)
        err = serve(v, e);
    if (v->serving != NULL && v->serving->engine != NULL)
        engine_abort(v->serving->engine);
    server_close(v->server);
    if (v->serving != NULL)
        serving_close(v->serving);
    mem_free(v->serving);
    if (log_close(&v->log))
        mem_free(v);
    return err;
}
