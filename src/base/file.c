/* Files; see file.h. Every system call that can fail asks fault_hit first. */
#include "base/file.h"

#include "base/fault.h"
#include "base/limits.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err err_of_errno(int code)
{
    switch (code) {
    case ENOENT:
    case ENOTDIR: return ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS: return ERR_DENIED;
    case ENOMEM: return ERR_NOMEM;
    case EEXIST: return ERR_EXISTS;
    case ENAMETOOLONG:
    case ELOOP: return ERR_INVALID;
    default: return ERR_IO;
    }
}

static enum err fail_errno(struct error *e, const char *what, const char *path)
{
    const int code = errno;
    return FAIL(e, err_of_errno(code), "%s %s: %s", what, path, strerror(code));
}

/* Stands in for the system call's answer under fault injection. */
static bool sys_fails(int code)
{
    if (!fault_hit(FAULT_SYS))
        return false;
    errno = code;
    return true;
}

enum err file_open(const char *path, int *fd, uint64_t *bytes, struct error *e)
{
    struct stat st;
    *fd = -1;
    /* O_NONBLOCK: opening a FIFO must not wait for a writer; O_NOCTTY: a terminal must not become ours. Neither has an
     * effect on regular files. */
    const int f = sys_fails(EIO) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f < 0)
        return fail_errno(e, "cannot open", path);
    if (sys_fails(EIO) || fstat(f, &st) != 0) {
        const enum err err = fail_errno(e, "cannot stat", path);
        close(f);
        return err;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return FAIL(e, ERR_INVALID, "%s is %s, not a regular file", path,
            S_ISDIR(st.st_mode)    ? "a directory"
            : S_ISFIFO(st.st_mode) ? "a FIFO"
                                   : "a special file");
    }
    if (bytes != NULL)
        *bytes = (uint64_t)st.st_size;
    *fd = f;
    return OK;
}

void file_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

enum err file_map_fd(struct file_map *m, int fd, const char *path, struct error *e)
{
    *m = (struct file_map){.p = (const unsigned char *)""};
    struct stat st;
    if (sys_fails(EIO) || fstat(fd, &st) != 0)
        return fail_errno(e, "cannot stat", path);
    if (st.st_size > 0) {
        void *p = sys_fails(ENOMEM) ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            return fail_errno(e, "cannot map", path);
        m->p = p;
    }
    m->bytes = (uint64_t)st.st_size;
    m->mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return OK;
}

enum err file_map_open(struct file_map *m, const char *path, struct error *e)
{
    *m = (struct file_map){.p = (const unsigned char *)""};
    int fd;
    TRY(file_open(path, &fd, NULL, e));
    const enum err err = file_map_fd(m, fd, path, e);
    file_close(&fd); /* the mapping keeps the file */
    return err;
}

void file_map_close(struct file_map *m)
{
    if (m->bytes > 0)
        munmap((void *)m->p, (size_t)m->bytes);
    *m = (struct file_map){.p = (const unsigned char *)""};
}

void file_map_forget(const struct file_map *m, const void *p, size_t bytes)
{
    const uintptr_t map = (uintptr_t)m->p, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = MAX((uintptr_t)p & ~(page - 1), map), to = MIN((uintptr_t)p + bytes, map + m->bytes);
    if (m->bytes > 0 && from < to)
        madvise((void *)from, to - from, MADV_DONTNEED); /* read-only pages of a file: nothing is lost */
}

