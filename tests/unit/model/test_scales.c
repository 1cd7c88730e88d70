/* What a backend is given of matrices with scales beside them: exact blocks of Q8_0 of INT8 in all its shapes, BF16
 * where those cannot be, memory that is used again unless it is read in place, and no leak when it runs out. */
#include "model/testing_model.h"

#include "base/fault.h"
#include "base/mem.h"
#include "tensor/float_convert.h"
#include "tensor/quant.h"

#define N_OUT  5u
#define N_IN   96u
#define MATRIX "m.weight"

static struct error e;

/* A source of one matrix and its scales. */
struct pair {
    struct tensor_view matrix, scale;
    const char *name;
};

static enum err find_pair(void *ctx, const char *name, uint32_t n_mats, uint32_t n_out, uint32_t n_in,
    struct tensor_view *out, struct error *err)
{
    const struct pair *p = ctx;
    const struct tensor_view *v = strcmp(name, p->name) == 0           ? &p->matrix
                                  : strcmp(name, MATRIX "_scale") == 0 ? &p->scale
                                                                       : NULL;
    assert_true(n_mats == 1);
    if (v == NULL)
        return FAIL(err, ERR_NOT_FOUND, "tensor %s is missing", name);
    const bool same = n_out == 0 ? v->n_dims == 1 && v->shape[0] == n_in
                                 : v->n_dims == 2 && v->shape[0] == n_out && v->shape[1] == n_in;
    if (!same)
        return FAIL(err, ERR_FORMAT, "tensor %s has another shape", name);
    *out = *v;
    return OK;
}

/* A backend that writes down what it is given, and keeps it in place or not. */
static struct tensor_view given[2];
static unsigned char bytes[2][N_OUT * N_IN * 2];
static bool in_place;

static enum err bind_fake(struct dev *d, const struct tensor_view *v, uint32_t n, struct weight *w, struct error *err)
{
    static const void *mats[2];
    (void)d;
    (void)err;
    for (uint32_t i = 0; i < n; i++) {
        given[i] = v[i];
        assert_true(v[i].bytes <= sizeof bytes[i]);
        memcpy(bytes[i], v[i].data, v[i].bytes);
    }
    w->mat = in_place ? mats : NULL;
    return OK;
}

static const struct ops fake = {.weight_bind = bind_fake};
static int8_t numbers[N_OUT * N_IN];
static uint8_t packed[N_OUT * N_IN];
static float scales[N_OUT * N_IN];

static struct tensor_view view_of(enum dtype dtype, uint32_t n_dims, uint64_t a, uint64_t b, const void *data)
{
    struct tensor_view v;
    size_t n;
    const uint64_t shape[] = {a, b};
    assert_ok(e, tensor_shape_bytes(dtype, n_dims, shape, &n, &e));
    assert_ok(e, tensor_view_init(&v, dtype, n_dims, shape, data, n, &e));
    return v;
}

static struct pair pair_of(bool is_packed, uint32_t n_in, struct tensor_view scale)
{
    for (uint32_t i = 0; i < N_OUT * N_IN; i++) {
        numbers[i] = (int8_t)(i * 37 % 256 - 128);
        packed[i] = (uint8_t)(numbers[i] + 128);
    }
    return (struct pair){.matrix = is_packed ? view_of(DTYPE_I32, 2, N_OUT, n_in / 4, packed)
                                             : view_of(DTYPE_I8, 2, N_OUT, n_in, numbers),
        .scale = scale,
        .name = is_packed ? MATRIX "_packed" : MATRIX};
}

static enum err bind_pair(struct decoder *d, struct pair *p, uint32_t n_in)
{
    const struct weight_source src = {.ctx = p, .find = find_pair};
    struct tensor_view v[2];
    struct scales s = {0};
    struct weight w = {0};
    TRY(decoder_find_weight(d, &src, MATRIX, 1, N_OUT, n_in, &v[0], &e));
    v[1] = v[0];
    enum err err = decoder_scales_find(d, &src, MATRIX, &v[0], 0, 2, &s, &e); /* two experts that are the same */
    if (err == OK)
        err = decoder_scales_find(d, &src, MATRIX, &v[1], 1, 2, &s, &e);
    if (err == OK)
        err = decoder_scales_bind(d, v, 2, &s, &w, &e);
    mem_free(s.of);
    return err;
}

static struct decoder decoder_of(void)
{
    return (struct decoder){.ops = &fake, .cfg.quant_is_i8 = true, .o.threads = 2};
}

static void end(struct decoder *d)
{
    decoder_scales_end(d);
    while (d->n_converted > 0)
        mem_free(d->converted[--d->n_converted]);
    mem_free(d->converted);
}

