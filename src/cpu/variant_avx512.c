/* The AVX-512 row: sixteen lanes in one register and dot products of 16-bit integers (VNNI). The same bodies as
 * variant_avx2.c, and the same bits. */
#if defined(__x86_64__)
#define QUERN_AVX512
#include "cpu/x86_attend.h"
#include "cpu/x86_peak.h"
#include "cpu/x86_product.h"
#include "cpu/x86_rows.h"

const struct kernels kernels_avx512 = {
    .name = "cpu-avx512",
    .runs_here = cpu_has_avx512,
    .product = product_x86,
    .norm_row = norm_row_x86,
    .quant_groups = quant_groups_x86,
    .glu = glu_x86,
    .scale_cap = scale_cap_x86,
    .attend = attend_x86,
    .few_rows = FEW_MOST,
    .room_bytes = sizeof(struct product_room),
    .attend_join = attend_join_x86,
    .rope = rope_x86,
    .to_kv = to_kv_x86,
    .add_row = add_row_x86,
    .peak = peak_x86,
};
#endif
