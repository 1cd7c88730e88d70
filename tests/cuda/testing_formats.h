/* Matrices in every format as they lie on the device, for the tests of emulated kernels. */
#ifndef TESTING_FORMATS_H
#define TESTING_FORMATS_H

#include "testing_cuda.h"

#include "cuda/repack.cuh"

struct format_case {
    enum format format;
    enum dtype dtype;
    const char *name;
    double bound;
};

/* A matrix as it lies on the device, and the values it stands for. */
struct packed {
    aligned<unsigned char> data;
    std::vector<float> values, scales;
    uint32_t row_bytes;
};

inline void pack_row(enum dtype dtype, const unsigned char *from, unsigned char *to, uint32_t n_in)
{
    const uint32_t width = format_width(n_in);
    for (uint32_t g = 0; g < n_in / 32; g++)
        switch (dtype) {
        case DTYPE_Q8_0: repack_q8_0(from, to, g, width); break;
        case DTYPE_Q4_0: repack_q4_0(from, to, g, width); break;
        case DTYPE_Q4_1: repack_q4_1(from, to, g, width); break;
        case DTYPE_Q4_K: repack_q4_k(from, to, g, width); break;
        default: repack_q6_k(from, to, g, width); break;
        }
}

inline float pack_row_f8(float *values, unsigned char *to, uint32_t n_in)
{
    float most = 0.0f;
    for (uint32_t k = 0; k < n_in; k++)
        most = std::fmax(most, std::fabs(values[k]));
    for (uint32_t k = 0; k < n_in; k++) {
        const __nv_fp8_e4m3 q(values[k] * (448.0f / most));
        std::memcpy(to + k, &q, 1);
        values[k] = (float)q * (most / 448.0f);
    }
    return most / 448.0f;
}

inline packed make_matrix(const format_case &f, uint32_t n_out, uint32_t n_in)
{
    const uint32_t row_bytes = format_row_bytes(f.format, n_in);
    packed m = {aligned<unsigned char>((size_t)row_bytes * n_out, 0), {}, {}, row_bytes};
    const struct dtype_info *info = dtype_info(f.dtype);
    std::vector<unsigned char> line((size_t)n_in / info->block_elems * info->block_bytes);
    struct error e = {};
    m.values.resize((size_t)n_out * n_in);
    for (float &v : m.values)
        v = random_normal() / std::sqrt((float)n_in);
    for (uint32_t o = 0; o < n_out; o++) {
        float *row = &m.values[(size_t)o * n_in];
        unsigned char *to = m.data.p + (size_t)o * row_bytes;
        if (f.format == FORMAT_F8) {
            m.scales.push_back(pack_row_f8(row, to, n_in));
            continue;
        }
        expect(quant_row(f.dtype, row, line.data(), n_in, &e) == OK &&
                   dequant_row(f.dtype, line.data(), row, n_in, &e) == OK,
            "a row can be quantised");
        if (f.format == FORMAT_F16 || f.format == FORMAT_BF16)
            std::memcpy(to, line.data(), line.size());
        else
            pack_row(f.dtype, line.data(), to, n_in);
    }
    return m;
}

#endif
