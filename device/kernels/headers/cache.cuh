// A position in device memory, so that one graph serves every token, and attention over a cache by the warps of a block.
#pragma once
#include "common.cuh"

// The position, clamped so that `rows` from it fit into `capacity`.
inline u32 position(const int* start, u32 rows, u32 capacity) {
    int at = *start;
    return at < 0 ? 0 : min((u32)at, capacity - rows);
}

constexpr int WARPS = 8;

// What the warps of a block found for a query, each in its keys: the highest score, the sum of weights, and the weighted
// sums of channels. A warp without keys has minus infinity and so no weight; warp 0 has a key.
template <int LANES> struct Found {
    float highest[WARPS], total[WARPS], sums[WARPS][32 * LANES];

    // What one warp found. Lane l has channels l, l + 32, ... All threads of the block call it.
    void put(float of_warp, float weights, const float (&sum)[LANES]) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) highest[warp] = of_warp, total[warp] = weights;
#pragma unroll
        for (int i = 0; i < LANES; i++) sums[warp][lane + 32 * i] = sum[i];
        __syncthreads();
    }

    float highest_of_all() const {
        float top = highest[0];
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, highest[w]);
        return top;
    }

    // In the order of warps, as are the sums.
    float weights(float top) const {
        float all = 0.0f;
        for (int w = 0; w < WARPS; w++) all += total[w] * expf(highest[w] - top);
        return all;
    }

    float sum(u32 channel, float top) const {
        float x = 0.0f;
        for (int w = 0; w < WARPS; w++) x += sums[w][channel] * expf(highest[w] - top);
        return x;
    }
};
