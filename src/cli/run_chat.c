/* The conversation on a terminal. A line is a message or, after a slash, a command. Ctrl-C while typing clears the
 * line, during an answer it stops the answer; Ctrl-D on an empty line leaves.
 *
 * What goes wrong with one message (too long, the template refuses it) is said and the conversation goes on without
 * that message; only a broken terminal or a failed write ends it. */
#include "cli/run_int.h"

#include "cli/edit.h"
#include "cli/note.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct chat {
    struct run *r;
    struct edit *edit;
    bool colour, leaving;
};

static struct run *interrupted_run; /* whose answer Ctrl-C stops */

static void on_interrupt(int number)
{
    (void)number;
    atomic_store(&interrupted_run->cancel, true);
}

/* A line for the person at the terminal, not part of the answer. */
static void say(struct chat *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct chat *c, const char *fmt, ...)
{
    char text[ERROR_TEXT_MAX + 128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    out_printf(c->r->out, "%s%s%s\n", c->colour ? "\x1b[2m" : "", text, c->colour ? "\x1b[0m" : "");
    out_flush(c->r->out);
}

static void complain(struct chat *c, const struct error *e)
{
    say(c, "quern: %s", e->text);
}

/* ---- an answer ---- */

static enum err answer(struct chat *c, struct str text, struct error *e)
{
    struct run *r = c->r;
    struct tok_ids ids;
    struct generate_result result;
    struct generate_params p = generate_defaults(&r->o, &r->load->config);
    p.stops = r->stops;
    p.cancel = &r->cancel;
    struct error local = {0};
    if (run_prompt(r, text, &ids, &local) != OK) {
        complain(c, &local);
        return OK;
    }
    atomic_store(&r->cancel, false);
    const enum err err = run_answer(r, &p, ids, &result, &local);
    out_text(r->out, "\n");
    out_flush(r->out);
    TRY(r->out->error.code == OK ? OK : FAIL(e, r->out->error.code, "%s", r->out->error.text));
    if (err != OK) {
        if (r->chat)
            conversation_pop(&r->talk);
        complain(c, &local);
        return OK;
    }
    run_say_speed(r, &result);
    out_text(r->out, "\n");
    out_flush(r->out);
    /* What was said stays said, also when it was stopped; nothing said, nothing asked. */
    if (r->chat && r->answer.n > 0)
        return conversation_add(&r->talk, "assistant", buf_str(&r->answer), e);
    if (r->chat)
        conversation_pop(&r->talk);
    return OK;
}

/* ---- commands ---- */

typedef enum err command_fn(struct chat *c, struct str rest, struct error *e);

static command_fn do_help, do_clear, do_system, do_set, do_save, do_retry, do_quit;

static const struct command {
    const char *name, *arguments, *help;
    command_fn *run;
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/clear", "", "forget the conversation; the system message stays", do_clear},
    {"/retry", "", "answer the last message again", do_retry},
    {"/save", "FILE", "write the conversation to a file, as JSON", do_save},
    {"/set", "[NAME VALUE]", "change an option, as in '/set temp 0.2'; alone, show them", do_set},
    {"/system", "[TEXT]", "set the system message; alone, take it away", do_system},
    {"/quit", "", "leave", do_quit},
};

static enum err do_help(struct chat *c, struct str rest UNUSED, struct error *e UNUSED)
{
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        char head[40];
        snprintf(head, sizeof head, "%s %s", commands[i].name, commands[i].arguments);
        say(c, "%-20s %s", head, commands[i].help);
    }
    say(c, "Ctrl-C stops an answer, Ctrl-D leaves; Up and Down bring back what you typed.");
    say(c, "Alt-Enter, or a backslash before Enter, starts a new line; a paste keeps its lines.");
    return OK;
}

static enum err do_clear(struct chat *c, struct str rest UNUSED, struct error *e UNUSED)
{
    conversation_clear(&c->r->talk);
    say(c, "the conversation is forgotten");
    return OK;
}

