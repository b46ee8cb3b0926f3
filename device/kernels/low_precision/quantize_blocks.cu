// 8-bit copies with scales for groups of 128 neighbours in a row or for blocks of 128 x 128 values: in its own layout,
// transposed, or both, with the column sums on the way. Every input is read once and every copy written once: a tile of
// 128 x 128 knows the scales of its rows, for the one copy, and of its columns, for the transposed one.
//
// A block is a tile, a thread 4 rows by 8 columns, a half of a warp 4 rows of the tile. So a row's largest magnitude is found
// by shuffles, a column's by the four rows of a thread, then the two halves of a warp, then an atomic maximum in shared
// memory. The 4 x 8 values stay in registers meanwhile. The transposed copy leaves through shared memory, in pieces of 16
// bytes along a column.
//
// Rows and columns are multiples of 16, addresses of 16 bytes: packs of 8 columns and pieces of 16 rows lie inside the
// matrix or outside.
#include "quantize.cuh"

const int SIDE = 128;
const int GROUPS = SIDE / 8; // of 8 columns
const int QUADS = SIDE / 4;  // of 4 rows
const int THREADS = GROUPS * QUADS, WARPS = THREADS / 32;

struct QuantizeBlockwiseArgs {
    Quantize q;           // without scales, magnitude and types
    float* rows_scale;    // of `rows_out`
    float* columns_scale; // of `columns_out`
    u32 square;           // one scale for 128 x 128 values
    u32 rows_stride;      // of the padded scales of blocks
    u32 columns_stride;
    u32 across;  // blocks side by side
u32 halves;  // 2 if a block does a tile of the one half of a row, then of the other, from the same inputs
    u32 reserved;
};

// ---- Scales: powers of two ----------------------------------------------------------------------------------------

// The exponent, as it lies in the bits of an f32, of a scale: the smallest power of two such that 448 times it is not
// below the magnitude with these bits. 448 is 1.75 * 2^8. See `block_scale` in
// `device/src/ops/trainer/low_precision/quantize/host/blocks.rs`.
inline u32 scale_exponent(u32 peak) { return max((peak + 0x1fffffu) >> 23, 9u) - 8; }

inline bool is_finite(u32 peak) { return peak < 0x7f800000u; }

inline float block_scale(u32 peak) {
    u32 bits = peak == 0 ? 0x3f800000u : scale_exponent(peak) << 23;
    return __uint_as_float(is_finite(peak) ? bits : 0x7fc00000u);
}

// 1 / block_scale, except for zeros: any number serves them.
inline float block_inverse(u32 peak) {
    return __uint_as_float(is_finite(peak) ? (254 - scale_exponent(peak)) << 23 : 0x7fc00000u);
}

// ---- A tile -------------------------------------------------------------------------------------------------------

// Eight columns of a row, from column `column` of the whole matrix on: as loaded, then as f32.
template <class S, class T> struct Eight {
    Pack<T, S::LOADS> pack;
    RowValues<S::NORM> of_row;
    void load(const Quantize& q, u64 row, u32 column) {
        pack = fetch_pack<S, T, true>(q, row, column);
        of_row = fetch_row<S>(q, row);
    }
    void values(const ColumnValues<S::NORM>& of_columns, float (&x)[8]) const {
        float all[1][8];
        evaluate<S, T>(pack, of_row, of_columns, all);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = all[0][i];
    }
};

// The gradients of gate and up lie side by side. `width` is a half, a multiple of 8.
template <class F, class T> struct Eight<GatedBackward<F, T>, T> {
    Pack<T, 3> pack;
    bool upper;
    void load(const Quantize& q, u64 row, u32 column) {
        upper = column >= q.width;
        pack = fetch_pack<GatedBackward<F, T>, T, true>(q, row, upper ? column - q.width : column);
    }
    void values(const ColumnValues<false>& of_columns, float (&x)[8]) const {
        float all[2][8];
        evaluate<GatedBackward<F, T>, T>(pack, RowValues<false>{}, of_columns, all);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = upper ? all[1][i] : all[0][i];
    }
};

