/* Gate and up of many rows, for the emulator. */
#include "cuda/many.cu"
