// Products of the rows of each expert with a matrix of its own, for GPUs of compute capability 9.0: of factors in bf16 or
// 8 bits, with sums in f32. The other GPUs and sizes have grouped_gemm.cu. Rows are sorted by expert. Expert e has rows offsets[e] to
// offsets[e + 1], known to the device alone. Rows behind offsets[experts] are neither read nor written.
//
//     forward         out (R, N) = x (R, K) @ w[e] (N, K)^T
//     input gradient  out (R, K) = dy (R, N) @ w[e] (N, K)
//     weight gradient dw[e] (N, K) (+)= dy^T @ x over the expert's rows, f32
//
// Factors in 8 bits are read along the sum: so an input gradient gets the transposed matrix, and is a forward. Sums of 8
// bits have about 14 bits until a product is over. There are no weight gradients of factors in 8 bits. N and K are
// multiples of 64, of 8-bit factors of 16. A tile is 128 x 256. In a block one thread loads by TMA, and two warpgroups multiply 64
// rows each. A pair of blocks has two tiles, one below the other: each block loads half of the common columns for both.
// There are no atomics and no split sums, so every run gives the same bits.
//
// The launch: 384 threads, SHARED_BYTES, as many blocks as multiprocessors, in clusters of 2 for a pair.
#include "hopper.cuh"

// Experts at most; `EXPERTS` in `device/src/ops/trainer/experts/kernels.rs`.
const u32 EXPERTS = 512;
const u32 THREADS = 384, TILE_M = 128, TILE_N = 256, GROUP_M = 64;
// Boxes are in stages, or on their way to memory.
const u32 BOXES = 28, STAGE_BOXES = 24, A_BOXES = 2, B_BOXES = TILE_N / 64;
const u32 STAGES = STAGE_BOXES / (A_BOXES + B_BOXES), STAGE_BYTES = (A_BOXES + B_BOXES) * BOX_BYTES;
const u32 BARRIERS = BOXES * BOX_BYTES, OFFSETS = BARRIERS + 128;
// `SHARED` in `device/src/ops/trainer/experts/grouped_gemm/launch/hopper.rs`.
const u32 SHARED_BYTES = OFFSETS + (EXPERTS + 1) * 4;
static_assert(SHARED_BYTES <= 227 * 1024, "shared memory");
// A group of threads puts one box to memory at a time, from a ring of boxes of its own.
const u32 RING = (BOXES - STAGE_BOXES) / 2;
// Tiles of rows that are walked together: what they read stays in the L2 cache.
const u32 TOGETHER = 16;

struct GroupedHopper {
    // Maps of the factors and of the result. Those with rows of experts that are clipped at an expert's end are ragged:
    // the result with rows, and both factors of a weight gradient.
    TensorMap a, b, out;
    const u32* offsets; // (experts + 1)
    const float* scales[2]; // of factors in 8 bits
    u32 experts;
    u32 height; // of an expert's matrix, for a weight gradient
    u32 width;  // columns of the result
    u32 steps;  // of a sum, but for a weight gradient
};

enum Product { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, WEIGHT_GRADIENT_ADD };

// ---- Which tiles a block or pair of blocks computes -----------------------------------------------------------------

struct Tile {
    // The expert's rows.
    u32 expert, start, rows;
    // Of tiles of a pair, not of elements.
    u32 row, column;
};

// The number of a tile in a round. Every other round goes backwards: where tiles shrink from round to round, the pair
// that had the longest then has the shortest.
inline u32 tile_number(u32 round, u32 pair, u32 pairs) {
    return round * pairs + (round % 2 ? pairs - 1 - pair : pair);
}

// Place i of rows x columns.
inline void place_in_grid(u32 i, u32 rows, u32 columns, u32 together, Tile& tile) {
    u32 first = i / (together * columns) * together, within = i - first * columns;
    u32 rows_here = min(rows - first, together);
    tile.row = first + within % rows_here, tile.column = within / rows_here;
}

