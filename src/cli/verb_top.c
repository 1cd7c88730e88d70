/* quern top: a running server's numbers in the terminal, once a second.
 *
 * On a terminal it takes the other screen and gives the first one back untouched, whatever ends it: q, Ctrl-C, a
 * signal. A server that goes away while it is watched is waited for, with a line that says so; one that is not there at
 * the start is an error. Elsewhere it prints one line (or with --json one object) per second, until the reader leaves.
 * --once prints the figures of one second and ends. */
#include "cli/cli.h"

#include "base/clock.h"
#include "cli/note.h"
#include "cli/top.h"
#include "hub/hub.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define PERIOD_NS    NS_PER_S
#define HEADING_EACH 20 /* lines between two headings */

static volatile sig_atomic_t stopped;
static volatile sig_atomic_t resized;

static void on_stop(int number)
{
    (void)number;
    stopped = 1;
}

static void on_resize(int number)
{
    (void)number;
    resized = 1;
}

struct top {
    const struct options *o;
    struct out *out;
    struct fetch *fetch;
    struct buf body, screen;
    struct clock clock;
    struct top_history history;
    struct error trouble; /* why the last try brought nothing */
    bool draws, has_modes;
    struct termios found;
};

/* --- asking --- */

static enum err ask(struct top *t, struct error *e)
{
    struct top_sample fresh;
    TRY(fetch_get(t->fetch, "/stats", &t->body, e));
    const enum err err = top_sample_read(&fresh, buf_str(&t->body), clock_now(&t->clock), e);
    if (err == ERR_NOMEM || err == ERR_AGAIN)
        return err;
    if (err != OK)
        return error_prefix(e, "%s sends numbers that cannot be read", fetch_url(t->fetch));
    top_history_add(&t->history, &fresh);
    return OK;
}

