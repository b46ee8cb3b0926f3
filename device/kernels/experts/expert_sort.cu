// Stable counting sort of pairs by expert: counts of every tile, their sums, then each pair goes to its row. Integers
// only: always the same order. It reads the experts of pairs twice and writes two numbers for each pair. Dropped pairs are
// sorted as if they had an expert of their own, after all others.
#include "scan.cuh"

// Experts at most: two for each thread; `EXPERTS` in `device/src/ops/trainer/experts/kernels.rs`. Dropped pairs come on top.
const u32 EXPERTS = 512;
const u32 WARPS = SCAN_THREADS / 32;
// Pairs of one block, and of each of its warps; `TILE` in `device/src/ops/trainer/experts/sort.rs`.
const u32 TILE = 2048;
const u32 WARP_TILE = TILE / WARPS;
const u32 ROUNDS = WARP_TILE / 32;
const u32 NONE = 0xffffffffu;

struct SortByExpert {
    const int* chosen; // (count)
    int* offsets;      // (experts + 1)
    int* pairs;        // (count)
    int* rows;         // (count)
    u32* counts;       // (experts + 1, tiles), scratch
    u32* totals;       // (experts + 1), scratch
    u32 count;
    u32 experts;
    u32 tiles;
    u32 first;
};

// `op.experts` if the pair is dropped. Numbers below the first wrap round.
inline u32 expert_of(const SortByExpert& op, u32 pair) { return min((u32)op.chosen[pair] - op.first, op.experts); }

// counts[expert, tile]
KERNEL(expert_count)(const SortByExpert op) {
    begin_kernel();
    __shared__ u32 histogram[EXPERTS + 1];
    for (u32 e = threadIdx.x; e <= op.experts; e += blockDim.x) histogram[e] = 0;
    __syncthreads();
    u32 start = blockIdx.x * TILE, end = min(op.count, start + TILE);
    for (u32 i = start + threadIdx.x; i < end; i += blockDim.x) atomicAdd(&histogram[expert_of(op, i)], 1u);
    __syncthreads();
    for (u32 e = threadIdx.x; e <= op.experts; e += blockDim.x) {
        op.counts[(u64)e * op.tiles + blockIdx.x] = histogram[e];
    }
}

// Replaces the counts of an expert by the sums of those before, and keeps the sum of all. A block takes an expert.
KERNEL(expert_scan)(const SortByExpert op) {
    begin_kernel();
    u32* counts = op.counts + (u64)blockIdx.x * op.tiles;
    u32 sum = 0;
    for (u32 first = 0; first < op.tiles; first += SCAN_THREADS) {
        u32 tile = first + threadIdx.x, all, before = sum_before(tile < op.tiles ? counts[tile] : 0, all);
        if (tile < op.tiles) counts[tile] = sum + before;
        sum += all;
    }
    if (threadIdx.x == 0) op.totals[blockIdx.x] = sum;
}

// Gives a tile's pairs their rows. Warps have consecutive parts of the tile and go through them in order, so that pairs
// of one expert keep their order.
KERNEL(expert_move)(const SortByExpert op) {
    begin_kernel();
    __shared__ u32 place[WARPS][EXPERTS + 1];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 w = 0; w < WARPS; w++) {
        for (u32 e = threadIdx.x; e <= op.experts; e += SCAN_THREADS) place[w][e] = 0;
    }
    // The first rows of this thread's two experts.
    u32 expert = 2 * threadIdx.x, all;
    u32 totals[2] = {expert < op.experts ? op.totals[expert] : 0, expert + 1 < op.experts ? op.totals[expert + 1] : 0};
    u32 first[2];
    first[0] = sum_before(totals[0] + totals[1], all);
    first[1] = first[0] + totals[0];
    if (blockIdx.x == 0) {
        for (u32 s = 0; s < 2; s++) {
            if (expert + s < op.experts) op.offsets[expert + s] = (int)first[s];
        }
        if (threadIdx.x == 0) op.offsets[op.experts] = (int)all;
    }
    u32 start = blockIdx.x * TILE + warp * WARP_TILE + lane, mine[ROUNDS];
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) mine[r] = start + 32 * r < op.count ? expert_of(op, start + 32 * r) : NONE;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        if (mine[r] != NONE) atomicAdd(&place[warp][mine[r]], 1u);
    }
    __syncthreads();
#pragma unroll
    for (u32 s = 0; s < 3; s++) {
        // The first thread also has the dropped pairs.
        bool dropped = s == 2;
        u32 e = dropped ? op.experts : expert + s;
        if (dropped ? threadIdx.x != 0 : e >= op.experts) continue;
        u32 row = (dropped ? all : first[s % 2]) + op.counts[(u64)e * op.tiles + blockIdx.x];
        for (u32 w = 0; w < WARPS; w++) {
            u32 here = place[w][e];
            place[w][e] = row;
            row += here;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        u32 pair = start + 32 * r;
        // Threads past the end have an expert of their own, and no row.
        bool inside = mine[r] != NONE;
        u32 same = __match_any_sync(0xffffffffu, mine[r]), before = __popc(same & ((1u << lane) - 1));
        u32 row = inside ? place[warp][mine[r]] + before : 0;
        __syncwarp();
        if (inside) {
            bool dropped = mine[r] == op.experts;
            op.rows[pair] = dropped ? -1 : (int)row;
            op.pairs[row] = dropped ? -1 - (int)pair : (int)pair;
            if (before == 0) place[warp][mine[r]] = row + __popc(same);
        }
        __syncwarp();
    }
}
