/* One entry of the cache being made. Files are staged one by one in partial/NAME and checked there; then all of them
 * and the manifest move into partial/NAME/.ready, and that folder is renamed to models/NAME. So models/ only ever holds
 * whole entries, and a reader needs no lock. The entry's lock is held from the first look to the rename.
 *
 * Order on disk: contents synced before names, the manifest last, the rename last of all, then the parent is synced. */
#include "hub/hub_int.h"

#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static enum err fail_errno(struct error *e, const char *what, const char *path)
{
    const int code = errno;
    return FAIL(e, code == EACCES || code == EPERM || code == EROFS ? ERR_DENIED : ERR_IO, "%s %s: %s", what, path,
        strerror(code));
}

enum err disk_check(const char *dir, uint64_t bytes, struct error *e)
{
    struct statvfs st;
    if (hub_sys_fails(EIO) || statvfs(dir, &st) != 0)
        return fail_errno(e, "cannot ask the free space of", dir);
    const uint64_t free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
    if (free_bytes >= HUB_DISK_MARGIN_BYTES && free_bytes - HUB_DISK_MARGIN_BYTES >= bytes)
        return OK;
    char need[32], have[32];
    return FAIL(e, ERR_IO, "%s has %s free; %s and a margin of %llu MB are needed", dir,
        progress_bytes(free_bytes, have, sizeof have), bytes > 0 ? progress_bytes(bytes, need, sizeof need) : "a model",
        (unsigned long long)(HUB_DISK_MARGIN_BYTES / 1000000));
}

enum err dir_sync(const char *dir, struct error *e)
{
    int fd = hub_sys_fails(EIO) ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(e, "cannot open folder", dir);
    enum err err = OK;
    if (hub_sys_fails(EIO) || (fsync(fd) != 0 && errno != EINVAL)) /* some file systems cannot sync a folder */
        err = fail_errno(e, "cannot sync folder", dir);
    file_close(&fd);
    return err;
}

/* Polled rather than waited for, so that a cancel is seen. */
static enum err take_lock(struct entry *t, const char *path, struct error *e)
{
    bool has_told = false;
    for (;;) {
        struct error busy = {0};
        const enum err err = file_lock_take(&t->lock, path, false, &busy);
        if (err == OK)
            return OK;
        if (err != ERR_EXISTS)
            return FAIL(e, err, "%s", busy.text);
        if (hub_is_cancelled(t->h))
            return FAIL(e, ERR_CANCELLED, "%s: stopped while waiting for another pull", t->name);
        if (!has_told)
            hub_note(t->h, "%s is being pulled by another process; waiting for it", t->name);
        has_told = true;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
}

enum err entry_begin(struct entry *t, const struct hub *h, const char *name, struct error *e)
{
    char path[PATH_BYTES_MAX], ready[PATH_BYTES_MAX];
    t->h = h;
    t->lock.fd = -1;
    assert(hub_name_is_valid(str_of(name)));
    memcpy(t->name, name, strlen(name) + 1);
    TRY(path_join(path, h->cache, "locks", e));
    TRY(file_make_dirs(path, e));
    TRY(path_join(path, h->cache, "models", e));
    TRY(file_make_dirs(path, e));
    TRY(cache_partial_dir(h, name, t->staging, e));
    TRY(cache_models_dir(h, name, t->final, e));
    TRY(cache_lock_path(h, name, path, e));
    TRY(take_lock(t, path, e));
    uint64_t freed = 0;
    enum err err = file_make_dirs(t->staging, e);
    if (err == OK)
        err = path_join(ready, t->staging, ".ready", e);
    if (err == OK)
        err = tree_remove(ready, &freed, e); /* a commit that was cut short */
    if (err == OK)
        err = cache_gone_dir(h, name, ready, e);
    if (err == OK)
        err = tree_remove(ready, &freed, e); /* a removal that was cut short */
    if (err != OK)
        entry_end(t);
    return err;
}

void entry_end(struct entry *t)
{
    rmdir(t->staging); /* only when empty: nothing was staged */
    file_lock_give(&t->lock);
}

/* Move one staged file below .ready, making the folders of its name. */
static enum err move_ready(const struct entry *t, const char *ready, const char *name, struct error *e)
{
    char from[PATH_BYTES_MAX], to[PATH_BYTES_MAX], dir[PATH_BYTES_MAX];
    TRY(path_join(from, t->staging, name, e));
    TRY(path_join(to, ready, name, e));
    memcpy(dir, to, sizeof dir);
    *strrchr(dir, '/') = '\0';
    TRY(file_make_dirs(dir, e));
    TRY(file_rename(from, to, e));
    return dir_sync(dir, e);
}

enum err entry_commit(struct entry *t, struct manifest *m, char *path, struct error *e)
{
    char ready[PATH_BYTES_MAX], models[PATH_BYTES_MAX];
    uint64_t freed = 0;
    m->time_s = (int64_t)time(NULL);
    TRY(path_join(ready, t->staging, ".ready", e));
    TRY(file_make_dirs(ready, e));
    for (size_t i = 0; i < m->n_file; i++)
        TRY(move_ready(t, ready, m->files[i].name, e));
    TRY(manifest_write(ready, m, e));
    TRY(dir_sync(ready, e));
    TRY(tree_remove(t->final, &freed, e)); /* only a damaged one can be there: a whole one would have been found */
    TRY(file_rename(ready, t->final, e));
    TRY(path_join(models, t->h->cache, "models", e));
    TRY(dir_sync(models, e));
    if (m->open[0] != '\0')
        TRY(path_join(path, t->final, m->open, e));
    else
        memcpy(path, t->final, sizeof t->final);
    return tree_remove(t->staging, &freed, e); /* notes, and files of an older revision */
}
