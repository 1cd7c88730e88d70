/* Collecting the phases of a resident step; see resident.h. Host code.
 *
 * A norm is written down as pending and becomes part of every product that reads it. Should the collection be closed
 * while one is pending, it is launched behind the kernel, for whoever reads it then. */
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
    bool refused; /* the model has something that is not for us */
    struct phase phases[RESIDENT_PHASES];
    uint32_t n;
    enum resident_set set;
    uint32_t slot_bytes, room_bytes, rows, next_product;
    uint32_t first_attend; /* n or more = none yet */
    struct norm_args norm; /* pending when its out is not NULL */
    void *program;         /* of this recording; the graph takes it */
    uint32_t *barrier;
    size_t barrier_bytes;
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

void resident_begin(struct dev *d, uint32_t n_rows)
{
    if (d->resident == NULL)
        d->resident = (struct resident *)mem_zalloc(sizeof *d->resident);
    struct resident *r = d->resident;
    if (r == NULL || r->refused || n_rows > RESIDENT_ROWS || d->capability < 90 || !is_allowed ||
        (d->deterministic && !d->chained))
        return;
    r->state = STATE_OPEN;
    r->n = r->slot_bytes = r->room_bytes = 0;
    r->first_attend = RESIDENT_PHASES;
    r->rows = n_rows;
    r->set = RESIDENT_SETS;
    r->norm.out = NULL;
    r->program = NULL;
    d->is_collecting = true;
}

void *resident_end(struct dev *d, bool *keep)
{
    struct resident *r = d->resident;
    *keep = true;
    if (r == NULL || r->state == STATE_OFF)
        return NULL;
    resident_flush(d);
    d->is_collecting = false;
    r->state = STATE_OFF;
    *keep = !r->refused;
    return r->program;
}

void resident_free(struct dev *d)
{
    if (d->resident != NULL)
        cudaFree(d->resident->barrier);
    mem_free(d->resident);
}

/* The op goes its own way: what was collected is launched before it. */
static bool refuse(struct dev *d)
{
    resident_flush(d);
    d->is_collecting = false;
    d->resident->refused = true;
    return false;
}

static bool is_open(struct dev *d)
{
    if (d->resident != NULL && d->resident->state == STATE_DONE)
        d->resident->refused = true; /* something in the middle of the step was not for us */
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

bool resident_product(struct dev *d, enum format format, const struct skinny_job *j, const struct acts *in)
{
    if (!is_open(d))
        return false;
    struct resident *r = d->resident;
    const enum resident_set set = set_of(d, format, j->n_in);
    if (set == RESIDENT_SETS || (r->set != RESIDENT_SETS && r->set != set) || r->n == RESIDENT_PHASES ||
        j->groups != NULL || resident_width(j->n_in) / RESIDENT_PAD * j->n_rows > RESIDENT_SUMS || j->n_in % 64 != 0 ||
        j->row_bytes % 16 != 0 || j->n_rows > r->rows)
        return refuse(d);
    const uint32_t room = MAX(r->room_bytes, j->n_rows * resident_row_bytes(set, j->n_in));
    const uint32_t slot = MAX(r->slot_bytes, resident_slot_bytes(format));
    if (slots_beside(set, slot, room) == 0)
        return refuse(d);
    r->set = set;
    r->room_bytes = room;
    r->slot_bytes = slot;
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
    p->is_end_steady = r->n < 2 || p[-1].kind != PHASE_PRODUCT || p[-1].job.end != SKINNY_ADD || j->end != SKINNY_ADD;
    if (j->end == SKINNY_ADD) /* the rows that a norm was pending for have changed */
        r->norm.out = NULL;
    return true;
}

bool resident_attend(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    if (!is_open(d))
        return false;
    struct resident *r = d->resident;
    const struct attend_job *first = r->first_attend < r->n ? &r->phases[r->first_attend].attend : j;
    const bool fits = j->per_kv == first->per_kv && j->n_kv_heads == first->n_kv_heads && /* one plan for all */
                      (j->head_dim == 64 || j->head_dim == 128) && j->per_kv <= RESIDENT_HEADS &&
                      (j->dtype == DTYPE_F16 || j->dtype == DTYPE_BF16) && b->n_rows == b->n_seqs && r->n > 0 &&
                      r->n < RESIDENT_PHASES && r->phases[r->n - 1].kind == PHASE_PRODUCT &&
                      (!d->deterministic || attend_has_chunks(d, j));
    if (!fits)
        return refuse(d);
    const uint32_t floats = resident_warps(r->set) * (j->per_kv * j->head_dim + RESIDENT_HEADS * 2);
    const uint32_t bytes = is_chain(r->set) ? resident_chain_room() : floats * (uint32_t)sizeof(float);
    const uint32_t room = MAX(r->room_bytes, bytes);
    if (slots_beside(r->set, r->slot_bytes, room) == 0)
        return refuse(d);
    r->room_bytes = room;
    struct phase *p = &r->phases[r->n++];
    *p = {};
    r->first_attend = MIN(r->first_attend, r->n - 1);
    p->kind = PHASE_ATTEND;
    p->attend = *j;
    return true;
}

uint32_t resident_positions(const struct dev *d)
{
    return 16 * resident_warps(d->resident->set);
}

/* The phases to the device, beside the recording. */
static bool upload(struct dev *d, struct resident *r)
{
    size_t have = 0;
    void *program = NULL;
    const size_t bytes = r->n * sizeof(struct phase);
    if (cuda_room(d, &program, &have, bytes) == NULL ||
        cuda_room(d, (void **)&r->barrier, &r->barrier_bytes, 256) == NULL)
        return false;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaStream_t side = NULL;
    CUDA_DO(d, cudaThreadExchangeStreamCaptureMode(&mode));
    CUDA_DO(d, cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA_DO(d, cudaMemcpyAsync(program, r->phases, bytes, cudaMemcpyHostToDevice, side));
    CUDA_DO(d, cudaStreamSynchronize(side));
    CUDA_DO(d, cudaStreamDestroy(side));
    CUDA_DO(d, cudaThreadExchangeStreamCaptureMode(&mode));
    r->program = program;
    return true;
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
    if (r->next_product < r->n && upload(d, r)) {
        const uint32_t n_slots = slots_beside(r->set, r->slot_bytes, r->room_bytes);
        const struct resident_args a = {(const struct phase *)r->program, r->n, r->next_product, r->first_attend,
            r->rows, n_slots, r->slot_bytes, r->room_bytes, r->barrier};
        const size_t shared = (size_t)n_slots * r->slot_bytes + rest_bytes(r->set, r->room_bytes);
        switch (r->set) {
        case RESIDENT_F8: resident_run_bytes(d, shared, &a); break;
        case RESIDENT_QUANT: resident_run_quant(d, shared, &a); break;
        case RESIDENT_CHAIN_BF16:
        case RESIDENT_CHAIN_F16: resident_run_chain(d, r->set, shared, &a); break;
        default: resident_run_plain(d, r->set, shared, &a); break;
        }
    }
    if (r->norm.out != NULL) {
        const struct norm_args left = r->norm;
        r->norm.out = NULL;
        cuda_norm_now(d, &left);
    }
}
