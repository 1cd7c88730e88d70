/* Files: what is refused, what is atomic, and every failing system call. */
#include "base_testing.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#include <fcntl.h>
#include <pthread.h>

static void put(const char *path, struct str content)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content.p, 1, content.n, f), content.n);
    fclose(f);
}

static void assert_content(const char *path, struct str want)
{
    struct error e;
    char *p;
    size_t n;
    assert_ok(e, file_read_all(path, 1 << 20, &p, &n, &e));
    assert_true(str_eq((struct str){p, n}, want));
    assert_int_equal(p[n], '\0');
    mem_free(p);
}

static void reads_under_a_limit(void **state)
{
    (void)state;
    struct error e;
    char *p;
    size_t n;
    put(in_temp("ten"), STR("0123456789"));
    assert_content(in_temp("ten"), STR("0123456789"));
    assert_ok(e, file_read_all(in_temp("ten"), 10, &p, &n, &e));
    mem_free(p);
    assert_fails(e, ERR_LIMIT, "has 10 bytes; the limit is 9", file_read_all(in_temp("ten"), 9, &p, &n, &e));
    assert_null(p);
    put(in_temp("empty"), STR(""));
    assert_content(in_temp("empty"), STR(""));
}

static void only_regular_files_open(void **state)
{
    (void)state;
    struct error e;
    struct file_map m;
    int fd = 7;
    uint64_t bytes;
    assert_fails(e, ERR_NOT_FOUND, "No such file", file_open(in_temp("none"), &fd, NULL, &e));
    assert_int_equal(fd, -1);
    assert_fails(e, ERR_INVALID, "is a directory", file_open(temp_dir, &fd, NULL, &e));
    assert_int_equal(mkfifo(in_temp("fifo"), 0600), 0);
    assert_fails(e, ERR_INVALID, "is a FIFO", file_open(in_temp("fifo"), &fd, NULL, &e)); /* and does not wait */
    assert_fails(e, ERR_INVALID, "is a special file", file_map_open(&m, "/dev/null", &e));
    assert_int_equal(symlink("loop", in_temp("loop")), 0);
    assert_fails(e, ERR_INVALID, "cannot open", file_open(in_temp("loop"), &fd, NULL, &e));
    put(in_temp("ok"), STR("abc"));
    assert_ok(e, file_open(in_temp("ok"), &fd, &bytes, &e));
    assert_int_equal(bytes, 3);
    char part[4] = {0};
    assert_ok(e, file_read_at(fd, 1, part, 2, "ok", &e));
    assert_string_equal(part, "bc");
    assert_fails(e, ERR_FORMAT, "byte 3: the file ends here, 1 bytes short", file_read_at(fd, 2, part, 2, "ok", &e));
    file_close(&fd);
    assert_int_equal(fd, -1);
    file_close(&fd);
}

static void maps_show_the_file(void **state)
{
    (void)state;
    struct error e;
    struct file_map m;
    put(in_temp("map"), STR("mapped"));
    assert_ok(e, file_map_open(&m, in_temp("map"), &e));
    assert_int_equal(m.bytes, 6);
    assert_memory_equal(m.p, "mapped", 6);
    assert_true(m.mtime_ns > (int64_t)1600000000 * 1000000000);
    file_map_close(&m);
    file_map_close(&m); /* twice is fine */
    put(in_temp("empty"), STR(""));
    assert_ok(e, file_map_open(&m, in_temp("empty"), &e));
    assert_true(m.p != NULL && m.bytes == 0);
    file_map_close(&m);
}

static enum err case_map(void *ctx, struct error *e)
{
    struct file_map m;
    const enum err err = file_map_open(&m, ctx, e);
    assert_true(err == OK || m.bytes == 0);
    file_map_close(&m);
    return err;
}

static enum err case_read(void *ctx, struct error *e)
{
    char *p;
    size_t n;
    const enum err err = file_read_all(ctx, 100, &p, &n, e);
    assert_true(err == OK || (p == NULL && n == 0));
    mem_free(p);
    return err;
}

/* After a failed write the old content stands and nothing is left beside it. */
static enum err case_write(void *ctx, struct error *e)
{
    put(ctx, STR("old"));
    const uint64_t armed_at = fault_calls(FAULT_SYS);
    assert_int_equal(armed_at, 0);
    const enum err err = file_write_atomic(ctx, STR("new content"), e);
    if (err != OK && e->code != ERR_NOMEM)
        assert_non_null(strstr(e->text, "target"));
    FILE *f = fopen(ctx, "rb");
    char got[32] = {0};
    assert_non_null(f);
    assert_true(fread(got, 1, sizeof got - 1, f) > 0);
    fclose(f);
    assert_string_equal(got, err == OK ? "new content" : "old");
    assert_int_equal(entries_in_temp(), 1);
    return err;
}

