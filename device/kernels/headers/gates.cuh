// The functions of gated linear units, for results of type T: value(gate) * other(up), and the gradients of both.
#pragma once
#include "gelu.cuh"

// A gated value that is taken as it is.
struct PlainOther {
    static float other(float up) { return up; }
    static float other_gradient(float, float grad) { return grad; }
};

struct Gelu : PlainOther {
    template <class T> static float value(float x) { return gelu<T>(x); }
    template <class T> static float derivative(float x, float grad) { return grad * gelu_derivative<T>(x); }
};

// x / (1 + e^-x).
struct Silu : PlainOther {
    template <class T> static float value(float x) { return x * sigmoid<T>(x); }
    template <class T> static float derivative(float x, float grad) {
        float s = sigmoid<T>(x);
        return grad * s * (1.0f + x * (1.0f - s));
    }
};

// x / (1 + e^-1.702 x) of a gate of at most 7, times 1 + a gated value within -7 and 7 (gpt-oss). NaN stays NaN.
struct ClampedSilu {
    static constexpr float LIMIT = 7.0f, SLOPE = 1.702f;
    template <class T> static float value(float x) {
        x = x > LIMIT ? LIMIT : x;
        return x * sigmoid<T>(SLOPE * x);
    }
    template <class T> static float derivative(float x, float grad) {
        if (x > LIMIT) return 0.0f;
        float s = sigmoid<T>(SLOPE * x);
        return grad * s * (1.0f + SLOPE * x * (1.0f - s));
    }
    static float other(float up) { return 1.0f + (up > LIMIT ? LIMIT : up < -LIMIT ? -LIMIT : up); }
    static float other_gradient(float up, float grad) { return fabsf(up) > LIMIT ? 0.0f : grad; }
};
