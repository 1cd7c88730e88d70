/* The fields of a request: defaults from the model, values read, what is refused and how it is named. */
#include "testing.h"

#include "api/fields.h"

#include <math.h>

#define VOCAB 2048

static const struct model_generation nothing = {NAN, NAN, NAN, NAN, -1, -1};

static bool read_text(const char *text, const struct model_generation *g, struct fields *f, struct api_error *ae)
{
    struct error e = {0};
    json_t *doc = NULL;
    const struct fields_model m = {.generation = g, .vocab = VOCAB, .context = 512};
    *ae = (struct api_error){0};
    fields_init(f, m);
    assert_ok(e, json_parse(str_of(text), &doc, &e));
    const bool ok = fields_read(f, doc, m, ae);
    fields_fini(f);
    json_decref(doc);
    return ok;
}

static void the_model_gives_the_defaults(void **state)
{
    (void)state;
    struct fields f;
    struct api_error ae;
    const struct model_generation g = {0.6, 0.95, NAN, 1.1, 20, 1}, greedy = {NAN, NAN, NAN, NAN, -1, 0};
    assert_true(read_text("{}", &nothing, &f, &ae));
    assert_true(f.sample.temperature == 1.0F && f.sample.top_p == 1.0F && f.sample.top_k == 0 && f.n == 1);
    assert_true(read_text("{}", &g, &f, &ae));
    assert_true(f.sample.temperature == 0.6F && f.sample.top_p == 0.95F && f.sample.top_k == 20);
    assert_true(f.sample.repetition_penalty == 1.1F);
    assert_true(read_text("{}", &greedy, &f, &ae));
    assert_true(f.sample.temperature == 0.0F);
    assert_true(read_text("{\"temperature\":0.2,\"top_k\":-1,\"seed\":-5}", &g, &f, &ae));
    assert_true(f.sample.temperature == 0.2F && f.sample.top_k == 0 && f.sample.seed == (uint64_t)-5);
}

static void null_is_the_default_and_unknown_is_ignored(void **state)
{
    (void)state;
    struct fields f;
    struct api_error ae;
    assert_true(read_text(
        "{\"temperature\":null,\"stop\":null,\"x\":{\"y\":[]},\"tools\":[],\"user\":\"u\"}", &nothing, &f, &ae));
    assert_int_equal(f.n_stops, 0);
}

static void what_is_refused_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *param;
    } cases[] = {
        {"{\"temperature\":101}", "temperature"},
        {"{\"temperature\":true}", "temperature"},
        {"{\"n\":129}", "n"},
        {"{\"n\":1e300}", "n"},
        {"{\"stop\":[\"\"]}", "stop"},
        {"{\"stop_token_ids\":[2048]}", "stop_token_ids"},
        {"{\"allowed_token_ids\":[]}", "allowed_token_ids"},
        {"{\"logit_bias\":{\"-1\":0}}", "logit_bias"},
        {"{\"logit_bias\":{\"1\":\"x\"}}", "logit_bias"},
        {"{\"logit_bias\":{\" 1\":1}}", "logit_bias"},
        {"{\"functions\":[{}]}", "functions"},
        {"{\"suffix\":\"x\"}", "suffix"},
        {"{\"response_format\":{\"type\":\"json_schema\"}}", "response_format"},
        {"{\"resumable\":true}", "resumable"},
        {"{\"stream\":true,\"prompt_logprobs\":1}", "prompt_logprobs"},
        {"{\"length_penalty\":0.5}", "length_penalty"},
    };
    struct fields f;
    struct api_error ae;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_false(read_text(cases[i].text, &nothing, &f, &ae));
        assert_int_equal(ae.status, 400);
        assert_string_equal(ae.param, cases[i].param);
        assert_non_null(strstr(ae.text, cases[i].param));
    }
    assert_true(read_text("{\"best_of\":1,\"response_format\":{\"type\":\"text\"}}", &nothing, &f, &ae));
}

static void the_first_error_stays_and_hides_the_machine(void **state)
{
    (void)state;
    struct api_error ae = {0};
    struct error e = {0};
    assert_false(api_fail(&ae, 400, "a", "first"));
    assert_false(api_fail(&ae, 500, "b", "second"));
    assert_string_equal(ae.text, "first");
    ae = (struct api_error){0};
    (void)FAIL(&e, ERR_IO, "/secret/path: no");
    assert_false(api_fail_err(&ae, &e, NULL));
    assert_int_equal(ae.status, 500);
    assert_null(strstr(ae.text, "secret"));
    for (int code = 1; code < ERR_COUNT; code++)
        assert_true(api_status_of((enum err)code) >= 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_gives_the_defaults),
        cmocka_unit_test(null_is_the_default_and_unknown_is_ignored),
        cmocka_unit_test(what_is_refused_is_named),
        cmocka_unit_test(the_first_error_stays_and_hides_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
