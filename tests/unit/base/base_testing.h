/* What the tests of this room share: a temporary folder, "this must die", a seeded stream of test data, and the loop
 * that fails the Nth allocation or system call until a clean run. */
#ifndef TESTS_BASE_TESTING_H
#define TESTS_BASE_TESTING_H

#include "testing.h"

#include "base/fault.h"
#include "base/rng.h"

#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The sanitizers' allocators end the process on an absurd size unless told that NULL is an answer. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* True when fn ends the process by an assert. */
UNUSED static bool dies(void (*fn)(void *), void *ctx)
{
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(2);
        fn(ctx);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* One step of a fault loop: does the work from scratch, undoes it when it succeeded. */
typedef enum err fault_case(void *ctx, struct error *e);

/* Fail call 1, 2, 3... of that kind until the work no longer reaches the failing call. Each failure must be an error
 * with a sentence. Returns how many calls there were. */
UNUSED static uint64_t fail_each(enum fault_kind kind, fault_case *fn, void *ctx)
{
    for (uint64_t nth = 1; nth < 100000; nth++) {
        struct error e = {0};
        fault_arm(kind, nth, false);
        const enum err err = fn(ctx, &e);
        const uint64_t calls = fault_calls(kind);
        fault_arm(kind, 0, false);
        if (calls < nth) {
            if (err != OK)
                fail_msg("clean run failed: %s", e.text);
            return nth - 1;
        }
        if (err == OK)
            fail_msg("call %llu failed and nobody noticed", (unsigned long long)nth);
        assert_int_equal(e.code, err);
        assert_true(e.text[0] != '\0');
    }
    fail_msg("no clean run");
    return 0;
}

/* Number i of a test's stream; every test has its own seed, so a failure repeats. */
UNUSED static uint64_t rnd(uint64_t seed, uint64_t i)
{
    return rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY});
}

static char temp_dir[64];

UNUSED static const char *in_temp(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", temp_dir, name);
    return p;
}

UNUSED static int make_temp_dir(void **state)
{
    (void)state;
    snprintf(temp_dir, sizeof temp_dir, "/tmp/quern-base-XXXXXX");
    return mkdtemp(temp_dir) != NULL ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *f)
{
    (void)st, (void)flag, (void)f;
    return remove(path);
}

UNUSED static int remove_temp_dir(void **state)
{
    (void)state;
    return nftw(temp_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

UNUSED static int entries_in_temp(void)
{
    DIR *d = opendir(temp_dir);
    assert_non_null(d);
    int n = -2; /* . and .. */
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

#endif
