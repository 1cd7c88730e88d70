/* Decoder layers for the kernels that do whole steps: their matrices and caches, the jobs of their ops, and the same in
 * float64. */
#ifndef TESTING_LAYER_H
#define TESTING_LAYER_H

#include "testing_formats.h"
#include "testing_products.h"

#include "cuda/resident.h"

#define EPS 1e-5f

/* formats: of qkv, of what projects, of gate and up, and of down. Rows and caches are bf16, or f16. */
struct shape {
    uint32_t n_sms, hidden, inter, n_heads, n_kv_heads, head_dim, block_tokens, window;
    enum rope_style rope;
    std::vector<uint32_t> contexts; /* of each row, with itself */
    std::vector<format_case> formats;
    bool is_bf16;

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
        return std::string(formats[0].name) + " to " + formats[3].name + ", " + std::to_string(rows()) +
               " rows, heads of " + std::to_string(head_dim) + ", " + std::to_string(n_sms) + " multiprocessors";
    }
};

inline std::vector<float> normals(size_t n, float size)
{
    std::vector<float> x(n);
    for (float &v : x)
        v = random_normal() * size;
    return x;
}

struct layer {
    packed qkv, o, gate_up, down;
    halves cache;
    std::vector<float> gain_qkv, gain_mlp, bias;
    layer(const shape &s, uint32_t n_blocks)
        : qkv(make_matrix(s.formats[0], s.qkv_rows(), s.hidden)), o(make_matrix(s.formats[1], s.hidden, s.width())),
          gate_up(make_matrix(s.formats[2], 2 * s.inter, s.hidden)), down(make_matrix(s.formats[3], s.hidden, s.inter)),
          cache(s.is_bf16, n_blocks * s.block_bytes() / 2, 1.0f), gain_qkv(normals(s.hidden, 1.0f)),
          gain_mlp(normals(s.hidden, 1.0f)), bias(normals(s.qkv_rows(), 0.3f))
    {
    }
};

/* A step: what the host knows, and what lies in device memory. */
struct layer_step {
    shape s;
    std::vector<struct batch_seq> seqs;
    std::vector<uint32_t> table, pos, slot;
    std::vector<layer> layers;
    std::vector<float> rope, x;
    halves act, act_mlp; /* the rows of the first product; and of gate and up where they are not normalised rows */
    /* What is computed. */
    aligned<float> stream, q, room;
    aligned<uint16_t> attended, gated;
    aligned<unsigned char> plan;
    aligned<uint32_t> arrived, barrier;

    layer_step(const shape &c, uint32_t n_layers)
        : s(c), rope(normals(2200 * c.head_dim, 0.7f)), x(normals((size_t)c.rows() * c.hidden, 1.0f)),
          act(c.is_bf16, (size_t)c.rows() * c.hidden, 1.0f), act_mlp(c.is_bf16, (size_t)c.rows() * c.hidden, 1.0f),
          stream(x.size()), q((size_t)c.rows() * c.width()), room((size_t)PARTS_MAX * c.n_heads * (c.head_dim + 2)),
          attended((size_t)c.rows() * c.width()), gated((size_t)c.rows() * c.inter), plan(plan_bytes(64)),
          arrived((size_t)64 * c.n_kv_heads + 2, 0), barrier(1, 0)
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
                            l.cache.put(s.is_bf16, at(r, p, h) + i, NAN);
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
        enum skinny_end end, const packed &m, const void *in, uint32_t n_out, uint32_t n_in, float *out) const
    {
        struct skinny_job j = {};
        j.end = end;
        j.w0 = m.data.p;
        j.scale0 = m.scales.empty() ? NULL : m.scales.data();
        j.row_bytes = m.row_bytes;
        j.n_in = n_in;
        j.n_out = j.ldc = n_out;
        j.act = in;
        j.n_rows = s.rows();
        j.out = out;
        j.scale = 1.0f;
        return j;
    }

    struct skinny_job qkv_job(layer &l) const
    {
        struct skinny_job j = product(SKINNY_QKV, l.qkv, act.bits.p, s.qkv_rows(), s.hidden, q.p);
        const float *bias = l.bias.data();
        j.ldc = s.width();
        j.heads = {s.n_heads, s.n_kv_heads, s.head_dim, s.head_dim, s.rope, rope.data(), pos.data(), slot.data(),
            (unsigned char *)l.cache.bits.p, s.block_bytes(), 0, s.block_bytes() / 2, s.block_tokens, s.head_dim * 2,
            s.is_bf16 ? DTYPE_BF16 : DTYPE_F16, {bias, bias + s.width(), bias + s.width() + s.n_kv_heads * s.head_dim},
            0};
        return j;
    }

    struct skinny_job glu_job(const layer &l) const
    {
        struct skinny_job j = product(SKINNY_GLU, l.gate_up, act_mlp.bits.p, s.inter, s.hidden, NULL);
        j.w1 = j.w0 + (size_t)s.inter * j.row_bytes;
        j.scale1 = j.scale0 == NULL ? NULL : j.scale0 + s.inter;
        (s.is_bf16 ? j.act_bf16 : j.act_f16) = gated.p;
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
        j.dtype = s.is_bf16 ? DTYPE_BF16 : DTYPE_F16;
        j.plan = (struct plan *)plan.p;
        j.items = plan_items((struct plan *)plan.p);
        j.parts = room.p;
        j.part_sums = room.p + (size_t)PARTS_MAX * s.n_heads * s.head_dim;
        j.arrived = arrived.p;
        j.out.bf16 = s.is_bf16 ? (__nv_bfloat16 *)attended.p : NULL;
        j.out.f16 = s.is_bf16 ? NULL : (__half *)attended.p;
        return j;
    }

    template <class Cut> struct batch make_plan(struct dev &device, Cut &&cut_of)
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
        const struct cut cut = cut_of(&device, &j);
        attend_plan(&device, &b, j.per_kv, 1, &cut);
        return b;
    }

    /* All that a step leaves behind. */
    std::vector<float> left() const
    {
        std::vector<float> all(stream.p, stream.p + stream.n);
        for (const layer &l : layers)
            for (uint32_t r = 0; r < s.rows(); r++)
                for (uint32_t h = 0; h < 2 * s.n_kv_heads; h++)
                    for (uint32_t i = 0; i < s.head_dim; i++)
                        all.push_back(
                            head_value(l.cache.bits.p, at(r, pos[r], h) + i, s.is_bf16 ? DTYPE_BF16 : DTYPE_F16));
        return all;
    }
};

