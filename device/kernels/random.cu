// Numbers to time libraries on: a GPU is slower on random bits than on zeros, as it draws more power.
#include "common.cuh"

// Evenly spread over [-1, 1): a hash of the index (Wellons' triple32, two rounds).
inline float noise(u64 index, u32 seed) {
    u32 x = (u32)index * 2654435761u ^ (u32)(index >> 32) ^ seed;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (float)(int)x * (1.0f / 2147483648.0f);
}

template <class T> void fill(T* output, u64 count, u32 seed) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += stride) set(output + i, noise(i, seed));
}

KERNEL(random_f32)(float* output, u64 count, u32 seed) { fill(output, count, seed); }
KERNEL(random_bf16)(bf16* output, u64 count, u32 seed) { fill(output, count, seed); }
