/* An open model: its files, the one list of tensors, finding one by name; see format.h.
 *
 * The readers of the two formats only translate headers into claims (struct tensor_claim). Every claim passes through
 * source_tensor_add and source_part_check here, so the promises of the list are kept in one place:
 *   1. a tensor's bytes lie inside its file, and there are exactly as many as its shape and dtype need;
 *   2. they start at a multiple of what the dtype's numbers need;
 *   3. no two tensors share a byte;
 *   4. no two tensors share a name, across all files.
 * Claims are checked against the size of the descriptor that was mapped, not against a path: what was checked is what
 * is used. */
#include "format/format_int.h"

#include "base/fault.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void source_error_prefix(struct error *e, const char *path)
{
    char shown[240];
    const size_t n = strlen(path), keep = 200;
    const char *tail = n > keep ? path + (n - keep) : path;
    str_show(str_of(tail), shown, sizeof shown);
    error_prefix(e, "%s%s", n > keep ? "..." : "", shown);
}

bool source_name_is_clean(struct str name)
{
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] < 0x20 || name.p[i] == 0x7f)
            return false;
    return name.n > 0 && utf8_is_valid(name);
}

enum err source_parts_init(struct model_source *s, uint32_t parts_max, struct error *e)
{
    assert(s->parts == NULL && parts_max > 0 && parts_max <= MODEL_PARTS_MAX);
    s->parts = mem_array(parts_max, sizeof *s->parts);
    return s->parts == NULL ? FAIL(e, ERR_NOMEM, "no memory for %u files", parts_max) : OK;
}

static void part_fini(struct source_part *p)
{
    gguf_free(p->gguf);
    arena_fini(&p->names);
    file_map_close(&p->map);
    file_close(&p->fd);
    mem_free(p->path);
}

enum err source_part_open(struct model_source *s, const char *path, struct source_part **out, struct error *e)
{
    struct source_part *p = &s->parts[s->n_parts];
    *p = (struct source_part){.fd = -1, .first_tensor = s->n_tensors};
    arena_init(&p->names, MODEL_JSON_BYTES_MAX);
    s->n_parts++; /* from here on closing the source closes the part */
    TRY(file_open(path, &p->fd, NULL, e));
    TRY(file_map_fd(&p->map, p->fd, path, e));
    p->path = mem_copy_str(str_of(path));
    if (p->path == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to open %s", path);
    p->info = (struct model_part){.path = p->path, .bytes = p->map.bytes, .mtime_ns = p->map.mtime_ns};
    *out = p;
    return OK;
}

enum err source_tensors_reserve(struct model_source *s, uint64_t more, struct error *e)
{
    if (more > MODEL_TENSORS_MAX - s->n_tensors)
        return FAIL(e, ERR_LIMIT, "%llu tensors; the limit is %u", (unsigned long long)(s->n_tensors + more),
            MODEL_TENSORS_MAX);
    const uint64_t want = s->n_tensors + more;
    if (want <= s->cap_tensors)
        return OK;
    const uint64_t cap = MAX(want, s->cap_tensors + s->cap_tensors / 2);
    struct model_tensor *grown = mem_resize(s->tensors, cap * sizeof *grown);
    if (grown == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)want);
    s->tensors = grown;
    s->cap_tensors = cap;
    return OK;
}

/* What a plain number of the dtype needs; blocks are read by bytes. */
static uint64_t dtype_align(enum dtype dtype)
{
    const struct dtype_info *info = dtype_info(dtype);
    if (info->block_elems > 1)
        return 1;
    return dtype == DTYPE_C64 ? 4 : info->block_bytes;
}

static enum err claim_check(
    const struct source_part *p, const struct tensor_claim *c, struct model_tensor *t, struct error *e)
{
    const uint64_t file_bytes = p->map.bytes;
    size_t bytes;
    TRY(tensor_shape_bytes(c->dtype, c->n_dims, c->shape, &bytes, e));
    if (c->offset > file_bytes || bytes > file_bytes - c->offset)
        return FAIL(e, ERR_FORMAT, "%zu bytes from byte %llu do not fit in a file of %llu bytes", bytes,
            (unsigned long long)c->offset, (unsigned long long)file_bytes);
    const uint64_t align = dtype_align(c->dtype);
    if (c->offset % align != 0)
        return FAIL(e, ERR_FORMAT, "byte %llu is not a multiple of %llu, as %s needs", (unsigned long long)c->offset,
            (unsigned long long)align, dtype_name(c->dtype));
    return tensor_view_init(&t->view, c->dtype, c->n_dims, c->shape, p->map.p + c->offset, bytes, e);
}

