/* Writing a recording; see record.h.
 *
 * The ring holds bytes, not items: frames differ in size by a factor of a million. The engine thread is the only
 * producer and the writer thread the only consumer. A frame is copied in part by part behind `tail`, which moves only
 * when the frame is whole, so the writer never sees half of one. */
#include "engine/record_int.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct record {
    int fd;
    struct log *log;
    char path[PATH_BYTES_MAX];
    unsigned char *bytes; /* [RECORD_RING_BYTES] */
    uint64_t at;          /* engine thread: behind the parts of the frame being made */
    bool full;            /* engine thread: this frame does not fit */
    bool wrote_vocab;
    struct wake wake;
    pthread_t thread;
    bool has_thread;
    _Alignas(CACHE_LINE) _Atomic uint64_t tail; /* whole frames up to here */
    _Alignas(CACHE_LINE) _Atomic uint64_t head; /* written up to here */
    _Atomic bool stop, dead;                    /* dead: a frame did not fit, or the disk failed */
};

/* ---- the writer thread --------------------------------------------------------------------------------------------
 */

static bool write_some(struct record *rec)
{
    const uint64_t head = atomic_load_explicit(&rec->head, memory_order_relaxed);
    const uint64_t tail = atomic_load(&rec->tail);
    if (head == tail)
        return false;
    const uint64_t at = head % RECORD_RING_BYTES;
    const uint64_t n = MIN(tail - head, RECORD_RING_BYTES - at);
    struct error e = {0};
    if (file_write_fully(rec->fd, rec->bytes + at, n, rec->path, &e) != OK) {
        atomic_store(&rec->dead, true);
        LOG(rec->log, LOG_WARN, "engine", "the recording ends here", log_cstr("why", e.text));
        atomic_store_explicit(&rec->head, tail, memory_order_release);
        return false;
    }
    atomic_store_explicit(&rec->head, head + n, memory_order_release);
    return true;
}

static void *run_writer(void *ctx)
{
    struct record *rec = ctx;
    pthread_setname_np(pthread_self(), "quern-record");
    for (;;) {
        while (write_some(rec))
            continue;
        if (atomic_load(&rec->stop) && atomic_load(&rec->head) == atomic_load(&rec->tail))
            return NULL;
        wake_arm(&rec->wake);
        if (atomic_load(&rec->head) == atomic_load(&rec->tail) && !atomic_load(&rec->stop))
            (void)wake_wait(&rec->wake, UINT64_MAX);
        else
            wake_disarm(&rec->wake);
    }
}

/* ---- frames -------------------------------------------------------------------------------------------------------
 */

static void add(struct record *rec, const void *p, size_t n)
{
    const uint64_t head = atomic_load_explicit(&rec->head, memory_order_acquire);
    if (rec->full || n > RECORD_RING_BYTES - (rec->at - head)) {
        rec->full = true;
        return;
    }
    const uint64_t at = rec->at % RECORD_RING_BYTES;
    const size_t first = (size_t)MIN((uint64_t)n, RECORD_RING_BYTES - at);
    memcpy(rec->bytes + at, p, first);
    memcpy(rec->bytes, (const unsigned char *)p + first, n - first);
    rec->at += n;
}

static void add_u32(struct record *rec, uint32_t v)
{
    add(rec, &v, sizeof v);
}

static void add_u64(struct record *rec, uint64_t v)
{
    add(rec, &v, sizeof v);
}

static void add_fields(struct record *rec, struct fields f, const void *from)
{
    add_u32(rec, f.n);
    for (uint32_t i = 0; i < f.n; i++)
        add_u64(rec, field_get(from, &f.v[i]));
}

static void add_ids(struct record *rec, const uint32_t *ids, uint32_t n)
{
    add_u32(rec, n);
    if (n > 0)
        add(rec, ids, n * sizeof *ids);
}

/* Start a frame of that many bytes; false when nothing more is recorded. */
static bool begin(struct record *rec, enum frame_kind kind, uint64_t bytes)
{
    if (rec == NULL || atomic_load_explicit(&rec->dead, memory_order_relaxed))
        return false;
    rec->at = atomic_load_explicit(&rec->tail, memory_order_relaxed);
    rec->full = bytes > RECORD_FRAME_BYTES_MAX;
    add_u32(rec, kind);
    add_u32(rec, (uint32_t)bytes);
    return true;
}

