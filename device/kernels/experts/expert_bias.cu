// Biases of experts: a row of numbers for each of them. Rows lie by expert; those behind the last expert's are dropped.
#include "common.cuh"

struct ExpertBias {
    void* rows;           // (rows, width); read but in `add_expert_bias`
    const void* bias;     // (experts, width)
    const int* offsets;   // (experts + 1)
    const float* weights; // by pair, or null
    const int* pairs;     // (rows), or null
    float* output;        // (experts, width): the bias's gradient; or by pair: the weights'
    u32 all;              // rows
    u32 width;
    u32 experts;
    u32 accumulate;
};

// The last expert whose rows begin at that row or before it, or -1 behind all of them.
inline int expert_of(const ExpertBias& op, u32 row) {
    if (row >= (u32)op.offsets[op.experts]) return -1;
    u32 low = 0, high = op.experts;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if ((u32)op.offsets[middle] <= row) low = middle;
        else high = middle;
    }
    return (int)low;
}

inline float weight_of(const ExpertBias& op, u32 row) {
    return op.weights ? op.weights[min((u32)op.pairs[row], op.all - 1)] : 1.0f;
}

// x covers the columns of a row, y distributes the rows.
template <class T, int N> void add_expert_bias(const ExpertBias& op) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= op.width) return;
    for (u32 row = blockIdx.y; row < op.all; row += gridDim.y) {
        int expert = expert_of(op, row);
        if (expert < 0) return;
        float weight = weight_of(op, row), x[N], b[N];
        T* at = (T*)op.rows + (u64)row * op.width + column;
        load<N>(at, x);
        load<N>((const T*)op.bias + (u64)expert * op.width + column, b);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] += weight * b[i];
        store<N>(at, x);
    }
}

// A block of 8 warps has 32 columns of an expert (x). A warp takes every eighth row; their sums are added in order.
template <class T> void expert_bias_gradient(const ExpertBias& op) {
    __shared__ float sums[8][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = blockIdx.x, column = blockIdx.y * 32 + lane;
    u32 end = min((u32)op.offsets[expert + 1], op.all);
    float sum = 0.0f;
    if (column < op.width)
        for (u32 row = op.offsets[expert] + warp; row < end; row += 8)
            sum += weight_of(op, row) * value((const T*)op.rows + (u64)row * op.width + column);
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= op.width) return;
    for (int other = 1; other < 8; other++) sum += sums[other][lane];
    float* output = op.output + (u64)expert * op.width + column;
    *output = op.accumulate ? *output + sum : sum;
}

// A warp has a row. No other row has its pair.
template <class T, int N> void expert_bias_dots(const ExpertBias& op) {
    u32 lane = threadIdx.x % 32, step = gridDim.x * (blockDim.x / 32);
    for (u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; row < op.all; row += step) {
        int expert = expert_of(op, row);
        if (expert < 0) return;
        float dot = 0.0f;
        for (u32 column = lane * N; column < op.width; column += 32 * N) {
            float x[N], b[N];
            load<N>((const T*)op.rows + (u64)row * op.width + column, x);
            load<N>((const T*)op.bias + (u64)expert * op.width + column, b);
#pragma unroll
            for (int i = 0; i < N; i++) dot += x[i] * b[i];
        }
        dot = warp_sum(dot);
        if (lane == 0) op.output[min((u32)op.pairs[row], op.all - 1)] += dot;
    }
}

#define EXPERT_BIAS(T, N, suffix)                                                                             \
    KERNEL(add_expert_bias_##suffix)(ExpertBias op) { begin_kernel(); add_expert_bias<T, N>(op); }            \
    KERNEL(expert_bias_dots_##suffix)(ExpertBias op) { begin_kernel(); expert_bias_dots<T, N>(op); }
FOR_EACH_FLOAT(EXPERT_BIAS)
KERNEL(expert_bias_gradient_f32)(ExpertBias op) { begin_kernel(); expert_bias_gradient<float>(op); }
KERNEL(expert_bias_gradient_bf16)(ExpertBias op) { begin_kernel(); expert_bias_gradient<bf16>(op); }
