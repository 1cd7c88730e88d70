/* Whole steps of 3 to 32 rows as one kernel, emulated: decoder layers against float64, and phases without norms against
 * the kernels of the ops, bit for bit. */
#include "testing_layer.h"

#include "cuda/even.cuh"

#define ALIGNMENT RESIDENT_SEVERAL_ALIGN

static struct dev device;

static const format_case bf16 = {FORMAT_BF16, DTYPE_BF16, "bf16", 0.0};

struct step : layer_step {
    aligned<float> rows_room;

    step(const shape &c, uint32_t n_layers)
        : layer_step(c, n_layers), rows_room(resident_several_room(c.hidden) / 4 + 1)
    {
    }

    /* Phases as resident.cu collects them, and the kernel. Without norms gate and up have rows of their own. */
    void run(bool has_norms)
    {
        std::vector<struct phase> phases;
        const auto add = [&](const struct skinny_job &j, const std::vector<float> *gain) {
            struct phase p = {};
            p.kind = PHASE_PRODUCT;
            p.format = FORMAT_BF16;
            p.job = j;
            if (gain != NULL && has_norms) {
                p.x = stream.p;
                p.gain = gain->data();
                p.eps = EPS;
                p.maker = (uint32_t)phases.size() - 1;
            }
            phases.push_back(p);
        };
        std::copy(x.begin(), x.end(), stream.p);
        make_plan(device, resident_several_cut);
        for (layer &l : layers) {
            add(qkv_job(l), &l == &layers[0] ? NULL : &l.gain_qkv);
            struct phase p = {};
            p.kind = PHASE_ATTEND;
            p.attend = attend_job(l);
            phases.push_back(p);
            add(product(SKINNY_ADD, l.o, attended.p, s.hidden, s.width(), stream.p), NULL);
            add(glu_job(l), &l.gain_mlp);
            add(product(SKINNY_ADD, l.down, gated.p, s.hidden, s.inter, stream.p), NULL);
        }
        aligned<unsigned char> program(phases.size() * resident_several_bytes() + ALIGNMENT);
        void *made = (void *)(((uintptr_t)program.p + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        expect(resident_several_program(&device, phases.data(), (uint32_t)phases.size(), rows_room.p, made),
            "a program is made");
        const uint16_t *early = act.bits.p;
        const size_t n_early = act.values.size();
        emulated_is_young = [=](const void *p) { return p >= early && p < early + n_early; };
        resident_run_several(&device, s.rows(), s.head_dim, made, (uint32_t)phases.size(), 1, barrier.p);
        emulated_is_young = nullptr;
        bool is_left = barrier.p[0] != 0;
        for (size_t i = 0; i < arrived.n; i++)
            is_left = is_left || arrived.p[i] != 0;
        for (size_t i = 0; i < device.even_parts_bytes / sizeof(float); i++)
            is_left = is_left || device.even_parts[i] != 0.0f;
        expect(!is_left, s.name() + ": counters and sums between blocks are zero again");
    }

    /* The same without norms, a kernel each. */
    void run_ops()
    {
        std::copy(x.begin(), x.end(), stream.p);
        const struct batch b = make_plan(device, resident_several_cut);
        for (layer &l : layers) {
            const struct skinny_job qkv = qkv_job(l), glu = glu_job(l);
            const struct attend_job j = attend_job(l);
            const struct skinny_job o = product(SKINNY_ADD, l.o, attended.p, s.hidden, s.width(), stream.p);
            const struct skinny_job down = product(SKINNY_ADD, l.down, gated.p, s.hidden, s.inter, stream.p);
            cuda_even(&device, FORMAT_BF16, &qkv);
            attend_team(&device, &b, &j, true);
            cuda_even(&device, FORMAT_BF16, &o);
            cuda_even(&device, FORMAT_BF16, &glu);
            cuda_even(&device, FORMAT_BF16, &down);
        }
    }
};

/* ---- checks --------------------------------------------------------------------------------------------------------
 */

/* What the layers added, and what they put into the caches, as far as it is from float64. spoil: before the kernel. */
template <class Spoil> static double distance(const shape &s, uint32_t n_layers, Spoil &&spoil)
{
    step t(s, n_layers), u = t;
    reference(u, true);
    spoil(t);
    t.run(true);
    std::vector<float> want = u.left(), got = t.left();
    for (size_t i = 0; i < t.x.size(); i++) {
        want[i] -= t.x[i];
        got[i] -= t.x[i];
    }
    return distance_of(got.data(), want.data(), want.size());
}

/* How many of a layer's four products are cut so that every tile has blocks of its own. */
static uint32_t n_shared(const shape &s)
{
    step t(s, 1);
    const layer &l = t.layers[0];
    const struct skinny_job jobs[] = {t.qkv_job(t.layers[0]), t.glu_job(l),
        t.product(SKINNY_ADD, l.o, t.attended.p, s.hidden, s.width(), t.stream.p),
        t.product(SKINNY_ADD, l.down, t.gated.p, s.hidden, s.inter, t.stream.p)};
    uint32_t n = 0;
    device.n_sms = s.n_sms;
    for (const struct skinny_job &j : jobs) {
        struct even_job f;
        n += even_describe(&device, &j, &f) && f.is_shared;
    }
    return n;
}

static const double bound = 5e-3; /* rows and weights of attention are rounded to 8 bits */

static void check_near(const shape &s)
{
    const double far = distance(s, 2, [](step &) {});
    expect(far < bound, s.name() + ": " + std::to_string(far));
}

/* Phases without norms give the bits of the ops. */
static void check_bits(const shape &s)
{
    step ops(s, 2), once = ops;
    ops.run_ops();
    once.run(false);
    const std::vector<float> got = once.left(), want = ops.left();
    expect(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0, s.name() + ": bits of the ops");
    expect(std::memcmp(once.attended.p, ops.attended.p, 2 * ops.attended.n) == 0 &&
               std::memcmp(once.gated.p, ops.gated.p, 2 * ops.gated.n) == 0,
        s.name() + ": bits of the ops on the way");
}

/* Whoever comes first, and whoever comes last: a block, a warp, or a lane or all but one of it. */
static void check_order(const shape &s)
{
    const step first(s, 2);
    step once = first;
    once.run(true);
    const std::vector<float> want = once.left();
    const auto check = [&](const std::string &who) {
        step again = first;
        again.run(true);
        const std::vector<float> got = again.left();
        expect(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0, s.name() + ": " + who);
    };
    emulated_is_backwards = true;
    check("the last comes first");
    emulated_is_backwards = false;
    for (uint32_t i = 0; i < 24; i++) {
        emulated_lags = [=] { return threadIdx.x / 32 == i / 2 && (threadIdx.x % 32 == 0) == (i % 2 == 0); };
        check("lanes of warp " + std::to_string(i / 2) + " come last");
    }
    for (uint32_t i = 0; i < s.n_sms; i++) {
        emulated_lags = [=] { return blockIdx.x == i || threadIdx.x == EVEN_THREADS + 96; };
        check("block " + std::to_string(i) + " comes last, and who tells the others clears late");
    }
    emulated_lags = nullptr;
}

static void check_planted(const shape &s)
{
    const auto nothing = [](step &) {};
    const struct {
        const char *what;
        uint32_t first, end; /* threads that do not wait at barriers */
    } hurries[] = {{"who multiplies does not wait", 0, EVEN_THREADS},
        {"weights take a place that is not free", EVEN_THREADS, EVEN_THREADS + 1},
        {"activations take a place that is not free", EVEN_THREADS + 32, EVEN_THREADS + 33},
        {"norms are made of squares that are not there", EVEN_THREADS + 64, EVEN_THREADS + 96},
        {"a block says that it is through before it is", EVEN_THREADS + 96, EVEN_THREADS + 128}};
    expect_sound([&] { return distance(s, 2, nothing) < bound; });
    for (const auto &h : hurries)
        expect_found(h.what, [&] {
            emulated_hurries = [&] { return threadIdx.x >= h.first && threadIdx.x < h.end; };
            return distance(s, 2, nothing) < bound;
        });
    expect_found("a phase opens before all are through with the one before",
        [&] { return distance(s, 2, [](step &t) { t.barrier.p[0] = 1; }) < bound; });
    expect_found("a sum was left", [&] {
        device.even_parts[5] = 1.0f;
        return distance(s, 2, nothing) < bound;
    });
    expect_found("a block of the table is another's",
        [&] { return distance(s, 2, [](step &t) { t.table[t.seqs[1].table_at] = t.table[0]; }) < bound; });
    expect_found("a gain is another's", [&] {
        return distance(s, 2, [](step &t) { std::swap(t.layers[1].gain_qkv[3], t.layers[1].gain_qkv[200]); }) < bound;
    });
}

static const std::vector<format_case> all_bf16(4, bf16);

static std::vector<uint32_t> contexts(uint32_t n, std::vector<uint32_t> first)
{
    while (first.size() < n)
        first.push_back(1 + (uint32_t)first.size() * 37 % 90);
    return first;
}

int main()
{
    device.capability = 90;
    const shape shapes[] = {
        {6, 256, 640, 4, 2, 128, 16, 0, ROPE_HALVES, contexts(5, {1, 40, 17, 300, 64}), all_bf16, true},
        {3, 256, 640, 4, 1, 128, 32, 0, ROPE_PAIRS, contexts(12, {900, 16, 33, 5}), all_bf16, true},
        {7, 384, 520, 4, 2, 128, 16, 48, ROPE_HALVES, contexts(32, {2, 100, 500}), all_bf16, true},
        {5, 256, 384, 8, 2, 64, 16, 0, ROPE_HALVES, contexts(3, {1950, 7, 30}), all_bf16, true},
        {6, 320, 512, 8, 1, 64, 48, 0, ROPE_PAIRS, contexts(16, {400, 97}), all_bf16, true},
        {4, 128, 1032, 4, 4, 64, 16, 0, ROPE_HALVES, contexts(25, {150}), all_bf16, true},
    };
    uint32_t shared = 0;
    for (const shape &s : shapes) {
        shared += n_shared(s);
        check_near(s);
        check_bits(s);
    }
    expect(shared > 6 && shared < 18, "tiles are shared in all ways: " + std::to_string(shared));
    check_order({5, 256, 576, 4, 2, 128, 16, 0, ROPE_HALVES, contexts(18, {40, 100}), all_bf16, true});
    check_order({2, 384, 256, 2, 1, 128, 16, 0, ROPE_HALVES, contexts(6, {70}), all_bf16, true});
    check_order({6, 256, 512, 2, 1, 128, 16, 0, ROPE_HALVES, contexts(6, {70}), all_bf16, true});
    check_planted(shapes[1]);
    return verdict("several");
}