// Over tiles of the experts' rows.
template <u32 TILE_ROWS> struct RowWalk {
    const u32* offsets;
    u32 experts, columns;
    // The expert that is looked at, and the number of its first tile.
    u32 expert, first;

    // False after the last tile. Numbers come in ascending order.
    bool find(u32 number, Tile& tile) {
        for (; expert < experts; expert++) {
            u32 start = offsets[expert], rows = offsets[expert + 1] - start;
            u32 tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
            if (number - first < tiles * columns) {
                tile.expert = expert, tile.start = start, tile.rows = rows;
                place_in_grid(number - first, tiles, columns, TOGETHER * TILE_M / TILE_ROWS, tile);
                return true;
            }
            first += tiles * columns;
        }
        return false;
    }
};

// Over tiles of the experts' gradients, rows x columns of them for each expert. Experts with many rows come first.
template <u32 TILE_ROWS> struct GradientWalk {
    const u32* offsets;
    const u16* order;
    u32 experts, rows, columns;

    bool find(u32 number, Tile& tile) {
        u32 rank = number / (rows * columns);
        if (rank >= experts) return false;
        tile.expert = order[rank];
        tile.start = offsets[tile.expert], tile.rows = offsets[tile.expert + 1] - tile.start;
        place_in_grid(number - rank * rows * columns, rows, columns, TOGETHER * TILE_M / TILE_ROWS, tile);
        return true;
    }
};

// How many experts come before this one: those with more rows, and those with as many and a lower number.
inline u32 rank_of_expert(const u32* offsets, u32 experts, u32 expert) {
    u32 rows = offsets[expert + 1] - offsets[expert], rank = 0;
    for (u32 i = 0; i < experts; i++) {
        u32 others = offsets[i + 1] - offsets[i];
        rank += others > rows || (others == rows && i < expert);
    }
    return rank;
}

// ---- The product ----------------------------------------------------------------------------------------------------

