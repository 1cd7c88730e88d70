/* HF folders: one file or shards, links that are the cache's own and links that are not, templates. */
#include "format/model_maker.h"

static struct error e;

static void put_weights(const char *path, const char *header, size_t data_bytes)
{
    struct buf b;
    mk_safetensors(&b, header, data_bytes);
    maker_put(path, buf_str(&b));
    buf_fini(&b);
}

#define T(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"

/* A fresh folder with a config and two shards. */
static const char *put_sharded(const char *index)
{
    static int n;
    static char name[32];
    char path[64];
    snprintf(name, sizeof name, "sharded%d", n++);
    assert_int_equal(mkdir(maker_path(name), 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", name);
    maker_put_text(path, MK_TINY_CONFIG);
    snprintf(path, sizeof path, "%s/model-1.safetensors", name);
    put_weights(path, T("a"), 8);
    snprintf(path, sizeof path, "%s/model-2.safetensors", name);
    put_weights(path, T("b"), 8);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", name);
    maker_put_text(path, index);
    return maker_path(name);
}

#define GOOD_INDEX                                                                                                     \
    "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"b\":\"model-2.safetensors\",\"a\":\"model-1.safetensors\"}}"

static void shards_are_opened_in_the_order_of_their_names(void **state)
{
    (void)state;
    struct model_source *s;
    struct model_config c;
    assert_ok(e, model_source_open(put_sharded(GOOD_INDEX), &s, &e));
    assert_int_equal(model_part_count(s), 2);
    assert_int_equal(model_tensor_find(s, STR("a"))->part, 0);
    assert_int_equal(model_tensor_find(s, STR("b"))->part, 1);
    assert_non_null(strstr(model_part_at(s, 1)->path, "model-2.safetensors"));
    assert_non_null(model_source_file(s, MODEL_FILE_CONFIG));
    assert_null(model_source_file(s, MODEL_FILE_TOKENIZER));
    assert_ok(e, model_config_read(s, &c, &e));
    assert_int_equal(c.arch, ARCH_LLAMA);
    model_source_close(s);
}

static void an_index_that_lies_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        enum err code;
        const char *part;
    } bads[] = {
        {"[]", ERR_FORMAT, "must be a JSON object"},
        {"{}", ERR_FORMAT, "'weight_map' is missing"},
        {"{\"weight_map\":{}}", ERR_FORMAT, "'weight_map' is missing or empty"},
        {"{\"weight_map\":{\"a\":1}}", ERR_FORMAT, "'a' must name a file"},
        {"{\"weight_map\":{\"a\":\"../model-1.safetensors\"}}", ERR_INVALID, "'../model-1.safetensors' is not a plain"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", ERR_INVALID, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"sub/model-1.safetensors\"}}", ERR_INVALID, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", ERR_INVALID, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", ERR_INVALID, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"model-1.safetensors\\u0000x\"}}", ERR_INVALID, "not a plain file name"},
        {"{\"weight_map\":{\"a\":\"model-9.safetensors\"}}", ERR_NOT_FOUND, "model-9.safetensors"},
        {"{\"weight_map\":{\"c\":\"model-1.safetensors\"}}", ERR_FORMAT, "tensor 'c' should be in model-1"},
        {"{\"weight_map\":{\"b\":\"model-1.safetensors\",\"a\":\"model-2.safetensors\"}}", ERR_FORMAT, "should be in"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", ERR_FORMAT, "config.json: byte 0: a header of"},
    };
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        struct model_source *s;
        const char *path = put_sharded(bads[i].index);
        assert_fails(e, bads[i].code, bads[i].part, model_source_open(path, &s, &e));
        assert_null(s);
    }
}

static void shards_that_share_a_tensor_are_refused(void **state)
{
    (void)state;
    struct model_source *s;
    const char *path = put_sharded(GOOD_INDEX);
    char file[PATH_BYTES_MAX];
    snprintf(file, sizeof file, "%s/model-2.safetensors", strrchr(path, '/') + 1);
    put_weights(file, T("a"), 8);
    assert_fails(e, ERR_FORMAT, "tensor 'a' is there twice", model_source_open(path, &s, &e));
}

static void a_link_out_of_the_folder_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    static const char *const links[] = {"model.safetensors", "config.json", "model.safetensors.index.json"};
    put_weights("loot.safetensors", T("a"), 8);
    for (size_t i = 0; i < COUNT_OF(links); i++) {
        char name[64], path[PATH_BYTES_MAX];
        snprintf(name, sizeof name, "links%zu", i);
        assert_int_equal(mkdir(maker_path(name), 0700), 0);
        snprintf(path, sizeof path, "%s/%s", name, links[i]);
        assert_int_equal(symlink("../loot.safetensors", maker_path(path)), 0);
        assert_fails(e, ERR_INVALID, "leads out of the model's folder", model_source_open(maker_path(name), &s, &e));
    }
}

