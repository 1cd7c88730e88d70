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
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
