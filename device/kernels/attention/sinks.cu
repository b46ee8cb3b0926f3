// Sinks of attention: a score for each head that takes part in the softmax and has no value.
#include "common.cuh"

// A warp takes a head of a row, N channels a lane and iteration. Outputs are (batch, seq, heads dim), statistics
// (batch, heads, seq).
struct Place {
    u64 stat;
    u32 head;
};
inline Place place(u64 warp, u32 seq, u32 heads) {
    u64 row = warp / heads;
    u32 head = (u32)(warp % heads);
    return {(row / seq * heads + head) * seq + row % seq, head};
}

// A warp reads its statistic before it writes it.
template <class T, int N>
void add_sinks(T* output, float* stats, const float* sinks, u64 rows, u32 seq, u32 heads, u32 dim) {
    u32 lane = threadIdx.x % 32;
    u64 warps = (u64)gridDim.x * (blockDim.x / 32);
    for (u64 warp = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; warp < rows * heads; warp += warps) {
        Place at = place(warp, seq, heads);
        float before = stats[at.stat], sink = sinks[at.head];
        float top = fmaxf(before, sink), joined = top + log1pf(expf(fminf(before, sink) - top));
        float factor = expf(before - joined);
        __syncwarp();
        if (lane == 0) stats[at.stat] = joined;
        for (u32 channel = lane * N; channel < dim; channel += 32 * N) {
            float x[N];
            load<N>(output + warp * dim + channel, x);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] *= factor;
            store<N>(output + warp * dim + channel, x);
        }
    }
}
#define ADD_SINKS(T, N, suffix)                                                                                        \
    KERNEL(add_sinks_##suffix)(T* output, float* stats, const float* sinks, u64 rows, u32 seq, u32 heads, u32 dim) {   \
        begin_kernel();                                                                                                \
        add_sinks<T, N>(output, stats, sinks, rows, seq, heads, dim);                                                  \
    }
FOR_EACH_FLOAT(ADD_SINKS)

// summands[row, head] = -exp(sink - statistic) * (output . grad)
template <class T, int N>
void sink_gradients(const T* output, const float* stats, const T* grad, const float* sinks, float* summands, u64 rows,
                    u32 seq, u32 heads, u32 dim) {
    u32 lane = threadIdx.x % 32;
    u64 warps = (u64)gridDim.x * (blockDim.x / 32);
    for (u64 warp = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; warp < rows * heads; warp += warps) {
        Place at = place(warp, seq, heads);
        float dot = 0.0f;
        for (u32 channel = lane * N; channel < dim; channel += 32 * N) {
            float x[N], y[N];
            load<N>(output + warp * dim + channel, x);
            load<N>(grad + warp * dim + channel, y);
#pragma unroll
            for (int i = 0; i < N; i++) dot += x[i] * y[i];
        }
        dot = warp_sum(dot);
        if (lane == 0) summands[warp] = -expf(sinks[at.head] - stats[at.stat]) * dot;
    }
}
#define SINK_GRADIENTS(T, N, suffix)                                                                                   \
    KERNEL(sink_gradients_##suffix)(const T* output, const float* stats, const T* grad, const float* sinks,            \
                                    float* summands, u64 rows, u32 seq, u32 heads, u32 dim) {                          \
        begin_kernel();                                                                                                \
        sink_gradients<T, N>(output, stats, grad, sinks, summands, rows, seq, heads, dim);                             \
    }
FOR_EACH_FLOAT(SINK_GRADIENTS)
