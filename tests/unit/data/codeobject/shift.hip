#include <hip/hip_runtime.h>

__global__ void shift(float *x, float a) { x[threadIdx.x] += a; }
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
