/* The product kernel for 3 to 32 rows, for the emulator. */
#include "cuda/even.cu"
