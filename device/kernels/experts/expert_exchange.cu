// The rows that ranks with other experts exchange. Whole numbers only, each written by one thread.
#include "offsets.cuh"
#include "scan.cuh"

struct SlotsOfPairs {
    const int* chosen;  // (count)
    const int* offsets; // (experts + 1)
    const int* rows;    // (count); -1 if the pair is dropped
    int* slots;         // (count)
    float* beyond;      // (1), or null: the pairs without a slot
    u32 count;
    u32 experts;
    u32 ranks;
    u32 room;
};

// The pair's place among those of the rank that has its expert.
KERNEL(slots_of_pairs)(const SlotsOfPairs op) {
    begin_kernel();
    const u32 of_rank = op.experts / op.ranks, stride = gridDim.x * blockDim.x;
    for (u32 pair = blockIdx.x * blockDim.x + threadIdx.x; pair < op.count; pair += stride) {
        int row = op.rows[pair], slot = -1;
        if (row >= 0) {
            u32 rank = min((u32)op.chosen[pair], op.experts - 1) / of_rank, at = row - op.offsets[rank * of_rank];
            if (at < op.room) slot = (int)(rank * op.room + at);
        }
        op.slots[pair] = slot;
    }
    if (op.beyond && blockIdx.x == 0 && threadIdx.x == 0) {
        u32 beyond = 0;
        for (u32 rank = 0; rank < op.ranks; rank++) {
            u32 rows = op.offsets[(rank + 1) * of_rank] - op.offsets[rank * of_rank];
            if (rows > op.room) beyond += rows - op.room;
        }
        *op.beyond = (float)beyond;
    }
}

struct ExpertsOfSlots {
    const int* offsets; // (ranks, ranks * experts + 1)
    int* chosen;        // (ranks * room)
    u32 ranks;
    u32 rank;
    u32 experts; // of this rank
    u32 room;
};

// The number of this rank's experts whose rows end before the slot's.
KERNEL(experts_of_slots)(const ExpertsOfSlots op) {
    begin_kernel();
    const u32 slots = op.ranks * op.room, stride = gridDim.x * blockDim.x;
    for (u32 slot = blockIdx.x * blockDim.x + threadIdx.x; slot < slots; slot += stride) {
        const int* offsets = op.offsets + (u64)(slot / op.room) * (op.ranks * op.experts + 1) + op.rank * op.experts;
        const int row = offsets[0] + (int)(slot % op.room);
        op.chosen[slot] = (int)range_with(offsets, op.experts, row);
    }
}

struct PlaceRows {
    const int* all; // (ranks, ranks * experts + 1)
    int* places;    // (experts, ranks)
    int* offsets;   // (experts + 1)
    int* pairs;     // (bound)
    float* beyond;  // (1), or null: the rows that are left out
    u32 ranks;
    u32 rank;
    u32 experts; // of this rank
    u32 bound;
};

// The first block adds up; all write the numbers of rows.
KERNEL(place_rows)(const PlaceRows op) {
    begin_kernel();
    const u32 stride = gridDim.x * blockDim.x;
    u32 rows = 0;
    for (u32 rank = 0; rank < op.ranks; rank++) {
        const int* of = op.all + (u64)rank * (op.ranks * op.experts + 1) + op.rank * op.experts;
        rows += (u32)(of[op.experts] - of[0]);
    }
    for (u32 row = blockIdx.x * blockDim.x + threadIdx.x; row < op.bound; row += stride) {
        op.pairs[row] = row < rows ? (int)row : -1 - (int)row;
    }
    if (blockIdx.x > 0) return;
    u32 sum = 0;
    for (u32 first = 0; first <= op.experts * op.ranks; first += SCAN_THREADS) {
        u32 at = first + threadIdx.x, expert = at / op.ranks, rank = at % op.ranks, here = 0;
        if (expert < op.experts) {
            const int* of = op.all + (u64)rank * (op.ranks * op.experts + 1) + op.rank * op.experts + expert;
            here = (u32)(of[1] - of[0]);
        }
        u32 all, before = sum + sum_before(here, all);
        if (expert < op.experts) op.places[at] = (int)before;
        if (rank == 0 && expert <= op.experts) op.offsets[expert] = (int)min(before, op.bound);
        sum += all;
    }
    if (op.beyond && threadIdx.x == 0) *op.beyond = sum > op.bound ? (float)(sum - op.bound) : 0.0f;
}
