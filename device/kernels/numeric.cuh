// Numbers as kernels compute with them: f32 in registers, f32 or bf16 in memory. Rounding is to nearest even, NaN stays.
#pragma once
#include "common.cuh"

// Not a literal: the macro is in a header we do not include.
__device__ inline float infinity() { return __int_as_float(0x7f800000); }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

__device__ inline void store(float* to, float x) { *to = x; }
__device__ inline void store(bf16* to, float x) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x)); }

// Four neighbours; the address is a multiple of their size.
__device__ inline float4 load4(const float* from) { return *(const float4*)from; }
__device__ inline float4 load4(const bf16* from) {
    uint2 bits = *(const uint2*)from;
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                       __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}

__device__ inline void store4(float* to, float4 x) { *(float4*)to = x; }
__device__ inline void store4(bf16* to, float4 x) {
    uint2 bits; // the first source of the instruction becomes the upper half
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits.x) : "f"(x.y), "f"(x.x));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits.y) : "f"(x.w), "f"(x.z));
    *(uint2*)to = bits;
}

// GELU, tanh form, as x times the sigmoid of 2 sqrt(2/pi) (x + 0.044715 x^3): one division less than through tanh.
__device__ inline float gelu_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-1.5957691216f * x * (1.0f + 0.044715f * x * x)));
}
__device__ inline float gelu(float x) { return x * gelu_sigmoid(x); }
__device__ inline float gelu_derivative(float x) {
    float s = gelu_sigmoid(x);
    return s + x * s * (1.0f - s) * (1.5957691216f * (1.0f + 3.0f * 0.044715f * x * x));
}
