/* quern list: what is in the cache. */
#include "cli/cli.h"

#include "hub/hub.h"

#include <string.h>
#include <time.h>

static const char *const states[] = {[HUB_READY] = "ready", [HUB_PARTIAL] = "partial", [HUB_DAMAGED] = "damaged"};

static void print_json(struct out *out, const struct hub_list *l)
{
    out_text(out, "{\"models\":[");
    for (size_t i = 0; i < l->n; i++) {
        const struct hub_entry *x = &l->entries[i];
        out_text(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        out_json_str(out, str_of(x->name));
        out_printf(out, ",\"state\":\"%s\",\"bytes\":%llu,\"files\":%u,\"time\":%lld,\"source\":", states[x->state],
            (unsigned long long)x->bytes, x->n_file, (long long)x->time_s);
        out_json_str(out, str_of(x->source));
        out_text(out, ",\"file\":");
        out_json_str(out, str_of(x->file));
        out_text(out, "}");
    }
    out_text(out, "]}\n");
}

/* Decimal units with one digit, as disks are sold and as pull shows them. */
static const char *show_bytes(uint64_t bytes, char *out, size_t cap)
{
    const char *unit = "kB";
    double v = (double)bytes / 1e3;
    if (bytes >= 999950000) {
        unit = "GB";
        v = (double)bytes / 1e9;
    } else if (bytes >= 999950) {
        unit = "MB";
        v = (double)bytes / 1e6;
    }
    snprintf(out, cap, "%.1f %s", v, unit);
    return out;
}

static void print_text(struct out *out, const struct hub_list *l)
{
    size_t width = strlen("NAME");
    for (size_t i = 0; i < l->n; i++)
        width = MAX(width, strlen(l->entries[i].name));
    out_printf(out, "%-*s  %10s  %5s  %-16s  SOURCE\n", (int)width, "NAME", "SIZE", "FILES", "PULLED");
    for (size_t i = 0; i < l->n; i++) {
        const struct hub_entry *x = &l->entries[i];
        const time_t when_s = (time_t)x->time_s;
        struct tm tm;
        char when[32] = "", size[32];
        if (x->state != HUB_READY)
            snprintf(when, sizeof when, "(%s)", states[x->state]);
        else if (localtime_r(&when_s, &tm) != NULL)
            strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
        out_printf(out, "%-*s  %10s  %5u  %-16s  ", (int)width, x->name, show_bytes(x->bytes, size, sizeof size),
            x->n_file, when);
        out_safe(out, str_of(x->source));
        out_text(out, "\n");
    }
}

enum err verb_list(const struct options *o, struct out *out, struct error *e)
{
    struct hub *hub;
    struct hub_options ho;
    struct hub_list l;
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = true;
    TRY(hub_open(&hub, &ho, e));
    const enum err err = hub_list(hub, &l, e);
    if (err == OK && o->json)
        print_json(out, &l);
    else if (err == OK && l.n > 0)
        print_text(out, &l);
    else if (err == OK)
        out_printf(out, "nothing in %s yet; 'quern pull' gets the default model\n", hub_cache_dir(hub));
    if (err == OK)
        hub_list_fini(&l);
    hub_close(hub);
    return err;
}
