// The transposed 8-bit copy of a stored matrix with a scale for each of the copy's rows (columns of the matrix). Three
// kernels: the largest magnitude of each column in tiles of 128 rows, the scales from them, the copy. The matrix is read
// twice. It is meant for weights: they are quantised once a step.
#include "transpose_tile.cuh"

// A thread's part of a tile, as in `quantize.cu`: 4 rows by 8 columns.
struct TilePlace {
    u32 tile_row, first_column, group, quad, column;
    u64 row;
};

inline TilePlace tile_place(const Quantize& q) {
    TilePlace at;
    u32 tiles = (q.width + TILE_COLUMNS - 1) / TILE_COLUMNS;
    at.tile_row = blockIdx.x / tiles, at.first_column = blockIdx.x % tiles * TILE_COLUMNS;
    at.group = threadIdx.x % GROUPS, at.quad = threadIdx.x / GROUPS;
    at.column = at.first_column + at.group * 8, at.row = (u64)at.tile_row * TILE_ROWS + at.quad * 4;
    return at;
}

// A source that computes a value from one loaded.
template <class S, class T, bool VECTOR> void fetch_values(const Quantize& q, const TilePlace& at, float (&x)[4][8]) {
    Pack<T, 1> packs[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        bool inside = at.row + r < q.rows && at.column < q.width;
        packs[r] = inside ? fetch_pack<S, T, VECTOR>(q, at.row + r, at.column) : Pack<T, 1>{};
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float values[1][8];
        evaluate<S, T>(packs[r], {}, {}, values);
#pragma unroll
        for (int i = 0; i < 8; i++) x[r][i] = values[0][i];
    }
}

// To `partial`, as bits: (row tiles, width).
template <class S, class T, bool VECTOR> void column_magnitudes(const Quantize& q) {
    constexpr int WARPS = 8;
    __shared__ u32 largest[WARPS][TILE_COLUMNS];
    TilePlace at = tile_place(q);
    float x[4][8];
    fetch_values<S, T, VECTOR>(q, at, x);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 peak = 0;
#pragma unroll
        for (int r = 0; r < 4; r++) peak = max(peak, magnitude(x[r][i]));
        // The warp's four quads.
        peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 8));
        peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, 16));
        if (threadIdx.x % 32 < GROUPS) largest[threadIdx.x / 32][at.group * 8 + i] = peak;
    }
    __syncthreads();
    u32 column = at.first_column + threadIdx.x;
    if (threadIdx.x < TILE_COLUMNS && column < q.width) {
        u32 peak = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) peak = max(peak, largest[w][threadIdx.x]);
        reinterpret_cast<u32*>(q.partial)[(u64)at.tile_row * q.width + column] = peak;
    }
}

// A block has 32 columns; each of its 32 warps looks at some tiles of them.
KERNEL(column_scales)(const u32* partial, u32 row_tiles, u32 width, float* scales, float most) {
    begin_kernel();
    __shared__ u32 largest[32][32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    u32 peak = 0;
    if (column < width) {
        for (u32 tile = warp; tile < row_tiles; tile += 32) peak = max(peak, partial[(u64)tile * width + column]);
    }
    largest[warp][lane] = peak;
    __syncthreads();
    if (warp == 0 && column < width) {
#pragma unroll
        for (int w = 1; w < 32; w++) peak = max(peak, largest[w][lane]);
        scales[column] = scale_of(__uint_as_float(peak), most);
    }
}

template <class S, class T, bool VECTOR> void quantize_columns(const Quantize& q) {
    __shared__ __align__(16) Words staged[1];
    TilePlace at = tile_place(q);
    float x[4][8], inverse[8];
    fetch_values<S, T, VECTOR>(q, at, x);
#pragma unroll
    for (int i = 0; i < 8; i++) inverse[i] = at.column + i < q.width ? inverse_of(q.columns_scale[at.column + i]) : 0.0f;
    u32 bytes[2][4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        // Products with the inverse are rounded as everywhere; those with 1 are exact.
#pragma unroll
        for (int i = 0; i < 8; i++) x[r][i] *= inverse[i];
        uint2 eight = quantized(x[r], 1.0f, q.columns_e5m2);
        bytes[0][r] = eight.x, bytes[1][r] = eight.y;
    }
    put_words(staged[0], bytes, at.group, at.quad);
    __syncthreads();
    store_tiles<1>(q, staged, at.first_column, at.tile_row * TILE_ROWS);
}

#define QUANTIZE_COLUMNS(source, name, T, VECTOR, suffix)                                                \
    extern "C" __global__ void __launch_bounds__(256) column_magnitudes_##name##_##suffix(Quantize q) { \
        begin_kernel();                                                                                 \
        column_magnitudes<source, T, VECTOR>(q);                                                         \
    }                                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) quantize_columns_##name##_##suffix(Quantize q) {  \
        begin_kernel();                                                                                 \
        quantize_columns<source, T, VECTOR>(q);                                                          \
    }
FOR_EACH_PATH(QUANTIZE_COLUMNS, Stored, stored)
FOR_EACH_PATH(QUANTIZE_COLUMNS, Rounded, rounded)
