// Work over many tensors at once: a table of tensors, passed by value and split into chunks of fixed size. One block
// per chunk.
#pragma once
#include "common.cuh"

// Elements of a chunk; `CHUNK` in `device/src/gpu_types/table.rs`.
const u32 CHUNK = 1 << 14;

// The last of `count` tensors that starts at or before this block's chunk.
template <class Entry> u32 tensor_of_block(const Entry* entries, u32 count) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (entries[middle].first_chunk <= blockIdx.x) low = middle;
        else high = middle;
    }
    return low;
}
