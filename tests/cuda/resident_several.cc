/* The kernel of whole steps of 3 to 32 rows, for the emulator. */
#include "cuda/formats.cuh" /* which has a way of its own where there is no card */
#define __CUDA_ARCH__ 900
#include "cuda/resident_several.cu"
