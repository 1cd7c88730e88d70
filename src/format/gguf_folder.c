/* A folder given as a model that holds GGUF files: one file, or the files of one split set, is the model. With several
 * models in it the user is asked which; guessing would run the wrong one without a word. Projectors of vision models
 * ("mmproj" in the name) are no models and do not count.
 *
 * A file of the folder may be a link; hf_folder.c says how links are judged. */
#include "format/format_int.h"

#include "base/fault.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 256
#define SHOWN_MAX  8 /* models named in the message when there are several */

struct pick {
    char names[SHOWN_MAX][NAME_BYTES]; /* one per model; of a set, the first name by order */
    size_t n;                          /* models found, those that are not kept too */
};

static bool is_model_name(const char *name)
{
    const struct str s = str_of(name);
    return s.n < NAME_BYTES && s.p[0] != '.' && str_has_suffix(s, STR(".gguf")) && strcasestr(name, "mmproj") == NULL &&
           path_is_contained(s);
}

/* Two names are files of the same set when they differ in nothing but the number. */
static bool is_same_set(const char *a, const char *b)
{
    const struct split_name x = split_name_of(a), y = split_name_of(b);
    return x.no != 0 && y.no != 0 && x.count == y.count && x.prefix == y.prefix && strncmp(a, b, x.prefix) == 0;
}

static void pick_add(struct pick *p, const char *name)
{
    const size_t kept = MIN(p->n, (size_t)SHOWN_MAX);
    for (size_t i = 0; i < kept; i++) {
        if (!is_same_set(p->names[i], name))
            continue;
        if (strcmp(name, p->names[i]) < 0)
            memcpy(p->names[i], name, strlen(name) + 1);
        return;
    }
    if (kept < SHOWN_MAX)
        memcpy(p->names[kept], name, strlen(name) + 1);
    p->n++;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static enum err fail_several(const char *folder, struct pick *p, struct error *e)
{
    char list[ERROR_TEXT_MAX] = "";
    size_t at = 0;
    const size_t kept = MIN(p->n, (size_t)SHOWN_MAX);
    qsort(p->names, kept, sizeof p->names[0], by_name);
    for (size_t i = 0; i < kept && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i == 0 ? "" : ", ", p->names[i]);
    return FAIL(e, ERR_INVALID, "%s holds several models; name one of its files: %s%s", folder, list,
        p->n > kept ? ", ..." : "");
}

enum err gguf_folder_pick(const char *folder, char path[PATH_BYTES_MAX], struct error *e)
{
    struct pick p = {.n = 0};
    char real[PATH_BYTES_MAX];
    DIR *d = fault_hit(FAULT_SYS) ? (errno = EIO, (DIR *)NULL) : opendir(folder);
    if (d == NULL)
        return FAIL(e, errno == EACCES ? ERR_DENIED : ERR_IO, "cannot open folder %s: %s", folder, strerror(errno));
    const struct dirent *item;
    for (uint32_t i = 0; i < MODEL_FOLDER_FILES_MAX && (item = readdir(d)) != NULL; i++)
        if (is_model_name(item->d_name))
            pick_add(&p, item->d_name);
    closedir(d);
    if (p.n == 0)
        return ERR_NOT_FOUND;
    if (p.n > 1)
        return fail_several(folder, &p, e);
    TRY(hf_path_resolve(folder, str_of(p.names[0]), real, e));
    return path_join(path, folder, p.names[0], e); /* not the real one: a set is found by its names */
}
