/* Files as the rest of the program needs them: mapped read-only, read whole under a limit, written so that a reader
 * never sees half, locked between processes. Only regular files are opened: a FIFO, device or directory is an answer.
 *
 * Threads: any; each struct belongs to one thread at a time. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/base.h"

#include <sys/types.h>

/* A whole file mapped read-only. Pages are read when touched, so a 10 GB map costs nothing until used. */
struct file_map {
    const unsigned char *p; /* never NULL after success, even for an empty file */
    uint64_t bytes;
    int64_t mtime_ns; /* with bytes, tells whether the file changed since a cache entry was made from it */
};

enum err file_map_open(struct file_map *m, const char *path, struct error *e) MUST_CHECK;
enum err file_map_fd(struct file_map *m, int fd, const char *path, struct error *e) MUST_CHECK; /* fd stays open */
void file_map_close(struct file_map *m);

/* Take the pages of these bytes out of this process's memory; they come again, from the system's cache or the disk,
 * when touched. What lies outside the map is left alone. */
void file_map_forget(const struct file_map *m, const void *p, size_t bytes);

/* Open a regular file for reading; *bytes may be NULL. The caller closes the descriptor with file_close. */
enum err file_open(const char *path, int *fd, uint64_t *bytes, struct error *e) MUST_CHECK;
void file_close(int *fd); /* sets it to -1 */

/* Exactly n bytes from an offset; ERR_FORMAT when the file ends first. path is for the message. */
enum err file_read_at(int fd, uint64_t at, void *out, size_t n, const char *path, struct error *e) MUST_CHECK;

/* The whole content, NUL-terminated (*out to be freed with mem_free); ERR_LIMIT above bytes_max. */
enum err file_read_all(const char *path, uint64_t bytes_max, char **out, size_t *n, struct error *e) MUST_CHECK;

/* Create, write everything, sync and rename into place: a reader sees the old content or the new, never part of it. */
enum err file_write_atomic(const char *path, struct str content, struct error *e) MUST_CHECK;
enum err file_write_fully(int fd, const void *bytes, size_t n, const char *path, struct error *e) MUST_CHECK;

enum err file_make_dirs(const char *path, struct error *e) MUST_CHECK; /* like mkdir -p, mode 0755 */
bool file_is_dir(const char *path);
bool file_is_regular(const char *path);
enum err file_rename(const char *from, const char *to, struct error *e) MUST_CHECK;
enum err file_remove(const char *path, struct error *e) MUST_CHECK;

/* An exclusive lock file held until closed or until the process ends. ERR_EXISTS when another process holds it and
 * wait is false. */
struct file_lock {
    int fd;
};
enum err file_lock_take(struct file_lock *l, const char *path, bool wait, struct error *e) MUST_CHECK;
void file_lock_give(struct file_lock *l);

/* dir + "/" + name into out of PATH_BYTES_MAX bytes; name alone when dir is empty; ERR_LIMIT when too long. */
enum err path_join(char *out, const char *dir, const char *name, struct error *e) MUST_CHECK;

/* True when name is a plain relative path that stays below its folder: no leading slash, no "..", no empty part, no
 * control byte. Names that come from files or servers must pass before they touch the disk. */
bool path_is_contained(struct str name);

#endif
