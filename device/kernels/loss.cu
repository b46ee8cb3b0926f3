// Losses with their gradients in the same pass.
#include "common.cuh"

const float LOWEST = -3.4028235e38f;

// The largest value so far and the sum of exponentials below it; LOWEST rather than -inf, as -inf - -inf is no number.
struct Online {
    float highest;
    float sum;
};

template <class T, int N> void add(Online& state, const float (&x)[N]) {
    float highest = state.highest;
#pragma unroll
    for (int i = 0; i < N; i++) highest = fmaxf(highest, x[i]);
    float sum = state.sum * exponential<T>(state.highest - highest);
#pragma unroll
    for (int i = 0; i < N; i++) sum += exponential<T>(x[i] - highest);
    state = {highest, sum};
}

// Packs of a row that a thread has in flight.
const int UNROLL = 4;

// Softmax and cross-entropy, a block a row, in the online form (Milakov and Gimelshein, 2018). With CACHED the row lies in
// shared memory meanwhile: it is read once and its gradient written once. Without `control` nothing is written but the
// loss. Columns from `vocab` on are padding.
template <class T, int N, bool CACHED>
void cross_entropy(T* logits, const int* targets, float* losses, const Control* control, u32 columns, u32 vocab) {
    extern __shared__ uint4 shared[];
    Raw<T, N>* cache = reinterpret_cast<Raw<T, N>*>(shared);
    const u64 row = blockIdx.x;
    logits += row * columns;
    u32 target = targets[row], packs = columns / N;
    if (target >= vocab) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if (!control) return;
        for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) put(logits + pack * N, Raw<T, N>{});
        return;
    }
    // Read before any thread overwrites it.
    float at_target = value(logits + target);
    Online state = {LOWEST, 0.0f};
    for (u32 base = threadIdx.x; base * N < vocab; base += UNROLL * blockDim.x) {
        Raw<T, N> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 pack = base + u * blockDim.x;
            if (pack * N < vocab) raw[u] = fetch<N>(logits + pack * N);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u32 pack = base + u * blockDim.x;
            if (pack * N >= vocab) break;
            if constexpr (CACHED) cache[pack] = raw[u];
            float x[N];
            unpack(raw[u], x);
            if ((pack + 1) * N > vocab) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (pack * N + i >= vocab) x[i] = __int_as_float(0xff800000);
                }
            }
            add<T, N>(state, x);
        }
    }
    float highest = block_max(state.highest);
    float sum = block_sum(state.sum * exponential<T>(state.highest - highest));
    float lse = highest + logf(sum);
    if (threadIdx.x == 0) losses[row] = lse - at_target;
    if (!control) return;
    float scale = control->grad_scale;
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        u32 column = pack * N;
        Raw<T, N> raw = {};
        if (column < vocab) {
            // Each thread takes the packs that it read above itself.
            if constexpr (CACHED) raw = cache[pack];
            else raw = fetch<N>(logits + column);
            float x[N];
            unpack(raw, x);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = exponential<T>(x[i] - lse) * scale;
            if (target - column < N) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (column + i == target) x[i] = (exponential<T>(at_target - lse) - 1.0f) * scale;
                }
            }
            if (column + N > vocab) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (column + i >= vocab) x[i] = 0.0f;
                }
            }
            ::pack(raw, x);
        }
        put(logits + column, raw);
    }
}
#define CROSS_ENTROPY(T, N, suffix)                                                                                    \
    KERNEL(cross_entropy_##suffix)                                                                                     \
    (T* logits, const int* targets, float* losses, const Control* control, u32 columns, u32 vocab) {                   \
        cross_entropy<T, N, false>(logits, targets, losses, control, columns, vocab);                                  \
    }                                                                                                                  \
    KERNEL(cross_entropy_cached_##suffix)                                                                              \
    (T* logits, const int* targets, float* losses, const Control* control, u32 columns, u32 vocab) {                   \
        cross_entropy<T, N, true>(logits, targets, losses, control, columns, vocab);                                   \
    }
FOR_EACH_FLOAT(CROSS_ENTROPY)

// What a rank's columns of a row come to, for cross-entropy over a vocabulary that is cut over ranks: the largest logit,
// the sum of exponentials below it, and the target's logit if it is here; stats (3, rows). Columns from `real` on are
// padding, and the first is token `first`.
template <class T, int N>
void cross_entropy_part(const T* logits, const int* targets, float* stats, u32 rows, u32 columns, u32 real, u32 first) {
    const u64 row = blockIdx.x;
    logits += row * columns;
    Online state = {LOWEST, 0.0f};
    for (u32 column = threadIdx.x * N; column < real; column += blockDim.x * N) {
        float x[N];
        load<N>(logits + column, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (column + i >= real) x[i] = __int_as_float(0xff800000);
        }
        add<T, N>(state, x);
    }
    float highest = block_max(state.highest);
    float sum = block_sum(state.sum * exponential<T>(state.highest - highest));
    if (threadIdx.x > 0) return;
    u32 target = (u32)targets[row] - first; // one before the first wraps to a number beyond the last
    stats[row] = highest;
    stats[rows + row] = sum;
    stats[2 * rows + row] = target < real ? value(logits + target) : 0.0f;
}
#define CROSS_ENTROPY_PART(T, N, suffix)                                                                               \
    KERNEL(cross_entropy_part_##suffix)                                                                                \
    (const T* logits, const int* targets, float* stats, u32 rows, u32 columns, u32 real, u32 first) {                  \
        cross_entropy_part<T, N>(logits, targets, stats, rows, columns, real, first);                                  \
    }
FOR_EACH_FLOAT(CROSS_ENTROPY_PART)

// The loss of a row from what all ranks' columns come to, stats (ranks, 3, rows), and with `control` the gradient of the
// columns here in place of them.
template <class T, int N>
void cross_entropy_join(T* logits, const int* targets, const float* stats, float* losses, const Control* control, u32 rows,
                        u32 columns, u32 real, u32 first, u32 vocab, u32 ranks) {
    const u64 row = blockIdx.x;
    logits += row * columns;
    stats += row;
    u32 target = targets[row];
    bool counts = target < vocab;
    float highest = LOWEST, sum = 0.0f, at_target = 0.0f;
    for (u32 rank = 0; rank < ranks; rank++) highest = fmaxf(highest, stats[(u64)rank * 3 * rows]);
    for (u32 rank = 0; rank < ranks; rank++) {
        const float* theirs = stats + (u64)rank * 3 * rows;
        sum += theirs[rows] * exponential<T>(theirs[0] - highest);
        at_target += theirs[2 * rows];
    }
    float lse = highest + logf(sum);
    if (threadIdx.x == 0) losses[row] = counts ? lse - at_target : 0.0f;
    if (!control) return;
    float scale = counts ? control->grad_scale : 0.0f;
    for (u32 column = threadIdx.x * N; column < columns; column += blockDim.x * N) {
        float x[N];
        load<N>(logits + column, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float gradient = exponential<T>(x[i] - lse);
            if (first + column + i == target) gradient -= 1.0f;
            x[i] = counts && column + i < real ? gradient * scale : 0.0f;
        }
        store<N>(logits + column, x);
    }
}
#define CROSS_ENTROPY_JOIN(T, N, suffix)                                                                               \
    KERNEL(cross_entropy_join_##suffix)                                                                                \
    (T* logits, const int* targets, const float* stats, float* losses, const Control* control, u32 rows, u32 columns,  \
     u32 real, u32 first, u32 vocab, u32 ranks) {                                                                      \
        cross_entropy_join<T, N>(logits, targets, stats, losses, control, rows, columns, real, first, vocab, ranks);   \
    }
FOR_EACH_FLOAT(CROSS_ENTROPY_JOIN)

// losses[r] = mean of (prediction - target)^2; grad = 2 (prediction - target) / width * grad_scale, with `control`.
template <class T, int N>
void mse(const T* prediction, const T* target, float* losses, T* grad, const Control* control, u32 width) {
    const u64 start = (u64)blockIdx.x * width;
    float scale = control ? control->grad_scale * 2.0f / width : 0.0f, sum = 0.0f;
    for (u32 column = threadIdx.x * N; column < width; column += blockDim.x * N) {
        float x[N], y[N];
        load<N>(prediction + start + column, x);
        load<N>(target + start + column, y);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] -= y[i];
            sum += x[i] * x[i];
            x[i] *= scale;
        }
        if (control) store<N>(grad + start + column, x);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = sum / width;
}
#define MSE(T, N, suffix)                                                                                              \
    KERNEL(mse_##suffix)                                                                                               \
    (const T* prediction, const T* target, float* losses, T* grad, const Control* control, u32 width) {                \
        mse<T, N>(prediction, target, losses, grad, control, width);                                                   \
    }
FOR_EACH_FLOAT(MSE)
