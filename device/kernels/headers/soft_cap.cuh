// The bound cap * tanh(x / cap) of logits and attention scores, and its gradient.
#pragma once
#include "common.cuh"

// For results of type T. bf16 holds fewer digits than the difference from 1 loses.
template <class T> float soft_cap(float x, float cap);
template <> inline float soft_cap<float>(float x, float cap) { return cap * tanhf(x / cap); }
template <> inline float soft_cap<bf16>(float x, float cap) {
    return cap * fmaf(2.0f, sigmoid<bf16>(__fdividef(2.0f * x, cap)), -1.0f);
}

// The derivative at the bounded value `capped`.
inline float soft_cap_slope(float capped, float cap) {
    float tanh = __fdividef(capped, cap);
    return 1.0f - tanh * tanh;
}
