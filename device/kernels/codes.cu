// Weights that lie as codes of 4 or 8 bits. Every byte is moved once.
#include "common.cuh"

// Values that a thread computes at a time; `VALUES` in `device/src/cuda/ops/trainer/codes.rs`.
const u32 VALUES = 8;
// Values that share a scale; `CODE_BLOCK` in `device/src/ops/trainer/codes.rs`.
const u32 BLOCK = 64;

// `NF4_VALUES` there.
__constant__ float NF4_VALUES[16] = {-1.0f,         -0.6961928f,  -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f,
                                     -0.091050036f, 0.0f,         0.0795803f,   0.1609302f,  0.2461123f,   0.33791524f,
                                     0.44070983f,   0.562617f,    0.72295684f,  1.0f};

inline void store_values(float* to, const float (&x)[VALUES]) { store_f32<VALUES>(to, x); }
inline void store_values(bf16* to, const float (&x)[VALUES]) { store<VALUES>(to, x); }

// output[i] = the value of the code i, times the scale of its block. Of a byte's two codes the upper one is first. Each thread of
// a warp looks codes up in a table of its own, so that none waits for another's bank.
template <class T> void nf4_values(const u32* codes, const bf16* scales, T* output, u64 packs) {
    __shared__ float table[16][32];
    for (u32 at = threadIdx.x; at < 16 * 32; at += blockDim.x) table[at / 32][at % 32] = NF4_VALUES[at / 32];
    __syncthreads();
    const u32 lane = threadIdx.x % 32;
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < packs; pack += stride) {
        u32 word = codes[pack];
        float scale = value(scales + pack / (BLOCK / VALUES)), x[VALUES];
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            u32 shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
            x[i] = __fmul_rn(table[word >> shift & 15][lane], scale);
        }
        store_values(output + pack * VALUES, x);
    }
}

// The code i is a whole number of 8 bits, times the 127th part of the scale of its block.
template <class T> void int8_values(const uint2* codes, const bf16* scales, T* output, u64 packs) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < packs; pack += stride) {
        uint2 words = codes[pack];
        float factor = __fmul_rn(value(scales + pack / (BLOCK / VALUES)), 1.0f / 127.0f), x[VALUES];
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            u32 word = i < 4 ? words.x : words.y;
            x[i] = __fmul_rn((float)(int)(signed char)(word >> i % 4 * 8), factor);
        }
        store_values(output + pack * VALUES, x);
    }
}

#define CODED_VALUES(T, suffix)                                                                        \
    KERNEL(nf4_values_##suffix)(const u32* codes, const bf16* scales, T* output, u64 packs) {         \
        begin_kernel();                                                                                \
        nf4_values(codes, scales, output, packs);                                                      \
    }                                                                                                  \
    KERNEL(int8_values_##suffix)(const uint2* codes, const bf16* scales, T* output, u64 packs) {      \
        begin_kernel();                                                                                \
        int8_values(codes, scales, output, packs);                                                     \
    }
CODED_VALUES(float, f32)
CODED_VALUES(bf16, bf16)
