/* Collecting the phases of a resident step; see resident.h. Host code.
 *
 * A norm is written down as pending and becomes part of every product that reads it; with more than two rows the first
 * of a step is launched before the kernel. Should the collection be closed while one is pending, it is launched behind
 * the kernel, for whoever reads it then. */
extern "C" {
#include "base/mem.h"
}
#include "cuda/resident.h"

#define SHARED_MOST  ((size_t)227 << 10) /* of a block, on compute capability 9.0 */
#define SHARED_FIXED ((size_t)3 << 10)   /* what the kernels declare themselves */
#define SHARED_SUMS  ((size_t)RESIDENT_SUMS * 16 * sizeof(float))

enum state {
    STATE_OFF,  /* nothing is collected */
    STATE_OPEN, /* ops are written down */
    STATE_DONE, /* the kernel of this recording was launched */
};

struct resident {
    enum state state;
    bool refused, several_refused; /* the model has something that is not for us: few rows; more */
    struct phase phases[RESIDENT_PHASES];
    uint32_t n, phases_max;
    enum resident_set set;
    uint32_t slot_bytes, room_bytes, rows, next_product;
    uint32_t first_attend;   /* n or more = none yet */
    struct norm_args norm;   /* pending when its out is not NULL */
    unsigned char *programs; /* a place for each slot of the graphs */
    size_t programs_bytes, place_bytes;
    void *program;    /* of this recording: its place, */
    const void *from; /* what is to be sent there, */
    size_t bytes;     /* and how much; 0 = nothing */
    void *made;       /* host: a program of RESIDENT_SEVERAL */
    uint32_t *barrier;
    void *normed; /* rows to be normalised, and their squares: as wide in every recording, since graphs keep it */
    size_t barrier_bytes, normed_bytes;
};

static bool is_allowed = true;

extern "C" void cuda_allow_resident(bool allow)
{
    is_allowed = allow;
}

bool resident_is_allowed(void)
{
    return is_allowed;
}

static bool is_several(const struct resident *r)
{
    return r->set == RESIDENT_SEVERAL;
}

static bool *refused_of(struct resident *r)
{
    return is_several(r) ? &r->several_refused : &r->refused;
}

/* Places for programs: in a layer eight phases at most, when no two of its matrices lie together. */
bool resident_rooms(struct dev *d, const struct step_sizes *s)
{
    if (d->resident == NULL)
        d->resident = (struct resident *)mem_zalloc(sizeof *d->resident);
    struct resident *r = d->resident;
    if (r == NULL)
        return false;
    r->phases_max = (uint32_t)MIN(8 * (uint64_t)s->n_layers + 1, (uint64_t)RESIDENT_PHASES);
    const size_t align = RESIDENT_SEVERAL_ALIGN, each = MAX(sizeof(struct phase), resident_several_bytes());
    r->place_bytes = (r->phases_max * each + align - 1) / align * align;
    if (r->made == NULL && !d->is_counting)
        r->made = mem_aligned(align, r->place_bytes);
    return (d->is_counting || r->made != NULL) &&
           cuda_room(d, (void **)&r->programs, &r->programs_bytes, GRAPHS_MAX * r->place_bytes) != NULL &&
           cuda_room(d, (void **)&r->barrier, &r->barrier_bytes, 256) != NULL &&
           (s->hidden == 0 || cuda_room(d, &r->normed, &r->normed_bytes, resident_several_room(s->hidden)) != NULL);
}

void resident_begin(struct dev *d, uint32_t n_rows)
{
    struct step_sizes unknown = {}; /* of a device that is used without rooms_make */
    unknown.n_layers = RESIDENT_PHASES;
    if ((d->resident == NULL || d->resident->programs == NULL) && !resident_rooms(d, &unknown))
        return;
    struct resident *r = d->resident;
    r->set = n_rows <= RESIDENT_ROWS ? RESIDENT_SETS : RESIDENT_SEVERAL;
    if (*refused_of(r) || n_rows > EVEN_MOST || d->capability < 90 || !is_allowed ||
        (d->deterministic && (is_several(r) || !d->chained)))
        return;
    r->state = STATE_OPEN;
    r->n = r->slot_bytes = r->room_bytes = 0;
    r->first_attend = RESIDENT_PHASES;
    r->rows = n_rows;
    r->norm.out = NULL;
    r->program = r->programs + d->slot * r->place_bytes;
    r->bytes = 0;
    d->is_collecting = true;
}

