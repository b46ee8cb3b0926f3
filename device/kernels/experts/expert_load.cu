// The load of experts: how many pairs each has, and the bias of the choice that follows from it.
#include "places.cuh"

// Experts at most; `EXPERTS` in `device/src/ops/trainer/experts/kernels.rs`. A column for dropped pairs comes on top.
const u32 EXPERTS = 512;
// Pairs of one block; `PART` in `device/src/ops/trainer/experts/load.rs`.
const u32 PART = 4096;

struct CountLoad {
    const int* chosen; // (groups, pairs)
    float* load;       // (groups, experts)
    u32* counts;       // (groups, parts, experts), scratch if there are more parts than one
    const int* real;   // (samples), or null: tokens of each whole sample that count
    const int* position_ids; // (tokens), if groups are documents: (tokens, experts) loads
    u32 pairs;         // of a group
    u32 experts;
    u32 parts;
    u32 accumulate;
    u32 k;
    Places places;
};

// Whether the token of a pair counts.
inline bool counts(const CountLoad& op, u64 pair) {
    return is_real(op.real, op.places, pair / op.k);
}

inline void put_load(const CountLoad& op, u64 at, u32 count) {
    op.load[at] = op.accumulate ? op.load[at] + (float)count : (float)count;
}

// blockIdx.x is the group, and blockIdx.y the part of its pairs.
KERNEL(count_load)(const CountLoad op) {
    begin_kernel();
    __shared__ u32 histogram[EXPERTS + 1];
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) histogram[e] = 0;
    __syncthreads();
    const int* chosen = op.chosen + (u64)blockIdx.x * op.pairs;
    u32 start = blockIdx.y * PART, end = min(op.pairs, start + PART);
    for (u32 i = start + threadIdx.x; i < end; i += blockDim.x) {
        if (!counts(op, (u64)blockIdx.x * op.pairs + i)) continue;
        atomicAdd(&histogram[min((u32)chosen[i], op.experts - 1)], 1u);
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) {
        if (op.parts == 1) put_load(op, (u64)blockIdx.x * op.experts + e, histogram[e]);
        else op.counts[((u64)blockIdx.x * op.parts + blockIdx.y) * op.experts + e] = histogram[e];
    }
}

// blockIdx.x is a token. It writes the load of the document that it begins, or zeros.
KERNEL(count_load_of_documents)(const CountLoad op) {
    begin_kernel();
    __shared__ u32 histogram[EXPERTS + 1];
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) histogram[e] = 0;
    __syncthreads();
    const u32 first = blockIdx.x;
    // The document goes on as long as positions count up.
    for (u32 i = threadIdx.x; first + i / op.k < gridDim.x; i += blockDim.x) {
        if (op.position_ids[first + i / op.k] != (int)(i / op.k)) break;
        u64 pair = (u64)first * op.k + i;
        if (counts(op, pair)) atomicAdd(&histogram[min((u32)op.chosen[pair], op.experts - 1)], 1u);
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) put_load(op, (u64)first * op.experts + e, histogram[e]);
}

// Adds up the parts of a group, blockIdx.x.
KERNEL(add_loads)(const CountLoad op) {
    begin_kernel();
    const u32* counts = op.counts + (u64)blockIdx.x * op.parts * op.experts;
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) {
        u32 sum = 0;
        for (u32 part = 0; part < op.parts; part++) sum += counts[part * op.experts + e];
        put_load(op, (u64)blockIdx.x * op.experts + e, sum);
    }
}

struct UpdateSelectionBias {
    const float* load; // (layers, experts)
    float* bias;       // (layers, experts)
    const Status* status;
    u32 experts;
    float rate;
};

// A block takes a layer. Sums of whole numbers are exact in any order.
KERNEL(update_selection_bias)(const UpdateSelectionBias op) {
    begin_kernel();
    if (!op.status->applies) return;
    const float* load = op.load + (u64)blockIdx.x * op.experts;
    float* bias = op.bias + (u64)blockIdx.x * op.experts;
    double total = 0.0;
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) total += load[e];
    total = block_sum(total);
    for (u32 e = threadIdx.x; e < op.experts; e += blockDim.x) {
        double difference = total - (double)load[e] * op.experts;
        if (difference > 0.0) bias[e] += op.rate;
        if (difference < 0.0) bias[e] -= op.rate;
    }
}
