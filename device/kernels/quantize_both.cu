// Two 8-bit copies in one pass: one in the matrix's own layout with a scale for each row, which is made here, and a
// transposed one with a scale for the whole matrix, which is given. On the way the largest magnitude and column sums.
// Every input is read once and every copy written once.
//
// A row's scale needs its largest magnitude before the first byte is written, so a row stays in registers. A cluster of
// blocks has 32 rows, each block some of their columns, each thread 4 rows by 8 columns at a time. In a step all threads
// compute their values, the blocks tell each other what they found in each row, and meet at a barrier of the cluster.
// Meanwhile they make the bytes of the transposed copy, which wait in shared memory until there are 32 of each column:
// a whole sector. The inputs of later steps are copied to shared memory all the while.
#include "quantize.cuh"
#include "transpose.cuh"

const int GROUP = 32;       // rows of a cluster
const int QUADS = GROUP / 4; // of 4 rows

// Inputs on their way (step, slot, thread), words of the transposed copy (output, quad of rows, half, lane), largest
// magnitudes (2, row of a step, part of a row).
extern __shared__ uint4 memory[];

// ---- Clusters: compute capability 9.0. The host starts these kernels nowhere else ---------------------------------

inline u32 cluster_rank() {
    u32 rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

inline u32 cluster_blocks() {
    u32 blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}

// All threads of all blocks arrive, then wait. What was written before the arrival is seen after the wait. The threads of
// a warp come together.
inline void cluster_arrive() {
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
inline void cluster_wait() {
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Stores to the place in another block that is `here` in this one.
inline void store_in_block(u32* here, u32 block, u32 x) {
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"((u32)__cvta_generic_to_shared(here)), "r"(block));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(x) : "memory");
#endif
}

// ---- The kernel ---------------------------------------------------------------------------------------------------

// Where a thread works.
struct Place {
    u32 lane, quad, quads; // along the columns; of 4 rows in a step
    u32 column;            // the first of 8
    u64 first_row;         // of the cluster

    u64 row(u32 step) const { return first_row + (step * quads + quad) * 4; }
};

// Starts to copy the inputs of a step to this thread's slots, and ends a group. Each thread reads only what it has
// copied itself.
template <class S, class T> void fetch_step(const Quantize& q, const Place& place, u32 step) {
    constexpr int WORDS = Pack<T, S::LOADS>::WORDS, SLOTS = 4 * S::LOADS * WORDS;
    if (step < QUADS / place.quads && place.column < q.width) {
        uint4* slot = memory + (step & (q.ahead - 1)) * SLOTS * blockDim.x + threadIdx.x;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            u64 row = place.row(step) + r;
            if (row >= q.rows) continue;
#pragma unroll
            for (int l = 0; l < S::LOADS; l++) {
                const T* from = (const T*)S::matrix(q, l) + S::at(q, row, place.column, l);
#pragma unroll
                for (int w = 0; w < WORDS; w++) {
                    copy_ahead(slot + ((r * S::LOADS + l) * WORDS + w) * blockDim.x, (const uint4*)from + w);
                }
            }
        }
    }
    end_copies();
}

// Row `r` of a step, as it was copied.
template <class S, class T> Pack<T, S::LOADS> fetched_pack(const Quantize& q, u32 step, int r) {
    constexpr int WORDS = Pack<T, S::LOADS>::WORDS, SLOTS = 4 * S::LOADS * WORDS;
    const uint4* slot = memory + (step & (q.ahead - 1)) * SLOTS * blockDim.x + threadIdx.x;
    Pack<T, S::LOADS> pack;
#pragma unroll
    for (int l = 0; l < S::LOADS; l++) {
#pragma unroll
        for (int w = 0; w < WORDS; w++) pack.words[l][w] = slot[((r * S::LOADS + l) * WORDS + w) * blockDim.x];
    }
    return pack;
}

// Where the words of 4 rows lie, of the 4 columns of a half of a lane. Neither the writes, a quad of all lanes, nor the
// reads, two quads 4 apart of 4 lanes, meet in a bank.
inline u32 word_at(int output, u32 quad, int half, u32 lane, u32 lanes) {
    return ((output * QUADS + quad) * 2 + half) * lanes + (lane ^ quad / 4 * 4);
}

template <class S, class T> void quantize_both(const Quantize& q) {
    constexpr int OUTPUTS = S::OUTPUTS, SLOTS = 4 * S::LOADS * Pack<T, S::LOADS>::WORDS;
    const u32 lanes = q.lanes, blocks = cluster_blocks(), rank = cluster_rank();
    const u32 warp_lane = threadIdx.x % 32;
    Place place;
    place.lane = threadIdx.x % lanes, place.quad = threadIdx.x / lanes, place.quads = blockDim.x / lanes;
    place.column = (rank * lanes + place.lane) * 8, place.first_row = (u64)(blockIdx.x / blocks) * GROUP;
    const u32 column = place.column, steps = QUADS / place.quads;
    const bool in_width = column < q.width;
    // Every warp has a part of a row.
    const u32 warps = lanes / 32, parts = blocks * warps, part = rank * warps + place.lane / 32;
    uint4* words = memory + q.ahead * SLOTS * blockDim.x;
    u32* peaks = reinterpret_cast<u32*>(words + OUTPUTS * QUADS * 2 * lanes);

    for (u32 step = 0; step < q.ahead; step++) fetch_step<S, T>(q, place, step);
    // No block may write to another one before that has started.
    cluster_arrive();
    const float columns_inverse = inverse_of(*q.columns_scale), most = q.rows_e5m2 ? 57344.0f : 448.0f;
    const auto of_columns = fetch_columns<S, T, true>(q, column);
    RowValues<S::NORM> of_row[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        if (place.row(0) + r < q.rows) of_row[r] = fetch_row<S>(q, place.row(0) + r);
    }
    float total[OUTPUTS][8] = {};
    u32 peak_of_all = 0;
    cluster_wait();

#pragma unroll 1
    for (u32 step = 0; step < steps; step++) {
        const u64 row = place.row(step);
        if (q.ahead == 2) wait_for_copies(1);
        else wait_for_copies(0);
        float x[4][OUTPUTS][8];
        u32 peak[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            bool inside = in_width && row + r < q.rows;
            Pack<T, S::LOADS> pack = {};
            if (inside) pack = fetched_pack<S, T>(q, step, r);
            evaluate<S, T>(pack, of_row[r], of_columns, x[r]);
            peak[r] = 0;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
                for (int i = 0; i < 8; i++) peak[r] = max(peak[r], magnitude(x[r][o][i]));
            }
            peak[r] = __reduce_max_sync(0xffffffffu, peak[r]);
        }
        fetch_step<S, T>(q, place, step + q.ahead);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            u64 next = place.row(step + 1) + r;
            of_row[r] = step + 1 < steps && next < q.rows ? fetch_row<S>(q, next) : RowValues<S::NORM>{};
        }

        // Eight lanes tell of a row to up to eight blocks. Who reads the magnitudes of this step is done before any block
        // writes those of the step after next, since all meet in between.
        u32* of_step = peaks + (step % 2 * place.quads + place.quad) * 4 * parts;
        u32 told_row = warp_lane / 8, told_block = warp_lane % 8;
        u32 told = told_row == 0 ? peak[0] : told_row == 1 ? peak[1] : told_row == 2 ? peak[2] : peak[3];
        if (told_block < blocks) store_in_block(of_step + told_row * parts + part, told_block, told);
        cluster_arrive();

        if (q.partial) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
#pragma unroll
                    for (int r = 0; r < 4; r++) total[o][i] += x[r][o][i];
                }
            }
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            u32 bytes[2][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint2 eight = quantized(x[r][o], columns_inverse, q.columns_e5m2);
                bytes[0][r] = eight.x, bytes[1][r] = eight.y;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 of_column[4];
                transpose(bytes[half], of_column);
                words[word_at(o, step * place.quads + place.quad, half, place.lane, lanes)] =
                    make_uint4(of_column[0], of_column[1], of_column[2], of_column[3]);
            }
        }
        cluster_wait();

        // Divisions are slow: a lane has one row's.
        u32 mine = 0;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            u32 largest = 0;
            for (u32 i = warp_lane; i < parts; i += 32) largest = max(largest, of_step[r * parts + i]);
            largest = __reduce_max_sync(0xffffffffu, largest);
            peak_of_all = max(peak_of_all, largest);
            if (warp_lane % 4 == r) mine = largest;
        }
        float scale = scale_of(__uint_as_float(mine), most), inverse = 1.0f / scale;
        if (rank == 0 && place.lane < 4 && row + place.lane < q.rows) q.rows_scale[row + place.lane] = scale;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float inverse_of_row = __shfl_sync(0xffffffffu, inverse, r);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                uint2 eight = quantized(x[r][o], inverse_of_row, q.rows_e5m2);
                if (in_width && row + r < q.rows) store_row<S, true>(q, row + r, column, o, eight);
            }
        }
    }

    // The inputs' memory is free: the sums of the second quad wait there for those of the first.
    float* sums = reinterpret_cast<float*>(memory);
    if (q.partial && place.quad == 1) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
