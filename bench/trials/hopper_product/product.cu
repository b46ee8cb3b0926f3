// A matrix product for GPUs of compute capability 9.0: out (M, N) = epilogue(a (M, K) @ b), in bf16 with f32 sums.
// README.md gives its purpose and the reason that the trainer does without it.
//
// Two blocks form a cluster. They compute two tiles, one below the other. Each block loads half of `b`'s tile for both.
// In a block one thread loads by TMA into three stages. Two warpgroups multiply (wgmma). Each has 64 x 256 sums, in 128
// registers a thread. Blocks walk over tiles until all are done.
//
// M and N are multiples of 256. K is a multiple of 64 and at least 256. The launch: 384 threads, clusters of 2, at most
// as many blocks as multiprocessors. Dynamic shared memory: 1024 bytes to align, the stages, the staging, 1024 for
// barriers, 256 for ones.
#include "cluster.cuh"
#include "gelu.cuh"

constexpr u32 TILE_M = 128, TILE_N = 256, STEP_K = 64, STAGES = 3;
constexpr u32 A_BYTES = TILE_M * STEP_K * 2, B_BYTES = TILE_N * STEP_K * 2, STAGE_BYTES = A_BYTES + B_BYTES;
// The tile on its way to memory, a part for each group.
constexpr u32 STAGING_BYTES = TILE_M * TILE_N * 2, GROUP_BYTES = STAGING_BYTES / 2;
// A box of 64 columns (128 bytes, swizzled) of 64 rows.
constexpr u32 BOX_BYTES = 64 * 128;
// The `pre` of a tile is loaded into registers so many steps before the end of the tile.
constexpr u32 EARLY_STEPS = 4;
// Row pairs that are walked together, column by column, so that their factors stay in the L2 cache.
constexpr u32 ROWS_TOGETHER = 8;

// A CUtensorMap.
struct alignas(64) TensorMap {
    u64 words[16];
};

struct Arguments {
    TensorMap a, b, out, pre;
    // (M, N), as the forward saved it.
    const u8* saved;
    // (M / 64, N), written: column sums of 64 rows of `out`.
    float* sums;
    // Pairs of row tiles, column tiles, steps along K.
    u32 row_pairs, columns, steps;
};

// ---- Barriers and copies --------------------------------------------------------------------------------------------

inline void barrier_start(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

inline void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// In another block of the cluster. With `.release.cluster` the compiler adds a fence of the whole GPU. It takes a
// quarter of the speed. Nothing was written, so there is nothing to release.
inline void barrier_arrive(u32 barrier, u32 block) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier), "r"(block)
        : "memory");
}

inline void barrier_wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n\t.reg .pred done;\n\tagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
        "@done bra over;\n\tbra again;\n\tover:\n\t}" ::"r"(barrier), "r"(phase)
        : "memory");
}

inline void load_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

// Into both blocks.
inline void load_shared_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((u16)3)
        : "memory");
}

inline void prefetch_box(const TensorMap* map, u32 x, u32 y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

inline void store_box(const TensorMap* map, u32 x, u32 y, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(from)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

inline void wait_until_stores_have_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

inline void store_shared(u32 address, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x));
}

// Makes earlier stores to shared memory visible to TMA and wgmma.
inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Products -------------------------------------------------------------------------------------------------------

inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// Keeps the compiler from reading the results of asynchronous products before this point.
template <int N> void settle(float (&d)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// A matrix in shared memory in lines of 128 bytes, swizzled. 8 lines further are 1024 bytes. `leading` are the bytes to
// the next 64 columns, for a matrix that does not lie along the sum.
inline u64 descriptor(u32 address, u32 leading) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define F64(i) F16(i), F16(i + 16), F16(i + 32), F16(i + 48)

// d (64, 256) (+)= a (64, 16) @ b (16, 256).
template <int B_ALONG_N> void multiply(float (&d)[128], u64 a, u64 b, u32 add) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %130, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
        "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "
        "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
        "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, 0, %131;\n\t}"
        : F64(0), F64(64)
        : "l"(a), "l"(b), "r"(add), "n"(B_ALONG_N));
}

