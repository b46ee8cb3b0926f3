// Weights that lie as codes of 4 or 8 bits, and back. Every byte is moved once.
#include "common.cuh"

// Values that a thread computes at a time; `VALUES` in `device/src/ops/trainer/low_precision/codes.rs`.
const u32 VALUES = 8;
// Values that share a scale; `CODE_BLOCK` in `device/src/ops/trainer/low_precision/codes.rs`.
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

// Eight values, rounded to bf16.
inline void rounded_values(const float* from, float (&x)[VALUES]) {
    load_f32<VALUES>(from, x);
#pragma unroll
    for (u32 i = 0; i < VALUES; i += 2) {
        u32 pair = pack_bf16x2(x[i], x[i + 1]);
        x[i] = low_bf16(pair), x[i + 1] = high_bf16(pair);
    }
}
inline void rounded_values(const bf16* from, float (&x)[VALUES]) { load<VALUES>(from, x); }

// The scale of a block is its largest magnitude. As many neighbouring threads as have the values of a block find it.
// NaN is no magnitude. Returns the inverse of the scale, or 0 of 0.
inline float scale_of_block(const float (&x)[VALUES], bf16* scales, u64 pack) {
    const u32 SHARE = BLOCK / VALUES;
    float largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < VALUES; i++) largest = fmaxf(largest, fabsf(x[i]));
    // A loop over packs ends for all threads of a block at once: their number is a multiple of that of a block.
    const u32 threads = ((1u << SHARE) - 1) << (threadIdx.x % 32 / SHARE * SHARE);
#pragma unroll
    for (u32 step = 1; step < SHARE; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(threads, largest, step));
    // It has the bits of a bf16.
    if (pack % SHARE == 0) scales[pack / SHARE].bits = (u16)(__float_as_uint(largest) >> 16);
    return largest > 0.0f ? __fdiv_rn(1.0f, largest) : 0.0f;
}

// `NF4_BORDERS` in `device/src/ops/trainer/low_precision/codes.rs`: the code of a value is the number of borders that it
// is above.
inline u32 nf4_code(float x) {
    const float borders[15] = {-0.8480964f,   -0.6106329f, -0.45999527f, -0.33967943f, -0.2346074f,
                               -0.13791173f,  -0.045525018f, 0.03979015f,  0.12025525f,  0.20352125f,
                               0.29201377f,   0.38931254f, 0.50166345f,  0.6427869f,   0.86147845f};
    u32 code = 0;
#pragma unroll
    for (u32 i = 0; i < 15; i++) code += x > borders[i];
    return code;
}

template <class T> void nf4_codes(const T* input, u32* codes, bf16* scales, u64 packs) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < packs; pack += stride) {
        float x[VALUES];
        rounded_values(input + pack * VALUES, x);
        float inverse = scale_of_block(x, scales, pack);
        u32 word = 0;
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            word |= nf4_code(__fmul_rn(x[i], inverse)) << (i / 2 * 8 + (i % 2 == 0 ? 4 : 0));
        }
        codes[pack] = word;
    }
}

// Numbers are rounded to nearest even. NaN is 0.
template <class T> void int8_codes(const T* input, uint2* codes, bf16* scales, u64 packs) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < packs; pack += stride) {
        float x[VALUES];
        rounded_values(input + pack * VALUES, x);
        float inverse = scale_of_block(x, scales, pack);
        u32 words[2] = {0, 0};
#pragma unroll
        for (u32 i = 0; i < VALUES; i++) {
            int code = __float2int_rn(__fmul_rn(__fmul_rn(x[i], inverse), 127.0f));
            words[i / 4] |= ((u32)min(max(code, -127), 127) & 255) << i % 4 * 8;
        }
        codes[pack] = make_uint2(words[0], words[1]);
    }
}

#define CODED_VALUES(T, suffix)                                                                       \
    KERNEL(nf4_values_##suffix)(const u32* codes, const bf16* scales, T* output, u64 packs) {         \
        begin_kernel();                                                                               \
        nf4_values(codes, scales, output, packs);                                                     \
    }                                                                                                 \
    KERNEL(int8_values_##suffix)(const uint2* codes, const bf16* scales, T* output, u64 packs) {      \
        begin_kernel();                                                                               \
        int8_values(codes, scales, output, packs);                                                    \
    }                                                                                                 \
    KERNEL(nf4_codes_##suffix)(const T* input, u32* codes, bf16* scales, u64 packs) {                 \
        begin_kernel();                                                                               \
        nf4_codes(input, codes, scales, packs);                                                       \
    }                                                                                                 \
    KERNEL(int8_codes_##suffix)(const T* input, uint2* codes, bf16* scales, u64 packs) {              \
        begin_kernel();                                                                               \
        int8_codes(input, codes, scales, packs);                                                      \
    }
CODED_VALUES(float, f32)
CODED_VALUES(bf16, bf16)
