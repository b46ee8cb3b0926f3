// Counts of the values that 8-bit copies lose: reads the source and its row copy once each. For steps that measure, so
// plain rather than fast.
#include "quantize.cuh"

// As `QuantizeCounts` in `device/src/ops/trainer/low_precision/quantize_counts.rs`.
struct Counts {
    u64 values, zeros, not_finite, saturated, underflowed;
};
const int KINDS = 4; // all but `values`

struct CountQuantized {
    Quantize q; // `rows_out` is read
    Counts* counts;
    float edge; // values above it, after scaling, saturate
    u32 unused;
};

template <class S, class T, bool VECTOR> void count_quantized(const CountQuantized& block) {
    const Quantize& q = block.q;
    u32 packs = (q.width + 7) / 8, count = q.rows * packs, stride = gridDim.x * blockDim.x;
    float inverse = q.rows_scale ? inverse_of(*q.rows_scale) : 0.0f;
    u32 zeros = 0, not_finite = 0, saturated = 0, underflowed = 0;
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        u32 column = at % packs * 8;
        u64 row = at / packs;
        float x[S::OUTPUTS][8];
        auto of_columns = fetch_columns<S, T, VECTOR>(q, column);
        evaluate<S, T>(fetch_pack<S, T, VECTOR>(q, row, column), fetch_row<S>(q, row), of_columns, x);
#pragma unroll
        for (int o = 0; o < S::OUTPUTS; o++) {
            const u8* copy = q.rows_out + (row * S::OUTPUTS + o) * q.width + column;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (column + i >= q.width) continue;
                u32 bits = magnitude(x[o][i]);
                bool is_zero = bits == 0, is_finite = bits < 0x7f800000u, is_lost = (copy[i] & 0x7f) == 0;
                zeros += is_zero;
                not_finite += !is_finite;
                underflowed += is_finite && !is_zero && is_lost;
                saturated += is_finite && !is_lost && __uint_as_float(bits) * inverse > block.edge;
            }
        }
    }
    u32 found[KINDS] = {zeros, not_finite, saturated, underflowed};
    __shared__ u32 of_warp[KINDS][8];
#pragma unroll
    for (int kind = 0; kind < KINDS; kind++) {
        u32 sum = __reduce_add_sync(0xffffffffu, found[kind]);
        if (threadIdx.x % 32 == 0) of_warp[kind][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < KINDS) {
        u64 sum = 0;
#pragma unroll
        for (int w = 0; w < 8; w++) sum += of_warp[threadIdx.x][w];
        // Sums of integers, the same in any order.
        if (sum > 0) atomicAdd(&block.counts->zeros + threadIdx.x, sum);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&block.counts->values, (u64)q.rows * q.width * S::OUTPUTS);
}

#define COUNT(source, name, T, VECTOR, suffix)                                                             \
    extern "C" __global__ void __launch_bounds__(256) count_quantized_##name##_##suffix(CountQuantized b) { \
        begin_kernel();                                                                                     \
        count_quantized<source, T, VECTOR>(b);                                                             \
    }
FOR_EACH_SOURCE(COUNT)

// Sums of `n` counts by kind, (kinds, 3): all, saturated, underflowed. A block is a kind; one warp.
KERNEL(sum_counts)(const Counts* counts, u32 n, float* sums) {
    begin_kernel();
    u32 kinds = gridDim.x, kind = blockIdx.x;
    u64 all = 0, saturated = 0, underflowed = 0;
    for (u32 i = kind + threadIdx.x * kinds; i < n; i += 32 * kinds) {
        all += counts[i].values, saturated += counts[i].saturated, underflowed += counts[i].underflowed;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        all += __shfl_xor_sync(0xffffffffu, all, step);
        saturated += __shfl_xor_sync(0xffffffffu, saturated, step);
        underflowed += __shfl_xor_sync(0xffffffffu, underflowed, step);
    }
    if (threadIdx.x == 0) {
        float* to = sums + kind * 3;
        to[0] = (float)all, to[1] = (float)saturated, to[2] = (float)underflowed;
    }
}