bool resident_end(struct dev *d)
{
    struct resident *r = d->resident;
    if (r == NULL || r->state == STATE_OFF)
        return true;
    resident_flush(d);
    d->is_collecting = false;
    r->state = STATE_OFF;
    return !*refused_of(r);
}

/* In stream order: whoever read what lay there before is done by then. */
void resident_send(struct dev *d)
{
    struct resident *r = d->resident;
    if (r == NULL || r->bytes == 0)
        return;
    cuda_write(d, r->program, r->from, r->bytes);
    if (is_several(r))
        resident_several_accept(d, r->program, r->n);
    r->bytes = 0;
}

void resident_free(struct dev *d)
{
    if (d->resident != NULL) {
        cudaFree(d->resident->barrier);
        cudaFree(d->resident->normed);
        cudaFree(d->resident->programs);
        mem_free(d->resident->made);
    }
    mem_free(d->resident);
}

/* The op goes its own way: what was collected is launched before it. */
static bool refuse(struct dev *d)
{
    resident_flush(d);
    d->is_collecting = false;
    *refused_of(d->resident) = true;
    return false;
}

static bool is_open(struct dev *d)
{
    if (d->resident != NULL && d->resident->state == STATE_DONE)
        *refused_of(d->resident) = true; /* something in the middle of the step was not for us */
    return d->is_collecting;
}

static bool is_chain(enum resident_set set)
{
    return set == RESIDENT_CHAIN_BF16 || set == RESIDENT_CHAIN_F16;
}

static enum resident_set set_of(const struct dev *d, enum format f, uint32_t n_in)
{
    if (d->deterministic)
        return !flow_has(d, f, n_in) ? RESIDENT_SETS : f == FORMAT_BF16 ? RESIDENT_CHAIN_BF16 : RESIDENT_CHAIN_F16;
    switch (f) {
    case FORMAT_BF16: return RESIDENT_BF16;
    case FORMAT_F16: return RESIDENT_F16;
    case FORMAT_F8: return RESIDENT_F8;
    case FORMAT_Q8:
    case FORMAT_Q4:
    case FORMAT_Q4K:
    case FORMAT_Q6K: return RESIDENT_QUANT;
    default: return RESIDENT_SETS;
    }
}

/* What a kernel has beside its ring and what it declares. */
static size_t rest_bytes(enum resident_set set, uint32_t room_bytes)
{
    return room_bytes + (is_chain(set) ? 0 : SHARED_SUMS);
}

/* Slots of so many bytes beside a room. */
static uint32_t slots_beside(enum resident_set set, uint32_t slot_bytes, uint32_t room_bytes)
{
    const size_t rest = SHARED_FIXED + rest_bytes(set, room_bytes);
    const size_t n = rest < SHARED_MOST ? (SHARED_MOST - rest) / slot_bytes : 0;
    return n < resident_warps(set) ? 0 : (uint32_t)MIN(n, (size_t)RESIDENT_SLOTS);
}

static bool has_shape(uint32_t n_in, uint32_t row_bytes, uint32_t n_rows)
{
    return resident_width(n_in) / RESIDENT_PAD * n_rows <= RESIDENT_SUMS && n_in % 64 == 0 && row_bytes % 16 == 0;
}

static bool has_heads(const struct dev *d, const struct attend_job *j, bool several)
{
    return (j->head_dim == 64 || j->head_dim == 128) && j->per_kv <= RESIDENT_HEADS &&
           (j->dtype == DTYPE_BF16 || (j->dtype == DTYPE_F16 && !several)) &&
           (!d->deterministic || attend_has_chunks(d, j));
}

/* As the three would find it, without their arguments. */
void resident_takes(const struct dev *d, const struct describe_args *a, bool *few, bool *several)
{
    struct attend_job j = {};
    j.head_dim = a->head_dim;
    j.per_kv = a->n_heads / a->n_kv_heads;
    j.dtype = a->layer->dtype;
    const bool may = is_allowed && d->capability >= 90 && a->is_plain && a->gate != NULL;
    *few = may && (!d->deterministic || d->chained) && has_heads(d, &j, false);
    *several = may && !d->deterministic && has_heads(d, &j, true) && even_has_heads(a->head_dim, a->rope_dims, a->rope);
    const struct weight *const all[] = {a->q, a->o, a->gate, a->down, a->head};
    for (size_t i = 0; may && i < COUNT_OF(all); i++) {
        const struct matrix *m = matrix_of(all[i]);
        const enum resident_set set = set_of(d, m->format, m->n_in),
                                first = set_of(d, matrix_of(a->q)->format, m->n_in);
        const uint32_t room = RESIDENT_ROWS * resident_row_bytes(set, m->n_in);
        *few = *few && set != RESIDENT_SETS && set == first && has_shape(m->n_in, m->row_bytes, RESIDENT_ROWS) &&
               slots_beside(set, resident_slot_bytes(m->format), room) > 0;
        *several =
            *several && (all[i] == a->head || (m->format == FORMAT_BF16 && even_has(d, m->format, m->n_out, m->n_in)));
    }
}

