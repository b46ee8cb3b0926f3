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

KERNEL(random_f32)(float* output, u64 count, u32 seed) { begin_kernel(); fill(output, count, seed); }
KERNEL(random_bf16)(bf16* output, u64 count, u32 seed) { begin_kernel(); fill(output, count, seed); }

// The same numbers in an 8-bit floating type, towards zero, and 0 if they are below its normal ones. By bits, so that
// every GPU can: the sign, then the exponent and the upper bits of the mantissa, with the bias moved.
template <int MANTISSA, int BIAS> u8 truncated(float x) {
    u32 bits = __float_as_uint(x);
    int code = (int)((bits & 0x7fffffffu) >> (23 - MANTISSA)) - ((127 - BIAS) << MANTISSA);
    return (u8)(bits >> 24 & 0x80u | (code < 1 << MANTISSA ? 0 : code));
}

template <int MANTISSA, int BIAS> void fill_f8(u8* output, u64 count, u32 seed) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += stride) {
        output[i] = truncated<MANTISSA, BIAS>(noise(i, seed));
    }
}

KERNEL(random_f8e4m3)(u8* output, u64 count, u32 seed) { begin_kernel(); fill_f8<3, 7>(output, count, seed); }
KERNEL(random_f8e5m2)(u8* output, u64 count, u32 seed) { begin_kernel(); fill_f8<2, 15>(output, count, seed); }
