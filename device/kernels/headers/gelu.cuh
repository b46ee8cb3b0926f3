// GELU in its tanh form, and its gradient.
#pragma once
#include "common.cuh"

// 2 sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)) is the sigmoid of 2 u, a division less.
inline float twice_u(float x) { return 1.5957691216f * x * fmaf(0.044715f * x, x, 1.0f); }

// 0.5 (1 + tanh(u)), for results of type T as `sigmoid`. That for bf16 has the factors of all powers of x multiplied out.
template <class T> float gelu_sigmoid(float x);
template <> inline float gelu_sigmoid<float>(float x) { return sigmoid<float>(twice_u(x)); }
template <> inline float gelu_sigmoid<bf16>(float x) {
    float y, exponent = x * fmaf(x * x, -0.1029432397f, -2.3022081985f);
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(exponent));
    return __fdividef(1.0f, 1.0f + y);
}

template <class T> float gelu(float x) { return x * gelu_sigmoid<T>(x); }

template <class T> float gelu_derivative(float x) {
    float s = gelu_sigmoid<T>(x);
    return fmaf(x * s * (1.0f - s), fmaf(x * x, 0.2140644488f, 1.5957691216f), s);
}
