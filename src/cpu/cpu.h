/* cpu: the backend that is always there. One orchestration of the ops (ops_cpu.c: what is cut into which tiles), over
 * tables of kernels: plain C first (ops_ref.c, attend_ref.c), which is the oracle and runs anywhere.
 *
 * Law 1 here is bitwise and always on. What makes an output element, in this order and no other:
 *
 * - Activations in 16 bits, where weights are quantised: per row, in groups of 32. scale = max|x| / 32767;
 *   q = x * (32767 / max|x|) rounded to nearest, ties to even. A group whose max|x| is below 2^-100 counts as zeros:
 *   scale 0, q = 0. A group with NaN or infinity has scale NaN and q = 0, which makes its own row NaN and no other.
 *   16 bits and not 8, for every type: 8 bits change one choice in 25 of a small model; 16 change none that anybody
 *   could tell from float rounding (docs/benchmarks.md has both figures, and what it costs).
 * - Quantised weights: each 16 weights are s * q + m with integers |q| <= 128. Ascending over the sub-groups of 16:
 *   acc += (s * scale) * float(sum of q * qa), then, for types with a minimum, acc += m * (scale * float(sum of qa)).
 *   Integer sums are exact: 16 * 128 * 32767 < 2^31.
 * - Float weights: converted to f32; eight partial sums by k mod 8, each ascending in k, product and addition rounded
 *   separately; joined as ((0+4)+(2+6)) + ((1+5)+(3+7)).
 * - Norms: the same eight sums and tree over x * x; then x * (1 / sqrt(sum / n + eps)) * gain, left to right.
 * - Attention: per row and head, over tiles of 64 absolute positions ascending from the tile of the first visible one:
 *   m' = max(m, scores of the tile); sum and output times exp(m - m'); then position by position ascending sum += p,
 *   out += p * v. A masked position takes no part. At the end out / sum. Keys and values of this very step are read
 *   back from the cache, rounded. A quantised cache group that cannot hold its values is NaN as a whole.
 * - Experts: each expert's output row is complete before it is scaled and added, in the route's order.
 *
 * Work is cut over rows and output columns, never over k, so 1 and 16 threads give the same bits.
 *
 * Threads: one thread drives a device; it calls the worker team and joins before an op returns. */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "tensor/ops.h"

/* The fastest row of the table that this machine can run. */
const struct ops *cpu_ops(void);

/* A row by name ("cpu-ref"), for tests and the debug option; NULL when there is none or it cannot run here. */
const struct ops *cpu_ops_by_name(const char *name);

/* The rows of the table in order, those that cannot run here included; NULL behind the last. For tests: a new variant
 * is held to everything by being a row. */
const struct ops *cpu_ops_at(uint32_t i);

/* Do `rounds` rounds of nothing but the arithmetic that this row's products are made of, on the calling thread: 16-bit
 * integer or f32. How many operations that was, for whoever looks at the clock; 0 for a row without such a limit. */
uint64_t cpu_peak(const struct ops *ops, bool integers, uint64_t rounds);

#endif
