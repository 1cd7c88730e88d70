/* What opening costs: a 10 GB GGUF file with a vocabulary of real size and a folder of 30 shards open in under 100 ms
 * and 50 MB, and files that claim more than they have cost next to nothing. The files are holes behind real headers.
 * Each measurement runs in a process of its own; under a sanitizer, which takes memory and time itself, only the
 * answers are checked. */
#include "format/model_maker.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static struct error e;

struct cost {
    int code;      /* enum err of the open */
    double ms;     /* of processor time, the best of five: other work on the machine must not decide a test */
    long peak_kib; /* resident */
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Open, read the record, close; five times, in a child. */
static struct cost measure(const char *path)
{
    struct cost cost = {.ms = 1e9};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rusage usage;
        for (int i = 0; i < 5; i++) {
            struct model_source *s;
            struct model_config c;
            const double began = now_ms();
            cost.code = (int)model_source_open(path, &s, NULL);
            if (cost.code == OK && model_config_read(s, &c, NULL) != OK)
                cost.code = ERR_INTERNAL;
            cost.ms = MIN(cost.ms, now_ms() - began);
            model_source_close(s);
        }
        getrusage(RUSAGE_SELF, &usage);
        cost.peak_kib = usage.ru_maxrss;
        _exit(write(ends[1], &cost, sizeof cost) == (ssize_t)sizeof cost ? 0 : 1);
    }
    assert_int_equal(read(ends[0], &cost, sizeof cost), (ssize_t)sizeof cost);
    close(ends[0]);
    close(ends[1]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    print_message("%s: %.1f ms, %ld KiB\n", strrchr(path, '/') + 1, cost.ms, cost.peak_kib);
    return cost;
}

static void assert_cheap(struct cost cost, long kib_max)
{
    if (SANITIZED)
        return;
    assert_true(cost.ms < 100);
    assert_true(cost.peak_kib < kib_max);
}

#define N_TOKENS 256000

static void a_ten_gigabyte_gguf_opens_at_once(void **state)
{
    (void)state;
    const uint64_t total = 10 * GIB, each = GIB;
    struct buf b;
    mk_start(&b, 3, 9, MK_LLAMA_FIELDS + 2);
    mk_llama_fields(&b);
    static const char *const keys[] = {"big.tokens", "big.merges"};
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        mk_key_array(&b, keys[k], GGUF_STRING, N_TOKENS);
        for (int i = 0; i < N_TOKENS; i++) {
            char token[32];
            snprintf(token, sizeof token, "tok %d en", i);
            mk_str(&b, token);
        }
    }
    for (uint64_t i = 0; i < 9; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", (int)i);
        mk_tensor(&b, name, 2, (uint64_t[]){4096, each / 8192}, 1, i * each);
    }
    const char *path = maker_put("ten.gguf", buf_str(&b));
    buf_fini(&b);
    assert_int_equal(truncate(path, (off_t)total), 0);
    const struct cost cost = measure(path);
    assert_int_equal(cost.code, OK);
    assert_cheap(cost, 50 * 1024);
}

static void thirty_shards_open_at_once(void **state)
{
    (void)state;
    struct buf index, header;
    assert_int_equal(mkdir(maker_path("shards"), 0700), 0);
    maker_put_text("shards/config.json", MK_TINY_CONFIG);
    buf_init(&index, 16 * MIB);
    buf_addf(&index, "{\"weight_map\":{");
    for (int i = 0; i < 30; i++) {
        char file[64];
        const uint64_t each = 4 * MIB, n = 80;
        buf_init(&header, MIB);
        for (uint64_t k = 0; k < n; k++) {
            char name[64];
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", i, (int)k);
            buf_addf(&header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[1024,2048],\"data_offsets\":[%llu,%llu]}",
                k == 0 ? "{" : ",", name, (unsigned long long)(k * each), (unsigned long long)((k + 1) * each));
            buf_addf(&index, "%s\"%s\":\"model-%05d.safetensors\"", i == 0 && k == 0 ? "" : ",", name, i);
        }
        buf_addf(&header, "}");
        struct buf b;
        mk_safetensors(&b, header.p, 0);
        snprintf(file, sizeof file, "shards/model-%05d.safetensors", i);
        const char *path = maker_put(file, buf_str(&b));
        assert_int_equal(truncate(path, (off_t)(b.n + n * each)), 0);
        buf_fini(&b);
        buf_fini(&header);
    }
    buf_addf(&index, "}}");
    maker_put("shards/model.safetensors.index.json", buf_str(&index));
    buf_fini(&index);
    const struct cost cost = measure(maker_path("shards"));
    assert_int_equal(cost.code, OK);
    assert_cheap(cost, 50 * 1024);
}

/* A hole of 256 GB behind a header that claims most of it as one string or one array. */
static void claims_are_not_paid_for(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct buf b;
        mk_start(&b, 3, 0, 1);
        if (kind == 0) {
            mk_key(&b, "huge", GGUF_STRING);
            mk_u64(&b, (uint64_t)1 << 37);
        } else {
            mk_key_array(&b, "huge", GGUF_U64, (uint64_t)1 << 34);
        }
        const char *path = maker_put(kind == 0 ? "string.gguf" : "array.gguf", buf_str(&b));
        buf_fini(&b);
        assert_int_equal(truncate(path, (off_t)1 << 38), 0);
        const struct cost cost = measure(path);
        assert_int_equal(cost.code, ERR_LIMIT);
        assert_cheap(cost, 16 * 1024);
    }
}

/* Strings of length 0, each 8 bytes of hole: the walk ends at the limit of the header, and memory with it. */
static void a_header_of_holes_ends_at_its_limit(void **state)
{
    (void)state;
    struct buf b;
    struct model_source *s;
    mk_start(&b, 3, 0, 1);
    mk_key_array(&b, "holes", GGUF_STRING, (uint64_t)1 << 34);
    const char *path = maker_put("holes.gguf", buf_str(&b));
    buf_fini(&b);
    assert_int_equal(truncate(path, (off_t)1 << 38), 0);
    assert_fails(e, ERR_LIMIT, "key 'holes': byte", model_source_open(path, &s, &e));
    if (SANITIZED)
        return;
    const struct cost cost = measure(path);
    assert_true(cost.peak_kib < (long)(GGUF_HEADER_BYTES_MAX * 3 / 1024));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ten_gigabyte_gguf_opens_at_once),
        cmocka_unit_test(thirty_shards_open_at_once),
        cmocka_unit_test(claims_are_not_paid_for),
        cmocka_unit_test(a_header_of_holes_ends_at_its_limit),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