static enum err case_dirs(void *ctx, struct error *e)
{
    return file_make_dirs(ctx, e);
}

static enum err case_lock(void *ctx, struct error *e)
{
    struct file_lock l;
    const enum err err = file_lock_take(&l, ctx, false, e);
    assert_true(err == OK || l.fd == -1);
    file_lock_give(&l);
    return err;
}

static enum err case_remove(void *ctx, struct error *e)
{
    put(ctx, STR("x"));
    return file_remove(ctx, e);
}

static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

static void every_failing_call_is_an_answer_and_nothing_leaks(void **state)
{
    (void)state;
    const int fds = open_fds();
    char target[128];
    snprintf(target, sizeof target, "%s", in_temp("target"));
    put(target, STR("content"));
    assert_int_equal(fail_each(FAULT_SYS, case_map, target), 4);
    assert_true(fail_each(FAULT_SYS, case_read, target) >= 3);
    assert_int_equal(fail_each(FAULT_ALLOC, case_read, target), 1);
    assert_int_equal(fail_each(FAULT_SYS, case_write, target), 4); /* create, write, sync, rename */
    assert_int_equal(fail_each(FAULT_SYS, case_lock, target), 2);
    assert_int_equal(fail_each(FAULT_SYS, case_remove, target), 1);
    snprintf(target, sizeof target, "%s", in_temp("a/b/c"));
    assert_true(fail_each(FAULT_SYS, case_dirs, target) >= 3);
    assert_true(file_is_dir(target));
    assert_int_equal(open_fds(), fds);
}

static void writes_replace_and_leave_nothing_behind(void **state)
{
    (void)state;
    struct error e;
    assert_ok(e, file_write_atomic(in_temp("w"), STR("one"), &e));
    assert_ok(e, file_write_atomic(in_temp("w"), STR(""), &e));
    assert_content(in_temp("w"), STR(""));
    assert_ok(e, file_write_atomic(in_temp("w"), STR("a\0b"), &e));
    assert_content(in_temp("w"), STR("a\0b"));
    assert_int_equal(entries_in_temp(), 1);
    assert_fails(e, ERR_NOT_FOUND, "cannot create", file_write_atomic(in_temp("no/such/place"), STR("x"), &e));
    assert_int_equal(mkdir(in_temp("d"), 0700), 0);
    assert_fails(e, ERR_IO, "cannot rename", file_write_atomic(in_temp("d"), STR("x"), &e));
    assert_int_equal(entries_in_temp(), 2);
    static char longer[PATH_BYTES_MAX + 10];
    memset(longer, 'p', sizeof longer - 1);
    assert_fails(e, ERR_LIMIT, "longer than 4096", file_write_atomic(longer, STR("x"), &e));
    assert_fails(e, ERR_LIMIT, "longer than 4096", file_make_dirs(longer, &e));
    int fd = open("/dev/full", O_WRONLY);
    assert_fails(e, ERR_IO, "cannot write full", file_write_fully(fd, "x", 1, "full", &e));
    close(fd);
}

struct writer {
    const char *path;
    char text[2001];
    enum err err;
};

static void *write_often(void *arg)
{
    struct writer *w = arg;
    for (int i = 0; i < 50 && w->err == OK; i++)
        w->err = file_write_atomic(w->path, str_of(w->text), NULL);
    return NULL;
}

