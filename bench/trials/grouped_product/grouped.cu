// Matrix products of experts for GPUs of compute capability 9.0, in bf16 with f32 sums. Rows are sorted by expert.
// Expert e has rows offsets[e] to offsets[e + 1], known to the device alone. Rows behind offsets[experts] are not used.
//
//     forward        out (R, N) = x (R, K) @ w[e] (N, K)^T
//     forward_swiglu pre (R, 2 F) = x (R, K) @ w[e] (2 F, K)^T; h (R, F) = silu(gate) * up * p
//     input          out (R, K) = dy (R, N) @ w[e] (N, K)
//     input_swiglu   dh (R, F) = dy (R, N) @ w[e] (N, F), not stored; from it and `pre`: d_pre (R, 2 F), h again, and
//                    the gradient of p in parts of 128 columns, (R, ceil(F / 128))
//     weight         dw[e] (N, K) (+)= dy^T @ x over the expert's rows, f32
//
// N, K and F are multiples of 64. A tile is 128 x 256 or 128 x 128. In a block one thread loads by TMA, and two
// warpgroups multiply 64 rows each. A cluster of two blocks has two tiles: one below the other (ROWS: each block loads
// half of the common columns for both) or side by side (COLUMNS: half of the common rows). There are no atomics and no
// split sums, so every run gives the same bits.
//
// The launch: 384 threads, SHARED_BYTES, as many blocks as multiprocessors, in clusters of 2 unless ALONE.
#ifndef EMULATED
#include "hopper.cuh"
#endif
#include "walk.cuh"

// 1: the hardware clips at a segment's end (hopper.cuh, "Ragged maps"). 0: loaded rows behind the end are zeroed in
// shared memory, and tiles across an end are stored by threads.
#ifndef RAGGED_LOADS
#define RAGGED_LOADS 1
#endif
#ifndef RAGGED_STORES
#define RAGGED_STORES 1
#endif

constexpr u32 TILE_M = 128, STEP = 64, GROUP_M = 64, MAX_EXPERTS = 512;
// Boxes are in stages or on their way to memory: 24 and 4, or with SwiGLU 18 and 10.
constexpr u32 BOXES = 28, BARRIERS = BOXES * BOX_BYTES, OFFSETS = BARRIERS + 128;
constexpr u32 SHARED_BYTES = OFFSETS + (MAX_EXPERTS + 1) * 4;
static_assert(SHARED_BYTES <= 227 * 1024, "shared memory");
// Row tiles that are walked together.
constexpr u32 TOGETHER = 16;

struct Arguments {
    // Maps of the operands, of the output, and of `h`. With RAGGED_STORES the last two are ragged. For weight the first
    // two are ragged with RAGGED_LOADS, and the third is of f32, for BOXED alone.
    TensorMap a, b, out, second;
    // (experts + 1).
    const u32* offsets;
    // The memory of `out` and `h`.
    u8 *to, *to_second;
    // SwiGLU: `pre` (R, 2 F), for input alone; p (R); parts of the gradient of p.
    const u8* pre;
    const float* p;
    float* parts;
    // A gradient of an expert is `height` x `width`. For the other forms `width` is that of `out`, or F, and `steps`
    // are the steps of a sum.
    u32 experts, height, width, steps;
};

enum Form { FORWARD, FORWARD_SWIGLU, INPUT, INPUT_SWIGLU, WEIGHT_WRITE, WEIGHT_ADD };
enum Pair { ALONE, ROWS, COLUMNS };

