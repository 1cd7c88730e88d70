/* Whole steps of one or two rows as one kernel, emulated: decoder layers and logits in every set of formats against
 * float64, in any order of blocks and warps; and the kernel of --deterministic against the bits of the ops. */
#include "testing_layer.h"

#define N_SLOTS 11 /* of the ring: few, so that it turns often */

static struct dev device; /* deterministic: the kernel whose sums are chains */

bool resident_norm(struct dev *, const struct norm_args *)
{
    return false;
}
struct ahead cuda_ahead(const struct dev *, uint64_t)
{
    return {NULL, 0};
}
bool cuda_f8_rows(const struct dev *, uint32_t)
{
    return false;
}

static const format_case BF16 = {FORMAT_BF16, DTYPE_BF16, "bf16", 4e-3}, F16 = {FORMAT_F16, DTYPE_F16, "f16", 6e-4},
                         F8 = {FORMAT_F8, DTYPE_F32, "f8", 6e-4}, Q8 = {FORMAT_Q8, DTYPE_Q8_0, "q8", 6e-4},
                         Q4 = {FORMAT_Q4, DTYPE_Q4_0, "q4", 6e-4}, Q4K = {FORMAT_Q4K, DTYPE_Q4_K, "q4k", 6e-4},
                         Q6K = {FORMAT_Q6K, DTYPE_Q6_K, "q6k", 6e-4};

static enum resident_set set_of(const shape &s)
{
    switch (s.formats[0].format) {
    case FORMAT_BF16: return device.deterministic ? RESIDENT_CHAIN_BF16 : RESIDENT_BF16;
    case FORMAT_F16: return device.deterministic ? RESIDENT_CHAIN_F16 : RESIDENT_F16;
    case FORMAT_F8: return RESIDENT_F8;
    default: return RESIDENT_QUANT;
    }
}

static struct cut cut_of(const struct dev *d, const struct attend_job *j)
{
    if (d->deterministic)
        return attend_cut(d, j);
    return {d->n_sms, j->n_kv_heads, 16 * resident_warps(RESIDENT_BF16), PACK / j->per_kv, 0};
}

struct step : layer_step {
    uint32_t n_vocab;
    packed head;
    std::vector<float> gain_head;
    aligned<float> logits;

    step(const shape &c, uint32_t n_layers)
        : layer_step(c, n_layers), n_vocab(200), head(make_matrix(c.formats[0], n_vocab, c.hidden)),
          gain_head(normals(c.hidden, 1.0f)), logits((size_t)c.rows() * n_vocab)
    {
    }

    /* Phases as resident.cu collects them, and the kernel. */
    void run()
    {
        std::vector<struct phase> phases;
        const enum resident_set set = set_of(s);
        uint32_t room_bytes =
            resident_warps(set) * (s.n_heads / s.n_kv_heads * s.head_dim + RESIDENT_HEADS * 2) * sizeof(float);
        uint32_t slot_bytes = 0;
        if (device.deterministic)
            room_bytes = std::max(room_bytes, resident_chain_room());
        const auto add = [&](enum format format, const struct skinny_job &j, const std::vector<float> *gain) {
            struct phase p = {};
            p.kind = PHASE_PRODUCT;
            p.format = format;
            p.job = j;
            p.is_end_steady = true; /* no product that adds is behind another */
            if (gain != NULL) {
                p.x = stream.p;
                p.gain = gain->data();
                p.eps = EPS;
                p.job.act = NULL;
            }
            room_bytes = std::max(room_bytes, j.n_rows * resident_row_bytes(set, j.n_in));
            slot_bytes = std::max(slot_bytes, resident_slot_bytes(format));
            phases.push_back(p);
        };
        std::copy(x.begin(), x.end(), stream.p);
        make_plan(device, cut_of);
        for (layer &l : layers) {
            add(s.formats[0].format, qkv_job(l), &l.gain_qkv);
            struct phase p = {};
            p.kind = PHASE_ATTEND;
            p.attend = attend_job(l);
            phases.push_back(p);
            add(s.formats[1].format, product(SKINNY_ADD, l.o, attended.p, s.hidden, s.width(), stream.p), NULL);
            add(s.formats[2].format, glu_job(l), &l.gain_mlp);
            add(s.formats[3].format, product(SKINNY_ADD, l.down, gated.p, s.hidden, s.inter, stream.p), NULL);
        }
        add(s.formats[0].format, product(SKINNY_STORE, head, NULL, n_vocab, s.hidden, logits.p), &gain_head);
        const uint32_t n = (uint32_t)phases.size();
        for (uint32_t i = n, next = n; i-- > 0;) {
            phases[i].next_product = next;
            next = phases[i].kind == PHASE_PRODUCT ? i : next;
        }
        const struct resident_args a = {phases.data(), n, 0, 1, s.rows(), N_SLOTS, slot_bytes, room_bytes, barrier.p};
        const size_t shared = (size_t)N_SLOTS * slot_bytes + room_bytes + (size_t)RESIDENT_SUMS * 16 * sizeof(float);
        if (device.deterministic)
            resident_run_chain(&device, set, shared, &a);
        else if (set == RESIDENT_QUANT)
            resident_run_quant(&device, shared, &a);
        else if (set == RESIDENT_F8)
            resident_run_bytes(&device, shared, &a);
        else
            resident_run_plain(&device, set, shared, &a);
        bool is_left = barrier.p[0] != 0;
        for (size_t i = 0; i < arrived.n; i++)
            is_left = is_left || arrived.p[i] != 0;
        expect(!is_left, s.name() + ": counters are zero again");
    }

