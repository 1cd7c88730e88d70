/* What the fuzz targets of model files share: bytes as a file in memory, and touching all that an open model promises.
 */
#ifndef TESTS_FUZZ_MODEL_FILE_H
#define TESTS_FUZZ_MODEL_FILE_H

#include "base/mem.h"
#include "format/format.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* NULL when refused; a refusal without a sentence is a bug. */
static struct model_source *fuzz_model_open(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("model", 0);
        assert(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
        return NULL;
    struct model_source *s;
    struct error e = {0};
    const enum err err = model_source_open(path, &s, &e);
    assert(err == e.code && (err == OK) == (s != NULL) && (err == OK) == (e.text[0] == '\0'));
    return s;
}

/* Read every tensor byte, find every name again, read the record, close. */
static void fuzz_model_use(struct model_source *s, uint64_t sum)
{
    struct model_config c;
    struct error e = {0};
    char *text;
    size_t n;
    if (model_config_read(s, &c, &e) == OK && c.arch_known)
        assert(c.n_heads % c.n_kv_heads == 0 && c.vocab > 0 && c.rope.dims <= c.head_dim);
    if (model_source_chat_template(s, &text, &n, NULL) == OK)
        mem_free(text);
    for (uint64_t i = 0; i < model_tensor_count(s); i++) {
        const struct model_tensor *t = model_tensor_at(s, i);
        assert(model_tensor_find(s, t->name) == t);
        for (size_t j = 0; j < t->view.bytes; j++)
            sum += ((const unsigned char *)t->view.data)[j];
    }
    static volatile uint64_t sink; /* the reads must happen */
    sink = sum;
    (void)sink;
    model_source_close(s);
}

#endif
