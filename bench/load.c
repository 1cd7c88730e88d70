/* A load generator for bench/server: one thread, epoll, many clients, each with one connection that sends its next
 * request when the answer before it has ended. It is in C because it runs beside the server on the same two cores: what
 * it costs is taken from the server.
 *
 *     quern_load WORKLOAD --port N [--clients N] [--requests N] [--tokens N] [--seed N] [--ids FILE] [--vocab N]
 *                [--allow ID,ID...] [--pid N] [--timeout S]
 *
 *   mixed      prompts of 64 to 1024 tokens, answers of 16 to 256, both evenly spread over their logarithm
 *   shared     1,024 tokens that all have in common, 32 of their own, answers of 32
 *   streams    one stream for each client, all opened at once, 16 tokens in, --tokens out
 *   requests   one token, not streamed
 *
 * Prompts are token ids, so that every server gets the same tokens: pieces of --ids (numbers with blanks between, a
 * text that somebody tokenised), or made up. Prints one JSON object. Times are in ms.
 *
 * Delivery delay (streams): from the end of the step that made a token, by the clock of the machine that both processes
 * share (token_time_ns of each event), to the moment its bytes have been read here. Every event also names how many
 * tokens its stream has had: of tokens that come together the earlier ones count from the event before, which is longer
 * than they took. Tokens without text of their own also come with the next one: --allow names those that the server may
 * make. The generator looks every STREAMS_NAP_US only: being woken for each of thousands of sockets would cost the
 * server more than the generator itself does, and the nap counts as delay. For the same reason acknowledgements are
 * left to their timer: clients elsewhere would pay for theirs, here one for each event would come out of the server's
 * time.
 *
 * --pid: the resident memory of that process before the first connection and at its largest after it, and its processor
 * time. */
#include "load.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/ring.h"
#include "base/rng.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDS_MADE       65536
#define IDS_BYTES_MAX  (64 * 1024 * 1024)
#define CLIENTS_MAX    100000
#define REQUESTS_MAX   10000000
#define SAMPLES_MAX    ((size_t)1 << 27)
#define SHARED_TOKENS  1024
#define EVENTS         256
#define READ_BYTES     (64 * 1024)
#define TICK_MS        50
#define STREAMS_NAP_US 500
#define BEGIN_AT_ONCE  16

enum workload { MIXED, SHARED, STREAMS, REQUESTS, N_WORKLOADS };
static const char *const workload_names[] = {"mixed", "shared", "streams", "requests"};

struct samples { /* times in ns */
    uint64_t *v;
    size_t n, cap;
};

struct job {
    uint32_t common, at, n_prompt, n_out; /* common: tokens of the beginning of the ids that come first */
};

struct client {
    struct load *load;
    int fd;
    bool is_connected, is_reused, is_busy;
    uint32_t job;
    struct buf out;
    size_t sent;
    struct load_answer answer;
    uint64_t start_ns, last_ns; /* of the request; of its last token */
    uint64_t t_token;           /* when its newest token was made */
    uint32_t n_seen;            /* tokens that came */
};

struct load {
    struct clock clock;
    enum workload what;
    struct sockaddr_in address;
    uint64_t n_clients, n_requests, n_tokens, seed, vocab, pid, timeout_s;
    const char *ids_path, *allow;
    uint32_t *ids, n_ids;
    struct job *jobs;
    struct client *clients;
    int epoll;
    uint32_t next_job, n_ended, n_errors;
    uint64_t now_ns, start_ns, end_ns, out_tokens, prompt_tokens;
    uint64_t rss_before, rss_max;
    struct samples ttft, itl, delay, whole;
    double cpu_before_s, cpu_after_s; /* of pid */
    char why[200];
    bool is_out_of_memory;
};

