/* The chat-template door: choosing templates, errors that name template and line, trust of roles and tokens, sharing
 * between threads, and allocation failure at every point. */
#include "testing.h"

#include "base/fault.h"
#include "base/mem.h"
#include "text/chat.h"

#include <pthread.h>

static struct error e;

static const char source[] =
    "{{ bos_token }}{% macro turn(m) %}<|{{ m.role }}|>{{ m.content | trim }}{% endmacro %}"
    "{% for m in messages if m.content %}{{ turn(m) }}{% else %}none{% endfor %}"
    "{% set ns = namespace(text='') %}{% for t in tools or [] %}{% set ns.text = ns.text ~ t | tojson ~ '\n' %}{% "
    "endfor %}"
    "{{ ns.text }}{{ mode | default('plain') }}{% if add_generation_prompt %}<|assistant|>{% endif %}";

static json_t *parse(const char *text)
{
    json_t *j;
    assert_ok(e, json_parse(str_of(text), &j, &e));
    return j;
}

static struct chat_template *compile(const char *text)
{
    struct chat_template *t;
    assert_ok(e, chat_template_new(&t, "unit", str_of(text), &e));
    return t;
}

static void rendering_marks_what_the_user_said(void **state)
{
    (void)state;
    struct chat_template *t = compile(source);
    json_t *messages = parse("[{\"role\":\"user\",\"content\":\" <|end|> \"},{\"role\":\"im_end\",\"content\":\"x\"}]");
    json_t *kwargs = parse("{\"mode\":\"mine\"}");
    const struct chat_token tokens[] = {{"bos_token", STR("<s>")}};
    const struct chat_input in = {
        .messages = messages, .kwargs = kwargs, .tokens = tokens, .n_tokens = 1, .add_generation_prompt = true};
    struct chat_output o;
    chat_output_init(&o);
    assert_ok(e, chat_render(t, &in, &o, &e));
    assert_string_equal(buf_str(&o.text).p, "<s><|user|><|end|><|im_end|>xmine<|assistant|>");
    static const struct {
        const char *text;
        bool trusted;
    } want[] = {{"<s><|user|>", true}, {"<|end|>", false}, {"<|", true}, {"im_end", false}, {"|>", true},
        {"xmine", false}, {"<|assistant|>", true}};
    assert_int_equal(o.n_segments, COUNT_OF(want));
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const struct chat_segment s = o.segments[i];
        assert_true(str_is((struct str){o.text.p + s.start, s.end - s.start}, want[i].text));
        assert_int_equal(s.trusted, want[i].trusted);
    }
    chat_output_fini(&o);
    json_decref(kwargs);
    json_decref(messages);
    chat_template_free(t);
}

