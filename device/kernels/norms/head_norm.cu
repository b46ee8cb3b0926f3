// RMSNorm of each query and key head, then the rotary embedding in half-split form: channel i of a head pairs with
// i + head_dim / 2. A head is taken by `lanes` threads of a warp, a power of two, each with a few packs of N pairs in
// registers. Forward reads and writes the packed tensor once. Backward reads the input and reads and writes the gradient
// of queries and keys.
#include "common.cuh"

struct HeadNorm {
    const void* input;
    void* output; // backward: the gradient, in place
    const void* query_weight;
    const void* key_weight;
    const float* table; // or null
    float* partial;     // backward
    u32 rows;
    u32 seq;
    u32 heads;
    u32 kv_heads;
    u32 half; // of a head's channels
    u32 lanes;
    float eps;
    float weight_offset; // added to the weights
};

// The two halves of a head's channels, as far as this thread has them.
template <int N, int PACKS> struct Halves {
    float a[PACKS][N] = {}, b[PACKS][N] = {};
};

// Over the threads of a head, on every one of them. All threads of the warp call it.
inline float head_sum(float x, u32 lanes) {
    for (u32 distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// Loads a head, or leaves it 0 if it is `outside`.
template <class T, int N, int PACKS> void load_head(Halves<N, PACKS>& x, const T* head, const HeadNorm& op, bool outside) {
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        u32 channel = (threadIdx.x % op.lanes + p * op.lanes) * N;
        if (outside || channel >= op.half) continue;
        load<N>(head + channel, x.a[p]);
        load<N>(head + op.half + channel, x.b[p]);
    }
}

// Loads N channels of each half of a weight, with its offset.
template <class T, int N> void load_weight(const T* weight, u32 channel, const HeadNorm& op, float (&a)[N], float (&b)[N]) {
    load<N>(weight + channel, a);
    load<N>(weight + op.half + channel, b);
#pragma unroll
    for (int i = 0; i < N; i++) a[i] += op.weight_offset, b[i] += op.weight_offset;
}

// Turns N pairs by the angles of a position, given by `angles`; `sign` -1 turns back.
template <int N> void turn(float (&a)[N], float (&b)[N], const float* angles, float sign) {
    float angle[2 * N];
    if constexpr (N == 1) angle[0] = angles[0], angle[1] = angles[1];
    else load_f32<2 * N>(angles, angle);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float cos = angle[2 * i], sin = sign * angle[2 * i + 1], x = a[i], y = b[i];
        a[i] = x * cos - y * sin;
        b[i] = x * sin + y * cos;
    }
}

template <class T, int N, int PACKS> void head_norm(const HeadNorm& op) {
    const u32 groups = 32 / op.lanes, of_row = op.heads + 2 * op.kv_heads, dim = 2 * op.half;
    const u64 total = (u64)op.rows * of_row, warps = (u64)gridDim.x * blockDim.x / 32;
    const u64 warp = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    // The same number of rounds for all threads of a warp, since they add up together.
    for (u64 base = warp * groups; base < total; base += warps * groups) {
        u64 at = base + threadIdx.x % 32 / op.lanes;
        bool outside = at >= total;
        Halves<N, PACKS> x;
        load_head(x, (const T*)op.input + at * dim, op, outside);
        float squares = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
#pragma unroll
            for (int i = 0; i < N; i++) squares += x.a[p][i] * x.a[p][i] + x.b[p][i] * x.b[p][i];
        }
        float rstd = 1.0f / sqrtf(head_sum(squares, op.lanes) / dim + op.eps);
        if (outside) continue;
        u32 head = (u32)at % of_row, position = (u32)at / of_row % op.seq;
        const T* weight = (const T*)(head < op.heads ? op.query_weight : op.key_weight);
        T* output = (T*)op.output + at * dim;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 channel = (threadIdx.x % op.lanes + p * op.lanes) * N;
            if (channel >= op.half) continue;
            if (head < op.heads + op.kv_heads) {
                float a[N], b[N];
                load_weight(weight, channel, op, a, b);
#pragma unroll
                for (int i = 0; i < N; i++) x.a[p][i] *= rstd * a[i], x.b[p][i] *= rstd * b[i];
                if (op.table) turn<N>(x.a[p], x.b[p], op.table + ((u64)position * op.half + channel) * 2, 1.0f);
            }
            store<N>(output + channel, x.a[p]);
            store<N>(output + op.half + channel, x.b[p]);
        }
    }
}

