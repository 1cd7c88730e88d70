/* Hugging Face: the listing of a repository, the URL of a file, and its local cache.
 *
 * The listing says for each file its size and its hash (SHA-256 for large files, the git blob's SHA-1 for small ones)
 * and which commit the revision means now. Files are then fetched by that commit, so a branch that moves during a pull
 * cannot mix two versions. The listing is a stranger's JSON: every name must stay below its folder or the whole listing
 * is refused.
 *
 * The local cache of the Hugging Face client (models--owner--repo/refs, /snapshots) is read, never written. */
#include "base/buf.h"
#include "base/json.h"
#include "hub/hub_int.h"

#include <ctype.h>
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

/* --- listing --- */

static bool is_hex(struct str s, size_t n)
{
    if (s.n != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isxdigit((unsigned char)s.p[i]))
            return false;
    return true;
}

static enum err parse_sibling(const json_t *item, struct hub_file *f, struct arena *a, struct error *e)
{
    struct str name = {"", 0}, sha = {"", 0}, oid = {"", 0}, blob = {"", 0};
    const json_t *lfs = NULL;
    char shown[160];
    if (!json_is_object(item))
        return FAIL(e, ERR_FORMAT, "siblings: an item is not an object");
    TRY(json_get_str(item, "rfilename", &name, e));
    if (!path_is_contained(name) || memchr(name.p, '\0', name.n) != NULL)
        return FAIL(e, ERR_FORMAT, "siblings: the file name '%s' does not stay in its folder",
            str_show(name, shown, sizeof shown));
    f->bytes = SIZE_UNKNOWN;
    TRY(json_get_u64(item, "size", 0, HUB_FILE_BYTES_MAX, &f->bytes, e));
    TRY(json_get_str(item, "blobId", &blob, e));
    TRY(json_get_object(item, "lfs", &lfs, e));
    if (lfs != NULL) {
        TRY(json_get_u64(lfs, "size", 0, HUB_FILE_BYTES_MAX, &f->bytes, e));
        TRY(json_get_str(lfs, "sha256", &sha, e));
        TRY(json_get_str(lfs, "oid", &oid, e));
        unsigned char digest[SHA256_BYTES];
        if (sha256_parse(sha, digest) || sha256_parse(oid, digest))
            sha256_hex(digest, f->sha256);
    } else if (is_hex(blob, HUB_SHA1_HEX) && f->bytes != SIZE_UNKNOWN) {
        memcpy(f->git_sha1, blob.p, HUB_SHA1_HEX);
        f->git_sha1[HUB_SHA1_HEX] = '\0';
    }
    f->name = arena_copy_str(a, name);
    return f->name != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a file listing");
}

