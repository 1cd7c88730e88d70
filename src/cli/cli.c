/* The frame around every verb; see cli.h.
 *
 * Order: command line -> fault injection -> config file -> which verb -> its arguments and options -> run -> flush ->
 * one line per failure. The command line is read before faults are armed, so that the failure under test is the one of
 * the work and not of reading the order for it. */
#include "cli/cli.h"

#include "base/fault.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One line on standard error. It goes out as one write, so lines of several processes do not mix. No allocation: this
 * must also say that there is no memory. */
static void report(const struct options *o, const struct error *e, const char *hint)
{
    char line[ERROR_TEXT_MAX * 2], place[128] = "";
    int n;
    if (o->log_level == LOG_LEVEL_DEBUG && e->file != NULL)
        snprintf(place, sizeof place, "%s:%d", e->file, e->line);
    if (o->log_format == LOG_FORMAT_JSON) {
        struct buf b;
        buf_init(&b, sizeof line);
        buf_add_json_str(&b, str_of(e->text));
        /* Without memory for the escaped text the code alone must do; it needs no escaping. */
        n = snprintf(line, sizeof line, "{\"level\":\"error\",\"code\":\"%s\",\"message\":%s%s%s%s}\n",
            err_name(e->code), b.failure == OK ? buf_str(&b).p : "\"out of memory\"", place[0] ? ",\"at\":\"" : "",
            place, place[0] ? "\"" : "");
        buf_fini(&b);
    } else
        n = snprintf(line, sizeof line, "quern: error: %s%s%s%s%s\n", e->text[0] ? e->text : err_phrase(e->code), hint,
            place[0] ? " [" : "", place, place[0] ? "]" : "");
    const size_t bytes = MIN((size_t)MAX(n, 0), sizeof line - 1);
    if (write(STDERR_FILENO, line, bytes) < 0)
        return; /* nobody left to tell; the exit code still says it */
}

static enum err unknown_verb(const char *name, struct error *e)
{
    char shown[64];
    size_t n;
    struct suggestion s;
    const struct verb *verbs = verbs_table(&n);
    suggest_init(&s, str_of(name));
    for (size_t i = 0; i < n; i++)
        suggest_try(&s, verbs[i].name);
    str_show(str_of(name), shown, sizeof shown);
    if (s.best != NULL)
        return FAIL(e, ERR_INVALID, "unknown verb '%s' (did you mean '%s'?)", shown, s.best);
    return FAIL(e, ERR_INVALID, "unknown verb '%s'", shown);
}

/* Options, from both sources, and the verb. Leaves *verb NULL for `quern --help` and `quern --version`. */
static enum err resolve(
    struct options_parse *p, struct options *o, int argc, char *const *argv, const struct verb **verb, struct error *e)
{
    TRY(options_parse_args(p, argc, argv, e));
    if (p->verb != NULL && (*verb = verb_find(str_of(p->verb))) == NULL)
        return unknown_verb(p->verb, e);
    if (*verb == NULL && !o->help && !o->version)
        return FAIL(e, ERR_INVALID, "no verb given");
    if (*verb != NULL)
        TRY(options_check_verb(p, (*verb)->name, e));
    if (o->fault != NULL)
        TRY(fault_arm_spec(o->fault, e));
    if (o->config != NULL)
        TRY(options_parse_file(p, o->config, e));
    if (*verb == NULL || o->help)
        return OK;
    if (p->n_args < (*verb)->args_min)
        return FAIL(e, ERR_INVALID, "'%s' needs %s", (*verb)->name, (*verb)->arguments);
    if (p->n_args > (*verb)->args_max) {
        char shown[64];
        return FAIL(e, ERR_INVALID, "'%s' takes no argument '%s'", (*verb)->name,
            str_show(str_of(p->args[(*verb)->args_max]), shown, sizeof shown));
    }
    memcpy(o->args, p->args, sizeof o->args);
    o->n_args = p->n_args;
    return (*verb)->check != NULL ? (*verb)->check(o, e) : OK;
}

static enum err perform(const struct options *o, const struct verb *verb, struct out *out, struct error *e)
{
    if (o->help) {
        if (verb != NULL)
            help_verb(out, verb, help_width());
        else
            help_global(out, help_width());
        return OK;
    }
    return o->version ? verb_version(o, out, e) : verb->run(o, out, e);
}

int cli_main(int argc, char *const *argv)
{
    struct options o = {0};
    struct options_parse p;
    struct error e = {0};
    const struct verb *verb = NULL;
    int code = EXIT_OK;

    signal(SIGPIPE, SIG_IGN); /* a reader that leaves is an error code from write, handled in out.c */
    options_init(&p, options_table(), &o);
    if (resolve(&p, &o, argc > 0 ? argc - 1 : 0, argv + (argc > 0), &verb, &e) != OK) {
        char hint[64];
        snprintf(
            hint, sizeof hint, "; see 'quern %s%s--help'", verb != NULL ? verb->name : "", verb != NULL ? " " : "");
        const bool machine = e.code == ERR_IO || e.code == ERR_NOMEM; /* the config file could not be read */
        report(&o, &e, machine ? "" : hint);
        code = machine ? EXIT_ERROR : EXIT_USAGE;
    } else {
        struct out out;
        out_init(&out, STDOUT_FILENO);
        enum err err = perform(&o, verb, &out, &e);
        if (err != OK && e.code == OK) /* a verb that failed without a sentence */
            FAIL(&e, err, "%s", err_phrase(err));
        const enum err out_err = out_fini(&out, err == OK ? &e : NULL);
        if (err != OK || out_err != OK) {
            report(&o, &e, "");
            code = EXIT_ERROR;
        }
    }
    options_fini(&p);
    return code;
}
