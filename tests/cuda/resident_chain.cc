/* The kernel of whole steps of one or two rows with --deterministic, for the emulator. */
#include "cuda/formats.cuh" /* which has a way of its own where there is no card */
#define __CUDA_ARCH__ 900
#include "cuda/resident_chain.cu"