static enum err parse_doc(const json_t *doc, struct hf_listing *out, struct arena *a, struct error *e)
{
    const json_t *siblings = NULL;
    struct str commit = {"", 0};
    if (!json_is_object(doc))
        return FAIL(e, ERR_FORMAT, "not an object");
    TRY(json_get_str(doc, "sha", &commit, e));
    if (!is_hex(commit, HUB_SHA1_HEX))
        return FAIL(e, ERR_FORMAT, "sha: not a commit hash");
    TRY(json_get_array(doc, "siblings", &siblings, e));
    out->n = siblings != NULL ? json_array_size(siblings) : 0;
    if (out->n > HUB_FILES_MAX)
        return FAIL(e, ERR_LIMIT, "siblings: %zu files; the limit is %d", out->n, HUB_FILES_MAX);
    out->commit = arena_copy_str(a, commit);
    out->files = arena_array(a, MAX(out->n, (size_t)1), sizeof *out->files);
    if (out->commit == NULL || out->files == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a file listing");
    for (size_t i = 0; i < out->n; i++)
        TRY(parse_sibling(json_array_get(siblings, i), &out->files[i], a, e));
    return OK;
}

enum err hf_listing_parse(struct str json, struct hf_listing *out, struct arena *a, struct error *e)
{
    json_t *doc = NULL;
    *out = (struct hf_listing){0};
    enum err err = json_parse(json, &doc, e);
    if (err == OK)
        err = parse_doc(doc, out, a, e);
    json_decref(doc);
    if (err == ERR_INVALID) { /* a field of the wrong type is the server's mistake, not the user's */
        err = ERR_FORMAT;
        if (e != NULL)
            e->code = err;
    }
    if (err != OK)
        error_prefix(e, "file listing");
    return err;
}

static enum err on_listing(void *ctx, const struct http_answer *a, const void *bytes, size_t n, struct error *e)
{
    (void)a;
    struct buf *b = ctx;
    buf_add(b, (struct str){bytes, n});
    return buf_check(b, "the file listing", e);
}

enum err hf_list(
    const struct hub *h, const struct hub_spec *s, struct hf_listing *out, struct arena *a, struct error *e)
{
    char url[HUB_URL_MAX], revision[800];
    struct retry retry = {0};
    struct http_answer answer;
    struct buf b;
    TRY(url_escape(s->revision, false, revision, sizeof revision, e));
    snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", h->endpoint, s->repo, revision);
    buf_init(&b, HUB_LISTING_BYTES_MAX);
    const struct http_request r = {
        .url = url, .what = "the file listing", .if_range = "", .sink = on_listing, .ctx = &b};
    enum err err;
    for (;;) {
        buf_clear(&b);
        err = http_get(h, &r, &answer, e);
        if (err == OK || (err = retry_wait(h, &retry, &answer, false, err, e)) != OK)
            break;
    }
    if (err == OK)
        err = hf_listing_parse(buf_str(&b), out, a, e);
    buf_fini(&b);
    return err;
}

enum err hf_file_url(
    const struct hub *h, const struct hub_spec *s, const char *commit, const char *file, char *url, struct error *e)
{
    char escaped[HUB_URL_MAX / 2];
    TRY(url_escape(file, true, escaped, sizeof escaped, e));
    const int n = snprintf(url, HUB_URL_MAX, "%s/%s/resolve/%s/%s", h->endpoint, s->repo, commit, escaped);
    return n > 0 && n < HUB_URL_MAX ? OK : FAIL(e, ERR_LIMIT, "%s: its URL is longer than %d bytes", file, HUB_URL_MAX);
}

/* --- the client's own cache --- */

/* Names below dir, one level of folders deep, as much as a listing may have. */
static enum err read_names(
    const char *dir, const char *prefix, struct hub_file *files, size_t *n, struct arena *a, struct error *e)
{
    DIR *d = opendir(dir);
    struct dirent *item;
    enum err err = OK;
    while (d != NULL && err == OK && *n < HUB_ENTRY_FILES_MAX && (item = readdir(d)) != NULL) {
        struct stat st;
        char name[600], path[PATH_BYTES_MAX];
        if (item->d_name[0] == '.' || fstatat(dirfd(d), item->d_name, &st, 0) != 0)
            continue;
        snprintf(name, sizeof name, "%s%s", prefix, item->d_name);
        if (S_ISDIR(st.st_mode) && prefix[0] == '\0') {
            char below[300];
            snprintf(below, sizeof below, "%s/", item->d_name);
            if (path_join(path, dir, item->d_name, NULL) == OK)
                err = read_names(path, below, files, n, a, e);
        } else if (S_ISREG(st.st_mode)) {
            files[*n] = (struct hub_file){.name = arena_copy_str(a, str_of(name)), .bytes = (uint64_t)st.st_size};
            if (files[*n].name == NULL)
                err = FAIL(e, ERR_NOMEM, "no memory to read the Hugging Face cache");
            else
                (*n)++;
        }
    }
    if (d != NULL)
        closedir(d);
    return err;
}

/* All shards that a "-0000i-of-0000N.safetensors" name promises are there. */
static bool has_all_shards(const struct hub_file *files, size_t n)
{
    size_t n_shard = 0;
    unsigned long total = 0;
    for (size_t i = 0; i < n; i++) {
        const char *of = strstr(files[i].name, "-of-");
        if (of == NULL || !str_has_suffix(str_of(files[i].name), STR(".safetensors")))
            continue;
        n_shard++;
        total = 0;
        for (const char *c = of + 4; isdigit((unsigned char)*c) && total < 1000000; c++)
            total = total * 10 + (unsigned long)(*c - '0');
    }
    return n_shard == total;
}

static enum err find_snapshot(const struct hub *h, const struct hub_spec *s, char *out, struct error *e)
{
    char repo[PATH_BYTES_MAX], path[PATH_BYTES_MAX], leaf[600], *commit = NULL;
    size_t n = 0;
    const char *slash = strchr(s->repo, '/');
    snprintf(leaf, sizeof leaf, "models--%.*s--%s", (int)(slash - s->repo), s->repo, slash + 1);
    TRY(path_join(repo, h->hf_cache, leaf, e));
    snprintf(leaf, sizeof leaf, "refs/%s", s->revision);
    TRY(path_join(path, repo, leaf, e));
    const enum err err = file_read_all(path, 256, &commit, &n, NULL);
    if (err == ERR_NOMEM)
        return FAIL(e, err, "no memory to read the Hugging Face cache");
    while (err == OK && n > 0 && isspace((unsigned char)commit[n - 1]))
        n--;
    const struct str id = err == OK ? (struct str){commit, n} : str_of(s->revision); /* or it is a commit already */
    bool ok = is_hex(id, HUB_SHA1_HEX);
    if (ok) {
        snprintf(leaf, sizeof leaf, "snapshots/%.*s", (int)id.n, id.p);
        ok = path_join(out, repo, leaf, NULL) == OK && file_is_dir(out);
    }
    mem_free(commit);
    return ok ? OK : ERR_NOT_FOUND;
}

enum err hf_cache_find(const struct hub *h, const struct hub_spec *s, char *path, struct error *e)
{
    char dir[PATH_BYTES_MAX];
    if (h->hf_cache[0] == '\0')
        return ERR_NOT_FOUND;
    TRY(find_snapshot(h, s, dir, e));
    struct arena a;
    arena_init(&a, 8 * MIB);
    size_t n = 0;
    const char *open = "";
    struct hub_file *files = arena_array(&a, HUB_ENTRY_FILES_MAX, sizeof *files);
    bool *picked = arena_array(&a, HUB_ENTRY_FILES_MAX, sizeof *picked);
    if (files == NULL || picked == NULL) {
        arena_fini(&a);
        return FAIL(e, ERR_NOMEM, "no memory to read the Hugging Face cache");
    }
    enum err err = read_names(dir, "", files, &n, &a, e);
    if (err == OK && (choose_files(files, n, s->file, picked, &open, NULL) != OK || !has_all_shards(files, n)))
        err = ERR_NOT_FOUND; /* the client fetched other files of that repository */
    if (err == OK && open[0] != '\0')
        err = path_join(path, dir, open, e);
    else if (err == OK)
        memcpy(path, dir, strlen(dir) + 1);
    arena_fini(&a);
    return err;
}
