/* The attention kernel for few rows in chunks, for the emulator. */
#include "cuda/attend_chunks.cu"
