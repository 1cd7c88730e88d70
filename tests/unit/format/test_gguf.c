/* GGUF files: what is read back, and what is refused and how. */
#include "format/model_maker.h"

static struct error e;

static const char *put_and_fini(struct buf *b)
{
    const char *path = maker_put("m.gguf", buf_str(b));
    buf_fini(b);
    return path;
}

static void tensors_are_read_back_row_major(void **state)
{
    (void)state;
    struct buf b;
    struct model_source *s;
    mk_tiny_llama(&b);
    assert_ok(e, model_source_open(put_and_fini(&b), &s, &e));
    assert_int_equal(model_source_kind(s), MODEL_GGUF);
    assert_int_equal(model_tensor_count(s), 3);
    const struct model_tensor *t = model_tensor_find(s, STR("token_embd.weight"));
    assert_ptr_equal(t, model_tensor_at(s, 0));
    assert_int_equal(t->view.dtype, DTYPE_Q8_0);
    assert_int_equal(t->view.n_dims, 2);
    assert_int_equal(t->view.shape[0], 4); /* rows first, though the file has them last */
    assert_int_equal(t->view.shape[1], 32);
    assert_int_equal(t->view.bytes, 4 * 34);
    const struct model_tensor *norm = model_tensor_find(s, STR("blk.0.attn_norm.weight"));
    assert_int_equal(norm->offset, t->offset + 160);
    assert_int_equal(*(const unsigned char *)norm->view.data, (unsigned char)(160 * 7 + 1));
    assert_null(model_tensor_find(s, STR("token_embd.weigh")));
    assert_null(model_tensor_find(s, STR("")));
    assert_int_equal(model_part_count(s), 1);
    assert_int_equal(model_part_at(s, 0)->n_tensors, 3);
    assert_null(model_source_file(s, MODEL_FILE_CONFIG));
    model_source_close(s);
}

