/* Integer products of a few rows with AVX-512: the sums of x86_product.h, from bytes. Included by it.
 *
 * What limits a few rows is not arithmetic: laying a piece out costs a cycle for each store, whatever runs beside it,
 * and loads are 1.36 a cycle. So weights stay bytes, which are half the stores and, as 4 of k in each of 16 lanes, meet
 * four activations at once; and 2 rows x 4 panels are 64 loads for 128 products, where 6 x 2 of pairs were 128 for 192.
 * The first tile of rows takes the packed weights apart as it multiplies, and leaves them for the others.
 *
 * An activation has 16 bits. Its upper byte has a sign, its lower one has none; the instruction (vpdpbusd) wants one
 * factor of either kind. Weights are kept without a sign, as q + offset < 64, and so serve as both:
 *
 *   sum of q * a = 256 * (sum of (q + offset) * upper - offset * sum of upper) + the same of the lower bytes
 *
 * What is subtracted belongs to a row and a group, and both sums start from it: acts.starts holds the two for an offset
 * of 8, for 16, and for 32 in the group's halves. They start from INT_IN_FLOAT besides (below 2^22 they stay: 32 * 31
 * * 255 and 16 * 63 * 255 are), so they are floats as they are; one fma that is exact and an addition that rounds once
 * give float(i), the bits of a conversion of the whole integer. Everything behind is as in x86_product.h.
 *
 * Floor, per row, group and panel: 16 dot products and 4 float operations, 10 cycles. */
#ifndef CPU_X86_PRODUCT_FEW_H
#define CPU_X86_PRODUCT_FEW_H

#define FEW_MOST   64         /* rows; with more there is little to win, and bytes would take memory */
#define FEW_TILE   2          /* rows */
#define FEW_SIDES  PANELS_MAX /* panels side by side */
#define ROW_BYTES  (ACT_BLOCK * ACT_BYTES)
#define ROW_STARTS (ACT_BLOCK * ACT_STARTS)

/* Whether all rows have their bytes and the weights are below 64. */
static bool is_few(const struct product *p, uint32_t row0, uint32_t n_rows)
{
    const struct packed *w = p->w->packed;
    return n_rows > 1 && p->in_rows == NULL && p->first_row + row0 + n_rows <= p->in->few && w->form <= PACK_6;
}

/* Step s of a group, without a sign. */
INLINE struct vi take_byte(enum pack_form form, int offset, const unsigned char *from, int s)
{
    const int at = s % 4, half = s / 4;
    const struct vi b = vi_load(from + at * STEP_BYTES), nibble = vi_set16(0x0f0f);
    const struct vi low = half == 0 ? b : vi_right16(b, 4);
    if (form == PACK_4)
        return offset == 0 ? vi_and(low, nibble) : vi_and_xor(low, nibble, vi_set16(offset * 0x0101));
    const struct vi t = vi_load(from + (form == PACK_6 ? 4 + half : 4) * STEP_BYTES);
    if (form == PACK_5)
        return vi_and_or(half == 0 ? vi_left16(t, 4 - at) : vi_right16(t, at), vi_set16(0x1010), vi_and(low, nibble));
    const struct vi top = at < 2 ? vi_left16(t, 4 - 2 * at) : vi_right16(t, 2 * at - 4);
    return vi_and_or(top, vi_set16(0x3030), vi_and(low, nibble));
}

