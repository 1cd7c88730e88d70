/* quern run [MODEL]: talk to a model. On a terminal a conversation (run_chat.c); with -p, or when standard input is not
 * a terminal, one answer on standard output and nothing else there. */
#include "cli/run_int.h"

#include "base/mem.h"
#include "cli/input.h"
#include "cli/note.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RESERVE_MAX 256 /* tokens kept free for an answer before old turns are dropped */

/* ---- text to the reader ---- */

/* A model may say anything, escape sequences too: on a terminal only newline and tab act. */
static void show_safely(struct out *out, struct str s)
{
    while (s.n > 0) {
        size_t n = 0;
        while (n < s.n && ((unsigned char)s.p[n] >= 0x20 || s.p[n] == '\n' || s.p[n] == '\t') && s.p[n] != 0x7f &&
               !((unsigned char)s.p[n] == 0xc2 && n + 1 < s.n && (unsigned char)s.p[n + 1] < 0xa0))
            n++;
        out_add(out, (struct str){s.p, n});
        s = (struct str){s.p + n, s.n - n};
        if (s.n > 0) {
            const size_t k = MAX(utf8_len(s), (size_t)1);
            out_safe(out, (struct str){s.p, k});
            s = (struct str){s.p + k, s.n - k};
        }
    }
}

static bool take_text(void *ctx, struct str piece)
{
    struct run *r = ctx;
    buf_add(&r->answer, piece);
    if (r->terminal)
        show_safely(r->out, piece);
    else
        out_add(r->out, piece);
    out_flush(r->out);
    return r->out->error.code == OK && !r->out->reader_left;
}

enum err run_answer(
    struct run *r, const struct generate_params *p, struct tok_ids ids, struct generate_result *result, struct error *e)
{
    const struct generate_sink sink = {.ctx = r, .text = take_text};
    buf_clear(&r->answer);
    TRY(generate_answer(&r->generate, p, ids, &sink, result, e));
    return buf_check(&r->answer, "the answer", e);
}

void run_say_speed(const struct run *r, const struct generate_result *result)
{
    const uint32_t computed = result->n_prompt - result->n_reused;
    const double prompt_s = (double)result->prompt_ns / 1e9, output_s = (double)result->output_ns / 1e9;
    const bool colour = note_can_colour(STDERR_FILENO) && r->terminal;
    char why[48] = "", reused[48] = "";
    if (result->finish == FINISH_ASKED)
        snprintf(why, sizeof why, ", stopped");
    else if (result->finish == FINISH_CONTEXT)
        snprintf(why, sizeof why, ", the context is full");
    else if (result->finish == FINISH_LENGTH)
        snprintf(why, sizeof why, ", --max-tokens reached");
    if (result->n_reused > 0)
        snprintf(reused, sizeof reused, " (%u known)", result->n_reused);
    note(&r->o, "%s[%u tokens, %.1f tok/s; prompt %u tokens%s, %.0f tok/s%s]%s", colour ? "\x1b[2m" : "",
        result->n_output, output_s > 0 ? result->n_output / output_s : 0.0, result->n_prompt, reused,
        prompt_s > 0 ? computed / prompt_s : 0.0, why, colour ? "\x1b[0m" : "");
}

/* ---- prompts ---- */

enum err run_prompt(struct run *r, struct str text, struct tok_ids *ids, struct error *e)
{
    struct load *l = r->load;
    if (!r->chat) {
        TRY(load_encode(l, text, true, true, ids, e));
        return OK;
    }
    uint64_t reserve = r->o.max_tokens != 0 ? MIN(r->o.max_tokens, RESERVE_MAX) : RESERVE_MAX;
    reserve = MIN(reserve, l->fit.context / 4);
    size_t dropped = 0;
    TRY(conversation_add(&r->talk, "user", text, e));
    const enum err err = conversation_prompt(&r->talk, l, (uint32_t)reserve, ids, &dropped, e);
    if (err != OK)
        conversation_pop(&r->talk);
    if (dropped > 0)
        note_warning(&r->o,
            "the conversation is longer than the context of %u tokens; its oldest %zu messages are "
            "forgotten",
            l->fit.context, dropped);
    return err;
}

