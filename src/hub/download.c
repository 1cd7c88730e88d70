/* One file from a URL into the staging folder of an entry.
 *
 * FILE.part holds the bytes so far and FILE.part.json says of what: the URL's hash, the validator (ETag) and the total.
 * The note is written before the first byte it describes and after the part was cut to nothing, so at every moment,
 * also after kill -9, the part holds a prefix of what the note describes. A part without a fitting note is cut.
 *
 *   START --part and note fit--> RANGE --206 at our offset--> APPEND --all there--> CHECK --hashes agree--> renamed
 *     |                            |200 or 416 or other total                         |no, and it was resumed
 *     +--nothing usable--> FRESH <-+--------------------------------------------------+  (once; else ERR_HASH)
 *
 * SHA-256 runs along with the bytes; a resumed part is read again first. What a repository keeps in git itself is
 * checked by its blob SHA-1. A size that the listing and the server disagree on is refused before the first byte is
 * written. */
#include "base/buf.h"
#include "base/json.h"
#include "hub/hub_int.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOTE_BYTES_MAX 4096

struct download {
    const struct hub *h;
    const char *url;
    struct hub_file *file;
    char path[PATH_BYTES_MAX], part[PATH_BYTES_MAX], note[PATH_BYTES_MAX];
    char url_id[SHA256_HEX_MAX];
    char validator[256]; /* of the bytes in the part */
    uint64_t total;      /* of the whole, from the listing, the note or the answer */
    uint64_t have;       /* bytes in the part */
    uint64_t asked_from; /* of the request that is running */
    int fd;
    struct sha256 *sha;
    EVP_MD_CTX *git;             /* NULL when there is no git hash to check */
    bool was_resumed, has_begun; /* has_begun: this answer was accepted */
    bool must_restart;           /* the answer does not continue the part */
    struct progress bar;
};

static enum err fail_errno(struct error *e, const char *what, const char *path)
{
    const int code = errno;
    return FAIL(e, code == EACCES || code == EPERM || code == EROFS ? ERR_DENIED : ERR_IO, "%s %s: %s", what, path,
        strerror(code));
}

/* --- hashes along the way --- */

static enum err hashes_begin(struct download *d, struct error *e)
{
    sha256_free(d->sha);
    d->sha = NULL;
    TRY(sha256_new(&d->sha, e));
    if (d->file->git_sha1[0] == '\0' || d->total == SIZE_UNKNOWN)
        return OK;
    if (d->git == NULL)
        d->git = EVP_MD_CTX_new();
    if (d->git == NULL || EVP_DigestInit_ex(d->git, EVP_sha1(), NULL) != 1)
        return FAIL(e, ERR_NOMEM, "no memory for a SHA-1 state");
    char head[32]; /* git hashes a blob behind this header, with its NUL */
    const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)d->total);
    EVP_DigestUpdate(d->git, head, (size_t)n + 1);
    return OK;
}

static void hashes_add(struct download *d, const void *bytes, size_t n)
{
    sha256_add(d->sha, bytes, n);
    if (d->git != NULL)
        EVP_DigestUpdate(d->git, bytes, n);
}

