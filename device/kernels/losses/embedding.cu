// Token and position embedding.
#include "common.cuh"

// output[r] = scale * table[tokens[r] - first] + positions[r % seq], or + positions[position_ids[r]]; 0 instead of a row
// for a token outside the table.
template <class T, int N>
void embedding(const int* tokens, const T* table, const T* positions, const int* position_ids, T* output, u32 rows,
               u32 seq, u32 hidden, u32 vocab, u32 first, float scale) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= hidden) return;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        // A token before the first wraps to a number beyond the last.
        u32 token = (u32)tokens[row] - first;
        Raw<T, N> raw = {};
        if (token < vocab) raw = fetch<N>(table + (u64)token * hidden + column);
        if (scale != 1.0f) {
            float x[N];
            unpack(raw, x);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] *= scale;
            pack(raw, x);
        }
        if (positions) {
            float x[N], position[N];
            unpack(raw, x);
            u64 at = position_ids ? position_ids[row] : row % seq;
            load<N>(positions + at * hidden + column, position);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] += position[i];
            pack(raw, x);
        }
        put(output + row * hidden + column, raw);
    }
}
#define EMBEDDING(T, N, suffix)                                                                                        \
    KERNEL(embedding_##suffix)                                                                                         \
    (const int* tokens, const T* table, const T* positions, const int* position_ids, T* output, u32 rows, u32 seq,     \
     u32 hidden, u32 vocab, u32 first, float scale) {                                                                  \
        begin_kernel();                                                                                                \
        embedding<T, N>(tokens, table, positions, position_ids, output, rows, seq, hidden, vocab, first, scale);       \
    }
FOR_EACH_FLOAT(EMBEDDING)

// The inputs and targets of samples (rows, width) `ahead` places further on, at `columns` columns of each: `part` of them
// with positions from `first` on, the others with those that `second` is added to. Beyond `length` the token is 0 and the
// target -1, and so is the target in another document.
KERNEL(further_tokens)(const int* samples, const int* position_ids, int* tokens, int* targets, u64 count, u32 columns,
                       u32 width, u32 first_input, u32 first_target, u32 ahead, u32 length, u32 part, u32 first,
                       u32 second) {
    begin_kernel();
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        u64 row = at / columns;
        u32 column = (u32)(at - row * columns);
        u32 position = column + (column < part ? first : second), further = position + ahead;
        bool inside = further < length;
        const int *sample = samples + row * width, *ids = position_ids + row * length;
        tokens[at] = inside ? sample[first_input + further] : 0;
        bool same = inside && (!position_ids || ids[further] == ids[position] + (int)ahead);
        targets[at] = same ? sample[first_target + further] : -1;
    }
}
