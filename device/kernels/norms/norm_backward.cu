// Gradient of the normalisation. One pass over the rows, each in registers, gives `grad_input`. The column sums of the
// parameter gradients, and with SUMS those of `grad_residual`, stay in registers from row to row. In the end each block
// stores its own, a part of those that are wanted. `add_partial_columns` adds up the parts. It moves four tensors of
// (rows, hidden), and the parts twice: 6 % more with two sums at (16384, 2048) bf16 in 528 blocks, most of it in L2.
#include "rows.cuh"

struct NormBackward {
    const void* input;
    const void* weight;
    const float* mean; // null for RMSNorm
    const float* rstd;
    const void* grad_output;
    const void* grad_residual; // or null
    void* grad_input;          // may be grad_residual
    float* weight_parts;   // (blocks, hidden), or null
    float* bias_parts;     // the same
    float* residual_parts; // the same
    u32 rows;
    u32 hidden;
    float weight_offset; // added to the weight
    u32 reserved;
};

// A thread's part of a row.
template <class T, int N, int PACKS> struct Part {
    Raw<T, N> x[PACKS], dy[PACKS], past[PACKS];
    float mean, rstd;
};

template <bool WARP, class T, int N, int PACKS> void fetch_part(Part<T, N, PACKS>& part, const NormBackward& op, u64 row) {
    typedef RowThreads<WARP> Threads;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        u32 column = (Threads::lane() + p * Threads::lanes()) * N;
        bool inside = column < op.hidden;
        u64 at = row * op.hidden + column;
        part.x[p] = inside ? fetch<N>((const T*)op.input + at) : Raw<T, N>{};
        part.dy[p] = inside ? fetch<N>((const T*)op.grad_output + at) : Raw<T, N>{};
        part.past[p] = op.grad_residual && inside ? fetch<N>((const T*)op.grad_residual + at) : Raw<T, N>{};
    }
    part.mean = op.mean ? op.mean[row] : 0.0f;
    part.rstd = op.rstd[row];
}

// This block's part of a sum, from its threads. With one row per warp, the warps' sums are added in order.
template <bool WARP, int N, int PACKS> void put_part(float* parts, const float (&sums)[PACKS][N], u32 hidden) {
    typedef RowThreads<WARP> Threads;
    if (!parts) return;
    float* part = parts + (u64)blockIdx.x * hidden;
    if constexpr (!WARP) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            if (column < hidden) store_f32<N>(part + column, sums[p]);
        }
        return;
    }
    __shared__ float combined[WARP ? 32 * PACKS * N : 1];
    for (u32 warp = 0; warp < Threads::rows(); warp++) {
        if (warp == Threads::row()) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float* at = combined + (Threads::lane() + p * 32) * N + i;
                    at[0] = (warp ? at[0] : 0.0f) + sums[p][i];
                }
            }
        }
        __syncthreads();
    }
    for (u32 c = threadIdx.x; c < hidden; c += blockDim.x) part[c] = combined[c];
    __syncthreads();
}

