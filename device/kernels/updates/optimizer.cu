// The update. AdamW reads grad, master and both moments once and writes master, moments and the rounded copy once.
#include "table.cuh"

// From the sum of squared gradients to the clip factor. One thread.
KERNEL(clip_scale)(const float* square_sum, const Control* control, Status* status) {
    begin_kernel();
    float inverse = control->inverse_loss_scale, clip = control->clip;
    float norm = sqrtf(*square_sum) * inverse;
    bool finite = fabsf(norm) <= 3.4028235e38f;
    status->grad_norm = norm;
    status->finite = status->applies = finite;
    if (finite) {
        status->grad_factor = (clip > 0.0f ? fminf(clip / (norm + 1e-6f), 1.0f) : 1.0f) * inverse;
        status->applied += 1;
    } else {
        status->grad_factor = 0.0f;
        status->skipped += 1;
    }
}

// One parameter. A null pointer stands for a tensor that it does not have.
struct Parameter {
    float* master; // or u16 remainders: the weights in `compute` have the upper halves
    void* compute;
    const void* grad; // f32 or bf16
    void* first;  // exp_avg, Lion's too, f32 or bf16; or SGD's or Muon's momentum, f32
    void* second; // exp_avg_sq, f32 or bf16
    u64 elements;
    float weight_decay;
    float lr_multiplier;
    u32 first_chunk;
    u32 compute_is_bf16;
    u32 first_is_bf16;
    u32 second_is_bf16;
    u32 vector; // every pointer allows loads and stores of four elements
    u32 has_remainders;
    u32 grad_is_bf16;
    u32 padding;
};

struct Update {
    const Control* control;
    const Status* status;
    float beta1; // SGD: momentum
    float beta2;
    float eps;
    u32 count;
    Parameter entries[48];
};

// The learning rate of a parameter.
inline float rate_of(const Update& op, const Parameter& entry) { return op.control->learning_rate * entry.lr_multiplier; }

// b^t in f64 by squaring.
inline double power(double b, u32 t) {
    double result = 1.0;
    for (; t; t /= 2, b *= b) {
        if (t & 1) result *= b;
    }
    return result;
}

// Calls step(entry, first of N elements) over the block's chunk, by fours if the pointers allow it.
template <class Four, class One> void for_chunk(const Parameter& entry, Four four, One one) {
    u64 start = (u64)(blockIdx.x - entry.first_chunk) * CHUNK;
    u32 length = (u32)min((u64)CHUNK, entry.elements - start);
    u32 packs = entry.vector ? length / 4 : 0;
    // Backwards: the sum of squares read the end of the chunk last, and the cache may still have it.
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) four(start + (packs - 1 - pack) * 4);
    for (u32 i = packs * 4 + threadIdx.x; i < length; i += blockDim.x) one(start + i);
}

template <int N> void load_grad(const Parameter& entry, u64 at, float (&g)[N]) {
    if (entry.grad_is_bf16) load_once<N>((const bf16*)entry.grad + at, g);
    else load_once<N>((const float*)entry.grad + at, g);
}

// The master weights: f32, or the bits of the weights with signed remainders added.
template <int N> void load_master(const Parameter& entry, u64 at, float (&w)[N]) {
    if (!entry.has_remainders) return load<N>((const float*)entry.master + at, w);
    float rest[N]; // in the upper halves of these words
    load<N>((const bf16*)entry.compute + at, w);
    load<N>((const bf16*)entry.master + at, rest);
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = __uint_as_float(__float_as_uint(w[i]) + (u32)((int)__float_as_uint(rest[i]) >> 16));
}

// The upper halves of words.
inline void store_upper(bf16* to, const u32 (&x)[1]) { to->bits = (u16)(x[0] >> 16); }
inline void store_upper(bf16* to, const u32 (&x)[4]) {
    Raw<bf16, 4> raw;
    raw.word.x = x[0] >> 16 | (x[1] & 0xffff0000u), raw.word.y = x[2] >> 16 | (x[3] & 0xffff0000u);
    put(to, raw);
}

