// The transposed copy of a matrix of bytes.
//
// A block is a tile of 128 x 128, a thread 4 rows by 16 columns, loaded 16 bytes at a time. A thread's bytes are transposed
// in registers to a word of 4 rows for each column. The words meet in shared memory, and each column's 128 bytes leave in
// pieces of 16.
#include "transpose.cuh"

const int TILE = 128;
const int GROUPS = TILE / 16; // of 16 columns
const int QUADS = TILE / 4;   // of 4 rows

// Word `quad` of a column lies at `quad ^ place(column)`, so that neither the writes of a warp, 4 quads of 8 groups, nor the
// reads, 16 bytes along a column, meet in a bank.
inline int place(int column) { return column / 16 % 8 * 4; }

// Rows and columns are multiples of 16.
extern "C" __global__ void __launch_bounds__(256)
    transpose_fp8_wide(const u8* input, u8* output, u32 rows, u32 columns) {
    begin_kernel();
    __shared__ __align__(16) u32 staged[TILE][QUADS];
    u32 tiles = (columns + TILE - 1) / TILE;
    u32 first_row = blockIdx.x / tiles * TILE, first_column = blockIdx.x % tiles * TILE;
    u32 group = threadIdx.x % GROUPS, quad = threadIdx.x / GROUPS;
    u32 row = first_row + quad * 4, column = first_column + group * 16;
    uint4 in[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        bool inside = row + r < rows && column < columns;
        in[r] = inside ? *reinterpret_cast<const uint4*>(input + (u64)(row + r) * columns + column) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
        u32 from[4], words[4];
#pragma unroll
        for (int r = 0; r < 4; r++) from[r] = part == 0 ? in[r].x : part == 1 ? in[r].y : part == 2 ? in[r].z : in[r].w;
        transpose(from, words);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = group * 16 + part * 4 + i;
            staged[c][quad ^ place(c)] = words[i];
        }
    }
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < TILE * 8 / 256; pass++) {
        u32 piece = threadIdx.x % 8, c = threadIdx.x / 8 + pass * 32;
        if (first_column + c < columns && first_row + piece * 16 < rows) {
            const u32* words = &staged[c][(piece * 4) ^ place(c)];
            u8* to = output + (u64)(first_column + c) * rows + first_row + piece * 16;
            *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(words);
        }
    }
}

// Any sizes and addresses.
extern "C" __global__ void __launch_bounds__(256) transpose_fp8(const u8* input, u8* output, u32 rows, u32 columns) {
    begin_kernel();
    u32 tiles = (columns + TILE - 1) / TILE;
    u32 first_row = blockIdx.x / tiles * TILE, first_column = blockIdx.x % tiles * TILE;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < TILE * TILE; i += 256) {
        u32 row = first_row + i % TILE, column = first_column + i / TILE;
        if (row < rows && column < columns) output[(u64)column * rows + row] = input[(u64)row * columns + column];
    }
}
