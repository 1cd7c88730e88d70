/* The choice of files, the listing they come from, and the bar's numbers. */
#include "testing.h"

#include "hub/hub_int.h"

#define FILES_MAX 16

/* Choose among names separated by blanks; out receives the chosen ones, in order, separated by blanks. */
static enum err choose(const char *names, const char *want, char *out, size_t cap, char *open, struct error *e)
{
    static char text[1024];
    struct hub_file files[FILES_MAX] = {{0}};
    bool picked[FILES_MAX];
    const char *opened;
    size_t n = 0;
    snprintf(text, sizeof text, "%s", names);
    for (char *word = text; word != NULL && *word != '\0';) {
        files[n++].name = word;
        word = strchr(word, ' ');
        if (word != NULL)
            *word++ = '\0';
    }
    const enum err err = choose_files(files, n, want, picked, &opened, e);
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; err == OK && i < n; i++)
        if (picked[i])
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at > 0 ? " " : "", files[i].name);
    if (err == OK)
        snprintf(open, 64, "%s", opened);
    return err;
}

static void choose_takes_by_the_rule(void **state)
{
    (void)state;
    static const struct {
        const char *names, *want, *picked, *open;
    } rows[] = {
        {"README.md a.gguf", "", "a.gguf", "a.gguf"},
        {"a-Q8_0.gguf a-Q4_K_M.gguf a-Q4_K_S.gguf", "", "a-Q4_K_M.gguf", "a-Q4_K_M.gguf"},
        {"a.q4_k_m.GGUF b.f16.gguf", "Q4_K_M", "a.q4_k_m.GGUF", "a.q4_k_m.GGUF"},
        {"a-Q4_K.gguf a-Q4_K_M.gguf", "q4_k", "a-Q4_K.gguf", "a-Q4_K.gguf"},
        {"mmproj-a.gguf a.gguf a.imatrix.gguf", "", "a.gguf", "a.gguf"},
        {"mmproj-a.gguf a.gguf", "mmproj-a.gguf", "mmproj-a.gguf", "mmproj-a.gguf"},
        {"x-00002-of-00002.gguf x-00001-of-00002.gguf", "", "x-00002-of-00002.gguf x-00001-of-00002.gguf",
            "x-00001-of-00002.gguf"},
        {"d/x-00001-of-00001.gguf", "", "d/x-00001-of-00001.gguf", "d/x-00001-of-00001.gguf"},
        {"x-00001-of-2.gguf", "", "x-00001-of-2.gguf", "x-00001-of-2.gguf"},
        {"config.json model.safetensors x.bin x.py", "", "config.json model.safetensors", ""},
        {"config.json consolidated.safetensors tokenizer.model", "",
            "config.json consolidated.safetensors tokenizer.model", ""},
        {"config.json consolidated.safetensors model.safetensors", "", "config.json model.safetensors", ""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct error e;
        char picked[256], open[64];
        assert_ok(e, choose(rows[i].names, rows[i].want, picked, sizeof picked, open, &e));
        assert_string_equal(picked, rows[i].picked);
        assert_string_equal(open, rows[i].open);
    }
}

static void choose_refuses_with_the_choices(void **state)
{
    (void)state;
    struct error e;
    char picked[256], open[64];
#define CHOOSE(names, want) choose(names, want, picked, sizeof picked, open, &e)
    assert_fails(e, ERR_INVALID, "one of a-Q8_0.gguf, b-Q8_0.gguf", CHOOSE("a-Q8_0.gguf b-Q8_0.gguf", ""));
    assert_fails(e, ERR_INVALID, "fits several", CHOOSE("a-Q8_0.gguf b-Q8_0.gguf", "Q8_0"));
    assert_fails(e, ERR_NOT_FOUND, "there are a-Q8_0.gguf", CHOOSE("a-Q8_0.gguf", "Q4_0"));
    assert_fails(e, ERR_FORMAT, "1 of its 2 parts", CHOOSE("a-00001-of-00002.gguf", ""));
    assert_fails(e, ERR_FORMAT, "2 of its 2 parts",
        CHOOSE("a-00002-of-00002.gguf a-00002-of-00002.gguf", "a-00002-of-00002.gguf"));
    assert_fails(e, ERR_LIMIT, "99999 parts", CHOOSE("a-00001-of-99999.gguf", ""));
    assert_fails(e, ERR_UNSUPPORTED, "not a GGUF", CHOOSE("a.bin a.gguf", "a.bin"));
    assert_fails(e, ERR_UNSUPPORTED, "neither", CHOOSE("config.json pytorch_model.bin", ""));
    assert_fails(e, ERR_UNSUPPORTED, "neither", CHOOSE("config.json sub/model.safetensors", ""));
    assert_fails(e, ERR_UNSUPPORTED, "neither", CHOOSE(".ready/a.gguf x/.y/a.gguf", ""));
    assert_fails(e, ERR_UNSUPPORTED, "neither", CHOOSE("", ""));
#undef CHOOSE
}

static void listing_gives_sizes_and_hashes(void **state)
{
    (void)state;
    struct error e;
    struct arena a;
    struct hf_listing l;
    const struct str json =
        STR("{\"sha\":\"0123456789012345678901234567890123456789\",\"siblings\":["
            "{\"rfilename\":\"a.json\",\"size\":5,\"blobId\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"},"
            "{\"rfilename\":\"b.gguf\",\"size\":9,\"blobId\":\"x\",\"lfs\":{\"size\":10,\"sha256\":"
            "\"BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB\"}},"
            "{\"rfilename\":\"c\"}]}");
    arena_init(&a, MIB);
    assert_ok(e, hf_listing_parse(json, &l, &a, &e));
    assert_int_equal(l.n, 3);
    assert_string_equal(l.commit, "0123456789012345678901234567890123456789");
    assert_int_equal(l.files[0].bytes, 5);
    assert_string_equal(l.files[0].git_sha1, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    assert_string_equal(l.files[0].sha256, "");
    assert_int_equal(l.files[1].bytes, 10);
    assert_string_equal(l.files[1].git_sha1, "");
    assert_memory_equal(l.files[1].sha256, "bbbbbbbb", 8);
    assert_true(l.files[2].bytes == SIZE_UNKNOWN);
    arena_fini(&a);
}

static void listing_that_outgrows_its_arena_is_an_answer(void **state)
{
    (void)state;
    struct error e;
    struct arena a;
    struct hf_listing l;
    arena_init(&a, 64);
    const struct str json =
        STR("{\"sha\":\"0123456789012345678901234567890123456789\",\"siblings\":[{\"rfilename\":\"a\"}]}");
    assert_fails(e, ERR_NOMEM, "no memory", hf_listing_parse(json, &l, &a, &e));
    arena_fini(&a);
}

static void bytes_are_shown_in_decimal_units(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(progress_bytes(0, out, sizeof out), "0 B");
    assert_string_equal(progress_bytes(999, out, sizeof out), "999 B");
    assert_string_equal(progress_bytes(1000, out, sizeof out), "1.0 kB");
    assert_string_equal(progress_bytes(98362432, out, sizeof out), "98.4 MB");
    assert_string_equal(progress_bytes(999999, out, sizeof out), "1.0 MB");
    assert_string_equal(progress_bytes(UINT64_MAX, out, sizeof out), "18446.7 PB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choose_takes_by_the_rule),
        cmocka_unit_test(choose_refuses_with_the_choices),
        cmocka_unit_test(listing_gives_sizes_and_hashes),
        cmocka_unit_test(listing_that_outgrows_its_arena_is_an_answer),
        cmocka_unit_test(bytes_are_shown_in_decimal_units),
    };
    return cmocka_run_group_tests_name("hub/choose", tests, NULL, NULL);
}