bool resident_norm(struct dev *d, const struct norm_args *a)
{
    if (!is_open(d))
        return false;
    struct resident *r = d->resident;
    if (a->n % 4 != 0 || r->norm.out != NULL)
        return refuse(d);
    r->norm = *a;
    return true;
}

void resident_norm_read(struct dev *d)
{
    if (d->is_collecting)
        d->resident->norm.out = NULL;
}

/* One more phase. A norm that was pending is part of it, or was before; where it adds, the rows change. */
static struct phase *add_product(
    struct resident *r, enum format format, const struct skinny_job *j, const struct acts *in)
{
    struct phase *p = &r->phases[r->n++];
    *p = {};
    p->kind = PHASE_PRODUCT;
    p->format = format;
    p->job = *j;
    if (r->norm.out == in) {
        p->x = r->norm.x;
        p->gain = r->norm.gain;
        p->rows = r->norm.rows;
        p->eps = r->norm.eps;
    }
    if (j->end == SKINNY_ADD)
        r->norm.out = NULL;
    return p;
}

/* resident_product for RESIDENT_SEVERAL. The first norm of a step goes before the kernel, the last product behind it.
 */
static bool several_product(struct dev *d, enum format format, const struct skinny_job *j, const struct acts *in)
{
    struct resident *r = d->resident;
    const struct skinny_heads *h = &j->heads;
    if (j->end == SKINNY_STORE) {
        resident_flush(d);
        return false;
    }
    const bool adds_again = j->end == SKINNY_ADD && r->n > 0 && r->phases[r->n - 1].kind == PHASE_PRODUCT &&
                            r->phases[r->n - 1].job.end == SKINNY_ADD; /* which reads what is added to too early */
    if (format != FORMAT_BF16 || !even_has(d, format, j->n_out, j->n_in) || r->n == r->phases_max || adds_again ||
        j->groups != NULL || j->n_rows != r->rows || !skinny_is_near(j) ||
        (j->end == SKINNY_QKV && !even_has_heads(h->head_dim, h->rope_dims, h->rope)))
        return refuse(d);
    const bool is_normed = r->norm.out == in;
    uint32_t maker = r->n;
    while (is_normed && maker > 0 &&
           (r->phases[maker - 1].kind != PHASE_PRODUCT || r->phases[maker - 1].job.end != SKINNY_ADD))
        maker--;
    if (is_normed && r->n == 0) {
        const struct norm_args first = r->norm;
        r->norm.out = NULL;
        cuda_norm_now(d, &first);
    } else if (is_normed && (maker == 0 || r->norm.rows != NULL || r->phases[maker - 1].job.out != r->norm.x ||
                                r->phases[maker - 1].job.n_out != j->n_in || r->phases[maker - 1].job.ldc != j->n_in))
        return refuse(d);
    struct phase *p = add_product(r, format, j, in);
    if (p->x != NULL)
        p->maker = maker - 1;
    return true;
}

bool resident_product(struct dev *d, enum format format, const struct skinny_job *j, const struct acts *in)
{
    if (!is_open(d))
        return false;
    struct resident *r = d->resident;
    if (is_several(r))
        return several_product(d, format, j, in);
    const enum resident_set set = set_of(d, format, j->n_in);
    if (set == RESIDENT_SETS || (r->set != RESIDENT_SETS && r->set != set) || r->n == r->phases_max ||
        j->groups != NULL || !has_shape(j->n_in, j->row_bytes, j->n_rows) || j->n_rows > r->rows)
        return refuse(d);
    const uint32_t room = MAX(r->room_bytes, j->n_rows * resident_row_bytes(set, j->n_in));
    const uint32_t slot = MAX(r->slot_bytes, resident_slot_bytes(format));
    if (slots_beside(set, slot, room) == 0)
        return refuse(d);
    r->set = set;
    r->room_bytes = room;
    r->slot_bytes = slot;
    struct phase *p = add_product(r, format, j, in);
    p->is_end_steady = r->n < 2 || p[-1].kind != PHASE_PRODUCT || p[-1].job.end != SKINNY_ADD || j->end != SKINNY_ADD;
    return true;
}

