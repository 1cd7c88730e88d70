/* Names of models: what each form means, what is refused, how entries are called. */
#include "testing.h"

#include "hub/hub_int.h"

static void spec_of_nothing_is_the_default_model(void **state)
{
    (void)state;
    struct error e;
    struct hub_spec s;
    const char *const names[] = {NULL, "", "default", HUB_DEFAULT_NAME};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_ok(e, spec_parse(&s, names[i], &e));
        assert_int_equal(s.kind, HUB_KIND_DEFAULT);
        assert_string_equal(s.name, HUB_DEFAULT_NAME);
    }
}

static void spec_of_a_repository_has_its_parts(void **state)
{
    (void)state;
    struct error e;
    struct hub_spec s;
    char name[HUB_NAME_MAX + 1];
    assert_ok(e, spec_parse(&s, "hf:own-er/re.po_1", &e));
    assert_int_equal(s.kind, HUB_KIND_HF);
    assert_string_equal(s.repo, "own-er/re.po_1");
    assert_string_equal(s.revision, "main");
    assert_string_equal(s.file, "");
    assert_ok(e, spec_hf_entry_name(&s, "", name, &e));
    assert_string_equal(name, "own-er--re.po_1");
    assert_ok(e, spec_parse(&s, "hf:a/b@refs/pr/1:sub/x-00001-of-00002.gguf", &e));
    assert_string_equal(s.revision, "refs/pr/1");
    assert_string_equal(s.file, "sub/x-00001-of-00002.gguf");
    assert_ok(e, spec_hf_entry_name(&s, s.file, name, &e));
    assert_string_equal(name, "a--b--sub_x--refs_pr_1");
}

static void spec_of_a_malformed_repository_says_which_part(void **state)
{
    (void)state;
    struct error e;
    struct hub_spec s;
    assert_fails(e, ERR_INVALID, "repository is empty", spec_parse(&s, "hf:", &e));
    assert_fails(e, ERR_INVALID, "not owner/repo", spec_parse(&s, "hf:alone", &e));
    assert_fails(e, ERR_INVALID, "not owner/repo", spec_parse(&s, "hf:a/b/c", &e));
    assert_fails(e, ERR_INVALID, "not owner/repo", spec_parse(&s, "hf:a/..", &e));
    assert_fails(e, ERR_INVALID, "revision is empty", spec_parse(&s, "hf:a/b@", &e));
    assert_fails(e, ERR_INVALID, "not a revision", spec_parse(&s, "hf:a/b@../x", &e));
    assert_fails(e, ERR_INVALID, "follows the ':'", spec_parse(&s, "hf:a/b:", &e));
    assert_fails(e, ERR_INVALID, "not a file name", spec_parse(&s, "hf:a/b:/x.gguf", &e));
    assert_fails(e, ERR_INVALID, "character", spec_parse(&s, "hf:a/b c", &e));
    assert_fails(e, ERR_INVALID, "\\x1b", spec_parse(&s, "hf:a/b\x1b[31m", &e));
}

static void entry_names_that_are_too_long_stay_different(void **state)
{
    (void)state;
    struct error e;
    struct hub_spec s;
    char file[600], one[HUB_NAME_MAX + 1], two[HUB_NAME_MAX + 1];
    assert_ok(e, spec_parse(&s, "hf:a/b", &e));
    memset(file, 'x', sizeof file);
    memcpy(file + 500, "1.gguf", 7);
    assert_ok(e, spec_hf_entry_name(&s, file, one, &e));
    file[500] = '2';
    assert_ok(e, spec_hf_entry_name(&s, file, two, &e));
    assert_true(hub_name_is_valid(str_of(one)) && hub_name_is_valid(str_of(two)));
    assert_string_not_equal(one, two);
}

static void entry_names_never_leave_their_folder(void **state)
{
    (void)state;
    assert_true(hub_name_is_valid(STR("a")));
    assert_true(hub_name_is_valid(STR("Ab-9_.x")));
    const struct str bad[] = {STR(""), STR("."), STR(".."), STR(".x"), STR("-x"), STR("a/b"), STR("a b"), STR("a\0b"),
        STR("a\\b"), STR("\xc3\xa9")};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(hub_name_is_valid(bad[i]));
}