// d (64, 8) (+)= out^T (64, 16) @ ones (16, 8): sums of 16 rows of 64 columns.
inline void add_columns(float (&d)[4], u64 out, u64 ones, u32 add) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %6, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, add, 1, 1, 1, 0;\n\t}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(out), "l"(ones), "r"(add));
}

// ---- The kernel -----------------------------------------------------------------------------------------------------

enum Epilogue { PLAIN, GELU_BACKWARD, GELU_BACKWARD_SUMS };

struct Tile {
    u32 row_pair, column;
};

inline Tile tile_at(u32 index, u32 row_pairs, u32 columns) {
    u32 first = index / (ROWS_TOGETHER * columns) * ROWS_TOGETHER;
    u32 rows = min(ROWS_TOGETHER, row_pairs - first), within = index - first * columns;
    return {first + within % rows, within / rows};
}

// B_ALONG_N: `b` is stored as (K, N), else as (N, K).
template <int B_ALONG_N, Epilogue EPILOGUE> void product(const Arguments& arguments) {
    extern __shared__ u8 dynamic[];
    u32 stages = (shared_address(dynamic) + 1023) & ~1023u;
    u32 staging = stages + STAGES * STAGE_BYTES, barriers = staging + STAGING_BYTES, ones = barriers + 1024;
    auto full = [&](u32 stage) { return barriers + 8 * stage; };
    auto empty = [&](u32 stage) { return barriers + 8 * (STAGES + stage); };
    u32 rank = cluster_rank(), warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = threadIdx.x / 128;
    if (threadIdx.x < 64) {
        store_shared(ones + threadIdx.x * 4, 0x3f803f80);
        fence_async();
    }
    if (threadIdx.x == 0) {
        // A stage is empty once both groups of both blocks have read it.
        for (u32 stage = 0; stage < STAGES; stage++) barrier_start(full(stage), 1), barrier_start(empty(stage), 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_meet();
    begin_kernel();
    u32 tiles = arguments.row_pairs * arguments.columns, clusters = gridDim.x / 2;
    u32 stage = 0;
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        u32 phase = 1;
        for (u32 t = blockIdx.x / 2; threadIdx.x == 256 && t < tiles; t += clusters) {
            Tile tile = tile_at(t, arguments.row_pairs, arguments.columns);
            u32 m = (tile.row_pair * 2 + rank) * TILE_M, n = tile.column * TILE_N;
            if (EPILOGUE != PLAIN)
                for (u32 i = 0; i < TILE_N / 64; i++) prefetch_box(&arguments.pre, n + i * 64, m);
            for (u32 k = 0; k < arguments.steps; k++) {
                barrier_wait(empty(stage), phase);
                u32 a = stages + stage * STAGE_BYTES, b = a + A_BYTES;
                barrier_expect(full(stage), STAGE_BYTES);
                load_box(a, &arguments.a, k * STEP_K, m, full(stage));
                if (B_ALONG_N) {
                    for (u32 i = 2 * rank; i < 2 * rank + 2; i++)
                        load_shared_box(b + i * BOX_BYTES, &arguments.b, n + i * 64, k * STEP_K, full(stage));
                } else {
                    u32 half = n + rank * TILE_N / 2;
                    load_shared_box(b + rank * B_BYTES / 2, &arguments.b, k * STEP_K, half, full(stage));
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        // d[4 j + 2 h + e] is row `row + 8 h`, column 8 j + 2 (lane % 4) + e of the warp's 16 rows.
        float d[128];
        u32 phase = 0, row = lane / 4, of_group = threadIdx.x % 128;
        u64 all_ones = (u64)((ones & 0x3ffff) >> 4) | 8ull << 16 | 8ull << 32;
        for (u32 t = blockIdx.x / 2; t < tiles; t += clusters) {
            Tile tile = tile_at(t, arguments.row_pairs, arguments.columns);
            u32 m = (tile.row_pair * 2 + rank) * TILE_M + group * 64, n = tile.column * TILE_N, last = 0;
            auto step = [&](u32 k) {
                barrier_wait(full(stage), phase);
                u32 a = stages + stage * STAGE_BYTES + group * BOX_BYTES, b = stages + stage * STAGE_BYTES + A_BYTES;
                u64 of_a = descriptor(a, 16), of_b = descriptor(b, B_ALONG_N ? BOX_BYTES : 16);
                products_begin();
#pragma unroll
                for (u32 i = 0; i < STEP_K / 16; i++)
                    multiply<B_ALONG_N>(d, of_a + 2 * i, of_b + (B_ALONG_N ? 128 : 2) * i, (k | i) != 0);
                products_commit();
                if (k > 0) {
                    products_wait<1>();
                    if (of_group < 2) barrier_arrive(empty(last), of_group);
                }
                last = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1;
            };
            for (u32 k = 0; k + EARLY_STEPS < arguments.steps; k++) step(k);
            u32 saved[64];
            if (EPILOGUE != PLAIN) {
                u64 line = (u64)arguments.columns * TILE_N * 2;
                const u8* pre = arguments.saved + (m + warp % 4 * 16 + row) * line + (n + lane % 4 * 2) * 2;
#pragma unroll
                for (u32 i = 0; i < 64; i++) saved[i] = __ldg((const u32*)(pre + i % 2 * 8 * line + i / 2 * 16));
            }
            for (u32 k = arguments.steps - EARLY_STEPS; k < arguments.steps; k++) step(k);
            products_wait<0>();
            settle(d);
            if (of_group < 2) barrier_arrive(empty(last), of_group);
            float sums[4][4];
            if (of_group == 0) wait_until_stores_have_read();
            meet_warps(group + 1, 4);
#pragma unroll
            for (u32 box = 0; box < 4; box++) {
                u32 here = staging + group * GROUP_BYTES + box * BOX_BYTES;
                u32 to = here + (warp % 4 * 16 + row) * 128 + lane % 4 * 4;
#pragma unroll
                for (u32 i = 0; i < 16; i++) {
                    float x = d[box * 32 + 2 * i], y = d[box * 32 + 2 * i + 1];
                    if (EPILOGUE != PLAIN) {
                        u32 pre = saved[box * 16 + i];
                        x *= gelu_derivative<bf16>(low_bf16(pre)), y *= gelu_derivative<bf16>(high_bf16(pre));
                    }
                    store_shared(to + (i / 2 ^ row) * 16 + i % 2 * 1024, pack_bf16x2(x, y));
                }
                fence_async();
                meet_warps(group + 1, 4);
                if (of_group == 0) store_box(&arguments.out, n + box * 64, m, here);
                if (EPILOGUE == GELU_BACKWARD_SUMS) {
                    products_begin();
#pragma unroll
                    for (u32 i = 0; i < 4; i++)
                        add_columns(sums[box], descriptor(here + i * 2048, 16), all_ones, i != 0);
                    products_commit();
                }
            }
            if (EPILOGUE == GELU_BACKWARD_SUMS) {
                products_wait<0>();
#pragma unroll
                for (u32 box = 0; box < 4; box++) settle(sums[box]);
                float* to = arguments.sums + (u64)(m / 64) * arguments.columns * TILE_N + n + warp % 4 * 16 + row;
#pragma unroll
                for (u32 box = 0; lane % 4 == 0 && box < 4; box++) {
                    to[box * 64] = sums[box][0];
                    to[box * 64 + 8] = sums[box][2];
                }
            }
        }
        if (of_group == 0) wait_until_stores_have_read();
    }
    // The other block may still write to this one's shared memory, and arrive at its barriers.
    __syncwarp();
    cluster_meet();
}

#define INSTANCE(name, b_along_n, epilogue)                                                                        \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ Arguments arguments) {     \
        product<b_along_n, epilogue>(arguments);                                                                  \
    }

INSTANCE(plain_nn, 1, PLAIN)
INSTANCE(plain_nt, 0, PLAIN)
INSTANCE(gelu_backward, 1, GELU_BACKWARD)
INSTANCE(gelu_backward_sums, 1, GELU_BACKWARD_SUMS)
