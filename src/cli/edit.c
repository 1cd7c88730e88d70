/* The terminal and the keys; see edit.h. */
#include "cli/edit.h"

#include "base/limits.h"
#include "base/mem.h"
#include "cli/edit_int.h"
#include "cli/note.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ESCAPE_MS 50 /* what follows a lone ESC within this time belongs to it */

enum mode { MODE_FOUND, MODE_TYPING, MODE_ANSWERING, MODE_COUNT };

struct edit {
    int in, out;
    bool draws; /* otherwise lines are read plainly */
    edit_complete_fn *complete;
    unsigned char input[4096];
    size_t input_at, input_n;
    struct edit_text text;
    struct buf screen;
    uint32_t cursor_row;
    const char *prompt;
    char *history[EDIT_HISTORY_MAX]; /* oldest first */
    size_t n_history, recalled;      /* recalled: which one is shown; n_history = the new line */
    char *draft;                     /* the new line while an old one is shown */
    struct sigaction before[4];
};

/* What the signal handlers need: they may only set flags and call tcsetattr. */
static struct {
    int fd, out;
    struct termios modes[MODE_COUNT];
    volatile sig_atomic_t mode, resized, alive;
} terminal;

static void set_mode(enum mode mode)
{
    terminal.mode = (sig_atomic_t)mode;
    if (terminal.alive)
        tcsetattr(terminal.fd, TCSADRAIN, &terminal.modes[mode]);
}

/* ---- signals ---- */

static void on_resize(int number)
{
    (void)number;
    terminal.resized = 1;
}

static void on_continue(int number)
{
    (void)number;
    const int saved = errno;
    if (terminal.alive)
        tcsetattr(terminal.fd, TCSADRAIN, &terminal.modes[terminal.mode]);
    terminal.resized = 1;
    errno = saved;
}

static void on_death(int number)
{
    if (terminal.alive) {
        tcsetattr(terminal.fd, TCSADRAIN, &terminal.modes[MODE_FOUND]);
        if (write(terminal.out, "\x1b[?2004l\r\n", 10) < 0)
            terminal.alive = 0;
    }
    signal(number, SIG_DFL);
    raise(number);
}

static const struct {
    int number;
    void (*handler)(int);
} handlers[] = {{SIGWINCH, on_resize}, {SIGCONT, on_continue}, {SIGTERM, on_death}, {SIGHUP, on_death}};

