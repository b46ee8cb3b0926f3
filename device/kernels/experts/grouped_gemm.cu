// Products of the rows of each expert with a matrix of its own: the plain kernel, which runs on any GPU.
//
// A block computes tiles of 128 x 128 values, of bf16 also of 128 x 32 or 32 x 128: factors of adapters are thin, and their
// products are as fast as the other factor is read. The numbers of rows are read from device memory: so the grid has as many
// blocks as run at a time, and each finds its tiles itself. A tile has rows of one expert. Beyond an expert's rows and
// the edges of a matrix factors are 0, and nothing is read or written there. bf16 goes through tensor cores, in three
// stages of copies; f32 is multiplied on the CUDA cores. Sums are in f32, in the order of the inner index: always the
// same bits.
#include "mma.cuh"
#include "scan.cuh"

// Experts at most: two for each thread; `EXPERTS` in `device/src/ops/trainer/experts/kernels.rs`.
const u32 EXPERTS = 512;
const u32 THREADS = SCAN_THREADS;
// Rows and columns of a tile, and those of a thin matrix at most; as in
// `device/src/ops/trainer/experts/grouped_gemm/launch.rs`.
const u32 TILE = 128;
const u32 THIN = 32;

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

inline u32 tiles(u32 size, u32 of = TILE) { return (size + of - 1) / of; }

// The sizes of a tile, the inner index of a stage of copies, and stages.
template <u32 ROWS_, u32 COLUMNS_, u32 DEPTH_, u32 STAGES_> struct Shape {
    static constexpr u32 ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr bool IS_WIDE = ROWS == TILE && COLUMNS == TILE;
    // Of a warp.
    static constexpr u32 WARP_ROWS = IS_WIDE ? 64 : ROWS == TILE ? 16 : ROWS;
    static constexpr u32 WARP_COLUMNS = IS_WIDE ? 32 : COLUMNS == TILE ? 16 : COLUMNS;
    static constexpr u32 ACROSS = COLUMNS / WARP_COLUMNS;
};
typedef Shape<TILE, TILE, 32, 3> Wide;
typedef Shape<TILE, THIN, 64, 4> ThinColumns;
typedef Shape<THIN, TILE, 64, 4> ThinRows;

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

template <Product PRODUCT, class S> u32 tile_count(const GroupedGemm& op, const u32* first_tile) {
    if (PRODUCT == WEIGHT_GRADIENT) return op.experts * tiles(op.n, S::ROWS) * tiles(op.k, S::COLUMNS);
    return first_tile[op.experts] * tiles(width<PRODUCT>(op), S::COLUMNS);
}

