/* From the file's blocks to the layouts of formats.cuh, a group of 32 elements per thread. */
#ifndef CUDA_REPACK_CUH
#define CUDA_REPACK_CUH

#include "cuda/formats.cuh"

extern "C" {
#include "tensor/quant.h"
}

/* Eight neighbours' nibbles as one word. */
__device__ __forceinline__ uint32_t nibble_word(const uint8_t q[8])
{
    uint32_t w = 0;
    for (int j = 0; j < 8; j++)
        w |= (uint32_t)(q[j] & 15) << (4 * (j % 2 == 0 ? j / 2 : 4 + j / 2));
    return w;
}

__device__ __forceinline__ void nibbles_store(unsigned char *to, const uint8_t q[32])
{
    *(uint4 *)to = make_uint4(nibble_word(q), nibble_word(q + 8), nibble_word(q + 16), nibble_word(q + 24));
}

/* Group g (32 elements) of a row. */
__device__ inline void repack_q8_0(const unsigned char *row, unsigned char *to, uint32_t g, uint32_t w)
{
    const struct block_q8_0 *b = (const struct block_q8_0 *)row + g;
    for (int i = 0; i < 32; i++)
        to[g * 32 + i] = (unsigned char)b->qs[i];
    *(uint16_t *)(to + w + g * 2) = b->d;
}

__device__ inline void repack_q4_0(const unsigned char *row, unsigned char *to, uint32_t g, uint32_t w)
{
    const struct block_q4_0 *b = (const struct block_q4_0 *)row + g;
    uint8_t q[32];
    for (int i = 0; i < 16; i++) {
        q[i] = b->qs[i] & 15;
        q[i + 16] = b->qs[i] >> 4;
    }
    nibbles_store(to + g * 16, q);
    *(uint16_t *)(to + w / 2 + g * 2) = b->d;
}

__device__ inline void repack_q4_1(const unsigned char *row, unsigned char *to, uint32_t g, uint32_t w)
{
    const struct block_q4_1 *b = (const struct block_q4_1 *)row + g;
    uint8_t q[32];
    for (int i = 0; i < 16; i++) {
        q[i] = b->qs[i] & 15;
        q[i + 16] = b->qs[i] >> 4;
    }
    nibbles_store(to + g * 16, q);
    *(uint16_t *)(to + w / 2 + g * 4) = b->d;
    *(uint16_t *)(to + w / 2 + g * 4 + 2) = b->m;
}

__device__ inline void repack_q4_k(const unsigned char *row, unsigned char *to, uint32_t g, uint32_t w)
{
    const struct block_q4_k *b = (const struct block_q4_k *)row + g / 8;
    const uint32_t j = g % 8;
    const uint8_t *s = b->scales;
    const uint32_t sc = j < 4 ? s[j] & 0x3f : (s[j + 4] & 0x0f) | (s[j - 4] >> 6) << 4;
    const uint32_t mn = j < 4 ? s[j + 4] & 0x3f : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    uint8_t q[32];
    for (int i = 0; i < 32; i++)
        q[i] = b->qs[32 * (j / 2) + i] >> (4 * (j % 2)) & 15;
    nibbles_store(to + g * 16, q);
    *(uint16_t *)(to + w / 2 + g * 2) = (uint16_t)(sc | mn << 8);
    if (j == 0) {
        uint16_t *d = (uint16_t *)(to + w / 2 + w / 16 + g / 8 * 4);
        d[0] = b->d;
        d[1] = b->dmin;
    }
}

__device__ inline void repack_q6_k(const unsigned char *row, unsigned char *to, uint32_t g, uint32_t w)
{
    const struct block_q6_k *b = (const struct block_q6_k *)row + g / 8;
    const uint32_t j = g % 8, half = j / 4, quarter = j % 4; /* elements 128 * half + 32 * quarter + i */
    uint8_t q[32];
    uint32_t high[2] = {0, 0};
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t at = 32 * (quarter % 2) + i; /* within 64 */
        q[i] = b->ql[64 * half + at] >> (4 * (quarter / 2)) & 15;
        const uint32_t top = b->qh[32 * half + i] >> (2 * quarter) & 3, pair = i % 16 / 2;
        high[i / 16] |= top << (2 * pair + 16 * (i % 2));
    }
    nibbles_store(to + g * 16, q);
    *(uint2 *)(to + w / 2 + g * 8) = make_uint2(high[0], high[1]);
    unsigned char *scales = to + w / 2 + w / 4;
    scales[g * 2] = (unsigned char)b->scales[2 * j];
    scales[g * 2 + 1] = (unsigned char)b->scales[2 * j + 1];
    if (j == 0)
        *(uint16_t *)(scales + w / 16 + g / 8 * 2) = b->d;
}

#endif
