// Stable sort of (token, position) pairs by token: radix sort from the lowest digit (LSD), 8 bits a pass. Each pass
// counts the digits of every tile, turns the counts into offsets, and moves the pairs. Integers only: always the same
// order.
#include "common.cuh"

const u32 DIGITS = 256;
const u32 WARPS = 8;
// Pairs of one block, and of each of its warps; `TILE` in `device/src/ops/trainer/losses/embedding/launch.rs`.
const u32 TILE = 2048;
const u32 WARP_TILE = TILE / WARPS;

// pairs[i] = (row of the token at position i) in the upper half, i in the lower. The table begins with token `first`; a
// token outside of it has row `vocab`.
KERNEL(sort_begin)(const int* tokens, u64* pairs, u32 count, u32 vocab, u32 first) {
    begin_kernel();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    u32 token = (u32)tokens[i] - first; // one before the first wraps to a number beyond the last
    pairs[i] = (u64)min(token, vocab) << 32 | i;
}

inline u32 digit_of(u64 pair, u32 shift) { return (u32)(pair >> 32 >> shift) % DIGITS; }

// counts[digit, tile]
KERNEL(sort_count)(const u64* pairs, u32* counts, u32 count, u32 shift) {
    begin_kernel();
    __shared__ u32 histogram[DIGITS];
    histogram[threadIdx.x] = 0;
    __syncthreads();
    u32 start = blockIdx.x * TILE, end = min(count, start + TILE);
    for (u32 i = start + threadIdx.x; i < end; i += blockDim.x) atomicAdd(&histogram[digit_of(pairs[i], shift)], 1u);
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = histogram[threadIdx.x];
}

// Replaces every count by the sum of those before it. One block of 1024 threads, each with a run of counts.
KERNEL(sort_offsets)(u32* counts, u32 count) {
    begin_kernel();
    __shared__ u32 sums[32];
    u32 run = (count + blockDim.x - 1) / blockDim.x, start = min(count, threadIdx.x * run), end = min(count, start + run);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = 0;
    for (u32 i = start; i < end; i++) sum += counts[i];
    // Inclusive sums over the warp, then over the warps.
    u32 before = sum;
    for (int distance = 1; distance < 32; distance *= 2) {
        u32 other = __shfl_up_sync(0xffffffffu, before, distance);
        if (lane >= distance) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    u32 offset = before - sum;
    for (u32 w = 0; w < warp; w++) offset += sums[w];
    for (u32 i = start; i < end; i++) {
        u32 here = counts[i];
        counts[i] = offset;
        offset += here;
    }
}

// Moves a tile's pairs to their places. Warps have consecutive parts of the tile and go through them in order, so that
// equal digits keep their order.
KERNEL(sort_move)(const u64* pairs, u64* sorted, const u32* offsets, u32 count, u32 shift) {
    begin_kernel();
    __shared__ u32 place[WARPS][DIGITS];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 w = 0; w < WARPS; w++) place[w][threadIdx.x] = 0;
    __syncthreads();
    u32 start = blockIdx.x * TILE + warp * WARP_TILE;
    for (u32 round = 0; round < WARP_TILE; round += 32) {
        u32 i = start + round + lane;
        if (i < count) atomicAdd(&place[warp][digit_of(pairs[i], shift)], 1u);
    }
    __syncthreads();
    u32 offset = offsets[threadIdx.x * gridDim.x + blockIdx.x];
    for (u32 w = 0; w < WARPS; w++) {
        u32 here = place[w][threadIdx.x];
        place[w][threadIdx.x] = offset;
        offset += here;
    }
    __syncthreads();
    for (u32 round = 0; round < WARP_TILE; round += 32) {
        u32 i = start + round + lane;
        // Lanes past the end have a digit of their own, and none after them.
        u64 pair = i < count ? pairs[i] : 0;
        u32 digit = i < count ? digit_of(pair, shift) : DIGITS;
        u32 same = __match_any_sync(0xffffffffu, digit), before = __popc(same & ((1u << lane) - 1));
        u32 first = i < count ? place[warp][digit] : 0;
        if (i < count) sorted[first + before] = pair;
        __syncwarp();
        if (i < count && before == 0) place[warp][digit] = first + __popc(same);
        __syncwarp();
    }
}