static void add_sample(struct load *l, struct samples *s, uint64_t ns)
{
    if (s->n == s->cap) {
        const size_t cap = MAX(s->cap * 2, (size_t)4096);
        uint64_t *const v = cap <= SAMPLES_MAX ? mem_resize(s->v, cap * sizeof *v) : NULL;
        if (v == NULL) {
            l->is_out_of_memory = true;
            return;
        }
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = ns;
}

static uint64_t resident(uint64_t pid)
{
    char path[64], line[128];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%llu/status", (unsigned long long)pid);
    FILE *f = pid != 0 ? fopen(path, "r") : NULL;
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtoull(line + 6, NULL, 10);
    if (f != NULL)
        fclose(f);
    return kib * 1024;
}

/* User and system time of a process so far: the 14th and 15th word of its stat, behind a name that may hold anything.
 */
static double processor_s(uint64_t pid)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    FILE *f = fopen(path, "r");
    const size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL)
        fclose(f);
    text[n] = '\0';
    const char *at = strrchr(text, ')');
    if (at == NULL || sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
        return 0;
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* ---- what is asked ---- */

static uint64_t draw(const struct load *l, uint64_t index, uint32_t what)
{
    return rng_u64((struct rng_key){.seed = l->seed, .index = index, .choice = what, .purpose = RNG_DUMMY});
}

/* Between the two, evenly over the logarithm. */
static uint32_t draw_length(const struct load *l, uint64_t index, uint32_t what, double low, double high)
{
    const double u = (double)(draw(l, index, what) >> 11) * 0x1p-53;
    return (uint32_t)lround(exp(log(low) + u * (log(high) - log(low))));
}

static enum err make_ids(struct load *l, struct error *e)
{
    char *text = NULL;
    size_t n = IDS_MADE * 2, bytes = 0;
    if (l->ids_path != NULL) {
        TRY(file_read_all(l->ids_path, IDS_BYTES_MAX, &text, &bytes, e));
        n = bytes;
    }
    l->ids = mem_array(n / 2 + 1, sizeof *l->ids);
    if (l->ids == NULL) {
        mem_free(text);
        return FAIL(e, ERR_NOMEM, "no memory for %zu ids", n / 2);
    }
    if (text == NULL)
        for (; l->n_ids < IDS_MADE; l->n_ids++)
            l->ids[l->n_ids] = (uint32_t)(draw(l, l->n_ids, 9) % l->vocab);
    else
        for (char *p = text, *end;; p = end) {
            const unsigned long id = strtoul(p, &end, 10);
            if (end == p)
                break;
            l->ids[l->n_ids++] = (uint32_t)id;
        }
    mem_free(text);
    return l->n_ids >= 4 * SHARED_TOKENS ? OK : FAIL(e, ERR_INVALID, "%u ids; at least 4096 are needed", l->n_ids);
}

static enum err make_jobs(struct load *l, struct error *e)
{
    l->jobs = mem_array(l->n_requests, sizeof *l->jobs);
    if (l->jobs == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the requests");
    for (uint32_t i = 0; i < l->n_requests; i++) {
        struct job *j = &l->jobs[i];
        *j = (struct job){.n_prompt = 16, .n_out = (uint32_t)l->n_tokens};
        if (l->what == MIXED) {
            j->n_prompt = draw_length(l, i, 1, 64, 1024);
            j->n_out = draw_length(l, i, 2, 16, 256);
        } else if (l->what == SHARED)
            *j = (struct job){.common = SHARED_TOKENS, .n_prompt = 32, .n_out = 32};
        else if (l->what == REQUESTS)
            *j = (struct job){.n_prompt = 8, .n_out = 1};
        const uint32_t first = l->what == SHARED ? 2 * SHARED_TOKENS : 0;
        j->at = first + (uint32_t)(draw(l, i, 3) % (l->n_ids - first - j->n_prompt));
    }
    return OK;
}

static void write_request(struct client *c)
{
    const struct load *l = c->load;
    const struct job *j = &l->jobs[c->job];
    struct buf *b = &c->out;
    char head[256];
    buf_clear(b);
    buf_addf(b, "{\"prompt\":[");
    const uint32_t shift = (uint32_t)(l->seed % SHARED_TOKENS); /* another seed, another common prompt */
    for (uint32_t i = 0; i < j->common + j->n_prompt; i++)
        buf_addf(b, "%s%u", i > 0 ? "," : "", l->ids[i < j->common ? shift + i : j->at + i - j->common]);
    buf_addf(b, "],\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":true", j->n_out);
    if (l->what != REQUESTS)
        buf_addf(b, ",\"stream\":true,\"stream_options\":{\"include_usage\":true%s}",
            l->what == STREAMS ? ",\"continuous_usage_stats\":true,\"include_token_times\":true" : "");
    if (l->allow != NULL)
        buf_addf(b, ",\"allowed_token_ids\":[%s]", l->allow);
    buf_addf(b, "}");
    const int n = snprintf(head, sizeof head,
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        "%zu\r\n\r\n",
        b->n);
    const size_t n_body = b->n;
    if (buf_room(b, (size_t)n) == NULL)
        return;
    memmove(b->p + n, b->p, n_body);
    memcpy(b->p, head, (size_t)n);
    b->n += (size_t)n;
}

/* ---- the life of a client ---- */

/* The tokens that this event brought. */
static void take_tokens(struct client *c)
{
    struct load *l = c->load;
    const struct load_answer *a = &c->answer;
    if (a->t_token == 0)
        return;
    for (; c->n_seen < a->n_out; c->n_seen++) {
        const uint64_t made = c->n_seen + 1 == a->n_out || c->t_token == 0 ? a->t_token : c->t_token;
        add_sample(l, &l->delay, l->now_ns - MIN(made, l->now_ns));
    }
    c->t_token = a->t_token;
}

static void on_token(void *ctx)
{
    struct client *c = ctx;
    struct load *l = c->load;
    if (c->last_ns == 0)
        add_sample(l, &l->ttft, l->now_ns - c->start_ns);
    else
        add_sample(l, &l->itl, l->now_ns - c->last_ns);
    c->last_ns = l->now_ns;
    if (l->what == STREAMS)
        take_tokens(c);
}

static void drop(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->is_connected = c->is_reused = false;
}

static enum err dial(struct client *c, struct error *e)
{
    const int one = 1;
    drop(c);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return FAIL(e, ERR_IO, "no socket: %s", strerror(errno));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (const struct sockaddr *)&c->load->address, sizeof c->load->address) != 0 &&
        errno != EINPROGRESS)
        return FAIL(e, ERR_IO, "cannot connect: %s", strerror(errno));
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    return epoll_ctl(c->load->epoll, EPOLL_CTL_ADD, c->fd, &ev) == 0 ? OK : FAIL(e, ERR_IO, "no place in epoll");
}

static void send_more(struct client *c)
{
    while (c->is_connected && c->is_busy && c->sent < c->out.n) {
        const ssize_t n = send(c->fd, c->out.p + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);
        if (n < 0)
            return; /* it would block, or the connection is gone: reading says which */
        c->sent += (size_t)n;
    }
}

static enum err next_request(struct client *c, struct error *e)
{
    struct load *l = c->load;
    if (l->next_job == l->n_requests)
        return OK;
    c->job = l->next_job++;
    c->is_busy = true;
    c->sent = 0;
    c->last_ns = 0;
    c->n_seen = 0;
    c->t_token = 0;
    write_request(c);
    TRY(buf_check(&c->out, "a request", e));
    load_answer_start(&c->answer);
    if (c->fd < 0)
        TRY(dial(c, e));
    c->start_ns = clock_now(&l->clock);
    send_more(c);
    return OK;
}

static enum err end_request(struct client *c, const char *why, struct error *e)
{
    struct load *l = c->load;
    const struct load_answer *a = &c->answer;
    const struct job *j = &l->jobs[c->job];
    char text[200] = "";
    if (why != NULL)
        snprintf(text, sizeof text, "%s", why);
    else if (a->has_error)
        snprintf(text, sizeof text, "%s", a->why);
    else if (!a->is_end || a->n_out != j->n_out)
        snprintf(text, sizeof text, "an answer of %u tokens instead of %u", a->n_out, j->n_out);
    if (text[0] != '\0' && l->n_errors++ == 0)
        snprintf(l->why, sizeof l->why, "%s", text);
    add_sample(l, &l->whole, l->now_ns - c->start_ns);
    l->out_tokens += a->n_out;
    l->prompt_tokens += j->common + j->n_prompt;
    l->n_ended++;
    l->end_ns = l->now_ns;
    c->is_busy = false;
    c->is_reused = true;
    if (why != NULL || a->closes)
        drop(c);
    return next_request(c, e);
}

/* The connection ended. One that had served before may have been closed as idle: the request goes to a new one. */
static enum err lost(struct client *c, struct error *e)
{
    if (!c->is_busy) {
        drop(c);
        return OK;
    }
    if (c->is_reused && !c->answer.has_bytes) {
        c->sent = 0;
        return dial(c, e);
    }
    return end_request(c, "the connection was closed before the end of the answer", e);
}

/* Edge triggered: a short read has taken all there is, unless the other side has closed; what comes later wakes us
 * again. */
static enum err read_more(struct client *c, bool is_closed, struct error *e)
{
    static char bytes[READ_BYTES];
    static const int later = 0;
    for (int fd = c->fd; c->fd == fd && fd >= 0;) {
        if (c->load->what == STREAMS)
            (void)setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &later, sizeof later);
        const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return OK;
        c->load->now_ns = clock_now(&c->load->clock);
        if (n <= 0)
            return lost(c, e);
        if (!c->is_busy)
            continue;
        struct error why = {0};
        if (load_answer_feed(&c->answer, bytes, (size_t)n, &why) != OK)
            return end_request(c, why.text, e);
        if (c->answer.state == LOAD_DONE)
            TRY(end_request(c, NULL, e));
        if ((size_t)n < sizeof bytes && !is_closed)
            return OK;
    }
    return OK;
}