enum err file_read_all(const char *path, uint64_t bytes_max, char **out, size_t *n, struct error *e)
{
    *out = NULL;
    *n = 0;
    int fd;
    uint64_t bytes = 0;
    TRY(file_open(path, &fd, &bytes, e));
    enum err err = OK;
    char *p = NULL;
    if (bytes > bytes_max)
        err = FAIL(e, ERR_LIMIT, "%s has %llu bytes; the limit is %llu", path, (unsigned long long)bytes,
            (unsigned long long)bytes_max);
    else if ((p = mem_alloc((size_t)bytes + 1)) == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory to read %s", path);
    size_t got = 0;
    while (err == OK && got < bytes) {
        const ssize_t k = sys_fails(EIO) ? -1 : read(fd, p + got, (size_t)bytes - got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            err = fail_errno(e, "cannot read", path);
        else if (k == 0)
            break; /* the file shrank while we read; what is there is what there is */
        else
            got += (size_t)k;
    }
    file_close(&fd);
    if (err != OK || p == NULL) {
        mem_free(p);
        return err;
    }
    p[got] = '\0';
    *out = p;
    *n = got;
    return OK;
}

enum err file_read_at(int fd, uint64_t at, void *out, size_t n, const char *path, struct error *e)
{
    size_t got = 0;
    while (got < n) {
        const ssize_t k = sys_fails(EIO) ? -1 : pread(fd, (char *)out + got, n - got, (off_t)(at + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return fail_errno(e, "cannot read", path);
        if (k == 0)
            return FAIL(e, ERR_FORMAT, "byte %llu: the file ends here, %zu bytes short", (unsigned long long)(at + got),
                n - got);
        got += (size_t)k;
    }
    return OK;
}

enum err file_write_fully(int fd, const void *bytes, size_t n, const char *path, struct error *e)
{
    size_t done = 0;
    while (done < n) {
        const ssize_t k = sys_fails(ENOSPC) ? -1 : write(fd, (const char *)bytes + done, n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k == 0)
            errno = ENOSPC; /* no progress and no reason given: never loop on it */
        if (k <= 0)
            return fail_errno(e, "cannot write", path);
        done += (size_t)k;
    }
    return OK;
}

enum err file_write_atomic(const char *path, struct str content, struct error *e)
{
    /* The name is ours alone: pid against other processes, counter against other threads. A file of that name is left
     * from a dead process that had our pid. */
    static atomic_uint n_temps;
    char temp[PATH_BYTES_MAX];
    const int len = snprintf(temp, sizeof temp, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&n_temps, 1));
    if (len < 0 || (size_t)len >= sizeof temp)
        return FAIL(e, ERR_LIMIT, "path longer than %d bytes: %.200s", PATH_BYTES_MAX, path);
    unlink(temp);
    int fd = sys_fails(EIO) ? -1 : open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return fail_errno(e, "cannot create", temp);
    enum err err = file_write_fully(fd, content.p, content.n, temp, e);
    if (err == OK && (sys_fails(EIO) || fsync(fd) != 0))
        err = fail_errno(e, "cannot sync", temp);
    file_close(&fd);
    if (err == OK)
        err = file_rename(temp, path, e);
    if (err != OK)
        unlink(temp);
    return err;
}

enum err file_make_dirs(const char *path, struct error *e)
{
    char part[PATH_BYTES_MAX];
    const size_t n = strlen(path);
    if (n == 0)
        return FAIL(e, ERR_INVALID, "cannot create a folder without a name");
    if (n >= sizeof part)
        return FAIL(e, ERR_LIMIT, "path longer than %d bytes: %.200s", PATH_BYTES_MAX, path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if ((sys_fails(EIO) || mkdir(part, 0755) != 0) && (errno != EEXIST || !file_is_dir(part)))
            return fail_errno(e, "cannot create folder", part);
    }
    return OK;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

enum err file_rename(const char *from, const char *to, struct error *e)
{
    if (sys_fails(EIO) || rename(from, to) != 0)
        return fail_errno(e, "cannot rename into", to);
    return OK;
}

enum err file_remove(const char *path, struct error *e)
{
    if (sys_fails(EIO) || unlink(path) != 0)
        return fail_errno(e, "cannot remove", path);
    return OK;
}

enum err file_lock_take(struct file_lock *l, const char *path, bool wait, struct error *e)
{
    l->fd = -1;
    int fd = sys_fails(EIO) ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return fail_errno(e, "cannot open lock", path);
    int rc;
    do
        rc = sys_fails(EIO) ? -1 : flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB));
    while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        const enum err err = errno == EWOULDBLOCK ? FAIL(e, ERR_EXISTS, "%s is held by another process", path)
                                                  : fail_errno(e, "cannot lock", path);
        file_close(&fd);
        return err;
    }
    l->fd = fd;
    return OK;
}

void file_lock_give(struct file_lock *l)
{
    file_close(&l->fd); /* closing drops the lock; the file stays, or two processes could lock two files of one name */
}

enum err path_join(char *out, const char *dir, const char *name, struct error *e)
{
    const char *slash = dir[0] == '\0' || dir[strlen(dir) - 1] == '/' ? "" : "/";
    const int n = snprintf(out, PATH_BYTES_MAX, "%s%s%s", dir, slash, name);
    if (n < 0 || n >= PATH_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "path longer than %d bytes: %.200s", PATH_BYTES_MAX, name);
    return OK;
}

bool path_is_contained(struct str name)
{
    if (name.n == 0 || name.n >= PATH_BYTES_MAX)
        return false;
    size_t start = 0;
    for (size_t i = 0; i <= name.n; i++) {
        if (i < name.n && name.p[i] != '/') {
            if ((unsigned char)name.p[i] < 0x20 || name.p[i] == 0x7f || name.p[i] == '\\')
                return false;
            continue;
        }
        const struct str part = {name.p + start, i - start};
        if (part.n == 0 || str_is(part, ".") || str_is(part, ".."))
            return false;
        start = i + 1;
    }
    return true;
}
