// Conversion to the two 8-bit floating types, scales and magnitudes.
#pragma once
#include "common.cuh"

// The numbers nearest to `low` and `high`, `low` in the lower byte; finite ones beyond the largest become the largest,
// NaN stays NaN. The host refuses GPUs that have no such instruction.
template <bool E5M2> u32 pack_f8x2(float low, float high) {
    u16 packed = 0;
#if __CUDA_ARCH__ >= 890
    if constexpr (E5M2) asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
#endif
    return packed;
}

// The same for four numbers. As one piece of assembly it takes two instructions: the second conversion puts its bytes
// beside those of the first.
template <bool E5M2> u32 pack_f8x4(float a, float b, float c, float d) {
    u32 packed = 0;
#if __CUDA_ARCH__ >= 890
    if constexpr (E5M2) {
        asm("{ .reg .b16 low, high; cvt.rn.satfinite.e5m2x2.f32 low, %2, %1; cvt.rn.satfinite.e5m2x2.f32 high, %4, %3;"
            " mov.b32 %0, {low, high}; }"
            : "=r"(packed)
            : "f"(a), "f"(b), "f"(c), "f"(d));
    } else {
        asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;"
            " mov.b32 %0, {low, high}; }"
            : "=r"(packed)
            : "f"(a), "f"(b), "f"(c), "f"(d));
    }
#endif
    return packed;
}

// x * inverse, infinity as NaN: 0 times infinity is NaN, and finite numbers stay the same.
inline float scaled(float x, float inverse) {
    float y = x * inverse;
    return fmaf(y, 0.0f, y);
}

template <bool E5M2> uint2 pack_f8x8(const float (&x)[8], float inverse) {
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pack_f8x2<E5M2>(scaled(x[2 * i], inverse), scaled(x[2 * i + 1], inverse));
    return make_uint2(__byte_perm(pairs[0], pairs[1], 0x5410), __byte_perm(pairs[2], pairs[3], 0x5410));
}

// Eight values as bytes, the first one lowest. All threads take the same way.
inline uint2 quantized(const float (&x)[8], float inverse, u32 e5m2) {
    return e5m2 ? pack_f8x8<true>(x, inverse) : pack_f8x8<false>(x, inverse);
}

// The factor of values. A scale of 0 is not known yet, and makes all values 0.
inline float inverse_of(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

// The scale that makes the largest magnitude the largest number of the type, as `scale_now` in
// `device/src/ops/trainer/low_precision/quantize/host.rs`.
inline float scale_of(float amax, float largest) {
    if (amax == 0.0f) return 1.0f;
    if (!(amax < infinity())) return __int_as_float(0x7fc00000);
    return fmaxf(amax / largest, 1.17549435e-38f);
}

// ---- Magnitudes: numbers that are not negative have the order of their bits, infinity and NaN above all ----------

inline u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// NaN is larger than all numbers.
inline float larger(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
