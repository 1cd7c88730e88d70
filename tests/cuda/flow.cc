/* The product kernel whose sums are one chain, for the emulator. */
#include "cuda/flow.cu"
