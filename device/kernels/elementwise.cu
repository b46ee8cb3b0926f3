// Copies, sums and constants.
#include "common.cuh"

// output[i] = value
KERNEL(fill_f32)(float* output, float value, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) output[i] = value;
}
