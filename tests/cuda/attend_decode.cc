/* The attention kernels for few rows and for fixed cuts, for the emulator. */
#include "cuda/attend_decode.cu"
