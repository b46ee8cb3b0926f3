// Normalisation with the residual add before it. A row stays in registers: `input` and `residual` are read once, `sum`
// and `output` written once. Without `output` only `sum` and the statistics are written.
#include "rows.cuh"

struct Norm {
    const void* input;
    const void* residual; // or null, with sum
    void* sum;
    const void* weight;
    const void* bias; // or null
    void* output; // or null
    float* mean; // null for RMSNorm
    float* rstd;
    u32 rows;
    u32 hidden;
    float eps;
    float weight_offset; // added to the weight
};

// The origin of sums for the mean: the first number of the row, of the sum as stored. Relative to it the mean of equal
// numbers is that number. Otherwise, with large numbers or a small eps, the rounding of the mean would count as variance.
// 0 for RMSNorm: it has no mean.
template <class T> float first_of_row(const Norm& op, u64 start) {
    if (!op.mean) return 0.0f;
    float first = value((const T*)op.input + start);
    if (!op.residual) return first;
    T stored;
    set(&stored, first + value((const T*)op.residual + start));
    return value(&stored);
}

template <class T, int N, int PACKS, bool WARP> void norm(const Norm& op) {
    typedef RowThreads<WARP> Threads;
    const T *input = (const T*)op.input, *residual = (const T*)op.residual;
    const T *weight = (const T*)op.weight, *bias = (const T*)op.bias;
    T *sum = (T*)op.sum, *output = (T*)op.output;
    u32 packs = op.hidden / N;
    for (u64 row = (u64)blockIdx.x * Threads::rows() + Threads::row(); row < op.rows; row += (u64)gridDim.x * Threads::rows()) {
        u64 start = row * op.hidden;
        Raw<T, N> raw[PACKS], other[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 pack = Threads::lane() + p * Threads::lanes();
            raw[p] = pack < packs ? fetch<N>(input + start + pack * N) : Raw<T, N>{};
            other[p] = residual && pack < packs ? fetch<N>(residual + start + pack * N) : Raw<T, N>{};
        }
        float x[PACKS][N], first = first_of_row<T>(op, start), total = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            unpack(raw[p], x[p]);
            if (residual) {
                float y[N];
                unpack(other[p], y);
#pragma unroll
                for (int i = 0; i < N; i++) x[p][i] += y[i];
                // The statistics are those of the sum as stored.
                pack(raw[p], x[p]);
                unpack(raw[p], x[p]);
                if (column < op.hidden) put(sum + start + column, raw[p]);
            }
            if (column >= op.hidden) continue;
#pragma unroll
            for (int i = 0; i < N; i++) total += x[p][i] - first;
        }
        float mean = op.mean ? first + Threads::sum(total) / op.hidden : 0.0f;
        float squares = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (Threads::lane() + p * Threads::lanes() >= packs) continue;
#pragma unroll
            for (int i = 0; i < N; i++) squares += (x[p][i] - mean) * (x[p][i] - mean);
        }
        float rstd = 1.0f / sqrtf(Threads::sum(squares) / op.hidden + op.eps);
        if (Threads::lane() == 0) {
            if (op.mean) op.mean[row] = mean;
            op.rstd[row] = rstd;
        }
        if (!output) continue;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            if (column >= op.hidden) continue;
            float w[N], b[N] = {};
            load<N>(weight + column, w);
            if (bias) load<N>(bias + column, b);
#pragma unroll
            for (int i = 0; i < N; i++) x[p][i] = (x[p][i] - mean) * rstd * (op.weight_offset + w[i]) + b[i];
            store<N>(output + start + column, x[p]);
        }
    }
}
#define NORM(T, N, PACKS, WARP, suffix) \
    KERNEL(norm_##suffix)(const Norm op) { begin_kernel(); norm<T, N, PACKS, WARP>(op); }
FOR_EACH_ROW_SHAPE(NORM)

// For any size and address: one block per row. The row is read again from the cache.
template <class T> void norm_any(const Norm& op) {
    const T *input = (const T*)op.input, *residual = (const T*)op.residual;
    const T *weight = (const T*)op.weight, *bias = (const T*)op.bias;
    T *sum = (T*)op.sum, *output = (T*)op.output;
    for (u64 row = blockIdx.x; row < op.rows; row += gridDim.x) {
        u64 start = row * op.hidden;
        // Each thread reads only its own writes.
        const T* x = residual ? sum + start : input + start;
        float first = first_of_row<T>(op, start), total = 0.0f;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            if (residual) set(sum + start + c, value(input + start + c) + value(residual + start + c));
            total += value(x + c) - first;
        }
        float mean = op.mean ? first + block_sum(total) / op.hidden : 0.0f;
        float squares = 0.0f;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            float centred = value(x + c) - mean;
            squares += centred * centred;
        }
        float rstd = 1.0f / sqrtf(block_sum(squares) / op.hidden + op.eps);
        if (threadIdx.x == 0) {
            if (op.mean) op.mean[row] = mean;
            op.rstd[row] = rstd;
        }
        if (!output) continue;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            float shift = bias ? value(bias + c) : 0.0f;
            set(output + start + c, (value(x + c) - mean) * rstd * (op.weight_offset + value(weight + c)) + shift);
        }
    }
}
KERNEL(norm_f32_any)(const Norm op) { begin_kernel(); norm_any<float>(op); }
KERNEL(norm_bf16_any)(const Norm op) { begin_kernel(); norm_any<bf16>(op); }
