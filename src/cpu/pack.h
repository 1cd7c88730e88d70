/* Packed weights: how the x86 kernels keep a matrix. Made once when a weight is bound, from the file's rows, by the
 * worker team (pack_avx2.c); read by x86_product.h. The values are those of the file; only their places change, so the
 * copy takes about as many bytes as the file does.
 *
 * A panel is 16 outputs, padded with zeros behind the last. Quantised: k runs in groups of 32, and a group in steps of
 * 4; the 64 bytes of a step are 4 elements of each of the 16 outputs, output by output. By form:
 *   PACK_4  256 bytes a group: byte j of 64s + j holds step s below and step s + 4 above (s < 4)
 *   PACK_5  the same, and 64 bytes whose bit s is the fifth bit of step s
 *   PACK_6  the same, and 2 x 64 bytes whose bits 2s, 2s+1 are the top bits of step s, then of step s + 4
 *   PACK_8  512 bytes a group, signed
 * Float: PACK_F16, PACK_BF16, PACK_F32 hold for each k the 16 outputs.
 * A panel holds all its groups' integers, then all its groups' scales:
 *   SCALE_D     16 f16 a group                        SCALE_DM   16 f16 scales, 16 f16 minima a group
 *   SCALE_K     a super-block of 8 groups: 16 f16 d, 16 f16 dmin, then a group 16 bytes sc and 16 bytes mn
 *   SCALE_K16   a super-block: 16 f16 d, then for each 16 elements 16 signed bytes
 *   SCALE_F     for each 16 elements 16 f32           SCALE_FM   and 16 f32 minima */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include "cpu/cpu_int.h"

#define PANEL_COLS  16
#define GROUP_STEPS 8
#define STEP_BYTES  64
#define SUPER       8 /* groups of a super-block */

enum pack_form { PACK_4, PACK_5, PACK_6, PACK_8, PACK_F16, PACK_BF16, PACK_F32 };
enum scale_form { SCALE_NONE, SCALE_D, SCALE_DM, SCALE_K, SCALE_K16, SCALE_F, SCALE_FM };

struct packed {
    const void **mat; /* the list weight.mat points to */
    struct slab *slab;
    unsigned char *base;
    size_t panel_bytes, mat_bytes;
    uint32_t n_panels; /* of one matrix */
    enum pack_form form;
    enum scale_form scales;
    uint32_t offset;   /* taken from each stored integer; from 4 bits it is taken already, and they have a sign */
    size_t data_bytes; /* of a group, or of one k for floats */
    size_t scale_at;   /* bytes from a panel's start */
};

/* Bytes of a group's integers, or of one k for floats. */
static inline size_t data_bytes_of(enum pack_form form)
{
    static const size_t bytes[] = {[PACK_4] = 256,
        [PACK_5] = 320,
        [PACK_6] = 384,
        [PACK_8] = 512,
        [PACK_F16] = 32,
        [PACK_BF16] = 32,
        [PACK_F32] = 64};
    return bytes[form];
}

static inline const unsigned char *packed_panel(const struct packed *p, uint32_t mat, uint32_t panel)
{
    return p->base + mat * p->mat_bytes + panel * p->panel_bytes;
}

/* Fill in form and sizes; base stays NULL. */
void pack_plan(struct packed *p, enum dtype dtype, uint32_t n_out, uint32_t n_in);

/* Make one panel; row is the first of its rows in the file's layout, n_rows at most 16. */
void pack_panel(const struct packed *p, enum dtype dtype, const unsigned char *row, size_t row_bytes, uint32_t n_rows,
    uint32_t n_in, struct unpacked *room, unsigned char *out);

#endif