/* What each of thousands of clients needs for one event is long out of the caches: it is asked for before it is waited
 * for. */
static void prefetch(const struct client *c)
{
    for (size_t at = 0; at < sizeof *c; at += CACHE_LINE)
        __builtin_prefetch((const char *)c + at);
}

static enum err run(struct load *l, struct error *e)
{
    struct epoll_event events[EVENTS];
    l->rss_before = resident(l->pid);
    l->cpu_before_s = l->pid != 0 ? processor_s(l->pid) : 0;
    l->start_ns = l->now_ns = clock_now(&l->clock);
    uint64_t looked_ns = 0;
    int n = 0;
    uint32_t n_begun = 0;
    while (l->n_ended < l->n_requests && l->now_ns - l->start_ns < l->timeout_s * NS_PER_S) {
        /* a few at a time: what comes for the first must not lie unread until the last has been sent */
        for (uint32_t i = 0; i < BEGIN_AT_ONCE && n_begun < l->n_clients; i++)
            TRY(next_request(&l->clients[n_begun++], e));
        if (l->what == STREAMS && n < EVENTS && n_begun == l->n_clients)
            clock_sleep(&l->clock, STREAMS_NAP_US * NS_PER_US);
        n = epoll_wait(l->epoll, events, EVENTS, n_begun < l->n_clients ? 0 : TICK_MS);
        l->now_ns = clock_now(&l->clock);
        if (l->pid != 0 && l->now_ns - looked_ns > TICK_MS * NS_PER_MS) {
            l->rss_max = MAX(l->rss_max, resident(l->pid));
            looked_ns = l->now_ns;
        }
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (i + 2 < n)
                prefetch(events[i + 2].data.ptr);
            if (c->fd < 0)
                continue;
            if ((events[i].events & EPOLLOUT) != 0) {
                c->is_connected = true;
                send_more(c);
            }
            const uint32_t closed = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
            if ((events[i].events & (EPOLLIN | closed)) != 0)
                TRY(read_more(c, (events[i].events & closed) != 0, e));
        }
    }
    l->cpu_after_s = l->pid != 0 ? processor_s(l->pid) : 0;
    if (l->n_ended < l->n_requests && l->n_errors == 0)
        snprintf(l->why, sizeof l->why, "the time was over");
    l->n_errors += (uint32_t)l->n_requests - l->n_ended;
    return l->is_out_of_memory ? FAIL(e, ERR_NOMEM, "no memory for the times") : OK;
}

