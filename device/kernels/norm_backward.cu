// Gradient of the normalisation. One pass over the rows, each in registers, gives `grad_input`; the column sums of the
// parameter gradients stay in registers from row to row, and go to `partial`, (2, blocks, hidden) f32: weight, then bias.
// `add_partial_columns` adds them up.
#include "rows.cuh"

struct NormBackward {
    const void* input;
    const void* weight;
    const float* mean; // null for RMSNorm
    const float* rstd;
    const void* grad_output;
    const void* grad_residual; // or null
    void* grad_input;          // may be grad_residual
    float* partial;
    u32 rows;
    u32 hidden;
    u32 with_bias;
    u32 reserved;
};

template <class T, int N, int PACKS, bool WARP> void norm_backward(const NormBackward& op) {
    typedef RowThreads<WARP> Threads;
    const T *input = (const T*)op.input, *grad_output = (const T*)op.grad_output;
    const T *residual = (const T*)op.grad_residual, *weight = (const T*)op.weight;
    T* grad_input = (T*)op.grad_input;
    float grad_weight[PACKS][N] = {}, grad_bias[PACKS][N] = {};
    for (u64 row = (u64)blockIdx.x * Threads::rows() + Threads::row(); row < op.rows; row += (u64)gridDim.x * Threads::rows()) {
        u64 start = row * op.hidden;
        Raw<T, N> x_raw[PACKS], dy_raw[PACKS], past_raw[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            bool inside = column < op.hidden;
            x_raw[p] = inside ? fetch<N>(input + start + column) : Raw<T, N>{};
            dy_raw[p] = inside ? fetch<N>(grad_output + start + column) : Raw<T, N>{};
            past_raw[p] = residual && inside ? fetch<N>(residual + start + column) : Raw<T, N>{};
        }
        float mean = op.mean ? op.mean[row] : 0.0f, rstd = op.rstd[row];
        float sum = 0.0f, product = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            float x[N], dy[N], w[N] = {};
            unpack(x_raw[p], x);
            unpack(dy_raw[p], dy);
            // Outside the row dy is 0, so nothing below counts.
            if (column < op.hidden) load<N>(weight + column, w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float normed = (x[i] - mean) * rstd;
                sum += dy[i] * w[i];
                product += dy[i] * w[i] * normed;
                grad_weight[p][i] += dy[i] * normed;
                grad_bias[p][i] += dy[i];
            }
        }
        sum = op.mean ? Threads::sum(sum) / op.hidden : 0.0f;
        product = Threads::sum(product) / op.hidden;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            if (column >= op.hidden) continue;
            float x[N], dy[N], past[N], w[N];
            unpack(x_raw[p], x);
            unpack(dy_raw[p], dy);
            unpack(past_raw[p], past);
            load<N>(weight + column, w);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float normed = (x[i] - mean) * rstd;
                x[i] = (dy[i] * w[i] - sum - normed * product) * rstd + past[i];
            }
            store<N>(grad_input + start + column, x);
        }
    }
    // The rows of the block's warps, added in order.
    __shared__ float combined[WARP ? 2 * 32 * PACKS * N : 1];
    if constexpr (WARP) {
        for (u32 warp = 0; warp < Threads::rows(); warp++) {
            if (warp == Threads::row()) {
#pragma unroll
                for (int p = 0; p < PACKS; p++) {
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        float* at = combined + (Threads::lane() + p * 32) * N + i;
                        at[0] = (warp ? at[0] : 0.0f) + grad_weight[p][i];
                        at[32 * PACKS * N] = (warp ? at[32 * PACKS * N] : 0.0f) + grad_bias[p][i];
                    }
                }
            }
            __syncthreads();
        }
        float* partial = op.partial + (u64)blockIdx.x * op.hidden;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            partial[c] = combined[c];
            if (op.with_bias) partial[(u64)gridDim.x * op.hidden + c] = combined[32 * PACKS * N + c];
        }
    } else {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 column = (Threads::lane() + p * Threads::lanes()) * N;
            if (column >= op.hidden) continue;
            float* partial = op.partial + (u64)blockIdx.x * op.hidden + column;
            store_f32<N>(partial, grad_weight[p]);
            if (op.with_bias) store_f32<N>(partial + (u64)gridDim.x * op.hidden, grad_bias[p]);
        }
    }
}
#define NORM_BACKWARD(T, N, PACKS, WARP, suffix) \
    KERNEL(norm_backward_##suffix)(const NormBackward op) { norm_backward<T, N, PACKS, WARP>(op); }
FOR_EACH_ROW_SHAPE(NORM_BACKWARD)

// Any size and address: the columns' sums first, as `grad_input` may take the place of something.
template <class T> void norm_backward_columns(const NormBackward& op) {
    const T *input = (const T*)op.input, *grad_output = (const T*)op.grad_output;
    u32 blocks = gridDim.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= op.hidden) return;
    float grad_weight = 0.0f, grad_bias = 0.0f;
    for (u64 row = blockIdx.y; row < op.rows; row += blocks) {
        u64 at = row * op.hidden + column;
        float dy = value(grad_output + at), mean = op.mean ? op.mean[row] : 0.0f;
        grad_weight += dy * ((value(input + at) - mean) * op.rstd[row]);
        grad_bias += dy;
    }
    op.partial[(u64)blockIdx.y * op.hidden + column] = grad_weight;
    if (op.with_bias) op.partial[(u64)(blocks + blockIdx.y) * op.hidden + column] = grad_bias;
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
            float scaled = value(grad_output + start + c) * value(weight + c);
            sum += scaled;
            product += scaled * ((value(input + start + c) - mean) * rstd);
        }
        sum = op.mean ? block_sum(sum) / op.hidden : 0.0f;
        product = block_sum(product) / op.hidden;
        for (u32 c = threadIdx.x; c < op.hidden; c += blockDim.x) {
            float scaled = value(grad_output + start + c) * value(weight + c);
            float normed = (value(input + start + c) - mean) * rstd;
            float past = residual ? value(residual + start + c) : 0.0f;
            set(grad_input + start + c, (scaled - sum - normed * product) * rstd + past);
        }
    }
}
#define NORM_BACKWARD_ANY(T, suffix)                                                                    \
    KERNEL(norm_backward_columns_##suffix)(const NormBackward op) { norm_backward_columns<T>(op); } \
    KERNEL(norm_backward_##suffix##_any)(const NormBackward op) { norm_backward_any<T>(op); }
NORM_BACKWARD_ANY(float, f32)
NORM_BACKWARD_ANY(bf16, bf16)
