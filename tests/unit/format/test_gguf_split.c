/* GGUF models cut into files: any part opens the set, and a set that does not fit together is refused. */
#include "format/model_maker.h"

static struct error e;

struct part_options {
    uint32_t no, count, tensors; /* keys; tensors 0 = leave that key out */
    const char *name;            /* of the one tensor */
    bool first;                  /* holds the model's own metadata */
};

static void put_part(const char *file, struct part_options o)
{
    struct buf b;
    const uint64_t n_fields = (o.tensors > 0 ? 3u : 2u) + (o.first ? MK_LLAMA_FIELDS : 0u);
    mk_start(&b, 3, 1, n_fields);
    mk_key(&b, "split.no", GGUF_U16), mk_raw(&b, (uint16_t[]){(uint16_t)o.no}, 2);
    mk_key(&b, "split.count", GGUF_U16), mk_raw(&b, (uint16_t[]){(uint16_t)o.count}, 2);
    if (o.tensors > 0)
        mk_key(&b, "split.tensors.count", GGUF_I32), mk_u32(&b, o.tensors);
    if (o.first)
        mk_llama_fields(&b);
    mk_tensor(&b, o.name, 1, (uint64_t[]){8}, 0, 0);
    mk_pad(&b, 32);
    mk_bytes(&b, 32);
    maker_put(file, buf_str(&b));
    buf_fini(&b);
}

static void put_set(void)
{
    put_part("m-00001-of-00003.gguf", (struct part_options){0, 3, 3, "one", true});
    put_part("m-00002-of-00003.gguf", (struct part_options){1, 3, 3, "two", false});
    put_part("m-00003-of-00003.gguf", (struct part_options){2, 3, 3, "three", false});
}

static void any_part_opens_the_whole_set_in_order(void **state)
{
    (void)state;
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    put_set();
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct model_source *s;
        struct model_config c;
        assert_ok(e, model_source_open(maker_path(names[i]), &s, &e));
        assert_int_equal(model_part_count(s), 3);
        assert_int_equal(model_tensor_count(s), 3);
        assert_int_equal(model_tensor_find(s, STR("one"))->part, 0);
        assert_int_equal(model_tensor_find(s, STR("three"))->part, 2);
        assert_ok(e, model_config_read(s, &c, &e));
        assert_int_equal(c.n_layers, 2);
        model_source_close(s);
    }
}

static void a_relative_path_finds_its_neighbours(void **state)
{
    (void)state;
    struct model_source *s;
    char before[PATH_BYTES_MAX];
    put_set();
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(maker_folder), 0);
    assert_ok(e, model_source_open("m-00002-of-00003.gguf", &s, &e));
    assert_int_equal(model_part_count(s), 3);
    model_source_close(s);
    assert_int_equal(chdir(before), 0);
}

static void a_missing_part_is_named(void **state)
{
    (void)state;
    struct model_source *s;
    put_set();
    assert_int_equal(unlink(maker_path("m-00002-of-00003.gguf")), 0);
    assert_fails(
        e, ERR_NOT_FOUND, "m-00002-of-00003.gguf", model_source_open(maker_path("m-00001-of-00003.gguf"), &s, &e));
}

static void parts_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct part_options second;
        const char *part;
    } bads[] = {
        {{2, 3, 3, "two", false}, "'split.no'"},
        {{1, 4, 3, "two", false}, "'split.count' says 4"},
        {{1, 3, 9, "two", false}, "'split.tensors.count' is 9"},
        {{1, 3, 3, "one", false}, "tensor 'one' is there twice"},
    };
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        struct model_source *s;
        put_set();
        put_part("m-00002-of-00003.gguf", bads[i].second);
        assert_fails(e, ERR_FORMAT, bads[i].part, model_source_open(maker_path("m-00001-of-00003.gguf"), &s, &e));
    }
}

static void a_tensor_count_that_is_wrong_everywhere_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    put_part("n-00001-of-00002.gguf", (struct part_options){0, 2, 7, "one", true});
    put_part("n-00002-of-00002.gguf", (struct part_options){1, 2, 7, "two", false});
    assert_fails(e, ERR_FORMAT, "hold 2 tensors, key 'split.tensors.count' says 7",
        model_source_open(maker_path("n-00001-of-00002.gguf"), &s, &e));
}

static void a_part_under_another_name_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    put_part("renamed.gguf", (struct part_options){0, 3, 3, "one", true});
    assert_fails(e, ERR_FORMAT, "one of 3 files", model_source_open(maker_path("renamed.gguf"), &s, &e));
}

