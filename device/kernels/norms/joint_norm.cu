// RMSNorm of all query channels of a row together, and of all key channels. Ranks may share the heads, so the sums over
// channels come first, from a kernel of their own. A row is [queries | keys | values].
//
// Sums: a block takes one row's queries (y = 0) or keys (y = 1) and reads them once. Forward reads and writes the packed
// tensor once. Backward reads the input and reads and writes the gradient of queries and keys; each of its blocks adds the
// gradients of weights of its rows to a row of `partial`, in order, and `add_partial_columns` adds these up.
#include "common.cuh"

struct JointNorm {
    const void* input;
    void* output; // backward: the gradient, in place; sums: the gradient, or null for squares
    const void* query_weight;
    const void* key_weight;
    const float* squares;  // (rows, 2)
    const float* products; // (rows, 2), backward
    float* partial;        // backward: (blocks, queries), then (blocks, keys)
    float* sums;           // (rows, 2), of the sums alone
    u32 rows;
    u32 queries; // channels of all query heads
    u32 keys;    // channels of all key heads
    u32 ranks;
    float eps;
    u32 reserved;
};

inline float joint_rstd(const JointNorm& op, u32 row, u32 kind, u32 count) {
    return 1.0f / sqrtf(op.squares[2 * (u64)row + kind] / (float)(count * op.ranks) + op.eps);
}

template <class T, int N> void head_sums(const JointNorm& op) {
    u32 row = blockIdx.x, kind = blockIdx.y, count = kind ? op.keys : op.queries;
    u64 start = (u64)row * (op.queries + 2 * op.keys) + (kind ? op.queries : 0);
    const T *input = (const T*)op.input + start, *grad = (const T*)op.output + start;
    const T* weight = (const T*)(kind ? op.key_weight : op.query_weight);
    float sum = 0.0f;
    for (u32 c = threadIdx.x * N; c < count; c += blockDim.x * N) {
        float x[N];
        load<N>(input + c, x);
        if (op.output) {
            float w[N], dy[N];
            load<N>(weight + c, w);
            load<N>(grad + c, dy);
#pragma unroll
            for (int i = 0; i < N; i++) sum += x[i] * w[i] * dy[i];
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) sum += x[i] * x[i];
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) op.sums[2 * (u64)row + kind] = sum;
}

template <class T, int N> void joint_norm(const JointNorm& op) {
    u32 width = op.queries + 2 * op.keys;
    for (u32 row = blockIdx.x; row < op.rows; row += gridDim.x) {
        float rstd[2] = {joint_rstd(op, row, 0, op.queries), joint_rstd(op, row, 1, op.keys)};
        for (u32 c = threadIdx.x * N; c < width; c += blockDim.x * N) {
            u64 at = (u64)row * width + c;
            float x[N];
            load<N>((const T*)op.input + at, x);
            if (c < op.queries + op.keys) {
                u32 kind = c >= op.queries;
                float w[N];
                load<N>(kind ? (const T*)op.key_weight + c - op.queries : (const T*)op.query_weight + c, w);
#pragma unroll
                for (int i = 0; i < N; i++) x[i] = x[i] * rstd[kind] * w[i];
            }
            store<N>((T*)op.output + at, x);
        }
    }
}

template <class T, int N> void joint_norm_backward(const JointNorm& op) {
    u32 width = op.queries + 2 * op.keys;
    // A thread has the same channels in every row.
    for (u32 c = threadIdx.x * N; c < op.queries + op.keys; c += blockDim.x * N) {
        u32 kind = c >= op.queries, channel = kind ? c - op.queries : c, count = kind ? op.keys : op.queries;
        float w[N], sum[N] = {};
        load<N>((const T*)(kind ? op.key_weight : op.query_weight) + channel, w);
        for (u32 row = blockIdx.x; row < op.rows; row += gridDim.x) {
            float rstd = joint_rstd(op, row, kind, count);
            float mean_product = op.products[2 * (u64)row + kind] * rstd / (float)(count * op.ranks);
            u64 at = (u64)row * width + c;
            float x[N], dy[N];
            load<N>((const T*)op.input + at, x);
            load<N>((const T*)op.output + at, dy);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float normed = x[i] * rstd;
                sum[i] += dy[i] * normed;
                dy[i] = (dy[i] * w[i] - normed * mean_product) * rstd;
            }
            store<N>((T*)op.output + at, dy);
        }
        float* partial = op.partial + (kind ? (u64)gridDim.x * op.queries : 0) + (u64)blockIdx.x * count + channel;
#pragma unroll
        for (int i = 0; i < N; i++) partial[i] = sum[i];
    }
}

#define JOINT_NORM(T, N, suffix)                                                                                       \
    KERNEL(head_sums_##suffix)(const JointNorm op) { begin_kernel(); head_sums<T, N>(op); }                            \
    KERNEL(joint_norm_##suffix)(const JointNorm op) { begin_kernel(); joint_norm<T, N>(op); }                          \
    KERNEL(joint_norm_backward_##suffix)(const JointNorm op) { begin_kernel(); joint_norm_backward<T, N>(op); }
FOR_EACH_FLOAT(JOINT_NORM)
