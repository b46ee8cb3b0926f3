// Sums in f64: partial sums of fixed chunks, then those in order. The values are read once.
#include "table.cuh"

struct Summed {
    const float* values;
    u64 elements;
    u32 first_chunk;
    u32 reserved;
};

struct Sums {
    double* partial;
    u32 count;
    u32 square;
    Summed entries[128];
};

// partial[chunk] = sum of x or x^2 over the chunk.
KERNEL(sum_chunks)(const __grid_constant__ Sums op) {
    begin_kernel();
    const Summed& entry = op.entries[tensor_of_block(op.entries, op.count)];
    u64 start = (u64)(blockIdx.x - entry.first_chunk) * CHUNK;
    u32 length = (u32)min((u64)CHUNK, entry.elements - start);
    const float* values = entry.values + start;
    double sum = 0.0;
    auto add = [&](float x) { sum += op.square ? (double)x * x : (double)x; };
    u32 packs = (u64)values % 16 == 0 ? length / 4 : 0;
    const u32 LOADS = 4; // in flight
    u32 pack = threadIdx.x;
    for (; pack + (LOADS - 1) * blockDim.x < packs; pack += LOADS * blockDim.x) {
        float x[LOADS][4];
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) load<4>(values + (pack + i * blockDim.x) * 4, x[i]);
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) add(x[i][0]), add(x[i][1]), add(x[i][2]), add(x[i][3]);
    }
    for (; pack < packs; pack += blockDim.x) {
        float x[4];
        load<4>(values + pack * 4, x);
        add(x[0]), add(x[1]), add(x[2]), add(x[3]);
    }
    for (u32 i = packs * 4 + threadIdx.x; i < length; i += blockDim.x) add(values[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) op.partial[blockIdx.x] = sum;
}

// total (+)= sum of all partial sums, rounded once. One block.
KERNEL(add_partial_sums)(const double* partial, u64 count, float* total, u32 accumulate) {
    begin_kernel();
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = accumulate ? *total + (float)sum : (float)sum;
}