/* Wait until then; true when the user wants to leave. A change of the window's size ends the wait. */
static bool wait_until(struct top *t, uint64_t until_ns)
{
    struct pollfd in = {.fd = t->draws ? STDIN_FILENO : -1, .events = POLLIN};
    while (!stopped && !resized) {
        const uint64_t now_ns = clock_now(&t->clock);
        if (now_ns >= until_ns)
            return false;
        const int n = poll(&in, 1, (int)((until_ns - now_ns) / NS_PER_MS) + 1);
        if (n > 0 && (in.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
            return true; /* the terminal is gone */
        char c = 0;
        if (n > 0 && read(STDIN_FILENO, &c, 1) == 1 && (c == 'q' || c == 'Q' || c == 3 || c == 4))
            return true;
    }
    return stopped != 0;
}

/* The first sample. A server that is still loading its model is waited for; any other failure is an answer. */
static enum err ask_first(struct top *t, struct error *e)
{
    for (bool told = false;; told = true) {
        struct error why = {0};
        const enum err err = ask(t, &why);
        if (err != ERR_AGAIN) {
            if (err != OK)
                FAIL(e, err, "%s", why.text);
            return err;
        }
        if (!told)
            note(t->o, "%s: %s", fetch_url(t->fetch), why.text);
        resized = 0;
        if (wait_until(t, clock_now(&t->clock) + PERIOD_NS))
            return FAIL(e, ERR_CANCELLED, "stopped while the server was starting");
    }
}

/* --- the terminal --- */

static void take_terminal(struct top *t)
{
    if (tcgetattr(STDIN_FILENO, &t->found) == 0) {
        struct termios raw = t->found;
        raw.c_lflag &= (tcflag_t) ~(ECHO | ICANON);
        raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* stopped by Ctrl-Z it would leave the other screen behind */
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        t->has_modes = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    }
    out_text(t->out, "\x1b[?1049h\x1b[?25l");
}

static void give_terminal(struct top *t)
{
    out_text(t->out, "\x1b[?25h\x1b[?1049l");
    out_flush(t->out);
    if (t->has_modes)
        tcsetattr(STDIN_FILENO, TCSANOW, &t->found);
}

static void redraw(struct top *t)
{
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    const struct top_screen screen = {.columns = size.ws_col > 0 ? size.ws_col : 80,
        .rows = size.ws_row > 1 ? (uint32_t)size.ws_row - 1 : 23, /* the last line stays free: no newline scrolls */
        .colour = note_can_colour(STDOUT_FILENO),
        .url = fetch_url(t->fetch),
        .trouble = t->trouble.code != OK ? t->trouble.text : NULL};
    buf_clear(&t->screen);
    top_draw(&t->screen, &t->history, &screen);
    out_text(t->out, "\x1b[H");
    const struct str all = buf_str(&t->screen);
    for (size_t at = 0; at < all.n;) { /* each line clears what was behind it: no flicker */
        const char *end = memchr(all.p + at, '\n', all.n - at);
        const size_t n = end != NULL ? (size_t)(end - all.p) - at : all.n - at;
        out_add(t->out, (struct str){all.p + at, n});
        out_text(t->out, "\x1b[K\n");
        at += n + 1;
    }
    out_text(t->out, "\x1b[J\x1b[2m q quits\x1b[0m");
    out_flush(t->out);
}

static enum err watch(struct top *t, struct error *e)
{
    TRY(ask_first(t, e)); /* before the screen is taken */
    take_terminal(t);
    uint64_t next_ns = clock_now(&t->clock) + PERIOD_NS;
    for (;;) {
        redraw(t);
        if (wait_until(t, next_ns))
            break;
        if (resized) {
            resized = 0;
            continue;
        }
        t->trouble = (struct error){0};
        if (ask(t, &t->trouble) != OK)
            assert(t->trouble.code != OK);
        next_ns = MAX(next_ns + PERIOD_NS, clock_now(&t->clock));
    }
    give_terminal(t);
    return OK;
}

/* --- lines --- */

static void print_once(struct top *t)
{
    struct top_figures f;
    const struct top_screen screen = {.columns = 120, .url = fetch_url(t->fetch)};
    top_figures(&t->history, &f);
    buf_clear(&t->screen);
    if (t->o->json)
        top_draw_json(&t->screen, &f, fetch_url(t->fetch));
    else
        top_draw(&t->screen, &t->history, &screen);
    out_add(t->out, buf_str(&t->screen));
}

static void print_line(struct top *t, uint64_t line)
{
    struct top_figures f;
    top_figures(&t->history, &f);
    buf_clear(&t->screen);
    if (t->o->json)
        top_draw_json(&t->screen, &f, fetch_url(t->fetch));
    else {
        if (line % HEADING_EACH == 0)
            top_draw_heading(&t->screen);
        top_draw_line(&t->screen, &f);
    }
    out_add(t->out, buf_str(&t->screen));
    out_flush(t->out);
}

/* A rate needs two samples, so the first line comes after the first second. */
static enum err print(struct top *t, struct error *e)
{
    TRY(ask_first(t, e));
    uint64_t next_ns = clock_now(&t->clock) + PERIOD_NS;
    for (uint64_t line = 0; !t->out->reader_left && !wait_until(t, next_ns); line++) {
        next_ns = MAX(next_ns + PERIOD_NS, clock_now(&t->clock));
        resized = 0;
        TRY(ask(t, e));
        if (t->o->once) {
            print_once(t);
            return OK;
        }
        print_line(t, line);
    }
    return OK;
}

/* --- the verb --- */

enum err verb_top(const struct options *o, struct out *out, struct error *e)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    struct sigaction before[COUNT_OF(numbers)];
    struct top t = {.o = o, .out = out};
    t.draws = !o->once && !o->json && note_can_draw(STDIN_FILENO) && note_can_draw(STDOUT_FILENO);
    clock_init(&t.clock);
    buf_init(&t.body, TOP_BODY_BYTES_MAX);
    buf_init(&t.screen, TOP_BODY_BYTES_MAX);
    enum err err = top_history_init(&t.history, e);
    if (err == OK)
        err = fetch_open(&t.fetch, o->n_args > 0 ? o->args[0] : "http://127.0.0.1:8000", o->api_key, e);
    if (err == OK) {
        for (size_t i = 0; i < COUNT_OF(numbers); i++) {
            const struct sigaction a = {.sa_handler = numbers[i] == SIGWINCH ? on_resize : on_stop};
            sigaction(numbers[i], &a, &before[i]);
        }
        err = t.draws ? watch(&t, e) : print(&t, e);
        for (size_t i = 0; i < COUNT_OF(numbers); i++)
            sigaction(numbers[i], &before[i], NULL);
    }
    fetch_close(t.fetch);
    top_history_fini(&t.history);
    buf_fini(&t.body);
    buf_fini(&t.screen);
    return err;
}