// Stores the master weights, and the weights that layers compute with: the nearest, ties to even, or with remainders the
// nearest, ties away from 0.
template <int N> void store_master(const Parameter& entry, u64 at, const float (&w)[N]) {
    if (entry.has_remainders) {
        u32 weights[N], rest[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            u32 bits = __float_as_uint(w[i]);
            bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
            weights[i] = is_nan ? 0x7fc00000u : bits + 0x8000u;
            rest[i] = is_nan ? 0u : bits << 16;
        }
        store_upper((bf16*)entry.compute + at, weights);
        store_upper((bf16*)entry.master + at, rest);
        return;
    }
    store<N>(entry.master + at, w);
    if (!entry.compute) return;
    if (entry.compute_is_bf16) store<N>((bf16*)entry.compute + at, w);
    else store<N>((float*)entry.compute + at, w);
}

template <int N> void load_moment(const void* moment, u32 is_bf16, u64 at, float (&x)[N]) {
    if (is_bf16) load<N>((const bf16*)moment + at, x);
    else load<N>((const float*)moment + at, x);
}

// Rounds to nearest even.
template <int N> void store_moment(void* moment, u32 is_bf16, u64 at, const float (&x)[N]) {
    if (is_bf16) store<N>((bf16*)moment + at, x);
    else store<N>((float*)moment + at, x);
}

struct AdamScalars {
    float grad_factor, step_size, root_correction, decay, beta1, beta2, eps;
};

template <int N> void adamw_step(const Parameter& entry, const AdamScalars& s, u64 at) {
    float w[N], g[N], m[N], v[N];
    load_grad<N>(entry, at, g);
    load_moment<N>(entry.first, entry.first_is_bf16, at, m);
    load_moment<N>(entry.second, entry.second_is_bf16, at, v);
    load_master<N>(entry, at, w);
#pragma unroll
    for (int i = 0; i < N; i++) {
        g[i] *= s.grad_factor;
        m[i] += (1.0f - s.beta1) * (g[i] - m[i]);
        v[i] = s.beta2 * v[i] + (1.0f - s.beta2) * g[i] * g[i];
        w[i] = w[i] * s.decay - s.step_size * m[i] / (sqrtf(v[i]) * s.root_correction + s.eps);
    }
    store_moment<N>(entry.first, entry.first_is_bf16, at, m);
    store_moment<N>(entry.second, entry.second_is_bf16, at, v);
    store_master<N>(entry, at, w);
}

KERNEL(adamw)(const __grid_constant__ Update op) {
    begin_kernel();
    const Status status = *op.status;
    if (!status.applies) return;
    const Parameter& entry = op.entries[tensor_of_block(op.entries, op.count)];
    float learning_rate = rate_of(op, entry);
    __shared__ float step_size, root_correction;
    if (threadIdx.x == 0) {
        step_size = (float)((double)learning_rate / (1.0 - power(op.beta1, status.applied)));
        root_correction = (float)(1.0 / sqrt(1.0 - power(op.beta2, status.applied)));
    }
    __syncthreads();
    AdamScalars s = {status.grad_factor, step_size, root_correction, 1.0f - learning_rate * entry.weight_decay,
                     op.beta1, op.beta2, op.eps};
    for_chunk(entry, [&](u64 at) { adamw_step<4>(entry, s, at); }, [&](u64 at) { adamw_step<1>(entry, s, at); });
}

template <int N>
void lion_step(const Parameter& entry, float learning_rate, float factor, float beta1, float beta2, u64 at) {
    float w[N], g[N], m[N];
    load_grad<N>(entry, at, g);
    load_moment<N>(entry.first, entry.first_is_bf16, at, m);
    load_master<N>(entry, at, w);
    float decay = 1.0f - learning_rate * entry.weight_decay;
#pragma unroll
    for (int i = 0; i < N; i++) {
        g[i] *= factor;
        float direction = beta1 * m[i] + (1.0f - beta1) * g[i];
        float sign = (direction > 0.0f ? 1.0f : 0.0f) - (direction < 0.0f ? 1.0f : 0.0f);
        w[i] = w[i] * decay - learning_rate * sign;
        m[i] = beta2 * m[i] + (1.0f - beta2) * g[i];
    }
    store_moment<N>(entry.first, entry.first_is_bf16, at, m);
    store_master<N>(entry, at, w);
}

