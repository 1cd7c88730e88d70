/* Drawing a text that may be longer than a row and than the screen; see edit_int.h.
 *
 * The text is cut into rows: at newlines, and where the next character does not fit. The first row starts behind the
 * prompt, the others are indented as far. Of more rows than the screen has, those around the cursor are drawn. Every
 * drawing starts at the first row of the last one and clears what is below, so nothing is remembered but how many rows
 * the cursor stands below it. */
#include "cli/edit_int.h"

#include <string.h>

uint32_t edit_prompt_width(const char *prompt)
{
    const struct str s = str_of(prompt);
    uint32_t width = 0;
    for (size_t i = 0; i < s.n;) {
        if (s.p[i] == '\x1b') { /* a colour: ESC [ numbers m */
            while (i < s.n && s.p[i] != 'm')
                i++;
            i++;
        } else {
            width += edit_width(s, i);
            i = edit_next(s, i);
        }
    }
    return width;
}

/* A walk over the rows. */
struct walk {
    struct str s;
    uint32_t cols, indent;
    size_t at;
    uint32_t row, col;
};

static void walk_start(struct walk *w, const struct edit_text *t, uint32_t cols, uint32_t indent)
{
    *w = (struct walk){.s = buf_str(&t->b), .cols = cols, .indent = indent, .col = indent};
}

/* Where the next character will stand: on this row, or at the start of the next. Returns its width. */
static uint32_t walk_place(struct walk *w)
{
    const uint32_t width = w->at < w->s.n ? edit_width(w->s, w->at) : 1;
    if (w->col + width > w->cols) {
        w->row++;
        w->col = w->indent;
    }
    return width;
}

static void walk_step(struct walk *w, uint32_t width)
{
    if (w->s.p[w->at] == '\n') {
        w->row++;
        w->col = w->indent;
        w->at++;
        return;
    }
    w->col += width;
    w->at = edit_next(w->s, w->at);
}

static void find_cursor(
    const struct edit_text *t, uint32_t cols, uint32_t indent, uint32_t *row, uint32_t *col, uint32_t *last_row)
{
    struct walk w;
    walk_start(&w, t, cols, indent);
    *row = *col = 0;
    for (;;) {
        const bool newline = w.at < w.s.n && w.s.p[w.at] == '\n';
        const uint32_t width = newline ? 0 : walk_place(&w); /* behind the last character: as if one more came */
        if (w.at == t->at) {
            *row = w.row;
            *col = MIN(w.col, cols - 1);
        }
        if (w.at >= w.s.n)
            break;
        walk_step(&w, width);
    }
    *last_row = w.row;
}

static void draw_char(struct buf *out, struct str s, size_t at)
{
    if (s.p[at] == '\t')
        buf_add(out, (struct str){"    ", EDIT_TAB});
    else
        buf_add(out, (struct str){s.p + at, edit_next(s, at) - at});
}

static void start_row(struct buf *out, const char *prompt, uint32_t row, uint32_t first, uint32_t indent)
{
    if (row > first)
        buf_add(out, STR("\r\n"));
    if (row == 0)
        buf_add(out, str_of(prompt));
    for (uint32_t i = 0; row > 0 && i < indent; i++)
        buf_add_char(out, ' ');
}

void edit_draw(
    struct buf *out, const char *prompt, const struct edit_text *t, uint32_t cols, uint32_t rows, uint32_t *cursor_row)
{
    uint32_t indent = edit_prompt_width(prompt), row, col, last;
    if (indent + 8 > cols)
        indent = MIN(indent, cols / 2);
    find_cursor(t, cols, indent, &row, &col, &last);
    const uint32_t shown = MIN(last + 1, MAX(rows, 2u) - 1);
    const uint32_t first = row >= shown ? row - shown + 1 : 0;
    const uint32_t end = first + shown;
    if (*cursor_row > 0)
        buf_addf(out, "\x1b[%uA", *cursor_row);
    buf_add(out, STR("\r\x1b[J"));
    struct walk w;
    walk_start(&w, t, cols, indent);
    uint32_t drawn = first; /* the row being drawn */
    start_row(out, prompt, first, first, indent);
    while (w.at < w.s.n && w.row < end) {
        const bool newline = w.s.p[w.at] == '\n';
        const uint32_t width = newline ? 0 : walk_place(&w);
        for (; drawn < w.row && drawn + 1 < end; drawn++)
            start_row(out, prompt, drawn + 1, first, indent);
        if (!newline && w.row >= first && w.row < end)
            draw_char(out, w.s, w.at);
        walk_step(&w, width);
    }
    for (; drawn < MIN(MAX(w.row, row), end - 1); drawn++)
        start_row(out, prompt, drawn + 1, first, indent);
    if (drawn > row)
        buf_addf(out, "\x1b[%uA", drawn - row);
    buf_add_char(out, '\r');
    if (col > 0)
        buf_addf(out, "\x1b[%uC", col);
    *cursor_row = row - first;
}
