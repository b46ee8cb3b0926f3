// A thread for each element, or for each row. Sums are in f32 and in the order of columns.
#include "common.cuh" // of the trainer: bf16, `value`, `set`, Control, Status

inline u64 here() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

KERNEL(novograd_average_square)(const float* total, float* square, const Status* status, float beta2) {
    if (here() >= 1 || !status->applies) return;
    float now = *total * status->grad_factor * status->grad_factor;
    *square = status->applied == 1 ? now : beta2 * *square + (1.0f - beta2) * now;
}

KERNEL(novograd_average)(float* grad, const float* square, float* average, const Status* status, float beta1, u64 count) {
    if (here() >= count || !status->applies) return;
    float factor = status->grad_factor / (sqrtf(*square) + 1e-8f);
    average[here()] = beta1 * average[here()] + grad[here()] * factor;
    grad[here()] = average[here()];
}

template <typename T>
inline float rectified(const T* pre, u64 at) {
    return fmaxf(value(pre + at), 0.0f);
}

template <typename T>
inline void square(const T* pre, T* output, u64 count) {
    if (here() >= count) return;
    float x = rectified(pre, here());
    set(output + here(), x * x);
}

template <typename T>
inline void square_backward(const T* pre, const T* grad, T* grad_pre, const Control* control, float factor, u64 count) {
    if (here() >= count) return;
    float x = rectified(pre, here());
    float of_term = factor * control->grad_scale * x * x;
    set(grad_pre + here(), 2.0f * x * (value(grad + here()) + of_term));
}

template <typename T>
inline void activity(const T* pre, float* values, float factor, u64 rows, u64 width) {
    if (here() >= rows) return;
    float sum = 0.0f;
    for (u64 c = 0; c < width; ++c) {
        float x = rectified(pre, here() * width + c);
        sum += x * x * x * x;
    }
    values[here()] = 0.5f * factor * sum;
}

template <typename T>
inline void smoothed(T* logits, const int* targets, float* losses, const Control* control, float smoothing, u64 rows,
                     u64 columns, u64 vocab) {
    if (here() >= rows) return;
    T* row = logits + here() * columns;
    int target = targets[here()];
    bool counts = target >= 0;
    float highest = value(row), sum = 0.0f, total = 0.0f;
    for (u64 c = 1; c < vocab; ++c) highest = fmaxf(highest, value(row + c));
    for (u64 c = 0; c < vocab; ++c) {
        sum += expf(value(row + c) - highest);
        total += value(row + c) - highest;
    }
    float log_sum = logf(sum), share = smoothing / vocab;
    float at_target = counts ? value(row + target) - highest : 0.0f;
    losses[here()] = counts ? log_sum - (1.0f - smoothing) * at_target - share * total : 0.0f;
    if (!control) return;
    for (u64 c = 0; c < columns; ++c) {
        float wanted = share + (counts && c == (u64)target ? 1.0f - smoothing : 0.0f);
        float grad = control->grad_scale * (expf(value(row + c) - highest - log_sum) - wanted);
        set(row + c, counts && c < vocab ? grad : 0.0f);
    }
}

#define KERNELS(T, suffix)                                                                                             \
    KERNEL(square_##suffix)(const T* pre, T* output, u64 count) { square(pre, output, count); }                        \
    KERNEL(square_backward_##suffix)(const T* pre, const T* grad, T* grad_pre, const Control* control, float factor,   \
                                     u64 count) {                                                                      \
        square_backward(pre, grad, grad_pre, control, factor, count);                                                  \
    }                                                                                                                  \
    KERNEL(activity_##suffix)(const T* pre, float* values, float factor, u64 rows, u64 width) {                        \
        activity(pre, values, factor, rows, width);                                                                    \
    }                                                                                                                  \
    KERNEL(smoothed_##suffix)(T* logits, const int* targets, float* losses, const Control* control, float smoothing,   \
                              u64 rows, u64 columns, u64 vocab) {                                                      \
        smoothed(logits, targets, losses, control, smoothing, rows, columns, vocab);                                   \
    }

KERNELS(float, f32)
KERNELS(bf16, bf16)