static void fields_of_every_type_are_read_and_checked(void **state)
{
    (void)state;
    struct buf b;
    struct model_source *s;
    mk_start(&b, 2, 0, 14);
    mk_key(&b, "u8", GGUF_U8), mk_raw(&b, "\xff", 1);
    mk_key(&b, "i8", GGUF_I8), mk_raw(&b, "\xff", 1);
    mk_key(&b, "u16", GGUF_U16), mk_raw(&b, "\xff\xff", 2);
    mk_key(&b, "i16", GGUF_I16), mk_raw(&b, "\xfe\xff", 2);
    mk_key_u32(&b, "u32", UINT32_MAX);
    mk_key(&b, "i32", GGUF_I32), mk_u32(&b, (uint32_t)-7);
    mk_key_f32(&b, "f32", 0.5f);
    mk_key_bool(&b, "bool", 1);
    mk_key_str(&b, "str", "caf\xc3\xa9\n");
    mk_key(&b, "u64", GGUF_U64), mk_u64(&b, UINT64_MAX);
    mk_key(&b, "i64", GGUF_I64), mk_u64(&b, (uint64_t)INT64_MIN);
    const double big = 1e300;
    mk_key(&b, "f64", GGUF_F64), mk_raw(&b, &big, 8);
    mk_key_array(&b, "empty", GGUF_STRING, 0);
    mk_key_array(&b, "nest", GGUF_ARRAY, 2);
    mk_u32(&b, GGUF_I32), mk_u64(&b, 2), mk_u32(&b, 5), mk_u32(&b, 6);
    mk_u32(&b, GGUF_STRING), mk_u64(&b, 1), mk_str(&b, "deep");
    assert_ok(e, model_source_open(put_and_fini(&b), &s, &e));
    const struct gguf *g = model_source_gguf(s);
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_field_count(g), 14);
    const struct str all = gguf_field_bytes(g);
    assert_ptr_equal(all.p, gguf_field_at(g, 0)->key.p);
    assert_true(str_has_suffix(all, STR("deep")));

    uint64_t u = 0;
    int64_t i = 0;
    double d = 0;
    bool yes = false;
    struct str text = {0};
    assert_ok(e, gguf_get_u64(g, "u8", 0, 255, &u, &e));
    assert_int_equal(u, 255);
    assert_ok(e, gguf_get_i64(g, "i8", -1, 0, &i, &e));
    assert_int_equal(i, -1);
    assert_ok(e, gguf_get_u64(g, "u16", 0, UINT64_MAX, &u, &e));
    assert_int_equal(u, 65535);
    assert_ok(e, gguf_get_i64(g, "i16", INT64_MIN, INT64_MAX, &i, &e));
    assert_int_equal(i, -2);
    assert_ok(e, gguf_get_u64(g, "u64", 0, UINT64_MAX, &u, &e));
    assert_true(u == UINT64_MAX);
    assert_ok(e, gguf_get_i64(g, "i64", INT64_MIN, 0, &i, &e));
    assert_true(i == INT64_MIN);
    assert_ok(e, gguf_get_f64(g, "f64", 0, 1e301, &d, &e));
    assert_true(d == 1e300);
    assert_ok(e, gguf_get_f64(g, "i32", -100, 100, &d, &e));
    assert_true(d == -7);
    assert_ok(e, gguf_get_bool(g, "bool", &yes, &e));
    assert_true(yes);
    assert_ok(e, gguf_get_str(g, "str", &text, &e));
    assert_true(str_is(text, "caf\xc3\xa9\n"));
    u = 77;
    assert_ok(e, gguf_get_u64(g, "absent", 0, 1, &u, &e));
    assert_int_equal(u, 77);

    assert_fails(e, ERR_INVALID, "'i8'", gguf_get_u64(g, "i8", 0, 10, &u, &e));
    assert_fails(e, ERR_INVALID, "'u8'", gguf_get_u64(g, "u8", 0, 254, &u, &e));
    assert_fails(e, ERR_INVALID, "'u64'", gguf_get_i64(g, "u64", INT64_MIN, INT64_MAX, &i, &e));
    assert_fails(e, ERR_INVALID, "'str'", gguf_get_u64(g, "str", 0, 10, &u, &e));
    assert_fails(e, ERR_INVALID, "'u8'", gguf_get_str(g, "u8", &text, &e));
    assert_fails(e, ERR_INVALID, "'nest'", gguf_get_f64(g, "nest", 0, 1, &d, &e));
    assert_fails(e, ERR_INVALID, "'u32'", gguf_get_bool(g, "u32", &yes, &e));

    struct gguf_array a, inner;
    assert_ok(e, gguf_get_array(g, "empty", GGUF_STRING, &a, &e));
    assert_false(gguf_next_str(&a, &text));
    assert_fails(e, ERR_INVALID, "'empty'", gguf_get_array(g, "empty", GGUF_F32, &a, &e));
    assert_fails(e, ERR_INVALID, "'u8'", gguf_get_array(g, "u8", GGUF_U8, &a, &e));
    assert_ok(e, gguf_get_array(g, "nest", GGUF_ARRAY, &a, &e));
    assert_true(gguf_next_array(&a, &inner));
    assert_true(gguf_next_i64(&inner, &i) && i == 5);
    assert_true(gguf_next_i64(&inner, &i) && i == 6);
    assert_false(gguf_next_i64(&inner, &i));
    assert_true(gguf_next_array(&a, &inner));
    assert_false(gguf_next_i64(&inner, &i));
    assert_true(gguf_next_str(&inner, &text) && str_is(text, "deep"));
    assert_false(gguf_next_array(&a, &inner));

    char shown[32];
    assert_string_equal(gguf_show(gguf_find(g, "str"), shown, sizeof shown), "caf\xc3\xa9\\x0a");
    assert_string_equal(gguf_show(gguf_find(g, "i64"), shown, sizeof shown), "-9223372036854775808");
    assert_string_equal(gguf_show(gguf_find(g, "nest"), shown, sizeof shown), "[array x 2]");
    assert_string_equal(gguf_show(gguf_find(g, "bool"), shown, sizeof shown), "true");
    model_source_close(s);
}