template <class T, int N, int PACKS, bool WARP, bool SUMS> void norm_backward(const NormBackward& op) {
    typedef RowThreads<WARP> Threads;
    const T* weight = (const T*)op.weight;
    T* grad_input = (T*)op.grad_input;
    float grad_weight[PACKS][N] = {}, grad_bias[PACKS][N] = {}, sums[SUMS ? PACKS : 1][N] = {};
    const u64 step = (u64)gridDim.x * Threads::rows();
    u64 row = (u64)blockIdx.x * Threads::rows() + Threads::row();
    // With one row per warp, warps hide each other's loads. A block waits for all its warps twice per row, so it loads
    // the next row meanwhile.
    constexpr bool AHEAD = !WARP;
    Part<T, N, PACKS> next = {};
    if (AHEAD && row < op.rows) fetch_part<WARP>(next, op, row);
    for (; row < op.rows; row += step) {
        Part<T, N, PACKS> part = next;
        if (!AHEAD) fetch_part<WARP>(part, op, row);
        else if (row + step < op.rows) fetch_part<WARP>(next, op, row + step);
        float mean = part.mean, rstd = part.rstd, sum = 0.0f, product = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            float x[N], dy[N], w[N] = {};
            unpack(part.x[p], x);
            unpack(part.dy[p], dy);
            // Outside of the row dy is 0, so nothing there counts.
            if (column < op.hidden) load<N>(weight + column, w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float normed = (x[i] - mean) * rstd, scaled = dy[i] * (op.weight_offset + w[i]);
                sum += scaled;
                product += scaled * normed;
                grad_weight[p][i] += dy[i] * normed;
                grad_bias[p][i] += dy[i];
            }
        }
        Threads::sums(sum, product);
        sum = op.mean ? sum / op.hidden : 0.0f;
        product /= op.hidden;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            if (column >= op.hidden) continue;
            float x[N], dy[N], past[N], w[N];
            unpack(part.x[p], x);
            unpack(part.dy[p], dy);
            unpack(part.past[p], past);
            load<N>(weight + column, w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float normed = (x[i] - mean) * rstd;
                x[i] = (dy[i] * (op.weight_offset + w[i]) - sum - normed * product) * rstd + past[i];
                if constexpr (SUMS) sums[p][i] += past[i];
            }
            Raw<T, N> raw;
            pack(raw, x);
            put(grad_input + row * op.hidden + column, raw);
        }
    }
    put_part<WARP>(op.weight_parts, grad_weight, op.hidden);
    put_part<WARP>(op.bias_parts, grad_bias, op.hidden);
    if constexpr (SUMS) put_part<WARP>(op.residual_parts, sums, op.hidden);
}
// With one row per block, a block may have 512 threads, and each gets 128 registers. With one row per warp, blocks are
// small, and without a bound the compiler uses fewer registers.
#define BOUNDS_true
#define BOUNDS_false __launch_bounds__(512)
#define NORM_BACKWARD(T, N, PACKS, WARP, suffix)                                                                       \
    KERNEL(BOUNDS_##WARP norm_backward_##suffix)(const NormBackward op) {                                              \
        begin_kernel();                                                                                                \
        norm_backward<T, N, PACKS, WARP, false>(op);                                                                   \
    }                                                                                                                  \
    KERNEL(BOUNDS_##WARP norm_backward_sums_##suffix)(const NormBackward op) {                                         \
        begin_kernel();                                                                                                \
        norm_backward<T, N, PACKS, WARP, true>(op);                                                                    \
    }
FOR_EACH_ROW_SHAPE(NORM_BACKWARD)

// For any size and address. The columns' sums come first, since `grad_input` may overwrite an input.
template <class T> void norm_backward_columns(const NormBackward& op) {
    const T *input = (const T*)op.input, *grad_output = (const T*)op.grad_output;
    const T* residual = (const T*)op.grad_residual;
    u32 blocks = gridDim.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= op.hidden) return;
    float grad_weight = 0.0f, grad_bias = 0.0f, sum = 0.0f;
    for (u64 row = blockIdx.y; row < op.rows; row += blocks) {
        u64 at = row * op.hidden + column;
        float dy = value(grad_output + at), mean = op.mean ? op.mean[row] : 0.0f;
        grad_weight += dy * ((value(input + at) - mean) * op.rstd[row]);
        grad_bias += dy;
        if (op.residual_parts) sum += value(residual + at);
    }
    u64 at = (u64)blockIdx.y * op.hidden + column;
    if (op.weight_parts) op.weight_parts[at] = grad_weight;
    if (op.bias_parts) op.bias_parts[at] = grad_bias;
    if (op.residual_parts) op.residual_parts[at] = sum;
}

template <class T> void norm_backward_any(const NormBackward& op) {
    const T *input = (const T*)op.input, *grad_output = (const T*)op.grad_output;
    const T *residual = (const T*)op.grad_residual, *weight = (const T*)op.weight;
    T* grad_input = (T*)op.grad_input;
    for (u64 row = blockIdx.x; row < op.rows; row += gridDim.x) {
        u64 start = row * op.hidden;
        float mean = op.mean ? op.mean[row] : 0.0f, rstd = op.rstd[row];
        float sum = 0.0f, product = 0.0f;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            float scaled = value(grad_output + start + c) * (op.weight_offset + value(weight + c));
            sum += scaled;
            product += scaled * ((value(input + start + c) - mean) * rstd);
        }
        sum = op.mean ? block_sum(sum) / op.hidden : 0.0f;
        product = block_sum(product) / op.hidden;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            float scaled = value(grad_output + start + c) * (op.weight_offset + value(weight + c));
            float normed = (value(input + start + c) - mean) * rstd;
            float past = residual ? value(residual + start + c) : 0.0f;
            set(grad_input + start + c, (scaled - sum - normed * product) * rstd + past);
        }
    }
}
#define NORM_BACKWARD_ANY(T, suffix)                                                                    \
    KERNEL(norm_backward_columns_##suffix)(const NormBackward op) { begin_kernel(); norm_backward_columns<T>(op); } \
    KERNEL(norm_backward_##suffix##_any)(const NormBackward op) { begin_kernel(); norm_backward_any<T>(op); }
NORM_BACKWARD_ANY(float, f32)
NORM_BACKWARD_ANY(bf16, bf16)