template <Product PRODUCT, bool PAIRED, class A = bf16> void multiply_rows(const GroupedHopper& op, u8* dynamic) {
    constexpr bool WEIGHT = PRODUCT == WEIGHT_GRADIENT || PRODUCT == WEIGHT_GRADIENT_ADD;
    constexpr bool ADD = PRODUCT == WEIGHT_GRADIENT_ADD;
    constexpr bool B_ALONG_N = PRODUCT != FORWARD;
    // Values of a line of a box. A product takes 32 bytes of each.
    constexpr u32 STEP = 128 / sizeof(A);
    constexpr u32 BLOCKS = PAIRED ? 2 : 1, TILE_ROWS = BLOCKS * TILE_M;

    u32 stages = shared_address(dynamic), barriers = stages + BARRIERS;
    // A walk over rows reads the offsets often, a walk over gradients reads the order of the experts.
    u32* offsets = reinterpret_cast<u32*>(dynamic + OFFSETS);
    u16* order = reinterpret_cast<u16*>(dynamic + OFFSETS);
    auto full = [&](u32 stage) { return barriers + 8 * stage; };
    auto empty = [&](u32 stage) { return barriers + 8 * (STAGES + stage); };
    u32 rank = PAIRED ? cluster_rank() : 0, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        // The swizzle counts from multiples of 1024.
        if (stages % 1024 != 0) fail();
        // A stage is empty once both groups of all blocks have read it.
        for (u32 stage = 0; stage < STAGES; stage++)
            barrier_start(full(stage), 1), barrier_start(empty(stage), 2 * BLOCKS);
        barriers_started();
    }
    cluster_meet();
    for (u32 i = threadIdx.x; i < op.experts + !WEIGHT; i += THREADS)
        if (WEIGHT) order[rank_of_expert(op.offsets, op.experts, i)] = (u16)i;
        else offsets[i] = op.offsets[i];
    __syncthreads();

    u32 columns = (op.width + TILE_N - 1) / TILE_N;
    auto walk = [&] {
        if constexpr (WEIGHT) {
            u32 rows = (op.height + TILE_ROWS - 1) / TILE_ROWS;
            return GradientWalk<TILE_ROWS>{op.offsets, order, op.experts, rows, columns};
        } else {
            return RowWalk<TILE_ROWS>{offsets, op.experts, columns, 0, 0};
        }
    }();
    // The block's tile: its first row (of the segment, or of the gradient), its first column, and its steps.
    auto first_row = [&](const Tile& tile) { return (tile.row * BLOCKS + rank) * TILE_M; };
    auto steps_of = [&](const Tile& tile) { return WEIGHT ? (tile.rows + STEP - 1) / STEP : op.steps; };
    // The gradient of an expert without rows is 0, and stays as it is if it accumulates.
    auto is_skipped = [&](u32 steps) { return ADD && steps == 0; };
    u32 pair = blockIdx.x / BLOCKS, pairs = gridDim.x / BLOCKS;
    u32 stage = 0;
    Tile tile;

    if (group == 2) {
        keep_registers<40>();
        u32 phase = 1;
        for (u32 round = 0; warp == 8 && walk.find(tile_number(round, pair, pairs), tile); round++) {
            u32 m = first_row(tile), n = tile.column * TILE_N, steps = steps_of(tile);
            for (u32 k = 0; lane == 0 && k < steps; k++) {
                barrier_wait(empty(stage), phase);
                u32 a = stages + stage * STAGE_BYTES, b = a + A_BOXES * BOX_BYTES, done = full(stage);
                barrier_expect(done, STAGE_BYTES);
#pragma unroll
                for (u32 i = 0; i < A_BOXES; i++) {
                    u32 to = a + i * BOX_BYTES, at = m + i * 64;
                    if (WEIGHT) load_ragged_box<false>(to, &op.a, at, tile.start, tile.rows, k * STEP, done);
                    else load_box<false>(to, &op.a, k * STEP, tile.start + at, done);
                }
#pragma unroll
                for (u32 i = 0; i < B_BOXES / BLOCKS; i++) {
                    u32 box = rank * (B_BOXES / BLOCKS) + i, to = b + box * BOX_BYTES, at = n + box * 64;
                    if (WEIGHT) load_ragged_box<PAIRED>(to, &op.b, at, tile.start, tile.rows, k * STEP, done);
                    else if (B_ALONG_N) load_box<PAIRED>(to, &op.b, at, k * STEP, tile.expert, done);
                    else load_box<PAIRED>(to, &op.b, k * STEP, at, tile.expert, done);
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            // Earlier sums, three columns of boxes a stage: of 64 rows of each group, and 32 columns.
            for (u32 c = 0; ADD && lane == 0 && steps > 0 && c < TILE_N / 32; c += 3) {
                u32 boxes = min(3u, TILE_N / 32 - c) * 2;
                barrier_wait(empty(stage), phase);
                barrier_expect(full(stage), boxes * BOX_BYTES);
                for (u32 i = 0; i < boxes; i++)
                    load_box<false>(stages + stage * STAGE_BYTES + i * BOX_BYTES, &op.out, n + (c + i / 2) * 32,
                                    m + i % 2 * GROUP_M, tile.expert, full(stage));
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            __syncwarp();
        }
    } else {
        take_registers<232>();
        // d[4 j + 2 h + e] is row `row + 8 h`, column 8 j + 2 (lane % 4) + e of the warp's 16 rows.
        float d[TILE_N / 2];
        u32 phase = 0, row = lane / 4, of_group = threadIdx.x % 128, ring = 0;
        auto release = [&](u32 stage) {
            if (!PAIRED && of_group == 0) barrier_arrive_here(empty(stage));
            if (PAIRED && of_group < 2) barrier_arrive(empty(stage), of_group);
        };
        auto advance = [&] {
            if (++stage == STAGES) stage = 0, phase ^= 1;
        };
        for (u32 round = 0; walk.find(tile_number(round, pair, pairs), tile); round++) {
            // Of the group.
            u32 m = first_row(tile) + group * GROUP_M, n = tile.column * TILE_N, steps = steps_of(tile), last = 0;
            // A group without a row of the segment does not multiply.
            if (!WEIGHT && m >= tile.rows) {
                for (u32 k = 0; k < steps; k++) barrier_wait(full(stage), phase), release(stage), advance();
                continue;
            }
            if (is_skipped(steps)) continue;
            for (u32 k = 0; k < steps; k++) {
                barrier_wait(full(stage), phase);
                u32 here = stages + stage * STAGE_BYTES, a = here + group * BOX_BYTES, b = here + A_BOXES * BOX_BYTES;
                u64 of_a = descriptor(a, WEIGHT ? BOX_BYTES : 16), of_b = descriptor(b, B_ALONG_N ? BOX_BYTES : 16);
                products_begin();
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    multiply<A, WEIGHT, B_ALONG_N>(d, of_a + (WEIGHT ? 128 : 2) * i, of_b + (B_ALONG_N ? 128 : 2) * i,
                                                (k | i) != 0);
                products_commit();
                if (k > 0) products_wait<1>(), release(last);
                last = stage;
                advance();
            }
            products_wait<0>();
            settle(d);
            if (steps > 0) release(last);
            // The box that is filled.
            u32 box = 0;
            auto begin_box = [&] {
                box = stages + (STAGE_BOXES + group * RING + ring) * BOX_BYTES;
                if (++ring == RING) ring = 0;
                if (of_group == 0) wait_until_stores_have_read<RING - 1>();
                meet_warps(group + 1, 4);
            };
            auto end_box = [&] {
                fence_async();
                meet_warps(group + 1, 4);
            };
            u32 line = warp % 4 * 16 + row;
            float scale = sizeof(A) == 1 ? *op.scales[0] * *op.scales[1] : 1.0f;
            if constexpr (WEIGHT) {
#pragma unroll
                for (u32 c = 0; c < TILE_N / 32; c++) {
                    u32 old = stages + stage * STAGE_BYTES + (c % 3 * 2 + group) * BOX_BYTES;
                    if (ADD && c % 3 == 0) barrier_wait(full(stage), phase);
                    begin_box();
#pragma unroll
                    for (u32 i = 0; i < 8; i++) {
                        u32 at = (line + i % 2 * 8) * 128 + lane % 2 * 8 + ((i / 2 * 2 + lane % 4 / 2) ^ row) * 16;
                        float2 sum = {d[16 * c + 2 * i], d[16 * c + 2 * i + 1]};
                        if (steps == 0) sum = {0, 0};
                        if (ADD) {
                            float2 before = load_shared_8(old + at);
                            sum.x += before.x, sum.y += before.y;
                        }
                        store_shared_8(box + at, sum);
                    }
                    end_box();
                    if (of_group == 0) store_box(&op.out, n + c * 32, m, tile.expert, box), end_stores();
                    if (ADD && (c % 3 == 2 || c == TILE_N / 32 - 1)) release(stage), advance();
                }
            } else {
#pragma unroll
                for (u32 c = 0; c < B_BOXES; c++) {
                    u32 column = n + c * 64;
                    if (column >= op.width) break;
                    begin_box();
#pragma unroll
                    for (u32 i = 0; i < 16; i++) {
                        u32 at = c * 32 + 2 * i, to = box + line * 128 + lane % 4 * 4;
                        store_shared(to + (i / 2 ^ row) * 16 + i % 2 * 1024,
                                     pack_bf16x2(d[at] * scale, d[at + 1] * scale));
                    }
                    end_box();
                    if (of_group == 0) store_ragged_box(&op.out, column, tile.start, tile.rows, m, box), end_stores();
                }
            }
        }
        if (of_group == 0) wait_until_stores_have_read<0>();
    }
    // The other block may still write to this one's shared memory, and arrive at its barriers.
    __syncwarp();
    cluster_meet();
}

#define GROUPED(name, ...)                                                                       \
    KERNEL(__launch_bounds__(THREADS, 1) name)(const __grid_constant__ GroupedHopper op) {       \
        begin_kernel();                                                                          \
        extern __shared__ __align__(1024) u8 dynamic[];                                          \
        multiply_rows<__VA_ARGS__>(op, dynamic);                                                 \
    }
GROUPED(hopper_forward, FORWARD, false)
GROUPED(hopper_forward_paired, FORWARD, true)
GROUPED(hopper_input_gradient, INPUT_GRADIENT, false)
GROUPED(hopper_input_gradient_paired, INPUT_GRADIENT, true)
GROUPED(hopper_weight_gradient_paired, WEIGHT_GRADIENT, true)
GROUPED(hopper_weight_gradient_add_paired, WEIGHT_GRADIENT_ADD, true)
GROUPED(hopper_e4m3, FORWARD, false, e4m3)
GROUPED(hopper_e4m3_paired, FORWARD, true, e4m3)
GROUPED(hopper_e5m2, FORWARD, false, e5m2)
GROUPED(hopper_e5m2_paired, FORWARD, true, e5m2)
