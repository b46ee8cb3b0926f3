// The windows of GPUs that reach each other's memory, and the rounds of blocks: see `peers.cu`.
#pragma once
#include "common.cuh"
#include "system.cuh"

static const u32 SLOTS = 4;
static const u32 MAX_BLOCKS = 64;
static const u32 MAX_RANKS = 8;
static const u32 FLAG_WORDS = 4;  // u32 between two flags
static const u32 AHEAD = 4;       // loads of 16 bytes that a thread has under way

// The windows of a group's ranks, and the pieces that blocks show each other.
struct Peers {
    u32* rounds;             // done so far, by block
    u8* windows[MAX_RANKS];  // by rank; those of other ranks lie in the memory of their GPUs
    u32 ranks;
    u32 rank;
    u32 piece;  // bytes that a block shows a rank in a round; a multiple of 16
    u32 room;   // bytes of a slot for one reader; at least `piece`, and the same in all transfers
};

// Flags come first in a window, then the slots.
inline u32* flag(u8* window, u32 sender) { return (u32*)window + (blockIdx.x * MAX_RANKS + sender) * FLAG_WORDS; }

// Where the output of `sender` lies, as its blocks of this number tell each other (peer_rows.cu): beside the flag.
inline u64* place_of(u8* window, u32 sender) { return (u64*)(flag(window, sender) + 2); }

// The slot for the piece that `from` shows `to` in a round.
inline u8* slot(const Peers& peers, u32 from, u32 to, u32 round) {
    u32 reader = (to + peers.ranks - from) % peers.ranks - 1;
    u64 index = ((u64)(round % SLOTS) * MAX_BLOCKS + blockIdx.x) * (peers.ranks - 1) + reader;
    return peers.windows[from] + MAX_BLOCKS * MAX_RANKS * FLAG_WORDS * sizeof(u32) + index * peers.room;
}

// Tells all others that the pieces of a round are in their slots. All threads of the block call it.
inline void shown(const Peers& peers, u32 round) {
    __syncthreads();
    u32 to = threadIdx.x;
    if (to < peers.ranks && to != peers.rank) store_release(flag(peers.windows[to], peers.rank), round);
}

// Waits until all others have shown their pieces of a round. All threads of the block call it.
inline void wait(const Peers& peers, u32 round) {
    u32 from = threadIdx.x;
    if (from < peers.ranks && from != peers.rank) {
        while ((int)(load_acquire(flag(peers.windows[peers.rank], from)) - round) < 0) {}
    }
    __syncthreads();
}

// Goes through the rounds of a transfer with so many pieces: `show(n)` puts the block's n-th pieces into slots,
// `combine(n, round)` takes those of the others. All threads of the block call them. All ranks have as many pieces.
template <class Show, class Combine> void rounds(const Peers& peers, u64 pieces, const Show& show, const Combine& combine) {
    u32 mine = blockIdx.x < pieces ? (u32)((pieces - blockIdx.x - 1) / gridDim.x) + 1 : 0;
    u32 before = peers.rounds[blockIdx.x];
    if (mine > 0) {
        show(0, before + 1);
        shown(peers, before + 1);
    }
    for (u32 n = 0; n < mine; n++) {
        u32 round = before + 1 + n;
        if (n + 1 < mine) {
            show(n + 1, round + 1);
            shown(peers, round + 1);
        }
        wait(peers, round);
        combine(n, round);
    }
    __syncthreads();
    if (threadIdx.x == 0) peers.rounds[blockIdx.x] = before + mine;
}
