/* Probes. live: the loop makes progress; a step that hangs turns it red although the process answers. ready: a request
 * would be taken now. startup: how far the start is. */
#include "api/api_int.h"

enum server_health { HEALTH_OK, HEALTH_STARTING, HEALTH_DRAINING, HEALTH_FAILED, HEALTH_STUCK };

static const char *const names[] = {"ready", "starting", "draining", "failed", "stuck"};

static enum server_health health_of(struct server *s)
{
    const int phase = atomic_load_explicit(&s->phase, memory_order_acquire);
    if (!atomic_load(&s->has_model) || phase == PHASE_STARTING)
        return HEALTH_STARTING;
    if (engine_state(s->serving->engine) == ENGINE_FAILED)
        return HEALTH_FAILED;
    if (engine_stuck_ns(s->serving->engine) > s->o.stuck_s * NS_PER_S)
        return HEALTH_STUCK;
    return phase == PHASE_READY ? HEALTH_OK : HEALTH_DRAINING;
}

const char *health_name(struct server *s)
{
    return names[health_of(s)];
}

bool health_has_failed(struct server *s, struct api_error *ae)
{
    if (engine_state(s->serving->engine) != ENGINE_FAILED)
        return false;
    api_fail(ae, 503, NULL, "the engine has failed");
    return true;
}

static void reply(struct call *c, bool green)
{
    struct buf *b = &c->net->scratch;
    buf_clear(b);
    buf_addf(b, "{\"status\":\"%s\",\"phase\":\"%s\",\"percent\":%u}", health_name(c->s), atomic_load(&c->s->progress),
        atomic_load(&c->s->percent));
    if (!green)
        call_header(c, "Retry-After", "1");
    call_reply_json(c, green ? 200 : 503, buf_str(b));
}

void route_health(struct call *c)
{
    reply(c, health_of(c->s) == HEALTH_OK);
}

void route_readyz(struct call *c)
{
    reply(c, health_of(c->s) == HEALTH_OK);
}

void route_livez(struct call *c)
{
    const enum server_health h = health_of(c->s);
    reply(c, h != HEALTH_FAILED && h != HEALTH_STUCK);
}

void route_startupz(struct call *c)
{
    reply(c, health_of(c->s) != HEALTH_STARTING);
}

void route_version(struct call *c)
{
    call_reply_json(c, 200, STR("{\"version\":\"" QUERN_VERSION "\"}"));
}
