/* Whole steps of 3 to 32 rows as one kernel, emulated: decoder layers against float64, and phases without norms against
 * the kernels of the ops, bit for bit. */
#include "testing_products.h"

#include "cuda/even.cuh"
#include "cuda/resident.h"

#define EPS       1e-5f
#define ALIGNMENT RESIDENT_SEVERAL_ALIGN

static struct dev device;

struct shape {
    uint32_t n_sms, hidden, inter, n_heads, n_kv_heads, head_dim, block_tokens, window;
    enum rope_style rope;
    std::vector<uint32_t> contexts; /* of each row, with itself */

    uint32_t rows() const
    {
        return (uint32_t)contexts.size();
    }
    uint32_t width() const
    {
        return n_heads * head_dim;
    }
    uint32_t qkv_rows() const
    {
        return (n_heads + 2 * n_kv_heads) * head_dim;
    }
    uint64_t block_bytes() const
    {
        return (uint64_t)2 * n_kv_heads * block_tokens * head_dim * 2;
    }
    std::string name() const
    {
        return std::to_string(rows()) + " rows, heads of " + std::to_string(head_dim) + ", " + std::to_string(n_sms) +
               " multiprocessors";
    }
};

static std::vector<float> normals(size_t n, float size)
{
    std::vector<float> x(n);
    for (float &v : x)
        v = random_normal() * size;
    return x;
}

struct layer {
    halves qkv, o, gate_up, down, cache;
    std::vector<float> gain_qkv, gain_mlp, bias;
    layer(const shape &s, uint32_t n_blocks)
        : qkv(make_matrix(true, s.qkv_rows(), s.hidden)), o(make_matrix(true, s.hidden, s.width())),
          gate_up(make_matrix(true, 2 * s.inter, s.hidden)), down(make_matrix(true, s.hidden, s.inter)),
          cache(true, n_blocks * s.block_bytes() / 2, 1.0f), gain_qkv(normals(s.hidden, 1.0f)),
          gain_mlp(normals(s.hidden, 1.0f)), bias(normals(s.qkv_rows(), 0.3f))
    {
    }
};

/* A step: what the host knows, and what lies in device memory. */
struct step {
    shape s;
    std::vector<struct batch_seq> seqs;
    std::vector<uint32_t> table, pos, slot;
    std::vector<layer> layers;
    std::vector<float> rope, x;
    halves act, act_mlp; /* the rows of the first product; and of gate and up where they are not normalised rows */
    /* What is computed. */
    aligned<float> stream, q, room, rows_room;
    aligned<uint16_t> attended, gated;
    aligned<unsigned char> plan;
    aligned<uint32_t> arrived, barrier;

    step(const shape &c, uint32_t n_layers)
        : s(c), rope(normals(2200 * c.head_dim, 0.7f)), x(normals((size_t)c.rows() * c.hidden, 1.0f)),
          act(true, (size_t)c.rows() * c.hidden, 1.0f), act_mlp(true, (size_t)c.rows() * c.hidden, 1.0f),
          stream(x.size()), q((size_t)c.rows() * c.width()), room((size_t)PARTS_MAX * c.n_heads * (c.head_dim + 2)),
          rows_room(resident_several_room(c.hidden) / 4 + 1), attended((size_t)c.rows() * c.width()),
          gated((size_t)c.rows() * c.inter), plan(plan_bytes(64)), arrived((size_t)64 * c.n_kv_heads + 2, 0),
          barrier(1, 0)
    {
        uint32_t n_blocks = 0;
        for (uint32_t r = 0; r < s.rows(); r++) {
            seqs.push_back({r, 1, s.contexts[r], n_blocks});
            n_blocks += blocks_of(r);
        }
        for (uint32_t i = 0; i < n_blocks; i++) /* tables lie backwards */
            table.push_back(n_blocks - 1 - i);
        for (uint32_t r = 0; r < s.rows(); r++) {
            const uint32_t p = s.contexts[r] - 1;
            pos.push_back(p);
            slot.push_back(table[seqs[r].table_at + p / s.block_tokens] * s.block_tokens + p % s.block_tokens);
        }
        for (uint32_t l = 0; l < n_layers; l++)
            layers.emplace_back(s, n_blocks);
        for (uint32_t r = 0; r < s.rows(); r++) { /* the step's own places and those behind are nobody's yet */
            for (uint32_t p = s.contexts[r] - 1; p < blocks_of(r) * s.block_tokens; p++)
                for (uint32_t h = 0; h < 2 * s.n_kv_heads; h++)
                    for (uint32_t i = 0; i < s.head_dim; i++)
                        for (layer &l : layers)
                            l.cache.put(true, at(r, p, h) + i, NAN);
        }
    }