/* ---- the same in float64, rounded where the kernel rounds rows ------------------------------------------------------
 */

inline float short_of(bool is_bf16, double x)
{
    return is_bf16 ? as_bf16((float)x) : __half2float(half_of((float)x));
}

/* Rows of a product: a row's inputs, and what its sums are multiplied with. */
inline std::vector<double> multiply(
    const packed &m, const std::vector<float> &in, const std::vector<double> &by, uint32_t n_out, uint32_t n_in)
{
    std::vector<double> y(by.size() * n_out);
    for (size_t r = 0; r < by.size(); r++)
        for (uint32_t o = 0; o < n_out; o++)
            y[r * n_out + o] = by[r] * dot(&in[r * n_in], &m.values[(size_t)o * n_in], n_in);
    return y;
}

/* folded: rows are not divided, but sums are. */
inline std::vector<double> norm(
    bool is_bf16, bool folded, const std::vector<double> &x, const std::vector<float> &gain, std::vector<float> &in)
{
    const size_t n = gain.size();
    std::vector<double> by;
    in.resize(x.size());
    for (size_t r = 0; r < x.size() / n; r++) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++)
            sum += x[r * n + i] * x[r * n + i];
        const double inverse = 1.0 / std::sqrt(sum / (double)n + EPS);
        for (size_t i = 0; i < n; i++)
            in[r * n + i] = short_of(is_bf16, x[r * n + i] * gain[i] * (folded ? 1.0 : inverse));
        by.push_back(folded ? inverse : 1.0);
    }
    return by;
}

/* One row's heads: turned, and keys and values put into the cache. */
inline void turn(const layer_step &t, layer &l, uint32_t row, double *qkv)
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
            l.cache.put(s.is_bf16, t.at(row, t.pos[row], h - s.n_heads) + i, (float)x[i]);
    }
}

inline void attend(const layer_step &t, const layer &l, uint32_t row, const double *q, float *out)
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
                score += (double)short_of(s.is_bf16, q[h * d + i]) * key[i];
            const double e = std::exp(score * (0.3 / std::sqrt((double)d)));
            total += e;
            for (uint32_t i = 0; i < d; i++)
                y[i] += e * value[i];
        }
        for (uint32_t i = 0; i < d; i++)
            out[h * d + i] = short_of(s.is_bf16, y[i] / total);
    }
}

/* folded: norms are, and the first product has rows of its own. */
inline std::vector<double> reference(layer_step &t, bool folded)
{
    const shape &s = t.s;
    std::vector<double> x(t.x.begin(), t.x.end());
    const std::vector<double> ones(s.rows(), 1.0);
    for (layer &l : t.layers) {
        std::vector<float> in = t.act.values, attended((size_t)s.rows() * s.width()), gated;
        const std::vector<double> by = folded && &l == &t.layers[0] ? ones : norm(s.is_bf16, folded, x, l.gain_qkv, in);
        std::vector<double> qkv = multiply(l.qkv, in, by, s.qkv_rows(), s.hidden);
        for (uint32_t r = 0; r < s.rows(); r++) {
            turn(t, l, r, &qkv[(size_t)r * s.qkv_rows()]);
            attend(t, l, r, &qkv[(size_t)r * s.qkv_rows()], &attended[(size_t)r * s.width()]);
        }
        const std::vector<double> o = multiply(l.o, attended, ones, s.hidden, s.width());
        for (size_t i = 0; i < x.size(); i++)
            x[i] += o[i];
        const std::vector<double> mlp = norm(s.is_bf16, folded, x, l.gain_mlp, in);
        const std::vector<double> both = multiply(l.gate_up, in, mlp, 2 * s.inter, s.hidden);
        for (size_t i = 0; i < (size_t)s.rows() * s.inter; i++) {
            const double *g = &both[i / s.inter * 2 * s.inter + i % s.inter];
            gated.push_back(short_of(s.is_bf16, g[0] / (1.0 + std::exp(-g[0])) * g[s.inter]));
        }
        const std::vector<double> down = multiply(l.down, gated, ones, s.hidden, s.inter);
        for (size_t i = 0; i < x.size(); i++)
            x[i] += down[i];
    }
    for (size_t i = 0; i < x.size(); i++)
        t.stream.p[i] = (float)x[i];
    return x;
}

#endif
