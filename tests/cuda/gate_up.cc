/* Gate and up, for the emulator. */
#include "cuda/gate_up.cu"
