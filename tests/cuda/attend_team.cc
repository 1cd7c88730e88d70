/* The attention kernel for few rows by teams of warps, for the emulator. */
#include "cuda/attend_team.cu"
