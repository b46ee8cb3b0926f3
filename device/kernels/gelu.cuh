// GELU in its tanh form, and its gradient.
#pragma once
#include "common.cuh"

// 2 sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)) is the sigmoid of 2 u, a division less.
inline float twice_u(float x) { return 1.5957691216f * x * fmaf(0.044715f * x, x, 1.0f); }

// For results of type T, as `sigmoid`.
template <class T> float gelu(float x) { return x * sigmoid<T>(twice_u(x)); }

template <class T> float gelu_derivative(float x) {
    float s = sigmoid<T>(twice_u(x));
    return s + x * s * (1.0f - s) * (1.5957691216f * fmaf(3.0f * 0.044715f * x, x, 1.0f));
}
