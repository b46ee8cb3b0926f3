// Rows of a matrix distributed to threads: short rows one per warp, without a barrier, long rows one per block.
#pragma once
#include "common.cuh"

template <bool WARP> struct RowThreads {
    // This thread and all threads of the row; the row's number within the block, and the block's rows.
    static u32 lane() { return WARP ? threadIdx.x % 32 : threadIdx.x; }
    static u32 lanes() { return WARP ? 32 : blockDim.x; }
    static u32 row() { return WARP ? threadIdx.x / 32 : 0; }
    static u32 rows() { return WARP ? blockDim.x / 32 : 1; }
    static float sum(float x) {
        if constexpr (WARP) return warp_sum(x);
        return block_sum(x);
    }
    // Two sums at once, with as many barriers as for one.
    static void sums(float& x, float& y) {
        x = warp_sum(x), y = warp_sum(y);
        if (WARP || blockDim.x == 32) return;
        __shared__ float2 parts[WARP ? 1 : 32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = make_float2(x, y);
        __syncthreads();
        float2 part = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : make_float2(0.0f, 0.0f);
        x = warp_sum(part.x), y = warp_sum(part.y);
    }
};

// A kernel for each number of 16-byte packs a thread keeps: INSTANCE(type, values a pack, packs, warp a row?, suffix).
#define FOR_EACH_ROW_SHAPE(INSTANCE)            \
    INSTANCE(float, 4, 1, true, f32_warp1)      \
    INSTANCE(float, 4, 2, true, f32_warp2)      \
    INSTANCE(float, 4, 4, true, f32_warp4)      \
    INSTANCE(float, 4, 2, false, f32_block)     \
    INSTANCE(bf16, 8, 1, true, bf16_warp1)      \
    INSTANCE(bf16, 8, 2, true, bf16_warp2)      \
    INSTANCE(bf16, 8, 3, true, bf16_warp3)      \
    INSTANCE(bf16, 8, 4, true, bf16_warp4)      \
    INSTANCE(bf16, 8, 2, false, bf16_block)