template <Product PRODUCT, class S, class T, class Out>
Tile<T, Out> tile_of(const GroupedGemm& op, const u32* first_tile, u32 number) {
    const T *a = (const T*)op.a, *b = (const T*)op.b;
    const u32 columns = PRODUCT == WEIGHT_GRADIENT ? op.k : width<PRODUCT>(op);
    u32 across = number % tiles(columns, S::COLUMNS), down = number / tiles(columns, S::COLUMNS);
    u32 expert = PRODUCT == WEIGHT_GRADIENT ? down / tiles(op.n, S::ROWS) : expert_of(down, first_tile, op.experts);
    u64 first = first_row(op, expert), matrix = (u64)expert * op.n * op.k;
    u32 rows = rows_of(op, expert);
    if (PRODUCT == WEIGHT_GRADIENT) {
        return {{a + first * op.a_stride, rows, op.n, op.a_stride},
                {b + first * op.b_stride, rows, op.k, op.b_stride},
                (Out*)op.out + matrix,
                op.n,
                op.k,
                op.k,
                down % tiles(op.n, S::ROWS) * S::ROWS,
                across * S::COLUMNS,
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
            across * S::COLUMNS,
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

// ---- bf16: 8 warps ------------------------------------------------------------------------------------------------

// Rows in shared memory are longer by 16 bytes, so that eight of them lie in different banks.
const u32 PADDING = 8;

// A part of a factor in shared memory, as it lies in device memory: OUTER by DEPTH values, or DEPTH by OUTER.
template <bool INNER_COLUMNS, u32 OUTER, u32 DEPTH> struct Part {
    static constexpr u32 ROWS = INNER_COLUMNS ? OUTER : DEPTH, COLUMNS = INNER_COLUMNS ? DEPTH : OUTER;
    static constexpr u32 STRIDE = COLUMNS + PADDING, SIZE = ROWS * STRIDE;

    // Copies the part that begins at `outer` and `inner`, with zeros outside of the matrix.
    template <bool VECTOR> static void fetch(bf16* part, const Matrix<bf16>& from, u32 outer, u32 inner) {
        constexpr u32 N = VECTOR ? 8 : 1, PACKS = COLUMNS / N;
        const u32 first_row = INNER_COLUMNS ? outer : inner, first_column = INNER_COLUMNS ? inner : outer;
#pragma unroll 4
        for (u32 i = 0; i < OUTER * DEPTH / N / THREADS; i++) {
            u32 pack = threadIdx.x + i * THREADS, row = pack / PACKS, column = pack % PACKS * N;
            bool inside = first_row + row < from.rows && first_column + column < from.columns;
            u64 at = inside ? (u64)(first_row + row) * from.stride + first_column + column : 0;
            bf16* to = part + row * STRIDE + column;
            if constexpr (VECTOR) copy_ahead_or_zero(to, from.start + at, inside);
            else *to = inside ? from.start[at] : bf16{0};
        }
    }

    // As the first factor: 16 rows of it, from `outer` on, by 16 of the inner index.
    static void load_first(u32 (&x)[4], const bf16* part, u32 outer, u32 inner) {
        const u32 lane = threadIdx.x % 32, second = lane / 8 % 2 * 8, last = lane / 16 * 8;
        if constexpr (INNER_COLUMNS) load_matrices(x, part + (outer + lane % 16) * STRIDE + inner + last);
        else load_matrices_transposed(x, part + (inner + lane % 8 + last) * STRIDE + outer + second);
    }

    // As the second: 16 of the inner index by 16 columns, two halves of eight columns.
    static void load_second(u32 (&x)[4], const bf16* part, u32 outer, u32 inner) {
        const u32 lane = threadIdx.x % 32, second = lane / 8 % 2 * 8, last = lane / 16 * 8;
        if constexpr (INNER_COLUMNS) load_matrices(x, part + (outer + lane % 8 + last) * STRIDE + inner + second);
        else load_matrices_transposed(x, part + (inner + lane % 16) * STRIDE + outer + last);
    }
};

// Half a tile of sums in shared memory, from where whole rows are stored.
const u32 SUMS_ROWS = 64;
const u32 SUMS_STRIDE = TILE + PADDING;

// Stores the sums of a wide tile, or adds them to what is there, 16 bytes a thread. `row` and `column` are the warp's.
inline void put_rows(const Tile<bf16, bf16>& tile, const float (&sums)[4][4][4], u32 row, u32 column, float alpha, u32 accumulate) {
    extern __shared__ uint4 shared[];
    float* half = reinterpret_cast<float*>(shared);
    const u32 lane = threadIdx.x % 32;
    for (u32 first = 0; first < TILE; first += SUMS_ROWS) {
        // All have read the parts that lay here, or the first half.
        __syncthreads();
        if (row == first) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    float* at = half + (16 * i + lane / 4) * SUMS_STRIDE + column + 8 * j + lane % 4 * 2;
                    const float(&x)[4] = sums[i][j];
                    *(float2*)at = make_float2(alpha * x[0], alpha * x[1]);
                    *(float2*)(at + 8 * SUMS_STRIDE) = make_float2(alpha * x[2], alpha * x[3]);
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < SUMS_ROWS * TILE / 8 / THREADS; i++) {
            const u32 pack = threadIdx.x + i * THREADS, r = pack / (TILE / 8), c = pack % (TILE / 8) * 8;
            if (tile.first_row + first + r >= tile.rows || tile.first_column + c >= tile.columns) continue;
            bf16* to = tile.out + (u64)(tile.first_row + first + r) * tile.stride + tile.first_column + c;
            const float4* sum = reinterpret_cast<const float4*>(half + r * SUMS_STRIDE + c);
            const float4 low = sum[0], high = sum[1];
            float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            if (accumulate) {
                float old[8];
                load(to, old);
#pragma unroll
                for (u32 k = 0; k < 8; k++) x[k] += old[k];
            }
            store(to, x);
        }
    }
}

template <Product PRODUCT, class S, bool VECTOR, class Out>
void multiply_tile(const Tile<bf16, Out>& tile, float alpha, u32 accumulate) {
    extern __shared__ uint4 shared[];
    typedef Part<a_has_inner_columns(PRODUCT), S::ROWS, S::DEPTH> A;
    typedef Part<b_has_inner_columns(PRODUCT), S::COLUMNS, S::DEPTH> B;
    constexpr u32 M = S::WARP_ROWS / 16, N = S::WARP_COLUMNS / 16;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 row = warp / S::ACROSS * S::WARP_ROWS, column = warp % S::ACROSS * S::WARP_COLUMNS;
    const u32 steps = (tile.inner + S::DEPTH - 1) / S::DEPTH;
    bf16* parts = reinterpret_cast<bf16*>(shared);
    auto part = [&](u32 step) { return parts + step % S::STAGES * (A::SIZE + B::SIZE); };
    auto fetch = [&](u32 step) {
        if (step < steps) {
            A::template fetch<VECTOR>(part(step), tile.a, tile.first_row, step * S::DEPTH);
            B::template fetch<VECTOR>(part(step) + A::SIZE, tile.b, tile.first_column, step * S::DEPTH);
        }
        end_copies();
    };
    // All threads have read the parts of the tile before.
    __syncthreads();
    for (u32 step = 0; step < S::STAGES - 1; step++) fetch(step);
    float sums[M][2 * N][4] = {};
    for (u32 step = 0; step < steps; step++) {
        wait_for_copies(S::STAGES - 2);
        // The part of the step before has been read: the next copy may overwrite it.
        __syncthreads();
        fetch(step + S::STAGES - 1);
        const bf16 *a = part(step), *b = a + A::SIZE;
#pragma unroll
        for (u32 inner = 0; inner < S::DEPTH; inner += 16) {
            u32 x[M][4], y[N][4];
#pragma unroll
            for (u32 i = 0; i < M; i++) A::load_first(x[i], a, row + 16 * i, inner);
#pragma unroll
            for (u32 j = 0; j < N; j++) B::load_second(y[j], b, column + 16 * j, inner);
#pragma unroll
            for (u32 i = 0; i < M; i++) {
#pragma unroll
                for (u32 j = 0; j < 2 * N; j++) multiply_add(sums[i][j], x[i], y[j / 2] + j % 2 * 2);
            }
        }
    }
    wait_for_copies(0);
    if constexpr (S::IS_WIDE && VECTOR && sizeof(Out) == 2) {
        put_rows(tile, sums, row, column, alpha, accumulate);
    } else {
#pragma unroll
        for (u32 i = 0; i < M; i++) {
#pragma unroll
            for (u32 j = 0; j < 2 * N; j++) {
                u32 r = tile.first_row + row + 16 * i + lane / 4, c = tile.first_column + column + 8 * j + lane % 4 * 2;
                const float(&x)[4] = sums[i][j];
                put_pair<VECTOR>(tile, r, c, alpha * x[0], alpha * x[1], accumulate);
                put_pair<VECTOR>(tile, r + 8, c, alpha * x[2], alpha * x[3], accumulate);
            }
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

template <Product PRODUCT, class S, bool VECTOR, class Out>
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

template <Product PRODUCT, class S, class T, class Out, bool VECTOR> void grouped_gemm(const GroupedGemm& op) {
    __shared__ u32 first_tile[EXPERTS + 1];
    if (PRODUCT != WEIGHT_GRADIENT) count_tiles(op, first_tile);
    u32 count = tile_count<PRODUCT, S>(op, first_tile);
    for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
        Tile<T, Out> tile = tile_of<PRODUCT, S, T, Out>(op, first_tile, number);
        // The gradient of an expert without rows is 0.
        if (op.accumulate && tile.inner == 0) continue;
        multiply_tile<PRODUCT, S, VECTOR>(tile, op.alpha, op.accumulate);
    }
}

#define GROUPED(PRODUCT, S, T, Out, VECTOR, name)                            \
    KERNEL(__launch_bounds__(256, 2) grouped_##name)(const GroupedGemm op) { \
        begin_kernel();                                                      \
        grouped_gemm<PRODUCT, S, T, Out, VECTOR>(op);                        \
    }
#define GROUPED_PRODUCTS(T, VECTOR, suffix)                                  \
    GROUPED(FORWARD, Wide, T, T, VECTOR, forward_##suffix)                   \
    GROUPED(INPUT_GRADIENT, Wide, T, T, VECTOR, input_gradient_##suffix)     \
    GROUPED(WEIGHT_GRADIENT, Wide, T, float, VECTOR, weight_gradient_##suffix)
GROUPED_PRODUCTS(bf16, true, bf16)
GROUPED_PRODUCTS(bf16, false, bf16_scalar)
GROUPED_PRODUCTS(float, false, f32)
GROUPED(FORWARD, ThinColumns, bf16, bf16, true, forward_thin_columns)
GROUPED(INPUT_GRADIENT, ThinColumns, bf16, bf16, true, input_gradient_thin_columns)
GROUPED(WEIGHT_GRADIENT, ThinColumns, bf16, float, true, weight_gradient_thin_columns)
GROUPED(WEIGHT_GRADIENT, ThinRows, bf16, float, true, weight_gradient_thin_rows)
