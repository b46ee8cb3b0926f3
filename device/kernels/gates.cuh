// The functions of gated linear units, for results of type T.
#pragma once
#include "gelu.cuh"

struct Gelu {
    template <class T> static float value(float x) { return gelu<T>(x); }
    template <class T> static float derivative(float x, float grad) { return grad * gelu_derivative<T>(x); }
};

// x / (1 + e^-x).
struct Silu {
    template <class T> static float value(float x) { return x * sigmoid<T>(x); }
    template <class T> static float derivative(float x, float grad) {
        float s = sigmoid<T>(x);
        return grad * s * (1.0f + x * (1.0f - s));
    }
};
