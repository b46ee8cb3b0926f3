// Rows that go straight to their places on the GPUs of their experts, and back. See device/src/ops/rows_of_ranks.rs.
//
// A rank writes its rows into the outputs of the others, which lie in memory that all have mapped (`Peers::share`). The
// numbers of rows are known to the devices alone. The blocks of one number on all ranks work together. A block tells the
// others that its rank's output may be written, and where it lies. It moves a share of the rows that stay on this GPU, and
// then of those for each other rank. It tells them that it is done, and waits until they are: the output is whole then.
#include "offsets.cuh"
#include "peers.cuh"

static const u32 ROW_LOADS = 8;       // loads that a thread has under way
static const u32 OFFSET_BITS = 48;    // of a place in shared memory; the number of the area lies above them
static const u32 LEFT_OUT = ~0u;      // the place of a row that goes nowhere

struct Rows {
    const u8* input;
    u8* output;
    const int* offsets;  // (ranks, ranks * experts + 1)
    const int* places;   // (experts, ranks)
    const int* pairs;    // of this rank, by the experts of all
    const u64* areas;    // (areas, MAX_RANKS): where shared areas of all ranks begin in this process
    u64 at;              // where the output lies in the areas of this rank
    Peers peers;
    u32 experts;  // of this rank
    u32 choices;  // pairs of a row of tokens
    u32 words;    // of a row
    u32 lanes;    // threads that move a row: a power of two, at most 32
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

// One direction: how many rows this rank has for another, and where the i-th of them lies here and goes there.
struct ToExperts {
    static u32 sent(const Rows& op, u32 to) { return count(op, op.peers.rank, to); }
    static u32 taken(const Rows& op, u32 to, u32 i) { return (u32)op.pairs[offsets(op, op.peers.rank, to)[0] + i] / op.choices; }
    // Behind the rows of earlier experts, and those of earlier ranks for its expert.
    static u32 put(const Rows& op, u32 to, u32 i) {
        const int* own = offsets(op, op.peers.rank, to);
        const int row = own[0] + (int)i;
        const u32 expert = range_with(own, op.experts - 1, row);
        u32 place = (u32)(row - own[expert]);
        for (u32 from = 0; from < op.peers.ranks; from++) {
            const int* of = offsets(op, from, to);
            place += (u32)(of[from < op.peers.rank ? expert + 1 : expert] - of[0]);
        }
        return place < op.bound ? place : LEFT_OUT;
    }
};

struct ToTokens {
    static u32 sent(const Rows& op, u32 to) { return count(op, to, op.peers.rank); }
    // Of a row that was left out, some other: see RowsWay::ToTokens.
    static u32 taken(const Rows& op, u32 to, u32 i) {
        const int* of = offsets(op, to, op.peers.rank);
        const int row = of[0] + (int)i;
        const u32 expert = range_with(of, op.experts - 1, row);
        return min((u32)(op.places[expert * op.peers.ranks + to] + row - of[expert]), op.bound - 1);
    }
    static u32 put(const Rows& op, u32 to, u32 i) { return (u32)offsets(op, to, op.peers.rank)[0] + i; }
};

template <class W> void move(const Rows& op, const W* from, W* to, u32 lane) {
    u32 i = lane;
    for (; i + (ROW_LOADS - 1) * op.lanes < op.words; i += ROW_LOADS * op.lanes) {
        W x[ROW_LOADS];
#pragma unroll
        for (u32 k = 0; k < ROW_LOADS; k++) x[k] = load_uncached(from + i + k * op.lanes);
#pragma unroll
        for (u32 k = 0; k < ROW_LOADS; k++) to[i + k * op.lanes] = x[k];
    }
    for (; i < op.words; i += op.lanes) to[i] = load_uncached(from + i);
}

// The block's share of the rows for a rank. The threads that move a row look up as many rows at once as they are.
template <class Way, class W> void send(const Rows& op, u32 to, W* output) {
    const u32 lane = threadIdx.x % op.lanes, movers = gridDim.x * (blockDim.x / op.lanes);
    const u32 mover = blockIdx.x * (blockDim.x / op.lanes) + threadIdx.x / op.lanes;
    const u32 rows = Way::sent(op, to);
    const u32 at_once = min(op.lanes, (rows + movers - 1) / movers);
    for (u32 first = mover * at_once; first < rows; first += movers * at_once) {
        const u32 here = min(at_once, rows - first);
        u32 taken = 0, put = LEFT_OUT;
        if (lane < here) taken = Way::taken(op, to, first + lane), put = Way::put(op, to, first + lane);
        for (u32 k = 0; k < here; k++) {
            const u32 from = of_lane(taken, k, op.lanes), place = of_lane(put, k, op.lanes);
            if (place != LEFT_OUT) move(op, (const W*)op.input + (u64)from * op.words, output + (u64)place * op.words, lane);
        }
    }
}

template <class Way, class W> void exchange(const Rows& op) {
    const Peers& peers = op.peers;
    const u32 ready = peers.rounds[blockIdx.x] + 1, done = ready + 1;
    if (threadIdx.x < peers.ranks) *place_of(peers.windows[threadIdx.x], peers.rank) = op.at;
    shown(peers, ready);
    send<Way>(op, peers.rank, (W*)op.output);
    wait(peers, ready);
    for (u32 ahead = 1; ahead < peers.ranks; ahead++) {
        const u32 to = (peers.rank + ahead) % peers.ranks;
        const u64 at = load_uncached(place_of(peers.windows[peers.rank], to));
        send<Way>(op, to, (W*)(op.areas[(at >> OFFSET_BITS) * MAX_RANKS + to] + (at & (((u64)1 << OFFSET_BITS) - 1))));
    }
    shown(peers, done);
    wait(peers, done);
    if (threadIdx.x == 0) peers.rounds[blockIdx.x] = done;
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