    /* The same by the ops of --deterministic, a kernel each. */
    void run_ops()
    {
        const enum format format = s.formats[0].format;
        std::copy(x.begin(), x.end(), stream.p);
        make_plan(device, cut_of);
        const auto flow = [&](struct skinny_job j, const std::vector<float> *gain) {
            struct acts normed = {};
            normed.bf16 = normed.f16 = act.bits.p;
            const struct norm_args n = {stream.p, NULL, s.rows(), s.hidden, gain == NULL ? NULL : gain->data(), EPS,
                s.is_bf16 ? (uint32_t)ACT_BF16 : (uint32_t)ACT_F16, &normed};
            if (gain != NULL) {
                cuda_norm(&device, &n);
                j.act = act.bits.p;
            }
            cuda_flow(&device, format, &j);
        };
        for (layer &l : layers) {
            flow(qkv_job(l), &l.gain_qkv);
            const struct attend_job j = attend_job(l);
            attend_chunks(&device, &j);
            flow(product(SKINNY_ADD, l.o, attended.p, s.hidden, s.width(), stream.p), NULL);
            flow(glu_job(l), &l.gain_mlp);
            flow(product(SKINNY_ADD, l.down, gated.p, s.hidden, s.inter, stream.p), NULL);
        }
        flow(product(SKINNY_STORE, head, NULL, n_vocab, s.hidden, logits.p), &gain_head);
    }

    std::vector<float> all() const
    {
        std::vector<float> all = left();
        for (size_t i = 0; i < x.size(); i++)
            all[i] -= x[i];
        all.insert(all.end(), logits.p, logits.p + logits.n);
        return all;
    }
};

template <class Spoil> static double distance(const shape &s, Spoil &&spoil)
{
    step t(s, 2), u = t;
    std::vector<float> in;
    const std::vector<double> x = reference(u, false);
    const std::vector<double> by = norm(s.is_bf16, false, x, u.gain_head, in);
    const std::vector<double> logits = multiply(u.head, in, by, u.n_vocab, s.hidden);
    std::copy(logits.begin(), logits.end(), u.logits.p);
    spoil(t);
    t.run();
    const std::vector<float> want = u.all(), got = t.all();
    return distance_of(got.data(), want.data(), want.size());
}

static void check_near(const shape &s)
{
    const double far = distance(s, [](step &) {});
    expect(far < s.formats[0].bound, s.name() + ": " + std::to_string(far));
}

static void check_bits(const shape &s)
{
    step ops(s, 2), once = ops;
    ops.run_ops();
    once.run();
    const std::vector<float> want = ops.all(), got = once.all();
    expect(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0, s.name() + ": bits of the ops");
    expect(want.back() == want.back() && want.back() != got[0], "numbers are compared");
}

