/* The cache on disk: folders, manifests, finding, listing, removing. See hub.h for the layout.
 *
 * Reading is tolerant and bounded: a folder that is not ours is passed over, a manifest that cannot be read makes its
 * entry "damaged" and nothing else. Removing is strict: only a valid name below models/ or partial/, no link followed.
 * An entry is first renamed to partial/.gone-NAME, which is nobody's name, so that a reader finds the whole of it or
 * nothing; what a removal that was cut short left there goes with the next pull or removal of that name. */
#include "base/buf.h"
#include "base/json.h"
#include "hub/hub_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST_NAME "manifest.json"

static enum err fail_errno(struct error *e, const char *what, const char *path)
{
    const int code = errno;
    return FAIL(e, code == EACCES || code == EPERM || code == EROFS ? ERR_DENIED : ERR_IO, "%s %s: %s", what, path,
        strerror(code));
}

/* --- places --- */

static enum err place(
    const struct hub *h, const char *kind, const char *name, const char *suffix, char *out, struct error *e)
{
    char leaf[HUB_NAME_MAX + 64];
    snprintf(leaf, sizeof leaf, "%s%s%s", kind, name, suffix);
    return path_join(out, h->cache, leaf, e);
}

enum err cache_models_dir(const struct hub *h, const char *name, char *out, struct error *e)
{
    return place(h, "models/", name, "", out, e);
}

enum err cache_partial_dir(const struct hub *h, const char *name, char *out, struct error *e)
{
    return place(h, "partial/", name, "", out, e);
}

enum err cache_gone_dir(const struct hub *h, const char *name, char *out, struct error *e)
{
    return place(h, "partial/.gone-", name, "", out, e);
}

enum err cache_lock_path(const struct hub *h, const char *name, char *out, struct error *e)
{
    return place(h, "locks/", name, ".lock", out, e);
}

/* --- manifests --- */

static enum err get_text(const json_t *o, const char *key, struct arena *a, const char **out, struct error *e)
{
    struct str s = {"", 0};
    TRY(json_get_str(o, key, &s, e));
    *out = arena_copy_str(a, s);
    return *out != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a manifest");
}

static enum err read_file_item(const json_t *item, struct hub_file *f, struct arena *a, struct error *e)
{
    struct str sha = {"", 0};
    unsigned char digest[SHA256_BYTES];
    if (!json_is_object(item))
        return FAIL(e, ERR_FORMAT, "files: an item is not an object");
    TRY(get_text(item, "name", a, &f->name, e));
    f->bytes = SIZE_UNKNOWN;
    TRY(json_get_u64(item, "bytes", 0, HUB_FILE_BYTES_MAX, &f->bytes, e));
    TRY(json_get_str(item, "sha256", &sha, e));
    if (!path_is_contained(str_of(f->name)) || f->bytes == SIZE_UNKNOWN || !sha256_parse(sha, digest))
        return FAIL(e, ERR_FORMAT, "files: an item without a usable name, bytes and sha256");
    sha256_hex(digest, f->sha256);
    return OK;
}

