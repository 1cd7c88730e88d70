/* Finding models; see find.h. hub/ knows the cache and the network; here is what only the program knows: the tiny
 * models beside its executable, and when to fetch. */
#include "cli/find.h"

#include "base/file.h"
#include "base/log.h"
#include "cli/note.h"
#include "hub/hub.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *file;
} tiny_models[] = {
    {"tiny", "tiny-4m-q8_0.gguf"},
    {"tiny-4m", "tiny-4m-q8_0.gguf"},
    {"tiny-1m", "tiny-1m-q8_0.gguf"},
    {"tiny-moe", "tiny-moe-q8_0.gguf"},
};

/* Where they lie, seen from the folder of the executable: installed, in a source tree built as build/PRESET, in one
 * built as build. */
static const char *const tiny_folders[] = {"../share/quern", "../../tests/data/tiny", "../tests/data/tiny"};

static bool find_tiny(const char *model, char *path)
{
    char folder[PATH_BYTES_MAX];
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n <= 0 || model == NULL)
        return false;
    folder[n] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    for (size_t i = 0; i < COUNT_OF(tiny_models); i++) {
        for (size_t k = 0; strcmp(tiny_models[i].name, model) == 0 && k < COUNT_OF(tiny_folders); k++) {
            const int m = snprintf(path, PATH_BYTES_MAX, "%s/%s/%s", folder, tiny_folders[k], tiny_models[i].file);
            if (m > 0 && m < PATH_BYTES_MAX && file_is_regular(path))
                return true;
        }
    }
    return false;
}

static atomic_bool is_stopped; /* lock-free, so a signal handler may set it */

static void on_stop(int number)
{
    (void)number;
    atomic_store(&is_stopped, true);
}

enum err find_pull(const struct options *o, const char *model, char *path, struct error *e)
{
    struct hub *hub;
    struct hub_options ho;
    const struct sigaction stop = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};
    struct sigaction int_before, term_before;
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = o->offline;
    ho.cancel = &is_stopped;
    ho.progress = o->log_level >= LOG_INFO && o->log_format == LOG_TEXT ? stderr : NULL;
    TRY(hub_open(&hub, &ho, e));
    sigaction(SIGINT, &stop, &int_before);
    sigaction(SIGTERM, &stop, &term_before);
    const enum err err = hub_pull(hub, model, path, e);
    sigaction(SIGINT, &int_before, NULL);
    sigaction(SIGTERM, &term_before, NULL);
    hub_close(hub);
    return err;
}

static enum err resolve(const struct options *o, const char *model, char *path, struct error *e)
{
    struct hub *hub;
    struct hub_options ho;
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = true;
    TRY(hub_open(&hub, &ho, e));
    const enum err err = hub_resolve(hub, model, path, e);
    hub_close(hub);
    return err;
}

enum err find_model(const struct options *o, enum find_mode mode, char *path, struct error *e)
{
    const char *model = o->n_args > 0 ? o->args[0] : NULL;
    /* A path wins whenever something is there: format/ then says what is wrong with a FIFO or a device. */
    if (model != NULL && strlen(model) < PATH_BYTES_MAX && access(model, F_OK) == 0) {
        memcpy(path, model, strlen(model) + 1);
        return OK;
    }
    struct error local = {0};
    enum err err = resolve(o, model, path, &local);
    if (err == ERR_NOT_FOUND && find_tiny(model, path))
        return OK;
    if (err == ERR_NOT_FOUND && mode != FIND_LOCAL && !o->offline) {
        local = (struct error){0};
        err = find_pull(o, model, path, &local);
    }
    const bool may_fall_back =
        mode == FIND_FALLBACK && model == NULL && err != OK && err != ERR_CANCELLED && err != ERR_NOMEM;
    if (may_fall_back && find_tiny("tiny", path)) {
        note_warning(o,
            "the default model is not to be had (%s); taking 'tiny', which speaks broken Shakespeare "
            "and knows nothing",
            local.text);
        return OK;
    }
    if (err != OK && e != NULL && e->code == OK)
        *e = local;
    return err;
}
