/* Forced text is cut into the tokens that the tokenizer makes of the same text when it is sent back: so a tool call
 * that was generated and one that is replayed have the same ids, and the prefix cache is hit. Values begin with letters
 * or digits here; a mark behind the opening one may make one token with it. */
#include "testing.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "model/tokenizer.h"
#include "text/text.h"

#include <stdlib.h>

#define IDS_MAX 512

#define TOOL                                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"location\":{\"type\":\"string\"},\"temperature_unit\":{\"type\":"          \
    "\"string\","                                                                                                      \
    "\"enum\":[\"celsius\",\"fahrenheit\"]},\"forecast_days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},"    \
    "\"include_precipitation\":{\"type\":\"boolean\"},\"station\":{\"type\":\"string\",\"maxLength\":20}},"            \
    "\"required\":[\"location\",\"temperature_unit\",\"forecast_days\",\"include_precipitation\",\"station\"],"        \
    "\"additionalProperties\":false}"
#define CALL                                                                                                           \
    "{\"type\":\"sequence\",\"parts\":[{\"type\":\"text\",\"value\":\"<tool_call>\\n{\\\"name\\\": "                   \
    "\\\"current_weather\\\", \\\"arguments\\\": \"},{\"type\":\"json\",\"schema\":" TOOL                              \
    "},{\"type\":\"text\",\"value\":\"}\\n</tool_call>\"}]}"

static const char *const texts[] = {
    "<tool_call>\n{\"name\": \"current_weather\", \"arguments\": {\"location\": \"the old mill\", "
    "\"temperature_unit\": "
    "\"celsius\", \"forecast_days\": 12, \"include_precipitation\": true, \"station\": \"north\"}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"current_weather\", \"arguments\": {\"location\": \"7\", \"temperature_unit\": "
    "\"fahrenheit\", \"forecast_days\": 1, \"include_precipitation\": false, \"station\": \"x.1\"}}\n</tool_call>",
};

struct cut_test {
    struct tok *tok;
    struct tok_ctx *ctx;
    uint32_t want[IDS_MAX], at[IDS_MAX]; /* the replayed text's tokens, and where they begin */
    uint32_t n_want;
    uint32_t n_forced, n_other; /* tokens that were forced, and those of them that are not the replayed text's */
    char first_other[64];
};

static void replay(struct cut_test *t, struct str text)
{
    struct tok_ids ids;
    struct error e;
    uint32_t at = 0;
    assert_ok(e, tok_encode_user(t->tok, t->ctx, text, false, &ids, &e));
    assert_true(ids.n < IDS_MAX);
    for (t->n_want = 0; t->n_want < ids.n; t->n_want++) {
        t->want[t->n_want] = ids.p[t->n_want];
        t->at[t->n_want] = at;
        at += (uint32_t)vocab_bytes(tok_vocab(t->tok), ids.p[t->n_want]).n;
    }
}

/* The replayed text's token that begins there; TOK_NONE: none does. */
static uint32_t token_at(const struct cut_test *t, uint32_t at)
{
    for (uint32_t i = 0; i < t->n_want; i++)
        if (t->at[i] == at)
            return t->want[i];
    return TOK_NONE;
}

/* The model writes the text: what is forced is taken as it comes, the rest as the tokenizer would cut it. */
static void generate(struct cut_test *t, struct grammar *g, struct str text)
{
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes());
    grammar_walk_init(w, g);
    for (uint32_t at = 0; at < text.n;) {
        uint32_t id = TOK_NONE;
        if (grammar_jump(w, &id)) {
            const bool other = id != token_at(t, at);
            if (other && t->n_other == 0)
                snprintf(t->first_other, sizeof t->first_other, "'%.*s' at %u",
                    (int)vocab_bytes(tok_vocab(t->tok), id).n, vocab_bytes(tok_vocab(t->tok), id).p, at);
            t->n_forced++;
            t->n_other += other;
        } else {
            id = token_at(t, at);
            for (uint32_t k = 0; id == TOK_NONE && k < tok_count(t->tok); k++) { /* behind another cut: byte by byte */
                const struct str b = vocab_bytes(tok_vocab(t->tok), k);
                if (b.n == 1 && b.p[0] == text.p[at])
                    id = k;
            }
        }
        assert_int_not_equal(id, TOK_NONE);
        const struct str bytes = vocab_bytes(tok_vocab(t->tok), id);
        assert_true(bytes.n <= text.n - at);
        assert_memory_equal(bytes.p, text.p + at, bytes.n);
        if (grammar_accept(w, id, NULL) != OK)
            fail_msg("token '%.*s' at %u is not allowed", (int)bytes.n, bytes.p, at);
        at += (uint32_t)bytes.n;
    }
    assert_true(grammar_is_complete(w));
    mem_free(w);
}

static void run(struct cut_test *t, bool with_cutter)
{
    struct grammar_vocab *v = NULL;
    struct tok_cutter *c = NULL;
    struct grammar *g = NULL;
    struct error e;
    t->n_forced = t->n_other = 0;
    assert_ok(e, grammar_vocab_new(tok_vocab(t->tok), &v, &e));
    assert_ok(e, tok_cutter_new(t->tok, &c, &e));
    if (with_cutter)
        grammar_vocab_cutter(v, tok_cutter_cut, c);
    const struct grammar_source src = {.kind = GRAMMAR_STRUCTURE, .text = STR(CALL)};
    assert_ok(e, grammar_compile(&src, v, &g, &e));
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        replay(t, str_of(texts[i]));
        generate(t, g, str_of(texts[i]));
    }
    grammar_unref(g);
    grammar_vocab_free(v);
    tok_cutter_free(c);
}

static void a_replayed_call_has_the_tokens_that_were_forced(void **state)
{
    struct cut_test t = {0};
    struct error e;
    const char *path = getenv("QUERN_TOKENIZER"); /* another one, by hand */
    assert_ok(e, tok_ctx_new(&t.ctx, &e));
    assert_ok(e,
        model_tokenizer_open_file(path != NULL ? path : "tests/data/tiny/tiny-1m-hf/tokenizer.json", NULL, &t.tok, &e));
    run(&t, true);
    print_message("%u forced tokens, %u otherwise than replayed: %s\n", t.n_forced, t.n_other, t.first_other);
    assert_true(t.n_forced > 40);
    assert_int_equal(t.n_other, 0);
    run(&t, false); /* the longest tokens are others, and that is seen */
    print_message("the longest: %u forced tokens, %u otherwise: %s\n", t.n_forced, t.n_other, t.first_other);
    assert_true(t.n_other > 0);
    tok_free(t.tok);
    tok_ctx_free(t.ctx);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_replayed_call_has_the_tokens_that_were_forced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