static void check_order(const shape &s)
{
    const step first(s, 2);
    step once = first;
    once.run();
    const std::vector<float> want = once.all();
    const auto check = [&](const std::string &who) {
        step again = first;
        again.run();
        const std::vector<float> got = again.all();
        expect(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0, s.name() + ": " + who);
    };
    emulated_is_backwards = true;
    check("the last comes first");
    emulated_is_backwards = false;
    for (uint32_t i = 0; i < 12; i++) {
        emulated_lags = [=] { return threadIdx.x / 32 == i; }; /* some kernels have fewer */
        check("warp " + std::to_string(i) + " comes last");
    }
    for (uint32_t i = 0; i < s.n_sms; i++) {
        emulated_lags = [=] { return blockIdx.x == i; };
        check("block " + std::to_string(i) + " comes last");
    }
    emulated_lags = nullptr;
}

static void check_planted(const shape &s)
{
    const double bound = s.formats[0].bound;
    const auto nothing = [](step &) {};
    expect_sound([&] { return distance(s, nothing) < bound; });
    expect_found(s.name() + ": who multiplies does not wait for weights", [&] {
        emulated_hurries = [] { return threadIdx.x < 256; };
        return distance(s, nothing) < bound;
    });
    expect_found(s.name() + ": a place of the ring is taken before it is free", [&] {
        emulated_hurries = [] { return threadIdx.x >= 256; };
        return distance(s, nothing) < bound;
    });
    expect_found(s.name() + ": a phase opens before all are through with the one before",
        [&] { return distance(s, [](step &t) { t.barrier.p[0] = 1; }) < bound; });
    expect_found(s.name() + ": a gain is another's", [&] {
        return distance(s, [](step &t) { std::swap(t.layers[1].gain_qkv[3], t.layers[1].gain_qkv[200]); }) < bound;
    });
    expect_found(s.name() + ": a row of weights is another's", [&] {
        const auto spoil = [](step &t) {
            packed &m = t.layers[1].o;
            std::memcpy(m.data.p + 6 * m.row_bytes, m.data.p + 5 * m.row_bytes, m.row_bytes);
        };
        return distance(s, spoil) < bound;
    });
}

int main()
{
    device.capability = 90;
    const std::vector<std::vector<format_case>> sets = {
        {BF16, BF16, BF16, BF16}, {F16, F16, F16, F16}, {F8, F8, F8, F8}, {Q8, Q4, Q6K, Q4K}, {Q4K, Q6K, Q4, Q8}};
    for (const auto &set : sets) {
        const bool is_bf16 = set[0].format == FORMAT_BF16;
        check_near({5, 512, 768, 4, 1, 128, 16, 0, ROPE_HALVES, {300}, set, is_bf16});
        check_near({1, 512, 1280, 8, 2, 64, 32, 40, ROPE_PAIRS, {700, 16}, set, is_bf16});
    }
    check_order({3, 256, 512, 4, 2, 64, 16, 0, ROPE_HALVES, {70, 33}, sets[0], true});
    check_order({4, 256, 512, 4, 2, 64, 16, 0, ROPE_HALVES, {170}, sets[3], false});
    check_planted({3, 256, 512, 4, 2, 64, 16, 0, ROPE_HALVES, {70, 33}, sets[0], true});
    check_planted({3, 256, 512, 4, 2, 64, 16, 0, ROPE_HALVES, {70}, sets[4], false});
    device.deterministic = device.chained = true;
    for (const auto &set : {sets[0], sets[1]}) {
        const bool is_bf16 = set[0].format == FORMAT_BF16;
        for (const shape &s : {shape{5, 512, 832, 4, 1, 128, 16, 0, ROPE_HALVES, {300}, set, is_bf16},
                 shape{3, 320, 512, 8, 2, 64, 32, 40, ROPE_PAIRS, {700, 16}, set, is_bf16}}) {
            check_near(s);
            check_bits(s);
        }
    }
    check_order({3, 256, 512, 4, 2, 64, 16, 0, ROPE_HALVES, {70, 300}, sets[0], true});
    check_planted({3, 256, 512, 4, 2, 64, 16, 0, ROPE_HALVES, {70, 33}, sets[0], true});
    return verdict("resident");
}
