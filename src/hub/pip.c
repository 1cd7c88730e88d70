/* The package client of the machine, asked to download one wheel. quern does not speak the registry's protocol and
 * knows no registry: pip has its configuration (index, mirrors, proxies, certificates), and whoever set the machine up
 * set that.
 *
 * No shell: the arguments are a fixed list. pip's progress goes to our stderr; its stderr passes through us, so that
 * its last complaint can stand in our error. The child is watched, not waited for: a cancel or an hour ends it. */
#include "hub/hub_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define ARGS_MAX 16

struct pip_child {
    pid_t pid;
    int errors;     /* read end of its stderr; -1 when closed */
    char line[400]; /* being collected */
    size_t line_n;
    char said[400];  /* the last line that looked like the reason */
    bool has_no_pip; /* the interpreter is there, the module is not */
};

/* Keep the lines that explain a failure: pip starts them with ERROR. */
static void take_line(struct pip_child *c)
{
    c->line[c->line_n] = '\0';
    if (strstr(c->line, "No module named pip") != NULL)
        c->has_no_pip = true;
    if (c->line_n > 0 && (strncmp(c->line, "ERROR", 5) == 0 || c->said[0] == '\0')) {
        const char *text = strncmp(c->line, "ERROR: ", 7) == 0 ? c->line + 7 : c->line;
        str_show(str_of(text), c->said, 160);
    }
    c->line_n = 0;
}

static void take_errors(const struct hub *h, struct pip_child *c)
{
    char block[4096];
    const ssize_t n = read(c->errors, block, sizeof block);
    if (n <= 0) {
        if (n == 0 || errno != EINTR) {
            take_line(c);
            file_close(&c->errors);
        }
        return;
    }
    if (h->o.progress != NULL) {
        fwrite(block, 1, (size_t)n, h->o.progress);
        fflush(h->o.progress);
    }
    for (ssize_t i = 0; i < n; i++) {
        if (block[i] == '\n')
            take_line(c);
        else if (c->line_n + 1 < sizeof c->line)
            c->line[c->line_n++] = block[i];
    }
}

