/* Masks beside the device; see masks.h. A row is a tile of a small team of its own: the worker team of the CPU backend
 * is not there when another backend runs. A mask takes a microsecond when its grammar has been there before and up to a
 * millisecond the first time, and a step of a hundred rows ten milliseconds: a few threads are enough to be done first.
 */
#include "engine/masks.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/team.h"

#include <string.h>

struct masks_row_job {
    struct slot_view view;
    struct row_mask mask;
    uint32_t none;
};

struct masks {
    struct team *team;
    uint32_t rows_max, vocab, words, n;
    struct masks_row_job *rows; /* [rows_max] */
    uint64_t *room;             /* [rows_max][words] */
    bool owns_room;
    masks_fn *watch;
    void *watch_ctx;
};

uint32_t masks_threads(void)
{
    const uint32_t cores = team_cores();
    return cores > 2 ? MIN(cores - 1, (uint32_t)MASK_THREADS_MAX) : 2;
}

enum err masks_new(
    uint32_t rows_max, uint32_t vocab, uint32_t n_threads, uint64_t *room, struct masks **out, struct error *e)
{
    *out = NULL;
    struct masks *m = mem_zalloc(sizeof *m);
    if (m == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for masks");
    m->rows_max = rows_max;
    m->vocab = vocab;
    m->words = (vocab + 63) / 64;
    m->rows = mem_array(rows_max, sizeof *m->rows);
    m->owns_room = room == NULL;
    m->room = room != NULL ? room : mem_array((size_t)rows_max * m->words, sizeof *m->room);
    enum err err = m->rows != NULL && m->room != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for %u masks", rows_max);
    if (err == OK)
        err = team_new(&m->team, n_threads, e);
    if (err != OK) {
        masks_free(m);
        return err;
    }
    *out = m;
    return OK;
}

void masks_free(struct masks *m)
{
    if (m == NULL)
        return;
    team_free(m->team);
    mem_free(m->rows);
    if (m->owns_room)
        mem_free(m->room);
    mem_free(m);
}

void masks_watch(struct masks *m, masks_fn *fn, void *ctx)
{
    m->watch = fn;
    m->watch_ctx = ctx;
}

void masks_clear(struct masks *m)
{
    m->n = 0;
}

uint32_t masks_add(struct masks *m, const struct slot_view *v)
{
    assert(m->n < m->rows_max && v->request != NULL);
    m->rows[m->n].view = *v;
    return m->n++;
}

static void make_row(void *ctx, uint32_t row, uint32_t worker)
{
    struct masks *m = ctx;
    struct masks_row_job *j = &m->rows[row];
    j->mask = choose_mask(&j->view, j->view.choice->walk, m->room + (size_t)row * m->words, m->vocab);
    j->none = choose_none(&j->view, j->view.choice->walk, j->mask, m->vocab);
    if (m->watch != NULL)
        m->watch(m->watch_ctx, row, worker);
}

void masks_start(struct masks *m)
{
    team_start(m->team, m->n, make_row, m);
}

void masks_join(struct masks *m)
{
    team_join(m->team);
}

struct row_mask masks_row(const struct masks *m, uint32_t row)
{
    assert(row < m->n);
    return m->rows[row].mask;
}

uint32_t masks_none(const struct masks *m, uint32_t row)
{
    assert(row < m->n);
    return m->rows[row].none;
}

uint32_t masks_put(struct masks *m, const uint64_t *bits)
{
    assert(m->n < m->rows_max);
    memcpy(m->room + (size_t)m->n * m->words, bits, m->words * sizeof *bits);
    return m->n++;
}

uint32_t masks_count(const struct masks *m)
{
    return m->n;
}

struct team *masks_team(struct masks *m)
{
    return m->team;
}