static enum err hashes_read_part(struct download *d, struct error *e)
{
    unsigned char block[65536];
    uint64_t at = 0;
    while (at < d->have) {
        if (hub_is_cancelled(d->h))
            return FAIL(e, ERR_CANCELLED, "%s: stopped", d->file->name);
        const size_t want = (size_t)MIN(d->have - at, (uint64_t)sizeof block);
        const ssize_t n = hub_sys_fails(EIO) ? -1 : pread(d->fd, block, want, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno(e, "cannot read", d->part);
        if (n == 0)
            return FAIL(e, ERR_IO, "%s shrank while it was read", d->part);
        hashes_add(d, block, (size_t)n);
        at += (uint64_t)n;
    }
    return OK;
}

/* --- the part and its note --- */

static enum err part_cut(struct download *d, struct error *e)
{
    if (hub_sys_fails(EIO) || ftruncate(d->fd, 0) != 0 || lseek(d->fd, 0, SEEK_SET) != 0)
        return fail_errno(e, "cannot cut", d->part);
    d->have = 0;
    d->validator[0] = '\0';
    d->total = d->file->bytes;
    d->was_resumed = false;
    return OK;
}

static enum err note_write(struct download *d, struct error *e)
{
    struct buf b;
    buf_init(&b, NOTE_BYTES_MAX);
    buf_addf(&b, "{\"url_id\":\"%s\",\"validator\":", d->url_id);
    buf_add_json_str(&b, str_of(d->validator));
    if (d->total != SIZE_UNKNOWN)
        buf_addf(&b, ",\"bytes\":%llu", (unsigned long long)d->total);
    buf_add(&b, STR("}\n"));
    enum err err = buf_check(&b, "a download note", e);
    if (err == OK)
        err = file_write_atomic(d->note, buf_str(&b), e);
    buf_fini(&b);
    return err;
}

/* Without a validator only a hash can tell whether two halves belong together. */
static bool can_continue(const struct download *d)
{
    return d->validator[0] != '\0' || d->file->sha256[0] != '\0' || d->file->git_sha1[0] != '\0';
}

/* True when the note says the part is a prefix of what we want, and the part can be continued. */
static bool note_fits(struct download *d)
{
    json_t *doc = NULL;
    struct str url_id = {"", 0}, validator = {"", 0};
    uint64_t bytes = SIZE_UNKNOWN;
    bool fits = json_parse_file(d->note, NOTE_BYTES_MAX, &doc, NULL) == OK && json_is_object(doc) &&
                json_get_str(doc, "url_id", &url_id, NULL) == OK &&
                json_get_str(doc, "validator", &validator, NULL) == OK &&
                json_get_u64(doc, "bytes", 0, HUB_FILE_BYTES_MAX, &bytes, NULL) == OK && str_is(url_id, d->url_id) &&
                validator.n < sizeof d->validator && (d->total == SIZE_UNKNOWN || d->total == bytes) &&
                (bytes == SIZE_UNKNOWN || d->have <= bytes);
    if (fits) {
        memcpy(d->validator, validator.p, validator.n);
        d->validator[validator.n] = '\0';
        d->total = bytes;
    }
    json_decref(doc);
    return fits && can_continue(d);
}

/* Folders between the staging folder and the file. */
static enum err make_parents(const char *path, struct error *e)
{
    char dir[PATH_BYTES_MAX];
    const char *slash = strrchr(path, '/');
    assert(slash != NULL && slash > path && (size_t)(slash - path) < sizeof dir);
    memcpy(dir, path, (size_t)(slash - path));
    dir[slash - path] = '\0';
    return file_make_dirs(dir, e);
}

static enum err part_open(struct download *d, struct error *e)
{
    struct stat st;
    TRY(make_parents(d->path, e));
    if (file_is_regular(d->path)) /* complete but its entry was not; checked again below like any part */
        TRY(file_rename(d->path, d->part, e));
    d->fd = hub_sys_fails(EIO) ? -1 : open(d->part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (d->fd < 0)
        return fail_errno(e, "cannot open", d->part);
    if (hub_sys_fails(EIO) || fstat(d->fd, &st) != 0)
        return fail_errno(e, "cannot stat", d->part);
    if (!S_ISREG(st.st_mode))
        return FAIL(e, ERR_INVALID, "%s is not a regular file", d->part);
    d->have = (uint64_t)st.st_size;
    if (d->have > 0 && !note_fits(d))
        TRY(part_cut(d, e));
    d->was_resumed = d->have > 0;
    TRY(hashes_begin(d, e));
    TRY(hashes_read_part(d, e));
    if (hub_sys_fails(EIO) || lseek(d->fd, (off_t)d->have, SEEK_SET) < 0)
        return fail_errno(e, "cannot seek", d->part);
    return OK;
}

/* --- the transfer --- */

/* The first bytes of an answer: does it continue our part, start it, or contradict what we know? */
static enum err accept_answer(struct download *d, const struct http_answer *a, struct error *e)
{
    const struct hub_file *f = d->file;
    char dir[PATH_BYTES_MAX];
    if (a->status == 206 &&
        (a->from != d->asked_from || (a->total_bytes != SIZE_UNKNOWN && a->total_bytes != d->total))) {
        d->must_restart = true;
        return FAIL(e, ERR_NETWORK, "%s: the server continues another file than the one begun", f->name);
    }
    d->has_begun = true;
    if (a->status == 206) {
        d->was_resumed = true;
        return OK;
    }
    if (f->bytes != SIZE_UNKNOWN && a->total_bytes != SIZE_UNKNOWN && a->total_bytes != f->bytes)
        return FAIL(e, ERR_FORMAT, "%s: the server says %llu bytes where the listing says %llu", f->name,
            (unsigned long long)a->total_bytes, (unsigned long long)f->bytes);
    if (a->total_bytes != SIZE_UNKNOWN && a->total_bytes > HUB_FILE_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "%s has %llu bytes; the limit is %llu", f->name, (unsigned long long)a->total_bytes,
            (unsigned long long)HUB_FILE_BYTES_MAX);
    if (d->have > 0)
        hub_note(d->h, "%s: the server starts over", f->name);
    TRY(part_cut(d, e));
    if (d->total == SIZE_UNKNOWN)
        d->total = a->total_bytes;
    d->bar.total = d->total;
    if (f->bytes == SIZE_UNKNOWN && d->total != SIZE_UNKNOWN) {
        memcpy(dir, d->part, sizeof dir);
        *strrchr(dir, '/') = '\0';
        TRY(disk_check(dir, d->total, e));
    }
    memcpy(d->validator, a->validator, sizeof d->validator);
    TRY(hashes_begin(d, e));
    return note_write(d, e);
}

static enum err on_bytes(void *ctx, const struct http_answer *a, const void *bytes, size_t n, struct error *e)
{
    struct download *d = ctx;
    if (!d->has_begun)
        TRY(accept_answer(d, a, e));
    const uint64_t most = d->total != SIZE_UNKNOWN ? d->total : HUB_UNSIZED_BYTES_MAX;
    if (n > most - MIN(d->have, most))
        return d->total != SIZE_UNKNOWN
                   ? FAIL(e, ERR_FORMAT, "%s: the server sends more than the %llu bytes it should have", d->file->name,
                         (unsigned long long)most)
                   : FAIL(e, ERR_LIMIT, "%s: the server does not say its size and sends more than %llu bytes",
                         d->file->name, (unsigned long long)most);
    TRY(file_write_fully(d->fd, bytes, n, d->part, e));
    hashes_add(d, bytes, n);
    d->have += n;
    progress_update(&d->bar, d->have);
    return OK;
}

static enum err start_over(struct download *d, struct error *e)
{
    TRY(part_cut(d, e));
    TRY(hashes_begin(d, e));
    progress_update(&d->bar, 0);
    return OK;
}

static enum err transfer(struct download *d, struct error *e)
{
    struct retry retry = {0};
    while (d->total == SIZE_UNKNOWN || d->have < d->total || d->total == 0) {
        struct http_answer a;
        if (d->have > 0 && !can_continue(d))
            TRY(start_over(d, e));
        d->has_begun = d->must_restart = false;
        d->asked_from = d->have;
        const struct http_request r = {.url = d->url,
            .what = d->file->name,
            .from = d->have,
            .if_range = d->validator,
            .sink = on_bytes,
            .ctx = d};
        const uint64_t before = d->have;
        const enum err err = http_get(d->h, &r, &a, e);
        if (err == OK && (d->total == SIZE_UNKNOWN || d->have >= d->total)) {
            if (d->has_begun) /* nothing more was said about the size: what came is the file */
                d->total = d->have;
            else if (d->total == SIZE_UNKNOWN)
                return FAIL(e, ERR_NETWORK, "%s: an empty answer", d->file->name);
            break;
        }
        if (d->must_restart || a.status == 416) { /* what we have is no part of what is there now */
            if (e != NULL)
                *e = (struct error){0};
            if (before == 0 || ++retry.tries > HUB_RETRY_MAX)
                return FAIL(e, ERR_NETWORK, "%s: the server will not send it from the start", d->file->name);
            TRY(start_over(d, e));
            continue;
        }
        enum err failure = err;
        if (err == OK) { /* a well-formed answer that ended early */
            a.can_retry = true;
            failure = FAIL(e, ERR_NETWORK, "%s: %llu of %llu bytes came", d->file->name, (unsigned long long)d->have,
                (unsigned long long)d->total);
        }
        TRY(retry_wait(d->h, &retry, &a, d->have >= before + HUB_STALL_BYTES_MIN, failure, e));
    }
    return OK;
}

/* --- the end --- */

static enum err check_hashes(struct download *d, struct error *e)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char hex[SHA256_HEX_MAX], git_hex[HUB_SHA1_HEX + 1] = "";
    sha256_end(d->sha, digest);
    sha256_hex(digest, hex);
    if (d->file->sha256[0] != '\0' && strcasecmp(hex, d->file->sha256) != 0)
        return FAIL(
            e, ERR_HASH, "%s has SHA-256 %.16s... where %.16s... was expected", d->file->name, hex, d->file->sha256);
    if (d->git != NULL) {
        unsigned int n = 0;
        EVP_DigestFinal_ex(d->git, digest, &n);
        for (unsigned i = 0; i < n && i < HUB_SHA1_HEX / 2; i++)
            snprintf(git_hex + (size_t)2 * i, 3, "%02x", digest[i]);
        if (strcasecmp(git_hex, d->file->git_sha1) != 0)
            return FAIL(e, ERR_HASH, "%s has git hash %.16s... where %.16s... was expected", d->file->name, git_hex,
                d->file->git_sha1);
    }
    memcpy(d->file->sha256, hex, sizeof hex);
    return OK;
}

/* A file of a bare URL has no hash to hold it against. Web servers answer 200 with a page that asks for a login or says
 * that the file is gone; such a page must not become a model. */
static enum err check_magic(struct download *d, struct error *e)
{
    static const char magic[4] = {'G', 'G', 'U', 'F'};
    char head[16], shown[80];
    const ssize_t n = hub_sys_fails(EIO) ? -1 : pread(d->fd, head, sizeof head, 0);
    if (n < 0)
        return fail_errno(e, "cannot read", d->part);
    if ((size_t)n >= sizeof magic && memcmp(head, magic, sizeof magic) == 0)
        return OK;
    return FAIL(e, ERR_FORMAT, "%s: the server sent no GGUF file: it starts with '%s'", d->file->name,
        str_show((struct str){head, (size_t)n}, shown, sizeof shown));
}

/* Fetch and check; a mismatch of a resumed part is blamed on the part and tried once more from nothing. */
static enum err fetch_checked(struct download *d, struct error *e)
{
    const bool is_described = d->file->sha256[0] != '\0' || d->file->git_sha1[0] != '\0';
    for (bool is_second = false;; is_second = true) {
        TRY(transfer(d, e));
        struct error mismatch = {0};
        enum err err = check_hashes(d, &mismatch);
        if (err == OK && !is_described && str_has_suffix(str_of(d->file->name), STR(".gguf")))
            err = check_magic(d, &mismatch);
        if (err == OK)
            return OK;
        const bool again = d->was_resumed && !is_second;
        TRY(part_cut(d, e)); /* wrong bytes must not be resumed */
        if (!again)
            return FAIL(e, mismatch.code, "%s", mismatch.text);
        hub_note(d->h, "%s; fetching it again from the start", mismatch.text);
        TRY(hashes_begin(d, e));
        progress_update(&d->bar, 0);
    }
}

static enum err finish(struct download *d, struct error *e)
{
    if (hub_sys_fails(EIO) || fsync(d->fd) != 0)
        return fail_errno(e, "cannot sync", d->part);
    TRY(file_rename(d->part, d->path, e));
    d->file->bytes = d->have;
    return OK; /* the note stays until the entry is committed: it lets a later try trust the file's size */
}

static enum err url_id(const char *url, char out[SHA256_HEX_MAX], struct error *e)
{
    struct sha256 *sha;
    unsigned char digest[SHA256_BYTES];
    TRY(sha256_new(&sha, e));
    sha256_add(sha, url, strlen(url));
    sha256_end(sha, digest);
    sha256_hex(digest, out);
    sha256_free(sha);
    return OK;
}

enum err download_file(const struct hub *h, const char *url, const char *dir, struct hub_file *file, struct error *e)
{
    struct download *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to download %s", file->name);
    d->h = h;
    d->url = url;
    d->file = file;
    d->fd = -1;
    d->total = file->bytes;
    char leaf[PATH_BYTES_MAX];
    enum err err = OK;
    if (!path_is_contained(str_of(file->name)))
        err = FAIL(e, ERR_INVALID, "a file name that leaves its folder");
    else if (strlen(file->name) + sizeof ".part.json" > sizeof leaf)
        err = FAIL(e, ERR_LIMIT, "a file name of %zu bytes", strlen(file->name));
    if (err == OK)
        err = path_join(d->path, dir, file->name, e);
    snprintf(leaf, sizeof leaf, "%.4000s.part", file->name);
    if (err == OK)
        err = path_join(d->part, dir, leaf, e);
    snprintf(leaf, sizeof leaf, "%.4000s.part.json", file->name);
    if (err == OK)
        err = path_join(d->note, dir, leaf, e);
    if (err == OK)
        err = url_id(url, d->url_id, e);
    if (err == OK)
        err = part_open(d, e);
    if (err == OK) {
        progress_begin(&d->bar, h, file->name, d->have, d->total);
        err = fetch_checked(d, e);
        if (err == OK)
            err = finish(d, e);
        progress_end(&d->bar, err == OK);
    }
    file_close(&d->fd);
    sha256_free(d->sha);
    EVP_MD_CTX_free(d->git);
    mem_free(d);
    return err;
}
