// Rotary positions in pairs of neighbours.
#pragma once
#include "common.cuh"

// Channel `at` of channels that turn in pairs of neighbours; `sign` -1 turns back.
template <class T> float turned(const T* from, const float* angles, u32 at, float sign) {
    u32 pair = at / 2;
    float a = value(from + 2 * pair), b = value(from + 2 * pair + 1);
    float cos = angles[2 * pair], sin = sign * angles[2 * pair + 1];
    return at % 2 ? a * sin + b * cos : a * cos - b * sin;
}