// BOXED: sums of weights go through shared memory by TMA, not between registers and memory.
template <Form FORM, u32 TILE_N, Pair PAIR, bool BOXED = false> void product(const Arguments& arguments, u8* dynamic) {
    constexpr bool WEIGHT = FORM == WEIGHT_WRITE || FORM == WEIGHT_ADD;
    constexpr bool B_ALONG_N = WEIGHT || FORM == INPUT || FORM == INPUT_SWIGLU;
    constexpr bool SWIGLU = FORM == FORWARD_SWIGLU || FORM == INPUT_SWIGLU;
    constexpr u32 BLOCKS = PAIR == ALONE ? 1 : 2;
    constexpr u32 PAIR_ROWS = PAIR == ROWS ? 2 : 1, PAIR_COLUMNS = PAIR == COLUMNS ? 2 : 1;
    constexpr u32 STAGE_BOXES = SWIGLU ? 18 : 24, B_BOXES = TILE_N / 64, STAGE_BYTES = (2 + B_BOXES) * BOX_BYTES;
    constexpr u32 STAGES = STAGE_BOXES / (2 + B_BOXES);
    // A group puts so many boxes to memory at once, from a ring of boxes of its own.
    constexpr u32 WRITES = SWIGLU ? 3 : 1, RING = (BOXES - STAGE_BOXES) / 2;
    // Of the output. The gate's columns and the up's are a tile of B.
    constexpr u32 OUT_N = FORM == FORWARD_SWIGLU ? TILE_N / 2 : TILE_N, OUT_BOXES = OUT_N / 64;

    u32 stages = shared_address(dynamic), barriers = stages + BARRIERS;
    // A walk over rows reads the offsets often, a walk over gradients reads the order of the experts.
    u32* offsets = reinterpret_cast<u32*>(dynamic + OFFSETS);
    u16* order = reinterpret_cast<u16*>(dynamic + OFFSETS);
    auto full = [&](u32 stage) { return barriers + 8 * stage; };
    auto empty = [&](u32 stage) { return barriers + 8 * (STAGES + stage); };
    u32 rank = BLOCKS == 1 ? 0 : cluster_rank(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        if (stages % 1024 != 0) fail();
        // A stage is empty once both groups of all blocks have read it.
        for (u32 stage = 0; stage < STAGES; stage++)
            barrier_start(full(stage), 1), barrier_start(empty(stage), 2 * BLOCKS);
        barriers_started();
    }
    cluster_meet();
    begin_kernel();
    for (u32 i = threadIdx.x; i < arguments.experts + !WEIGHT; i += 384)
        if (WEIGHT) order[rank_of_expert(arguments.offsets, arguments.experts, i)] = (u16)i;
        else offsets[i] = arguments.offsets[i];
    __syncthreads();

    u32 columns = (arguments.width + OUT_N * PAIR_COLUMNS - 1) / (OUT_N * PAIR_COLUMNS);
    auto walk = [&] {
        if constexpr (WEIGHT) {
            u32 rows = (arguments.height + TILE_M * PAIR_ROWS - 1) / (TILE_M * PAIR_ROWS);
            return WeightWalk<TOGETHER / PAIR_ROWS>{arguments.offsets, order, arguments.experts, rows, columns};
        } else {
            return RowWalk<TILE_M * PAIR_ROWS, TOGETHER / PAIR_ROWS>{offsets, arguments.experts, columns, 0, 0};
        }
    }();
    // The block's tile: its first row (of the segment, or of the gradient), its first column, and its steps.
    auto first_row = [&](const Tile& tile) { return (tile.row * PAIR_ROWS + (PAIR == ROWS ? rank : 0)) * TILE_M; };
    auto first_column = [&](const Tile& tile) {
        return (tile.column * PAIR_COLUMNS + (PAIR == COLUMNS ? rank : 0)) * OUT_N;
    };
    auto steps_of = [&](const Tile& tile) { return WEIGHT ? (tile.rows + STEP - 1) / STEP : arguments.steps; };
    u32 cluster = blockIdx.x / BLOCKS, clusters = gridDim.x / BLOCKS;
    u32 stage = 0;
    Tile tile;

    if (group == 2) {
        keep_registers<40>();
        u32 phase = 1;
        for (u32 round = 0; warp == 8 && walk.find(tile_number(round, cluster, clusters), tile); round++) {
            u32 m = first_row(tile), n = first_column(tile), steps = steps_of(tile);
            // What the epilogue will read.
            if (FORM == WEIGHT_ADD && !BOXED && n < arguments.width && steps > 0) {
                u32 bytes = min(OUT_N, arguments.width - n) * 4, first = tile.expert * arguments.height;
                for (u32 i = m + lane; i < min(m + TILE_M, arguments.height); i += 32)
                    prefetch(arguments.to + ((u64)(first + i) * arguments.width + n) * 4, bytes);
            }
            if (FORM == INPUT_SWIGLU && n < arguments.width) {
                u32 bytes = min(OUT_N, arguments.width - n) * 2;
                for (u32 i = m + lane; i < min(m + TILE_M, tile.rows); i += 32) {
                    const u8* line = arguments.pre + (u64)(tile.start + i) * arguments.width * 4 + n * 2;
                    prefetch(line, bytes), prefetch(line + arguments.width * 2, bytes);
                }
            }
            for (u32 k = 0; lane == 0 && k < steps; k++) {
                barrier_wait(empty(stage), phase);
                u32 a = stages + stage * STAGE_BYTES, b = a + 2 * BOX_BYTES, done = full(stage);
                barrier_expect(done, STAGE_BYTES);
                auto load_a = [&](auto shared, u32 i) {
                    constexpr bool SHARED = decltype(shared)::VALUE;
                    u32 to = a + i * BOX_BYTES;
                    if (!WEIGHT) load_box<SHARED>(to, &arguments.a, k * STEP, tile.start + m + i * 64, done);
                    else if (RAGGED_LOADS)
                        load_ragged_box<SHARED>(to, &arguments.a, m + i * 64, tile.start, tile.rows, k * STEP, done);
                    else load_box<SHARED>(to, &arguments.a, m + i * 64, tile.start + k * STEP, done);
                };
                auto load_b = [&](auto shared, u32 i) {
                    constexpr bool SHARED = decltype(shared)::VALUE;
                    u32 to = b + i * BOX_BYTES, at = n + i * 64;
                    // Boxes of the gate, then boxes of up.
                    if (FORM == FORWARD_SWIGLU && i >= OUT_BOXES) at += arguments.width - OUT_N;
                    if (WEIGHT && RAGGED_LOADS)
                        load_ragged_box<SHARED>(to, &arguments.b, at, tile.start, tile.rows, k * STEP, done);
                    else if (WEIGHT) load_box<SHARED>(to, &arguments.b, at, tile.start + k * STEP, done);
                    else if (B_ALONG_N) load_box<SHARED>(to, &arguments.b, at, k * STEP, tile.expert, done);
                    else load_box<SHARED>(to, &arguments.b, k * STEP, at, tile.expert, done);
                };
                if (PAIR == COLUMNS) load_a(True(), rank);
                else load_a(False(), 0), load_a(False(), 1);
                if (PAIR == ROWS) {
#pragma unroll
                    for (u32 i = 0; i < B_BOXES / 2; i++) load_b(True(), rank * (B_BOXES / 2) + i);
                } else {
#pragma unroll
                    for (u32 i = 0; i < B_BOXES; i++) load_b(False(), i);
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
            // Earlier sums, three columns of boxes a stage: of 64 rows of each group, and 32 columns.
            for (u32 c = 0; FORM == WEIGHT_ADD && BOXED && lane == 0 && steps > 0 && c < TILE_N / 32; c += 3) {
                u32 boxes = min(3u, TILE_N / 32 - c) * 2;
                barrier_wait(empty(stage), phase);
                barrier_expect(full(stage), boxes * BOX_BYTES);
                for (u32 i = 0; i < boxes; i++)
                    load_box<false>(stages + stage * STAGE_BYTES + i * BOX_BYTES, &arguments.out, n + (c + i / 2) * 32,
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
            if (BLOCKS == 1 && of_group == 0) barrier_arrive_here(empty(stage));
            if (BLOCKS == 2 && of_group < 2) barrier_arrive(empty(stage), of_group);
        };
        auto advance = [&] {
            if (++stage == STAGES) stage = 0, phase ^= 1;
        };
        for (u32 round = 0; walk.find(tile_number(round, cluster, clusters), tile); round++) {
            // Of the group.
            u32 m = first_row(tile) + group * GROUP_M, n = first_column(tile), steps = steps_of(tile), last = 0;
            // How many of its rows are the segment's. Groups without rows do not multiply.
            u32 valid = WEIGHT || m >= tile.rows ? 0 : min(GROUP_M, tile.rows - m);
            if (!WEIGHT && valid == 0) {
                for (u32 k = 0; k < steps; k++) barrier_wait(full(stage), phase), release(stage), advance();
                continue;
            }
            // Where a gradient's sums lie: box and pair of sums of the thread.
            u64 line = (u64)tile.expert * arguments.height + m + warp % 4 * 16 + row;
            float* sums = reinterpret_cast<float*>(arguments.to) + line * arguments.width + n + lane % 4 * 2;
            auto sums_at = [&](u32 box, u32 i) {
                return reinterpret_cast<float2*>(sums + i % 2 * 8 * (u64)arguments.width + box * 64 + i / 2 * 8);
            };
            auto inside = [&](u32 box) { return m < arguments.height && n + box * 64 < arguments.width; };
            if (WEIGHT && steps == 0) {
                for (u32 box = 0; FORM == WEIGHT_WRITE && box < OUT_BOXES; box++)
                    for (u32 i = 0; inside(box) && i < 16; i++) *sums_at(box, i) = float2{0, 0};
                continue;
            }
            auto step = [&](u32 k) {
                barrier_wait(full(stage), phase);
                u32 here = stages + stage * STAGE_BYTES, a = here + group * BOX_BYTES, b = here + 2 * BOX_BYTES;
                if (WEIGHT && !RAGGED_LOADS && tile.rows - k * STEP < STEP) {
                    // Both groups zero the lines behind the end.
                    u32 first = tile.rows - k * STEP, words = (STEP - first) * 8;
                    for (u32 i = threadIdx.x; i < words * (2 + B_BOXES); i += 256)
                        store_shared_16(here + i / words * BOX_BYTES + first * 128 + i % words * 16, uint4{0, 0, 0, 0});
                    fence_async();
                    meet_warps(3, 8);
                }
                u64 of_a = descriptor(a, WEIGHT ? BOX_BYTES : 16), of_b = descriptor(b, B_ALONG_N ? BOX_BYTES : 16);
                products_begin();
#pragma unroll
                for (u32 i = 0; i < STEP / 16; i++)
                    multiply<WEIGHT, B_ALONG_N>(d, of_a + (WEIGHT ? 128 : 2) * i, of_b + (B_ALONG_N ? 128 : 2) * i,
                                                (k | i) != 0);
                products_commit();
                if (k > 0) products_wait<1>(), release(last);
                last = stage;
                advance();
            };
            // The boxes that are filled.
            u32 here[WRITES];
            auto begin_boxes = [&] {
#pragma unroll
                for (u32 w = 0; w < WRITES; w++) {
                    here[w] = stages + (STAGE_BOXES + group * RING + ring) * BOX_BYTES;
                    if (++ring == RING) ring = 0;
                }
                if (of_group == 0) wait_until_stores_have_read<RING - WRITES>();
                meet_warps(group + 1, 4);
            };
            auto end_boxes = [&] {
                fence_async();
                meet_warps(group + 1, 4);
            };
            for (u32 k = 0; k + 1 < steps; k++) step(k);

            if constexpr (WEIGHT && BOXED) {
                static_assert(TILE_N == 256, "a stage is large enough for six boxes");
                step(steps - 1);
                products_wait<0>();
                settle(d);
                release(last);
#pragma unroll
                for (u32 c = 0; c < TILE_N / 32; c++) {
                    u32 old = stages + stage * STAGE_BYTES + (c % 3 * 2 + group) * BOX_BYTES;
                    if (FORM == WEIGHT_ADD && c % 3 == 0) barrier_wait(full(stage), phase);
                    begin_boxes();
#pragma unroll
                    for (u32 i = 0; i < 8; i++) {
                        u32 at = (warp % 4 * 16 + row + i % 2 * 8) * 128 + lane % 2 * 8;
                        at += ((i / 2 * 2 + lane % 4 / 2) ^ row) * 16;
                        float2 sum = {d[16 * c + 2 * i], d[16 * c + 2 * i + 1]};
                        if (FORM == WEIGHT_ADD) {
                            float2 before = load_shared_8(old + at);
                            sum.x += before.x, sum.y += before.y;
                        }
                        store_shared_8(here[0] + at, sum);
                    }
                    end_boxes();
                    if (of_group == 0) store_box(&arguments.out, n + c * 32, m, tile.expert, here[0]), end_stores();
                    if (FORM == WEIGHT_ADD && (c % 3 == 2 || c == TILE_N / 32 - 1)) release(stage), advance();
                }
            } else if constexpr (WEIGHT) {
                // Boxes of earlier sums, one ahead of the box that is stored.
                float2 old[2][16];
                auto load_old = [&](u32 box) {
                    if (!inside(box)) return;
#pragma unroll
                    for (u32 i = 0; i < 16; i++) old[box % 2][i] = *sums_at(box, i);
                };
                if (FORM == WEIGHT_ADD) load_old(0);
                step(steps - 1);
                products_wait<0>();
                settle(d);
                release(last);
#pragma unroll
                for (u32 box = 0; box < OUT_BOXES; box++) {
                    if (FORM == WEIGHT_ADD && box + 1 < OUT_BOXES) load_old(box + 1);
                    if (!inside(box)) continue;
#pragma unroll
                    for (u32 i = 0; i < 16; i++) {
                        float2 sum = {d[box * 32 + 2 * i], d[box * 32 + 2 * i + 1]};
                        if (FORM == WEIGHT_ADD) sum.x += old[box % 2][i].x, sum.y += old[box % 2][i].y;
                        *sums_at(box, i) = sum;
                    }
                }
            } else {
                // Rows of the thread that its group lacks read the last one's.
                auto line_of = [&](u32 h) { return tile.start + m + min(warp % 4 * 16 + row + 8 * h, valid - 1); };
                // Word i of the thread in a box.
                auto put = [&](u32 w, u32 i, u32 x) {
                    u32 to = here[w] + (warp % 4 * 16 + row) * 128 + lane % 4 * 4;
                    store_shared(to + (i / 2 ^ row) * 16 + i % 2 * 1024, x);
                };
                // A filled box goes to memory with rows of `pitch` bytes.
                auto store = [&](u32 w, const TensorMap* map, u8* to, u32 pitch, u32 column) {
                    if (RAGGED_STORES) {
                        if (of_group == 0) store_ragged_box(map, column, tile.start, tile.rows, m, here[w]);
                    } else if (valid == GROUP_M) {
                        if (of_group == 0) store_box(map, column, tile.start + m, here[w]);
                    } else {
                        for (u32 i = of_group; i < valid * 8; i += 128) {
                            uint4 x = load_shared_16(here[w] + i / 8 * 128 + (i % 8 ^ i / 8 % 8) * 16);
                            u64 line = tile.start + m + i / 8;
                            *reinterpret_cast<uint4*>(to + line * pitch + column * 2 + i % 8 * 16) = x;
                        }
                    }
                    // Without a store too, so that stores under way are counted as boxes are.
                    if (of_group == 0) end_stores();
                };
                u32 gate[16], up[16];
                auto load_pre = [&](u32 box) {
                    if (n + box * 64 >= arguments.width) return;
                    const u8* from = arguments.pre + (n + box * 64 + lane % 4 * 2) * 2;
                    const u8* lines[2];
#pragma unroll
                    for (u32 h = 0; h < 2; h++) lines[h] = from + (u64)line_of(h) * arguments.width * 4;
#pragma unroll
                    for (u32 i = 0; i < 16; i++) {
                        gate[i] = *reinterpret_cast<const u32*>(lines[i % 2] + i / 2 * 16);
                        up[i] = *reinterpret_cast<const u32*>(lines[i % 2] + i / 2 * 16 + arguments.width * 2);
                    }
                };
                float p[2];
                if (SWIGLU) p[0] = arguments.p[line_of(0)], p[1] = arguments.p[line_of(1)];
                if (FORM == INPUT_SWIGLU) load_pre(0);
                step(steps - 1);
                products_wait<0>();
                settle(d);
                release(last);
                float of_p[2] = {0, 0};
#pragma unroll
                for (u32 box = 0; box < OUT_BOXES; box++) {
                    u32 column = n + box * 64, pitch = arguments.width * 2;
                    if (column < arguments.width) {
                        begin_boxes();
#pragma unroll
                        for (u32 i = 0; i < 16; i++) {
                            u32 at = box * 32 + 2 * i;
                            if (!SWIGLU) {
                                put(0, i, pack_bf16x2(d[at], d[at + 1]));
                            } else if (FORM == FORWARD_SWIGLU) {
                                constexpr u32 UP = TILE_N / 4;
                                u32 gates = pack_bf16x2(d[at], d[at + 1]);
                                u32 ups = pack_bf16x2(d[UP + at], d[UP + at + 1]);
                                // `h` is computed from what is stored.
                                float g0 = low_bf16(gates), g1 = high_bf16(gates);
                                float h0 = g0 * sigmoid<bf16>(g0) * low_bf16(ups) * p[i % 2];
                                float h1 = g1 * sigmoid<bf16>(g1) * high_bf16(ups) * p[i % 2];
                                put(0, i, gates), put(1, i, ups), put(2, i, pack_bf16x2(h0, h1));
                            } else {
                                u32 gates = gate[i], ups = up[i];
                                float d_gate[2], d_up[2], h[2];
#pragma unroll
                                for (u32 e = 0; e < 2; e++) {
                                    float g = e ? high_bf16(gates) : low_bf16(gates);
                                    float u = e ? high_bf16(ups) : low_bf16(ups);
                                    float s = sigmoid<bf16>(g), silu = g * s, dh = d[at + e];
                                    of_p[i % 2] += dh * silu * u;
                                    h[e] = silu * u * p[i % 2];
                                    dh *= p[i % 2];
                                    d_up[e] = dh * silu;
                                    d_gate[e] = dh * u * (s + silu * (1.0f - s));
                                }
                                put(0, i, pack_bf16x2(d_gate[0], d_gate[1])), put(1, i, pack_bf16x2(d_up[0], d_up[1]));
                                put(2, i, pack_bf16x2(h[0], h[1]));
                            }
                        }
                        // Those of the next box arrive while this one goes to memory.
                        if (FORM == INPUT_SWIGLU && box + 1 < OUT_BOXES) load_pre(box + 1);
                        end_boxes();
                        store(0, &arguments.out, arguments.to, SWIGLU ? 2 * pitch : pitch, column);
                        if constexpr (SWIGLU) {
                            store(1, &arguments.out, arguments.to, 2 * pitch, arguments.width + column);
                            store(2, &arguments.second, arguments.to_second, pitch, column);
                        }
                    }
                    // A part of 128 columns is done, or the last one of 64.
                    if (FORM == INPUT_SWIGLU && box % 2 == 1 && column - 64 < arguments.width) {
#pragma unroll
                        for (u32 h = 0; h < 2; h++) {
                            float sum = of_p[h];
                            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                            if (lane % 4 == 0 && warp % 4 * 16 + row + 8 * h < valid)
                                arguments.parts[(u64)line_of(h) * ((arguments.width + 127) / 128) + column / 128] = sum;
                            of_p[h] = 0;
                        }
                    }
                }
            }
        }
        if ((!WEIGHT || BOXED) && of_group == 0) wait_until_stores_have_read<0>();
    }
    // The other block may still write to this one's shared memory, and arrive at its barriers.
    __syncwarp();
    cluster_meet();
}

#ifndef EMULATED
#define INSTANCE(name, form, tile_n, pair, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ Arguments arguments) {      \
        extern __shared__ __align__(1024) u8 dynamic[];                                                            \
        product<form, tile_n, pair, ##__VA_ARGS__>(arguments, dynamic);                                            \
    }
#endif

INSTANCE(forward_256_alone, FORWARD, 256, ALONE)
INSTANCE(forward_256_rows, FORWARD, 256, ROWS)
INSTANCE(forward_256_columns, FORWARD, 256, COLUMNS)
INSTANCE(forward_128_columns, FORWARD, 128, COLUMNS)
INSTANCE(input_256_alone, INPUT, 256, ALONE)
INSTANCE(input_256_rows, INPUT, 256, ROWS)
INSTANCE(input_256_columns, INPUT, 256, COLUMNS)
INSTANCE(input_128_columns, INPUT, 128, COLUMNS)
INSTANCE(weight_write_256_alone, WEIGHT_WRITE, 256, ALONE)
INSTANCE(weight_write_256_rows, WEIGHT_WRITE, 256, ROWS)
INSTANCE(weight_write_256_rows_boxed, WEIGHT_WRITE, 256, ROWS, true)
INSTANCE(weight_add_256_alone, WEIGHT_ADD, 256, ALONE)
INSTANCE(weight_add_256_rows, WEIGHT_ADD, 256, ROWS)
INSTANCE(weight_add_256_rows_boxed, WEIGHT_ADD, 256, ROWS, true)
INSTANCE(forward_swiglu_256_alone, FORWARD_SWIGLU, 256, ALONE)
INSTANCE(forward_swiglu_256_rows, FORWARD_SWIGLU, 256, ROWS)
INSTANCE(forward_swiglu_256_columns, FORWARD_SWIGLU, 256, COLUMNS)
INSTANCE(input_swiglu_256_alone, INPUT_SWIGLU, 256, ALONE)
INSTANCE(input_swiglu_256_rows, INPUT_SWIGLU, 256, ROWS)
INSTANCE(input_swiglu_256_columns, INPUT_SWIGLU, 256, COLUMNS)
