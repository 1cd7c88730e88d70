/* See testing_device.h. */
#include "engine/testing_device.h"

#include "cpu/cpu.h"
#include "testing_asks.h"

#define SIDE_BYTES ((size_t)1 << 18)

static unsigned char sides[2][SIDE_BYTES];
static struct sampler *sampler; /* of one vocabulary, made when it is first needed */
static uint32_t sampler_vocab;
static struct ops table;

/* ---- what is in flight: of one device at a time ---- */

static struct dev *flying;

static void embed(struct dev *d, const struct batch *b, const struct embed_args *a)
{
    assert_true(flying == NULL || flying == d);
    flying = d;
    cpu_ops()->embed(d, b, a);
}

static void landed(const struct dev *d)
{
    flying = flying == d ? NULL : flying;
}

static void read(struct dev *d, void *to, const void *from, size_t bytes)
{
    landed(d);
    cpu_ops()->dev_read(d, to, from, bytes);
}

/* ---- choosing ---- */

static struct sampler *sampler_of(uint32_t vocab)
{
    struct error e;
    if (sampler != NULL && sampler_vocab != vocab) {
        sampler_free(sampler);
        sampler = NULL;
    }
    if (sampler == NULL)
        assert_ok(e, sampler_new(vocab, &sampler, &e));
    sampler_vocab = vocab;
    return sampler;
}

static void sample(struct dev *d, const struct sample_args *a)
{
    (void)d;
    for (uint32_t i = 0; i < a->n_asks; i++) {
        ask_here(sampler_of(a->n), a, i, &a->out[i], a->top + (size_t)i * SAMPLE_TOP_MAX);
        a->chosen[a->asks[i].row] = a->out[i].id;
    }
}

static void tokens_take(struct dev *d, int32_t *token, uint32_t n_rows, const uint32_t *from, uint32_t n)
{
    (void)d;
    for (uint32_t i = 0; i < n_rows; i++)
        if (token[i] < 0) {
            const uint32_t id = from[-1 - token[i]];
            token[i] = id < n ? (int32_t)id : 0;
        }
}

/* ---- sides ---- */

static void fetch(struct dev *d, uint32_t side, const void *from, size_t bytes)
{
    (void)d;
    assert_true(bytes <= SIDE_BYTES);
    memset(sides[side], 0x5a, SIDE_BYTES); /* what nobody sent must not be read */
    memcpy(sides[side], from, bytes);
}

static enum err fetched(struct dev *d, uint32_t side, void *to, size_t bytes, struct error *e)
{
    if (bytes > 0)
        memcpy(to, sides[side], bytes);
    return table.dev_wait(d, e);
}

/* ---- steps as if they were recorded ---- */

static bool replay_nothing(struct dev *d, struct graph_key key)
{
    (void)d;
    (void)key;
    return false;
}

static void begin(struct dev *d, struct graph_key key)
{
    (void)d;
    (void)key;
}

static void end(struct dev *d)
{
    (void)d;
}

/* ---- a device that fails ---- */

static uint64_t waits_left = UINT64_MAX;

static enum err wait_and_fail(struct dev *d, struct error *e)
{
    landed(d);
    if (waits_left == 0)
        return FAIL(e, ERR_INTERNAL, "the GPU failed in a test: an illegal address");
    waits_left--;
    return cpu_ops()->dev_wait(d, e);
}

void device_fail_after(uint64_t n_waits)
{
    waits_left = n_waits;
}

bool device_flies(void)
{
    return flying != NULL;
}

const struct ops *device_ops(void)
{
    table = *cpu_ops();
    table.name = "cpu as a device";
    table.host_workers = NULL;
    table.host_run = NULL;
    table.embed = embed;
    table.dev_read = read;
    table.sample = sample;
    table.tokens_take = tokens_take;
    table.fetch = fetch;
    table.fetched = fetched;
    table.graph_replay = replay_nothing;
    table.graph_begin = begin;
    table.graph_end = end;
    table.dev_wait = wait_and_fail;
    waits_left = UINT64_MAX;
    flying = NULL;
    return &table;
}
