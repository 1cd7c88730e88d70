/* Any bytes as a GGUF file: opened, described and read to the end, or refused with a sentence. The file lives in
 * memory; the reader sees a path like any other. */
#include "format/format_gguf.h"
#include "fuzz_model_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_source *s = fuzz_model_open(data, n);
    if (s == NULL)
        return 0;
    const struct gguf *g = model_source_gguf(s);
    uint64_t sum = 0;
    char shown[64];
    for (uint64_t i = 0; g != NULL && i < gguf_field_count(g); i++) {
        const struct gguf_field *f = gguf_field_at(g, i);
        struct gguf_array a = f->array, inner;
        struct str item;
        double v;
        sum += (uint64_t)gguf_show(f, shown, sizeof shown)[0];
        while (gguf_next_str(&a, &item))
            sum += item.n > 0 ? (unsigned char)item.p[item.n - 1] : 0;
        while (gguf_next_array(&a, &inner))
            while (gguf_next_f64(&inner, &v))
                sum += v > 0;
        while (gguf_next_f64(&a, &v))
            sum += v > 0;
    }
    fuzz_model_use(s, sum);
    return 0;
}
