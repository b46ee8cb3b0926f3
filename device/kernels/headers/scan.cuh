// Sums over the threads before each thread of a block.
#pragma once
#include "common.cuh"

// Threads of a block that calls `sum_before`.
const u32 SCAN_THREADS = 256;

// The sum of the numbers of the threads before this one; `all` becomes the sum over all. All threads of the block call
// it.
inline u32 sum_before(u32 number, u32& all) {
    const u32 warps = SCAN_THREADS / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __shared__ u32 sums[warps];
    u32 through = number;
    for (u32 distance = 1; distance < 32; distance *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, through, distance);
        if (lane >= distance) through += other;
    }
    // The sums of an earlier call have been read.
    __syncthreads();
    if (lane == 31) sums[warp] = through;
    __syncthreads();
    u32 before = through - number;
    all = 0;
#pragma unroll
    for (u32 w = 0; w < warps; w++) {
        if (w < warp) before += sums[w];
        all += sums[w];
    }
    return before;
}
