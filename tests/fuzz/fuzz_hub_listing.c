/* Any bytes as a repository's file listing, after a first line that is the file asked for: a choice whose names all
 * stay in their folder, or a sentence. */
#include "base/mem.h"
#include "hub/hub_int.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *line = n > 0 ? memchr(data, '\n', n) : NULL;
    const size_t want_n = line != NULL ? (size_t)(line - data) : 0;
    const struct str json = {(const char *)data + want_n + (line != NULL), n - want_n - (line != NULL)};
    struct arena a;
    struct error e = {0};
    struct hf_listing l;
    arena_init(&a, 16 * MIB);
    char *want = arena_copy_str(&a, (struct str){(const char *)data, want_n});
    if (want != NULL && hf_listing_parse(json, &l, &a, &e) == OK) {
        bool *picked = arena_array(&a, l.n + 1, sizeof *picked);
        const char *open = "";
        if (picked != NULL && choose_files(l.files, l.n, want, picked, &open, &e) == OK)
            for (size_t i = 0; i < l.n; i++)
                assert(!picked[i] || (path_is_contained(str_of(l.files[i].name)) && l.files[i].name[0] != '.'));
    }
    struct hub_spec s;
    e = (struct error){0};
    if (want != NULL && spec_parse(&s, want, &e) == OK && s.name[0] != '\0')
        assert(hub_name_is_valid(str_of(s.name)));
    arena_fini(&a);
    return 0;
}