    uint32_t blocks_of(uint32_t row) const
    {
        return (s.contexts[row] + s.block_tokens - 1) / s.block_tokens;
    }

    /* Where a position's head lies in a cache; heads of values are behind those of keys. */
    size_t at(uint32_t row, uint32_t p, uint32_t h) const
    {
        const size_t block = table[seqs[row].table_at + p / s.block_tokens];
        return block * (s.block_bytes() / 2) + ((size_t)h * s.block_tokens + p % s.block_tokens) * s.head_dim;
    }

    struct skinny_job product(
        enum skinny_end end, const halves &m, const void *in, uint32_t n_out, uint32_t n_in, float *out) const
    {
        struct skinny_job j = job_of(m, act, end, s.rows(), n_out, n_in);
        j.act = in;
        j.out = out;
        return j;
    }

    struct skinny_job qkv_job(layer &l) const
    {
        struct skinny_job j = product(SKINNY_QKV, l.qkv, act.bits.p, s.qkv_rows(), s.hidden, q.p);
        const float *bias = l.bias.data();
        j.ldc = s.width();
        j.heads = {s.n_heads, s.n_kv_heads, s.head_dim, s.head_dim, s.rope, rope.data(), pos.data(), slot.data(),
            (unsigned char *)l.cache.bits.p, s.block_bytes(), 0, s.block_bytes() / 2, s.block_tokens, s.head_dim * 2,
            DTYPE_BF16, {bias, bias + s.width(), bias + s.width() + s.n_kv_heads * s.head_dim}, 0};
        return j;
    }

    struct skinny_job glu_job(const layer &l) const
    {
        struct skinny_job j = product(SKINNY_GLU, l.gate_up, act_mlp.bits.p, s.inter, s.hidden, NULL);
        j.w1 = j.w0 + (size_t)s.inter * s.hidden * 2;
        j.act_bf16 = gated.p;
        return j;
    }

    struct attend_job attend_job(const layer &l)
    {
        struct attend_job j = {};
        j.q = q.p;
        j.n_heads = s.n_heads;
        j.n_kv_heads = s.n_kv_heads;
        j.per_kv = s.n_heads / s.n_kv_heads;
        j.head_dim = s.head_dim;
        j.window = s.window;
        j.scale = 0.3f / std::sqrt((float)s.head_dim);
        j.table = table.data();
        j.seqs = seqs.data();
        j.blocks = (const unsigned char *)l.cache.bits.p;
        j.block_bytes = s.block_bytes();
        j.v_at = s.block_bytes() / 2;
        j.block_tokens = s.block_tokens;
        j.row_bytes = s.head_dim * 2;
        j.dtype = DTYPE_BF16;
        j.plan = (struct plan *)plan.p;
        j.items = plan_items((struct plan *)plan.p);
        j.parts = room.p;
        j.part_sums = room.p + (size_t)PARTS_MAX * s.n_heads * s.head_dim;
        j.arrived = arrived.p;
        j.out.bf16 = (__nv_bfloat16 *)attended.p;
        return j;
    }

    struct batch make_plan()
    {
        struct batch b = {};
        b.n_rows = b.n_seqs = s.rows();
        b.seq_rows = 1;
        b.seqs = seqs.data();
        device.rows_max = 64;
        device.n_sms = s.n_sms;
        device.batch_version++;
        device.plan = (struct plan *)plan.p;
        const struct attend_job j = attend_job(layers[0]);
        const struct cut cut = resident_several_cut(&device, &j);
        attend_plan(&device, &b, j.per_kv, 1, &cut);
        return b;
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
        make_plan();
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
        const struct batch b = make_plan();
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

