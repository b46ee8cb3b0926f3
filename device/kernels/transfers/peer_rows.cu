// Rows that go straight to their places on the GPUs of their experts, and back. See device/src/ops/rows_of_ranks.rs.
//
// The numbers of rows are known to the devices alone: every block counts the rows between all ranks, so all have as many
// rounds. A block shows a rank the next of its rows, in slots as in peers.cu, and puts the rows of the others where they
// belong. Rows that stay on this GPU are copied between the first rounds. A long row is cut into equal parts.
#include "offsets.cuh"
#include "peers.cuh"

struct Rows {
    const u8* input;
    u8* output;
    const int* offsets;  // (ranks, ranks * experts + 1)
    const int* places;   // (experts, ranks)
    const int* pairs;    // of this rank, by the experts of all
    Peers peers;
    u32 experts;  // of this rank
    u32 choices;  // pairs of a row of tokens
    u32 words;    // of a part of a row
    u32 parts;    // of a row
    u32 lanes;    // threads that move a part: a power of two, at most 32
    u32 bound;    // the most rows that experts have
};

// The offsets of the rows of `from` for the experts of `to`.
inline const int* offsets(const Rows& op, u32 from, u32 to) {
    return op.offsets + (u64)from * (op.peers.ranks * op.experts + 1) + to * op.experts;
}

// The number of rows of `from` for the experts of `to`.
inline u32 count(const Rows& op, u32 from, u32 to) {
    const int* of = offsets(op, from, to);
    return (u32)(of[op.experts] - of[0]);
}

// The place of the i-th row of `from` among the rows of this rank's experts.
inline u32 placed(const Rows& op, u32 from, u32 i) {
    const int* of = offsets(op, from, op.peers.rank);
    const int row = of[0] + (int)i;
    const u32 expert = range_with(of, op.experts - 1, row);
    return (u32)(op.places[expert * op.peers.ranks + from] + row - of[expert]);
}

// The i-th pair of this rank for the experts of `to`.
inline u32 pair(const Rows& op, u32 to, u32 i) { return (u32)op.pairs[offsets(op, op.peers.rank, to)[0] + i]; }

// One direction: how many rows `from` sends `to`, and where the i-th row for or from a rank lies.
struct ToExperts {
    static u32 sent(const Rows& op, u32 from, u32 to) { return count(op, from, to); }
    static u32 taken(const Rows& op, u32 to, u32 i) { return pair(op, to, i) / op.choices; }
    // False if the row is left out.
    static bool put(const Rows& op, u32 from, u32 i, u32& row) {
        row = placed(op, from, i);
        return row < op.bound;
    }
};

struct ToTokens {
    static u32 sent(const Rows& op, u32 from, u32 to) { return count(op, to, from); }
    static u32 taken(const Rows& op, u32 to, u32 i) { return min(placed(op, to, i), op.bound - 1); }
    static bool put(const Rows& op, u32 from, u32 i, u32& row) {
        row = (u32)offsets(op, op.peers.rank, from)[0] + i;
        return true;
    }
};

template <class W> void move(const Rows& op, const W* from, W* to, u32 lane) {
    u32 i = lane;
    for (; i + (AHEAD - 1) * op.lanes < op.words; i += AHEAD * op.lanes) {
        W x[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) x[k] = load_uncached(from + i + k * op.lanes);
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) to[i + k * op.lanes] = x[k];
    }
    for (; i < op.words; i += op.lanes) to[i] = load_uncached(from + i);
}

template <class Way, class W> void exchange(const Rows& op) {
    const Peers& peers = op.peers;
    u32 most = 0;
    for (u32 from = 0; from < peers.ranks; from++) {
        for (u32 to = 0; to < peers.ranks; to++) {
            if (from != to) most = max(most, Way::sent(op, from, to));
        }
    }
    const u32 all = most * op.parts, lane = threadIdx.x % op.lanes;
    const u32 movers = blockDim.x / op.lanes, mover = threadIdx.x / op.lanes;
    // Parts of a piece: as few rounds as slots allow, with the parts spread over all blocks.
    const u32 fit = peers.piece / (op.words * (u32)sizeof(W));
    const u32 turns = max(1u, (all + gridDim.x * fit - 1) / (gridDim.x * fit));
    const u32 per = max(1u, (all + gridDim.x * turns - 1) / (gridDim.x * turns));

    auto taken = [&](u32 to, u32 part) {
        return (const W*)op.input + ((u64)Way::taken(op, to, part / op.parts) * op.parts + part % op.parts) * op.words;
    };
    // Null if the row is left out.
    auto put = [&](u32 from, u32 part) {
        u32 row;
        if (!Way::put(op, from, part / op.parts, row)) return (W*)nullptr;
        return (W*)op.output + ((u64)row * op.parts + part % op.parts) * op.words;
    };
    auto show = [&](u32 n, u32 round) {
        u32 first = (n * gridDim.x + blockIdx.x) * per;
        for (u32 ahead = 1; ahead < peers.ranks; ahead++) {
            u32 to = (peers.rank + ahead) % peers.ranks, end = min(first + per, Way::sent(op, peers.rank, to) * op.parts);
            W* into = (W*)slot(peers, peers.rank, to, round);
            for (u32 part = first + mover; part < end; part += movers) {
                move(op, taken(to, part), into + (u64)(part - first) * op.words, lane);
            }
        }
    };
    auto own = [&]() {
        u32 end = Way::sent(op, peers.rank, peers.rank) * op.parts;
        for (u32 part = blockIdx.x * movers + mover; part < end; part += gridDim.x * movers) {
            W* to = put(peers.rank, part);
            if (to) move(op, taken(peers.rank, part), to, lane);
        }
    };
    auto combine = [&](u32 n, u32 round) {
        u32 first = (n * gridDim.x + blockIdx.x) * per;
        if (n == 0) own();
        for (u32 ahead = 1; ahead < peers.ranks; ahead++) {
            u32 from = (peers.rank + ahead) % peers.ranks;
            u32 end = min(first + per, Way::sent(op, from, peers.rank) * op.parts);
            const W* in = (const W*)slot(peers, from, peers.rank, round);
            for (u32 part = first + mover; part < end; part += movers) {
                W* to = put(from, part);
                if (to) move(op, in + (u64)(part - first) * op.words, to, lane);
            }
        }
    };
    u64 pieces = (all + per - 1) / per;
    if (blockIdx.x >= pieces) own();
    rounds(peers, pieces, show, combine);
}

#define PEER_ROWS(Way, W, name)                      \
    KERNEL(name)(const __grid_constant__ Rows op) {  \
        begin_kernel();                              \
        exchange<Way, W>(op);                        \
    }
PEER_ROWS(ToExperts, uint4, peer_rows_to_experts_by_16)
PEER_ROWS(ToExperts, u32, peer_rows_to_experts_by_4)
PEER_ROWS(ToTokens, uint4, peer_rows_to_tokens_by_16)
PEER_ROWS(ToTokens, u32, peer_rows_to_tokens_by_4)