static void spec_of_a_url_is_named_by_its_file_and_hash(void **state)
{
    (void)state;
    struct error e;
    struct hub_spec a, b;
    assert_ok(e, spec_parse(&a, "https://host/dir/My%20model.gguf?sig=1", &e));
    assert_int_equal(a.kind, HUB_KIND_URL);
    assert_string_equal(a.file, "My_20model.gguf");
    assert_memory_equal(a.name, "My_20model-", 11);
    assert_true(hub_name_is_valid(str_of(a.name)));
    assert_ok(e, spec_parse(&b, "https://other/dir/My%20model.gguf?sig=1", &e));
    assert_string_not_equal(a.name, b.name);
    assert_fails(e, ERR_UNSUPPORTED, ".gguf", spec_parse(&a, "https://host/x.safetensors", &e));
    assert_fails(e, ERR_UNSUPPORTED, ".gguf", spec_parse(&a, "https://host/?x.gguf", &e));
    assert_fails(e, ERR_DENIED, "plain http", spec_parse(&a, "http://host/x.gguf", &e));
    assert_fails(e, ERR_UNSUPPORTED, "only https", spec_parse(&a, "file:///x.gguf", &e));
}

static void urls_are_shown_without_secrets(void **state)
{
    (void)state;
    char out[200];
    assert_string_equal(url_show("https://u:p@h:1/a?token=x#y", out, sizeof out), "https://h:1/a");
    assert_string_equal(url_show("https://h?x@y", out, sizeof out), "https://h");
    assert_string_equal(url_show("https://h/\x1b[0m", out, sizeof out), "https://h/\\x1b[0m");
}

static void plain_http_is_allowed_to_loopback_only(void **state)
{
    (void)state;
    struct error e;
    const char *const ours[] = {"http://127.0.0.1:8/x", "http://127.9.9.9/", "http://localhost/x", "http://[::1]:80/"};
    const char *const others[] = {"http://127.0.0.1.nip.io/", "http://10.0.0.1/", "http://localhost.x/",
        "http://[::2]/", "http://127.x/", "http://user@example.com/127.0.0.1", "http://localhost@example.com/"};
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        assert_ok(e, url_check(ours[i], false, &e));
    for (size_t i = 0; i < COUNT_OF(others); i++)
        assert_fails(e, ERR_DENIED, "plain http", url_check(others[i], false, &e));
    assert_fails(e, ERR_DENIED, "from https to plain http", url_check(ours[0], true, &e));
    assert_ok(e, url_check("HTTPS://example.com/", true, &e));
    assert_fails(e, ERR_INVALID, "not a URL", url_check("https://", false, &e));
}

static void url_escape_keeps_what_is_plain(void **state)
{
    (void)state;
    struct error e;
    char out[64];
    assert_ok(e, url_escape("a b/c#?%\xc3\xa9", true, out, sizeof out, &e));
    assert_string_equal(out, "a%20b/c%23%3F%25%C3%A9");
    assert_ok(e, url_escape("refs/pr/1", false, out, sizeof out, &e));
    assert_string_equal(out, "refs%2Fpr%2F1");
    assert_fails(e, ERR_LIMIT, "longer than 8", url_escape("aaaaaaaaaaaa", true, out, 8, &e));
}

static void name_distance_counts_edits_and_ignores_case(void **state)
{
    (void)state;
    assert_int_equal(name_distance("abc", "ABC"), 0);
    assert_int_equal(name_distance("", "abc"), 3);
    assert_int_equal(name_distance("kitten", "sitting"), 3);
    assert_int_equal(name_distance("model", "modle"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spec_of_nothing_is_the_default_model),
        cmocka_unit_test(spec_of_a_repository_has_its_parts),
        cmocka_unit_test(spec_of_a_malformed_repository_says_which_part),
        cmocka_unit_test(entry_names_that_are_too_long_stay_different),
        cmocka_unit_test(entry_names_never_leave_their_folder),
        cmocka_unit_test(spec_of_a_url_is_named_by_its_file_and_hash),
        cmocka_unit_test(urls_are_shown_without_secrets),
        cmocka_unit_test(plain_http_is_allowed_to_loopback_only),
        cmocka_unit_test(url_escape_keeps_what_is_plain),
        cmocka_unit_test(name_distance_counts_edits_and_ignores_case),
    };
    return cmocka_run_group_tests_name("hub/name", tests, NULL, NULL);
}
