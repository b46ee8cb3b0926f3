// Two 8-bit copies in one pass: one in the matrix's own layout with a scale for each row, made here, and a transposed
// one with a given scale for the whole matrix. On the way the largest magnitude and column sums.
// Every input is read once, every value computed once and every copy written once.
//
// A row's scale needs its largest magnitude before the first byte is written, so rows stay in registers. A cluster of
// blocks shares rows: each warp has 128 columns of all rows of a step, each thread 4. A warp computes its values, starts to
// copy the inputs of its next step to shared memory, and tells all blocks of the cluster the largest magnitude of each
// row. Meanwhile it makes the bytes of the transposed copy. Then it waits for the magnitudes of the other warps and writes
// the rows. Warps meet nowhere else: a barrier of the cluster would wait for all that was written.
//
// The bytes of the transposed copy wait in shared memory until there are many of each column: small pieces are slow to
// write. Neighbouring pieces belong to neighbouring clusters, so that the lines of memory that they share are soon whole.
//
// A block has one or two groups of warps for the same columns, with rows of their own. A group computes while another one
// waits. They meet to write a piece.
#include "cluster.cuh"
#include "quantize.cuh"

const int COLUMNS = 4; // of a thread
const int WARP_COLUMNS = 32 * COLUMNS;

// The unit of writes to the transposed copy: 16 rows of a column.
typedef uint4 Part;

// Inputs (warp), parts of the transposed copy (warp of a group), largest magnitudes of rows (group, 3, row) and of the
// rows of a warp (warp, row).
extern __shared__ uint4 memory[];

template <class S, class T> struct Sizes {
    static constexpr int ROWS = 16 / S::OUTPUTS;                        // of a step and group
    static constexpr int LINE = WARP_COLUMNS * sizeof(T) / 16;          // 16 bytes of a row's inputs
    static constexpr int INPUTS = S::LOADS * ROWS * LINE;               // of a warp, in 16 bytes
    static constexpr int PIECE = S::OUTPUTS == 1 ? 64 : 32;             // rows
    static constexpr int PARTS = PIECE / 16;
    static constexpr int STAGED = S::OUTPUTS * PARTS * WARP_COLUMNS;    // parts of a warp
};

// Starts to copy a warp's inputs of a step.
template <class S, class T> void fetch_step(const Quantize& q, uint4* inputs, u32 row, u32 first_column) {
    using Z = Sizes<S, T>;
    const u32 lane = threadIdx.x % 32, column = first_column + lane % Z::LINE * (16 / sizeof(T));
    if (column < q.width) {
#pragma unroll
        for (int l = 0; l < S::LOADS; l++) {
            const T* from = (const T*)S::matrix(q, l) + S::at(q, row + lane / Z::LINE, column, l);
            const u64 stride = (S::at(q, 1, 0, l) - S::at(q, 0, 0, l)) * (32 / Z::LINE);
#pragma unroll
            for (int i = 0; i < Z::ROWS * Z::LINE / 32; i++) {
                copy_ahead(inputs + l * Z::ROWS * Z::LINE + i * 32 + lane, from);
                from += stride;
            }
        }
    }
    end_copies();
}

// Four columns of a row of a step, as they were copied.
template <class S, class T> void load_row(const uint4* inputs, int r, float (&x)[S::LOADS][COLUMNS]) {
    const T* from = reinterpret_cast<const T*>(inputs) + threadIdx.x % 32 * COLUMNS;
#pragma unroll
    for (int l = 0; l < S::LOADS; l++) load<COLUMNS>(from + (l * Sizes<S, T>::ROWS + r) * WARP_COLUMNS, x[l]);
}

// The place of a part. Neither the writes, the columns with the same `at % 32` beside each other, nor the reads, all
// parts of a column, meet in a bank.
template <class S, class T> u32 place_of(int output, u32 part, u32 at) {
    using Z = Sizes<S, T>;
    return (output * Z::PARTS + part) * WARP_COLUMNS + (at ^ part * (8 / Z::PARTS));
}

// Bytes of the transposed copy, `row` rows from the start of a piece.
template <class S, class T, bool E5M2>
void stage_columns(const float (&x)[Sizes<S, T>::ROWS][S::OUTPUTS][COLUMNS], float inverse, Part* staged, u32 row) {
    constexpr int WORDS = Sizes<S, T>::ROWS / 4;
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int o = 0; o < S::OUTPUTS; o++) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            u32 words[WORDS];
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                words[w] = pack_f8x4<E5M2>(scaled(x[4 * w][o][i], inverse), scaled(x[4 * w + 1][o][i], inverse),
                                           scaled(x[4 * w + 2][o][i], inverse), scaled(x[4 * w + 3][o][i], inverse));
            }
            Part* to = staged + place_of<S, T>(o, row / 16, i * 32 + lane);
            if constexpr (WORDS == 4) *to = make_uint4(words[0], words[1], words[2], words[3]);
            else reinterpret_cast<uint2*>(to)[row / 8 % 2] = make_uint2(words[0], words[1]);
        }
    }
}

