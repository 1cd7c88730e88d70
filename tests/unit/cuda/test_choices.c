/* The table of chosen algorithms and its file: which rows take which choice, that a start reads what another wrote, and
 * that no damaged or foreign file is believed. No card is needed for it. */
#include "testing.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "cuda/choices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MACHINE "a card with 132 units, library 1"

static struct choice_shape shape(uint32_t n_out, uint32_t rows)
{
    return (struct choice_shape){.n_out = n_out,
        .n_in = 4096,
        .ldw = 4096,
        .ldc = n_out,
        .type = 14,
        .out_type = 0,
        .scaled = 0,
        .adds = 1,
        .rows = rows};
}

static void choose(struct choices *c, uint32_t n_out, uint32_t rows, int mark)
{
    const struct choice_shape s = shape(n_out, rows);
    const uint32_t i = choices_note(c, &s);
    assert_true(i < c->n);
    c->all[i].has_algo = mark >= 0;
    memset(c->all[i].algo, mark, CHOICE_ALGO_BYTES);
}

/* Two products at three sizes each; four of the six have an algorithm. */
static void fill(struct choices *c)
{
    assert_true(choices_init(c));
    choose(c, 4096, 32, 1);
    choose(c, 6144, 32, -1);
    choose(c, 4096, 128, 2);
    choose(c, 6144, 128, 3);
    choose(c, 4096, 512, -1);
    choose(c, 6144, 512, 4);
}

static int found(const struct choices *c, uint32_t n_out, uint32_t rows)
{
    const struct choice_shape s = shape(n_out, rows);
    const struct choice *x = choices_find(c, &s);
    return x != NULL ? x->algo[CHOICE_ALGO_BYTES - 1] : -1;
}

static void the_next_rung_decides(void **state)
{
    (void)state;
    struct choices c;
    fill(&c);
    assert_int_equal(found(&c, 4096, 1), 1);
    assert_int_equal(found(&c, 4096, 32), 1);
    assert_int_equal(found(&c, 4096, 33), 2);
    assert_int_equal(found(&c, 4096, 128), 2);
    assert_int_equal(found(&c, 4096, 129), -1); /* for which the library's first was the best */
    assert_int_equal(found(&c, 4096, 513), -1); /* nobody has looked so far */
    assert_int_equal(found(&c, 6144, 20), -1);
    assert_int_equal(found(&c, 6144, 129), 4);
    choices_fini(&c);
}

static void every_part_of_a_shape_tells_products_apart(void **state)
{
    (void)state;
    struct choices c;
    fill(&c);
    const struct choice_shape s = shape(4096, 32);
    for (size_t at = 0; at < offsetof(struct choice_shape, rows); at += sizeof(uint32_t)) {
        struct choice_shape other = s;
        uint32_t word;
        memcpy(&word, (char *)&other + at, sizeof word);
        word ^= 1;
        memcpy((char *)&other + at, &word, sizeof word);
        assert_null(choices_find(&c, &other));
        const uint32_t n = c.n;
        assert_int_equal(choices_note(&c, &other), n); /* which is new */
    }
    assert_int_equal(choices_note(&c, &s), 0);
    choices_fini(&c);
}

static void a_full_table_takes_no_more(void **state)
{
    (void)state;
    struct choices c;
    assert_true(choices_init(&c));
    for (uint32_t i = 0; i < CUDA_CHOICES_MAX; i++) {
        const struct choice_shape s = shape(16, i + 1);
        assert_int_equal(choices_note(&c, &s), i);
    }
    const struct choice_shape old = shape(16, 7), more = shape(16, CUDA_CHOICES_MAX + 1);
    assert_int_equal(choices_note(&c, &more), CHOICE_NONE);
    assert_int_equal(choices_note(&c, &old), 6);
    choices_fini(&c);
}

