/* Descriptions of matrices for the copy engine, for the emulator, which has the driver's function. */
#include "cuda/tma.cu"