/* Where the activations lie attention needs room too. */
static bool has_attend_room(struct resident *r, const struct attend_job *j)
{
    const uint32_t floats = resident_warps(r->set) * (j->per_kv * j->head_dim + RESIDENT_HEADS * 2);
    const uint32_t bytes = is_chain(r->set) ? resident_chain_room() : floats * (uint32_t)sizeof(float);
    const uint32_t room = MAX(r->room_bytes, bytes);
    if (slots_beside(r->set, r->slot_bytes, room) == 0)
        return false;
    r->room_bytes = room;
    return true;
}

bool resident_attend(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    if (!is_open(d))
        return false;
    struct resident *r = d->resident;
    const struct attend_job *first = r->first_attend < r->n ? &r->phases[r->first_attend].attend : j;
    const bool fits = j->per_kv == first->per_kv && j->n_kv_heads == first->n_kv_heads && /* one plan for all */
                      has_heads(d, j, is_several(r)) && b->n_rows == b->n_seqs && r->n > 0 && r->n < r->phases_max &&
                      r->phases[r->n - 1].kind == PHASE_PRODUCT && (!is_several(r) || j->head_dim == first->head_dim);
    if (!fits)
        return refuse(d);
    if (!is_several(r) && !has_attend_room(r, j))
        return refuse(d);
    struct phase *p = &r->phases[r->n++];
    *p = {};
    r->first_attend = MIN(r->first_attend, r->n - 1);
    p->kind = PHASE_ATTEND;
    p->attend = *j;
    return true;
}

struct cut resident_cut(const struct dev *d, const struct attend_job *j)
{
    const struct resident *r = d->resident;
    if (is_several(r))
        return resident_several_cut(d, j);
    /* positions that a block's warps take at once, a group of 16 each */
    return {d->n_sms, j->n_kv_heads, 16 * resident_warps(r->set), PACK / j->per_kv};
}

/* What is to be in this recording's place when it is launched. */
static void place(struct resident *r, const void *from, size_t bytes)
{
    assert(bytes <= r->place_bytes);
    r->from = from;
    r->bytes = bytes;
}

static void run_several(struct dev *d, struct resident *r)
{
    uint32_t width = 0;
    for (uint32_t i = 0; i < r->n; i++)
        width = MAX(width, r->phases[i].x != NULL ? r->phases[i].job.n_in : 0);
    if ((width != 0 && cuda_room(d, &r->normed, &r->normed_bytes, resident_several_room(width)) == NULL) ||
        !resident_several_program(d, r->phases, r->n, r->normed, r->made))
        return;
    place(r, r->made, r->n * resident_several_bytes());
    resident_run_several(d, r->rows, r->first_attend < r->n ? r->phases[r->first_attend].attend.head_dim : 128,
        r->program, r->n, r->first_attend, r->barrier);
}

static void run_few(struct dev *d, struct resident *r)
{
    place(r, r->phases, r->n * sizeof(struct phase));
    const uint32_t n_slots = slots_beside(r->set, r->slot_bytes, r->room_bytes);
    const struct resident_args a = {(const struct phase *)r->program, r->n, r->next_product, r->first_attend, r->rows,
        n_slots, r->slot_bytes, r->room_bytes, r->barrier};
    const size_t shared = (size_t)n_slots * r->slot_bytes + rest_bytes(r->set, r->room_bytes);
    switch (r->set) {
    case RESIDENT_F8: resident_run_bytes(d, shared, &a); break;
    case RESIDENT_QUANT: resident_run_quant(d, shared, &a); break;
    case RESIDENT_CHAIN_BF16:
    case RESIDENT_CHAIN_F16: resident_run_chain(d, r->set, shared, &a); break;
    default: resident_run_plain(d, r->set, shared, &a); break;
    }
}

void resident_flush(struct dev *d)
{
    struct resident *r = d->resident;
    if (!d->is_collecting || (r->n == 0 && r->norm.out == NULL)) /* what comes before the first layer may come */
        return;
    d->is_collecting = false;
    r->state = STATE_DONE;
    r->next_product = r->n;
    for (uint32_t i = r->n; i-- > 0;) {
        r->phases[i].next_product = r->next_product;
        r->next_product = r->phases[i].kind == PHASE_PRODUCT ? i : r->next_product;
    }
    if (r->next_product < r->n && is_several(r))
        run_several(d, r);
    else if (r->next_product < r->n)
        run_few(d, r);
    if (r->norm.out != NULL) {
        const struct norm_args left = r->norm;
        r->norm.out = NULL;
        cuda_norm_now(d, &left);
    }
}
