/* What a verb tells its user besides the result: notes on standard error, as text or as log lines, and whether the
 * terminal there may be drawn on.
 *
 * Threads: the main thread. */
#ifndef CLI_NOTE_H
#define CLI_NOTE_H

#include "cli/options.h"

/* One line on standard error at level info, without the newline. With --log-format json it is the event of a log line.
 * Fails silently: nobody is left to tell. */
void note(const struct options *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The same at level warn: something is not as the user asked for. Starts with "quern: ". */
void note_warning(const struct options *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A progress line that overwrites itself, on a terminal at level info and in text form; otherwise nothing. note_clear
 * takes it away. */
struct note_progress {
    const struct options *o;
    const char *what; /* "loading" */
    uint64_t start_ns, last_ns;
    bool shown;
};
void note_progress_start(struct note_progress *p, const struct options *o, const char *what);
void note_progress_step(void *p, uint64_t done, uint64_t total); /* fits decoder_options.progress */
void note_progress_end(struct note_progress *p);

/* May escape sequences be written to this descriptor: a terminal, not a dumb one. */
bool note_can_draw(int fd);
/* The same for colours: NO_COLOR turns them off. */
bool note_can_colour(int fd);

#endif
