/* Doors of hub/ for the Python tests: one call per operation, options as plain values, progress into a file. */
#include "base/buf.h"
#include "base/fault.h"
#include "hub/hub.h"
#include "hub/hub_int.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct hub_call {   /* mirrored in hub_driver.py */
    const char *op; /* pull, resolve, remove, list */
    const char *cache_dir, *model, *log_path;
    const void *cancel; /* atomic_bool, or NULL */
    uint32_t offline, retry_max, retry_ms, retry_cap_ms, connect_ms, stall_ms;
    char *path; /* PATH_BYTES_MAX bytes; list: JSON of at most 64 KiB */
    char *text; /* ERROR_TEXT_MAX bytes */
};

static enum err list(struct hub *h, char *out, struct error *e)
{
    static const char *const states[] = {[HUB_READY] = "ready", [HUB_PARTIAL] = "partial", [HUB_DAMAGED] = "damaged"};
    struct hub_list l;
    struct buf b;
    TRY(hub_list(h, &l, e));
    buf_init(&b, 64 * KIB - 1);
    buf_add_char(&b, '[');
    for (size_t i = 0; i < l.n; i++) {
        const struct hub_entry *x = &l.entries[i];
        buf_add(&b, i > 0 ? STR(",{\"name\":") : STR("{\"name\":"));
        buf_add_json_str(&b, str_of(x->name));
        buf_add(&b, STR(",\"source\":"));
        buf_add_json_str(&b, str_of(x->source));
        buf_add(&b, STR(",\"file\":"));
        buf_add_json_str(&b, str_of(x->file));
        buf_addf(&b, ",\"bytes\":%llu,\"n_file\":%u,\"time\":%lld,\"state\":\"%s\"}", (unsigned long long)x->bytes,
            x->n_file, (long long)x->time_s, states[x->state]);
    }
    buf_add_char(&b, ']');
    hub_list_fini(&l);
    const enum err err = buf_check(&b, "the list", e);
    if (err == OK)
        memcpy(out, b.p, b.n + 1);
    buf_fini(&b);
    return err;
}

EXPORT int quern_testing_hub(const struct hub_call *c)
{
    struct error e = {0};
    struct hub_options o;
    struct hub *h;
    hub_options_init(&o);
    o.cache_dir = c->cache_dir;
    o.offline = c->offline != 0;
    o.cancel = c->cancel;
    o.retry_max = c->retry_max;
    o.retry_ms = c->retry_ms;
    o.retry_cap_ms = c->retry_cap_ms;
    o.connect_ms = c->connect_ms;
    o.stall_ms = c->stall_ms;
    o.progress = c->log_path != NULL ? fopen(c->log_path, "a") : NULL;
    enum err err = hub_open(&h, &o, &e);
    if (err == OK) {
        if (strcmp(c->op, "pull") == 0)
            err = hub_pull(h, c->model, c->path, &e);
        else if (strcmp(c->op, "resolve") == 0)
            err = hub_resolve(h, c->model, c->path, &e);
        else if (strcmp(c->op, "remove") == 0)
            err = hub_remove(h, c->model, NULL, &e);
        else
            err = list(h, c->path, &e);
        hub_close(h);
    }
    if (o.progress != NULL)
        fclose(o.progress);
    if (err != OK && e.code != err) /* a failure without its sentence is a bug the tests must see */
        memcpy(c->text, "NO SENTENCE", sizeof "NO SENTENCE");
    else
        memcpy(c->text, e.text, sizeof e.text);
    return (int)err;
}

EXPORT const char *quern_testing_hub_err_name(int code)
{
    return err_name((enum err)code);
}

EXPORT void quern_testing_hub_fault(int kind, uint64_t nth, int sticky)
{
    fault_arm((enum fault_kind)kind, nth, sticky != 0);
}

EXPORT uint64_t quern_testing_hub_fault_calls(int kind)
{
    return fault_calls((enum fault_kind)kind);
}

EXPORT int quern_testing_hub_zip(
    const char *zip, const char *member, const char *out, uint64_t bytes, const char *sha256, char *text)
{
    struct error e = {0};
    struct hub_options o;
    struct hub *h;
    hub_options_init(&o);
    o.cache_dir = "/nonexistent";
    enum err err = hub_open(&h, &o, &e);
    if (err == OK) {
        struct hub_file file = {.name = member, .bytes = bytes};
        snprintf(file.sha256, sizeof file.sha256, "%s", sha256);
        err = zip_extract(h, zip, member, out, &file, &e);
        hub_close(h);
    }
    memcpy(text, e.text, sizeof e.text);
    return (int)err;
}
