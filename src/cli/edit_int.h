/* Private to the line editor: the text with its cursor (edit_text.c) and how it lies on a screen (edit_screen.c). Both
 * are free of terminals, so that tests can hold them. */
#ifndef CLI_EDIT_INT_H
#define CLI_EDIT_INT_H

#include "base/buf.h"

/* The text is valid UTF-8 without control bytes but newline and tab; the cursor stands between characters. A character
 * is a code point with the marks of no width behind it. */
struct edit_text {
    struct buf b;
    size_t at;
    struct buf killed; /* by Ctrl-K, U, W and Alt-D; Ctrl-Y puts it back */
};

void edit_text_init(struct edit_text *t);
void edit_text_fini(struct edit_text *t);
void edit_text_set(struct edit_text *t, struct str s); /* cursor at the end */

/* Insert untrusted bytes at the cursor: CR and CR LF become newlines, other control bytes vanish, what is not UTF-8
 * becomes U+FFFD. False when the text would be too long or there is no memory: nothing is inserted. */
bool edit_text_insert(struct edit_text *t, struct str s);

size_t edit_prev(struct str s, size_t at);      /* start of the character before; 0 at the start */
size_t edit_next(struct str s, size_t at);      /* end of the character at; s.n at the end */
size_t edit_word_prev(struct str s, size_t at); /* start of the word before */
size_t edit_word_next(struct str s, size_t at); /* end of the next word */
size_t edit_line_start(struct str s, size_t at);
size_t edit_line_end(struct str s, size_t at);

void edit_text_delete(struct edit_text *t, size_t from, size_t to); /* the cursor goes to from */
void edit_text_kill(struct edit_text *t, size_t from, size_t to);   /* the same, kept for Ctrl-Y */
bool edit_text_up(struct edit_text *t);   /* to the line above, same column; false on the first line */
bool edit_text_down(struct edit_text *t); /* false on the last line */

/* Columns of the character that starts at s.p[at]: 0, 1, 2; a tab has EDIT_TAB. */
#define EDIT_TAB 4
uint32_t edit_width(struct str s, size_t at);
uint32_t edit_prompt_width(const char *prompt); /* without its escape sequences */

/* Draw prompt and text into out, over what the last drawing left (*cursor_row rows above the cursor belong to it), and
 * set *cursor_row for the next time. cols and rows: of the screen; a longer text shows the part around the cursor. */
void edit_draw(
    struct buf *out, const char *prompt, const struct edit_text *t, uint32_t cols, uint32_t rows, uint32_t *cursor_row);

#endif