static void the_key_is_of_the_machine_and_of_all_shapes_in_order(void **state)
{
    (void)state;
    struct choices a, b;
    fill(&a);
    fill(&b);
    const struct hash128 key = choices_key(&a, MACHINE);
    choices_forget(&b); /* what was chosen is no part of it */
    assert_true(choices_key(&b, MACHINE).lo == key.lo && choices_key(&b, MACHINE).hi == key.hi);
    assert_true(choices_key(&a, MACHINE "2").lo != key.lo);
    b.all[0].shape = a.all[1].shape;
    b.all[1].shape = a.all[0].shape;
    assert_true(choices_key(&b, MACHINE).lo != key.lo);
    b.all[0].shape = a.all[0].shape;
    b.all[1].shape = a.all[1].shape;
    choose(&b, 4096, 1024, -1);
    assert_true(choices_key(&b, MACHINE).lo != key.lo);
    assert_true(choices_hash(&a) != 0);
    const uint64_t before = choices_hash(&a);
    a.all[0].algo[3] ^= 1;
    assert_true(choices_hash(&a) != before);
    choices_forget(&a);
    assert_true(choices_hash(&a) == 0);
    choices_fini(&a);
    choices_fini(&b);
}

/* ---- files ---------------------------------------------------------------------------------------------------------
 */

struct place {
    char dir[64], path[PATH_BYTES_MAX];
    struct hash128 key;
    char *bytes;
    size_t n;
};

/* A file of what fill makes. */
static void write_file(struct place *p)
{
    struct choices c;
    struct error e = {0};
    snprintf(p->dir, sizeof p->dir, "/tmp/quern-choices-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    fill(&c);
    p->key = choices_key(&c, MACHINE);
    assert_true(choices_path(p->dir, p->key, p->path));
    assert_ok(e, choices_write(&c, p->key, p->path, &e));
    assert_ok(e, file_read_all(p->path, 1 << 20, &p->bytes, &p->n, &e));
    choices_fini(&c);
}

static void drop_file(struct place *p)
{
    unlink(p->path);
    rmdir(p->dir);
    mem_free(p->bytes);
}

static void empty(struct choices *c)
{
    fill(c);
    choices_forget(c);
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    struct place p;
    struct choices c, want;
    struct error e = {0};
    write_file(&p);
    fill(&want);
    empty(&c);
    assert_int_equal(choices_chosen(&c), 0);
    assert_ok(e, choices_read(&c, p.key, p.path, &e));
    assert_int_equal(choices_chosen(&c), 4);
    assert_true(choices_hash(&c) == choices_hash(&want));
    for (uint32_t i = 0; i < c.n; i++)
        assert_int_equal(c.all[i].has_algo, want.all[i].has_algo);
    choices_fini(&c);
    choices_fini(&want);
    drop_file(&p);
}

/* Not read, and nothing of it taken. */
static void refused(const struct place *p, const void *bytes, size_t n)
{
    struct choices c;
    struct error e = {0};
    empty(&c);
    choose(&c, 4096, 32, 9);
    assert_int_not_equal(choices_parse(&c, p->key, bytes, n, &e), OK);
    assert_int_equal(e.code != OK, 1);
    assert_int_equal(choices_chosen(&c), 1);
    assert_int_equal(found(&c, 4096, 32), 9);
    choices_fini(&c);
}

static void no_changed_byte_is_believed(void **state)
{
    (void)state;
    struct place p;
    write_file(&p);
    for (size_t at = 0; at < p.n; at++)
        for (int bit = 0; bit < 8; bit++) {
            p.bytes[at] = (char)(p.bytes[at] ^ 1 << bit);
            refused(&p, p.bytes, p.n);
            p.bytes[at] = (char)(p.bytes[at] ^ 1 << bit);
        }
    drop_file(&p);
}

static void no_other_length_is_believed(void **state)
{
    (void)state;
    struct place p;
    write_file(&p);
    char *more = mem_zalloc(p.n + 200);
    assert_non_null(more);
    memcpy(more, p.bytes, p.n);
    for (size_t n = 0; n < p.n + 200; n++)
        if (n != p.n)
            refused(&p, more, n);
    mem_free(more);
    drop_file(&p);
}

static uint32_t next(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 40);
}

