// The documents of samples in the ragged form that cuDNN takes: the length of each, and the offset of its first row.
#include "common.cuh"

struct Documents {
    const int* position_ids; // (samples, seq): of each token in its document
    int* lengths;            // (samples * most), written: tokens of each document, 0 if a sample has fewer
    void* packed;            // (samples * most + 1), written: first element in tensors with rows of `packed_width`
    void* output;            // the same with rows of `output_width`
    void* stats;             // the same in (samples, heads, seq), for the first head
    u32 seq;
    u32 most; // documents of a sample, at most 1024
    u32 packed_width;
    u32 output_width;
    u32 heads;
    u32 wide; // `packed`, `output` and `stats` are of 64 bits, not of 32
};

inline void store_offset(const Documents& d, void* list, u32 at, u64 offset) {
    if (d.wide) ((u64*)list)[at] = offset;
    else ((int*)list)[at] = (int)offset;
}

constexpr u32 THREADS = 256;
constexpr u32 MOST = 1024;

// A block takes a sample.
KERNEL(ragged_documents)(Documents d) {
    begin_kernel();
    __shared__ u32 starts[MOST + 1];
    __shared__ u32 counts[THREADS / 32];
    const u32 sample = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 i = threadIdx.x; i <= d.most; i += THREADS) starts[i] = d.seq;
    __syncthreads();
    u32 before = 0; // documents that begin before these tokens
    for (u32 first = 0; first < d.seq; first += THREADS) {
        u32 token = first + threadIdx.x;
        bool begins = token < d.seq && (token == 0 || d.position_ids[(u64)sample * d.seq + token] == 0);
        u32 votes = __ballot_sync(0xffffffffu, begins);
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        u32 document = before + __popc(votes & ((1u << lane) - 1));
        for (u32 w = 0; w < THREADS / 32; w++) {
            if (w < warp) document += counts[w];
            before += counts[w];
        }
        // Were there more documents than `most`, the last would be one.
        if (begins && document < d.most) starts[document] = token;
        __syncthreads(); // before `counts` is written again
    }
    for (u32 i = threadIdx.x; i < d.most; i += THREADS) {
        u32 at = sample * d.most + i;
        u64 row = (u64)sample * d.seq + starts[i];
        d.lengths[at] = starts[i + 1] - starts[i];
        store_offset(d, d.packed, at, row * d.packed_width);
        store_offset(d, d.output, at, row * d.output_width);
        store_offset(d, d.stats, at, (u64)sample * d.seq * d.heads + starts[i]);
    }
    if (sample + 1 < gridDim.x || threadIdx.x > 0) return;
    u32 at = gridDim.x * d.most;
    u64 rows = (u64)gridDim.x * d.seq;
    store_offset(d, d.packed, at, rows * d.packed_width);
    store_offset(d, d.output, at, rows * d.output_width);
    store_offset(d, d.stats, at, rows * d.heads);
}
