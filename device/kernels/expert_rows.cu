// From the order of tokens to that of experts, and back. Every row is moved once.
#include "common.cuh"

// Rows in flight for each thread.
const u32 UNROLL = 4;
const u32 SUM_UNROLL = 8;

// output[row] = input[pairs[row] / k], for pairs that are not dropped
template <class T, int N>
void gather_rows(const T* input, const int* pairs, T* output, u32 rows, u32 width, u32 tokens) {
    const u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N, k = rows / tokens;
    if (column >= width) return;
    for (u64 first = blockIdx.y; first < rows; first += UNROLL * gridDim.y) {
        Raw<T, N> raw[UNROLL];
        int pair[UNROLL];
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u64 row = first + u * gridDim.y;
            pair[u] = row < rows ? pairs[row] : -1;
            if (pair[u] < 0) continue;
            u32 token = min((u32)pair[u] / k, tokens - 1);
            raw[u] = fetch<N>(input + (u64)token * width + column);
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u64 row = first + u * gridDim.y;
            if (pair[u] >= 0) put(output + row * width + column, raw[u]);
        }
    }
}

// output[token] = sum of input[rows[token, j]] over j, in order, + also[token] if there is one; dropped pairs add nothing
template <class T, int N>
void combine_rows(const T* input, const int* rows, const float* also, T* output, u32 tokens, u32 width, u32 k) {
    const u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N, last = tokens * k - 1;
    if (column >= width) return;
    for (u64 token = blockIdx.y; token < tokens; token += gridDim.y) {
        float sum[N] = {};
        for (u32 base = 0; base < k; base += SUM_UNROLL) {
            Raw<T, N> raw[SUM_UNROLL];
            int row[SUM_UNROLL];
#pragma unroll
            for (u32 u = 0; u < SUM_UNROLL; u++) {
                row[u] = base + u < k ? rows[token * k + base + u] : -1;
                if (row[u] < 0) continue;
                raw[u] = fetch_once<N>(input + (u64)min((u32)row[u], last) * width + column);
            }
#pragma unroll
            for (u32 u = 0; u < SUM_UNROLL; u++) {
                if (row[u] < 0) continue;
                float x[N];
                unpack(raw[u], x);
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += x[i];
            }
        }
        if (also) {
            float x[N];
            load_f32<N>(also + token * width + column, x);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += x[i];
        }
        store<N>(output + token * width + column, sum);
    }
}

#define EXPERT_ROWS(T, N, suffix)                                                                                  \
    KERNEL(gather_rows_##suffix)                                                                                   \
    (const T* input, const int* pairs, T* output, u32 rows, u32 width, u32 tokens) {                               \
        begin_kernel();                                                                                            \
        gather_rows<T, N>(input, pairs, output, rows, width, tokens);                                              \
    }                                                                                                              \
    KERNEL(combine_rows_##suffix)                                                                                  \
    (const T* input, const int* rows, const float* also, T* output, u32 tokens, u32 width, u32 k) {                \
        begin_kernel();                                                                                            \
        combine_rows<T, N>(input, rows, also, output, tokens, width, k);                                           \
    }
FOR_EACH_FLOAT(EXPERT_ROWS)