static enum err manifest_parse(const json_t *doc, struct manifest *m, struct arena *a, struct error *e)
{
    const json_t *files = NULL;
    uint64_t time_s = 0;
    if (!json_is_object(doc))
        return FAIL(e, ERR_FORMAT, "not an object");
    TRY(get_text(doc, "source", a, &m->source, e));
    TRY(get_text(doc, "repo", a, &m->repo, e));
    TRY(get_text(doc, "revision", a, &m->revision, e));
    TRY(get_text(doc, "commit", a, &m->commit, e));
    TRY(get_text(doc, "url_id", a, &m->url_id, e));
    TRY(get_text(doc, "open", a, &m->open, e));
    TRY(json_get_u64(doc, "time", 0, INT64_MAX, &time_s, e));
    TRY(json_get_array(doc, "files", &files, e));
    m->time_s = (int64_t)time_s;
    m->n_file = files != NULL ? json_array_size(files) : 0;
    if (m->n_file == 0 || m->n_file > HUB_ENTRY_FILES_MAX)
        return FAIL(e, ERR_FORMAT, "files: %zu items; 1 to %d are allowed", m->n_file, HUB_ENTRY_FILES_MAX);
    m->files = arena_array(a, m->n_file, sizeof *m->files);
    if (m->files == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a manifest");
    bool has_open = m->open[0] == '\0';
    for (size_t i = 0; i < m->n_file; i++) {
        TRY(read_file_item(json_array_get(files, i), &m->files[i], a, e));
        has_open = has_open || strcmp(m->files[i].name, m->open) == 0;
    }
    return has_open ? OK : FAIL(e, ERR_FORMAT, "open: not one of the files");
}

enum err manifest_read(const char *entry_dir, struct manifest *m, struct arena *a, struct error *e)
{
    char path[PATH_BYTES_MAX];
    json_t *doc = NULL;
    *m = (struct manifest){0};
    TRY(path_join(path, entry_dir, MANIFEST_NAME, e));
    TRY(json_parse_file(path, HUB_MANIFEST_BYTES_MAX, &doc, e));
    const enum err err = manifest_parse(doc, m, a, e);
    json_decref(doc);
    if (err != OK)
        error_prefix(e, "%s", path);
    return err;
}

static void add_text(struct buf *b, const char *key, const char *text)
{
    buf_addf(b, "  \"%s\": ", key);
    buf_add_json_str(b, str_of(text));
    buf_add(b, STR(",\n"));
}

enum err manifest_write(const char *entry_dir, const struct manifest *m, struct error *e)
{
    char path[PATH_BYTES_MAX];
    struct buf b;
    TRY(path_join(path, entry_dir, MANIFEST_NAME, e));
    buf_init(&b, HUB_MANIFEST_BYTES_MAX);
    buf_add(&b, STR("{\n"));
    add_text(&b, "source", m->source);
    add_text(&b, "repo", m->repo);
    add_text(&b, "revision", m->revision);
    add_text(&b, "commit", m->commit);
    add_text(&b, "url_id", m->url_id);
    add_text(&b, "open", m->open);
    buf_addf(&b, "  \"time\": %lld,\n  \"files\": [\n", (long long)m->time_s);
    for (size_t i = 0; i < m->n_file; i++) {
        buf_add(&b, STR("    {\"name\": "));
        buf_add_json_str(&b, str_of(m->files[i].name));
        buf_addf(&b, ", \"bytes\": %llu, \"sha256\": \"%s\"}%s\n", (unsigned long long)m->files[i].bytes,
            m->files[i].sha256, i + 1 < m->n_file ? "," : "");
    }
    buf_add(&b, STR("  ]\n}\n"));
    enum err err = buf_check(&b, "a manifest", e);
    if (err == OK)
        err = file_write_atomic(path, buf_str(&b), e);
    buf_fini(&b);
    return err;
}

bool manifest_is_whole(const char *entry_dir, const struct manifest *m)
{
    for (size_t i = 0; i < m->n_file; i++) {
        char path[PATH_BYTES_MAX];
        struct stat st;
        if (path_join(path, entry_dir, m->files[i].name, NULL) != OK || stat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
            (uint64_t)st.st_size != m->files[i].bytes)
            return false;
    }
    return true;
}

/* --- walking --- */

enum err cache_each(const struct hub *h, const char *kind, cache_entry_fn fn, void *ctx, struct error *e)
{
    char base[PATH_BYTES_MAX], dir[PATH_BYTES_MAX];
    TRY(path_join(base, h->cache, kind, e));
    DIR *d = hub_sys_fails(EIO) ? NULL : opendir(base);
    if (d == NULL)
        return errno == ENOENT ? OK : fail_errno(e, "cannot open folder", base);
    enum err err = OK;
    struct dirent *item;
    for (size_t n = 0; err == OK && n < HUB_ENTRIES_MAX && (item = readdir(d)) != NULL;) {
        if (!hub_name_is_valid(str_of(item->d_name)))
            continue;
        n++;
        err = path_join(dir, base, item->d_name, e);
        if (err == OK && file_is_dir(dir))
            err = fn(ctx, dir, item->d_name, e);
    }
    closedir(d);
    return err;
}

/* --- finding --- */

struct finding {
    const struct hub_spec *s;
    struct arena a;
    char name[HUB_NAME_MAX + 1];
    char path[PATH_BYTES_MAX];
    int64_t time_s;
    bool is_found;
};

static enum err open_path(const char *dir, const struct manifest *m, char *path, struct error *e)
{
    if (m->open[0] != '\0')
        return path_join(path, dir, m->open, e);
    memcpy(path, dir, strlen(dir) + 1);
    return OK;
}

/* Does the entry hold what the spec asks for? The choice rule decides, over the entry's own files. */
static bool manifest_answers(const struct manifest *m, const struct hub_spec *s)
{
    bool picked[HUB_ENTRY_FILES_MAX] = {false};
    const char *open = "";
    if (strcmp(m->repo, s->repo) != 0)
        return false;
    if (strcmp(m->revision, s->revision) != 0 && strcmp(m->commit, s->revision) != 0)
        return false;
    return s->file[0] == '\0' || choose_files(m->files, m->n_file, s->file, picked, &open, NULL) == OK;
}

static enum err match_hf(void *ctx, const char *dir, const char *name, struct error *e)
{
    struct finding *f = ctx;
    struct manifest m;
    arena_reset(&f->a);
    const enum err err = manifest_read(dir, &m, &f->a, NULL);
    if (err == ERR_NOMEM)
        return FAIL(e, err, "no memory for a manifest");
    if (err != OK || !manifest_answers(&m, f->s) || !manifest_is_whole(dir, &m))
        return OK;
    if (f->is_found && f->time_s > m.time_s) /* several files of one repository: the newest is meant */
        return OK;
    f->is_found = true;
    f->time_s = m.time_s;
    memcpy(f->name, name, strlen(name) + 1);
    return open_path(dir, &m, f->path, e);
}

static enum err find_named(const struct hub *h, struct finding *f, const char *name, struct error *e)
{
    char dir[PATH_BYTES_MAX];
    struct manifest m;
    TRY(cache_models_dir(h, name, dir, e));
    const enum err err = manifest_read(dir, &m, &f->a, NULL);
    if (err == ERR_NOMEM)
        return FAIL(e, err, "no memory for a manifest");
    if (err == ERR_DENIED) /* it may well be there: to say that it is not would send the user looking elsewhere */
        return FAIL(e, err, "no permission to read %s", dir);
    if (err != OK || !manifest_is_whole(dir, &m))
        return OK;
    f->is_found = true;
    memcpy(f->name, name, strlen(name) + 1);
    return open_path(dir, &m, f->path, e);
}

enum err cache_find(
    const struct hub *h, const struct hub_spec *s, char name[HUB_NAME_MAX + 1], char *path, struct error *e)
{
    struct finding *f = mem_zalloc(sizeof *f);
    if (f == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to look into the cache");
    f->s = s;
    arena_init(&f->a, 4 * HUB_MANIFEST_BYTES_MAX);
    enum err err = OK;
    if (s->kind == HUB_KIND_HF)
        err = cache_each(h, "models", match_hf, f, e);
    else if (s->name[0] != '\0')
        err = find_named(h, f, s->name, e);
    if (err == OK && !f->is_found)
        err = ERR_NOT_FOUND;
    if (err == OK) {
        memcpy(name, f->name, sizeof f->name);
        memcpy(path, f->path, sizeof f->path);
    }
    arena_fini(&f->a);
    mem_free(f);
    return err;
}

/* --- removing --- */

/* fd is the open folder; it is closed here. */
static enum err remove_below(int fd, int depth, const char *shown, uint64_t *bytes, struct error *e)
{
    if (depth > HUB_TREE_DEPTH_MAX) {
        close(fd);
        return FAIL(e, ERR_LIMIT, "%s is nested deeper than %d folders", shown, HUB_TREE_DEPTH_MAX);
    }
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        close(fd);
        return fail_errno(e, "cannot open folder", shown);
    }
    enum err err = OK;
    struct dirent *item;
    while (err == OK && (item = readdir(d)) != NULL) {
        struct stat st;
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0)
            continue;
        if (hub_sys_fails(EIO) || fstatat(dirfd(d), item->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            err = fail_errno(e, "cannot stat a file in", shown);
            break;
        }
        if (S_ISDIR(st.st_mode)) {
            const int below = openat(dirfd(d), item->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            err = below < 0 ? fail_errno(e, "cannot open a folder in", shown)
                            : remove_below(below, depth + 1, shown, bytes, e);
        } else
            *bytes += (uint64_t)st.st_size;
        const int flag = S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0;
        if (err == OK && (hub_sys_fails(EIO) || unlinkat(dirfd(d), item->d_name, flag) != 0))
            err = fail_errno(e, "cannot remove a file of", shown);
    }
    closedir(d);
    return err;
}

enum err tree_remove(const char *path, uint64_t *bytes, struct error *e)
{
    const int fd = hub_sys_fails(EIO) ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? OK : fail_errno(e, "cannot open folder", path);
    TRY(remove_below(fd, 0, path, bytes, e));
    if (hub_sys_fails(EIO) || rmdir(path) != 0)
        return fail_errno(e, "cannot remove folder", path);
    return OK;
}

/* Out of sight, then off the disk. */
static enum err remove_entry(const char *dir, const char *gone, uint64_t *bytes, struct error *e)
{
    TRY(tree_remove(gone, bytes, e)); /* a removal that was cut short */
    struct stat st;
    if (hub_sys_fails(EIO) || lstat(dir, &st) != 0)
        return errno == ENOENT ? OK : fail_errno(e, "cannot stat", dir);
    if (!S_ISDIR(st.st_mode))
        return FAIL(e, ERR_IO, "%s is a link or a file, not an entry of the cache", dir);
    TRY(file_rename(dir, gone, e));
    return tree_remove(gone, bytes, e);
}

static enum err remove_named(struct hub *h, const char *name, uint64_t *bytes, struct error *e)
{
    char models[PATH_BYTES_MAX], partial[PATH_BYTES_MAX], gone[PATH_BYTES_MAX], path[PATH_BYTES_MAX];
    struct file_lock lock;
    struct error busy = {0};
    TRY(cache_models_dir(h, name, models, e));
    TRY(cache_partial_dir(h, name, partial, e));
    TRY(cache_gone_dir(h, name, gone, e));
    if (!file_is_dir(models) && !file_is_dir(partial) && !file_is_dir(gone))
        return FAIL(e, ERR_NOT_FOUND, "there is no '%s' in %s", name, h->cache);
    TRY(path_join(path, h->cache, "partial", e));
    TRY(file_make_dirs(path, e));
    TRY(path_join(path, h->cache, "locks", e));
    TRY(file_make_dirs(path, e));
    TRY(cache_lock_path(h, name, path, e));
    enum err err = file_lock_take(&lock, path, false, &busy);
    if (err == ERR_EXISTS)
        return FAIL(e, err, "'%s' is being pulled by another process", name);
    if (err != OK)
        return FAIL(e, err, "%s", busy.text);
    err = remove_entry(models, gone, bytes, e);
    if (err == OK)
        err = remove_entry(partial, gone, bytes, e);
    file_lock_give(&lock);
    return err;
}

enum err hub_remove(struct hub *h, const char *model, uint64_t *freed_bytes, struct error *e)
{
    struct hub_spec s;
    struct error unread = {0};
    uint64_t bytes = 0;
    char name[HUB_NAME_MAX + 1] = "", path[PATH_BYTES_MAX], shown[160];
    if (model == NULL || model[0] == '\0') /* `quern rm "$MODEL"` with MODEL unset must not hit the default model */
        return FAIL(e, ERR_INVALID, "name the model to remove; the default one is '%s'", HUB_DEFAULT_NAME);
    TRY(spec_parse(&s, model, e));
    enum err err = OK;
    if (s.kind != HUB_KIND_HF)
        memcpy(name, s.name, sizeof name);
    else if ((err = cache_find(h, &s, name, path, &unread)) != OK && err != ERR_NOT_FOUND)
        return FAIL(e, err, "%s", unread.text);
    if (name[0] == '\0')
        return FAIL(
            e, ERR_NOT_FOUND, "there is no '%s' in %s", str_show(str_of(s.text), shown, sizeof shown), h->cache);
    err = remove_named(h, name, &bytes, e);
    if (freed_bytes != NULL)
        *freed_bytes = bytes;
    return err;
}

/* --- listing --- */

struct listing {
    struct hub_list *l;
    size_t cap;
    struct arena a;
    bool is_partial;
};

static uint64_t folder_bytes(const char *dir)
{
    uint64_t bytes = 0;
    DIR *d = opendir(dir);
    struct dirent *item;
    while (d != NULL && (item = readdir(d)) != NULL) {
        struct stat st;
        if (fstatat(dirfd(d), item->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_size;
    }
    if (d != NULL)
        closedir(d);
    return bytes;
}

static bool is_listed(const struct hub_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->entries[i].name, name) == 0)
            return true;
    return false;
}

static enum err list_one(void *ctx, const char *dir, const char *name, struct error *e)
{
    struct listing *ls = ctx;
    struct hub_list *l = ls->l;
    struct manifest m = {.source = "", .open = ""};
    if (ls->is_partial && is_listed(l, name)) /* a whole entry being replaced is shown as the whole one */
        return OK;
    if (l->n == ls->cap) {
        const size_t cap = MAX(ls->cap * 2, (size_t)16);
        struct hub_entry *grown = mem_resize(l->entries, cap * sizeof *grown);
        if (grown == NULL)
            return FAIL(e, ERR_NOMEM, "no memory to list the cache");
        l->entries = grown;
        ls->cap = cap;
    }
    arena_reset(&ls->a);
    struct hub_entry entry = {.state = HUB_PARTIAL};
    if (!ls->is_partial) {
        const enum err err = manifest_read(dir, &m, &ls->a, NULL);
        if (err == ERR_NOMEM)
            return FAIL(e, err, "no memory to list the cache");
        entry.state = err == OK && manifest_is_whole(dir, &m) ? HUB_READY : HUB_DAMAGED;
        if (err != OK)
            m = (struct manifest){.source = "", .open = ""};
    }
    if (entry.state != HUB_READY && !file_is_dir(dir)) /* removed or finished since the folder was read */
        return OK;
    entry.n_file = (uint32_t)m.n_file;
    entry.time_s = m.time_s;
    for (size_t i = 0; i < m.n_file; i++)
        entry.bytes += m.files[i].bytes;
    if (entry.state != HUB_READY)
        entry.bytes = folder_bytes(dir);
    entry.name = mem_copy_str(str_of(name));
    entry.source = mem_copy_str(str_of(m.source));
    entry.file = mem_copy_str(str_of(m.open));
    l->entries[l->n++] = entry; /* owned by the list from here, whole or not */
    return entry.name != NULL && entry.source != NULL && entry.file != NULL
               ? OK
               : FAIL(e, ERR_NOMEM, "no memory to list the cache");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct hub_entry *)a)->name, ((const struct hub_entry *)b)->name);
}

enum err hub_list(struct hub *h, struct hub_list *out, struct error *e)
{
    struct listing ls = {.l = out};
    *out = (struct hub_list){0};
    arena_init(&ls.a, 4 * HUB_MANIFEST_BYTES_MAX);
    enum err err = cache_each(h, "models", list_one, &ls, e);
    ls.is_partial = true;
    if (err == OK)
        err = cache_each(h, "partial", list_one, &ls, e);
    arena_fini(&ls.a);
    if (err == OK && out->n > 0)
        qsort(out->entries, out->n, sizeof *out->entries, by_name);
    if (err != OK)
        hub_list_fini(out);
    return err;
}

void hub_list_fini(struct hub_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        mem_free(l->entries[i].name);
        mem_free(l->entries[i].source);
        mem_free(l->entries[i].file);
    }
    mem_free(l->entries);
    *l = (struct hub_list){0};
}
