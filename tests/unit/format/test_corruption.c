/* Systematic damage: every prefix of a file, every bit of it flipped, every allocation and system call failing. Any
 * answer is right but a crash, a leak or a success that read out of bounds; run under ASan for the proof. */
#include "base/fault.h"
#include "format/model_maker.h"

#include <fcntl.h>

static struct error e;

/* Rewrites one file in place: thousands of times, so without creating it anew. */
struct scratch {
    int fd;
    char path[PATH_BYTES_MAX];
};

static void scratch_open(struct scratch *s, const char *name)
{
    memcpy(s->path, maker_path(name), PATH_BYTES_MAX);
    s->fd = open(s->path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(s->fd >= 0);
}

static void scratch_put(const struct scratch *s, const char *p, size_t n)
{
    assert_int_equal(ftruncate(s->fd, (off_t)n), 0);
    assert_int_equal(pwrite(s->fd, p, n, 0), (ssize_t)n);
}

static void damage(const char *name, struct str whole, uint64_t header_bytes)
{
    struct scratch s;
    scratch_open(&s, name);
    scratch_put(&s, whole.p, whole.n);
    e = (struct error){0};
    (void)maker_use_all(s.path, &e);
    const enum err intact = e.code;
    for (size_t n = 0; n < whole.n; n++) {
        scratch_put(&s, whole.p, n);
        e = (struct error){0};
        assert_int_not_equal(maker_use_all(s.path, &e), OK);
        assert_true(e.text[0] != '\0');
    }
    char *copy = mem_alloc(whole.n);
    assert_non_null(copy);
    memcpy(copy, whole.p, whole.n);
    scratch_put(&s, copy, whole.n);
    size_t n_refused = 0;
    for (size_t i = 0; i < header_bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            const char flipped = (char)(copy[i] ^ (1 << bit));
            assert_int_equal(pwrite(s.fd, &flipped, 1, (off_t)i), 1);
            e = (struct error){0};
            n_refused += maker_use_all(s.path, &e) != OK;
        }
        static const char extremes[] = {0, 0x7f, (char)0x80, (char)0xff};
        for (size_t k = 0; k < sizeof extremes; k++) {
            assert_int_equal(pwrite(s.fd, &extremes[k], 1, (off_t)i), 1);
            e = (struct error){0};
            (void)maker_use_all(s.path, &e);
        }
        assert_int_equal(pwrite(s.fd, &copy[i], 1, (off_t)i), 1);
    }
    assert_true(n_refused > header_bytes); /* most of a header matters */
    e = (struct error){0};
    assert_int_equal(maker_use_all(s.path, &e), intact);
    mem_free(copy);
    close(s.fd);
}

static void a_damaged_gguf_file_is_an_answer(void **state)
{
    (void)state;
    struct buf b;
    mk_tiny_llama(&b);
    damage("d.gguf", buf_str(&b), b.n - (288 + 32 * 32 * 2));
    buf_fini(&b);
}

static void a_damaged_safetensors_file_is_an_answer(void **state)
{
    (void)state;
    struct buf b;
    maker_put_text("config.json", MK_TINY_CONFIG);
    mk_safetensors(&b, MK_TINY_HEADER, 44);
    damage("d.safetensors", buf_str(&b), b.n - 44);
    buf_fini(&b);
}

/* Sixteen bits at a time over the counts and lengths: what a single flipped bit does not reach. */
static void random_damage_is_an_answer(void **state)
{
    (void)state;
    struct buf b;
    struct scratch s;
    mk_tiny_llama(&b);
    scratch_open(&s, "r.gguf");
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 3000; round++) {
        char *copy = mem_alloc(b.n);
        assert_non_null(copy);
        memcpy(copy, b.p, b.n);
        for (int k = 0; k < 1 + round % 6; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            copy[(seed >> 33) % (b.n / 2)] = (char)(seed >> 24);
        }
        scratch_put(&s, copy, b.n);
        e = (struct error){0};
        (void)maker_use_all(s.path, &e);
        mem_free(copy);
    }
    close(s.fd);
    buf_fini(&b);
}

/* Fail call N of a kind for every N until a run uses fewer: typed errors, no leak, and a clean run at the end. */
static void fail_each(const char *path, enum fault_kind kind, bool sticky)
{
    uint64_t nth = 1;
    for (;; nth++) {
        fault_arm(kind, nth, sticky);
        e = (struct error){0};
        const enum err err = maker_use_all(path, &e);
        const bool reached = fault_calls(kind) >= nth;
        fault_arm(kind, 0, false);
        if (!reached) {
            assert_int_equal(err, OK);
            break;
        }
        assert_int_not_equal(err, OK);
        assert_true(e.code == err && e.text[0] != '\0');
    }
    assert_true(nth > 5);
}

static void fail_every_call(const char *path)
{
    fail_each(path, FAULT_ALLOC, false);
    fail_each(path, FAULT_ALLOC, true);
    fail_each(path, FAULT_SYS, false);
    fail_each(path, FAULT_SYS, true);
}

static void every_failing_call_is_an_answer_for_gguf(void **state)
{
    (void)state;
    struct buf b;
    mk_tiny_llama(&b);
    const char *path = maker_put("f.gguf", buf_str(&b));
    buf_fini(&b);
    fail_every_call(path);
}

static void every_failing_call_is_an_answer_for_a_folder(void **state)
{
    (void)state;
    struct buf b;
    assert_int_equal(mkdir(maker_path("f"), 0700), 0);
    mk_safetensors(&b, MK_TINY_HEADER, 44);
    maker_put("f/w.safetensors", buf_str(&b));
    buf_fini(&b);
    maker_put_text("f/model.safetensors.index.json",
        "{\"weight_map\":{\"a.weight\":\"w.safetensors\",\"b.weight\":\"w.safetensors\"}}");
    maker_put_text("f/config.json", MK_TINY_CONFIG);
    maker_put_text("f/generation_config.json", "{\"temperature\":0.6,\"top_k\":20}");
    maker_put_text("f/tokenizer_config.json", "{\"add_bos_token\":true,\"chat_template\":\"x\"}");
    fail_every_call(maker_path("f"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_gguf_file_is_an_answer),
        cmocka_unit_test(a_damaged_safetensors_file_is_an_answer),
        cmocka_unit_test(random_damage_is_an_answer),
        cmocka_unit_test(every_failing_call_is_an_answer_for_gguf),
        cmocka_unit_test(every_failing_call_is_an_answer_for_a_folder),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
