// The transposed copy of an f32 matrix.
//
// A block is a tile of 64 x 64: rows are loaded and columns are stored 16 bytes at a time. The odd pitch keeps the
// columns of the staged tile in different banks.
#include "common.cuh"

const int TILE = 64;

// output (columns, rows) = the transpose of input (rows, columns). Rows and columns are multiples of 4, addresses of
// 16.
extern "C" __global__ void __launch_bounds__(256)
    transpose_f32(const float* input, float* output, u32 rows, u32 columns) {
    begin_kernel();
    __shared__ float staged[TILE][TILE + 1]; // by column
    u32 tiles = (columns + TILE - 1) / TILE;
    u32 first_row = blockIdx.x / tiles * TILE, first_column = blockIdx.x % tiles * TILE;
    u32 line = threadIdx.x / 16, place = threadIdx.x % 16 * 4;
    float x[4];
#pragma unroll
    for (int pass = 0; pass < TILE; pass += 16) {
        u32 row = line + pass;
        if (first_row + row >= rows || first_column + place >= columns) continue;
        load<4>(input + (u64)(first_row + row) * columns + first_column + place, x);
#pragma unroll
        for (int i = 0; i < 4; i++) staged[place + i][row] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < TILE; pass += 16) {
        u32 column = line + pass;
        if (first_column + column >= columns || first_row + place >= rows) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = staged[column][place + i];
        store<4>(output + (u64)(first_column + column) * rows + first_row + place, x);
    }
}
