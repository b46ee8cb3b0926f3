// Products of the rows of each expert with a matrix of its own: the plain kernel, which runs on any GPU.
//
// A block computes tiles of 128 x 128 values. The numbers of rows are read from device memory: so the grid has as many
// blocks as run at a time, and each finds its tiles itself. A tile has rows of one expert. Beyond an expert's rows and
// the edges of a matrix factors are 0, and nothing is read or written there. bf16 goes through tensor cores, in three
// stages of copies; f32 is multiplied on the CUDA cores. Sums are in f32, in the order of the inner index: always the
// same bits.
#include "mma.cuh"
#include "scan.cuh"

// Experts at most: two for each thread; `EXPERTS` in `device/src/cuda/ops/trainer/experts/mod.rs`.
const u32 EXPERTS = 512;
const u32 THREADS = SCAN_THREADS;
// Rows and columns of a tile; `TILE` in `device/src/cuda/ops/trainer/experts/grouped_gemm.rs`.
const u32 TILE = 128;

struct GroupedGemm {
    const int* offsets; // (experts + 1)
    const void* a;
    const void* b;
    void* out;
    u32 rows; // of all experts
    u32 experts;
    u32 n; // a matrix of an expert is (n, k)
    u32 k;
    u32 a_stride; // from a row to the next
    u32 b_stride;
    u32 out_stride;
    float alpha;
    u32 accumulate;
    u32 reserved;
};

enum Product { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };

// A factor. The inner index is that of its columns, or that of its rows.
template <class T> struct Matrix {
    const T* start;
    u32 rows;
    u32 columns;
    u32 stride;
};

// A tile of a result.
template <class T, class Out> struct Tile {
    Matrix<T> a, b;
    Out* out; // (rows, columns)
    u32 rows;
    u32 columns;
    u32 stride;
    u32 first_row;
    u32 first_column;
    u32 inner;
};

// Whether the inner index of a factor is that of its columns.
constexpr bool a_has_inner_columns(Product product) { return product != WEIGHT_GRADIENT; }
constexpr bool b_has_inner_columns(Product product) { return product == FORWARD; }

inline u32 tiles(u32 size) { return (size + TILE - 1) / TILE; }

// The first row of an expert. It is within the tensor whatever memory holds.
inline u32 first_row(const GroupedGemm& op, u32 expert) { return min((u32)max(op.offsets[expert], 0), op.rows); }

inline u32 rows_of(const GroupedGemm& op, u32 expert) {
    u32 first = first_row(op, expert);
    return max(first_row(op, expert + 1), first) - first;
}

// The number of each expert's first tile of rows, and in the end the number of all.
inline void count_tiles(const GroupedGemm& op, u32* first_tile) {
    u32 expert = 2 * threadIdx.x, all;
    u32 of_first = expert < op.experts ? tiles(rows_of(op, expert)) : 0;
    u32 of_second = expert + 1 < op.experts ? tiles(rows_of(op, expert + 1)) : 0;
    u32 before = sum_before(of_first + of_second, all);
    if (expert < op.experts) first_tile[expert] = before;
    if (expert + 1 < op.experts) first_tile[expert + 1] = before + of_first;
    if (threadIdx.x == 0) first_tile[op.experts] = all;
    __syncthreads();
}

// The expert of a tile of rows: the last one whose first tile is not after it.
inline u32 expert_of(u32 tile, const u32* first_tile, u32 experts) {
    u32 low = 0, high = experts;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (first_tile[middle] <= tile) low = middle;
        else high = middle;
    }
    return low;
}

// Columns of a result with rows.
template <Product PRODUCT> u32 width(const GroupedGemm& op) { return PRODUCT == FORWARD ? op.n : op.k; }

template <Product PRODUCT> u32 tile_count(const GroupedGemm& op, const u32* first_tile) {
    if (PRODUCT == WEIGHT_GRADIENT) return op.experts * tiles(op.n) * tiles(op.k);
    return first_tile[op.experts] * tiles(width<PRODUCT>(op));
}

