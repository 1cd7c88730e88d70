/* Reading the header of one safetensors file: a 64-bit length, that many bytes of JSON, then tensor bytes up to the
 * end. The JSON maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the end of the
 * header; "__metadata__" maps strings to strings and is checked but not kept.
 *
 * The format allows no gap and no byte left over, so both are refused: bytes nobody names are bytes somebody hid.
 *
 * Memory: the header text (MODEL_JSON_BYTES_MAX) and its parse, ten times that for real files and at most some twenty,
 * both freed before the next file is opened; the names stay. */
#include "format/format_int.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8

static enum err read_shape(const json_t *entry, struct tensor_claim *c, struct error *e)
{
    const json_t *shape = NULL;
    TRY(json_get_array(entry, "shape", &shape, e));
    if (shape == NULL)
        return FAIL(e, ERR_FORMAT, "field 'shape' is missing");
    const size_t n = json_array_size(shape);
    if (n > TENSOR_DIMS_MAX)
        return FAIL(e, ERR_LIMIT, "field 'shape' has %zu dimensions; the limit is %d", n, TENSOR_DIMS_MAX);
    c->n_dims = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return FAIL(e, ERR_FORMAT, "field 'shape[%zu]' must be a whole number from 0", i);
        c->shape[i] = (uint64_t)json_integer_value(dim);
    }
    return OK;
}

static enum err read_offsets(const json_t *entry, uint64_t *begin, uint64_t *end, struct error *e)
{
    const json_t *offsets = NULL;
    TRY(json_get_array(entry, "data_offsets", &offsets, e));
    const json_t *b = json_array_get(offsets, 0), *n = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(n) || json_integer_value(b) < 0 ||
        json_integer_value(n) < json_integer_value(b))
        return FAIL(e, ERR_FORMAT, "field 'data_offsets' must be two whole numbers, begin and end");
    *begin = (uint64_t)json_integer_value(b);
    *end = (uint64_t)json_integer_value(n);
    return OK;
}

static enum err read_entry(const json_t *entry, uint64_t data_at, struct tensor_claim *c, struct error *e)
{
    struct str dtype = {0};
    uint64_t begin = 0, end = 0;
    size_t bytes;
    if (!json_is_object(entry))
        return FAIL(e, ERR_FORMAT, "the entry must be an object");
    TRY(json_get_str(entry, "dtype", &dtype, e));
    if (dtype.p == NULL)
        return FAIL(e, ERR_FORMAT, "field 'dtype' is missing");
    TRY(dtype_of_safetensors(dtype, &c->dtype, e));
    TRY(read_shape(entry, c, e));
    TRY(read_offsets(entry, &begin, &end, e));
    TRY(tensor_shape_bytes(c->dtype, c->n_dims, c->shape, &bytes, e));
    if (end - begin != bytes)
        return FAIL(e, ERR_FORMAT, "field 'data_offsets' spans %llu bytes; the shape needs %zu",
            (unsigned long long)(end - begin), bytes);
    if (__builtin_add_overflow(begin, data_at, &c->offset))
        return FAIL(e, ERR_FORMAT, "field 'data_offsets' overflows");
    return OK;
}

static enum err check_metadata(json_t *metadata, struct error *e)
{
    if (!json_is_object(metadata))
        return FAIL(e, ERR_FORMAT, "field '__metadata__' must be an object");
    void *it = json_object_iter(metadata);
    for (; it != NULL; it = json_object_iter_next(metadata, it)) {
        char shown[120];
        if (!json_is_string(json_object_iter_value(it)))
            return FAIL(e, ERR_FORMAT, "field '__metadata__': '%s' must be a string",
                str_show(str_of(json_object_iter_key(it)), shown, sizeof shown));
    }
    return OK;
}

static int tensor_by_offset(const void *a, const void *b)
{
    const struct model_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->view.bytes != y->view.bytes)
        return x->view.bytes < y->view.bytes ? -1 : 1;
    const int order = memcmp(x->name.p, y->name.p, MIN(x->name.n, y->name.n)); /* empty tensors: any fixed order */
    return order != 0 ? order : (x->name.n > y->name.n) - (x->name.n < y->name.n);
}

static enum err add_entries(
    struct model_source *s, struct source_part *p, json_t *header, uint64_t data_at, struct error *e)
{
    TRY(source_tensors_reserve(s, json_object_size(header), e));
    for (void *it = json_object_iter(header); it != NULL; it = json_object_iter_next(header, it)) {
        const struct str name = {json_object_iter_key(it), json_object_iter_key_len(it)};
        json_t *entry = json_object_iter_value(it);
        if (str_is(name, "__metadata__")) {
            TRY(check_metadata(entry, e));
            continue;
        }
        struct tensor_claim c = {0};
        char shown[160];
        const enum err err = read_entry(entry, data_at, &c, e);
        if (err != OK) {
            error_prefix(e, "tensor '%s'", str_show(name, shown, sizeof shown));
            return err;
        }
        const char *copy = arena_copy_str(&p->names, name);
        if (copy == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for the names of %zu tensors", json_object_size(header));
        c.name = (struct str){copy, name.n};
        TRY(source_tensor_add(s, p, &c, e));
    }
    if (p->info.n_tensors > 1)
        qsort(s->tensors + p->first_tensor, p->info.n_tensors, sizeof *s->tensors, tensor_by_offset);
    return source_part_check(s, p, data_at, true, e);
}

enum err safetensors_header_read(struct model_source *s, struct source_part *p, struct str json, struct error *e)
{
    json_t *header = NULL;
    enum err err = json_parse(json, &header, e);
    if (err == OK && !json_is_object(header))
        err = FAIL(e, ERR_FORMAT, "byte %d: the header must be a JSON object", LENGTH_BYTES);
    if (err == OK)
        err = add_entries(s, p, header, LENGTH_BYTES + json.n, e);
    json_decref(header);
    return err;
}

static enum err part_read(struct model_source *s, struct source_part *p, struct error *e)
{
    uint64_t n;
    if (p->map.bytes < LENGTH_BYTES)
        return FAIL(
            e, ERR_FORMAT, "byte %llu: the file ends before the header's length", (unsigned long long)p->map.bytes);
    TRY(file_read_at(p->fd, 0, &n, sizeof n, p->path, e));
    if (n > p->map.bytes - LENGTH_BYTES)
        return FAIL(e, ERR_FORMAT, "byte 0: a header of %llu bytes does not fit in a file of %llu",
            (unsigned long long)n, (unsigned long long)p->map.bytes);
    if (n > MODEL_JSON_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "byte 0: a header of %llu bytes; the limit is %llu", (unsigned long long)n,
            (unsigned long long)MODEL_JSON_BYTES_MAX);
    char *text = mem_alloc((size_t)n + 1);
    if (text == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a header of %llu bytes", (unsigned long long)n);
    enum err err = file_read_at(p->fd, LENGTH_BYTES, text, (size_t)n, p->path, e);
    if (err == OK)
        err = safetensors_header_read(s, p, (struct str){text, (size_t)n}, e);
    mem_free(text);
    return err;
}

enum err safetensors_part_read(struct model_source *s, struct source_part *p, struct error *e)
{
    const enum err err = part_read(s, p, e);
    if (err != OK)
        source_error_prefix(e, p->path);
    return err;
}