/* A file or a pipe ends in a newline that is not meant. */
static struct str without_newline(struct str s)
{
    if (s.n > 0 && s.p[s.n - 1] == '\n')
        s.n--;
    if (s.n > 0 && s.p[s.n - 1] == '\r')
        s.n--;
    return s;
}

static enum err answer_once(struct run *r, struct str text, struct error *e)
{
    struct tok_ids ids;
    struct generate_result result;
    struct generate_params p = generate_defaults(&r->o, &r->load->config);
    p.stops = r->stops;
    TRY(run_prompt(r, text, &ids, e));
    if (r->o.json)
        return run_json(r, &p, ids, e);
    TRY(run_answer(r, &p, ids, &result, e));
    out_text(r->out, "\n");
    out_flush(r->out);
    run_say_speed(r, &result);
    return OK;
}

/* ---- the verb ---- */

enum err verb_run_check(const struct options *o, struct error *e)
{
    if (o->raw && o->system != NULL)
        return FAIL(e, ERR_INVALID, "option --system has no place in --raw text");
    if (o->logprobs != OPTION_UNSET && !o->json)
        return FAIL(e, ERR_INVALID, "option --logprobs needs --json");
    if (o->ignore_eos && o->max_tokens == 0 && (o->prompt != NULL || o->json))
        return FAIL(e, ERR_INVALID, "option --ignore-eos needs --max-tokens");
    return OK;
}

static enum err make_stops(struct run *r, struct error *e)
{
    struct str stops[OPTION_LIST_MAX];
    for (size_t i = 0; i < r->o.stops.n; i++)
        stops[i] = str_of(r->o.stops.v[i]);
    return r->o.stops.n > 0 ? stop_set_new(&r->stops, stops, r->o.stops.n, e) : OK;
}

static enum err start(struct run *r, struct error *e)
{
    const struct load_wants wants = {.find = FIND_FALLBACK, .chat = !r->o.raw, .out_rows = 1};
    r->load = mem_zalloc(sizeof *r->load);
    if (r->load == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to load a model");
    TRY(make_stops(r, e));
    TRY(load_open(r->load, &r->o, &wants, e));
    r->chat = r->load->chat != NULL && !r->o.raw;
    if (r->o.system != NULL && !r->chat)
        return FAIL(e, ERR_UNSUPPORTED, "the model has no chat template, so there is no place for --system");
    if (r->o.system != NULL)
        TRY(conversation_system(&r->talk, str_of(r->o.system), e));
    TRY(generate_init(&r->generate, r->load, e));
    return generate_obey(&r->generate, &r->o, e);
}

/* One answer, or the conversation. Standard input is read before the model is loaded: it may be what fails. */
static enum err perform(struct run *r, struct buf *input, struct error *e)
{
    const bool talks = r->o.prompt == NULL && isatty(STDIN_FILENO);
    if (talks && r->o.json)
        return FAIL(e, ERR_INVALID, "option --json is for one answer: give -p or text on standard input");
    if (r->o.prompt == NULL && !talks) {
        TRY(input_read_all(input, e));
        if (without_newline(buf_str(input)).n == 0)
            return FAIL(e, ERR_INVALID, "there is no prompt: standard input is empty and -p is not given");
    }
    TRY(start(r, e));
    if (talks)
        return run_chat(r, e);
    return answer_once(r, r->o.prompt != NULL ? str_of(r->o.prompt) : without_newline(buf_str(input)), e);
}

enum err verb_run(const struct options *o, struct out *out, struct error *e)
{
    struct buf input;
    struct run *r = mem_zalloc(sizeof *r);
    if (r == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to run a model");
    r->o = *o;
    r->out = out;
    r->terminal = isatty(STDOUT_FILENO);
    buf_init(&input, TEXT_BYTES_MAX);
    buf_init(&r->answer, TEXT_BYTES_MAX);
    enum err err = conversation_init(&r->talk, e);
    if (err == OK)
        err = perform(r, &input, e);
    generate_fini(&r->generate);
    conversation_fini(&r->talk);
    stop_set_free(r->stops);
    buf_fini(&r->answer);
    buf_fini(&input);
    if (r->load != NULL)
        load_close(r->load);
    mem_free(r->load);
    mem_free(r);
    return err;
}
