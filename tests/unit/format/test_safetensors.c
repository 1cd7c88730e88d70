/* safetensors files: what is read back, and what is refused and how. */
#include "format/model_maker.h"

static struct error e;

static const char *put(const char *header, size_t data_bytes)
{
    struct buf b;
    mk_safetensors(&b, header, data_bytes);
    const char *path = maker_put("m.safetensors", buf_str(&b));
    buf_fini(&b);
    return path;
}

static void tensors_are_listed_by_offset(void **state)
{
    (void)state;
    struct model_source *s;
    assert_ok(e, model_source_open(put(MK_TINY_HEADER, 44), &s, &e));
    assert_int_equal(model_source_kind(s), MODEL_SAFETENSORS);
    assert_null(model_source_gguf(s));
    assert_int_equal(model_tensor_count(s), 2);
    const struct model_tensor *t = model_tensor_at(s, 0);
    assert_true(str_is(t->name, "a.weight"));
    assert_int_equal(t->view.dtype, DTYPE_F32);
    assert_int_equal(t->view.shape[0], 4);
    assert_int_equal(t->view.shape[1], 2);
    assert_int_equal(((const unsigned char *)t->view.data)[3], 22);
    const struct model_tensor *b = model_tensor_find(s, STR("b.weight"));
    assert_int_equal(b->offset, t->offset + 32);
    assert_int_equal(b->view.bytes, 12);
    model_source_close(s);
}

static void scalars_and_empty_tensors_are_tensors(void **state)
{
    (void)state;
    struct model_source *s;
    const char *path = put("{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                           "\"z\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
                           "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}",
        8);
    assert_ok(e, model_source_open(path, &s, &e));
    assert_int_equal(model_tensor_find(s, STR("s"))->view.n_dims, 0);
    assert_int_equal(model_tensor_find(s, STR("s"))->view.bytes, 8);
    assert_int_equal(model_tensor_find(s, STR("z"))->view.bytes, 0);
    model_source_close(s);
}

#define ONE(dtype, shape, offsets) "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void hostile_headers_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        enum err code;
        const char *part;
    } bads[] = {
        {"{\"t\":", ERR_FORMAT, "invalid JSON at line 1"},
        {"{\"t\":1}", ERR_FORMAT, "tensor 't': the entry must be an object"},
        {"{\"t\":{}}", ERR_FORMAT, "tensor 't': field 'dtype' is missing"},
        {ONE("3", "[2]", "[0,8]"), ERR_INVALID, "tensor 't': field 'dtype'"},
        {ONE("\"F33\"", "[2]", "[0,8]"), ERR_UNSUPPORTED, "tensor 't': dtype 'F33' is unknown"},
        {ONE("\"F32\"", "2", "[0,8]"), ERR_INVALID, "tensor 't': field 'shape'"},
        {ONE("\"F32\"", "[-2]", "[0,8]"), ERR_FORMAT, "field 'shape[0]'"},
        {ONE("\"F32\"", "[1.5]", "[0,8]"), ERR_FORMAT, "field 'shape[0]'"},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,8]"), ERR_LIMIT, "9 dimensions"},
        {ONE("\"F32\"", "[4294967296,4294967296,4]", "[0,8]"), ERR_FORMAT, "tensor 't'"},
        {ONE("\"F32\"", "[9223372036854775807]", "[0,8]"), ERR_FORMAT, "tensor 't'"},
        {ONE("\"F32\"", "[99999999999999999999]", "[0,8]"), ERR_FORMAT, "invalid JSON"},
        {ONE("\"F32\"", "[2]", "[0]"), ERR_FORMAT, "field 'data_offsets'"},
        {ONE("\"F32\"", "[2]", "[8,0]"), ERR_FORMAT, "'data_offsets' must be two whole numbers"},
        {ONE("\"F32\"", "[2]", "[-8,0]"), ERR_FORMAT, "field 'data_offsets'"},
        {ONE("\"F32\"", "[2]", "\"x\""), ERR_INVALID, "field 'data_offsets'"},
        {ONE("\"F32\"", "[2]", "[0,12]"), ERR_FORMAT, "spans 12 bytes; the shape needs 8"},
        {ONE("\"F32\"", "[2]", "[8,16]"), ERR_FORMAT, "tensor 't'"},
        {ONE("\"F32\"", "[2]", "[9223372036854775799,9223372036854775807]"), ERR_FORMAT, "tensor 't'"},
        {ONE("\"F32\"", "[1]", "[0,4]"), ERR_FORMAT, "no tensor uses the last 4 bytes"},
        {ONE("\"F32\"", "[1]", "[4,8]"), ERR_FORMAT, "no tensor uses the 4 bytes before tensor 't'"},
        {ONE("\"F32\"", "[1]", "[2,6]"), ERR_FORMAT, "is not a multiple of 4"},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", ERR_FORMAT, "empty"},
        {"{\"a\\u0001\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", ERR_FORMAT, "name 'a\\x01'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
            ERR_FORMAT, "overlaps tensor a"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            ERR_FORMAT, "duplicate"},
        {"{\"__metadata__\":[]}", ERR_FORMAT, "'__metadata__' must be an object"},
        {"{\"__metadata__\":{\"k\":1}}", ERR_FORMAT, "'__metadata__': 'k' must be a string"},
        {"{}", ERR_FORMAT, "no tensor uses the last 8 bytes"},
    };
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        struct model_source *s;
        const char *path = put(bads[i].header, 8);
        assert_fails(e, bads[i].code, bads[i].part, model_source_open(path, &s, &e));
        assert_null(s);
        assert_true(strncmp(e.text, path, strlen(path)) == 0);
    }
}

static void a_header_length_that_lies_is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {UINT64_MAX, (uint64_t)1 << 40, 100};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        struct model_source *s;
        struct buf b;
        buf_init(&b, MIB);
        mk_u64(&b, lengths[i]);
        buf_add(&b, STR("{}      "));
        const char *path = maker_put("m.safetensors", buf_str(&b));
        assert_fails(e, ERR_FORMAT, "byte 0: a header of", model_source_open(path, &s, &e));
        buf_fini(&b);
    }
}

static void a_header_beyond_the_limit_is_refused_unread(void **state)
{
    (void)state;
    struct model_source *s;
    struct buf b;
    buf_init(&b, MIB);
    mk_u64(&b, MODEL_JSON_BYTES_MAX + 1);
    buf_add(&b, STR("{}"));
    const char *path = maker_put("m.safetensors", buf_str(&b));
    buf_fini(&b);
    assert_int_equal(truncate(path, (off_t)(64 * GIB)), 0); /* all of it is there, as a hole */
    const uint64_t before = mem_thread_allocs();
    assert_fails(e, ERR_LIMIT, "the limit is", model_source_open(path, &s, &e));
    assert_true(mem_thread_allocs() - before < 20);
}

static void json_nested_too_deep_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    struct buf b;
    buf_init(&b, MIB);
    buf_add(&b, STR("{\"t\":"));
    for (int i = 0; i < 100000; i++)
        buf_add_char(&b, '[');
    const char *path = put(b.p, 8);
    buf_fini(&b);
    assert_fails(e, ERR_LIMIT, "nested deeper", model_source_open(path, &s, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_listed_by_offset),
        cmocka_unit_test(scalars_and_empty_tensors_are_tensors),
        cmocka_unit_test(hostile_headers_are_refused_by_name),
        cmocka_unit_test(a_header_length_that_lies_is_refused),
        cmocka_unit_test(a_header_beyond_the_limit_is_refused_unread),
        cmocka_unit_test(json_nested_too_deep_is_refused),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