INLINE int32_t four_at(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

struct few_form {
    enum pack_form form;
    int offset, subs;
    int start; /* place of the group's starts, or -1: there is no offset */
    bool with_min;
};

/* Where a group is: packed, of each panel, for who is first; taken apart, [panel][8]. */
struct few_group {
    const unsigned char *from[FEW_SIDES];
    struct vi *w;
};

/* sum[side][r] = the products of a group, or of one of its halves, with the rows. */
INLINE void few_dots(struct few_form f, bool first, int rows, int sides, int half, const struct few_group *at,
    const uint8_t *a, const int32_t *start, struct vf sum[FEW_SIDES][FEW_TILE])
{
    const int steps = GROUP_STEPS / f.subs, step0 = half * steps;
    struct vi low[FEW_SIDES][FEW_TILE], high[FEW_SIDES][FEW_TILE];
    EACH (c, sides)
        EACH (r, rows) {
            high[c][r] = vi_set32(f.start < 0 ? INT_IN_FLOAT : start[r * ROW_STARTS]);
            low[c][r] = vi_set32(f.start < 0 ? INT_IN_FLOAT : start[r * ROW_STARTS + 1]);
        }
    EACH (s, steps) {
        struct vi h[FEW_TILE], l[FEW_TILE];
        EACH (r, rows) {
            const uint8_t *q = a + r * ROW_BYTES + 4 * (step0 + s);
            h[r] = vi_set32(four_at(q));
            l[r] = vi_set32(four_at(q + ACT_GROUP));
            vi_keep(&h[r]);
            vi_keep(&l[r]);
        }
        EACH (c, sides) {
            struct vi *w = at->w + c * GROUP_STEPS + step0 + s;
            struct vi x = first ? take_byte(f.form, f.offset, at->from[c], step0 + s) : *w;
            vi_keep(&x);
            if (first)
                *w = x;
            EACH (r, rows) {
                high[c][r] = vi_dot_bytes(high[c][r], x, h[r]);
                low[c][r] = vi_dot_bytes(low[c][r], l[r], x);
            }
        }
    }
    EACH (c, sides)
        EACH (r, rows)
            sum[c][r] = vf_add(vf_fma(vf_of_bits(high[c][r]), vf_set(256.0f), vf_set(-257.0f * INT_IN_FLOAT_VALUE)),
                vf_of_bits(low[c][r]));
}

/* A piece with some rows and panels; from is read by the first rows, who fill the room. */
typedef void few_fn(struct product_room *room, const unsigned char *const *from, const struct groups *a,
    uint32_t n_groups, float *total, const struct ahead *ahead);

/* The scales of a group are at most a line. */
INLINE void few_fetch(const struct ahead *h, uint32_t side, size_t data_bytes, uint32_t g)
{
    const char *data = (const char *)h->data[side] + g * data_bytes;
    EACH (i, (int)data_bytes / 64)
        _mm_prefetch(data + 64 * i, _MM_HINT_T0);
    _mm_prefetch((const char *)h->scale[side] + (size_t)g * h->scale_bytes, _MM_HINT_T0);
}

INLINE void few_tile(struct few_form f, bool first, int rows, int sides, struct product_room *room,
    const unsigned char *const *from, const struct groups *a, uint32_t n_groups, float *total,
    const struct ahead *ahead)
{
    const size_t step = data_bytes_of(f.form);
    struct few_group at = {.w = room->w.q};
    const uint8_t *bytes = a->bytes;
    const int32_t *starts = a->starts + (f.start < 0 ? 0 : f.start);
    const float *a_scale = a->scale, *a_sum = a->sum;
    const float *scales = room->scale, *mins = room->min;
    struct vf acc[FEW_SIDES][FEW_TILE];
    EACH (c, sides) {
        at.from[c] = first ? from[c] : NULL;
        EACH (r, rows)
            acc[c][r] = vf_load(total + c * TOTAL_STEP + r * VF);
    }
    for (uint32_t g = 0, asks = ahead->turn; g < n_groups; g++, a_scale++, a_sum++) {
        for (; asks < (g + 1) * (uint32_t)sides; asks += ahead->turns)
            few_fetch(ahead, asks % (uint32_t)sides, step, g);
        EACH (s, f.subs) {
            struct vf sum[FEW_SIDES][FEW_TILE];
            few_dots(f, first, rows, sides, s, &at, bytes, starts + 2 * s, sum);
            EACH (c, sides) {
                const struct vf scale = vf_load(scales + c * PIECE_SCALES);
                EACH (r, rows)
                    acc[c][r] = vf_fma(vf_mul(sum[c][r], scale), vf_set(a_scale[r * ACT_BLOCK]), acc[c][r]);
            }
            if (f.with_min)
                EACH (c, sides) {
                    const struct vf min = vf_load(mins + c * PIECE_SCALES);
                    EACH (r, rows)
                        acc[c][r] = vf_fma(min, vf_set(a_sum[r * ACT_BLOCK]), acc[c][r]);
                }
            scales += VF;
            mins += VF;
        }
        at.w += sides * GROUP_STEPS;
        EACH (c, sides)
            at.from[c] = first ? at.from[c] + step : NULL;
        bytes += ACT_BYTES;
        starts += ACT_STARTS;
    }
    EACH (c, sides)
        EACH (r, rows)
            vf_store(total + c * TOTAL_STEP + r * VF, acc[c][r]);
}

#define FEW_FN(name, first, rows, sides, ...)                                                                          \
    static void few_##name##_##first##_##rows##_##sides(struct product_room *room, const unsigned char *const *from,   \
        const struct groups *a, uint32_t n_groups, float *total, const struct ahead *ahead)                            \
    {                                                                                                                  \
        few_tile((struct few_form){__VA_ARGS__}, first, rows, sides, room, from, a, n_groups, total, ahead);           \
    }
