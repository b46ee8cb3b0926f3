// Ranges that lie behind each other, by their offsets.
#pragma once
#include "common.cuh"

// The number of the first `count` ranges that end at or before `row`: the range that has it. The i-th range ends at
// offsets[i + 1].
inline u32 range_with(const int* offsets, u32 count, int row) {
    u32 first = 0, end = count;
    while (first < end) {
        u32 middle = (first + end) / 2;
        if (offsets[middle + 1] <= row) {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    return first;
}
