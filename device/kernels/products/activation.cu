// Activation functions and their gradients. Every byte is moved once.
#include "gates.cuh"

// max(x, 0), except that NaN stays NaN, so that it shows.
struct Relu {
    template <class T> static float value(float x) { return x < 0.0f ? 0.0f : x; }
    template <class T> static float derivative(float x, float grad) { return x <= 0.0f ? 0.0f : grad; }
};

template <class F, class T, int N> void activation(const T* input, T* output, u64 count) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < count / N; pack += stride) {
        float x[N];
        load<N>(input + pack * N, x);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = F::template value<T>(x[i]);
        store<N>(output + pack * N, x);
    }
}

template <class F, class T, int N> void activation_backward(const T* input, const T* grad_output, T* grad_input, u64 count) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < count / N; pack += stride) {
        float x[N], grad[N];
        load<N>(input + pack * N, x);
        load<N>(grad_output + pack * N, grad);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = F::template derivative<T>(x[i], grad[i]);
        store<N>(grad_input + pack * N, x);
    }
}

#define ACTIVATION(T, N, suffix)                                                                                      \
    KERNEL(gelu_##suffix)(const T* input, T* output, u64 count) { begin_kernel(); activation<Gelu, T, N>(input, output, count); } \
    KERNEL(relu_##suffix)(const T* input, T* output, u64 count) { begin_kernel(); activation<Relu, T, N>(input, output, count); } \
    KERNEL(gelu_backward_##suffix)(const T* input, const T* grad_output, T* grad_input, u64 count) {                  \
        begin_kernel();                                                                                               \
        activation_backward<Gelu, T, N>(input, grad_output, grad_input, count);                                       \
    }                                                                                                                 \
    KERNEL(relu_backward_##suffix)(const T* input, const T* grad_output, T* grad_input, u64 count) {                  \
        begin_kernel();                                                                                               \
        activation_backward<Relu, T, N>(input, grad_output, grad_input, count);                                       \
    }
FOR_EACH_FLOAT(ACTIVATION)

// output[r, c] = value(gate) * other(up), with [gate | up] of 2 `width` columns in a row of `input`.
template <class F, class T, int N> void glu(const T* input, T* output, u32 rows, u32 width) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= width) return;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const T* gate = input + row * 2 * width + column;
        float g[N], u[N];
        load<N>(gate, g);
        load<N>(gate + width, u);
#pragma unroll
        for (int i = 0; i < N; i++) g[i] = F::template value<T>(g[i]) * F::other(u[i]);
        store<N>(output + row * width + column, g);
    }
}

// The gradient, [grad gate | grad up]; with `output` also the forward's result, recomputed.
template <class F, class T, int N>
void glu_backward(const T* input, const T* grad_output, T* grad_input, T* output, u32 rows, u32 width) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= width) return;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        u64 at = row * 2 * width + column;
        float g[N], u[N], dy[N], y[N];
        load<N>(input + at, g);
        load<N>(input + at + width, u);
        load<N>(grad_output + row * width + column, dy);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float gate = g[i], value = F::template value<T>(gate);
            y[i] = value * F::other(u[i]);
            g[i] = F::template derivative<T>(gate, dy[i] * F::other(u[i]));
            u[i] = F::other_gradient(u[i], dy[i] * value);
        }
        store<N>(grad_input + at, g);
        store<N>(grad_input + at + width, u);
        if (output) store<N>(output + row * width + column, y);
    }
}

#define GLU(F, name, T, N, suffix)                                                                                  \
    KERNEL(name##_##suffix)(const T* input, T* output, u32 rows, u32 width) {                                       \
        begin_kernel();                                                                                             \
        glu<F, T, N>(input, output, rows, width);                                                                   \
    }                                                                                                               \
    KERNEL(name##_backward_##suffix)                                                                                \
    (const T* input, const T* grad_output, T* grad_input, T* output, u32 rows, u32 width) {                         \
        begin_kernel();                                                                                             \
        glu_backward<F, T, N>(input, grad_output, grad_input, output, rows, width);                                 \
    }
#define GLUS(T, N, suffix)           \
    GLU(Silu, swiglu, T, N, suffix) \
    GLU(Gelu, geglu, T, N, suffix)  \
    GLU(ClampedSilu, clamped_swiglu, T, N, suffix)
FOR_EACH_FLOAT(GLUS)