template <Product PRODUCT, class T, class Out>
Tile<T, Out> tile_of(const GroupedGemm& op, const u32* first_tile, u32 number) {
    const T *a = (const T*)op.a, *b = (const T*)op.b;
    const u32 columns = PRODUCT == WEIGHT_GRADIENT ? op.k : width<PRODUCT>(op);
    u32 across = number % tiles(columns), down = number / tiles(columns);
    u32 expert = PRODUCT == WEIGHT_GRADIENT ? down / tiles(op.n) : expert_of(down, first_tile, op.experts);
    u64 first = first_row(op, expert), matrix = (u64)expert * op.n * op.k;
    u32 rows = rows_of(op, expert);
    if (PRODUCT == WEIGHT_GRADIENT) {
        return {{a + first * op.a_stride, rows, op.n, op.a_stride},
                {b + first * op.b_stride, rows, op.k, op.b_stride},
                (Out*)op.out + matrix,
                op.n,
                op.k,
                op.k,
                down % tiles(op.n) * TILE,
                across * TILE,
                rows};
    }
    u32 inner = PRODUCT == FORWARD ? op.k : op.n;
    return {{a + first * op.a_stride, rows, inner, op.a_stride},
            {b + matrix, op.n, op.k, op.k},
            (Out*)op.out + first * op.out_stride,
            rows,
            columns,
            op.out_stride,
            (down - first_tile[expert]) * TILE,
            across * TILE,
            inner};
}

// Stores a value, or adds it to the one there.
template <class Out> void put_value(Out* to, float x, u32 accumulate) { set(to, accumulate ? value(to) + x : x); }

// Two neighbours of a row. With VECTOR a row has an even number of columns, and both have an address for one store.
template <bool VECTOR, class T, class Out>
void put_pair(const Tile<T, Out>& tile, u32 row, u32 column, float x, float y, u32 accumulate) {
    if (row >= tile.rows || column >= tile.columns) return;
    Out* to = tile.out + (u64)row * tile.stride + column;
    if constexpr (!VECTOR) {
        put_value(to, x, accumulate);
        if (column + 1 < tile.columns) put_value(to + 1, y, accumulate);
    } else if constexpr (sizeof(Out) == 2) {
        *(u32*)to = accumulate ? pack_bf16x2(value(to) + x, value(to + 1) + y) : pack_bf16x2(x, y);
    } else {
        float2 old = accumulate ? *(float2*)to : make_float2(0.0f, 0.0f);
        *(float2*)to = make_float2(old.x + x, old.y + y);
    }
}

// ---- bf16: 8 warps, 2 x 4, each with 64 x 32 values --------------------------------------------------------------

// The inner index of a stage, and stages; `SHARED` in `device/src/cuda/ops/trainer/experts/grouped_gemm.rs`.
const u32 DEPTH = 32;
const u32 STAGES = 3;
// Rows in shared memory are longer by 16 bytes, so that eight of them lie in different banks.
const u32 PADDING = 8;

// A part of a factor in shared memory, as it lies in device memory: TILE by DEPTH values, or DEPTH by TILE.
template <bool INNER_COLUMNS> struct Part {
    static constexpr u32 ROWS = INNER_COLUMNS ? TILE : DEPTH, COLUMNS = INNER_COLUMNS ? DEPTH : TILE;
    static constexpr u32 STRIDE = COLUMNS + PADDING, SIZE = ROWS * STRIDE;
};

// Copies the part that begins at `outer` and `inner`, with zeros outside of the matrix.
template <bool INNER_COLUMNS, bool VECTOR> void fetch_part(bf16* part, const Matrix<bf16>& from, u32 outer, u32 inner) {
    typedef Part<INNER_COLUMNS> P;
    constexpr u32 N = VECTOR ? 8 : 1, PACKS = P::COLUMNS / N;
    const u32 first_row = INNER_COLUMNS ? outer : inner, first_column = INNER_COLUMNS ? inner : outer;
#pragma unroll 4
    for (u32 i = 0; i < TILE * DEPTH / N / THREADS; i++) {
        u32 pack = threadIdx.x + i * THREADS, row = pack / PACKS, column = pack % PACKS * N;
        bool inside = first_row + row < from.rows && first_column + column < from.columns;
        u64 at = inside ? (u64)(first_row + row) * from.stride + first_column + column : 0;
        bf16* to = part + row * P::STRIDE + column;
        if constexpr (VECTOR) copy_ahead_or_zero(to, from.start + at, inside);
        else *to = inside ? from.start[at] : bf16{0};
    }
}