// Writes the rows from `begin` to `end` of a warp's columns, all of one piece. The groups share them.
template <class S, class T>
void store_piece(const Quantize& q, const Part* staged, u32 begin, u32 end, u32 first_column, u32 group) {
    using Z = Sizes<S, T>;
    const u32 lane = threadIdx.x % 32, part = lane % Z::PARTS, row = begin / Z::PIECE * Z::PIECE + part * 16;
    const bool inside = row >= begin && row < end;
#pragma unroll
    for (int o = 0; o < S::OUTPUTS; o++) {
#pragma unroll 4
        for (u32 i = group; i < WARP_COLUMNS * Z::PARTS / 32; i += q.groups) {
            u32 at = (i * 32 + lane) / Z::PARTS, column = first_column + at % 32 * COLUMNS + at / 32;
            Part words = staged[place_of<S, T>(o, part, at)];
            if (inside && column < q.width) {
                *reinterpret_cast<Part*>(q.columns_out + (o * (u64)q.width + column) * q.rows + row) = words;
            }
        }
    }
}

// Bytes of the row copy. Lane r has the factor of row r. With that no finite number becomes infinite.
template <class S, class T, bool E5M2>
void store_rows(const Quantize& q, const float (&x)[Sizes<S, T>::ROWS][S::OUTPUTS][COLUMNS], float inverse, u32 row,
                u32 column) {
    u8* to = q.rows_out + (u64)row * S::OUTPUTS * q.width + column;
#pragma unroll
    for (int r = 0; r < Sizes<S, T>::ROWS; r++) {
        float by = __shfl_sync(0xffffffffu, inverse, r);
#pragma unroll
        for (int o = 0; o < S::OUTPUTS; o++) {
            u32 word = pack_f8x4<E5M2>(x[r][o][0] * by, x[r][o][1] * by, x[r][o][2] * by, x[r][o][3] * by);
            if (column < q.width) *reinterpret_cast<u32*>(to) = word;
            to += q.width;
        }
    }
}

// The rows of a cluster: pieces in turn with the other clusters, then an even share of the rest. `height` is that of a
// step of all groups.
struct Share {
    u32 clusters, piece, height, in_turn, rest, end, first;

    Share(u32 rows, u32 piece, u32 height, u32 slice, u32 cluster, u32 clusters)
        : clusters(clusters), piece(piece), height(height) {
        in_turn = rows / (piece * clusters) * piece * clusters;
        u32 slices = (rows - in_turn) / slice;
        rest = in_turn + slices * cluster / clusters * slice, end = in_turn + slices * (cluster + 1) / clusters * slice;
        first = in_turn == 0 ? rest : cluster * piece;
    }
    // Whether the step that starts at `row` ends a piece, or all.
    bool ends_piece(u32 row) const { return (row + height) % piece == 0 || row + height == end; }
    u32 after(u32 row) const {
        u32 next = row + height;
        if (row >= in_turn || next % piece != 0) return next;
        next += (clusters - 1) * piece;
        return next < in_turn ? next : rest;
    }
};