static void a_neighbour_that_links_elsewhere_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    assert_int_equal(mkdir(maker_path("inside"), 0700), 0);
    put_part("outside.gguf", (struct part_options){1, 2, 2, "two", false});
    put_part("inside/l-00001-of-00002.gguf", (struct part_options){0, 2, 2, "one", true});
    assert_int_equal(symlink("../outside.gguf", maker_path("inside/l-00002-of-00002.gguf")), 0);
    assert_fails(e, ERR_INVALID, "leads out of the model's folder",
        model_source_open(maker_path("inside/l-00001-of-00002.gguf"), &s, &e));
}

static void too_many_parts_are_refused_before_any_is_opened(void **state)
{
    (void)state;
    struct model_source *s;
    put_part("big-00001-of-99999.gguf", (struct part_options){0, 9999, 3, "one", true});
    assert_fails(
        e, ERR_LIMIT, "99999 files; the limit is", model_source_open(maker_path("big-00001-of-99999.gguf"), &s, &e));
}

static void opens_as(const char *folder, const char *file)
{
    struct model_source *s;
    assert_ok(e, model_source_open(maker_path(folder), &s, &e));
    assert_int_equal(model_source_kind(s), MODEL_GGUF);
    assert_true(str_has_suffix(str_of(model_source_path(s)), str_of(file)));
    model_source_close(s);
}

static void a_folder_with_one_model_is_that_model(void **state)
{
    (void)state;
    struct model_source *s;
    assert_int_equal(mkdir(maker_path("one"), 0700), 0);
    assert_fails(e, ERR_NOT_FOUND, "nor a .gguf file", model_source_open(maker_path("one"), &s, &e));
    put_part("one/m-00002-of-00002.gguf", (struct part_options){1, 2, 2, "two", false});
    put_part("one/m-00001-of-00002.gguf", (struct part_options){0, 2, 2, "one", true});
    maker_put_text("one/mmproj-m.gguf", "not looked at");
    maker_put_text("one/.hidden.gguf", "not looked at");
    maker_put_text("one/README.md", "not looked at");
    opens_as("one", "one/m-00001-of-00002.gguf");
    opens_as("one/", "/m-00001-of-00002.gguf");
    assert_int_equal(unlink(maker_path("one/m-00001-of-00002.gguf")), 0);
    assert_fails(e, ERR_NOT_FOUND, "m-00001-of-00002.gguf", model_source_open(maker_path("one"), &s, &e));
}

static void a_folder_with_several_models_names_them(void **state)
{
    (void)state;
    struct model_source *s;
    char name[32];
    assert_int_equal(mkdir(maker_path("many"), 0700), 0);
    put_part("many/b.gguf", (struct part_options){0, 1, 1, "one", true});
    opens_as("many", "many/b.gguf");
    maker_put_text("many/a-00001-of-00002.gguf", "");
    maker_put_text("many/a-00002-of-00002.gguf", "");
    assert_fails(e, ERR_INVALID, "name one of its files: a-00001-of-00002.gguf, b.gguf",
        model_source_open(maker_path("many"), &s, &e));
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "many/c%02d.gguf", i);
        maker_put_text(name, "");
    }
    assert_fails(e, ERR_INVALID, ", ...", model_source_open(maker_path("many"), &s, &e));
}

static void weights_of_the_other_kind_come_first(void **state)
{
    (void)state;
    struct model_source *s;
    assert_int_equal(mkdir(maker_path("both"), 0700), 0);
    put_part("both/m.gguf", (struct part_options){0, 1, 1, "one", true});
    maker_put_text("both/model.safetensors", "broken");
    assert_fails(e, ERR_FORMAT, "model.safetensors", model_source_open(maker_path("both"), &s, &e));
}

static void a_file_that_links_out_of_its_folder_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    assert_int_equal(mkdir(maker_path("linked"), 0700), 0);
    put_part("elsewhere.gguf", (struct part_options){0, 1, 1, "one", true});
    assert_int_equal(symlink("../elsewhere.gguf", maker_path("linked/m.gguf")), 0);
    assert_fails(e, ERR_INVALID, "leads out of the model's folder", model_source_open(maker_path("linked"), &s, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_opens_the_whole_set_in_order),
        cmocka_unit_test(a_relative_path_finds_its_neighbours),
        cmocka_unit_test(a_missing_part_is_named),
        cmocka_unit_test(parts_that_do_not_fit_are_refused),
        cmocka_unit_test(a_tensor_count_that_is_wrong_everywhere_is_refused),
        cmocka_unit_test(a_part_under_another_name_is_refused),
        cmocka_unit_test(a_neighbour_that_links_elsewhere_is_refused),
        cmocka_unit_test(too_many_parts_are_refused_before_any_is_opened),
        cmocka_unit_test(a_folder_with_one_model_is_that_model),
        cmocka_unit_test(a_folder_with_several_models_names_them),
        cmocka_unit_test(weights_of_the_other_kind_come_first),
        cmocka_unit_test(a_file_that_links_out_of_its_folder_is_refused),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