static void strings_of_an_array_are_indexed_in_place(void **state)
{
    (void)state;
    struct buf b;
    struct model_source *s;
    mk_tiny_llama(&b);
    assert_ok(e, model_source_open(put_and_fini(&b), &s, &e));
    struct gguf_array a;
    struct str *tokens;
    assert_ok(e, gguf_get_array(model_source_gguf(s), "tokenizer.ggml.tokens", GGUF_STRING, &a, &e));
    assert_ok(e, gguf_strings(&a, &tokens, &e));
    assert_int_equal(a.n, 4);
    assert_true(str_is(tokens[0], "<unk>") && str_is(tokens[2], "</s>") && tokens[3].n == 0);
    mem_free(tokens);
    model_source_close(s);
}

/* One way in which a file can lie, and what the answer must say. */
struct bad {
    void (*make)(struct buf *b);
    enum err code;
    const char *part;
};

static void bad_version(struct buf *b)
{
    mk_start(b, 1, 0, 0);
}
static void big_endian(struct buf *b)
{
    mk_start(b, 0x03000000, 0, 0);
}
static void many_tensors(struct buf *b)
{
    mk_start(b, 3, UINT64_MAX, 0);
}
static void tensors_not_there(struct buf *b)
{
    mk_start(b, 3, 1000, 0);
}
static void many_fields(struct buf *b)
{
    mk_start(b, 3, 0, (uint64_t)1 << 62);
}
static void endless_key(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_u64(b, UINT64_MAX);
}
static void empty_key(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_u32(b, "", 1);
}
static void control_key(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_u32(b, "a\nb", 1);
}
static void twice_key(struct buf *b)
{
    mk_start(b, 3, 0, 2);
    mk_key_u32(b, "same", 1);
    mk_key_u32(b, "same", 2);
}
static void unknown_type(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key(b, "odd", 13);
    mk_u64(b, 0);
}
static void bool_of_two(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_bool(b, "flag", 2);
}
static void array_overflow(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_array(b, "list", GGUF_U64, (uint64_t)1 << 61);
}
static void array_not_there(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_array(b, "list", GGUF_STRING, (uint64_t)1 << 40);
}
static void array_of_unknown(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_array(b, "list", 99, 1);
}
static void deep_array(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_array(b, "deep", GGUF_ARRAY, 1);
    for (int i = 0; i < 100; i++)
        mk_u32(b, GGUF_ARRAY), mk_u64(b, 1);
}
static void odd_alignment(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_u32(b, "general.alignment", 48);
}
static void zero_alignment(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_u32(b, "general.alignment", 0);
}
static void text_alignment(struct buf *b)
{
    mk_start(b, 3, 0, 1);
    mk_key_str(b, "general.alignment", "32");
}

static void one_tensor(struct buf *b, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type, uint64_t offset)
{
    mk_start(b, 3, 1, 0);
    mk_tensor(b, name, 2, (uint64_t[]){ne0, ne1}, type, offset);
    mk_pad(b, 32);
    mk_bytes(b, 256);
}
static void tensor_beyond(struct buf *b)
{
    one_tensor(b, "t", 32, 3, 0, 0);
}
static void tensor_offset_beyond(struct buf *b)
{
    one_tensor(b, "t", 1, 1, 0, 1 << 20);
}
static void tensor_offset_overflow(struct buf *b)
{
    one_tensor(b, "t", 1, 1, 0, UINT64_MAX - 31);
}
static void tensor_offset_odd(struct buf *b)
{
    one_tensor(b, "t", 1, 1, 0, 8);
}
static void tensor_shape_overflow(struct buf *b)
{
    one_tensor(b, "t", (uint64_t)1 << 33, (uint64_t)1 << 33, 0, 0);
}
static void tensor_negative(struct buf *b)
{
    one_tensor(b, "t", UINT64_MAX, 1, 0, 0);
}
static void tensor_part_block(struct buf *b)
{
    one_tensor(b, "t", 33, 1, 8, 0);
}
static void tensor_type_unknown(struct buf *b)
{
    one_tensor(b, "t", 1, 1, 4, 0);
}
static void tensor_no_name(struct buf *b)
{
    one_tensor(b, "", 1, 1, 0, 0);
}
static void tensor_bad_name(struct buf *b)
{
    one_tensor(b, "\xff\xfe", 1, 1, 0, 0);
}
static void tensor_five_dims(struct buf *b)
{
    mk_start(b, 3, 1, 0);
    mk_tensor(b, "t", 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0);
}
static void two_tensors(struct buf *b, const char *second, uint64_t at)
{
    mk_start(b, 3, 2, 0);
    mk_tensor(b, "one", 1, (uint64_t[]){16}, 0, 0);
    mk_tensor(b, second, 1, (uint64_t[]){16}, 0, at);
    mk_pad(b, 32);
    mk_bytes(b, 256);
}
static void tensors_overlap(struct buf *b)
{
    two_tensors(b, "two", 32);
}
static void tensors_same_name(struct buf *b)
{
    two_tensors(b, "one", 64);
}
static void long_name(struct buf *b)
{
    static char name[MODEL_TENSOR_NAME_MAX + 2];
    memset(name, 'x', sizeof name - 1);
    one_tensor(b, name, 1, 1, 0, 0);
}

