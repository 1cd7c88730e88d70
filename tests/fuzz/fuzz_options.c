/* The command line and the config file from arbitrary bytes. The input is the words of a command line, each ended by a
 * NUL byte; an empty word ends them, and what follows is the text of a config file. Whatever comes in, the answer is an
 * error with a sentence or values that keep the rules of their rows. */
#include "base/mem.h"
#include "cli/cli.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WORDS_MAX 128

static void check_values(struct option_table t, const struct options *o)
{
    for (size_t i = 0; i < t.n; i++) {
        const struct option_row *row = &t.rows[i];
        const void *field = (const char *)o + row->field;
        switch (row->type) {
        case OPTION_ENUM: assert((size_t) * (const int *)field < option_choices(row)); break;
        case OPTION_LIST: assert(((const struct option_list *)field)->n <= OPTION_LIST_MAX); break;
        case OPTION_U64:
        case OPTION_SIZE: {
            const uint64_t v = *(const uint64_t *)field;
            const bool is_unset = row->fallback == NULL && v == (row->knows_unset ? OPTION_UNSET : 0);
            assert(is_unset || (v >= row->min && (row->max == 0 || v <= row->max)));
            break;
        }
        case OPTION_F64: {
            const double v = *(const double *)field;
            const bool is_unset = row->fallback == NULL && v != v;
            assert(is_unset || (v >= row->f64_min && v <= row->f64_max));
            break;
        }
        case OPTION_STR: {
            const char *v = *(const char *const *)field;
            assert(v == NULL || strlen(v) > 0);
            break;
        }
        case OPTION_BOOL: break;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_alloc(size + 1);
    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';

    char *words[WORDS_MAX];
    int n = 0;
    size_t at = 0;
    while (at < size && text[at] != '\0' && n < WORDS_MAX) {
        words[n++] = text + at;
        at += strlen(text + at) + 1;
    }
    struct options o = {0};
    struct options_parse p;
    struct error e = {0};
    const struct option_table t = options_table();
    options_init(&p, t, &o);
    enum err err = options_parse_args(&p, n, words, &e);
    if (err == OK && at + 1 < size)
        err = options_parse_text(&p, text + at + 1, size - at - 1, &e);
    if (err == OK && p.verb != NULL && verb_find(str_of(p.verb)) != NULL)
        err = options_check_verb(&p, p.verb, &e);
    assert(err == e.code);
    assert((err == OK) == (e.text[0] == '\0'));
    assert(utf8_is_valid(str_of(e.text)));
    if (err == OK)
        check_values(t, &o);
    options_fini(&p);
    mem_free(text);
    return 0;
}
