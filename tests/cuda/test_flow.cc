/* The product kernel whose sums are one chain, emulated with its copy engine: every end, up to 64 rows, and its bits.
 */
#include "testing_products.h"

static struct dev device;

/* The chain, bit for bit: it is what the library's kernels give, and --deterministic stands on it. */
static void check_chain(enum format format, uint32_t n_rows, uint32_t n_out, uint32_t n_in)
{
    const halves m = make_matrix(format == FORMAT_BF16, n_out, n_in);
    const halves a(format == FORMAT_BF16, (size_t)n_rows * n_in, 1.0f);
    aligned<float> out((size_t)n_rows * n_out);
    struct skinny_job j = job_of(m, a, SKINNY_STORE, n_rows, n_out, n_in);
    j.out = out.p;
    run_job(&device, cuda_flow, format, j, false);
    size_t n_same = 0;
    for (size_t i = 0; i < out.n; i++)
        n_same += out.p[i] == chain(&a.values[i / n_out * n_in], &m.values[i % n_out * n_in], n_in);
    expect(n_same == out.n, "a chain's bits: " + std::to_string(n_same) + " of " + std::to_string(out.n));
}

static void check_shapes(enum format format)
{
    for (const uint32_t n : {1u, 3u, 50u}) {
        device.n_sms = n;
        check_product({&device, cuda_flow, format, 5, 200, 320, SKINNY_STORE, GLU_SILU, false});
        check_product({&device, cuda_flow, format, 12, 272, 704, SKINNY_ADD, GLU_SILU, false});
        check_product({&device, cuda_flow, format, 27, 88, 512, SKINNY_GLU, GLU_SILU, n == 3});
        check_product({&device, cuda_flow, format, 1, 16, 64, SKINNY_GLU, GLU_GELU, false});
        check_chain(format, 19, 168, 448);
    }
    device.n_sms = 2;
    check_product({&device, cuda_flow, format, 61, 336, 1600, SKINNY_STORE, GLU_SILU, false});
}

static void check_planted()
{
    const product_case c = {&device, cuda_flow, FORMAT_BF16, 9, 272, 1600, SKINNY_STORE, GLU_SILU, false};
    const auto is_near = [&] { return product_distance(c, [](struct skinny_job &) {}) < 1e-5; };
    device.n_sms = 2;
    expect_sound(is_near);
    expect_found("who multiplies does not wait for weights", [&] {
        emulated_hurries = [] { return threadIdx.x < blockDim.x - 32; };
        return is_near();
    });
    expect_found("a place of the ring is taken before it is free", [&] {
        emulated_hurries = [] { return threadIdx.x == blockDim.x - 32; };
        return is_near();
    });
    expect_found("an input is not multiplied",
        [&] { return product_distance(c, [](struct skinny_job &j) { j.n_in -= 64; }) < 1e-5; });
}

int main()
{
    device.capability = 90;
    check_shapes(FORMAT_BF16);
    check_shapes(FORMAT_F16);
    check_planted();
    for (const uint32_t n : {1u, 5u}) {
        device.n_sms = n;
        check_heads({&device, cuda_flow, FORMAT_BF16, ROPE_HALVES, 3, 256, 64, 64, 0, DTYPE_BF16});
        check_heads({&device, cuda_flow, FORMAT_F16, ROPE_HALVES, 33, 192, 128, 64, 0, DTYPE_F16});
        check_heads({&device, cuda_flow, FORMAT_BF16, ROPE_PAIRS, 31, 128, 64, 32, 0, DTYPE_F32});
        check_heads({&device, cuda_flow, FORMAT_F16, ROPE_HALVES, 17, 128, 64, 64, 4, DTYPE_F16});
        check_heads({&device, cuda_flow, FORMAT_BF16, ROPE_NONE, 4, 64, 32, 32, 6, DTYPE_BF16});
    }
    return verdict("flow");
}
