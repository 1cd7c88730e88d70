/* What the files of tool_syntax.h share: the rows of the tables, a dialect, and the parser's own state. */
#ifndef TEXT_TOOL_INT_H
#define TEXT_TOOL_INT_H

#include "base/limits.h"
#include "base/mem.h"
#include "text/tool_syntax.h"

/* ---- rows ---- */

enum tool_args {
    ARGS_JSON,   /* one JSON object, given on as it is */
    ARGS_TAGS,   /* a tagged key and value each: <parameter=k>v</parameter> */
    ARGS_PYTHON, /* keyword arguments of a Python call */
};

/* The fixed text of a call, in the order in which it stands:
 *   SECTION ( OPEN name MIDDLE arguments CLOSE ) BETWEEN ( OPEN ... CLOSE ) END
 * The writer uses the pieces as they are. The reader is lenient about white space: a blank of a piece stands for any
 * run of it, and there may be some before the punctuation of JSON. PIECE_INDEX in a piece is a number, PIECE_ID an id.
 */
enum tool_piece {
    PIECE_SECTION,
    PIECE_OPEN,
    PIECE_MIDDLE,
    PIECE_CLOSE,
    PIECE_BETWEEN,
    PIECE_END,
    PIECE_KEY_OPEN, /* of ARGS_TAGS: KEY_OPEN key KEY_CLOSE value VALUE_CLOSE */
    PIECE_KEY_CLOSE,
    PIECE_VALUE_CLOSE,
    PIECE_COUNT
};
#define PIECE_INDEX '\1'
#define PIECE_ID    '\2'

#define TOOL_MARKERS_MAX 8

struct tool_syntax {
    const char *name, *shape;
    enum tool_args args;
    const char *trigger; /* the marker with which calls begin in a text; NULL: only at the beginning of an answer */
    const char *lead;    /* a marker that may stand before a call without a trigger; NULL = none */
    const char *pieces[PIECE_COUNT];
    const char *markers[TOOL_MARKERS_MAX]; /* what may be a control token, of all the above */
    bool short_ids;                        /* ids have 9 characters */
    bool has_function_ids;                 /* an id is "functions.", the name, ":" and PIECE_INDEX */
    bool is_harmony;
    /* It is this one when the template has all of these, and not that; NULL ends the list. */
    const char *has[3];
    const char *has_not;
};

struct reasoning_syntax {
    const char *name, *shape;
    const char *begin, *end;
    bool is_harmony;
    const char *has[2]; /* all of them in the template */
};

extern const struct tool_syntax tool_syntaxes[];
extern const size_t n_tool_syntaxes;
extern const struct reasoning_syntax reasoning_syntaxes[];
extern const size_t n_reasoning_syntaxes;

/* Harmony's markers. */
enum harmony_marker { H_START, H_CHANNEL, H_CONSTRAIN, H_MESSAGE, H_END, H_CALL, H_RETURN, H_COUNT };
extern const char *const harmony_markers[H_COUNT];

/* Pieces with their control tokens marked; all of them never NULL. */
struct tool_dialect {
    const struct tool_syntax *calls;          /* NULL = none */
    const struct reasoning_syntax *reasoning; /* NULL = none */
    struct arena arena;
    struct str pieces[PIECE_COUNT];
    struct str trigger, lead; /* empty = none */
    struct str think_begin, think_end;
    struct str harmony[H_COUNT];
    bool is_harmony, is_guest;
    bool is_control[H_COUNT]; /* of harmony's */
};

/* ---- the parser ---- */

enum parser_state {
    AT_START,     /* nothing but white space so far: reasoning may begin */
    IN_REASONING, /* until its end marker */
    IN_TEXT,      /* content, until the trigger */
    IN_ARGS,      /* of a call that was announced */
    IN_TAIL,      /* behind its arguments */
    IN_NEXT,      /* between calls */
    IN_HARMONY,   /* its own machine */
};

enum harmony_state { HARMONY_BETWEEN, HARMONY_HEADER, HARMONY_BODY };

/* Where the scan of a JSON text stands. */
struct json_scan {
    uint32_t depth;
    bool in_string, is_escaped;
};

