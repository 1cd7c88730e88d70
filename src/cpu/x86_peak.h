/* The most arithmetic a core can do with the instructions that the products use, and nothing else: no loads, no scales.
 * What `quern bench` measures the products against. The body, compiled into each variant. In assembly, so that no
 * compiler finds out that nothing is computed. */
#ifndef CPU_X86_PEAK_H
#define CPU_X86_PEAK_H

#include "cpu/x86_simd.h"

#define PEAK_CHAINS 12 /* independent sums: at least latency times instructions a cycle */

#ifdef QUERN_AVX512
#define PEAK_STEP_F(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define PEAK_STEP_I(n) "vpdpwssd %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define PEAK_OPS_F     32 /* of one instruction; a multiplication and an addition are two */
#define PEAK_OPS_I     64
#else
#define PEAK_STEP_F(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define PEAK_STEP_I(n) "vpmaddwd %%ymm14, %%ymm15, %%ymm13\n\tvpaddd %%ymm13, %%ymm" #n ", %%ymm" #n "\n\t"
#define PEAK_OPS_F     16
#define PEAK_OPS_I     32
#endif
#define PEAK_ALL(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)

/* Operations done in that many rounds. */
static uint64_t peak_x86(bool integers, uint64_t rounds)
{
    for (uint64_t r = 0; r < rounds; r++)
        if (integers)
            __asm__ volatile(PEAK_ALL(PEAK_STEP_I)::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                             "xmm10", "xmm11", "xmm13");
        else
            __asm__ volatile(
                PEAK_ALL(PEAK_STEP_F)::
                    : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11");
    return rounds * PEAK_CHAINS * (integers ? PEAK_OPS_I : PEAK_OPS_F);
}

#endif