enum err source_tensor_add(struct model_source *s, struct source_part *p, const struct tensor_claim *c, struct error *e)
{
    assert(s->n_tensors < s->cap_tensors);
    char shown[160];
    if (c->name.n > MODEL_TENSOR_NAME_MAX)
        return FAIL(e, ERR_LIMIT, "tensor %llu has a name of %zu bytes; the limit is %d",
            (unsigned long long)s->n_tensors, c->name.n, MODEL_TENSOR_NAME_MAX);
    if (!source_name_is_clean(c->name))
        return FAIL(e, ERR_FORMAT, "tensor %llu has the name '%s', which is empty, not UTF-8 or has control bytes",
            (unsigned long long)s->n_tensors, str_show(c->name, shown, sizeof shown));
    struct model_tensor *t = &s->tensors[s->n_tensors];
    *t = (struct model_tensor){.name = c->name, .part = (uint32_t)(p - s->parts), .offset = c->offset};
    const enum err err = claim_check(p, c, t, e);
    if (err != OK) {
        error_prefix(e, "tensor '%s'", str_show(c->name, shown, sizeof shown));
        return err;
    }
    s->n_tensors++;
    p->info.n_tensors++;
    return OK;
}

/* Where a tensor lies, for ordering; begin first, and an empty tensor before the one that begins where it stands. */
struct span {
    uint64_t begin, end;
    const struct model_tensor *tensor;
};

