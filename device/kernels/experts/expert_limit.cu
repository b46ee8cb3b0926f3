// A bound of the load of experts: each keeps the pairs with the highest weights, of equal ones the first. A block takes an
// expert. It finds the lowest weight that is kept by a radix select, 8 bits at a time, then goes through the pairs in order.
// Whole numbers are counted, so no order matters. It reads the experts of all pairs up to five times, for each expert.
#include "scan.cuh"

// Pairs that a thread takes in a row, when it goes through them in order.
const u32 RUN = 8;
// Values of 8 bits, one for each thread.
const u32 DIGITS = SCAN_THREADS;

struct LimitLoad {
    const int* chosen;    // (count)
    const float* weights; // (count), or null: an expert keeps its first pairs
    const int* real;      // (sequences), or null: tokens of each sequence that are no padding
    int* kept;            // (count): the expert, or `experts` for a dropped pair
    u32 count;
    u32 experts;
    u32 capacity;
    u32 length; // pairs of a sequence
    u32 k;
    u32 reserved;
};

inline bool is_mine(const LimitLoad& op, u32 pair) { return min((u32)op.chosen[pair], op.experts - 1) == blockIdx.x; }

inline bool is_padding(const LimitLoad& op, u32 pair) {
    return op.real && (int)(pair % op.length / op.k) >= op.real[pair / op.length];
}

// Whole numbers in the order of weights. Weights are not negative; NaN counts as 0.
inline u32 key_of(const LimitLoad& op, u32 pair) {
    if (!op.weights) return 0;
    float weight = op.weights[pair];
    return weight > 0.0f ? __float_as_uint(weight) : 0;
}

KERNEL(limit_load)(const LimitLoad op) {
    begin_kernel();
    __shared__ u32 histogram[DIGITS], digit, before_digit;
    // Of the pairs with a key above `lowest` in the bits of `known` all are kept, of those with the same bits `left`.
    u32 lowest = 0, known = 0, left = op.capacity;
    for (u32 shift = 24; op.weights && shift < 32; shift -= 8) {
        histogram[threadIdx.x] = 0;
        __syncthreads();
        for (u32 pair = threadIdx.x; pair < op.count; pair += SCAN_THREADS) {
            if (!is_mine(op, pair) || is_padding(op, pair)) continue;
            u32 key = key_of(op, pair);
            if ((key & known) == lowest) atomicAdd(&histogram[key >> shift & (DIGITS - 1)], 1u);
        }
        __syncthreads();
        // Threads go from the highest digit down.
        u32 mine = DIGITS - 1 - threadIdx.x, here = histogram[mine], all, before = sum_before(here, all);
        // All are kept: none is below the lowest.
        if (all <= left) break;
        if (before < left && left <= before + here) digit = mine, before_digit = before;
        __syncthreads();
        lowest |= digit << shift;
        known |= (DIGITS - 1) << shift;
        left -= before_digit;
    }
    u32 taken = 0;
    for (u32 base = 0; base < op.count; base += SCAN_THREADS * RUN) {
        u32 first = base + threadIdx.x * RUN, ties = 0, all;
        for (u32 i = 0; i < RUN && first + i < op.count; i++) {
            u32 pair = first + i;
            ties += is_mine(op, pair) && !is_padding(op, pair) && (key_of(op, pair) & known) == lowest;
        }
        u32 place = taken + sum_before(ties, all);
        for (u32 i = 0; i < RUN && first + i < op.count; i++) {
            u32 pair = first + i;
            if (!is_mine(op, pair)) continue;
            bool keeps = false;
            if (!is_padding(op, pair)) {
                u32 key = key_of(op, pair) & known;
                keeps = key > lowest || (key == lowest && place < left);
                place += key == lowest;
            }
            op.kept[pair] = (int)(keeps ? blockIdx.x : op.experts);
        }
        taken += all;
    }
}
