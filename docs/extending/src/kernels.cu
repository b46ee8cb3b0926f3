// A thread for each element, or for each row. Sums are in f32 and in the order of columns.
#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

__device__ float of(float x) { return x; }
__device__ float of(bf16 x) { return __bfloat162float(x); }
__device__ void put(float* to, float x) { *to = x; }
__device__ void put(bf16* to, float x) { *to = __float2bfloat16(x); }
__device__ unsigned long long here() { return (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void sign(float* values, unsigned long long count) {
    if (here() >= count) return;
    float value = values[here()];
    values[here()] = value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : value;
}

template <typename T>
__device__ void square(const T* pre, T* output, unsigned long long count) {
    if (here() >= count) return;
    float x = fmaxf(of(pre[here()]), 0.0f);
    put(output + here(), x * x);
}

// The gradient of each loss, `grad_scale`, is in the control block, after 32 bytes.
template <typename T>
__device__ void square_backward(const T* pre, const T* grad, T* grad_pre, const char* control, float factor,
                                unsigned long long count) {
    if (here() >= count) return;
    float x = fmaxf(of(pre[here()]), 0.0f);
    float scale = factor * *reinterpret_cast<const float*>(control + 32);
    put(grad_pre + here(), 2.0f * x * (of(grad[here()]) + scale * x * x));
}

template <typename T>
__device__ void activity(const T* pre, float* values, float factor, unsigned long long rows, unsigned long long width) {
    if (here() >= rows) return;
    float sum = 0.0f;
    for (unsigned long long c = 0; c < width; ++c) {
        float x = fmaxf(of(pre[here() * width + c]), 0.0f);
        sum += x * x * x * x;
    }
    values[here()] = 0.5f * factor * sum;
}

template <typename T>
__device__ void smoothed(T* logits, const int* targets, float* losses, const char* control, float smoothing,
                         unsigned long long rows, unsigned long long columns, unsigned long long vocab) {
    if (here() >= rows) return;
    T* row = logits + here() * columns;
    int target = targets[here()];
    bool counts = target >= 0;
    float highest = of(row[0]), sum = 0.0f, total = 0.0f;
    for (unsigned long long c = 1; c < vocab; ++c) highest = fmaxf(highest, of(row[c]));
    for (unsigned long long c = 0; c < vocab; ++c) {
        sum += expf(of(row[c]) - highest);
        total += of(row[c]) - highest;
    }
    float log_sum = logf(sum), share = smoothing / vocab;
    float at_target = counts ? of(row[target]) - highest : 0.0f;
    losses[here()] = counts ? log_sum - (1.0f - smoothing) * at_target - share * total : 0.0f;
    if (!control) return;
    float scale = *reinterpret_cast<const float*>(control + 32);
    for (unsigned long long c = 0; c < columns; ++c) {
        float wanted = share + (c == target ? 1.0f - smoothing : 0.0f);
        float grad = counts && c < vocab ? scale * (expf(of(row[c]) - highest - log_sum) - wanted) : 0.0f;
        put(row + c, grad);
    }
}

#define KERNELS(T)                                                                                                     \
    extern "C" __global__ void square_##T(const T* pre, T* output, unsigned long long count) {                         \
        square(pre, output, count);                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void square_backward_##T(const T* pre, const T* grad, T* grad_pre, const char* control,      \
                                                   float factor, unsigned long long count) {                           \
        square_backward(pre, grad, grad_pre, control, factor, count);                                                  \
    }                                                                                                                  \
    extern "C" __global__ void activity_##T(const T* pre, float* values, float factor, unsigned long long rows,        \
                                            unsigned long long width) {                                                \
        activity(pre, values, factor, rows, width);                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void smoothed_##T(T* logits, const int* targets, float* losses, const char* control,         \
                                            float smoothing, unsigned long long rows, unsigned long long columns,      \
                                            unsigned long long vocab) {                                                \
        smoothed(logits, targets, losses, control, smoothing, rows, columns, vocab);                                   \
    }

KERNELS(float)
KERNELS(bf16)
