/* Queries, keys and values, for the emulator. */
#include "cuda/qkv.cu"
