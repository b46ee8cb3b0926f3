// Copies, sums and constants: a loop over the grid, N values per thread and iteration. Every byte is moved once.
#include "soft_cap.cuh"

// Calls body(first of N values) for all values of the grid's share.
template <int N, class Body> void for_each(u64 count, Body body) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < count / N; pack += stride) body(pack * N);
}

// output[i] = value
#define FILL(T, N, suffix)                                             \
    KERNEL(fill_##suffix)(T* output, float value, u64 count) {         \
        begin_kernel();                                                \
        float x[N];                                                    \
        for (int i = 0; i < N; i++) x[i] = value;                      \
        for_each<N>(count, [&](u64 at) { store<N>(output + at, x); }); \
    }
FOR_EACH_FLOAT(FILL)

// Repeats the bytes of a word, the lowest first. The address is a multiple of 16. It replaces memory sets in graphs.
KERNEL(set_bytes)(u8* to, u32 word, u64 bytes) {
    begin_kernel();
    u64 at = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 16;
    if (at + 16 <= bytes) *(uint4*)(to + at) = make_uint4(word, word, word, word);
    else
        for (; at < bytes; at++) to[at] = (u8)(word >> (8 * (at % 4)));
}

// values[i] = cap * tanh(values[i] / cap)
#define SOFT_CAP(T, N, suffix)                                              \
    KERNEL(soft_cap_##suffix)(T* values, float cap, u64 count) {            \
        begin_kernel();                                                     \
        for_each<N>(count, [&](u64 at) {                                    \
            float x[N];                                                     \
            load<N>(values + at, x);                                        \
            for (int i = 0; i < N; i++) x[i] = soft_cap<T>(x[i], cap);      \
            store<N>(values + at, x);                                       \
        });                                                                 \
    }
FOR_EACH_FLOAT(SOFT_CAP)