/* ---- the report ---- */

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double at_share(const struct samples *s, double share)
{
    const size_t i = (size_t)(share * (double)s->n);
    return (double)s->v[MIN(i, s->n - 1)] / 1e6;
}

static void print_samples(const char *name, struct samples *s)
{
    if (s->n == 0)
        return;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    printf(", \"%s_ms\": {\"n\": %zu, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"max\": %.3f}", name, s->n,
        at_share(s, 0.5), at_share(s, 0.9), at_share(s, 0.99), at_share(s, 1));
}

static void report(struct load *l)
{
    const double wall = (double)(MAX(l->end_ns, l->start_ns + 1) - l->start_ns) / 1e9;
    printf("{\"workload\": \"%s\", \"clients\": %llu, \"requests\": %u, \"errors\": %u, \"wall_s\": %.3f, "
           "\"prompt_tokens\": %llu, \"output_tokens\": %llu, \"output_tok_s\": %.2f, \"requests_s\": %.1f",
        workload_names[l->what], (unsigned long long)l->n_clients, l->n_ended, l->n_errors, wall,
        (unsigned long long)l->prompt_tokens, (unsigned long long)l->out_tokens, (double)l->out_tokens / wall,
        l->n_ended / wall);
    print_samples("ttft", &l->ttft);
    print_samples("itl", &l->itl);
    print_samples("delay", &l->delay);
    print_samples("whole", &l->whole);
    if (l->pid != 0)
        printf(", \"rss_before\": %llu, \"rss_max\": %llu, \"server_cpu_s\": %.2f, \"load_cpu_s\": %.2f",
            (unsigned long long)l->rss_before, (unsigned long long)l->rss_max, l->cpu_after_s - l->cpu_before_s,
            processor_s((uint64_t)getpid()));
    if (l->why[0] != '\0') {
        struct buf b;
        buf_init(&b, 4096);
        buf_add_json_str(&b, str_of(l->why));
        printf(", \"first_error\": %s", b.p != NULL ? b.p : "\"\"");
        buf_fini(&b);
    }
    printf("}\n");
}

