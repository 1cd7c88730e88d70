/* quern score [MODEL]: how likely a model finds a text. Log-probabilities token by token, and the perplexity.
 *
 * The text is scored as one sequence behind what the tokenizer puts in front (bos); its first token has no probability
 * when nothing is in front. A text longer than the context is scored in windows that overlap: the window moves on by
 * --stride tokens, and of each window only the tokens are counted that no window before had, so every token is counted
 * once and, but for the first window, with at least context - stride tokens before it. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/mem.h"
#include "cli/input.h"
#include "cli/load.h"
#include "cli/note.h"
#include "sample/sample.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct score {
    const struct options *o;
    struct out *out;
    struct load *load;
    struct note_progress progress;
    const uint32_t *ids;
    uint32_t n;        /* all ids */
    uint32_t next;     /* the first that is not scored yet */
    uint32_t window;   /* where the running window starts */
    uint32_t n_scored; /* with a probability */
    double nll;        /* minus the sum of log-probabilities */
};

static void print_token(struct score *s, uint32_t i, double logprob, bool scored)
{
    const struct load *l = s->load;
    const uint32_t id = s->ids[i];
    const struct str text = l->tok != NULL ? vocab_bytes(tok_vocab(l->tok), id) : (struct str){"", 0};
    if (s->o->json) {
        out_printf(s->out, "{\"index\":%u,\"id\":%u,\"text\":", i, id);
        out_json_str(s->out, text);
        out_text(s->out, ",\"bytes\":[");
        for (size_t k = 0; k < text.n; k++)
            out_printf(s->out, "%s%u", k > 0 ? "," : "", (unsigned char)text.p[k]);
        if (scored)
            out_printf(s->out, "],\"logprob\":%.6f}\n", logprob);
        else
            out_text(s->out, "],\"logprob\":null}\n");
        return;
    }
    char shown[24] = "-";
    if (scored)
        snprintf(shown, sizeof shown, "%.4f", logprob);
    out_printf(s->out, "%10s  %8u  ", shown, id);
    out_safe(s->out, text);
    out_text(s->out, "\n");
}

/* The logits behind position pos of the window score the token after it. */
static bool take_row(void *ctx, uint32_t pos, const float *logits)
{
    struct score *s = ctx;
    const uint32_t i = s->window + pos + 1;
    if (i >= s->n)
        return false;
    if (i < s->next)
        return true;
    const uint32_t vocab = decoder_vocab(s->load->decoder);
    const double logprob = (double)logits[s->ids[i]] - sample_log_sum_exp(logits, vocab);
    print_token(s, i, logprob, true);
    s->nll -= logprob;
    s->n_scored++;
    s->next = i + 1;
    note_progress_step(&s->progress, s->next, s->n);
    return s->out->error.code == OK && !s->out->reader_left;
}

static void print_summary(struct score *s)
{
    const double mean = s->n_scored > 0 ? s->nll / s->n_scored : NAN;
    if (s->o->json && s->n_scored == 0)
        out_printf(s->out, "{\"tokens\":%u,\"scored\":0,\"nll\":0,\"perplexity\":null}\n", s->n);
    else if (s->o->json)
        out_printf(s->out, "{\"tokens\":%u,\"scored\":%u,\"nll\":%.6f,\"perplexity\":%.6f}\n", s->n, s->n_scored,
            s->nll, exp(mean));
    else if (s->n_scored == 0)
        out_text(s->out, "one token and nothing before it: no perplexity\n");
    else
        out_printf(s->out, "perplexity %.4f over %u tokens (%.4f nats each)\n", exp(mean), s->n_scored, mean);
}

static enum err score_windows(struct score *s, struct error *e)
{
    const uint32_t context = s->load->fit.context;
    const uint64_t asked = s->o->stride != 0 ? s->o->stride : MAX(context / 2, 1u);
    if (asked > context)
        return FAIL(e, ERR_INVALID, "option --stride: %llu is more than the context of %u tokens",
            (unsigned long long)asked, context);
    note_progress_start(&s->progress, s->o, "scoring");
    const bool has_front = s->n > 0 && s->load->tok != NULL && tok_is_special(s->load->tok, s->ids[0]);
    if (!has_front)
        print_token(s, 0, 0, false);
    s->next = 1;
    enum err err = OK;
    while (err == OK && s->next < s->n && s->out->error.code == OK && !s->out->reader_left) {
        const uint32_t n = MIN(context, s->n - s->window);
        err = sequence_score(s->load->seq, s->ids + s->window, n, take_row, s, e);
        s->window += (uint32_t)asked;
    }
    note_progress_end(&s->progress);
    if (err == OK)
        print_summary(s);
    return err;
}

static enum err score_text(struct score *s, struct str text, struct error *e)
{
    const struct load_wants wants = {.find = FIND_FETCH, .out_rows = CHAT_ROWS_MAX};
    TRY(load_open(s->load, s->o, &wants, e));
    struct tok_ids ids;
    TRY(load_encode(s->load, text, false, true, &ids, e));
    if (ids.n > UINT32_MAX)
        return FAIL(e, ERR_LIMIT, "a text of %zu tokens", ids.n);
    s->ids = ids.p;
    s->n = (uint32_t)ids.n;
    return score_windows(s, e);
}

enum err verb_score(const struct options *o, struct out *out, struct error *e)
{
    struct buf input;
    struct score s = {.o = o, .out = out};
    buf_init(&input, TEXT_BYTES_MAX);
    enum err err = input_read_all(&input, e);
    if (err == OK && input.n == 0)
        err = FAIL(e, ERR_INVALID, "there is nothing to score: standard input is empty");
    s.load = err == OK ? mem_zalloc(sizeof *s.load) : NULL;
    if (err == OK && s.load == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory to load a model");
    if (err == OK)
        err = score_text(&s, buf_str(&input), e);
    if (s.load != NULL)
        load_close(s.load);
    mem_free(s.load);
    buf_fini(&input);
    return err;
}