static int by_place(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static enum err spans_check(
    const struct span *spans, uint64_t n, uint64_t data_at, uint64_t end, bool dense, struct error *e)
{
    uint64_t at = data_at;
    char name[160], other[160];
    for (uint64_t i = 0; i < n; i++) {
        const struct span *s = &spans[i];
        str_show(s->tensor->name, name, sizeof name);
        if (s->begin < at)
            return FAIL(e, ERR_FORMAT, "tensor '%s' at byte %llu overlaps %s%s", name, (unsigned long long)s->begin,
                i == 0 ? "the header" : "tensor ",
                i == 0 ? "" : str_show(spans[i - 1].tensor->name, other, sizeof other));
        if (dense && s->begin > at)
            return FAIL(e, ERR_FORMAT, "byte %llu: no tensor uses the %llu bytes before tensor '%s'",
                (unsigned long long)at, (unsigned long long)(s->begin - at), name);
        at = s->end;
    }
    if (dense && at != end)
        return FAIL(e, ERR_FORMAT, "byte %llu: no tensor uses the last %llu bytes", (unsigned long long)at,
            (unsigned long long)(end - at));
    return OK;
}

enum err source_part_check(
    const struct model_source *s, const struct source_part *p, uint64_t data_at, bool dense, struct error *e)
{
    const uint64_t n = p->info.n_tensors;
    struct span *spans = mem_array(n, sizeof *spans);
    if (spans == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to order %llu tensors", (unsigned long long)n);
    bool sorted = true; /* as nearly all files are */
    for (uint64_t i = 0; i < n; i++) {
        const struct model_tensor *t = &s->tensors[p->first_tensor + i];
        spans[i] = (struct span){t->offset, t->offset + t->view.bytes, t};
        sorted = sorted && (i == 0 || by_place(&spans[i - 1], &spans[i]) <= 0);
    }
    if (!sorted)
        qsort(spans, n, sizeof *spans, by_place);
    const enum err err = spans_check(spans, n, data_at, p->map.bytes, dense, e);
    mem_free(spans);
    return err;
}

/* What the first bytes say the file is. */
static enum err file_kind(const char *path, enum model_kind *kind, struct error *e)
{
    int fd;
    uint64_t bytes;
    unsigned char head[9] = {0};
    TRY(file_open(path, &fd, &bytes, e));
    const size_t n = (size_t)MIN(bytes, sizeof head);
    const enum err err = file_read_at(fd, 0, head, n, path, e);
    file_close(&fd);
    if (err != OK) {
        source_error_prefix(e, path);
        return err;
    }
    *kind = MODEL_SAFETENSORS;
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0)
        *kind = MODEL_GGUF;
    else if (n == sizeof head && head[8] == '{')
        return OK;
    else if (bytes == 0)
        return FAIL(e, ERR_FORMAT, "%s is empty", path);
    else {
        char shown[40];
        return FAIL(e, ERR_FORMAT, "%s is neither GGUF nor safetensors: it starts with '%s'", path,
            str_show((struct str){(const char *)head, n}, shown, sizeof shown));
    }
    return OK;
}

/* An HF folder, or one that holds a GGUF model and then stands for that file. */
static enum err folder_open(struct model_source *s, struct error *e)
{
    char path[PATH_BYTES_MAX];
    s->kind = MODEL_SAFETENSORS;
    const enum err err = hf_folder_has_weights(s->path) ? ERR_NOT_FOUND : gguf_folder_pick(s->path, path, e);
    if (err == ERR_NOT_FOUND)
        return hf_folder_open(s, e);
    TRY(err);
    char *copy = mem_copy_str(str_of(path));
    if (copy == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to open %s", path);
    mem_free(s->path);
    s->path = copy;
    s->kind = MODEL_GGUF;
    return gguf_source_open(s, e);
}

static enum err source_open(struct model_source *s, struct error *e)
{
    if (file_is_dir(s->path))
        TRY(folder_open(s, e));
    else {
        TRY(file_kind(s->path, &s->kind, e));
        if (s->kind == MODEL_GGUF)
            TRY(gguf_source_open(s, e));
        else
            TRY(hf_file_open(s, e));
    }
    const enum err err = name_index_build(&s->index, s->tensors, sizeof *s->tensors, s->n_tensors, "tensor", e);
    if (err != OK)
        source_error_prefix(e, s->path);
    return err;
}

enum err model_source_open(const char *path, struct model_source **out, struct error *e)
{
    *out = NULL;
    if (strlen(path) >= PATH_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "path longer than %d bytes: %.100s", PATH_BYTES_MAX, path);
    struct model_source *s = mem_zalloc(sizeof *s);
    if (s == NULL || (s->path = mem_copy_str(str_of(path))) == NULL) {
        mem_free(s);
        return FAIL(e, ERR_NOMEM, "no memory to open %s", path);
    }
    const enum err err = source_open(s, e);
    if (err != OK) {
        model_source_close(s);
        return err;
    }
    *out = s;
    return OK;
}

void model_source_close(struct model_source *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->n_parts; i++)
        part_fini(&s->parts[i]);
    for (int i = 0; i < MODEL_FILE_COUNT; i++)
        mem_free(s->files[i]);
    name_index_fini(&s->index);
    mem_free(s->tensors);
    mem_free(s->parts);
    mem_free(s->folder);
    mem_free(s->path);
    mem_free(s);
}

void model_source_forget(const struct model_source *s, const void *p, size_t bytes)
{
    for (uint32_t i = 0; i < s->n_parts; i++)
        file_map_forget(&s->parts[i].map, p, bytes);
}

enum model_kind model_source_kind(const struct model_source *s)
{
    return s->kind;
}

const char *model_source_path(const struct model_source *s)
{
    return s->path;
}

uint32_t model_part_count(const struct model_source *s)
{
    return s->n_parts;
}

const struct model_part *model_part_at(const struct model_source *s, uint32_t i)
{
    assert(i < s->n_parts);
    return &s->parts[i].info;
}

uint64_t model_tensor_count(const struct model_source *s)
{
    return s->n_tensors;
}

const struct model_tensor *model_tensor_at(const struct model_source *s, uint64_t i)
{
    assert(i < s->n_tensors);
    return &s->tensors[i];
}

const struct model_tensor *model_tensor_find(const struct model_source *s, struct str name)
{
    return name_index_find(&s->index, s->tensors, sizeof *s->tensors, name);
}

const struct gguf *model_source_gguf(const struct model_source *s)
{
    return s->kind == MODEL_GGUF ? s->parts[0].gguf : NULL;
}

enum err model_source_recheck(const struct model_source *s, struct error *e)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const struct source_part *p = &s->parts[i];
        struct stat st;
        if (fault_hit(FAULT_SYS) || fstat(p->fd, &st) != 0)
            return FAIL(e, ERR_IO, "cannot stat %s", p->path);
        const int64_t mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        if ((uint64_t)st.st_size != p->map.bytes || mtime_ns != p->map.mtime_ns)
            return FAIL(e, ERR_IO, "%s changed while it was open: %llu bytes then, %lld now", p->path,
                (unsigned long long)p->map.bytes, (long long)st.st_size);
    }
    return OK;
}
