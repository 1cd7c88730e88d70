/* The kernels that plan a step's attention, for the emulator. */
#include "cuda/attend_plan.cu"