#define FEW_FNS_SIDES(name, first, rows, ...)                                                                          \
    FEW_FN(name, first, rows, 1, __VA_ARGS__)                                                                          \
    FEW_FN(name, first, rows, 2, __VA_ARGS__)                                                                          \
    FEW_FN(name, first, rows, 3, __VA_ARGS__)                                                                          \
    FEW_FN(name, first, rows, 4, __VA_ARGS__)
#define FEW_FNS(name, ...)                                                                                             \
    FEW_FNS_SIDES(name, 0, 1, __VA_ARGS__)                                                                             \
    FEW_FNS_SIDES(name, 0, 2, __VA_ARGS__)                                                                             \
    FEW_FNS_SIDES(name, 1, 1, __VA_ARGS__)                                                                             \
    FEW_FNS_SIDES(name, 1, 2, __VA_ARGS__)
#define FEW_SIDES_OF(name, first)                                                                                      \
    {                                                                                                                  \
        {few_##name##_##first##_1_1, few_##name##_##first##_2_1},                                                      \
            {few_##name##_##first##_1_2, few_##name##_##first##_2_2},                                                  \
            {few_##name##_##first##_1_3, few_##name##_##first##_2_3},                                                  \
            {few_##name##_##first##_1_4, few_##name##_##first##_2_4},                                                  \
    }
#define FEW_ROWS_OF(name)                                                                                              \
    {                                                                                                                  \
        FEW_SIDES_OF(name, 0), FEW_SIDES_OF(name, 1)                                                                   \
    }

FEW_FNS(4, PACK_4, 8, 1, 0, false)
FEW_FNS(4m, PACK_4, 0, 1, -1, true)
FEW_FNS(5, PACK_5, 16, 1, 2, false)
FEW_FNS(5m, PACK_5, 0, 1, -1, true)
FEW_FNS(6, PACK_6, 32, 2, 4, false)

/* By form, whether there are minima, whether it is the first, panels side by side less one, rows less one. */
static few_fn *const few_fns[][2][2][FEW_SIDES][FEW_TILE] = {[PACK_4] = {FEW_ROWS_OF(4), FEW_ROWS_OF(4m)},
    [PACK_5] = {FEW_ROWS_OF(5), FEW_ROWS_OF(5m)},
    [PACK_6] = {FEW_ROWS_OF(6)}};

/* int_piece with a few rows that lie there as bytes. */
static void few_piece(struct product_room *room, const struct product *p, const struct groups *rows, uint32_t n_rows,
    const struct piece *at, float *total, const struct ahead *ahead)
{
    const struct packed *w = p->w->packed;
    const uint32_t n = MIN(p->w->n_in / ACT_GROUP - at->g0, (uint32_t)ACT_BLOCK);
    const uint32_t n_tiles = (n_rows + FEW_TILE - 1) / FEW_TILE;
    const unsigned char *from[FEW_SIDES];
    for (uint32_t i = 0; i < at->sides; i++) {
        const unsigned char *panel = packed_panel(w, p->mat, at->panel + i);
        from[i] = panel + at->g0 * w->data_bytes;
        lay_scales(w, panel, at->g0, n, room->scale + i * PIECE_SCALES, room->min + i * PIECE_SCALES);
    }
    struct ahead share = *ahead;
    share.turns = n_tiles;
    for (uint32_t i = 0; share.turn < n_tiles; share.turn++) {
        const uint32_t left = n_tiles - share.turn, some = (n_rows - i + left - 1) / left;
        const struct groups a = groups_from(rows, (size_t)i * ACT_BLOCK);
        few_fns[w->form][has_min(w)][share.turn == 0][at->sides - 1][some - 1](
            room, from, &a, n, total + (size_t)i * PANEL_COLS, &share);
        i += some;
    }
}

#endif