static void random_bytes_are_refused(void **state)
{
    (void)state;
    struct place p;
    write_file(&p);
    uint64_t x = 5;
    char bytes[400];
    for (int turn = 0; turn < 2000; turn++) {
        const size_t n = next(&x) % sizeof bytes, kept = MIN(next(&x) % 50, n);
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)(unsigned char)next(&x);
        memcpy(bytes, p.bytes, MIN(kept, p.n)); /* which begins well */
        refused(&p, bytes, n);
    }
    drop_file(&p);
}

/* Whole and with its hash, but of places that the table does not have, or under another key. */
static void a_file_of_another_table_is_refused(void **state)
{
    (void)state;
    struct place p;
    write_file(&p);
    struct choices larger, smaller;
    struct error e = {0};
    fill(&larger);
    choose(&larger, 8192, 32, 5);
    assert_ok(e, choices_write(&larger, p.key, p.path, &e)); /* under a key that is not its own */
    empty(&smaller);
    assert_int_not_equal(choices_read(&smaller, p.key, p.path, &e), OK);
    assert_int_equal(choices_chosen(&smaller), 0);
    e = (struct error){0};
    assert_int_not_equal(choices_read(&larger, choices_key(&larger, MACHINE), p.path, &e), OK);
    choices_fini(&larger);
    choices_fini(&smaller);
    drop_file(&p);
}

/* Whole, of this key and with its hash, but with two entries in each other's place; in order again it is believed. */
static void a_file_out_of_order_is_refused(void **state)
{
    (void)state;
    const size_t header = 32, body = header + sizeof(uint64_t), entry = sizeof(uint32_t) + CHOICE_ALGO_BYTES;
    struct place p;
    write_file(&p);
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < entry; i++) {
            const char first = p.bytes[body + i];
            p.bytes[body + i] = p.bytes[body + entry + i];
            p.bytes[body + entry + i] = first;
        }
        const uint64_t h = hash64(p.bytes + body, p.n - body, hash64(p.bytes, header, 0));
        for (size_t i = 0; i < sizeof h; i++)
            p.bytes[header + i] = (char)(unsigned char)(h >> 8 * i);
        if (turn == 0)
            refused(&p, p.bytes, p.n);
    }
    struct choices c;
    struct error e = {0};
    empty(&c);
    assert_ok(e, choices_parse(&c, p.key, p.bytes, p.n, &e));
    assert_int_equal(choices_chosen(&c), 4);
    choices_fini(&c);
    drop_file(&p);
}

static void a_folder_is_made_and_one_that_cannot_be_is_said(void **state)
{
    (void)state;
    struct place p;
    write_file(&p);
    char below[PATH_BYTES_MAX];
    snprintf(below, sizeof below, "%s/a/b", p.dir);
    assert_true(choices_can_keep(below));
    assert_true(file_is_dir(below));
    assert_false(choices_can_keep(p.path)); /* a file */
    rmdir(below);
    snprintf(below, sizeof below, "%s/a", p.dir);
    rmdir(below);
    struct choices c;
    struct error e = {0};
    empty(&c);
    assert_int_not_equal(choices_read(&c, p.key, below, &e), OK); /* nothing is there */
    choices_fini(&c);
    drop_file(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_rung_decides),
        cmocka_unit_test(every_part_of_a_shape_tells_products_apart),
        cmocka_unit_test(a_full_table_takes_no_more),
        cmocka_unit_test(the_key_is_of_the_machine_and_of_all_shapes_in_order),
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(no_changed_byte_is_believed),
        cmocka_unit_test(no_other_length_is_believed),
        cmocka_unit_test(random_bytes_are_refused),
        cmocka_unit_test(a_file_of_another_table_is_refused),
        cmocka_unit_test(a_file_out_of_order_is_refused),
        cmocka_unit_test(a_folder_is_made_and_one_that_cannot_be_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
