// Scales from largest magnitudes.
#include "quantize.cuh"

// The largest magnitude that each block sees goes to `partial`. Nothing is done for a scale that is known and kept.
template <class S, class T, bool VECTOR> void largest(const Quantize& q) {
    constexpr int AHEAD = 4;
    if (q.kept && *q.rows_scale != 0.0f) return;
    u32 packs = (q.width + 7) / 8, count = q.rows * packs, stride = gridDim.x * blockDim.x;
    u32 peak = 0;
    for (u32 first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += AHEAD * stride) {
        Pack<T, S::LOADS> loaded[AHEAD];
        RowValues<S::NORM> of_row[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            u32 at = first + i * stride;
            bool inside = at >= first && at < count;
            loaded[i] = inside ? fetch_pack<S, T, VECTOR>(q, at / packs, at % packs * 8) : Pack<T, S::LOADS>{};
            of_row[i] = inside ? fetch_row<S>(q, at / packs) : RowValues<S::NORM>{};
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float x[S::OUTPUTS][8];
            auto of_columns = fetch_columns<S, T, VECTOR>(q, (first + i * stride) % packs * 8);
            evaluate<S, T>(loaded[i], of_row[i], of_columns, x);
#pragma unroll
            for (int o = 0; o < S::OUTPUTS; o++) {
#pragma unroll
                for (int j = 0; j < 8; j++) peak = max(peak, magnitude(x[o][j]));
            }
        }
    }
    __shared__ u32 of_warp[8];
    peak = __reduce_max_sync(0xffffffffu, peak);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = peak;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int w = 0; w < 8; w++) peak = max(peak, of_warp[w]);
        reinterpret_cast<u32*>(q.partial)[blockIdx.x] = peak;
    }
}

#define LARGEST(source, name, T, VECTOR, suffix)                                             \
    extern "C" __global__ void __launch_bounds__(256) largest_##name##_##suffix(Quantize q) { \
        begin_kernel();                                                                       \
        largest<source, T, VECTOR>(q);                                                       \
    }
FOR_EACH_SOURCE(LARGEST)

// The scale from the `count` magnitudes that `largest` left; one warp.
KERNEL(make_scale)(const u32* partial, u32 count, float* scale, float most, u32 keep_known) {
    begin_kernel();
    if (keep_known && *scale != 0.0f) return;
    u32 peak = 0;
    for (u32 i = threadIdx.x; i < count; i += 32) peak = max(peak, partial[i]);
    peak = __reduce_max_sync(0xffffffffu, peak);
    float amax = __uint_as_float(peak);
    if (threadIdx.x == 0) *scale = amax == 0.0f ? 0.0f : scale_of(amax, most);
}

// New scales of many tensors. A block is a tensor, its threads are the ages of the history.
// `unit` is a power of two, the room above the largest magnitude. `unknown` is the scale of a tensor with no history.
KERNEL(update_scales)
(float* amax, float* history, const float* largest, float* scale, u32 length, float unit, float unknown) {
    begin_kernel();
    u32 tensor = blockIdx.x;
    float found = amax[tensor];
    // All threads have read it before the first one sets it to 0.
    __syncthreads();
    if (threadIdx.x == 0) amax[tensor] = 0.0f;
    // A magnitude that is 0 or not finite says nothing and does not enter.
    bool enters = found > 0.0f && found < infinity();
    float peak = 0.0f;
    // The oldest first: each magnitude is read before a younger one takes its place.
    for (u32 chunks = (length + blockDim.x - 1) / blockDim.x; chunks > 0; chunks--) {
        u32 age = (chunks - 1) * blockDim.x + threadIdx.x;
        float* cell = history + (u64)tensor * length + age;
        float x = 0.0f;
        if (age < length) x = !enters ? *cell : age == 0 ? found : *(cell - 1);
        __syncthreads();
        if (age < length && enters) *cell = x;
        peak = fmaxf(peak, x);
    }
    peak = block_max(peak);
    if (threadIdx.x != 0) return;
    float before = scale[tensor];
    if (peak > 0.0f) scale[tensor] = scale_of(peak * unit, largest[tensor]);
    else if (!(before > 0.0f && before < infinity())) scale[tensor] = unknown;
}
