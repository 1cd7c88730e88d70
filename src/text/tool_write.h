/* What the two files that write structures share. */
#ifndef TEXT_TOOL_WRITE_H
#define TEXT_TOOL_WRITE_H

#include "text/tool_int.h"

struct writer {
    const struct tool_dialect *d;
    struct buf *out;
    struct error *e;
    enum err err;
    bool comma;
};

/* Parts of a structure, with their commas. */
void writer_comma(struct writer *w);
void writer_open_parts(struct writer *w, const char *type); /* "sequence", "choice" */
void writer_close_parts(struct writer *w);
void writer_open_repeat(struct writer *w);
void writer_close_repeat(struct writer *w, const char *max);
void writer_named(struct writer *w, const char *type, const char *key, struct str value);
void writer_piece(struct writer *w, struct str s);
void writer_free(struct writer *w, struct str stop, struct str other); /* free text up to one of them; may be empty */
void writer_schema(struct writer *w, const json_t *schema);            /* NULL = any object */

/* tool_write_args.c */
void write_json_arguments(struct writer *w, const struct tool *t);
void write_tag_arguments(struct writer *w, const struct tool *t);
void write_python_arguments(struct writer *w, const struct tool *t);

#endif
