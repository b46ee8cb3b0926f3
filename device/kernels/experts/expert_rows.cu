// From the order of tokens to that of experts, and back. Every row is moved once.
#include "common.cuh"

// Rows in flight for each thread.
const u32 UNROLL = 4;
const u32 SUM_UNROLL = 8;

// output[rows[token, j]] = input[token], for pairs that are not dropped. A token is read once. `all` are the rows of output.
template <class T, int N>
void gather_rows(const T* input, const int* rows, T* output, u32 tokens, u32 width, u32 k, u32 all) {
    const u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N, last = all - 1;
    if (column >= width) return;
    for (u64 first = blockIdx.y; first < tokens; first += UNROLL * gridDim.y) {
        Raw<T, N> raw[UNROLL];
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u64 token = first + u * gridDim.y;
            if (token < tokens) raw[u] = fetch<N>(input + token * width + column);
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u64 token = first + u * gridDim.y;
            if (token >= tokens) break;
            for (u32 j = 0; j < k; j++) {
                int row = rows[token * k + j];
                if (row >= 0) put(output + (u64)min((u32)row, last) * width + column, raw[u]);
            }
        }
    }
}

// output[token] = sum of input[rows[token, j]] over j, in order, + also[token] if there is one; dropped pairs add nothing
template <class T, int N>
void combine_rows(const T* input, const int* rows, const float* also, T* output, u32 tokens, u32 width, u32 k, u32 all) {
    const u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N, last = all - 1;
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
    (const T* input, const int* rows, T* output, u32 tokens, u32 width, u32 k, u32 all) {                          \
        begin_kernel();                                                                                            \
        gather_rows<T, N>(input, rows, output, tokens, width, k, all);                                             \
    }                                                                                                              \
    KERNEL(combine_rows_##suffix)                                                                                  \
    (const T* input, const int* rows, const float* also, T* output, u32 tokens, u32 width, u32 k, u32 all) {       \
        begin_kernel();                                                                                            \
        combine_rows<T, N>(input, rows, also, output, tokens, width, k, all);                                      \
    }
FOR_EACH_FLOAT(EXPERT_ROWS)