KERNEL(lion)(const __grid_constant__ Update op) {
    begin_kernel();
    const Status status = *op.status;
    if (!status.applies) return;
    const Parameter& entry = op.entries[tensor_of_block(op.entries, op.count)];
    float rate = rate_of(op, entry), factor = status.grad_factor;
    for_chunk(entry, [&](u64 at) { lion_step<4>(entry, rate, factor, op.beta1, op.beta2, at); },
              [&](u64 at) { lion_step<1>(entry, rate, factor, op.beta1, op.beta2, at); });
}

template <int N> void sgd_step(const Parameter& entry, float learning_rate, float factor, float momentum, u64 at) {
    float w[N], g[N];
    load_master<N>(entry, at, w);
    load_grad<N>(entry, at, g);
#pragma unroll
    for (int i = 0; i < N; i++) g[i] = g[i] * factor + entry.weight_decay * w[i];
    if (entry.first) {
        float b[N];
        load<N>((const float*)entry.first + at, b);
#pragma unroll
        for (int i = 0; i < N; i++) g[i] = b[i] = momentum * b[i] + g[i];
        store<N>((float*)entry.first + at, b);
    }
#pragma unroll
    for (int i = 0; i < N; i++) w[i] -= learning_rate * g[i];
    store_master<N>(entry, at, w);
}

KERNEL(sgd)(const __grid_constant__ Update op) {
    begin_kernel();
    const Status status = *op.status;
    if (!status.applies) return;
    const Parameter& entry = op.entries[tensor_of_block(op.entries, op.count)];
    float rate = rate_of(op, entry), factor = status.grad_factor, momentum = op.beta1;
    for_chunk(entry, [&](u64 at) { sgd_step<4>(entry, rate, factor, momentum, at); },
              [&](u64 at) { sgd_step<1>(entry, rate, factor, momentum, at); });
}

// Muon's momentum. `master` is the gradient. It becomes the direction.
template <int N> void nesterov_step(const Parameter& entry, float factor, float beta, u64 at) {
    float g[N], m[N];
    load<N>((const float*)entry.master + at, g);
    load<N>((const float*)entry.first + at, m);
#pragma unroll
    for (int i = 0; i < N; i++) {
        g[i] *= factor;
        m[i] = beta * m[i] + (1.0f - beta) * g[i];
        g[i] = beta * m[i] + (1.0f - beta) * g[i];
    }
    store<N>((float*)entry.first + at, m);
    store<N>(entry.master + at, g);
}

KERNEL(nesterov_momentum)(const __grid_constant__ Update op) {
    begin_kernel();
    const Status status = *op.status;
    if (!status.applies) return;
    const Parameter& entry = op.entries[tensor_of_block(op.entries, op.count)];
    float factor = status.grad_factor, beta = op.beta1;
    for_chunk(entry, [&](u64 at) { nesterov_step<4>(entry, factor, beta, at); },
              [&](u64 at) { nesterov_step<1>(entry, factor, beta, at); });
}

// Muon's update. `grad` is the direction, with its length.
template <int N> void decayed_step(const Parameter& entry, float learning_rate, u64 at) {
    float w[N], d[N];
    load_master<N>(entry, at, w);
    load<N>((const float*)entry.grad + at, d);
    float decay = 1.0f - learning_rate * entry.weight_decay;
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = w[i] * decay - learning_rate * d[i];
    store_master<N>(entry, at, w);
}

KERNEL(decayed_step)(const __grid_constant__ Update op) {
    begin_kernel();
    const Status status = *op.status;
    if (!status.applies) return;
    const Parameter& entry = op.entries[tensor_of_block(op.entries, op.count)];
    float rate = rate_of(op, entry);
    for_chunk(entry, [&](u64 at) { decayed_step<4>(entry, rate, at); },
              [&](u64 at) { decayed_step<1>(entry, rate, at); });
}