// 16 rows of the first factor, from `outer` on, by 16 of the inner index.
template <bool INNER_COLUMNS> void load_a(u32 (&x)[4], const bf16* part, u32 outer, u32 inner) {
    const u32 lane = threadIdx.x % 32, stride = Part<INNER_COLUMNS>::STRIDE;
    const u32 second = lane / 8 % 2 * 8, last = lane / 16 * 8;
    if constexpr (INNER_COLUMNS) load_matrices(x, part + (outer + lane % 16) * stride + inner + last);
    else load_matrices_transposed(x, part + (inner + lane % 8 + last) * stride + outer + second);
}

// 16 of the inner index by 16 columns of the second factor: two halves of eight columns.
template <bool INNER_COLUMNS> void load_b(u32 (&x)[4], const bf16* part, u32 outer, u32 inner) {
    const u32 lane = threadIdx.x % 32, stride = Part<INNER_COLUMNS>::STRIDE;
    const u32 second = lane / 8 % 2 * 8, last = lane / 16 * 8;
    if constexpr (INNER_COLUMNS) load_matrices(x, part + (outer + lane % 8 + last) * stride + inner + second);
    else load_matrices_transposed(x, part + (inner + lane % 16) * stride + outer + last);
}

template <Product PRODUCT, bool VECTOR, class Out>
void multiply_tile(const Tile<bf16, Out>& tile, float alpha, u32 accumulate) {
    extern __shared__ uint4 shared[];
    constexpr bool A = a_has_inner_columns(PRODUCT), B = b_has_inner_columns(PRODUCT);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp / 4 * 64, column = warp % 4 * 32;
    const u32 steps = (tile.inner + DEPTH - 1) / DEPTH;
    bf16* parts = reinterpret_cast<bf16*>(shared);
    auto part = [&](u32 step) { return parts + step % STAGES * (Part<A>::SIZE + Part<B>::SIZE); };
    auto fetch = [&](u32 step) {
        if (step < steps) {
            fetch_part<A, VECTOR>(part(step), tile.a, tile.first_row, step * DEPTH);
            fetch_part<B, VECTOR>(part(step) + Part<A>::SIZE, tile.b, tile.first_column, step * DEPTH);
        }
        end_copies();
    };
    // All threads have read the parts of the tile before.
    __syncthreads();
    for (u32 step = 0; step < STAGES - 1; step++) fetch(step);
    float sums[4][4][4] = {};
    for (u32 step = 0; step < steps; step++) {
        wait_for_copies(STAGES - 2);
        // The part of the step before has been read: the next copy may overwrite it.
        __syncthreads();
        fetch(step + STAGES - 1);
        const bf16 *a = part(step), *b = a + Part<A>::SIZE;
#pragma unroll
        for (u32 inner = 0; inner < DEPTH; inner += 16) {
            u32 x[4][4], y[2][4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) load_a<A>(x[i], a, row + 16 * i, inner);
#pragma unroll
            for (u32 j = 0; j < 2; j++) load_b<B>(y[j], b, column + 16 * j, inner);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) multiply_add(sums[i][j], x[i], y[j / 2] + j % 2 * 2);
            }
        }
    }
    wait_for_copies(0);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 r = tile.first_row + row + 16 * i + lane / 4, c = tile.first_column + column + 8 * j + lane % 4 * 2;
            const float(&x)[4] = sums[i][j];
            put_pair<VECTOR>(tile, r, c, alpha * x[0], alpha * x[1], accumulate);
            put_pair<VECTOR>(tile, r + 8, c, alpha * x[2], alpha * x[3], accumulate);
        }
    }
}

// ---- f32: 16 x 16 threads, each with 8 x 8 values -----------------------------------------------------------------

const u32 DEPTH_F32 = 16;