static void a_link_inside_the_folder_is_fine(void **state)
{
    (void)state;
    struct model_source *s;
    assert_int_equal(mkdir(maker_path("inner"), 0700), 0);
    put_weights("inner/real.bin", T("a"), 8);
    assert_int_equal(symlink("real.bin", maker_path("inner/model.safetensors")), 0);
    assert_ok(e, model_source_open(maker_path("inner"), &s, &e));
    model_source_close(s);
}

/* The layout of the Hugging Face cache: snapshots link into blobs of the same repository, never of another. */
static void a_cache_snapshot_may_link_to_its_own_blobs_only(void **state)
{
    (void)state;
    static const char *const folders[] = {"models--a--b", "models--a--b/blobs", "models--a--b/snapshots",
        "models--a--b/snapshots/rev", "models--a--c", "models--a--c/blobs"};
    struct model_source *s;
    struct model_config c;
    for (size_t i = 0; i < COUNT_OF(folders); i++)
        assert_int_equal(mkdir(maker_path(folders[i]), 0700), 0);
    put_weights("models--a--b/blobs/1111", T("a"), 8);
    put_weights("models--a--c/blobs/2222", T("a"), 8);
    maker_put_text("models--a--b/snapshots/rev/config.json", MK_TINY_CONFIG);
    const char *link = maker_path("models--a--b/snapshots/rev/model.safetensors");
    assert_int_equal(symlink("../../blobs/1111", link), 0);
    assert_ok(e, model_source_open(maker_path("models--a--b/snapshots/rev"), &s, &e));
    assert_ok(e, model_config_read(s, &c, &e));
    assert_string_equal(c.name, "a/b");
    model_source_close(s);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink("../../../models--a--c/blobs/2222", link), 0);
    assert_fails(e, ERR_INVALID, "leads out", model_source_open(maker_path("models--a--b/snapshots/rev"), &s, &e));
}

static void shards_that_are_not_files_are_answers(void **state)
{
    (void)state;
    struct model_source *s;
    const char *path = put_sharded(GOOD_INDEX);
    char file[PATH_BYTES_MAX];
    assert_ok(e, path_join(file, path, "model-2.safetensors", &e));
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_fails(e, ERR_INVALID, "a FIFO", model_source_open(path, &s, &e));
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkdir(file, 0700), 0);
    assert_fails(e, ERR_INVALID, "a directory", model_source_open(path, &s, &e));
}

static void the_chat_template_is_found_wherever_it_is(void **state)
{
    (void)state;
    struct model_source *s;
    char *text;
    size_t n;
    assert_int_equal(mkdir(maker_path("chat"), 0700), 0);
    put_weights("chat/model.safetensors", T("a"), 8);
    static const struct {
        const char *file, *content, *expected;
    } steps[] = {
        {"chat/tokenizer_config.json", "{\"add_bos_token\":true}", NULL},
        {"chat/tokenizer_config.json", "{\"chat_template\":\"plain\"}", "plain"},
        {"chat/tokenizer_config.json",
            "{\"chat_template\":[{\"name\":\"tool\",\"template\":\"t\"},{\"name\":\"default\",\"template\":\"d\"}]}",
            "d"},
        {"chat/chat_template.json", "{\"chat_template\":\"json\"}", "json"},
        {"chat/chat_template.jinja", "jinja\n", "jinja\n"},
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        maker_put_text(steps[i].file, steps[i].content);
        assert_ok(e, model_source_open(maker_path("chat"), &s, &e));
        assert_ok(e, model_source_chat_template(s, &text, &n, &e));
        if (steps[i].expected == NULL)
            assert_null(text);
        else
            assert_string_equal(text, steps[i].expected);
        assert_int_equal(n, text == NULL ? 0 : strlen(text));
        mem_free(text);
        model_source_close(s);
    }
}

static void a_folder_without_config_opens_but_has_no_record(void **state)
{
    (void)state;
    struct model_source *s;
    struct model_config c;
    assert_int_equal(mkdir(maker_path("bare"), 0700), 0);
    put_weights("bare/model.safetensors", T("a"), 8);
    assert_ok(e, model_source_open(maker_path("bare/model.safetensors"), &s, &e));
    assert_fails(e, ERR_NOT_FOUND, "no config.json", model_config_read(s, &c, &e));
    model_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_opened_in_the_order_of_their_names),
        cmocka_unit_test(an_index_that_lies_is_refused),
        cmocka_unit_test(shards_that_share_a_tensor_are_refused),
        cmocka_unit_test(a_link_out_of_the_folder_is_refused),
        cmocka_unit_test(a_link_inside_the_folder_is_fine),
        cmocka_unit_test(a_cache_snapshot_may_link_to_its_own_blobs_only),
        cmocka_unit_test(shards_that_are_not_files_are_answers),
        cmocka_unit_test(the_chat_template_is_found_wherever_it_is),
        cmocka_unit_test(a_folder_without_config_opens_but_has_no_record),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