static enum err spawn(const struct hub *h, const char *const *argv, struct pip_child *c, struct error *e)
{
    posix_spawn_file_actions_t actions;
    int pipe_fds[2];
    *c = (struct pip_child){.errors = -1};
    if (hub_sys_fails(EMFILE) || pipe2(pipe_fds, O_CLOEXEC) != 0)
        return FAIL(e, ERR_IO, "cannot make a pipe: %s", strerror(errno));
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc == 0) {
        rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        if (rc == 0 && h->o.progress != NULL)
            rc = posix_spawn_file_actions_adddup2(&actions, 2, 1); /* our stderr, before it is replaced below */
        else if (rc == 0)
            rc = posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
        if (rc == 0)
            rc = posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 2);
        if (rc == 0)
            rc = hub_sys_fails(EAGAIN) ? EAGAIN
                                       : posix_spawnp(&c->pid, argv[0], &actions, NULL, (char *const *)argv, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    file_close(&pipe_fds[1]);
    if (rc != 0) {
        file_close(&pipe_fds[0]);
        return FAIL(e, rc == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot start %s: %s", argv[0], strerror(rc));
    }
    c->errors = pipe_fds[0];
    return OK;
}

static void nap_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Ask, wait two seconds, insist. */
static void stop(struct pip_child *c)
{
    kill(c->pid, SIGTERM);
    for (int i = 0; i < 40; i++) {
        if (waitpid(c->pid, NULL, WNOHANG) != 0)
            return;
        nap_ms(50);
    }
    kill(c->pid, SIGKILL);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

static enum err watch(const struct hub *h, struct pip_child *c, struct error *e)
{
    const uint64_t until = progress_now_ns() + (uint64_t)HUB_PIP_SECONDS_MAX * 1000000000u;
    int status = 0;
    for (;;) {
        if (c->errors >= 0) {
            struct pollfd p = {.fd = c->errors, .events = POLLIN};
            if (poll(&p, 1, 50) > 0)
                take_errors(h, c);
        } else
            nap_ms(20);
        if (hub_is_cancelled(h) || progress_now_ns() > until) {
            stop(c);
            file_close(&c->errors);
            return hub_is_cancelled(h) ? FAIL(e, ERR_CANCELLED, "stopped")
                                       : FAIL(e, ERR_NETWORK, "pip took more than %d s", HUB_PIP_SECONDS_MAX);
        }
        const pid_t got = waitpid(c->pid, &status, WNOHANG);
        if (got < 0 && errno != EINTR) {
            file_close(&c->errors);
            return FAIL(e, ERR_IO, "cannot wait for pip: %s", strerror(errno));
        }
        if (got == c->pid)
            break;
    }
    while (c->errors >= 0) { /* what it said last; a grandchild that keeps the pipe open must not keep us */
        struct pollfd p = {.fd = c->errors, .events = POLLIN};
        if (poll(&p, 1, 100) <= 0)
            break;
        take_errors(h, c);
    }
    file_close(&c->errors);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return OK;
    if (c->has_no_pip)
        return FAIL(e, ERR_NOT_FOUND, "this python has no pip");
    if (WIFSIGNALED(status))
        return FAIL(e, ERR_NETWORK, "pip was ended by signal %d", WTERMSIG(status));
    return FAIL(
        e, ERR_NETWORK, "pip exited with status %d%s%s", WEXITSTATUS(status), c->said[0] != '\0' ? ": " : "", c->said);
}

static enum err find_wheel(const char *dir, char *wheel, struct error *e)
{
    DIR *d = hub_sys_fails(EIO) ? NULL : opendir(dir);
    if (d == NULL)
        return FAIL(e, ERR_IO, "cannot open folder %s: %s", dir, strerror(errno));
    struct dirent *item;
    enum err err = ERR_NOT_FOUND;
    while (err == ERR_NOT_FOUND && (item = readdir(d)) != NULL)
        if (str_has_suffix(str_of(item->d_name), STR(".whl")))
            err = path_join(wheel, dir, item->d_name, e);
    closedir(d);
    return err == ERR_NOT_FOUND ? FAIL(e, err, "pip left no wheel") : err;
}

enum err pip_download(
    const struct hub *h, const char *package, const char *version, const char *dir, char *wheel, struct error *e)
{
    /* The active environment's python first, then what PATH has. */
    const char *const starts[][3] = {{h->python, "-m", "pip"}, {"python3", "-m", "pip"}, {"pip3"}, {"pip"}};
    char requirement[128];
    snprintf(requirement, sizeof requirement, "%s==%s", package, version);
    struct error first = {0};
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        const char *argv[ARGS_MAX];
        size_t n = 0;
        if (starts[i][0][0] == '\0')
            continue;
        for (size_t k = 0; k < 3 && starts[i][k] != NULL; k++)
            argv[n++] = starts[i][k];
        const char *const rest[] = {"download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
            "--no-input", "-d", dir, requirement, NULL};
        _Static_assert(3 + COUNT_OF(rest) <= ARGS_MAX, "the arguments fit");
        memcpy(argv + n, rest, sizeof rest);
        struct pip_child c;
        struct error its = {0};
        enum err err = spawn(h, argv, &c, &its);
        if (err == OK)
            err = watch(h, &c, &its);
        if (err == OK)
            return find_wheel(dir, wheel, e);
        if (err != ERR_NOT_FOUND) /* a pip that ran has spoken for all of them */
            return FAIL(e, err, "%s", its.text);
        FAIL(&first, err, "%s", its.text);
    }
    return FAIL(e, ERR_NOT_FOUND,
        "no pip on this machine (python3 -m pip, pip3 and pip were tried; the first said: %.200s)", first.text);
}