/* Conversion of arguments that are not JSON. */
enum value_mode { VALUE_NONE, VALUE_STRING, VALUE_HELD };
struct value_state {
    enum value_mode mode;
    const json_t *schema; /* of the value, or NULL */
    uint32_t n_keys;
};

#define PYTHON_DEPTH_MAX 32
enum python_state { PY_KEY, PY_VALUE, PY_STRING, PY_AFTER };
struct python_state_machine {
    enum python_state state;
    char stack[PYTHON_DEPTH_MAX]; /* '(' '[' '{' */
    uint32_t depth;
    char quote;
    bool wants_key;   /* in a dict: the next value is a key */
    bool is_first;    /* nothing stands in this container yet */
    uint16_t pending; /* a high surrogate that waits for its other half */
};

struct tool_parser {
    struct tool_parser_options o;
    const struct tool_dialect *d;
    enum parser_state state;
    struct buf held; /* read, but not yet understood */
    size_t at;       /* bytes of it that are done with */
    struct buf out;  /* a fragment in the making */
    uint32_t n_calls;
    const struct tool *tool; /* of the call that is open */
    bool in_call;
    bool is_fresh;   /* only white space since the beginning, the reasoning or a call */
    bool after_call; /* white space here belongs to the frame */
    bool skip_newlines;
    bool in_section;
    bool has_ended;
    bool has_reasoned; /* something of the reasoning was given */
    struct json_scan json;
    struct value_state value;
    struct python_state_machine python;
    enum harmony_state harmony;
    enum tool_event_kind body; /* of harmony's message */
};

enum step { STEP_MORE, STEP_ON }; /* wait for more text; something was done */
enum match { MATCH_NO, MATCH_MORE, MATCH_YES };

/* tool_parser.c */
struct str parser_rest(const struct tool_parser *p); /* held, less what is done with */
void parser_drop(struct tool_parser *p, size_t n);
void parser_give(struct tool_parser *p, enum tool_event_kind kind, struct str text); /* marks are left out */
void parser_args(struct tool_parser *p, struct str json);
void parser_begin(struct tool_parser *p, const struct tool *tool, struct str id);
void parser_end_call(struct tool_parser *p);
const struct tool *parser_find(const struct tool_parser *p, struct str name);
/* Bytes at the front of s that cannot be the beginning of one of the markers; *which = the marker that stands there
 * whole, or n when none does. A mark that is not whole yet is held too. */
size_t parser_scan(struct str s, const struct str *markers, size_t n, size_t *which);

/* tool_match.c: the head of a call and the pieces behind it, at the front of s */
struct tool_head {
    size_t n; /* bytes of it */
    const struct tool *tool;
    struct str id;
    char id_room[96];
};
enum match match_head(const struct tool_parser *p, struct str s, bool with_section, struct tool_head *out);
enum match match_piece(struct str piece, struct str s, size_t *at, struct str *number);
struct str without_newlines(struct str piece);            /* at its ends */
enum match match_prefix(struct str s, struct str prefix); /* exact */
/* The members of a JSON object that may follow the arguments, up to its brace. */
enum match match_members(struct str s, size_t *at);

/* tool_values.c, tool_python.c, tool_harmony.c: STEP_ON when something was consumed; the end of the arguments moves the
 * parser to IN_TAIL. */
enum step tags_step(struct tool_parser *p);
void tags_finish(struct tool_parser *p); /* the text ended inside */
enum step python_step(struct tool_parser *p);
enum step harmony_step(struct tool_parser *p, bool is_last);

/* A string's bytes escaped for JSON, without quotes. */
void tool_json_escape(struct buf *out, struct str s);

/* Which JSON types a schema allows, as far as can be told: bits of enum json_types; all when it does not say. */
enum json_types { T_STRING = 1, T_INTEGER = 2, T_NUMBER = 4, T_BOOLEAN = 8, T_NULL = 16, T_OBJECT = 32, T_ARRAY = 64 };
#define T_ALL 127u
/* A number as JSON spells it: T_NUMBER, and T_INTEGER when it is whole; 0 = it is none. */
unsigned tool_number_types(struct str s);
unsigned tool_schema_types(const json_t *schema, unsigned depth);
const json_t *tool_schema_property(const struct tool *t, struct str key);

#endif