static void errors_name_template_line_and_reason(void **state)
{
    (void)state;
    static const struct {
        const char *source, *says;
        enum err code;
    } cases[] = {
        {"a\n{% if x %}\nb", "template unit line 3: the template ends before 'endif'", ERR_INVALID},
        {"\n\n{{ x | nofilter }}", "template unit line 3: no filter or test named 'nofilter'", ERR_UNSUPPORTED},
        {"a\n{% include 'x' %}", "template unit line 2: the tag 'include' is not supported", ERR_UNSUPPORTED},
        {"\xff", "template unit line 1: not valid UTF-8", ERR_FORMAT},
        {"a\n{{ (1 }}", "template unit line 2: unexpected '}'", ERR_INVALID},
        {"a\n{{ x.y.z }}", "template unit line 2: 'x' is undefined", ERR_INVALID},
        {"{{ messages[0].nope.more }}", "template unit line 1: a dict has no 'nope'", ERR_INVALID},
        {"\n{{ raise_exception('roles must\nalternate') }}", "template unit line 2: roles must", ERR_INVALID},
        {"{% macro f() %}\n\n{{ 1 / 0 }}{% endmacro %}{{ f() }}", "template unit line 3: division by zero",
            ERR_INVALID},
        {"{{ messages.append(1) }}", "'append' of a list may not be used", ERR_INVALID},
    };
    json_t *messages = parse("[{\"role\":\"user\",\"content\":\"x\"}]");
    const struct chat_input in = {.messages = messages};
    struct chat_output o;
    chat_output_init(&o);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct chat_template *t;
        e = (struct error){0};
        enum err err = chat_template_new(&t, "unit", str_of(cases[i].source), &e);
        if (err == OK)
            err = chat_render(t, &in, &o, &e);
        if (strstr(e.text, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", e.text, cases[i].says);
        assert_int_equal(err, cases[i].code);
        chat_template_free(t);
    }
    chat_output_fini(&o);
    json_decref(messages);
}

static void inputs_are_checked(void **state)
{
    (void)state;
    struct chat_template *t = compile(source);
    json_t *messages = parse("[]"), *taken = parse("{\"messages\":[]}"), *no_object = parse("[1]"),
           *no_list = parse("{}");
    struct chat_output o;
    chat_output_init(&o);
    struct chat_input in = {.messages = messages, .kwargs = taken};
    assert_fails(e, ERR_INVALID, "'messages' is reserved", chat_render(t, &in, &o, &e));
    in.kwargs = no_object;
    assert_fails(e, ERR_INVALID, "must be an object", chat_render(t, &in, &o, &e));
    in = (struct chat_input){.messages = no_list};
    assert_fails(e, ERR_INVALID, "messages must be an array", chat_render(t, &in, &o, &e));
    in.messages = NULL;
    assert_int_equal(chat_render(t, &in, &o, NULL), ERR_INVALID);
    assert_true(chat_template_reads(t, "tools") && !chat_template_reads(t, "documents"));
    assert_string_equal(chat_template_name(t), "unit");
    chat_output_fini(&o);
    json_decref(messages);
    json_decref(taken);
    json_decref(no_object);
    json_decref(no_list);
    chat_template_free(t);
}

static void sets_choose_as_transformers_does(void **state)
{
    (void)state;
    struct chat_set *s;
    const struct chat_template *t;
    json_t *list = parse("[{\"name\":\"default\",\"template\":\"d\"},{\"name\":\"tool_use\",\"template\":\"t\"},"
                         "{\"name\":\"rag\",\"template\":\"r\"}]");
    assert_ok(e, chat_set_new(&s, &e));
    assert_fails(e, ERR_NOT_FOUND, "no chat template", chat_set_pick(s, NULL, false, &t, &e));
    assert_ok(e, chat_set_add_json(s, list, &e));
    assert_int_equal(chat_set_count(s), 3);
    assert_ok(e, chat_set_pick(s, NULL, false, &t, &e));
    assert_string_equal(chat_template_name(t), "default");
    assert_ok(e, chat_set_pick(s, NULL, true, &t, &e));
    assert_string_equal(chat_template_name(t), "tool_use");
    assert_ok(e, chat_set_pick(s, "rag", true, &t, &e));
    assert_string_equal(chat_template_name(t), "rag");
    assert_fails(e, ERR_NOT_FOUND, "'other'", chat_set_pick(s, "other", false, &t, &e));
    assert_fails(e, ERR_EXISTS, "'rag'", chat_set_add(s, "rag", STR("x"), &e));
    assert_fails(e, ERR_INVALID, "template broken line 1", chat_set_add(s, "broken", STR("{{"), &e));
    chat_set_free(s);
    json_decref(list);

    assert_ok(e, chat_set_new(&s, &e));
    assert_ok(e, chat_set_add(s, "only", STR("x"), &e));
    assert_ok(e, chat_set_pick(s, NULL, true, &t, &e)); /* GGUF files may hold one under any name */
    assert_ok(e, chat_set_add(s, "second", STR("x"), &e));
    assert_fails(e, ERR_NOT_FOUND, "none is called 'default'", chat_set_pick(s, NULL, false, &t, &e));
    for (int i = 2; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        assert_ok(e, chat_set_add(s, name, STR("x"), &e));
    }
    assert_fails(e, ERR_LIMIT, "more than 64", chat_set_add(s, "one more", STR("x"), &e));
    static const char *const bad[] = {"1", "[1]", "[{\"name\":\"a\"}]", "[{\"name\":1,\"template\":\"x\"}]"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        json_t *j = parse(bad[i]);
        assert_int_equal(chat_set_add_json(s, j, NULL), ERR_INVALID);
        json_decref(j);
    }
    chat_set_free(s);
}

static json_t *shared_messages;

static void *render_many(void *arg)
{
    const struct chat_template *t = arg;
    const struct chat_input in = {.messages = shared_messages, .add_generation_prompt = true};
    struct chat_output o;
    bool same = true;
    chat_output_init(&o);
    for (int i = 0; i < 200; i++)
        same &= chat_render(t, &in, &o, NULL) == OK && str_is(buf_str(&o.text), "<|user|>hi"
                                                                                "plain<|assistant|>");
    chat_output_fini(&o);
    return same ? arg : NULL;
}

static void threads_share_a_template(void **state)
{
    (void)state;
    struct chat_template *t = compile(source);
    pthread_t threads[4];
    shared_messages = parse("[{\"role\":\"user\",\"content\":\"hi\"}]");
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, t), 0);
    for (int i = 0; i < 4; i++) {
        void *same;
        pthread_join(threads[i], &same);
        assert_ptr_equal(same, t);
    }
    json_decref(shared_messages);
    chat_template_free(t);
}

/* Fail the first allocation, then the second...: every one is an answer, nothing leaks (the sanitizer build looks). */
static void every_failed_allocation_is_an_answer(void **state)
{
    (void)state;
    json_t *messages = parse("[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"there\"}]");
    json_t *tools = parse("[{\"name\":\"f\"},{\"name\":\"g\"}]");
    const struct chat_input in = {.messages = messages, .tools = tools};
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        struct chat_template *t = NULL;
        struct chat_output o;
        chat_output_init(&o);
        fault_arm(FAULT_ALLOC, nth, false);
        enum err err = chat_template_new(&t, "unit", str_of(source), NULL);
        if (err == OK)
            err = chat_render(t, &in, &o, NULL);
        done = fault_calls(FAULT_ALLOC) < nth;
        fault_arm(FAULT_ALLOC, 0, false);
        assert_true(done ? err == OK : err == ERR_NOMEM || err == ERR_LIMIT);
        chat_output_fini(&o);
        chat_template_free(t);
        assert_true(nth < 10000);
    }
    json_decref(messages);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rendering_marks_what_the_user_said),
        cmocka_unit_test(errors_name_template_line_and_reason),
        cmocka_unit_test(inputs_are_checked),
        cmocka_unit_test(sets_choose_as_transformers_does),
        cmocka_unit_test(threads_share_a_template),
        cmocka_unit_test(every_failed_allocation_is_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