template <class S, class T> void quantize_both(const Quantize& q) {
    using Z = Sizes<S, T>;
    constexpr int ROWS = Z::ROWS, OUTPUTS = S::OUTPUTS;
    const u32 blocks = cluster_blocks(), rank = cluster_rank(), cluster = blockIdx.x / blocks;
    const u32 lane = threadIdx.x % 32, any_warp = threadIdx.x / 32, warps = blockDim.x / 32 / q.groups;
    const u32 warp = any_warp % warps, group = any_warp / warps, of_group = group * ROWS;
    const u32 first_column = (rank * warps + warp) * WARP_COLUMNS, column = first_column + lane * COLUMNS;
    const bool in_width = column < q.width;

    uint4* inputs = memory + any_warp * Z::INPUTS;
    Part* staged = memory + warps * q.groups * Z::INPUTS + warp * Z::STAGED;
    u32* all_peaks = reinterpret_cast<u32*>(memory + warps * (q.groups * Z::INPUTS + Z::STAGED));
    u32 *peaks = all_peaks + group * 3 * ROWS, *of_warp = all_peaks + (q.groups * 3 + any_warp) * ROWS;
    __shared__ Arrivals all_arrivals[2][2];
    Arrivals* arrivals = all_arrivals[group];

    const Share share(q.rows, Z::PIECE, ROWS * q.groups, 16 * q.groups, cluster, gridDim.x / blocks);
    if (share.first < share.end) fetch_step<S, T>(q, inputs, share.first + of_group, first_column);
    if (warp == 0) {
        for (u32 i = lane; i < 3 * ROWS; i += 32) peaks[i] = 0;
        if (lane < 2) start_arrivals(arrivals + lane);
    }
    __syncwarp();
    cluster_meet();

    const float columns_inverse = inverse_of(*q.columns_scale), most = q.rows_e5m2 ? 57344.0f : 448.0f;
    ColumnValues<S::NORM, COLUMNS> of_columns;
    // Lane r has those of row r.
    RowValues<S::NORM> of_rows, next_of_rows;
    if constexpr (S::NORM) {
        if (in_width) {
            load<COLUMNS>((const T*)q.weight + column, of_columns.weight);
            offset_weight(q, of_columns.weight);
            if (q.bias) load<COLUMNS>((const T*)q.bias + column, of_columns.bias);
        }
    }
    if (share.first < share.end) next_of_rows = fetch_row<S>(q, share.first + of_group + lane % ROWS);
    float total[OUTPUTS][COLUMNS] = {};
    u32 peak_of_all = 0, piece_begin = share.first, step = 0;

#pragma unroll 1
    for (u32 first_row = share.first, next; first_row < share.end; first_row = next, step++) {
        next = share.after(first_row);
        const u32 row = first_row + of_group;
        of_rows = next_of_rows;
        if (next < share.end) next_of_rows = fetch_row<S>(q, next + of_group + lane % ROWS);
        wait_for_copies(0);
        __syncwarp();
        float x[ROWS][OUTPUTS][COLUMNS];
#pragma unroll
        for (int quad = 0; quad < ROWS; quad += 4) {
            u32 found[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int r = quad + k;
                RowValues<S::NORM> of_row;
                if constexpr (S::NORM) {
                    of_row.mean = __shfl_sync(0xffffffffu, of_rows.mean, r);
                    of_row.rstd = __shfl_sync(0xffffffffu, of_rows.rstd, r);
                    of_row.inside = true;
                }
                float in[S::LOADS][COLUMNS], peak = 0.0f;
                load_row<S, T>(inputs, r, in);
                compute_values<S, COLUMNS>(in, of_row, of_columns, x[r]);
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
                    for (int i = 0; i < COLUMNS; i++) {
                        peak = larger(peak, fabsf(x[r][o][i]));
                        total[o][i] += x[r][o][i];
                    }
                }
                found[k] = __reduce_max_sync(0xffffffffu, in_width ? __float_as_uint(peak) : 0);
            }
            if (lane == 0) *reinterpret_cast<uint4*>(of_warp + quad) = make_uint4(found[0], found[1], found[2], found[3]);
        }
        __syncwarp();
        if (next < share.end) fetch_step<S, T>(q, inputs, next + of_group, first_column);

        // A warp raises the peaks of this step only after it has waited for the step before. So all warps have read the
        // peaks of two steps before, and none raises those of the next step yet. Their place is made ready here.
        u32* of_step = peaks + step % 3 * ROWS;
        Arrivals* of_parity = arrivals + step % 2;
        if (warp == 0) {
            if (lane == 0) expect_bytes(of_parity, blocks * warps * ROWS * 4);
            if (lane < ROWS) peaks[(step + 1) % 3 * ROWS + lane] = 0;
        }
        __syncwarp();
        for (u32 block = lane / ROWS; block < blocks; block += 32 / ROWS) {
            raise_in_block(of_step + lane % ROWS, of_parity, block, of_warp[lane % ROWS]);
        }

        if (q.columns_e5m2) stage_columns<S, T, true>(x, columns_inverse, staged, row % Z::PIECE);
        else stage_columns<S, T, false>(x, columns_inverse, staged, row % Z::PIECE);
        if (share.ends_piece(first_row)) {
            meet_warps(warp, q.groups);
            store_piece<S, T>(q, staged, piece_begin, first_row + share.height, first_column, group);
            meet_warps(warp, q.groups);
            piece_begin = next;
        }

        wait_for_bytes(of_parity, step / 2 % 2);
        __syncwarp();
        const u32 peak = of_step[lane % ROWS];
        peak_of_all = max(peak_of_all, peak);
        const float scale = scale_of(__uint_as_float(peak), most), inverse = 1.0f / scale;
        if (rank == 0 && warp == 0 && lane < ROWS) q.rows_scale[row + lane] = scale;
        if (q.rows_e5m2) store_rows<S, T, true>(q, x, inverse, row, column);
        else store_rows<S, T, false>(q, x, inverse, row, column);
    }

    if (q.partial && in_width) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            u64 at = ((u64)(cluster * q.groups + group) * OUTPUTS + o) * q.width + column;
            store_f32<COLUMNS>(q.partial + at, total[o]);
        }
    }
    // The largest of all clusters, whatever their order. Few of them are larger than the stored value.
    if (q.amax && rank == 0 && warp == 0 && peak_of_all > *(volatile u32*)q.amax) atomicMax(q.amax, peak_of_all);
}

// A thread has 128 registers.
#define QUANTIZE_BOTH_true(S, name, T, suffix)                                                              \
    extern "C" __global__ void __launch_bounds__(512, 1) quantize_both_##name##_##suffix(Quantize q) {      \
        begin_kernel();                                                                                     \
        quantize_both<S, T>(q);                                                                             \
    }
// Odd sizes and addresses take two passes.
#define QUANTIZE_BOTH_false(S, name, T, suffix)
#define QUANTIZE_BOTH(S, name, T, VECTOR, suffix) QUANTIZE_BOTH_##VECTOR(S, name, T, suffix)
FOR_EACH_SOURCE(QUANTIZE_BOTH)
