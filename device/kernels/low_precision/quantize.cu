// 8-bit copies with one scale for the whole matrix: in its own layout, transposed, or both. On the way its largest
// magnitude and its column sums. Every input is read once and every copy written once.
//
// A block is a tile of 128 rows by 64 columns (for GatedBackward 64 columns of each half), a thread 4 rows by 8
// columns, loaded 16 bytes at a time before the first is used. A thread's 4 x 8 bytes are transposed in registers to
// a word of 4 rows for each column. The words meet in shared memory, and each column's 128 bytes leave in pieces of 16.
#include "transpose_tile.cuh"

template <class S, class T, bool VECTOR> void quantize_tile(const Quantize& q) {
    constexpr int OUTPUTS = S::OUTPUTS, WARPS = 8;
    __shared__ __align__(16) Words staged[OUTPUTS];
    __shared__ float sums[WARPS][OUTPUTS][TILE_COLUMNS];
    __shared__ u32 largest[WARPS];
    u32 tiles = (q.width + TILE_COLUMNS - 1) / TILE_COLUMNS;
    u32 tile_row = blockIdx.x / tiles, first_column = blockIdx.x % tiles * TILE_COLUMNS;
    u32 group = threadIdx.x % GROUPS, quad = threadIdx.x / GROUPS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 column = first_column + group * 8;
    u64 first_row = (u64)tile_row * TILE_ROWS, row = first_row + quad * 4;

    // Zeros beyond the matrix: each source makes zeros of them.
    Pack<T, S::LOADS> packs[4];
    RowValues<S::NORM> of_row[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        bool inside = row + r < q.rows && column < q.width;
        packs[r] = inside ? fetch_pack<S, T, VECTOR>(q, row + r, column) : Pack<T, S::LOADS>{};
        of_row[r] = inside ? fetch_row<S>(q, row + r) : RowValues<S::NORM>{};
    }
    auto of_columns = fetch_columns<S, T, VECTOR>(q, column);
    float rows_inverse = q.rows_out ? inverse_of(*q.rows_scale) : 0.0f;
    float columns_inverse = q.columns_out ? inverse_of(*q.columns_scale) : 0.0f;

    u32 peak = 0, bytes[OUTPUTS][2][4];
    float total[OUTPUTS][8] = {};
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float x[OUTPUTS][8];
        evaluate<S, T>(packs[r], of_row[r], of_columns, x);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                peak = max(peak, magnitude(x[o][i]));
                total[o][i] += x[o][i];
            }
            uint2 eight = make_uint2(0, 0);
            if (q.rows_out) {
                eight = quantized(x[o], rows_inverse, q.rows_e5m2);
                if (row + r < q.rows && column < q.width) store_row<S, VECTOR>(q, row + r, column, o, eight);
            }
            if (q.columns_out && !q.same_bytes) eight = quantized(x[o], columns_inverse, q.columns_e5m2);
            bytes[o][0][r] = eight.x, bytes[o][1][r] = eight.y;
        }
    }

    if (q.columns_out) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) put_words(staged[o], bytes[o], group, quad);
    }
    if (q.partial) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                // The warp's four quads.
                float sum = total[o][i];
                sum += __shfl_xor_sync(0xffffffffu, sum, 8);
                sum += __shfl_xor_sync(0xffffffffu, sum, 16);
                if (lane < GROUPS) sums[warp][o][group * 8 + i] = sum;
            }
        }
    }
    if (q.amax) {
        peak = __reduce_max_sync(0xffffffffu, peak);
        if (lane == 0) largest[warp] = peak;
    }
    __syncthreads();

    if (q.columns_out) store_tiles<OUTPUTS>(q, staged, first_column, first_row);
    if (q.partial && threadIdx.x < OUTPUTS * TILE_COLUMNS) {
        u32 o = threadIdx.x / TILE_COLUMNS, c = threadIdx.x % TILE_COLUMNS;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += sums[w][o][c];
        if (first_column + c < q.width) {
            q.partial[((u64)tile_row * OUTPUTS + o) * q.width + first_column + c] = sum;
        }
    }
    if (q.amax && threadIdx.x == 0) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) peak = max(peak, largest[w]);
        // The largest of all tiles, whatever their order. Few of them are larger than the stored value.
        if (peak > *(volatile u32*)q.amax) atomicMax(q.amax, peak);
    }
}

#define QUANTIZE(source, name, T, VECTOR, suffix)                                                            \
    extern "C" __global__ void __launch_bounds__(256, VECTOR && sizeof(T) == 2 ? source::BLOCKS : 1)         \
        quantize_##name##_##suffix(Quantize q) {                                                             \
        begin_kernel();                                                                                      \
        quantize_tile<source, T, VECTOR>(q);                                                                 \
    }
FOR_EACH_SOURCE(QUANTIZE)
