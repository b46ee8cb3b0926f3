// Gated linear units of experts' rows, times the router's weights, and their gradient. Every byte is moved once. The pair
// of a dropped row is negative; the row becomes 0.
#include "gates.cuh"
#include "rows.cuh"

struct ExpertGlu {
    const void* input;    // (rows, 2 width): [gate | up]
    const float* weights; // (rows), by pair
    const int* pairs;     // (rows)
    void* output;         // (rows, width)
    u32 rows;
    u32 width;
};

// output[row] = value(gate) * other(up) * weights[pairs[row]]
template <class F, class T, int N> void expert_glu(const ExpertGlu& op) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= op.width) return;
    for (u64 row = blockIdx.y; row < op.rows; row += gridDim.y) {
        const T* gate = (const T*)op.input + row * 2 * op.width + column;
        int pair = op.pairs[row];
        float g[N] = {}, u[N];
        if (pair < 0) {
            store<N>((T*)op.output + row * op.width + column, g);
            continue;
        }
        float weight = op.weights[min((u32)pair, op.rows - 1)];
        load<N>(gate, g);
        load<N>(gate + op.width, u);
#pragma unroll
        for (int i = 0; i < N; i++) g[i] = F::template value<T>(g[i]) * F::other(u[i]) * weight;
        store<N>((T*)op.output + row * op.width + column, g);
    }
}

struct ExpertGluBackward {
    const void* input;       // (rows, 2 width)
    const float* weights;    // (rows), by pair
    const int* pairs;        // (rows)
    const void* grad_output; // (rows, width)
    void* grad_input;        // (rows, 2 width)
    void* output;            // (rows, width): the forward's result, recomputed
    float* grad_weights;     // (rows), by pair
    u32 rows;
    u32 width;
};

// A row belongs to a warp or to a block: they sum up the gradient of its weight.
template <class F, class T, int N, bool WARP> void expert_glu_backward(const ExpertGluBackward& op) {
    typedef RowThreads<WARP> Threads;
    const u64 step = (u64)gridDim.x * Threads::rows();
    for (u64 row = (u64)blockIdx.x * Threads::rows() + Threads::row(); row < op.rows; row += step) {
        int number = op.pairs[row];
        u32 pair = min((u32)(number < 0 ? -1 - number : number), op.rows - 1);
        if (number < 0) {
            if (Threads::lane() == 0) op.grad_weights[pair] = 0.0f;
            const float zeros[N] = {};
            for (u32 column = Threads::lane() * N; column < op.width; column += Threads::lanes() * N) {
                store<N>((T*)op.grad_input + row * 2 * op.width + column, zeros);
                store<N>((T*)op.grad_input + row * 2 * op.width + op.width + column, zeros);
                store<N>((T*)op.output + row * op.width + column, zeros);
            }
            continue;
        }
        float weight = op.weights[pair], sum = 0.0f;
        for (u32 column = Threads::lane() * N; column < op.width; column += Threads::lanes() * N) {
            u64 at = row * 2 * op.width + column, of_output = row * op.width + column;
            float g[N], u[N], dy[N], y[N];
            load<N>((const T*)op.input + at, g);
            load<N>((const T*)op.input + at + op.width, u);
            load<N>((const T*)op.grad_output + of_output, dy);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float gate = g[i], value = F::template value<T>(gate), weighted = dy[i] * weight;
                y[i] = value * F::other(u[i]);
                sum += y[i] * dy[i];
                y[i] *= weight;
                g[i] = F::template derivative<T>(gate, weighted * F::other(u[i]));
                u[i] = F::other_gradient(u[i], weighted * value);
            }
            store<N>((T*)op.grad_input + at, g);
            store<N>((T*)op.grad_input + at + op.width, u);
            store<N>((T*)op.output + of_output, y);
        }
        sum = Threads::sum(sum);
        if (Threads::lane() == 0) op.grad_weights[pair] = sum;
    }
}

#define EXPERT_GLU(F, name, T, N, suffix)                                               \
    KERNEL(expert_##name##_##suffix)(const ExpertGlu op) {                              \
        begin_kernel();                                                                 \
        expert_glu<F, T, N>(op);                                                        \
    }                                                                                   \
    KERNEL(expert_##name##_backward_warp_##suffix)(const ExpertGluBackward op) {        \
        begin_kernel();                                                                 \
        expert_glu_backward<F, T, N, true>(op);                                         \
    }                                                                                   \
    KERNEL(expert_##name##_backward_block_##suffix)(const ExpertGluBackward op) {       \
        begin_kernel();                                                                 \
        expert_glu_backward<F, T, N, false>(op);                                        \
    }
#define EXPERT_GLUS(T, N, suffix)           \
    EXPERT_GLU(Silu, swiglu, T, N, suffix) \
    EXPERT_GLU(Gelu, geglu, T, N, suffix)  \
    EXPERT_GLU(ClampedSilu, clamped_swiglu, T, N, suffix)
FOR_EACH_FLOAT(EXPERT_GLUS)