static enum err do_system(struct chat *c, struct str rest, struct error *e)
{
    if (!c->r->chat)
        return FAIL(e, ERR_UNSUPPORTED, "there is no chat template, so there is no place for a system message");
    TRY(conversation_system(&c->r->talk, rest, e));
    say(c, rest.n > 0 ? "the system message is set" : "the system message is gone");
    return OK;
}

static bool can_set(const struct option_row *row)
{
    return row != NULL &&
           (row->group == GROUP_SAMPLING || strcmp(row->name, "max-tokens") == 0 ||
               strcmp(row->name, "ignore-eos") == 0) &&
           option_has_verb(row, "run");
}

static enum err show_settings(struct chat *c)
{
    const struct generate_params p = generate_defaults(&c->r->o, &c->r->load->config);
    say(c, "temperature %g, top-p %g, top-k %u, min-p %g, typical-p %g", (double)p.sample.temperature,
        (double)p.sample.top_p, p.sample.top_k, (double)p.sample.min_p, (double)p.sample.typical_p);
    say(c, "repetition-penalty %g, presence-penalty %g, frequency-penalty %g", (double)p.sample.repetition_penalty,
        (double)p.sample.presence_penalty, (double)p.sample.frequency_penalty);
    char seed[32] = "another each time", tokens[32] = "as many as fit";
    if (c->r->o.seed != OPTION_UNSET)
        snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->r->o.seed);
    if (p.max_tokens != 0)
        snprintf(tokens, sizeof tokens, "%llu", (unsigned long long)p.max_tokens);
    say(c, "seed %s, max-tokens %s, ignore-eos %s", seed, tokens, p.ignore_eos ? "true" : "false");
    return OK;
}

static enum err do_set(struct chat *c, struct str rest, struct error *e)
{
    char name[64], value[128];
    if (rest.n == 0)
        return show_settings(c);
    const char *blank = memchr(rest.p, ' ', rest.n);
    const size_t n = blank != NULL ? (size_t)(blank - rest.p) : rest.n;
    str_show((struct str){rest.p, n}, name, sizeof name);
    const struct option_row *row = option_find(options_table(), (struct str){rest.p, n});
    if (!can_set(row))
        return FAIL(e, ERR_INVALID, "'%s' cannot be set here; /set alone shows what can", name);
    struct str v = {rest.p + n, rest.n - n};
    while (v.n > 0 && v.p[0] == ' ')
        v = (struct str){v.p + 1, v.n - 1};
    if (v.n == 0 || v.n >= sizeof value)
        return FAIL(e, ERR_INVALID, "/set %s needs a value", row->name);
    memcpy(value, v.p, v.n);
    value[v.n] = '\0';
    TRY(option_store(row, value, &c->r->o, e));
    say(c, "%s is %s", row->name, value);
    return OK;
}

static enum err do_save(struct chat *c, struct str rest, struct error *e)
{
    char path[PATH_BYTES_MAX];
    if (rest.n == 0 || rest.n >= sizeof path || memchr(rest.p, '\0', rest.n) != NULL)
        return FAIL(e, ERR_INVALID, "/save needs the name of a file");
    memcpy(path, rest.p, rest.n);
    path[rest.n] = '\0';
    TRY(conversation_save(&c->r->talk, path, e));
    say(c, "%zu messages written to %s", conversation_count(&c->r->talk), path);
    return OK;
}

static enum err do_retry(struct chat *c, struct str rest UNUSED, struct error *e)
{
    struct conversation *talk = &c->r->talk;
    if (conversation_ends_with(talk, "assistant"))
        conversation_pop(talk);
    if (!conversation_ends_with(talk, "user"))
        return FAIL(e, ERR_INVALID, "there is nothing to answer again");
    json_t *last = json_incref(json_array_get(talk->messages, conversation_count(talk) - 1));
    conversation_pop(talk);
    const json_t *content = json_object_get(last, "content");
    const enum err err = answer(c, (struct str){json_string_value(content), json_string_length(content)}, e);
    json_decref(last);
    return err;
}

static enum err do_quit(struct chat *c, struct str rest UNUSED, struct error *e UNUSED)
{
    c->leaving = true;
    return OK;
}

