/* The frame around every verb; see cli.h.
 *
 * Order: command line -> fault injection -> config file -> which verb -> its arguments and options -> run -> flush ->
 * one line per failure. The command line is read before faults are armed, so that the failure under test is the one of
 * the work and not of reading the order for it. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* One line on standard error, without allocating: this must also say that there is no memory. */
static void report(const struct options *o, struct log *log, const struct error *e, const char *hint)
{
    const bool shows_place = o->log_level == LOG_DEBUG && e->file != NULL;
    char line[ERROR_TEXT_MAX + 256], place[128] = "";
    if (shows_place)
        snprintf(place, sizeof place, "%s:%d", e->file, e->line);
    if (o->log_format == LOG_JSON && log != NULL) {
        const struct log_field fields[] = {
            log_cstr("code", err_name(e->code)), log_cstr("message", e->text), log_cstr("at", place)};
        log_write(log, LOG_ERROR, "cli", "failed", fields, COUNT_OF(fields) - !shows_place);
        return;
    }
    const int n = snprintf(line, sizeof line, "quern: error: %s%s%s%s%s\n", e->text, hint, shows_place ? " [" : "",
        place, shows_place ? "]" : "");
    const size_t bytes = MIN((size_t)MAX(n, 0), sizeof line - 1);
    if (write(STDERR_FILENO, line, bytes) < 0)
        return; /* nobody left to tell; the exit code still says it */
}

/* Options, from both sources, and the verb. Leaves *verb NULL for `quern --help` and `quern --version`. */
static enum err resolve(
    struct options_parse *p, struct options *o, int argc, char *const *argv, const struct verb **verb, struct error *e)
{
    const enum err err = options_parse_args(p, argc, argv, e);
    if (p->verb != NULL)
        *verb = verb_find(str_of(p->verb)); /* also after an error, for the hint where to look */
    TRY(err);
    if (p->verb != NULL && *verb == NULL)
        return verb_unknown(str_of(p->verb), e);
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
    if (o->version)
        return verb_version(o, out, e);
    assert(verb != NULL); /* resolve saw to it */
    return verb->run(o, out, e);
}

/* What it cost, for those who asked for --log-level debug. */
static void log_cost(struct log *log, const struct verb *verb, uint64_t start_ns, const struct clock *clock)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    LOG(log, LOG_DEBUG, "cli", "verb done", log_cstr("verb", verb != NULL ? verb->name : ""),
        log_f64("ms", (double)(clock_now(clock) - start_ns) / 1e6), log_u64("rss_max_kib", (uint64_t)usage.ru_maxrss));
}

/* Run the verb and flush what it wrote. */
static int run(const struct options *o, const struct verb *verb, struct log *log)
{
    struct out out;
    struct error e = {0};
    out_init(&out, STDOUT_FILENO);
    const enum err err = perform(o, verb, &out, &e);
    if (err != OK && e.code == OK) /* a verb that failed without a sentence */
        FAIL(&e, err, "%s", err_phrase(err));
    const enum err out_err = out_fini(&out, err == OK ? &e : NULL);
    if (err == OK && out_err == OK)
        return EXIT_OK;
    report(o, log, &e, "");
    return EXIT_ERROR;
}

int cli_main(int argc, char *const *argv)
{
    struct options o = {0};
    struct options_parse p;
    struct error e = {0};
    const struct verb *verb = NULL;
    int code;

    signal(SIGPIPE, SIG_IGN); /* a reader that leaves is an error code from write, handled in out.c */
    struct clock clock;
    clock_init(&clock);
    const uint64_t start_ns = clock_now(&clock);
    options_init(&p, options_table(), &o);
    o.parse = &p;
    const enum err err = resolve(&p, &o, argc > 0 ? argc - 1 : 0, argv + (argc > 0), &verb, &e);
    const struct log_levels levels = {.base = (enum log_level)o.log_level};
    struct log log_storage, *log = &log_storage;
    if (log_init(log, STDERR_FILENO, (enum log_format)o.log_format, &levels, &clock, NULL) != OK)
        log = NULL; /* no log is no reason not to work */
    if (err == OK) {
        code = run(&o, verb, log);
        log_cost(log, verb, start_ns, &clock);
    } else {
        char hint[64];
        snprintf(
            hint, sizeof hint, "; see 'quern %s%s--help'", verb != NULL ? verb->name : "", verb != NULL ? " " : "");
        const bool machine = e.code == ERR_IO || e.code == ERR_NOMEM; /* the config file could not be read */
        report(&o, log, &e, machine ? "" : hint);
        code = machine ? EXIT_ERROR : EXIT_USAGE;
    }
    if (log != NULL)
        log_fini(log);
    options_fini(&p);
    return code;
}