static void hostile_files_are_refused_by_name_or_offset(void **state)
{
    (void)state;
    static const struct bad bads[] = {
        {bad_version, ERR_UNSUPPORTED, "byte 4: GGUF version 1"},
        {big_endian, ERR_UNSUPPORTED, "big endian"},
        {many_tensors, ERR_LIMIT, "18446744073709551615 tensors; the limit is"},
        {tensors_not_there, ERR_FORMAT, "byte 24: the file ends"},
        {many_fields, ERR_LIMIT, "metadata keys; the limit is"},
        {endless_key, ERR_FORMAT, "byte 32: the file ends at byte 32"},
        {empty_key, ERR_FORMAT, "key '' is empty"},
        {control_key, ERR_FORMAT, "key 'a\\x0ab'"},
        {twice_key, ERR_FORMAT, "key 'same' is there twice"},
        {unknown_type, ERR_FORMAT, "key 'odd': byte 39: value type 13 is unknown"},
        {bool_of_two, ERR_FORMAT, "key 'flag': byte 40: a bool has the value 2"},
        {array_overflow, ERR_FORMAT, "key 'list'"},
        {array_not_there, ERR_FORMAT, "key 'list': byte 52: the file ends"},
        {array_of_unknown, ERR_FORMAT, "value type 99"},
        {deep_array, ERR_LIMIT, "nested deeper"},
        {odd_alignment, ERR_INVALID, "'general.alignment': 48 is not a power"},
        {zero_alignment, ERR_INVALID, "'general.alignment' is 0"},
        {text_alignment, ERR_INVALID, "'general.alignment' must be a whole number"},
        {tensor_beyond, ERR_FORMAT, "tensor 't': 384 bytes from byte 96 do not fit"},
        {tensor_offset_beyond, ERR_FORMAT, "tensor 't'"},
        {tensor_offset_overflow, ERR_FORMAT, "tensor 't': the offset overflows"},
        {tensor_offset_odd, ERR_FORMAT, "tensor 't': offset 8 is not a multiple"},
        {tensor_shape_overflow, ERR_FORMAT, "tensor 't'"},
        {tensor_negative, ERR_FORMAT, "tensor 't'"},
        {tensor_part_block, ERR_FORMAT, "tensor 't'"},
        {tensor_type_unknown, ERR_UNSUPPORTED, "tensor 't': byte 53: tensor type 4 is unknown"},
        {tensor_no_name, ERR_FORMAT, "name ''"},
        {tensor_bad_name, ERR_FORMAT, "name '\\xff\\xfe'"},
        {tensor_five_dims, ERR_FORMAT, "5 dimensions"},
        {tensors_overlap, ERR_FORMAT, "tensor 'two' at byte 128 overlaps tensor one"},
        {tensors_same_name, ERR_FORMAT, "tensor 'one' is there twice"},
        {long_name, ERR_LIMIT, "name of 513 bytes"},
    };
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        struct buf b;
        struct model_source *s;
        bads[i].make(&b);
        const char *path = put_and_fini(&b);
        assert_fails(e, bads[i].code, bads[i].part, model_source_open(path, &s, &e));
        assert_null(s);
        assert_true(strncmp(e.text, path, strlen(path)) == 0);
    }
}