static void end(struct record *rec)
{
    if (rec->full) {
        atomic_store(&rec->dead, true);
        LOG(rec->log, LOG_WARN, "engine", "the recording ends here: the disk is too slow", log_cstr("path", rec->path));
    } else
        atomic_store(&rec->tail, rec->at);
    wake_signal(&rec->wake);
}

static uint64_t fields_bytes(struct fields f)
{
    return 4 + 8 * (uint64_t)f.n;
}

static void record_options(struct record *rec, const struct engine_options *o)
{
    if (!begin(rec, FRAME_OPTIONS, 4 + fields_bytes(record_sched_fields) + fields_bytes(record_kv_fields) + 8))
        return;
    add_u32(rec, RECORD_VERSION);
    add_fields(rec, record_sched_fields, &o->sched);
    add_fields(rec, record_kv_fields, &o->kv);
    add_u64(rec, o->key.numerics);
    end(rec);
}

/* Stops are matched on bytes, so whoever replays them needs the tokens' bytes. Once. */
static void record_vocab(struct record *rec, const struct vocab_view *v)
{
    const uint64_t n = v->n, text = v->offsets[v->n];
    if (rec->wrote_vocab || !begin(rec, FRAME_VOCAB, 8 + (n + 1) * 4 + n + text))
        return;
    rec->wrote_vocab = true;
    add_u32(rec, v->n);
    add_u32(rec, (uint32_t)text);
    add(rec, v->offsets, (n + 1) * sizeof *v->offsets);
    add(rec, v->flags, n);
    add(rec, v->bytes, text);
    end(rec);
}

void record_submit(struct record *rec, const struct request *r, uint64_t now, enum err answer)
{
    if (rec == NULL)
        return;
    const struct request_options *o = &r->o;
    const uint32_t n_stops = o->stops != NULL ? stop_set_count(o->stops) : 0;
    uint64_t bytes = 28 + fields_bytes(record_request_fields) + 16;
    bytes += 4 * ((uint64_t)o->n_prompt + o->n_stop_ids + o->n_banned_ids);
    for (uint32_t i = 0; i < n_stops; i++)
        bytes += 4 + stop_set_at(o->stops, i).n;
    if (n_stops > 0)
        record_vocab(rec, o->vocab);
    if (!begin(rec, FRAME_SUBMIT, bytes))
        return;
    add_u64(rec, (uintptr_t)r);
    add_u64(rec, now);
    add_u64(rec, r->t_arrival);
    add_u32(rec, (uint32_t)answer);
    add_fields(rec, record_request_fields, o);
    add_ids(rec, o->prompt, o->n_prompt);
    add_ids(rec, o->stop_ids, o->n_stop_ids);
    add_ids(rec, o->banned_ids, o->n_banned_ids);
    add_u32(rec, n_stops);
    for (uint32_t i = 0; i < n_stops; i++) {
        const struct str s = stop_set_at(o->stops, i);
        add_u32(rec, (uint32_t)s.n);
        add(rec, s.p, s.n);
    }
    end(rec);
}

void record_look(struct record *rec, const struct request *r, bool cancel, uint32_t n_read)
{
    if (!begin(rec, FRAME_LOOK, 16))
        return;
    add_u64(rec, (uintptr_t)r);
    add_u32(rec, cancel ? 1 : 0);
    add_u32(rec, n_read);
    end(rec);
}

void record_sweep(struct record *rec, uint64_t now)
{
    if (!begin(rec, FRAME_SWEEP, 8))
        return;
    add_u64(rec, now);
    end(rec);
}

void record_guess(struct record *rec, uint32_t slot, const struct guesses *g)
{
    if (!begin(rec, FRAME_GUESS, 12 + 4 * (uint64_t)g->n))
        return;
    add_u32(rec, slot);
    add_u32(rec, g->trust);
    add_ids(rec, g->ids, g->n);
    end(rec);
}

