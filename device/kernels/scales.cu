// New scales of many tensors from their largest magnitudes. A block is a tensor, its threads are the ages of the history.
#include "quantize.cuh"

// `unit` is a power of two: what is left free above the largest magnitude.
KERNEL(update_scales)
(float* amax, float* history, const float* largest, float* scale, u32 n, u32 length, float unit) {
    u32 tensor = blockIdx.x;
    float found = amax[tensor];
    // All threads have read it before the first one sets it to 0.
    __syncthreads();
    if (threadIdx.x == 0) amax[tensor] = 0.0f;
    if (!history) {
        if (threadIdx.x == 0) scale[tensor] = scale_of(found * unit, largest[tensor]);
        return;
    }
    // A magnitude that is 0 or not finite says nothing and does not enter.
    bool enters = found > 0.0f && found < infinity();
    float peak = 0.0f;
    // The oldest first: each magnitude is read before a younger one takes its place.
    for (u32 chunks = (length + blockDim.x - 1) / blockDim.x; chunks > 0; chunks--) {
        u32 age = (chunks - 1) * blockDim.x + threadIdx.x;
        float* cell = history + (u64)age * n + tensor;
        float x = 0.0f;
        if (age < length) x = !enters ? *cell : age == 0 ? found : *(cell - n);
        __syncthreads();
        if (age < length && enters) *cell = x;
        peak = fmaxf(peak, x);
    }
    peak = block_max(peak);
    if (threadIdx.x == 0 && peak > 0.0f) scale[tensor] = scale_of(peak * unit, largest[tensor]);
}
