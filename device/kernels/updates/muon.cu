// The kernels that Muon needs besides matrix products. They move every byte once; the products take far longer.
#include "common.cuh"

// to = from * factor / max(sqrt(*square_sum), 1e-7) for a block of (rows, columns) in matrices of these widths. Without
// square_sum there is no division.
template <class From, class To>
void scale_block(const From* from, u64 from_width, To* to, u64 to_width, u32 rows, u32 columns, float factor,
                 const float* square_sum) {
    if (square_sum) factor /= fmaxf(sqrtf(*square_sum), 1e-7f);
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        set(to + row * to_width + column, value(from + row * from_width + column) * factor);
    }
}
#define SCALE_BLOCK(From, To, suffix)                                                                              \
    KERNEL(scale_block_##suffix)(const From* from, u64 from_width, To* to, u64 to_width, u32 rows, u32 columns,    \
                                 float factor, const float* square_sum) {                                          \
        begin_kernel();                                                                                            \
        scale_block(from, from_width, to, to_width, rows, columns, factor, square_sum);                            \
    }
SCALE_BLOCK(float, float, f32_f32)
SCALE_BLOCK(float, bf16, f32_bf16)
SCALE_BLOCK(bf16, float, bf16_f32)
SCALE_BLOCK(bf16, bf16, bf16_bf16)

// to = from, in vectors of 16 bytes.
KERNEL(copy_block_words)(const uint4* from, u64 from_width, uint4* to, u64 to_width, u32 rows, u32 columns) {
    begin_kernel();
    u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        to[row * to_width + column] = from[row * from_width + column];
    }
}

// output = a * identity + b * x + c * square, all (n, n), N values of a row per thread and iteration.
template <class T, int N>
void matrix_polynomial(const T* x, const T* square, T* output, u64 n, float a, float b, float c) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < n * n / N; pack += stride) {
        u64 at = pack * N, row = at / n, column = at % n;
        float y[N], z[N];
        load<N>(x + at, y);
        load<N>(square + at, z);
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = (column + i == row ? a : 0.0f) + b * y[i] + c * z[i];
        store<N>(output + at, y);
    }
}
#define MATRIX_POLYNOMIAL(T, N, suffix)                                                                                \
    KERNEL(matrix_polynomial_##suffix)(const T* x, const T* square, T* output, u64 n, float a, float b, float c) { \
        begin_kernel();                                                                                                \
        matrix_polynomial<T, N>(x, square, output, n, a, b, c);                                                        \
    }
FOR_EACH_FLOAT(MATRIX_POLYNOMIAL)