// The place among 128 of the value of a column of the tile: thread (group, half of a warp) has places 2 group + half of
// four stretches of 32, so that no two threads of a warp meet in a bank.
inline u32 place_of(u32 column) { return column % 4 * 32 + column / 4; }

// Words of 4 rows of a column. Word `quad` lies at `quad ^ swizzle(column)`, so that no two threads of a warp write to a bank at
// once. The upper half of the columns so has the two halves of 16 bytes in the other order.
inline u32 swizzle(u32 column) { return column / 8 % 8 * 4 + column / 64 * 2; }

inline u32 word_of_rows(const float (&x)[4][8], int i, float inverse) {
    return pack_f8x4<false>(x[0][i] * inverse, x[1][i] * inverse, x[2][i] * inverse, x[3][i] * inverse);
}

inline uint2 eight_columns(const float (&x)[8], float inverse) {
    u32 low = pack_f8x4<false>(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse);
    u32 high = pack_f8x4<false>(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse);
    return make_uint2(low, high);
}

// Of a thread's 8 columns the 4 that its half of the warp answers for; combined with the other half's values of these.
template <class F> void exchange(const float (&x)[8], u32 half, float (&mine)[4], F combine) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float other = __shfl_xor_sync(0xffffffffu, half ? x[i] : x[4 + i], 16);
        mine[i] = combine(half ? x[4 + i] : x[i], other);
    }
}

