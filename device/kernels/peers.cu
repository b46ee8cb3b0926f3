// Transfers between the GPUs of one node that write each other's memory.
//
// Every rank has a window: memory that the other ranks' kernels can write. It is divided by slot, block and sender. A block
// works alone: with the block of the same number on every other rank it goes through rounds, a piece of the tensor in
// each. In a round it writes its piece into the windows of all others, then a flag with the round's number. It waits for
// the flags of all others and combines what they wrote with its own piece.
//
// No block waits for another of its own rank, and none says that a slot is free again. The flags tell that too: a block
// writes pieces at most one round ahead of the one that it combines. So once a block has the flag of round r - 1 from
// another rank, that rank has combined round r - 3, and the slot of round r + 1 = (r - 3) + SLOTS is free there
// (device/tests/device/peer_rounds.rs tries all orders). Rounds are counted in device memory, over all transfers, so a
// replayed graph goes on with the next number.
#include "common.cuh"

static const u32 SLOTS = 4;
static const u32 PIECE = 16384;      // bytes that a block sends to a rank in a round
static const u32 MAX_BLOCKS = 64;
static const u32 MAX_RANKS = 8;
static const u32 FLAG_WORDS = 4;     // u32 between two flags

struct Transfer {
    const u8* input;
    u8* output;
    u64 bytes;             // that each rank sends to each other rank; a multiple of 16
    u64 stride;            // between what different ranks get from `input`: 0 if all get the same
    u32* rounds;           // done so far, by block
    u8* windows[MAX_RANKS];  // by rank; those of other ranks lie in their memory
    u32 ranks;
    u32 rank;
};

// Flags come first in a window, then the slots.
inline u32* flag(u8* window, u32 sender) { return (u32*)window + (blockIdx.x * MAX_RANKS + sender) * FLAG_WORDS; }

inline u8* slot(const Transfer& op, u8* window, u32 round, u32 sender) {
    u64 index = ((u64)(round % SLOTS) * MAX_BLOCKS + blockIdx.x) * op.ranks + sender;
    return window + MAX_BLOCKS * MAX_RANKS * FLAG_WORDS * sizeof(u32) + index * PIECE;
}

// Loads that are not served from the L1 cache: another GPU wrote the memory.
inline uint4 load_slot(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from) : "memory");
    return x;
}

// The piece of the block's n-th round in this transfer.
struct Piece {
    u64 at;
    u32 words;  // of 16 bytes
};

inline Piece piece(const Transfer& op, u32 n) {
    u64 at = ((u64)n * gridDim.x + blockIdx.x) * PIECE;
    return {at, (u32)(min((u64)PIECE, op.bytes - at) / sizeof(uint4))};
}

inline void send(const Transfer& op, u32 n, u32 round) {
    Piece part = piece(op, n);
    for (u32 ahead = 1; ahead < op.ranks; ahead++) {
        u32 to = (op.rank + ahead) % op.ranks;  // no two ranks begin with the same receiver
        const uint4* from = (const uint4*)(op.input + to * op.stride + part.at);
        uint4* into = (uint4*)slot(op, op.windows[to], round, op.rank);
#pragma unroll 4
        for (u32 i = threadIdx.x; i < part.words; i += blockDim.x) into[i] = from[i];
    }
    __syncthreads();
    u32 to = threadIdx.x;
    if (to < op.ranks && to != op.rank) {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag(op.windows[to], op.rank)), "r"(round) : "memory");
    }
}

inline void wait(const Transfer& op, u32 round) {
    u32 from = threadIdx.x;
    if (from < op.ranks && from != op.rank) {
        u32 arrived;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(arrived) : "l"(flag(op.windows[op.rank], from)) : "memory");
        } while ((int)(arrived - round) < 0);
    }
    __syncthreads();
}

// What a round makes of the pieces of all ranks. `Combine::piece` is called by all threads of the block.
template <class Combine> void transfer(const Transfer& op, const Combine& combine) {
    u64 pieces = (op.bytes + PIECE - 1) / PIECE;
    u32 mine = blockIdx.x < pieces ? (u32)((pieces - blockIdx.x - 1) / gridDim.x) + 1 : 0;
    u32 before = op.rounds[blockIdx.x];
    if (mine > 0) send(op, 0, before + 1);
    for (u32 n = 0; n < mine; n++) {
        u32 round = before + 1 + n;
        if (n + 1 < mine) send(op, n + 1, round + 1);
        wait(op, round);
        combine.piece(op, piece(op, n), round);
    }
    __syncthreads();
    if (threadIdx.x == 0) op.rounds[blockIdx.x] = before + mine;
}

// output = the sum over all ranks, in the order of ranks, in f32 and rounded once.
template <class T> struct Sum {
    static const int N = 16 / sizeof(T);

    void piece(const Transfer& op, Piece part, u32 round) const {
        const u8* own = op.input + op.rank * op.stride + part.at;
        u8* window = op.windows[op.rank];
        for (u32 i = threadIdx.x; i < part.words; i += blockDim.x) {
            float sum[N];
            for (u32 from = 0; from < op.ranks; from++) {
                Raw<T, N> raw;
                if (from == op.rank) raw = fetch<N>((const T*)own + i * N);
                else raw.word = word(load_slot((const uint4*)slot(op, window, round, from) + i));
                float x[N];
                unpack(raw, x);
#pragma unroll
                for (int k = 0; k < N; k++) sum[k] = from == 0 ? x[k] : sum[k] + x[k];
            }
            store((T*)(op.output + part.at) + i * N, sum);
        }
    }

    static uint4 word(uint4 x) { return x; }
};

// output = what all ranks sent, one after the other.
struct Gather {
    void piece(const Transfer& op, Piece part, u32 round) const {
        const uint4* own = (const uint4*)(op.input + part.at);
        u8* window = op.windows[op.rank];
        for (u32 from = 0; from < op.ranks; from++) {
            uint4* out = (uint4*)(op.output + from * op.bytes + part.at);
            const uint4* in = (const uint4*)slot(op, window, round, from);
            if (from == op.rank && own == out) continue;  // it is there
#pragma unroll 4
            for (u32 i = threadIdx.x; i < part.words; i += blockDim.x) out[i] = from == op.rank ? own[i] : load_slot(in + i);
        }
    }
};

KERNEL(peer_sum_bf16)(const __grid_constant__ Transfer op) {
    begin_kernel();
    transfer(op, Sum<bf16>());
}

KERNEL(peer_sum_f32)(const __grid_constant__ Transfer op) {
    begin_kernel();
    transfer(op, Sum<float>());
}

KERNEL(peer_gather)(const __grid_constant__ Transfer op) {
    begin_kernel();
    transfer(op, Gather());
}
