// Losses with their gradients in the same pass.
#include "soft_cap.cuh"

const float LOWEST = -3.4028235e38f;

// The largest value so far and the sum of exponentials relative to it. LOWEST rather than -inf, since -inf - -inf is
// NaN.
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

// Over a block of whole warps, on every thread, with one barrier. A block calls it once.
template <class T> Online block_online(Online state) {
    __shared__ Online parts[32];
    float highest = warp_max(state.highest);
    float sum = warp_sum(state.sum * exponential<T>(state.highest - highest));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {highest, sum};
    __syncthreads();
    Online part = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : Online{LOWEST, 0.0f};
    highest = warp_max(part.highest);
    return {highest, warp_sum(part.sum * exponential<T>(part.highest - highest))};
}

// The logit that counts: with a cap above 0 its bounded value.
template <class T> float bounded(float logit, float cap) { return cap > 0.0f ? soft_cap<T>(logit, cap) : logit; }
template <class T, int N> void bound(float (&x)[N], float cap) {
    if (cap <= 0.0f) return;
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = soft_cap<T>(x[i], cap);
}

// The gradient of a logit from that of its bounded value.
inline float through_bound(float grad, float bounded, float cap) {
    return cap > 0.0f ? grad * soft_cap_slope(bounded, cap) : grad;
}

// A pack of logits that starts at `column`. Columns from `vocab` on do not count.
template <class T, int N> void add_pack(Online& state, const Raw<T, N>& raw, u32 column, u32 vocab, float cap) {
    float x[N];
    unpack(raw, x);
    bound<T>(x, cap);
    if (column + N > vocab) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (column + i >= vocab) x[i] = __int_as_float(0xff800000);
        }
    }
    add<T, N>(state, x);
}

// The loss of a row, of logits after the bound. The largest logit and the sum stay apart, here and below: their
// log-sum-exp as one f32 would lose as many digits as the largest logit has before the point.
inline float loss(const Online& state, float at_target) { return logf(state.sum) - (at_target - state.highest); }

// The z-loss of a row is multiplier * log_sum^2. Without one `losses` is null.
struct ZLoss {
    float* losses;
    float multiplier;
};

inline float log_sum(const Online& state) { return state.highest + logf(state.sum); }

inline float z_loss(const Online& state, float multiplier) { return multiplier * log_sum(state) * log_sum(state); }

// The values that the gradient of a row needs.
struct Gradient {
    float highest;
    float factor;    // softmax * grad_scale is e^(x - highest) * factor
    float at_target; // (softmax - 1) * grad_scale at the target
    float cap;       // of logits, or 0
};

// `at_target` is the target's bounded logit.
template <class T> Gradient gradient(const Online& state, float at_target, float scale, const ZLoss& z, float cap) {
    float inverse = 1.0f / state.sum, softmax = exponential<T>(at_target - state.highest) * inverse;
    Gradient of = {state.highest, scale * inverse, (softmax - 1.0f) * scale, cap};
    if (z.losses) {
        // Its own gradient is this multiple of the softmax.
        float more = 2.0f * z.multiplier * log_sum(state);
        of.factor += more * of.factor;
        of.at_target += more * softmax * scale;
    }
    of.at_target = through_bound(of.at_target, at_target, cap);
    return of;
}

// The gradient of a pack, in its place: (softmax - one at the target) * grad_scale.
template <class T, int N> void to_gradient(Raw<T, N>& raw, u32 column, u32 vocab, u32 target, const Gradient& of) {
    float x[N];
    unpack(raw, x);
    if (of.cap > 0.0f) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float logit = soft_cap<T>(x[i], of.cap);
            x[i] = exponential<T>(logit - of.highest) * of.factor * soft_cap_slope(logit, of.cap);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = exponential<T>(x[i] - of.highest) * of.factor;
    }
    if (target - column < N) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (column + i == target) x[i] = of.at_target;
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

// The factor of the gradient of the block's row.
inline float row_scale(const Control* control, const float* weights) {
    return weights ? control->grad_scale * weights[blockIdx.x] : control->grad_scale;
}

// Softmax and cross-entropy, one block per row, in the online form (Milakov and Gimelshein, 2018). Without `control`
// only the loss is written. Columns from `vocab` on are padding.
struct CrossEntropy {
    void* logits; // (rows, columns), then their gradient
    const int* targets;
    float* losses;
    const Control* control; // or null
    float* z_losses;        // or null
    const float* weights;   // or null
    float z_multiplier;
    float soft_cap; // of logits, or 0
    u32 columns;
    u32 vocab;
    ZLoss z() const { return {z_losses, z_multiplier}; }
};

