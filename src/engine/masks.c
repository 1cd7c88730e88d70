/* Masks beside the device; see masks.h. A row is a tile of a small team of its own: the worker team of the CPU backend
 * is not there when another backend runs. A mask takes a microsecond when its grammar has been there before and up to a
 * millisecond the first time, and a step of a hundred rows ten milliseconds: a few threads are enough to be done first.
 *
 * Sharing. Whoever comes to a row finds its key and claims a place for it in a small table; who finds the same key
 * there leaves the row to the one who was first. So which number a mask gets differs from run to run, and what is in it
 * does not. A mask whose sets nobody has made yet has no key, and is its row's own. */
#include "engine/masks.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/team.h"

#include <stdatomic.h>
#include <string.h>

#define NO_PLACE UINT32_MAX

struct masks_row_job {
    struct slot_view view;
    const struct grammar_walk *walk;
    struct mask_key key;
    uint32_t place;  /* in claims, or NO_PLACE */
    uint32_t maker;  /* the row that makes its mask */
    uint32_t number; /* of the mask that it makes */
    uint32_t none;   /* likewise */
    struct row_mask mask;
};

struct masks {
    struct team *team;
    uint32_t rows_max, vocab, words, n;
    _Atomic uint32_t n_made;
    _Atomic uint32_t *claims; /* [n_claims], a power of two: row + 1 of whoever makes the mask of a key; 0: free */
    uint32_t n_claims;
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
    for (m->n_claims = 16; m->n_claims < 2 * rows_max;)
        m->n_claims *= 2;
    m->claims = mem_array(m->n_claims, sizeof *m->claims);
    m->owns_room = room == NULL;
    m->room = room != NULL ? room : mem_array((size_t)rows_max * m->words, sizeof *m->room);
    enum err err = m->rows != NULL && m->room != NULL && m->claims != NULL
                       ? OK
                       : FAIL(e, ERR_NOMEM, "no memory for %u masks", rows_max);
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
    mem_free(m->claims);
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
    for (uint32_t i = 0; i < m->n; i++)
        if (m->rows[i].place != NO_PLACE)
            atomic_store_explicit(&m->claims[m->rows[i].place], 0, memory_order_relaxed);
    m->n = 0;
    atomic_store_explicit(&m->n_made, 0, memory_order_relaxed);
}

uint32_t masks_add(struct masks *m, const struct slot_view *v, const struct grammar_walk *walk)
{
    assert(m->n < m->rows_max && v->request != NULL);
    m->rows[m->n].view = *v;
    m->rows[m->n].walk = walk;
    m->rows[m->n].place = NO_PLACE;
    return m->n++;
}

/* The row that makes the mask of this one's key: itself, when it is the first. */
static uint32_t claim(struct masks *m, uint32_t row)
{
    struct masks_row_job *j = &m->rows[row];
    for (uint64_t h = mask_key_hash(&j->key);; h++) {
        const uint32_t at = (uint32_t)h & (m->n_claims - 1);
        uint32_t first = 0;
        if (atomic_compare_exchange_strong_explicit(
                &m->claims[at], &first, row + 1, memory_order_acq_rel, memory_order_acquire)) {
            j->place = at;
            return row;
        }
        if (mask_key_same(&m->rows[first - 1].key, &j->key))
            return first - 1;
    }
}

static void make_row(void *ctx, uint32_t row, uint32_t worker)
{
    struct masks *m = ctx;
    struct masks_row_job *j = &m->rows[row];
    j->maker = choose_mask_key(&j->view, j->walk, m->vocab, &j->key) ? claim(m, row) : row;
    if (j->maker == row) {
        j->number = atomic_fetch_add_explicit(&m->n_made, 1, memory_order_relaxed);
        j->mask = choose_mask(&j->view, j->walk, m->room + (size_t)j->number * m->words, m->vocab);
        j->none = choose_none(&j->view, j->walk, j->mask, m->vocab);
    }
    if (m->watch != NULL)
        m->watch(m->watch_ctx, row, worker);
}

void masks_start(struct masks *m)
{
    team_start_others(m->team, m->n, make_row, m);
}

void masks_join(struct masks *m)
{
    team_join(m->team);
}

uint64_t masks_wait(struct masks *m)
{
    return team_join_late(m->team, MASK_WAIT_NS);
}

struct row_mask masks_row(const struct masks *m, uint32_t row)
{
    assert(row < m->n);
    return m->rows[m->rows[row].maker].mask;
}

uint32_t masks_none(const struct masks *m, uint32_t row)
{
    assert(row < m->n);
    const struct masks_row_job *j = &m->rows[row], *maker = &m->rows[j->maker];
    return maker == j ? j->none : choose_none(&j->view, j->walk, maker->mask, m->vocab);
}

uint32_t masks_number(const struct masks *m, uint32_t row)
{
    assert(row < m->n);
    return m->rows[m->rows[row].maker].number;
}

uint32_t masks_put(struct masks *m, const uint64_t *bits)
{
    const uint32_t number = atomic_fetch_add_explicit(&m->n_made, 1, memory_order_relaxed);
    assert(number < m->rows_max);
    memcpy(m->room + (size_t)number * m->words, bits, m->words * sizeof *bits);
    return number;
}

uint32_t masks_count(const struct masks *m)
{
    return atomic_load_explicit(&m->n_made, memory_order_relaxed);
}

struct team *masks_team(struct masks *m)
{
    return m->team;
}