// output[i] = a[i] + b[i]; `output` may be either.
template <class T, int N> void add(const T* a, const T* b, T* output, u64 count) {
    for_each<N>(count, [&](u64 at) {
        float x[N], y[N];
        load<N>(a + at, x);
        load<N>(b + at, y);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] += y[i];
        store<N>(output + at, x);
    });
}
#define ADD(T, N, suffix) \
    KERNEL(add_##suffix)(const T* a, const T* b, T* output, u64 count) { begin_kernel(); add<T, N>(a, b, output, count); }
FOR_EACH_FLOAT(ADD)

// output[i] = factor[0] * input[i]; `output` may be `input`.
#define MULTIPLY(T, N, suffix)                                                                  \
    KERNEL(multiply_##suffix)(const T* input, const float* factor, T* output, u64 count) {      \
        begin_kernel();                                                                         \
        float by = *factor;                                                                     \
        for_each<N>(count, [&](u64 at) {                                                        \
            float x[N];                                                                         \
            load<N>(input + at, x);                                                             \
            for (int i = 0; i < N; i++) x[i] *= by;                                             \
            store<N>(output + at, x);                                                           \
        });                                                                                     \
    }
FOR_EACH_FLOAT(MULTIPLY)

// output[i] = input[i] in another type.
template <class From, class To, int N> void convert(const From* input, To* output, u64 count) {
    for_each<N>(count, [&](u64 at) {
        float x[N];
        load<N>(input + at, x);
        store<N>(output + at, x);
    });
}
KERNEL(convert_f32_bf16)(const float* input, bf16* output, u64 count) { begin_kernel(); convert<float, bf16, 4>(input, output, count); }
KERNEL(convert_bf16_f32)(const bf16* input, float* output, u64 count) { begin_kernel(); convert<bf16, float, 4>(input, output, count); }
KERNEL(convert_f32_bf16_scalar)(const float* input, bf16* output, u64 count) {
    begin_kernel();
    convert<float, bf16, 1>(input, output, count);
}
KERNEL(convert_bf16_f32_scalar)(const bf16* input, float* output, u64 count) {
    begin_kernel();
    convert<bf16, float, 1>(input, output, count);
}

// `columns` columns of a matrix: `part` from the column `first` on, and the others from `second` on.
struct ColumnRange {
    u32 first;
    u32 second;
    u32 part;
    u32 columns;
};

template <class T>
__device__ inline void copy_column(T* to, const ColumnRange& range, u64 row, u32 column, T x) {
    // Before the first column the difference wraps around, to more than any number of columns.
    u32 in_first = column - range.first, in_second = column - range.second;
    if (in_first < range.part) to[row * range.columns + in_first] = x;
    if (in_second < range.columns - range.part) to[row * range.columns + range.part + in_second] = x;
}

// Columns of `input` to `a` and to `b`. `input` is (rows, width) of `count` values. Each is read once.
template <class From, class To, class Convert>
void copy_columns(const From* input, To* a, ColumnRange of_a, To* b, ColumnRange of_b, u64 count, u32 width,
                  Convert convert) {
    for_each<1>(count, [&](u64 at) {
        u64 row = at / width;
        u32 column = (u32)(at - row * width);
        To x = convert(input[at]);
        copy_column(a, of_a, row, column, x);
        copy_column(b, of_b, row, column, x);
    });
}
// i32 and f32 as they lie in memory.
KERNEL(copy_columns_words)(const u32* input, u32* a, u32 a_first, u32 a_second, u32 a_part, u32 a_columns, u32* b,
                           u32 b_first, u32 b_second, u32 b_part, u32 b_columns, u64 count, u32 width) {
    begin_kernel();
    ColumnRange of_a = {a_first, a_second, a_part, a_columns}, of_b = {b_first, b_second, b_part, b_columns};
    copy_columns(input, a, of_a, b, of_b, count, width, [](u32 x) { return x; });
}
KERNEL(copy_columns_bf16)(const float* input, bf16* a, u32 a_first, u32 a_second, u32 a_part, u32 a_columns, bf16* b,
                          u32 b_first, u32 b_second, u32 b_part, u32 b_columns, u64 count, u32 width) {
    begin_kernel();
    ColumnRange of_a = {a_first, a_second, a_part, a_columns}, of_b = {b_first, b_second, b_part, b_columns};
    copy_columns(input, a, of_a, b, of_b, count, width, [](float x) {
        bf16 rounded;
        set(&rounded, x);
        return rounded;
    });
}

// Rows of `width` values between the order (ranks, batch, tokens, width) and (batch, ranks * tokens, width). A rank has
// `part` tokens from the beginning of a sequence, and the others from the mirrored part at its end.
template <class T, bool to_positions>
void order_rows(const T* input, T* output, u64 count, u32 ranks, u32 batch, u32 tokens, u32 width, u32 part) {
    for_each<1>(count, [&](u64 at) {
        u64 row = at / width, column = at - row * width;
        u32 position = (u32)(row % ((u64)ranks * tokens)), sample = (u32)(row / ((u64)ranks * tokens));
        u32 number = position / part, mirrored = 2 * ranks - 1 - number, in_part = position - number * part;
        u32 rank = number < ranks ? number : mirrored, token = number < ranks ? in_part : part + in_part;
        u64 by_rank = (((u64)rank * batch + sample) * tokens + token) * width + column;
        if (to_positions) output[at] = input[by_rank];
        else output[by_rank] = input[at];
    });
}
#define ORDER_ROWS(T, suffix)                                                                                          \
    KERNEL(order_rows_by_position_##suffix)(const T* input, T* output, u64 count, u32 ranks, u32 batch, u32 tokens,    \
                                            u32 width, u32 part) {                                                     \
        begin_kernel();                                                                                                \
        order_rows<T, true>(input, output, count, ranks, batch, tokens, width, part);                                  \
    }                                                                                                                  \
    KERNEL(order_rows_by_rank_##suffix)(const T* input, T* output, u64 count, u32 ranks, u32 batch, u32 tokens,        \
                                        u32 width, u32 part) {                                                         \
        begin_kernel();                                                                                                \
        order_rows<T, false>(input, output, count, ranks, batch, tokens, width, part);                                 \
    }
ORDER_ROWS(uint4, words)
ORDER_ROWS(float, f32)
ORDER_ROWS(bf16, bf16)

// Adds `other` to the first `seen_other` of `whole` rows of each sequence of `grad`, (.., whole, width). Rows from `seen`
// on become 0.
KERNEL(join_key_gradients)(bf16* grad, const bf16* other, u64 count, u32 width, u32 whole, u32 seen_other, u32 seen) {
    begin_kernel();
    for_each<1>(count, [&](u64 at) {
        u32 position = (u32)(at / width % whole);
        float sum = position < seen ? value(grad + at) : 0.0f;
        if (position < seen_other) sum += value(other + at);
        set(grad + at, sum);
    });
}
