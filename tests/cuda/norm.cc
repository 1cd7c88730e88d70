/* The norms, for the emulator. */
#include "cuda/norm.cu"