#pragma unroll
            for (int i = 0; i < 8; i++) sums[(o * 8 + i) * lanes + place.lane] = total[o][i];
        }
    }
    __syncthreads();
    if (q.partial && place.quad == 0 && in_width) {
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            if (place.quads == 2) {
#pragma unroll
                for (int i = 0; i < 8; i++) total[o][i] += sums[(o * 8 + i) * lanes + place.lane];
            }
            store_f32<8>(q.partial + ((u64)(blockIdx.x / blocks) * OUTPUTS + o) * q.width + column, total[o]);
        }
    }
    // Sixteen rows of four columns a thread; two threads have a whole sector of each.
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        for (u32 at = threadIdx.x; at < 4 * lanes; at += blockDim.x) {
            u32 piece = at % 2, lane = at / 2 % lanes, half = at / 2 / lanes;
            uint4 quad[4];
#pragma unroll
            for (int k = 0; k < 4; k++) quad[k] = words[word_at(o, piece * 4 + k, half, lane, lanes)];
            u64 to_column = (u64)(rank * lanes + lane) * 8 + half * 4, to_row = place.first_row + piece * 16;
            // The number of rows is a multiple of 16, that of columns of 8.
            if (to_column >= q.width || to_row >= q.rows) continue;
            u8* to = q.columns_out + (o * (u64)q.width + to_column) * q.rows + to_row;
            *reinterpret_cast<uint4*>(to) = make_uint4(quad[0].x, quad[1].x, quad[2].x, quad[3].x);
            *reinterpret_cast<uint4*>(to + q.rows) = make_uint4(quad[0].y, quad[1].y, quad[2].y, quad[3].y);
            *reinterpret_cast<uint4*>(to + 2ull * q.rows) = make_uint4(quad[0].z, quad[1].z, quad[2].z, quad[3].z);
            *reinterpret_cast<uint4*>(to + 3ull * q.rows) = make_uint4(quad[0].w, quad[1].w, quad[2].w, quad[3].w);
        }
    }
    // The largest of all clusters, whatever their order. Few of them are larger than what is there.
    if (q.amax && rank == 0 && place.lane == 0) {
        if (peak_of_all > *(volatile u32*)q.amax) atomicMax(q.amax, peak_of_all);
    }
}

// Threads of a block, and blocks that a multiprocessor has registers for. Two outputs keep twice the values.
#define QUANTIZE_BOTH_true(S, name, T, suffix)                                              \
    extern "C" __global__ void __launch_bounds__(S::OUTPUTS == 2 ? 512 : 256, 3 - S::OUTPUTS) \
    quantize_both_##name##_##suffix(Quantize q) {                                             \
        quantize_both<S, T>(q);                                                               \
    }
// Odd sizes and addresses take two passes.
#define QUANTIZE_BOTH_false(S, name, T, suffix)
#define QUANTIZE_BOTH(S, name, T, VECTOR, suffix) QUANTIZE_BOTH_##VECTOR(S, name, T, suffix)
FOR_EACH_SOURCE(QUANTIZE_BOTH)