// Blocks with y = 0 take queries, those with y = 1 keys. Each leaves a row of partial sums of the weight's gradient in
// `partial`, (2, blocks, head_dim) f32. `add_partial_columns` adds them up.
template <class T, int N, int PACKS> void head_norm_backward(const HeadNorm& op) {
    const u32 groups = 32 / op.lanes, of_row = op.heads + 2 * op.kv_heads, dim = 2 * op.half;
    const u32 count = blockIdx.y ? op.kv_heads : op.heads, first = blockIdx.y ? op.heads : 0;
    const u64 total = (u64)op.rows * count, warps = (u64)gridDim.x * blockDim.x / 32;
    const u64 warp = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const T* weight = (const T*)(blockIdx.y ? op.key_weight : op.query_weight);
    Halves<N, PACKS> sums;
    for (u64 base = warp * groups; base < total; base += warps * groups) {
        u64 at = base + threadIdx.x % 32 / op.lanes;
        bool outside = at >= total;
        u32 row = (u32)at / count, position = row % op.seq;
        u64 start = ((u64)row * of_row + first + (u32)at % count) * dim;
        T* grad = (T*)op.output + start;
        Halves<N, PACKS> x, dy;
        load_head(x, (const T*)op.input + start, op, outside);
        load_head(dy, (const T*)grad, op, outside);
        float squares = 0.0f, product = 0.0f;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 channel = (threadIdx.x % op.lanes + p * op.lanes) * N;
            if (outside || channel >= op.half) continue;
            if (op.table) turn<N>(dy.a[p], dy.b[p], op.table + ((u64)position * op.half + channel) * 2, -1.0f);
            float a[N], b[N];
            load_weight(weight, channel, op, a, b);
#pragma unroll
            for (int i = 0; i < N; i++) {
                squares += x.a[p][i] * x.a[p][i] + x.b[p][i] * x.b[p][i];
                product += dy.a[p][i] * a[i] * x.a[p][i] + dy.b[p][i] * b[i] * x.b[p][i];
            }
        }
        float rstd = 1.0f / sqrtf(head_sum(squares, op.lanes) / dim + op.eps);
        // The mean of the normed values times their gradients.
        product = head_sum(product, op.lanes) * rstd / dim;
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            u32 channel = (threadIdx.x % op.lanes + p * op.lanes) * N;
            if (outside || channel >= op.half) continue;
            float a[N], b[N];
            load_weight(weight, channel, op, a, b);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float normed_a = x.a[p][i] * rstd, normed_b = x.b[p][i] * rstd;
                sums.a[p][i] += dy.a[p][i] * normed_a;
                sums.b[p][i] += dy.b[p][i] * normed_b;
                dy.a[p][i] = (dy.a[p][i] * a[i] - normed_a * product) * rstd;
                dy.b[p][i] = (dy.b[p][i] * b[i] - normed_b * product) * rstd;
            }
            store<N>(grad + channel, dy.a[p]);
            store<N>(grad + op.half + channel, dy.b[p]);
        }
    }
    // Over the heads of a warp, then over the warps, in order.
    __shared__ float combined[512];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            for (u32 distance = op.lanes; distance < 32; distance *= 2) {
                sums.a[p][i] += __shfl_xor_sync(0xffffffffu, sums.a[p][i], distance);
                sums.b[p][i] += __shfl_xor_sync(0xffffffffu, sums.b[p][i], distance);
            }
        }
    }
    for (u32 from = 0; from < blockDim.x / 32; from++) {
        if (from == threadIdx.x / 32 && threadIdx.x % 32 < op.lanes) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                u32 channel = (threadIdx.x % op.lanes + p * op.lanes) * N;
                if (channel >= op.half) continue;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    float *a = combined + channel + i, *b = a + op.half;
                    *a = (from ? *a : 0.0f) + sums.a[p][i];
                    *b = (from ? *b : 0.0f) + sums.b[p][i];
                }
            }
        }
        __syncthreads();
    }
    float* partial = op.partial + ((u64)blockIdx.y * gridDim.x + blockIdx.x) * dim;
    for (u32 c = threadIdx.x; c < dim; c += blockDim.x) partial[c] = combined[c];
}

// With vectors a thread has one pack: a head has at most 64 N channels. One value at a time serves up to 512.
#define HEAD_NORM(T, N, suffix)                                                                                        \
    KERNEL(head_norm_##suffix)(const HeadNorm op) { begin_kernel(); head_norm<T, N, N == 1 ? 8 : 1>(op); }             \
    KERNEL(head_norm_backward_##suffix)(const HeadNorm op) { begin_kernel(); head_norm_backward<T, N, N == 1 ? 8 : 1>(op); }
FOR_EACH_FLOAT(HEAD_NORM)
