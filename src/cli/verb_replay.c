/* quern replay FILE: feed a recording of a server's scheduler (serve --record) to the scheduler again, compare every
 * plan byte for byte, check every invariant on the way, and show what happened step by step. */
#include "base/file.h"
#include "cli/cli.h"
#include "engine/record.h"

struct replay_print {
    struct out *out;
    uint64_t start_ns;
    bool json, has_heading;
};

static void print_step(void *ctx, const struct replay_step *s)
{
    struct replay_print *p = ctx;
    const struct plan *plan = s->plan;
    uint32_t chunks = 0;
    if (p->start_ns == 0)
        p->start_ns = s->now_ns;
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        chunks += plan_seqs(plan)[i].n_rows > 1;
    const double ms = (double)(s->now_ns - p->start_ns) / 1e6;
    if (p->json) {
        out_printf(p->out,
            "{\"step\":%llu,\"ms\":%.3f,\"depth\":%u,\"rows\":%u,\"seqs\":%u,\"prompts\":%u,\"waiting\":%u,\"running\":"
            "%u,"
            "\"swapped\":%u,\"free\":%u,\"held\":%u,\"cached\":%u,\"parked\":%u,\"copies\":%u,\"out\":%u,\"in\":%u,"
            "\"evictions\":%u,\"restores\":%u}\n",
            (unsigned long long)plan->step, ms, plan->depth, plan->n_rows, plan->n_seqs, chunks, s->sched.n_waiting,
            s->sched.n_running, s->sched.n_swapped, s->kv.n_free, s->kv.n_held, s->kv.n_cached, s->kv.n_parked,
            plan->n_copies, plan->n_out_copies, plan->n_in_copies, plan->n_evictions, plan->n_restores);
        return;
    }
    if (!p->has_heading)
        out_text(p->out,
            "    step          ms  rows  seqs  prompts  waiting  swapped |   free   held cached parked | copies\n");
    p->has_heading = true;
    out_printf(p->out, "%8llu %11.3f %5u %5u %8u %8u %8u | %6u %6u %6u %6u | ", (unsigned long long)plan->step, ms,
        plan->n_rows, plan->n_seqs, chunks, s->sched.n_waiting, s->sched.n_swapped, s->kv.n_free, s->kv.n_held,
        s->kv.n_cached, s->kv.n_parked);
    if (plan->n_copies + plan->n_out_copies + plan->n_in_copies > 0)
        out_printf(p->out, "%u cow, %u out, %u in", plan->n_copies, plan->n_out_copies, plan->n_in_copies);
    if (plan->n_evictions + plan->n_restores > 0)
        out_printf(p->out, "  %u evicted to the host, %u back", plan->n_evictions, plan->n_restores);
    out_text(p->out, "\n");
}

static void print_ends(const struct replay_summary *s, struct out *out)
{
    static const char *const words[END_COUNT] = {"", "end token", "stop string", "length", "cancelled", "deadline",
        "reader gone", "waited too long", "stopped", "failed"};
    const char *comma = "";
    for (int i = 1; i < END_COUNT; i++)
        if (s->by_end[i] > 0) {
            out_printf(out, "%s%llu %s", comma, (unsigned long long)s->by_end[i], words[i]);
            comma = ", ";
        }
    out_text(out, "\n");
}

static void print_summary(const struct replay_summary *s, struct out *out)
{
    const double seconds = (double)(s->last_ns - s->first_ns) / 1e9;
    out_printf(out, "%llu frames over %.3f s: %llu requests, %llu of them refused\n", (unsigned long long)s->frames,
        seconds, (unsigned long long)s->submits, (unsigned long long)s->refused);
    out_printf(out, "steps        %llu, of %.1f rows, at most %u sequences; %.3f s of computing\n",
        (unsigned long long)s->steps, s->steps > 0 ? (double)s->rows / (double)s->steps : 0.0, s->seqs_max,
        (double)s->cost_ns / 1e9);
    out_printf(out, "tokens       %llu chosen, %.1f a second\n", (unsigned long long)s->sampled,
        seconds > 0 ? (double)s->sampled / seconds : 0.0);
    out_text(out, "ends         ");
    print_ends(s, out);
    out_printf(out, "blocks       %u, at most %u held; %llu copied, %llu swapped\n", s->kv.n_blocks, s->blocks_held_max,
        (unsigned long long)s->copied_blocks, (unsigned long long)s->swapped_blocks);
    out_printf(out, "evicted      %llu, %llu of them to the host, from where %llu came back\n",
        (unsigned long long)s->kv.evicted, (unsigned long long)s->kv.kept, (unsigned long long)s->kv.restored);
    out_printf(out, "prefixes     %llu of %llu prompt tokens found\n", (unsigned long long)s->kv.tokens_found,
        (unsigned long long)s->kv.tokens_asked);
    out_printf(out, "preempted    %llu swapped, %llu computed again\n", (unsigned long long)s->sched.preempted_swap,
        (unsigned long long)s->sched.preempted_recompute);
    out_printf(out, "Every plan is the recorded one, byte for byte, and every invariant holds%s.\n",
        s->is_cut ? "; the recording ends before everything was done" : "");
}

static void print_json(const struct replay_summary *s, struct out *out)
{
    out_printf(out,
        "{\"frames\":%llu,\"requests\":%llu,\"refused\":%llu,\"steps\":%llu,\"rows\":%llu,\"sampled\":%llu,"
        "\"seconds\":%.6f,\"cost_seconds\":%.6f,\"blocks\":%u,\"blocks_held_max\":%u,\"cut\":%s}\n",
        (unsigned long long)s->frames, (unsigned long long)s->submits, (unsigned long long)s->refused,
        (unsigned long long)s->steps, (unsigned long long)s->rows, (unsigned long long)s->sampled,
        (double)(s->last_ns - s->first_ns) / 1e9, (double)s->cost_ns / 1e9, s->kv.n_blocks, s->blocks_held_max,
        s->is_cut ? "true" : "false");
}

enum err verb_replay(const struct options *o, struct out *out, struct error *e)
{
    struct file_map map;
    struct replay_summary sum;
    struct replay_print print = {.out = out, .json = o->json};
    const struct replay_options ro = {.check_every_step = true, .on_step = print_step, .ctx = &print};
    TRY(file_map_open(&map, o->args[0], e));
    const enum err err = replay_run(map.p, map.bytes, &ro, &sum, e);
    file_map_close(&map);
    if (err != OK)
        return error_prefix(e, "%s", o->args[0]);
    if (o->json)
        print_json(&sum, out);
    else
        print_summary(&sum, out);
    return OK;
}
