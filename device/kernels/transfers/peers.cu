// Transfers between the GPUs of one node that reach each other's memory.
//
// Every rank has a window: memory that the other ranks' kernels can read and write. It has flags, and slots for pieces of
// tensors. A block works alone: with the block of the same number on every other rank it goes through rounds. In a round it
// copies a piece of its input to a slot of its own window, and then writes the number of the round into a flag in the window
// of every other rank. It waits for the flags of all others, and combines the pieces in their slots with its own. To read the others'
// slots is faster than to write into them.
//
// No block waits for another of its own rank, and none says that it has read a slot. The flags tell that too: a block
// shows pieces at most one round ahead of the one that it combines. So once a block has the flag of round r - 1 from
// another rank, that rank has combined round r - 3, and the slot of round r + 1 = (r - 3) + SLOTS is free
// (device/tests/device/peer_rounds.rs tries all orders). Rounds are counted in device memory, over all transfers, so a
// replayed graph goes on with the next number.
#include "peers.cuh"

struct Transfer {
    const u8* input;
    u8* output;
    u64 bytes;   // that each rank gets of each other rank; a multiple of 16
    u64 stride;  // between the parts of `input` for different ranks: 0 if all get the same
    Peers peers;
};

// The slot for the piece that `from` shows `to` in a round. It is one slot for all readers if all get the same.
inline uint4* slot(const Transfer& op, u32 from, u32 to, u32 round) {
    return (uint4*)slot(op.peers, from, op.stride == 0 ? (from + 1) % op.peers.ranks : to, round);
}

// Calls use(i, word i of `from`) for the words of this thread.
template <class Use> void for_words(const uint4* from, u32 words, const Use& use) {
    u32 i = threadIdx.x;
    for (; i + (AHEAD - 1) * blockDim.x < words; i += AHEAD * blockDim.x) {
        uint4 x[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) x[k] = load_uncached(from + i + k * blockDim.x);
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) use(i + k * blockDim.x, x[k]);
    }
    for (; i < words; i += blockDim.x) use(i, load_uncached(from + i));
}

// The piece of the block's n-th round in this transfer.
struct Piece {
    u64 at;
    u32 words;  // of 16 bytes
};

inline Piece piece(const Transfer& op, u32 n) {
    u64 at = ((u64)n * gridDim.x + blockIdx.x) * op.peers.piece;
    return {at, (u32)(min((u64)op.peers.piece, op.bytes - at) / sizeof(uint4))};
}

// Goes through the rounds of a transfer. `combine` makes a piece of the output from all ranks' pieces; all threads of
// the block call it.
template <class Combine> void transfer(const Transfer& op, const Combine& combine) {
    auto show = [&](u32 n, u32 round) {
        Piece part = piece(op, n);
        u32 different = op.stride == 0 ? 1 : op.peers.ranks - 1;
        for (u32 ahead = 1; ahead <= different; ahead++) {
            u32 to = (op.peers.rank + ahead) % op.peers.ranks;
            uint4* into = slot(op, op.peers.rank, to, round);
            for_words((const uint4*)(op.input + to * op.stride + part.at), part.words, [&](u32 i, uint4 x) { into[i] = x; });
        }
    };
    u64 pieces = (op.bytes + op.peers.piece - 1) / op.peers.piece;
    rounds(op.peers, pieces, show, [&](u32 n, u32 round) { combine(op, piece(op, n), round); });
}

// output = the sum over all ranks, in the order of ranks, in f32 and rounded once.
template <class T> void sum(const Transfer& op, Piece part, u32 round) {
    static const int N = 16 / sizeof(T);
    const uint4* own = (const uint4*)(op.input + op.peers.rank * op.stride + part.at);
    T* out = (T*)(op.output + part.at);
    auto word_of = [&](u32 from, u32 i) { return load_uncached((from == op.peers.rank ? own : slot(op, from, op.peers.rank, round)) + i); };
    for (u32 first = threadIdx.x; first < part.words; first += AHEAD * blockDim.x) {
        float total[AHEAD][N];
        for (u32 from = 0; from < op.peers.ranks; from++) {
            Raw<T, N> raw[AHEAD];
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                // Behind the end the last word is read again.
                raw[k].word = word_of(from, min(first + k * blockDim.x, part.words - 1));
            }
#pragma unroll
            for (u32 k = 0; k < AHEAD; k++) {
                float x[N];
                unpack(raw[k], x);
#pragma unroll
                for (int j = 0; j < N; j++) total[k][j] = from == 0 ? x[j] : total[k][j] + x[j];
            }
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            u32 i = first + k * blockDim.x;
            if (i < part.words) store(out + (u64)i * N, total[k]);
        }
    }
}

// output = the inputs of all ranks, one after the other.
inline void gather(const Transfer& op, Piece part, u32 round) {
    const uint4* own = (const uint4*)(op.input + part.at);
    for (u32 from = 0; from < op.peers.ranks; from++) {
        uint4* out = (uint4*)(op.output + from * op.bytes + part.at);
        const uint4* in = from == op.peers.rank ? own : slot(op, from, op.peers.rank, round);
        if (in != out) for_words(in, part.words, [&](u32 i, uint4 x) { out[i] = x; });
    }
}

KERNEL(peer_sum_bf16)(const __grid_constant__ Transfer op) {
    begin_kernel();
    transfer(op, sum<bf16>);
}

KERNEL(peer_sum_f32)(const __grid_constant__ Transfer op) {
    begin_kernel();
    transfer(op, sum<float>);
}

KERNEL(peer_gather)(const __grid_constant__ Transfer op) {
    begin_kernel();
    transfer(op, gather);
}
