/* Tool calls and reasoning as models write them: which syntax a model uses, the way from generated text to calls, and
 * the way from a list of tools to the structure that a grammar is compiled from.
 *
 * Owns: the table of call syntaxes and of reasoning syntaxes (tool_table.c), a streaming parser (tool_parser.c,
 * tool_values.c, tool_python.c, tool_harmony.c) and a writer of structures (tool_write.c). No network, no grammar: a
 * structure is JSON text whose form structure.c of grammar/ defines.
 *
 * Three things with three lifetimes:
 *   struct tool_dialect   what one model speaks: a syntax of calls, one of reasoning, and which of their markers are
 *                         control tokens of its vocabulary; made once, immutable, shared by all threads
 *   struct tool_list      the tools of one request; borrows the request's JSON
 *   struct tool_parser    one stream of generated text
 *
 * Control tokens. The parser reads text in which a control token stands as the byte TOOL_MARK, its name and the byte
 * TOOL_MARK_END (detok's mark_special). Neither byte occurs in UTF-8, so a control token and a text that spells its
 * name are different things: a marker which the vocabulary has as a control token is found only as one, any other only
 * as text. Control tokens that mean nothing here are left out of what is given; with show_special they stand there by
 * name.
 *
 * What is promised of the parser, whatever it is fed:
 *   - the same bytes give the same events however they are cut, up to where neighbouring fragments are joined;
 *   - a text in which no call begins comes out as it went in (less the frame of its reasoning);
 *   - a call is announced once its head is whole and names a tool of the list; what merely looks like a call is
 * content;
 *   - of a call that was announced nothing is taken back; its arguments may be incomplete when the text was cut short;
 *   - whatever does not belong to the frame of a call is content, reasoning or arguments: no byte is lost;
 *   - every call that begins ends, and its events lie between: begin, fragments, end.
 *
 * Threads: a dialect may be shared; a list and a parser belong to one thread at a time. */
#ifndef TEXT_TOOL_SYNTAX_H
#define TEXT_TOOL_SYNTAX_H

#include "base/buf.h"
#include "base/json.h"
#include "base/vocab.h"
#include "text/detok.h"

#define TOOL_MARK     DETOK_MARK
#define TOOL_MARK_END DETOK_MARK_END

/* ---- the tables ---- */

/* Row i: a name for --tool-call-parser and what it looks like; false behind the last. The same for reasoning. */
bool tool_syntax_row(size_t i, const char **name, const char **shape);
bool reasoning_syntax_row(size_t i, const char **name, const char **shape);

/* ---- what a model speaks ---- */

struct tool_dialect;

struct tool_dialect_options {
    struct str template;            /* the source of the chat template; empty = none */
    const struct vocab_view *vocab; /* NULL: no control tokens */
    const char *calls;              /* a row's name, "auto" (or NULL) or "none"; "auto" without a find is hermes */
    const char *reasoning;          /* the same */
};

/* ERR_INVALID: no row of that name. */
enum err tool_dialect_new(const struct tool_dialect_options *o, struct tool_dialect **out, struct error *e) MUST_CHECK;
void tool_dialect_free(struct tool_dialect *d); /* NULL is fine */

/* Names of what was found or chosen; NULL = none. */
const char *tool_dialect_calls(const struct tool_dialect *d);
const char *tool_dialect_reasoning(const struct tool_dialect *d);

/* How call ids look that the syntax does not carry: 9 letters and digits (Mistral's templates insist), or "call_" and
 * 24. */
size_t tool_dialect_id_chars(const struct tool_dialect *d);

/* The template does not know the syntax: tools are told to the model in the system message. */
bool tool_dialect_is_guest(const struct tool_dialect *d);
void tool_dialect_instruct(const struct tool_dialect *d, const json_t *tools, struct buf *out);

/* What the end of a rendered prompt says about the answer. */
enum reasoning_start {
    REASONING_MAY,    /* the answer may begin with reasoning */
    REASONING_OPEN,   /* the prompt opened it: the answer begins inside */
    REASONING_CLOSED, /* the prompt opened and closed it, or there is none */
};
enum reasoning_start tool_dialect_start(const struct tool_dialect *d, struct str prompt);

/* The names of the two marks around reasoning; empty = it has no such marks. The first one begins it only behind a mark
 * and a text, where the dialect has such a head. */
struct str tool_dialect_think_begin(const struct tool_dialect *d);
struct str tool_dialect_think_end(const struct tool_dialect *d);
bool tool_dialect_think_head(const struct tool_dialect *d, struct str *mark, struct str *text);

/* ---- the tools of a request ---- */

struct tool {
    struct str name;
    const json_t *parameters; /* a schema, or NULL: any object */
    bool strict;              /* the schema must hold: what cannot be promised is refused */
};

struct tool_list {
    struct tool *tools; /* [n], the caller's */
    size_t n;
};

enum tool_choice { TOOLS_NONE, TOOLS_AUTO, TOOLS_REQUIRED };

/* ---- from tools to a structure ---- */

struct tool_structure_options {
    const struct tool_list *tools; /* those that may be called: one, when one is named */
    enum tool_choice choice;       /* AUTO: text, or calls; REQUIRED: at least one call */
    bool parallel;                 /* more than one call */
    enum reasoning_start start;    /* reasoning stays free; what follows it is constrained */
    struct str other;              /* AUTO: what a text must be, the JSON of a part; empty = anything */
};

/* Append the JSON of a structure. ERR_UNSUPPORTED names the tool and the keyword that its syntax cannot promise though
 * the tool is strict. The dialect has a call syntax. */
enum err tool_structure_write(
    const struct tool_dialect *d, const struct tool_structure_options *o, struct buf *out, struct error *e) MUST_CHECK;

/* Append a structure that lets reasoning run free and then holds the answer to `part`, the JSON of a part of a
 * structure: for schemas and the like. Where there is no reasoning that is the part itself. */
void tool_structure_after_reasoning(
    const struct tool_dialect *d, enum reasoning_start start, struct str part, struct buf *out);

/* ---- from text to calls ---- */

enum tool_event_kind { TOOL_CONTENT, TOOL_REASONING, TOOL_CALL_BEGIN, TOOL_CALL_ARGS, TOOL_CALL_END };

struct tool_event {
    enum tool_event_kind kind;
    uint32_t call;   /* for those of a call: its number, from 0 */
    struct str text; /* content, reasoning, the name, a fragment of the arguments' JSON; borrowed for the call */
    struct str id;   /* CALL_BEGIN: as the syntax carries it, or empty */
};

typedef void tool_event_fn(void *user, const struct tool_event *ev);

struct tool_parser_options {
    const struct tool_dialect *dialect;
    const struct tool_list *tools; /* NULL: calls are not looked for, they are content; borrowed */
    enum reasoning_start start;
    bool show_special;
    tool_event_fn *event;
    void *user;
};

struct tool_parser;
enum err tool_parser_new(const struct tool_parser_options *o, struct tool_parser **out, struct error *e) MUST_CHECK;
void tool_parser_free(struct tool_parser *p); /* NULL is fine */

/* Take more text, in whole characters and marked control tokens. ERR_NOMEM: the stream is lost. */
enum err tool_parser_feed(struct tool_parser *p, struct str text, struct error *e) MUST_CHECK;

/* No more text: what was held back is given, open calls end. */
enum err tool_parser_end(struct tool_parser *p, struct error *e) MUST_CHECK;

uint32_t tool_parser_calls(const struct tool_parser *p); /* that began so far */
bool tool_parser_is_reasoning(const struct tool_parser *p);

#endif
