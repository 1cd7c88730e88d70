/* GGUF models cut into files. A set of N is named PREFIX-00001-of-0000N.gguf up to PREFIX-0000N-of-0000N.gguf; each
 * file says its place (split.no, from 0), the size of the set (split.count) and of the whole tensor list
 * (split.tensors.count). The first file holds the metadata. Any file of the set opens all of it, because a user who
 * completes a file name should not have to know which is first.
 *
 * The names come from the path the user gave, not from inside a file, and only files of the same folder are opened;
 * a link must stay in it (hf_folder.c says how links are judged). */
#include "format/format_int.h"

#include <stdio.h>
#include <string.h>

#define SPLIT_SUFFIX_BYTES (sizeof "-00001-of-00002.gguf" - 1)

static bool read_digits(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

struct split_name split_name_of(const char *path)
{
    struct split_name name = {0};
    const size_t n = strlen(path);
    if (n <= SPLIT_SUFFIX_BYTES)
        return name;
    const char *s = path + (n - SPLIT_SUFFIX_BYTES);
    if (s[0] != '-' || memcmp(s + 6, "-of-", 4) != 0 || strcmp(s + 15, ".gguf") != 0)
        return name;
    uint32_t no, count;
    if (!read_digits(s + 1, &no) || !read_digits(s + 10, &count) || no == 0 || no > count)
        return name;
    return (struct split_name){n - SPLIT_SUFFIX_BYTES, no, count};
}

/* The file must be where its name says in the set. */
static enum err split_keys_check(
    const struct gguf *g, uint32_t no, uint32_t count, uint64_t *n_tensors, struct error *e)
{
    uint64_t key_no = UINT64_MAX, key_count = 0;
    TRY(gguf_get_u64(g, "split.no", 0, UINT16_MAX, &key_no, e));
    TRY(gguf_get_u64(g, "split.count", 0, UINT16_MAX, &key_count, e));
    TRY(gguf_get_u64(g, "split.tensors.count", 0, MODEL_TENSORS_MAX, n_tensors, e));
    if (key_count != count)
        return FAIL(
            e, ERR_FORMAT, "the name says %u files, key 'split.count' says %llu", count, (unsigned long long)key_count);
    if (key_no != no - 1)
        return FAIL(e, ERR_FORMAT, "the name says file %u, key 'split.no' (from 0) says %lld", no, (long long)key_no);
    return OK;
}

/* Open file number no (from 1) of the set. The one the user named is taken as given; the others must be plain
 * neighbours of it. */
static enum err split_part_read(
    struct model_source *s, const struct split_name *name, uint32_t no, uint64_t *n_tensors, struct error *e)
{
    char path[PATH_BYTES_MAX], folder[PATH_BYTES_MAX], real[PATH_BYTES_MAX];
    snprintf(path, sizeof path, "%.*s-%05u-of-%05u.gguf", (int)name->prefix, s->path, no, name->count);
    const char *opened = path;
    if (no != name->no) {
        const char *slash = strrchr(path, '/');
        const char *file = slash == NULL ? path : slash + 1;
        snprintf(
            folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path + 1), slash == NULL ? "." : path);
        TRY(hf_path_resolve(folder, str_of(file), real, e));
        opened = real;
    }
    struct source_part *p;
    TRY(source_part_open(s, opened, &p, e));
    TRY(gguf_part_read(s, p, e));
    const enum err err = split_keys_check(p->gguf, no, name->count, n_tensors, e);
    if (err != OK)
        source_error_prefix(e, path);
    return err;
}

static enum err gguf_single_open(struct model_source *s, struct error *e)
{
    struct source_part *p;
    uint64_t count = 0;
    TRY(source_parts_init(s, 1, e));
    TRY(source_part_open(s, s->path, &p, e));
    TRY(gguf_part_read(s, p, e));
    enum err err = gguf_get_u64(p->gguf, "split.count", 0, UINT16_MAX, &count, e);
    if (err == OK && count > 1)
        err = FAIL(e, ERR_FORMAT,
            "it is one of %llu files (key 'split.count'), but is not named like '-00001-of-%05llu.gguf', so the others "
            "cannot be found",
            (unsigned long long)count, (unsigned long long)count);
    if (err != OK)
        source_error_prefix(e, s->path);
    return err;
}

enum err gguf_source_open(struct model_source *s, struct error *e)
{
    const struct split_name name = split_name_of(s->path);
    if (name.no == 0 || name.count == 1)
        return gguf_single_open(s, e);
    if (name.count > MODEL_PARTS_MAX)
        return FAIL(e, ERR_LIMIT, "%s: a model of %u files; the limit is %d", s->path, name.count, MODEL_PARTS_MAX);
    TRY(source_parts_init(s, name.count, e));
    uint64_t n_tensors = UINT64_MAX;
    for (uint32_t no = 1; no <= name.count; no++) {
        uint64_t stated = n_tensors;
        TRY(split_part_read(s, &name, no, &stated, e));
        if (no == 1)
            n_tensors = stated;
        else if (stated != n_tensors)
            return FAIL(e, ERR_FORMAT, "%s: key 'split.tensors.count' is %llu; the first file says %llu",
                s->parts[s->n_parts - 1].path, (unsigned long long)stated, (unsigned long long)n_tensors);
    }
    if (n_tensors != UINT64_MAX && n_tensors != s->n_tensors)
        return FAIL(e, ERR_FORMAT, "%s: the files hold %llu tensors, key 'split.tensors.count' says %llu", s->path,
            (unsigned long long)s->n_tensors, (unsigned long long)n_tensors);
    return OK;
}
