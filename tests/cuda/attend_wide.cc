/* The attention kernel of the warpgroup's matrix unit, for the emulator. */
#include "cuda/attend_wide.cu"
