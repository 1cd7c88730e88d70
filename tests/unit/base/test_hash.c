/* Hashes against published values, in any split. */
#include "base_testing.h"

#include "base/hash.h"

static void sha256_of(struct str s, size_t split, char out[SHA256_HEX_MAX])
{
    struct error e;
    struct sha256 *h;
    unsigned char digest[SHA256_BYTES];
    assert_ok(e, sha256_new(&h, &e));
    for (size_t at = 0; at < s.n;) {
        const size_t n = MIN(split, s.n - at);
        sha256_add(h, s.p + at, n);
        at += n;
    }
    sha256_end(h, digest);
    sha256_free(h);
    sha256_hex(digest, out);
}

/* FIPS 180-2, appendix B, and the empty message. */
static void sha256_gives_the_published_digests(void **state)
{
    (void)state;
    char hex[SHA256_HEX_MAX];
    sha256_of(STR(""), 1, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_of(STR("abc"), 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (size_t split = 1; split < 60; split += 7) {
        sha256_of(STR("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"), split, hex);
        assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
}

static void hex_reads_back_and_refuses_the_rest(void **state)
{
    (void)state;
    unsigned char in[SHA256_BYTES], out[SHA256_BYTES];
    char hex[SHA256_HEX_MAX];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(rnd(7, i) & 0xff);
    sha256_hex(in, hex);
    assert_true(sha256_parse(str_of(hex), out));
    assert_memory_equal(in, out, sizeof in);
    for (size_t i = 0; hex[i] != '\0'; i++)
        if (hex[i] >= 'a')
            hex[i] = (char)(hex[i] - 'a' + 'A');
    assert_true(sha256_parse(str_of(hex), out));
    assert_memory_equal(in, out, sizeof in);
    assert_false(sha256_parse((struct str){hex, 63}, out));
    hex[17] = 'g';
    assert_false(sha256_parse(str_of(hex), out));
    hex[17] = ' ';
    assert_false(sha256_parse(str_of(hex), out));
}

/* XXH3 of nothing, as its specification lists it; and that the wide hash is another function of all bytes. */
static void xxh3_is_the_real_one_and_sees_every_byte(void **state)
{
    (void)state;
    assert_true(hash64("", 0, 0) == 0x2D06800538D394C2u);
    const struct hash128 empty = hash128("", 0);
    assert_true(empty.lo == 0x6001C324468D497Fu && empty.hi == 0x99AA06D3014798D8u);
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(rnd(8, i) & 0xff);
    const uint64_t h = hash64(data, sizeof data, 1);
    const struct hash128 w = hash128(data, sizeof data);
    assert_true(hash64(data, sizeof data, 2) != h && hash64(data, sizeof data - 1, 1) != h);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] ^= 1;
        assert_true(hash64(data, sizeof data, 1) != h);
        const struct hash128 v = hash128(data, sizeof data);
        assert_true(v.lo != w.lo && v.hi != w.hi);
        data[i] ^= 1;
    }
    assert_true(hash64(data, sizeof data, 1) == h);
}

static enum err case_sha(void *ctx, struct error *e)
{
    (void)ctx;
    struct sha256 *h;
    const enum err err = sha256_new(&h, e);
    sha256_free(h);
    return err;
}

static void failing_allocations_are_answers(void **state)
{
    (void)state;
    assert_int_equal(fail_each(FAULT_ALLOC, case_sha, NULL), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_gives_the_published_digests),
        cmocka_unit_test(hex_reads_back_and_refuses_the_rest),
        cmocka_unit_test(xxh3_is_the_real_one_and_sees_every_byte),
        cmocka_unit_test(failing_allocations_are_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
