/* The product kernel for 3 to 32 rows, emulated with its copy engine, its matrix unit and the sums that blocks pass
 * each other: every end, cut over any number of multiprocessors. */
#include "testing_products.h"

#include "cuda/even.cuh"

static struct dev device;

/* Sums on their way are gone again. */
static void even(struct dev *d, enum format format, const struct skinny_job *j)
{
    cuda_even(d, format, j);
    for (size_t i = 0; i < d->even_parts_bytes / sizeof(float); i++)
        if (d->even_parts[i] != 0.0f) {
            expect(false, "a sum is left between blocks");
            return;
        }
}

/* How many blocks have parts of two tiles, so that a case tests what it says. */
static uint32_t two_tiles(const product_case &c)
{
    const halves none(true, 64, 1.0f);
    struct even_job f;
    struct skinny_job j = job_of(none, none, c.end, c.n_rows, c.n_out, c.n_in);
    j.w1 = j.w0 + 64;
    even_describe(c.d, &j, &f);
    uint32_t n = 0;
    for (uint32_t b = 0; b < f.n_blocks; b++)
        n += even_first(f, b) / f.per_tile != (even_first(f, b + 1) - 1) / f.per_tile;
    return n;
}

static product_case with_multiprocessors(product_case c, uint32_t n)
{
    device.n_sms = n;
    return c;
}

static void check_shapes(enum format format)
{
    const product_case store = {&device, even, format, 5, 304, 328, SKINNY_STORE, GLU_SILU, false};
    expect(two_tiles(with_multiprocessors(store, 4)) > 0, "blocks have parts of two tiles");
    for (const uint32_t n : {1u, 3u, 4u, 5u}) {
        check_product(with_multiprocessors(store, n));
        check_product({&device, even, format, 12, 272, 456, SKINNY_ADD, GLU_SILU, false});
        check_product({&device, even, format, 27, 88, 520, SKINNY_GLU, GLU_SILU, n % 2 == 0});
    }
    device.n_sms = 6; /* six of a tile */
    check_product({&device, even, format, 32, 128, 1608, SKINNY_STORE, GLU_SILU, false});
    check_product({&device, even, format, 3, 128, 1536, SKINNY_ADD, GLU_SILU, false});
    check_product({&device, even, format, 16, 200, 264, SKINNY_GLU, GLU_GELU, false});
}

static void check_planted()
{
    const product_case c = {&device, even, FORMAT_BF16, 9, 304, 712, SKINNY_STORE, GLU_SILU, false};
    const auto is_near = [&] { return product_distance(c, [](struct skinny_job &) {}) < 1e-5; };
    device.n_sms = 2;
    expect_sound(is_near);
    expect_found("who multiplies does not wait for weights", [&] {
        emulated_hurries = [] { return threadIdx.x < EVEN_THREADS; };
        return is_near();
    });
    expect_found("a place of the ring is taken before it is free", [&] {
        emulated_hurries = [] { return threadIdx.x >= EVEN_THREADS; };
        return is_near();
    });
    expect_found("a sum was left", [&] {
        for (size_t i = 0; i < device.even_parts_bytes / sizeof(float); i++)
            device.even_parts[i] = 1.0f;
        return is_near();
    });
    expect_found("an input is not multiplied",
        [&] { return product_distance(c, [](struct skinny_job &j) { j.n_in -= 8; }) < 1e-5; });
    expect_found("weights are read that the kernel before writes",
        [&] { return product_distance(c, [](struct skinny_job &j) { j.act = j.w0; }) < 1e-5; });
}

int main()
{
    device.capability = 90;
    check_shapes(FORMAT_BF16);
    check_shapes(FORMAT_F16);
    check_planted();
    for (const uint32_t n : {1u, 5u}) {
        device.n_sms = n;
        check_heads({&device, even, FORMAT_BF16, ROPE_HALVES, 3, 264, 64, 64, 0, DTYPE_BF16});
        check_heads({&device, even, FORMAT_F16, ROPE_HALVES, 10, 192, 128, 128, 0, DTYPE_F16});
        check_heads({&device, even, FORMAT_BF16, ROPE_PAIRS, 31, 136, 64, 32, 0, DTYPE_BF16});
        check_heads({&device, even, FORMAT_BF16, ROPE_PAIRS, 7, 256, 48, 48, 0, DTYPE_F32});
        check_heads({&device, even, FORMAT_F16, ROPE_HALVES, 17, 128, 64, 64, 4, DTYPE_F16});
        check_heads({&device, even, FORMAT_BF16, ROPE_HALVES, 4, 128, 256, 256, 6, DTYPE_BF16});
        check_heads({&device, even, FORMAT_BF16, ROPE_NONE, 4, 128, 32, 32, 0, DTYPE_BF16});
    }
    return verdict("even");
}