    /* All that a step leaves behind. */
    std::vector<float> left() const
    {
        std::vector<float> all(stream.p, stream.p + stream.n);
        for (const layer &l : layers)
            for (uint32_t r = 0; r < s.rows(); r++)
                for (uint32_t h = 0; h < 2 * s.n_kv_heads; h++)
                    for (uint32_t i = 0; i < s.head_dim; i++)
                        all.push_back(head_value(l.cache.bits.p, at(r, pos[r], h) + i, DTYPE_BF16));
        return all;
    }
};

/* ---- the same in float64, rounded where the kernel rounds rows ------------------------------------------------------
 */

static float short_of(double x)
{
    return as_bf16((float)x);
}

/* Rows of a product: a row's inputs, and what its sums are multiplied with. */
static std::vector<double> multiply(
    const halves &m, const std::vector<float> &in, const std::vector<double> &by, uint32_t n_out, uint32_t n_in)
{
    std::vector<double> y(by.size() * n_out);
    for (size_t r = 0; r < by.size(); r++)
        for (uint32_t o = 0; o < n_out; o++)
            y[r * n_out + o] = by[r] * dot(&in[r * n_in], &m.values[(size_t)o * n_in], n_in);
    return y;
}

static std::vector<double> norm(const std::vector<double> &x, const std::vector<float> &gain, std::vector<float> &in)
{
    const size_t n = gain.size();
    std::vector<double> by;
    in.resize(x.size());
    for (size_t r = 0; r < x.size() / n; r++) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++) {
            sum += x[r * n + i] * x[r * n + i];
            in[r * n + i] = short_of(x[r * n + i] * gain[i]);
        }
        by.push_back(1.0 / std::sqrt(sum / (double)n + EPS));
    }
    return by;
}

/* One row's heads: turned, and keys and values put into the cache. */
static void turn(const step &t, layer &l, uint32_t row, double *qkv)
{
    const shape &s = t.s;
    const uint32_t d = s.head_dim;
    for (uint32_t h = 0; h < s.n_heads + 2 * s.n_kv_heads; h++) {
        double *x = qkv + (size_t)h * d;
        for (uint32_t i = 0; i < d; i++)
            x[i] += l.bias[h * d + i];
        for (uint32_t i = 0; h < s.n_heads + s.n_kv_heads && i < d / 2; i++) {
            double &lo = x[s.rope == ROPE_PAIRS ? 2 * i : i], &hi = x[s.rope == ROPE_PAIRS ? 2 * i + 1 : i + d / 2];
            const float *angle = &t.rope[(size_t)t.pos[row] * d + 2 * i];
            const double u = lo;
            lo = u * angle[0] - hi * angle[1];
            hi = u * angle[1] + hi * angle[0];
        }
        for (uint32_t i = 0; h >= s.n_heads && i < d; i++)
            l.cache.put(true, t.at(row, t.pos[row], h - s.n_heads) + i, (float)x[i]);
    }
}

static void attend(const step &t, const layer &l, uint32_t row, const double *q, float *out)
{
    const shape &s = t.s;
    const uint32_t d = s.head_dim, end = t.pos[row] + 1;
    for (uint32_t h = 0; h < s.n_heads; h++) {
        const uint32_t kv = h / (s.n_heads / s.n_kv_heads);
        std::vector<double> y(d, 0.0);
        double total = 0.0;
        for (uint32_t p = s.window > 0 && end > s.window ? end - s.window : 0; p < end; p++) {
            const float *key = &l.cache.values[t.at(row, p, kv)];
            const float *value = &l.cache.values[t.at(row, p, s.n_kv_heads + kv)];
            double score = 0.0;
            for (uint32_t i = 0; i < d; i++)
                score += (double)short_of(q[h * d + i]) * key[i];
            const double e = std::exp(score * (0.3 / std::sqrt((double)d)));
            total += e;
            for (uint32_t i = 0; i < d; i++)
                y[i] += e * value[i];
        }
        for (uint32_t i = 0; i < d; i++)
            out[h * d + i] = short_of(y[i] / total);
    }
}