static void take_terminal(struct edit *t)
{
    terminal.fd = t->in;
    terminal.out = t->out;
    if (tcgetattr(t->in, &terminal.modes[MODE_FOUND]) != 0) {
        t->draws = false;
        return;
    }
    struct termios typing = terminal.modes[MODE_FOUND];
    typing.c_iflag &= (tcflag_t) ~(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
    typing.c_cflag |= CS8;
    typing.c_lflag &= (tcflag_t) ~(ECHO | ICANON | IEXTEN | ISIG);
    typing.c_cc[VMIN] = 1;
    typing.c_cc[VTIME] = 0;
    struct termios answering = typing;
    answering.c_lflag |= ISIG;
    terminal.modes[MODE_TYPING] = typing;
    terminal.modes[MODE_ANSWERING] = answering;
    terminal.mode = MODE_FOUND;
    terminal.alive = 1;
    for (size_t i = 0; i < COUNT_OF(handlers); i++) {
        struct sigaction a = {.sa_handler = handlers[i].handler};
        sigaction(handlers[i].number, &a, &t->before[i]);
    }
}

enum err edit_new(struct edit **out, int in_fd, int out_fd, edit_complete_fn *complete, struct error *e)
{
    *out = NULL;
    struct edit *t = mem_zalloc(sizeof *t);
    if (t == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the line editor");
    t->in = in_fd;
    t->out = out_fd;
    t->complete = complete;
    edit_text_init(&t->text);
    buf_init(&t->screen, 4 * EDIT_LINE_BYTES_MAX);
    t->draws = note_can_draw(in_fd) && note_can_draw(out_fd);
    if (t->draws)
        take_terminal(t);
    if (t->draws)
        set_mode(MODE_ANSWERING);
    *out = t;
    return OK;
}

void edit_free(struct edit *t)
{
    if (t == NULL)
        return;
    if (t->draws) {
        set_mode(MODE_FOUND);
        terminal.alive = 0;
        for (size_t i = 0; i < COUNT_OF(handlers); i++)
            sigaction(handlers[i].number, &t->before[i], NULL);
    }
    for (size_t i = 0; i < t->n_history; i++)
        mem_free(t->history[i]);
    mem_free(t->draft);
    edit_text_fini(&t->text);
    buf_fini(&t->screen);
    mem_free(t);
}

/* ---- history ---- */

void edit_remember(struct edit *t, struct str line)
{
    if (line.n == 0 || (t->n_history > 0 && str_is(line, t->history[t->n_history - 1])))
        return;
    char *copy = mem_copy_str(line);
    if (copy == NULL)
        return;
    if (t->n_history == EDIT_HISTORY_MAX) {
        mem_free(t->history[0]);
        memmove(t->history, t->history + 1, (EDIT_HISTORY_MAX - 1) * sizeof *t->history);
        t->n_history--;
    }
    t->history[t->n_history++] = copy;
}

static void recall(struct edit *t, size_t which)
{
    if (which > t->n_history)
        return;
    if (t->recalled == t->n_history) { /* leaving the new line */
        mem_free(t->draft);
        t->draft = mem_copy_str(buf_str(&t->text.b));
    }
    t->recalled = which;
    const char *line = which < t->n_history ? t->history[which] : t->draft;
    edit_text_set(&t->text, str_of(line != NULL ? line : ""));
}

/* ---- the screen ---- */

static void write_screen(struct edit *t)
{
    const char *p = t->screen.p;
    for (size_t n = t->screen.n; n > 0;) {
        const ssize_t k = write(t->out, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            break; /* the terminal is gone; the next read says so */
        p += k;
        n -= (size_t)k;
    }
    buf_clear(&t->screen);
}

static void redraw(struct edit *t)
{
    struct winsize size = {0};
    if (ioctl(t->out, TIOCGWINSZ, &size) != 0 || size.ws_col < 4)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    if (terminal.resized) { /* the terminal has wrapped the rows anew: find the cursor as it lies now */
        terminal.resized = 0;
        edit_draw(&t->screen, t->prompt, &t->text, size.ws_col, MAX(size.ws_row, 2), &t->cursor_row);
        buf_clear(&t->screen);
    }
    edit_draw(&t->screen, t->prompt, &t->text, size.ws_col, MAX(size.ws_row, 2), &t->cursor_row);
    write_screen(t);
}

static void leave_line(struct edit *t)
{
    t->text.at = t->text.b.n;
    redraw(t);
    buf_add(&t->screen, STR("\x1b[?2004l\r\n"));
    write_screen(t);
    t->cursor_row = 0;
}

/* ---- input ---- */

enum { KEY_END = -1, KEY_AGAIN = -2, KEY_NONE = -3 }; /* end of input; a signal came; nothing within the time */

/* The next byte; timeout_ms < 0 waits for ever. */
static int next_byte(struct edit *t, int timeout_ms)
{
    if (t->input_at < t->input_n)
        return t->input[t->input_at++];
    struct pollfd p = {.fd = t->in, .events = POLLIN};
    if (timeout_ms >= 0 && poll(&p, 1, timeout_ms) <= 0)
        return KEY_NONE;
    const ssize_t n = read(t->in, t->input, sizeof t->input);
    if (n < 0 && errno == EINTR)
        return KEY_AGAIN;
    if (n <= 0)
        return KEY_END;
    t->input_at = 1;
    t->input_n = (size_t)n;
    return t->input[0];
}

static bool has_input(struct edit *t)
{
    struct pollfd p = {.fd = t->in, .events = POLLIN};
    return t->input_at < t->input_n || poll(&p, 1, 0) > 0;
}

/* Everything up to the end of a paste, cleaned and inserted at once. */
static bool take_paste(struct edit *t)
{
    static const struct str end = {"\x1b[201~", 6};
    struct buf b;
    buf_init(&b, EDIT_LINE_BYTES_MAX + end.n);
    bool open = true;
    for (int c; open && (c = next_byte(t, -1)) != KEY_END;) {
        if (c < 0)
            continue;
        buf_add_char(&b, (char)c);
        open = !str_has_suffix(buf_str(&b), end) && b.failure == OK;
    }
    const bool whole = str_has_suffix(buf_str(&b), end);
    const bool ok = b.failure == OK && edit_text_insert(&t->text, (struct str){b.p, b.n - (whole ? end.n : 0)});
    while (b.failure != OK && next_byte(t, ESCAPE_MS) >= 0) /* too long: the rest goes, it must not run as keys */
        continue;
    buf_fini(&b);
    return ok;
}

static void up(struct edit *t)
{
    if (!edit_text_up(&t->text) && t->recalled > 0)
        recall(t, t->recalled - 1);
}

static void down(struct edit *t)
{
    if (!edit_text_down(&t->text) && t->recalled < t->n_history)
        recall(t, t->recalled + 1);
}

/* ESC [ numbers final, or ESC O final. False when a paste was too long. */
static bool take_sequence(struct edit *t, int kind)
{
    struct edit_text *x = &t->text;
    const struct str s = buf_str(&x->b);
    unsigned numbers[2] = {0, 0}, i = 0;
    int c = next_byte(t, ESCAPE_MS);
    for (; kind == '[' && (c == ';' || (c >= '0' && c <= '9')); c = next_byte(t, ESCAPE_MS)) {
        if (c == ';')
            i = 1;
        else if (numbers[i] < 1000)
            numbers[i] = numbers[i] * 10 + (unsigned)(c - '0');
    }
    const bool words = numbers[1] == 5 || numbers[1] == 3; /* with Ctrl or Alt */
    if (c == '~') {
        static const char finals[] = {[1] = 'H', [3] = 'x', [4] = 'F', [7] = 'H', [8] = 'F'};
        if (numbers[0] == 200)
            return take_paste(t);
        c = numbers[0] < sizeof finals ? finals[numbers[0]] : 0;
    }
    switch (c) {
    case 'A': up(t); break;
    case 'B': down(t); break;
    case 'C': x->at = words ? edit_word_next(s, x->at) : edit_next(s, x->at); break;
    case 'D': x->at = words ? edit_word_prev(s, x->at) : edit_prev(s, x->at); break;
    case 'H': x->at = edit_line_start(s, x->at); break;
    case 'F': x->at = edit_line_end(s, x->at); break;
    case 'x': edit_text_delete(x, x->at, edit_next(s, x->at)); break;
    default: break;
    }
    return true;
}

static bool take_escape(struct edit *t)
{
    struct edit_text *x = &t->text;
    const struct str s = buf_str(&x->b);
    const int c = next_byte(t, ESCAPE_MS);
    switch (c) {
    case '[':
    case 'O': return take_sequence(t, c);
    case '\r':
    case '\n': return edit_text_insert(x, STR("\n"));
    case 'b': x->at = edit_word_prev(s, x->at); break;
    case 'f': x->at = edit_word_next(s, x->at); break;
    case 'd': edit_text_kill(x, x->at, edit_word_next(s, x->at)); break;
    case 0x7f: edit_text_kill(x, edit_word_prev(s, x->at), x->at); break;
    default: break;
    }
    return true;
}

/* A typed character: the rest of its UTF-8 bytes are waiting already. */
static bool take_character(struct edit *t, int c)
{
    char bytes[4] = {(char)c};
    size_t n = 1;
    const size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    while (n < want) {
        c = next_byte(t, ESCAPE_MS);
        if (c < 0x80 || c >= 0xc0) {
            if (c >= 0)
                t->input_at--; /* not part of it */
            break;
        }
        bytes[n++] = (char)c;
    }
    return edit_text_insert(&t->text, (struct str){bytes, n});
}

static void stop_job(struct edit *t)
{
    leave_line(t);
    set_mode(MODE_FOUND);
    raise(SIGTSTP);
    set_mode(MODE_TYPING);
    buf_add(&t->screen, STR("\x1b[?2004h"));
}

static void clear_screen(struct edit *t)
{
    buf_add(&t->screen, STR("\x1b[H\x1b[2J"));
    t->cursor_row = 0;
}

static bool complete_line(struct edit *t)
{
    const char *rest = t->complete != NULL && t->text.at == t->text.b.n ? t->complete(buf_str(&t->text.b)) : NULL;
    if (rest != NULL)
        return edit_text_insert(&t->text, str_of(rest));
    return t->text.b.n > 0 && t->text.b.p[0] == '/' ? true : edit_text_insert(&t->text, STR("\t"));
}

#define KEY_CTRL(letter) ((letter)&0x1f)

/* A key that edits. False: the line got too long. */
static bool take_key(struct edit *t, int c)
{
    struct edit_text *x = &t->text;
    const struct str s = buf_str(&x->b);
    switch (c) {
    case KEY_CTRL('a'): x->at = edit_line_start(s, x->at); break;
    case KEY_CTRL('e'): x->at = edit_line_end(s, x->at); break;
    case KEY_CTRL('b'): x->at = edit_prev(s, x->at); break;
    case KEY_CTRL('f'): x->at = edit_next(s, x->at); break;
    case KEY_CTRL('d'): edit_text_delete(x, x->at, edit_next(s, x->at)); break;
    case 0x7f:
    case KEY_CTRL('h'): edit_text_delete(x, edit_prev(s, x->at), x->at); break;
    case KEY_CTRL('k'): edit_text_kill(x, x->at, edit_line_end(s, x->at)); break;
    case KEY_CTRL('u'): edit_text_kill(x, edit_line_start(s, x->at), x->at); break;
    case KEY_CTRL('w'): edit_text_kill(x, edit_word_prev(s, x->at), x->at); break;
    case KEY_CTRL('y'): return edit_text_insert(x, buf_str(&x->killed));
    case KEY_CTRL('p'): up(t); break;
    case KEY_CTRL('n'): down(t); break;
    case KEY_CTRL('l'): clear_screen(t); break;
    case KEY_CTRL('z'): stop_job(t); break;
    case '\t': return complete_line(t);
    case 0x1b: return take_escape(t);
    default: return c < 0x20 || take_character(t, c);
    }
    return true;
}

/* Enter: a backslash before it, at the very end, asks for another line. */
static bool goes_on(struct edit *t)
{
    struct edit_text *x = &t->text;
    if (x->at != x->b.n || x->b.n == 0 || x->b.p[x->b.n - 1] != '\\')
        return false;
    edit_text_delete(x, x->b.n - 1, x->b.n);
    return edit_text_insert(x, STR("\n"));
}

static enum err read_drawn(struct edit *t, enum edit_event *event, struct error *e)
{
    set_mode(MODE_TYPING);
    buf_add(&t->screen, STR("\x1b[?2004h"));
    for (bool open = true; open;) {
        if (!has_input(t))
            redraw(t);
        const int c = next_byte(t, -1);
        if (c == KEY_AGAIN)
            continue;
        if (c == '\r' || c == '\n') {
            open = goes_on(t);
            *event = EDIT_LINE;
        } else if (c == KEY_CTRL('c')) {
            open = false;
            *event = EDIT_INTERRUPT;
        } else if (c == KEY_END || (c == KEY_CTRL('d') && t->text.b.n == 0)) {
            open = false;
            *event = EDIT_END;
        } else if (!take_key(t, c)) {
            leave_line(t);
            set_mode(MODE_ANSWERING);
            return FAIL(
                e, ERR_LIMIT, "the message is longer than %llu MiB", (unsigned long long)(EDIT_LINE_BYTES_MAX / MIB));
        }
    }
    leave_line(t);
    set_mode(MODE_ANSWERING);
    return OK;
}

static enum err read_plain(struct edit *t, enum edit_event *event, struct error *e)
{
    buf_add(&t->screen, str_of(t->prompt));
    write_screen(t);
    for (;;) {
        const int c = next_byte(t, -1);
        char one = (char)c;
        if (c == KEY_AGAIN || (c == KEY_END && t->text.b.n == 0)) {
            *event = c == KEY_AGAIN ? EDIT_INTERRUPT : EDIT_END;
            return OK;
        }
        *event = EDIT_LINE;
        if (c == '\n' && goes_on(t))
            continue;
        if (c == '\n' || c == KEY_END)
            return OK;
        if (c >= 0x80 ? !take_character(t, c) : !edit_text_insert(&t->text, (struct str){&one, 1}))
            return FAIL(
                e, ERR_LIMIT, "the message is longer than %llu MiB", (unsigned long long)(EDIT_LINE_BYTES_MAX / MIB));
    }
}

enum err edit_read(struct edit *t, const char *prompt, enum edit_event *event, struct str *line, struct error *e)
{
    edit_text_set(&t->text, STR(""));
    t->prompt = prompt;
    t->cursor_row = 0;
    t->recalled = t->n_history;
    TRY(t->draws ? read_drawn(t, event, e) : read_plain(t, event, e));
    *line = buf_str(&t->text.b);
    return OK;
}