template <class S, class T> void quantize_block(const QuantizeBlockwiseArgs& b) {
    __shared__ __align__(16) u32 staged[SIDE][QUADS];
    __shared__ float sums[WARPS][SIDE];
    __shared__ u32 peaks[SIDE];
    const Quantize& q = b.q;
    u32 columns = q.width * S::OUTPUTS, tile_row = blockIdx.x / b.across;
    u32 group = threadIdx.x % GROUPS, quad = threadIdx.x / GROUPS, warp = threadIdx.x / 32, half = threadIdx.x / 16 % 2;
    u32 first_row = tile_row * SIDE, row = first_row + quad * 4;

#pragma unroll 1
    for (u32 side = 0; side < b.halves; side++) {
        u32 first_column = blockIdx.x % b.across * SIDE + side * q.width, tile_column = first_column / SIDE;
        u32 column = first_column + group * 8;

        // Zeros beyond the matrix: each source makes zeros of them.
        Eight<S, T> eight[4];
        bool inside = row < q.rows && column < columns;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            if (inside) eight[r].load(q, row + r, column);
            else eight[r] = Eight<S, T>{};
        }
        ColumnValues<S::NORM> of_columns = fetch_columns<S, T, true>(q, column);
        float x[4][8];
#pragma unroll
        for (int r = 0; r < 4; r++) eight[r].values(of_columns, x[r]);
        if (threadIdx.x < SIDE) peaks[threadIdx.x] = 0;
        __syncthreads();

        float row_peak[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            row_peak[r] = fabsf(x[r][0]);
#pragma unroll
            for (int i = 1; i < 8; i++) row_peak[r] = larger(row_peak[r], fabsf(x[r][i]));
#pragma unroll
            for (int distance = 8; distance > 0; distance /= 2) {
                row_peak[r] = larger(row_peak[r], __shfl_xor_sync(0xffffffffu, row_peak[r], distance));
            }
        }
        if (b.square) {
            float peak = larger(larger(row_peak[0], row_peak[1]), larger(row_peak[2], row_peak[3]));
            peak = larger(peak, __shfl_xor_sync(0xffffffffu, peak, 16));
            if (threadIdx.x % 32 == 0) atomicMax(&peaks[0], __float_as_uint(peak));
        } else if (q.columns_out) {
            float peak[8], mine[4];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                peak[i] = larger(larger(fabsf(x[0][i]), fabsf(x[1][i])), larger(fabsf(x[2][i]), fabsf(x[3][i])));
            }
            exchange(peak, half, mine, [](float a, float b) { return larger(a, b); });
#pragma unroll
            for (int i = 0; i < 4; i++) atomicMax(&peaks[i * 32 + group * 2 + half], __float_as_uint(mine[i]));
        }
        if (q.partial) {
            float total[8], mine[4];
#pragma unroll
            for (int i = 0; i < 8; i++) total[i] = x[0][i] + x[1][i] + (x[2][i] + x[3][i]);
            exchange(total, half, mine, [](float a, float b) { return a + b; });
#pragma unroll
            for (int i = 0; i < 4; i++) sums[warp][i * 32 + group * 2 + half] = mine[i];
        }
        __syncthreads();

        if (q.rows_out) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                u32 peak = b.square ? peaks[0] : __float_as_uint(row_peak[r]);
                uint2 bytes = eight_columns(x[r], block_inverse(peak));
                if (inside) *reinterpret_cast<uint2*>(q.rows_out + (u64)(row + r) * columns + column) = bytes;
                if (!b.square && group == r && row < q.rows) {
                    b.rows_scale[(u64)tile_column * q.rows + row + r] = block_scale(peak);
                }
            }
        }
        if (q.columns_out) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                u32 c = group * 8 + i;
                float inverse = block_inverse(peaks[b.square ? 0 : place_of(c)]);
                staged[c][quad ^ swizzle(c)] = word_of_rows(x, i, inverse);
            }
        }
        if (b.square) {
            // The last block of a row of scales pads it with zeros.
            if (threadIdx.x < 4) {
                u32 i = threadIdx.x, end = (columns + SIDE - 1) / SIDE;
                float scale = i == 0 ? block_scale(peaks[0]) : 0.0f;
                bool pads = tile_column + 1 == end && tile_column + i < b.rows_stride;
                if (q.rows_out && (i == 0 || pads)) b.rows_scale[(u64)tile_row * b.rows_stride + tile_column + i] = scale;
                end = (q.rows + SIDE - 1) / SIDE, pads = tile_row + 1 == end && tile_row + i < b.columns_stride;
                if (q.columns_out && (i == 0 || pads)) {
                    b.columns_scale[(u64)tile_column * b.columns_stride + tile_row + i] = scale;
                }
            }
        } else if (q.columns_out && threadIdx.x < SIDE && first_column + threadIdx.x < columns) {
            b.columns_scale[(u64)tile_row * columns + first_column + threadIdx.x] = block_scale(peaks[place_of(threadIdx.x)]);
        }
        if (q.partial && threadIdx.x < SIDE && first_column + threadIdx.x < columns) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w][place_of(threadIdx.x)];
            q.partial[(u64)tile_row * columns + first_column + threadIdx.x] = sum;
        }
        if (!q.columns_out && b.halves == 1) return;
        __syncthreads();

        if (q.columns_out) {
            constexpr int PIECES = SIDE / 16;
#pragma unroll
            for (int i = 0; i < SIDE * PIECES / THREADS; i++) {
                u32 at = i * THREADS + threadIdx.x, piece = at % PIECES, c = at / PIECES;
                uint4 words = *reinterpret_cast<const uint4*>(&staged[c][piece * 4 ^ (swizzle(c) & ~3u)]);
                if (c >= SIDE / 2) words = make_uint4(words.z, words.w, words.x, words.y);
                u32 from = first_row + piece * 16;
                if (first_column + c < columns && from < q.rows) {
                    *reinterpret_cast<uint4*>(q.columns_out + (u64)(first_column + c) * q.rows + from) = words;
                }
            }
        }
    }
}

// Two tiles at a time fit a multiprocessor with bf16 inputs; those of f32 need more registers.
#define QUANTIZE_BLOCKS_true(source, name, T, suffix)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, sizeof(T) == 2 ? 2 : 1)                              \
        quantize_blocks_##name##_##suffix(QuantizeBlockwiseArgs b) {                                                  \
        begin_kernel();                                                                                        \
        quantize_block<source, T>(b);                                                                          \
    }
#define QUANTIZE_BLOCKS_false(source, name, T, suffix)
#define QUANTIZE_BLOCKS(source, name, T, VECTOR, suffix) QUANTIZE_BLOCKS_##VECTOR(source, name, T, suffix)
FOR_EACH_SOURCE(QUANTIZE_BLOCKS)