// A part of a factor: element (outer, inner).
template <bool INNER_COLUMNS> struct PartF32 {
    float values[INNER_COLUMNS ? TILE * (DEPTH_F32 + 1) : DEPTH_F32 * TILE];
    float& at(u32 outer, u32 inner) {
        return values[INNER_COLUMNS ? outer * (DEPTH_F32 + 1) + inner : inner * TILE + outer];
    }
    void fetch(const Matrix<float>& from, u32 first_outer, u32 first_inner) {
#pragma unroll 4
        for (u32 i = 0; i < TILE * DEPTH_F32 / THREADS; i++) {
            u32 number = threadIdx.x + i * THREADS;
            // Neighbours in memory go to neighbouring threads.
            u32 outer = INNER_COLUMNS ? number / DEPTH_F32 : number % TILE;
            u32 inner = INNER_COLUMNS ? number % DEPTH_F32 : number / TILE;
            u32 row = INNER_COLUMNS ? first_outer + outer : first_inner + inner;
            u32 column = INNER_COLUMNS ? first_inner + inner : first_outer + outer;
            bool inside = row < from.rows && column < from.columns;
            at(outer, inner) = inside ? from.start[(u64)row * from.stride + column] : 0.0f;
        }
    }
};

template <Product PRODUCT, bool VECTOR, class Out>
void multiply_tile(const Tile<float, Out>& tile, float alpha, u32 accumulate) {
    __shared__ PartF32<a_has_inner_columns(PRODUCT)> a;
    __shared__ PartF32<b_has_inner_columns(PRODUCT)> b;
    const u32 row = threadIdx.x / 16, column = threadIdx.x % 16;
    float sums[8][8] = {};
    for (u32 first = 0; first < tile.inner; first += DEPTH_F32) {
        __syncthreads();
        a.fetch(tile.a, tile.first_row, first);
        b.fetch(tile.b, tile.first_column, first);
        __syncthreads();
#pragma unroll 4
        for (u32 inner = 0; inner < DEPTH_F32; inner++) {
            float y[8];
#pragma unroll
            for (u32 j = 0; j < 8; j++) y[j] = b.at(column + 16 * j, inner);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                float x = a.at(row + 16 * i, inner);
#pragma unroll
                for (u32 j = 0; j < 8; j++) sums[i][j] = fmaf(x, y[j], sums[i][j]);
            }
        }
    }
    const u32 c = tile.first_column + column;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 r = tile.first_row + row + 16 * i;
        if (r >= tile.rows) break;
        Out* to = tile.out + (u64)r * tile.stride + c;
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            if (c + 16 * j < tile.columns) put_value(to + 16 * j, alpha * sums[i][j], accumulate);
        }
    }
}

// ---- kernels ------------------------------------------------------------------------------------------------------

template <Product PRODUCT, class T, class Out, bool VECTOR> void grouped_gemm(const GroupedGemm& op) {
    __shared__ u32 first_tile[EXPERTS + 1];
    if (PRODUCT != WEIGHT_GRADIENT) count_tiles(op, first_tile);
    u32 count = tile_count<PRODUCT>(op, first_tile);
    for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
        Tile<T, Out> tile = tile_of<PRODUCT, T, Out>(op, first_tile, number);
        // The gradient of an expert without rows is 0.
        if (op.accumulate && tile.inner == 0) continue;
        multiply_tile<PRODUCT, VECTOR>(tile, op.alpha, op.accumulate);
    }
}

#define GROUPED(T, VECTOR, suffix)                                                                               \
    KERNEL(__launch_bounds__(256, 2) grouped_forward_##suffix)(const GroupedGemm op) {                           \
        begin_kernel();                                                                                          \
        grouped_gemm<FORWARD, T, T, VECTOR>(op);                                                                 \
    }                                                                                                            \
    KERNEL(__launch_bounds__(256, 2) grouped_input_gradient_##suffix)(const GroupedGemm op) {                    \
        begin_kernel();                                                                                          \
        grouped_gemm<INPUT_GRADIENT, T, T, VECTOR>(op);                                                          \
    }                                                                                                            \
    KERNEL(__launch_bounds__(256, 2) grouped_weight_gradient_##suffix)(const GroupedGemm op) {                   \
        begin_kernel();                                                                                          \
        grouped_gemm<WEIGHT_GRADIENT, T, float, VECTOR>(op);                                                     \
    }
GROUPED(bf16, true, bf16)
GROUPED(bf16, false, bf16_scalar)
GROUPED(float, false, f32)