static enum err read_args(struct load *l, int argc, char **argv, struct error *e)
{
    uint64_t port = 0;
    const struct {
        const char *name;
        uint64_t *to, max;
    } numbers[] = {{"--port", &port, 65535}, {"--clients", &l->n_clients, CLIENTS_MAX},
        {"--requests", &l->n_requests, REQUESTS_MAX}, {"--tokens", &l->n_tokens, 100000},
        {"--seed", &l->seed, UINT32_MAX}, {"--vocab", &l->vocab, 1000000}, {"--pid", &l->pid, INT32_MAX},
        {"--timeout", &l->timeout_s, 100000}};
    l->what = N_WORKLOADS;
    for (int i = 0; argc > 1 && i < N_WORKLOADS; i++)
        if (strcmp(argv[1], workload_names[i]) == 0)
            l->what = (enum workload)i;
    if (l->what == N_WORKLOADS)
        return FAIL(e, ERR_INVALID, "the first argument is a workload: mixed, shared, streams or requests");
    const uint64_t clients[] = {16, 16, 2000, 64}, requests[] = {48, 48, 0, 50000};
    for (int i = 2; i < argc; i += 2) {
        size_t k = 0;
        for (; k < COUNT_OF(numbers) && strcmp(argv[i], numbers[k].name) != 0; k++)
            ;
        if (i + 1 == argc ||
            (k == COUNT_OF(numbers) && strcmp(argv[i], "--ids") != 0 && strcmp(argv[i], "--allow") != 0))
            return FAIL(e, ERR_INVALID, "argument %s is not known or has no value", argv[i]);
        if (k == COUNT_OF(numbers))
            *(strcmp(argv[i], "--ids") == 0 ? &l->ids_path : &l->allow) = argv[i + 1];
        else if ((*numbers[k].to = strtoull(argv[i + 1], NULL, 10)) > numbers[k].max)
            return FAIL(e, ERR_INVALID, "argument %s is over %llu", argv[i], (unsigned long long)numbers[k].max);
    }
    if (l->n_clients == 0)
        l->n_clients = clients[l->what];
    if (l->n_requests == 0)
        l->n_requests = l->what == STREAMS ? l->n_clients : requests[l->what];
    if (port == 0 || l->vocab == 0)
        return FAIL(e, ERR_INVALID, "--port and --vocab are at least 1");
    l->address = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return OK;
}

static enum err open_clients(struct load *l, struct error *e)
{
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->clients = mem_array(l->n_clients, sizeof *l->clients);
    if (l->epoll < 0 || l->clients == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %llu clients", (unsigned long long)l->n_clients);
    for (uint32_t i = 0; i < l->n_clients; i++) {
        struct client *c = &l->clients[i];
        *c = (struct client){.load = l, .fd = -1};
        buf_init(&c->out, 1024 * 1024);
        load_answer_init(&c->answer, on_token, c);
    }
    return OK;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct load l = {.seed = 1, .vocab = 256, .n_tokens = 100, .timeout_s = 600, .epoll = -1};
    clock_init(&l.clock);
    enum err err = read_args(&l, argc, argv, &e);
    if (err == OK)
        err = make_ids(&l, &e);
    if (err == OK)
        err = make_jobs(&l, &e);
    if (err == OK)
        err = open_clients(&l, &e);
    if (err == OK)
        err = run(&l, &e);
    if (err == OK)
        report(&l);
    else
        fprintf(stderr, "%s\n", e.text);
    for (uint32_t i = 0; l.clients != NULL && i < l.n_clients; i++) {
        drop(&l.clients[i]);
        buf_fini(&l.clients[i].out);
        load_answer_fini(&l.clients[i].answer);
    }
    struct samples *all[] = {&l.ttft, &l.itl, &l.delay, &l.whole};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        mem_free(all[i]->v);
    mem_free(l.clients);
    mem_free(l.jobs);
    mem_free(l.ids);
    return err == OK && l.n_errors == 0 ? 0 : 1;
}
