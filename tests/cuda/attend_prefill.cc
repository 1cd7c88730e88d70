/* The attention kernel for many rows, for the emulator. */
#include "cuda/attend_prefill.cu"