static void reference(step &t)
{
    const shape &s = t.s;
    std::vector<double> x(t.x.begin(), t.x.end());
    const std::vector<double> ones(s.rows(), 1.0);
    for (layer &l : t.layers) {
        std::vector<float> in = t.act.values, attended((size_t)s.rows() * s.width()), gated;
        const std::vector<double> by = &l == &t.layers[0] ? ones : norm(x, l.gain_qkv, in);
        std::vector<double> qkv = multiply(l.qkv, in, by, s.qkv_rows(), s.hidden);
        for (uint32_t r = 0; r < s.rows(); r++) {
            turn(t, l, r, &qkv[(size_t)r * s.qkv_rows()]);
            attend(t, l, r, &qkv[(size_t)r * s.qkv_rows()], &attended[(size_t)r * s.width()]);
        }
        const std::vector<double> o = multiply(l.o, attended, ones, s.hidden, s.width());
        for (size_t i = 0; i < x.size(); i++)
            x[i] += o[i];
        const std::vector<double> mlp = norm(x, l.gain_mlp, in);
        const std::vector<double> both = multiply(l.gate_up, in, mlp, 2 * s.inter, s.hidden);
        for (size_t i = 0; i < (size_t)s.rows() * s.inter; i++) {
            const double *g = &both[i / s.inter * 2 * s.inter + i % s.inter];
            gated.push_back(short_of(g[0] / (1.0 + std::exp(-g[0])) * g[s.inter]));
        }
        const std::vector<double> down = multiply(l.down, gated, ones, s.hidden, s.inter);
        for (size_t i = 0; i < x.size(); i++)
            x[i] += down[i];
    }
    for (size_t i = 0; i < x.size(); i++)
        t.stream.p[i] = (float)x[i];
}

/* ---- checks --------------------------------------------------------------------------------------------------------
 */

/* What the layers added, and what they put into the caches, as far as it is from float64. spoil: before the kernel. */
template <class Spoil> static double distance(const shape &s, uint32_t n_layers, Spoil &&spoil)
{
    step t(s, n_layers), u = t;
    reference(u);
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
        if (i == 16) /* who asks for weights: the barrier "lent" may not end twice before that thread has seen it end */
            continue;
        emulated_lags = [=] { return threadIdx.x / 32 == i / 2 && (threadIdx.x % 32 == 0) == (i % 2 == 0); };
        check("lanes of warp " + std::to_string(i / 2) + " come last");
    }
    for (uint32_t i = 0; i < s.n_sms; i++) {
        emulated_lags = [=] { return blockIdx.x == i; };
        check("block " + std::to_string(i) + " comes last");
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
        {6, 256, 640, 4, 2, 128, 16, 0, ROPE_HALVES, contexts(5, {1, 40, 17, 300, 64})},
        {3, 256, 640, 4, 1, 128, 32, 0, ROPE_PAIRS, contexts(12, {900, 16, 33, 5})},
        {7, 384, 520, 4, 2, 128, 16, 48, ROPE_HALVES, contexts(32, {2, 100, 500})},
        {5, 256, 384, 8, 2, 64, 16, 0, ROPE_HALVES, contexts(3, {1950, 7, 30})},
        {6, 320, 512, 8, 1, 64, 48, 0, ROPE_PAIRS, contexts(16, {400, 97})},
        {4, 128, 1032, 4, 4, 64, 16, 0, ROPE_HALVES, contexts(25, {150})},
    };
    uint32_t shared = 0;
    for (const shape &s : shapes) {
        shared += n_shared(s);
        check_near(s);
        check_bits(s);
    }
    expect(shared > 6 && shared < 18, "tiles are shared in all ways: " + std::to_string(shared));
    check_order({5, 256, 640, 4, 2, 64, 16, 0, ROPE_HALVES, contexts(18, {40, 100})});
    check_order({2, 384, 256, 2, 1, 128, 16, 0, ROPE_HALVES, contexts(6, {70})});
    check_planted(shapes[1]);
    return verdict("several");
}
