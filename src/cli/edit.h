/* The line editor of `quern run`: one message typed, edited, recalled or pasted on a terminal.
 *
 * Owns the terminal's mode while it lives. Three modes: typing (raw; this room echoes), answering (between two
 * messages: no echo, signals work, so that Ctrl-C stops an answer and what is typed meanwhile waits), and as it was
 * found. Whatever ends the process, short of SIGKILL, puts it back. On a descriptor that cannot be drawn on, lines are
 * read plainly.
 *
 * Keys: arrows, Home, End, Delete, Ctrl-A E B F K U W Y D H L P N, Alt-B F D, Ctrl-arrows; Up and Down move between the
 * lines of a message and then through the history; Alt-Enter or a backslash at the end of a line goes on in a new line;
 * a paste keeps its newlines; Tab completes what the caller knows.
 *
 * Threads: the main thread; one editor per process, for the signal handlers' sake. */
#ifndef CLI_EDIT_H
#define CLI_EDIT_H

#include "base/base.h"

struct edit;

enum edit_event {
    EDIT_LINE,      /* a message; may be empty */
    EDIT_END,       /* Ctrl-D on an empty line, or the end of the input */
    EDIT_INTERRUPT, /* Ctrl-C; what was typed is gone */
};

/* Complete a line: give the rest to insert, or NULL. */
typedef const char *edit_complete_fn(struct str line);

/* complete may be NULL. The handlers of SIGWINCH, SIGCONT, SIGTERM and SIGHUP are taken; SIGINT is the caller's. */
enum err edit_new(struct edit **out, int in_fd, int out_fd, edit_complete_fn *complete, struct error *e) MUST_CHECK;
void edit_free(struct edit *t); /* puts the terminal and the handlers back; NULL is fine */

/* Read one message after the prompt, which may hold colour sequences. *line is valid until the next call. ERR_LIMIT
 * when it would be longer than EDIT_LINE_BYTES_MAX. */
enum err edit_read(
    struct edit *t, const char *prompt, enum edit_event *event, struct str *line, struct error *e) MUST_CHECK;

/* Remember a message for the arrow keys; the same as the last one is not kept twice. Fails quietly without memory. */
void edit_remember(struct edit *t, struct str line);

#endif
