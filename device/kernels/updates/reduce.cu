// Sums in f64: partial sums of fixed chunks, then those in order. The values are read once.
#include "table.cuh"

struct Summed {
    const void* values; // f32 or bf16
    u64 elements;
    u32 first_chunk;
    u32 is_bf16;
};

struct Sums {
    double* partial;
    u32 count;
    u32 square;
    Summed entries[128];
};

// This thread's share of the sum of x or x^2 over values.
template <class T> double sum_values(const T* values, u32 length, u32 square) {
    double sum = 0.0;
    auto add = [&](float x) { sum += square ? (double)x * x : (double)x; };
    u32 packs = (u64)values % (4 * sizeof(T)) == 0 ? length / 4 : 0;
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
    for (u32 i = packs * 4 + threadIdx.x; i < length; i += blockDim.x) {
        float x[1];
        load<1>(values + i, x);
        add(x[0]);
    }
    return sum;
}

// partial[chunk] = sum of x or x^2 over the chunk.
KERNEL(sum_chunks)(const __grid_constant__ Sums op) {
    begin_kernel();
    const Summed& entry = op.entries[tensor_of_block(op.entries, op.count)];
    u64 start = (u64)(blockIdx.x - entry.first_chunk) * CHUNK;
    u32 length = (u32)min((u64)CHUNK, entry.elements - start);
    double sum = entry.is_bf16 ? sum_values((const bf16*)entry.values + start, length, op.square)
                               : sum_values((const float*)entry.values + start, length, op.square);
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
