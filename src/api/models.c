/* GET /v1/models, and the check of the field 'model'. */
#include "api/prompt.h"

#include <string.h>

static void add_model(struct server *s, uint32_t i, struct buf *b)
{
    buf_add(b, STR("{\"id\":"));
    buf_add_json_str(b, str_of(s->names[i]));
    buf_addf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"quern\",\"root\":", (long long)s->created_s);
    buf_add_json_str(b, str_of(s->names[0]));
    buf_addf(b, ",\"parent\":null,\"max_model_len\":%u,\"permission\":[]}", s->serving->fit.context);
}

void route_models(struct call *c)
{
    struct buf *b = &c->net->scratch;
    bool comma = false;
    buf_clear(b);
    buf_add(b, STR("{\"object\":\"list\",\"data\":["));
    for (uint32_t i = 0; i < c->s->n_names; i++) {
        if (!tenant_may_use(&c->s->keys, c->tenant, str_of(c->s->names[i])))
            continue;
        if (comma)
            buf_add_char(b, ',');
        comma = true;
        add_model(c->s, i, b);
    }
    buf_add(b, STR("]}"));
    call_reply_buf(c, b);
}

static int find_model(struct server *s, struct str name)
{
    for (uint32_t i = 0; i < s->n_names; i++)
        if (str_is(name, s->names[i]))
            return (int)i;
    return -1;
}

static bool no_such_model(struct str name, struct api_error *ae)
{
    char shown[MODEL_NAME_BYTES_MAX];
    str_show(name, shown, sizeof shown);
    return api_fail_code(ae, 404, "model", "model_not_found", "the model '%s' is not served here", shown);
}

/* A name may hold slashes; clients write them as %2F. */
static struct str unescape(struct str s, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n && n + 1 < cap; i++) {
        const bool slash =
            s.p[i] == '%' && i + 2 < s.n && s.p[i + 1] == '2' && (s.p[i + 2] == 'F' || s.p[i + 2] == 'f');
        const bool colon =
            s.p[i] == '%' && i + 2 < s.n && s.p[i + 1] == '3' && (s.p[i + 2] == 'A' || s.p[i + 2] == 'a');
        out[n++] = slash ? '/' : colon ? ':' : s.p[i];
        i += slash || colon ? 2 : 0;
    }
    out[n] = '\0';
    return (struct str){out, n};
}

void route_model(struct call *c)
{
    char name[MODEL_NAME_BYTES_MAX];
    struct api_error ae = {0};
    const struct str id = unescape(c->path_id, name, sizeof name);
    const int i = find_model(c->s, id);
    if (i < 0 || !tenant_may_use(&c->s->keys, c->tenant, id)) {
        no_such_model(id, &ae);
        call_reply_error(c, &ae);
        return;
    }
    struct buf *b = &c->net->scratch;
    buf_clear(b);
    add_model(c->s, (uint32_t)i, b);
    call_reply_buf(c, b);
}

bool model_check(struct call *c, struct in in)
{
    struct str name = {0};
    if (!in_str(in, "model", 4096, &name))
        return false;
    if (name.p == NULL)
        name = str_of(c->s->names[0]);
    if (find_model(c->s, name) < 0)
        return no_such_model(name, in.ae);
    if (!tenant_may_use(&c->s->keys, c->tenant, name))
        return api_fail(in.ae, 403, "model", "this key may not use the model '%s'", name.p);
    return true;
}