void record_plan(struct record *rec, uint64_t now, bool flying, const struct plan *plan)
{
    struct plan_part parts[PLAN_PARTS];
    uint64_t bytes = 16;
    if (rec == NULL)
        return;
    if (plan != NULL) {
        record_plan_parts(plan, parts);
        for (int i = 0; i < PLAN_PARTS; i++)
            bytes += parts[i].bytes;
    }
    if (!begin(rec, FRAME_PLAN, bytes))
        return;
    add_u64(rec, now);
    add_u32(rec, flying ? 1 : 0);
    add_u32(rec, plan != NULL ? 1 : 0);
    for (int i = 0; plan != NULL && i < PLAN_PARTS; i++)
        add(rec, parts[i].p, parts[i].bytes);
    end(rec);
}

void record_commit(struct record *rec, const struct step_result *result, uint64_t now)
{
    if (!begin(rec, FRAME_COMMIT, 28 + 8 * (uint64_t)result->n))
        return;
    add_u64(rec, now);
    add_u64(rec, result->step);
    add_u64(rec, result->cost_ns);
    add_u32(rec, result->n);
    for (uint32_t i = 0; i < result->n; i++) {
        add_u32(rec, result->tokens[i].slot);
        add_u32(rec, result->tokens[i].id);
    }
    end(rec);
}

void record_jump(struct record *rec, const struct request *r, uint32_t i_choice, const uint32_t *ids, uint32_t n)
{
    if (!begin(rec, FRAME_JUMP, 16 + 4 * (uint64_t)n))
        return;
    add_u64(rec, (uintptr_t)r);
    add_u32(rec, i_choice);
    add_ids(rec, ids, n);
    end(rec);
}

void record_end(struct record *rec, const struct request *r)
{
    if (!begin(rec, FRAME_END, 12 + 8 * (uint64_t)r->n_choices))
        return;
    add_u64(rec, (uintptr_t)r);
    add_u32(rec, r->n_choices);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        add_u32(rec, (uint32_t)atomic_load_explicit(&r->choices[i].end, memory_order_relaxed));
        add_u32(rec, atomic_load_explicit(&r->choices[i].n_out, memory_order_relaxed));
    }
    end(rec);
}

void record_abort(struct record *rec, enum req_end why, uint64_t now)
{
    if (!begin(rec, FRAME_ABORT, 12))
        return;
    add_u64(rec, now);
    add_u32(rec, why);
    end(rec);
}

void record_weight(struct record *rec, uint32_t tenant, double weight)
{
    if (!begin(rec, FRAME_WEIGHT, 12))
        return;
    add_u32(rec, tenant);
    add(rec, &weight, sizeof weight);
    end(rec);
}

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

enum err record_open(const char *path, const struct engine_options *o, struct record **out, struct error *e)
{
    *out = NULL;
    struct record *rec = mem_aligned(CACHE_LINE, sizeof *rec);
    if (rec == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to record");
    memset(rec, 0, sizeof *rec);
    rec->wake.fd = -1;
    rec->log = o->log;
    snprintf(rec->path, sizeof rec->path, "%s", path);
    rec->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); /* it holds what was said */
    enum err err = rec->fd >= 0 ? OK : FAIL(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (err == OK && (rec->bytes = mem_alloc(RECORD_RING_BYTES)) == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory to record");
    if (err == OK)
        err = wake_init(&rec->wake, e);
    if (err == OK)
        err = file_write_fully(rec->fd, RECORD_MAGIC, sizeof RECORD_MAGIC - 1, path, e);
    if (err == OK) {
        record_options(rec, o);
        rec->has_thread = pthread_create(&rec->thread, NULL, run_writer, rec) == 0;
        if (!rec->has_thread)
            err = FAIL(e, ERR_IO, "cannot start a thread to record with");
    }
    if (err != OK) {
        record_close(rec);
        return err;
    }
    *out = rec;
    return OK;
}

bool record_is_whole(const struct record *rec)
{
    return rec == NULL || !atomic_load(&rec->dead);
}

void record_close(struct record *rec)
{
    if (rec == NULL)
        return;
    if (rec->has_thread) {
        atomic_store(&rec->stop, true);
        wake_signal(&rec->wake);
        pthread_join(rec->thread, NULL);
    }
    file_close(&rec->fd);
    wake_fini(&rec->wake);
    mem_free(rec->bytes);
    mem_free(rec);
}