inline void put_losses(const CrossEntropy& op, const Online& state, float at_target) {
    op.losses[blockIdx.x] = loss(state, at_target);
    if (op.z_losses) op.z_losses[blockIdx.x] = z_loss(state, op.z_multiplier);
}

// A row does not count if its target is not in the vocabulary.
template <class T, int N> void ignore(const CrossEntropy& op, T* logits) {
    if (threadIdx.x == 0) {
        op.losses[blockIdx.x] = 0.0f;
        if (op.z_losses) op.z_losses[blockIdx.x] = 0.0f;
    }
    if (!op.control) return;
    for (u32 pack = threadIdx.x; pack < op.columns / N; pack += blockDim.x) put(logits + pack * N, Raw<T, N>{});
}

// Packs of a row that a thread has in flight.
const int UNROLL = 4;

// For any row. With a gradient the row is read twice.
template <class T, int N> void cross_entropy(const CrossEntropy& op) {
    const u64 row = blockIdx.x;
    T* logits = (T*)op.logits + row * op.columns;
    u32 vocab = op.vocab, target = op.targets[row];
    if (target >= vocab) return ignore<T, N>(op, logits);
    // Read before any thread overwrites it.
    float at_target = bounded<T>(value(logits + target), op.soft_cap);
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
            if (pack * N < vocab) add_pack<T, N>(state, raw[u], pack * N, vocab, op.soft_cap);
        }
    }
    state = block_online<T>(state);
    if (threadIdx.x == 0) put_losses(op, state, at_target);
    if (!op.control) return;
    Gradient of = gradient<T>(state, at_target, row_scale(op.control, op.weights), op.z(), op.soft_cap);
    for (u32 pack = threadIdx.x; pack < op.columns / N; pack += blockDim.x) {
        u32 column = pack * N;
        Raw<T, N> raw = {};
        if (column < vocab) {
            raw = fetch<N>(logits + column);
            to_gradient<T, N>(raw, column, vocab, target, of);
        }
        put(logits + column, raw);
    }
}

// Parts of a row. They are waited for one after the other.
const int STAGES = 4;

// With a gradient, for rows that fit into shared memory: a row is read once and written once. A thread requests all its
// packs at once, with copies that need no registers, and processes them as they arrive. So the whole row is in flight
// while another block of the multiprocessor computes. No thread processes another's packs, so one barrier is enough.
template <class T, int N> void cross_entropy_cached(const CrossEntropy& op) {
    extern __shared__ uint4 shared[];
    Raw<T, N>* cache = reinterpret_cast<Raw<T, N>*>(shared);
    const u64 row = blockIdx.x;
    T* logits = (T*)op.logits + row * op.columns;
    u32 vocab = op.vocab, packs = (vocab + N - 1) / N;
    u32 span = (packs + STAGES * blockDim.x - 1) / (STAGES * blockDim.x) * blockDim.x;
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        u32 end = min(packs, (stage + 1) * span);
        for (u32 pack = stage * span + threadIdx.x; pack < end; pack += blockDim.x) {
            copy_ahead(cache + pack, logits + pack * N);
        }
        end_copies();
    }
    u32 target = op.targets[row];
    if (target >= vocab) {
        wait_for_copies(0);
        return ignore<T, N>(op, logits);
    }
    // Read before any thread overwrites it.
    float at_target = bounded<T>(value(logits + target), op.soft_cap);
    float scale = row_scale(op.control, op.weights);
    Online state = {LOWEST, 0.0f};
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        wait_for_copies(STAGES - 1 - stage);
        u32 end = min(packs, (stage + 1) * span);
        for (u32 pack = stage * span + threadIdx.x; pack < end; pack += blockDim.x) {
            add_pack<T, N>(state, cache[pack], pack * N, vocab, op.soft_cap);
        }
    }
    state = block_online<T>(state);
    if (threadIdx.x == 0) put_losses(op, state, at_target);
    Gradient of = gradient<T>(state, at_target, scale, op.z(), op.soft_cap);
    for (u32 pack = threadIdx.x; pack < op.columns / N; pack += blockDim.x) {
        Raw<T, N> raw = {};
        if (pack < packs) {
            raw = cache[pack];
            to_gradient<T, N>(raw, pack * N, vocab, target, of);
        }
        put(logits + pack * N, raw);
    }
}