static void two_threads_writing_one_file_never_mix(void **state)
{
    (void)state;
    struct writer w[2];
    pthread_t t[2];
    char path[128];
    snprintf(path, sizeof path, "%s", in_temp("shared"));
    put(path, STR("start"));
    for (int i = 0; i < 2; i++) {
        w[i] = (struct writer){.path = path};
        memset(w[i].text, "ab"[i], sizeof w[i].text - 1 - (size_t)i * 1000);
        assert_int_equal(pthread_create(&t[i], NULL, write_often, &w[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        struct error e;
        char *p;
        size_t n;
        assert_ok(e, file_read_all(path, 4000, &p, &n, &e));
        assert_true(n == 5 || n == 2000 || n == 1000);
        for (size_t k = 1; k < n && n != 5; k++)
            assert_int_equal(p[k], p[0]);
        mem_free(p);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(w[i].err, OK);
    }
    assert_int_equal(entries_in_temp(), 1);
}

static void folders_are_made_once_and_files_in_the_way_are_named(void **state)
{
    (void)state;
    struct error e;
    assert_ok(e, file_make_dirs(in_temp("x//y/z/"), &e));
    assert_ok(e, file_make_dirs(in_temp("x/y/z"), &e));
    assert_true(file_is_dir(in_temp("x/y/z")) && !file_is_regular(in_temp("x/y/z")));
    put(in_temp("f"), STR(""));
    assert_true(file_is_regular(in_temp("f")) && !file_is_dir(in_temp("f")));
    assert_fails(e, ERR_EXISTS, "/f", file_make_dirs(in_temp("f"), &e));
    assert_fails(e, ERR_EXISTS, "/f: File exists", file_make_dirs(in_temp("f/g"), &e));
    assert_fails(e, ERR_INVALID, "without a name", file_make_dirs("", &e));
    assert_fails(e, ERR_NOT_FOUND, "cannot remove", file_remove(in_temp("none"), &e));
    assert_fails(e, ERR_NOT_FOUND, "cannot rename", file_rename(in_temp("none"), in_temp("f2"), &e));
}

static void a_lock_has_one_holder(void **state)
{
    (void)state;
    struct error e;
    struct file_lock a, b;
    assert_ok(e, file_lock_take(&a, in_temp("lock"), false, &e));
    assert_fails(e, ERR_EXISTS, "held by another process", file_lock_take(&b, in_temp("lock"), false, &e));
    assert_int_equal(b.fd, -1);
    file_lock_give(&a);
    assert_ok(e, file_lock_take(&b, in_temp("lock"), true, &e));
    file_lock_give(&b);
    file_lock_give(&b);
}

static void a_lock_ends_with_its_process(void **state)
{
    (void)state;
    struct error e;
    struct file_lock l;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const char *path = in_temp("lock2");
    const pid_t pid = fork();
    if (pid == 0) {
        const bool ok = file_lock_take(&l, path, false, NULL) == OK && write(ready[1], "x", 1) == 1;
        pause();
        _exit(ok ? 0 : 1);
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_fails(e, ERR_EXISTS, "held", file_lock_take(&l, path, false, &e));
    kill(pid, SIGKILL);
    assert_ok(e, file_lock_take(&l, path, true, &e));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    file_lock_give(&l);
    close(ready[0]);
    close(ready[1]);
}

static void paths_join_and_stay_inside(void **state)
{
    (void)state;
    struct error e;
    char out[PATH_BYTES_MAX];
    assert_ok(e, path_join(out, "a", "b", &e));
    assert_string_equal(out, "a/b");
    assert_ok(e, path_join(out, "a/", "b", &e));
    assert_string_equal(out, "a/b");
    assert_ok(e, path_join(out, "/", "b", &e));
    assert_string_equal(out, "/b");
    assert_ok(e, path_join(out, "", "b", &e)); /* not the root */
    assert_string_equal(out, "b");
    static char longer[PATH_BYTES_MAX];
    memset(longer, 'n', sizeof longer - 1);
    assert_fails(e, ERR_LIMIT, "longer than", path_join(out, "d", longer, &e));

    const struct str good[] = {STR("a"), STR("a/b.c/d"), STR("..a"), STR("a.."), STR("a/...")};
    const struct str bad[] = {STR(""), STR("/a"), STR("a/"), STR("a//b"), STR(".."), STR("a/../b"), STR("."),
        STR("./a"), STR("a\0b"), STR("a\nb"), STR("a\x7f"), STR("a\\b"), STR("../a"), STR("a/..")};
    for (size_t i = 0; i < COUNT_OF(good); i++)
        assert_true(path_is_contained(good[i]));
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(path_is_contained(bad[i]));
}

#define in_folder(test) cmocka_unit_test_setup_teardown(test, make_temp_dir, remove_temp_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folder(reads_under_a_limit),
        in_folder(only_regular_files_open),
        in_folder(maps_show_the_file),
        in_folder(every_failing_call_is_an_answer_and_nothing_leaks),
        in_folder(writes_replace_and_leave_nothing_behind),
        in_folder(two_threads_writing_one_file_never_mix),
        in_folder(folders_are_made_once_and_files_in_the_way_are_named),
        in_folder(a_lock_has_one_holder),
        in_folder(a_lock_ends_with_its_process),
        cmocka_unit_test(paths_join_and_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