static const char *complete(struct str line)
{
    const char *rest = NULL;
    if (line.n < 2 || line.p[0] != '/')
        return NULL;
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        if (!str_has_prefix(str_of(commands[i].name), line))
            continue;
        if (rest != NULL)
            return NULL; /* more than one */
        rest = commands[i].name + line.n;
    }
    return rest != NULL && rest[0] != '\0' ? rest : NULL;
}

/* A command, or a message that only starts with a slash: then *known is false. */
static enum err try_command(struct chat *c, struct str line, bool *known, struct error *e)
{
    size_t n = 0;
    while (n < line.n && line.p[n] != ' ' && line.p[n] != '\n')
        n++;
    struct str rest = {line.p + n, line.n - n};
    while (rest.n > 0 && rest.p[0] == ' ')
        rest = (struct str){rest.p + 1, rest.n - 1};
    while (rest.n > 0 && (rest.p[rest.n - 1] == ' ' || rest.p[rest.n - 1] == '\n'))
        rest.n--;
    *known = true;
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (str_is((struct str){line.p, n}, commands[i].name))
            return commands[i].run(c, rest, e);
    if (str_is((struct str){line.p, n}, "/exit") || str_is((struct str){line.p, n}, "/bye"))
        return do_quit(c, rest, e);
    if (str_is((struct str){line.p, n}, "/?"))
        return do_help(c, rest, e);
    *known = memchr(line.p + 1, '/', n - 1) == NULL; /* "/etc/passwd is ..." is a message */
    if (!*known)
        return OK;
    char shown[64];
    return FAIL(e, ERR_INVALID, "there is no command '%s'; /help lists them",
        str_show((struct str){line.p, n}, shown, sizeof shown));
}

static bool is_blank(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] != ' ' && s.p[i] != '\n' && s.p[i] != '\t')
            return false;
    return true;
}

static enum err take_line(struct chat *c, struct str line, struct error *e)
{
    if (is_blank(line))
        return OK;
    edit_remember(c->edit, line);
    bool known = false;
    if (line.p[0] == '/') {
        struct error local = {0};
        const enum err err = try_command(c, line, &known, &local);
        if (err != OK && c->r->out->error.code != OK)
            return FAIL(e, err, "%s", local.text);
        if (err != OK)
            complain(c, &local);
    }
    return known ? OK : answer(c, line, e);
}

static enum err converse(struct chat *c, struct error *e)
{
    const char *prompt = c->colour ? "\x1b[1;34m>\x1b[0m " : "> ";
    bool hinted = false;
    while (!c->leaving && c->r->out->error.code == OK && !c->r->out->reader_left) {
        enum edit_event event = EDIT_END;
        struct str line = {NULL, 0};
        struct error local = {0};
        const enum err err = edit_read(c->edit, prompt, &event, &line, &local);
        if (err == ERR_LIMIT) {
            complain(c, &local);
            continue;
        }
        if (err != OK)
            return FAIL(e, err, "%s", local.text);
        if (event == EDIT_END)
            break;
        if (event == EDIT_INTERRUPT && line.n == 0 && !hinted) {
            say(c, "Ctrl-D or /quit leaves");
            hinted = true;
        }
        if (event == EDIT_LINE)
            TRY(take_line(c, line, e));
    }
    return OK;
}

enum err run_chat(struct run *r, struct error *e)
{
    struct chat c = {.r = r, .colour = note_can_colour(STDOUT_FILENO)};
    struct sigaction before;
    const struct sigaction interrupt = {.sa_handler = on_interrupt}; /* no SA_RESTART: a plain read must see it */
    TRY(edit_new(&c.edit, STDIN_FILENO, STDOUT_FILENO, complete, e));
    interrupted_run = r;
    sigaction(SIGINT, &interrupt, &before);
    if (r->chat)
        say(&c, "Type a message and Enter; /help lists the commands, Ctrl-D leaves.");
    else
        say(&c, "Without a chat template: type the beginning of a text and the model goes on. /help, Ctrl-D.");
    const enum err err = converse(&c, e);
    sigaction(SIGINT, &before, NULL);
    edit_free(c.edit);
    return err;
}
