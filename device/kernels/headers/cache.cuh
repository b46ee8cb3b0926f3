// A position in device memory, so that one graph serves every token.
#pragma once
#include "common.cuh"

// The position, clamped so that `rows` from it fit into `capacity`.
inline u32 position(const int* start, u32 rows, u32 capacity) {
    int at = *start;
    return at < 0 ? 0 : min((u32)at, capacity - rows);
}
