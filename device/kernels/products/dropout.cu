// Dropout, also after a ReLU: the mask is computed, never stored.
#include "philox.cuh"

// Rows are (sample, token), with `tokens` rows per sample. The first row here is row `first_row` of the batch, and the
// first channel is `first_channel` of the whole row. A sample's first `first_part` tokens here lie `first_shift` behind
// its beginning, and the others `second_shift` behind their numbers. One Philox call serves channels 4 k to 4 k + 3 of the whole row.
template <bool relu, class T, int N>
void dropout(const T* input, T* output, const SampleRecord* record, u32 rows, u32 first_row, u32 first_channel, u32 tokens, u32 first_part, u32 first_shift, u32 second_shift, u32 channels, u32 key_low,
             u32 key_high, u32 threshold, float scale) {
    u32 channel = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (channel >= channels) return;
    u32 first_sample = (u32)record->first_sample, step = record->step;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        u32 at = first_row + (u32)row, sample = first_sample + at / tokens, token = at % tokens;
        token += token < first_part ? first_shift : second_shift;
        float x[N];
        load<N>(input + row * channels + channel, x);
        if constexpr (relu) {
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = x[i] < 0.0f ? 0.0f : x[i]; // NaN stays
        }
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            u32 whole = first_channel + channel + i;
            uint4 words = philox4x32_10(make_uint4(whole / 4, token, sample, step), make_uint2(key_low, key_high));
            if constexpr (N == 1) {
                u32 place = whole % 4;
                u32 word = place == 0 ? words.x : place == 1 ? words.y : place == 2 ? words.z : words.w;
                x[0] *= word >= threshold ? scale : 0.0f;
            } else {
                x[i] *= words.x >= threshold ? scale : 0.0f;
                x[i + 1] *= words.y >= threshold ? scale : 0.0f;
                x[i + 2] *= words.z >= threshold ? scale : 0.0f;
                x[i + 3] *= words.w >= threshold ? scale : 0.0f;
            }
        }
        store<N>(output + row * channels + channel, x);
    }
}

// The gradient: 0 if the forward's output is 0, because the ReLU or the mask made it so.
template <class T, int N>
void relu_dropout_backward(const T* output, const T* grad_output, T* grad_input, u64 count, float scale) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < count / N; pack += stride) {
        float y[N], grad[N];
        load<N>(output + pack * N, y);
        load<N>(grad_output + pack * N, grad);
#pragma unroll
        for (int i = 0; i < N; i++) grad[i] = y[i] <= 0.0f ? 0.0f : grad[i] * scale;
        store<N>(grad_input + pack * N, grad);
    }
}

#define DROPOUT(T, N, suffix)                                                                                          \
    KERNEL(dropout_##suffix)                                                                                           \
    (const T* input, T* output, const SampleRecord* record, u32 rows, u32 first_row, u32 first_channel, u32 tokens, u32 first_part, u32 first_shift, u32 second_shift, u32 channels, u32 key_low,           \
     u32 key_high, u32 threshold, float scale) {                                                                       \
        begin_kernel();                                                                                                \
        dropout<false, T, N>(input, output, record, rows, first_row, first_channel, tokens, first_part, first_shift, second_shift, channels, key_low, key_high, threshold, scale);      \
    }                                                                                                                  \
    KERNEL(relu_dropout_##suffix)                                                                                      \
    (const T* input, T* output, const SampleRecord* record, u32 rows, u32 first_row, u32 first_channel, u32 tokens, u32 first_part, u32 first_shift, u32 second_shift, u32 channels, u32 key_low,           \
     u32 key_high, u32 threshold, float scale) {                                                                       \
        begin_kernel();                                                                                                \
        dropout<true, T, N>(input, output, record, rows, first_row, first_channel, tokens, first_part, first_shift, second_shift, channels, key_low, key_high, threshold, scale);       \
    }                                                                                                                  \
    KERNEL(relu_dropout_backward_##suffix)                                                                             \
    (const T* output, const T* grad_output, T* grad_input, u64 count, float scale) {                                   \
        begin_kernel();                                                                                                \
        relu_dropout_backward<T, N>(output, grad_output, grad_input, count, scale);                                    \
    }
FOR_EACH_FLOAT(DROPOUT)