#define CROSS_ENTROPY(T, N, suffix) \
    KERNEL(cross_entropy_##suffix)(const CrossEntropy op) { begin_kernel(); cross_entropy<T, N>(op); }
FOR_EACH_FLOAT(CROSS_ENTROPY)
KERNEL(cross_entropy_cached_f32)(const CrossEntropy op) { begin_kernel(); cross_entropy_cached<float, 4>(op); }
KERNEL(cross_entropy_cached_bf16)(const CrossEntropy op) { begin_kernel(); cross_entropy_cached<bf16, 8>(op); }

// For cross-entropy over a vocabulary that is split across ranks: three numbers for each row of a rank's columns, stats
// (3, rows). They are the largest logit, the sum of exponentials relative to it, and the target's logit if this rank
// has it. Columns from `real` on are padding. The first column is token `first`.
template <class T, int N>
void cross_entropy_part(const T* logits, const int* targets, float* stats, u32 rows, u32 columns, u32 real, u32 first,
                        float cap) {
    const u64 row = blockIdx.x;
    logits += row * columns;
    Online state = {LOWEST, 0.0f};
    for (u32 column = threadIdx.x * N; column < real; column += blockDim.x * N) {
        float x[N];
        load<N>(logits + column, x);
        bound<T>(x, cap);
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
    stats[2 * rows + row] = target < real ? bounded<T>(value(logits + target), cap) : 0.0f;
}
#define CROSS_ENTROPY_PART(T, N, suffix)                                                                               \
    KERNEL(cross_entropy_part_##suffix)                                                                                \
    (const T* logits, const int* targets, float* stats, u32 rows, u32 columns, u32 real, u32 first, float cap) {       \
        begin_kernel();                                                                                                \
        cross_entropy_part<T, N>(logits, targets, stats, rows, columns, real, first, cap);                             \
    }
FOR_EACH_FLOAT(CROSS_ENTROPY_PART)

// The loss of a row from the numbers of all ranks, stats (ranks, 3, rows). With `control` the logits are overwritten by
// their gradient.
template <class T, int N>
void cross_entropy_join(T* logits, const int* targets, const float* stats, float* losses, const Control* control,
                        const float* weights, ZLoss z, u32 rows, u32 columns, u32 real, u32 first, u32 vocab, u32 ranks, float cap) {
    const u64 row = blockIdx.x;
    logits += row * columns;
    stats += row;
    u32 target = targets[row];
    bool counts = target < vocab;
    Online state = {LOWEST, 0.0f};
    float at_target = 0.0f;
    for (u32 rank = 0; rank < ranks; rank++) state.highest = fmaxf(state.highest, stats[(u64)rank * 3 * rows]);
    for (u32 rank = 0; rank < ranks; rank++) {
        const float* theirs = stats + (u64)rank * 3 * rows;
        state.sum += theirs[rows] * exponential<T>(theirs[0] - state.highest);
        at_target += theirs[2 * rows]; // one rank has it, the others have 0
    }
    if (threadIdx.x == 0) {
        losses[row] = counts ? loss(state, at_target) : 0.0f;
        if (z.losses) z.losses[row] = counts ? z_loss(state, z.multiplier) : 0.0f;
    }
    if (!control) return;
    Gradient of = gradient<T>(state, at_target, row_scale(control, weights), z, cap);
    for (u32 column = threadIdx.x * N; column < columns; column += blockDim.x * N) {
        float x[N];
        load<N>(logits + column, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float logit = bounded<T>(x[i], cap);
            float y = through_bound(exponential<T>(logit - of.highest) * of.factor, logit, cap);
            if (first + column + i == target) y = of.at_target;
            x[i] = counts && column + i < real ? y : 0.0f;
        }
        store<N>(logits + column, x);
    }
}
#define CROSS_ENTROPY_JOIN(T, N, suffix)                                                                               \
    KERNEL(cross_entropy_join_##suffix)                                                                                \
    (T* logits, const int* targets, const float* stats, float* losses, const Control* control, const float* weights,   \
     float* z_losses, float multiplier, u32 rows, u32 columns, u32 real, u32 first, u32 vocab, u32 ranks, float cap) {                  \
        begin_kernel();                                                                                                \
        ZLoss z = {z_losses, multiplier};                                                                              \
        cross_entropy_join<T, N>(logits, targets, stats, losses, control, weights, z, rows, columns, real, first,      \
                                 vocab, ranks, cap);                                                                                 \
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
        begin_kernel();                                                                                                \
        mse<T, N>(prediction, target, losses, grad, control, width);                                                   \
    }
FOR_EACH_FLOAT(MSE)