/* The list need not follow the data. */
static void tensors_may_be_listed_in_any_order(void **state)
{
    (void)state;
    for (uint64_t shift = 0; shift <= 32; shift += 32) {
        struct buf b;
        struct model_source *s;
        mk_start(&b, 3, 3, 0);
        mk_tensor(&b, "last", 1, (uint64_t[]){16}, 0, 128);
        mk_tensor(&b, "first", 1, (uint64_t[]){16}, 0, 0);
        mk_tensor(&b, "middle", 1, (uint64_t[]){16}, 0, 64 + shift);
        mk_pad(&b, 32);
        mk_bytes(&b, 192);
        const char *path = put_and_fini(&b);
        if (shift == 0) {
            assert_ok(e, model_source_open(path, &s, &e));
            assert_true(str_is(model_tensor_at(s, 0)->name, "last"));
            model_source_close(s);
        } else
            assert_fails(e, ERR_FORMAT, "'last' at byte 288 overlaps tensor middle", model_source_open(path, &s, &e));
    }
}

static void alignment_of_the_file_is_respected(void **state)
{
    (void)state;
    struct buf b;
    struct model_source *s;
    mk_start(&b, 3, 1, 1);
    mk_key_u32(&b, "general.alignment", 4096);
    mk_tensor(&b, "t", 1, (uint64_t[]){8}, 0, 4096);
    mk_pad(&b, 4096);
    mk_bytes(&b, 8192);
    assert_ok(e, model_source_open(put_and_fini(&b), &s, &e));
    assert_int_equal(model_tensor_at(s, 0)->offset, 8192);
    model_source_close(s);
}

static void things_that_are_not_files_are_answers(void **state)
{
    (void)state;
    struct model_source *s;
    assert_fails(e, ERR_FORMAT, "is empty", model_source_open(maker_put("zero.gguf", STR("")), &s, &e));
    assert_fails(e, ERR_FORMAT, "neither GGUF nor", model_source_open(maker_put_text("x.gguf", "GGML1234"), &s, &e));
    assert_fails(e, ERR_FORMAT, "byte 4: the file ends", model_source_open(maker_put_text("m.gguf", "GGUF"), &s, &e));
    assert_fails(e, ERR_NOT_FOUND, "absent", model_source_open(maker_path("absent"), &s, &e));
    assert_int_equal(mkfifo(maker_path("fifo.gguf"), 0600), 0);
    assert_fails(e, ERR_INVALID, "a FIFO", model_source_open(maker_path("fifo.gguf"), &s, &e));
    assert_int_equal(mkdir(maker_path("folder.gguf"), 0700), 0);
    assert_fails(e, ERR_NOT_FOUND, "neither model.safetensors", model_source_open(maker_path("folder.gguf"), &s, &e));
}

static void a_file_cut_after_opening_is_noticed_and_its_metadata_stays(void **state)
{
    (void)state;
    struct buf b;
    struct model_source *s;
    struct str name = {0};
    mk_tiny_llama(&b);
    const char *path = put_and_fini(&b);
    assert_ok(e, model_source_open(path, &s, &e));
    assert_ok(e, model_source_recheck(s, &e));
    assert_int_equal(truncate(path, 100), 0);
    assert_fails(e, ERR_IO, "changed while it was open", model_source_recheck(s, &e));
    assert_ok(e, gguf_get_str(model_source_gguf(s), "general.name", &name, &e)); /* would fault in a mapping */
    assert_true(str_is(name, "tiny"));
    model_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read_back_row_major),
        cmocka_unit_test(fields_of_every_type_are_read_and_checked),
        cmocka_unit_test(strings_of_an_array_are_indexed_in_place),
        cmocka_unit_test(hostile_files_are_refused_by_name_or_offset),
        cmocka_unit_test(tensors_may_be_listed_in_any_order),
        cmocka_unit_test(alignment_of_the_file_is_respected),
        cmocka_unit_test(things_that_are_not_files_are_answers),
        cmocka_unit_test(a_file_cut_after_opening_is_noticed_and_its_metadata_stays),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