/* groups: scales of a row; 0 = one for the matrix. */
static void blocks_are_exact(bool is_packed, uint32_t groups, struct tensor_view scale)
{
    struct decoder d = decoder_of();
    struct pair p = pair_of(is_packed, N_IN, scale);
    assert_ok(e, bind_pair(&d, &p, N_IN));
    for (uint32_t m = 0; m < 2; m++) {
        assert_int_equal(given[m].dtype, DTYPE_Q8_0);
        assert_true(given[m].shape[0] == N_OUT && given[m].shape[1] == N_IN);
        const struct block_q8_0 *b = (const struct block_q8_0 *)bytes[m];
        for (uint32_t i = 0; i < N_OUT * N_IN / QK; i++) {
            const uint32_t row = i * QK / N_IN, group = i * QK % N_IN * groups / N_IN;
            assert_int_equal(b[i].d, f16_from_f32(scales[groups == 0 ? 0 : row * groups + group]));
            assert_memory_equal(b[i].qs, numbers + i * QK, QK);
        }
    }
    end(&d);
}

static void int8_becomes_blocks_whatever_shares_a_scale(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < COUNT_OF(scales); i++)
        scales[i] = 0.01f / (float)(1 + i);
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        blocks_are_exact(is_packed, 0, view_of(DTYPE_F32, 1, 1, 1, scales));
        blocks_are_exact(is_packed, 1, view_of(DTYPE_F32, 1, N_OUT, 1, scales));
        blocks_are_exact(is_packed, 1, view_of(DTYPE_F32, 2, N_OUT, 1, scales));
        blocks_are_exact(is_packed, 3, view_of(DTYPE_F32, 2, N_OUT, 3, scales));
    }
}

static void floats_are_products_rounded_once(bool is_packed, uint32_t n_in, float scale)
{
    struct decoder d = decoder_of();
    for (uint32_t i = 0; i < N_OUT; i++)
        scales[i] = scale / (float)(1 + i);
    struct pair p = pair_of(is_packed, n_in, view_of(DTYPE_F32, 1, N_OUT, 1, scales));
    assert_ok(e, bind_pair(&d, &p, n_in));
    const uint16_t *x = (const uint16_t *)bytes[1];
    assert_int_equal(given[1].dtype, DTYPE_BF16);
    for (uint32_t i = 0; i < N_OUT * n_in; i++)
        assert_int_equal(x[i], bf16_from_f32((float)numbers[i] * scales[i / n_in]));
    end(&d);
}

static void what_blocks_cannot_hold_becomes_bf16(void **state)
{
    (void)state;
    for (int is_packed = 0; is_packed < 2; is_packed++) {
        floats_are_products_rounded_once(is_packed, N_IN, 0x1p-15f);
        floats_are_products_rounded_once(is_packed, N_IN, 70000.0f);
        floats_are_products_rounded_once(is_packed, 84, 0.01f);
    }
}

static void memory_is_used_again_unless_it_is_read_in_place(void **state)
{
    (void)state;
    struct decoder d = decoder_of();
    scales[0] = 0.5f;
    struct pair p = pair_of(false, N_IN, view_of(DTYPE_F32, 1, 1, 1, scales));
    for (int i = 0; i < 4; i++) {
        in_place = i >= 2;
        const void *before = d.made;
        assert_ok(e, bind_pair(&d, &p, N_IN));
        assert_true(i == 0 || given[0].data == before || i == 3);
    }
    in_place = false;
    assert_int_equal(d.n_converted, 2);
    assert_true(d.converted[0] != d.converted[1] && d.converted[1] == given[0].data && d.made == NULL);
    end(&d);
}

static void no_allocation_that_fails_is_lost(void **state)
{
    (void)state;
    scales[0] = 0x1p-20f;
    struct pair p = pair_of(true, N_IN, view_of(DTYPE_F32, 1, 1, 1, scales));
    in_place = true;
    enum err err = ERR_NOMEM;
    uint64_t nth = 1;
    for (; err == ERR_NOMEM && nth < 100; nth++) {
        struct decoder d = decoder_of();
        e = (struct error){0};
        fault_arm(FAULT_ALLOC, nth, false);
        err = bind_pair(&d, &p, N_IN);
        fault_arm(FAULT_ALLOC, 0, false);
        end(&d);
    }
    in_place = false;
    assert_ok(e, err);
    assert_true(nth > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_becomes_blocks_whatever_shares_a_scale),
        cmocka_unit_test(what_blocks_cannot_hold_becomes_bf16),
        cmocka_unit_test(memory_is_used_again_unless_it_is_read_in_place),
        cmocka_unit_test(no_allocation_that_fails_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
