// Barriers, copies of boxes (TMA) and products (wgmma) of compute capability 9.0. A box is always 64 lines of 64 bf16 or
// 32 f32: 128 bytes a line, swizzled.
#pragma once
#include "cluster.cuh"

const u32 BOX_BYTES = 64 * 128;

// A CUtensorMap.
struct alignas(64) TensorMap {
    u64 words[16];
};

// ---- Barriers -------------------------------------------------------------------------------------------------------

inline void barrier_start(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

inline void barriers_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

inline void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

inline void barrier_arrive_here(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// In any block of the cluster. With `.release.cluster` the compiler adds a fence of the whole GPU. It takes a quarter
// of the speed. Nothing was written, so there is nothing to release.
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

// ---- TMA ------------------------------------------------------------------------------------------------------------

#define LOAD(dimensions) "cp.async.bulk.tensor." dimensions ".shared::cluster.global.mbarrier::complete_tx::bytes"

// SHARED: into both blocks of the cluster, at the same place, with a message to the same barrier.
template <bool SHARED> void load_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 barrier) {
    if (SHARED)
        asm volatile(LOAD("2d") ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map), "r"(x),
                     "r"(y), "r"(barrier), "h"((u16)3)
                     : "memory");
    else
        asm volatile(LOAD("2d") " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier)
                     : "memory");
}

template <bool SHARED> void load_box(u32 to, const TensorMap* map, u32 x, u32 y, u32 z, u32 barrier) {
    if (SHARED)
        asm volatile(LOAD("3d") ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to), "l"(map), "r"(x),
                     "r"(y), "r"(z), "r"(barrier), "h"((u16)3)
                     : "memory");
    else
        asm volatile(LOAD("3d") " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z),
                     "r"(barrier)
                     : "memory");
}

inline void store_box(const TensorMap* map, u32 x, u32 y, u32 z, u32 from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
                 "r"(y), "r"(z), "r"(from)
                 : "memory");
}

// Ragged maps: the matrix's map has two dimensions more. Three coordinates give a row of a segment:
// - FAR - rows + row. The dimension ends at FAR, so the hardware clips at the segment's end.
// - start + rows, with the stride of a row.
// - FAR, with a stride of 2^35 bytes less a row. 2^30 x 2^35 is a multiple of 2^64, so FAR cancels.
// Triton's and QuACK's kernels do so. No document allows it. `trainer doctor` multiplies segments of odd sizes, so it
// would find a GPU that does otherwise.
const u32 FAR = 1u << 30;

template <bool SHARED>
void load_ragged_box(u32 to, const TensorMap* map, u32 x, u32 start, u32 rows, u32 row, u32 barrier) {
    if (SHARED)
        asm volatile(LOAD("4d") ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to), "l"(map),
                     "r"(x), "r"(FAR - rows + row), "r"(start + rows), "r"(FAR), "r"(barrier), "h"((u16)3)
                     : "memory");
    else
        asm volatile(LOAD("4d") " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to), "l"(map), "r"(x),
                     "r"(FAR - rows + row), "r"(start + rows), "r"(FAR), "r"(barrier)
                     : "memory");
}

inline void store_ragged_box(const TensorMap* map, u32 x, u32 start, u32 rows, u32 row, u32 from) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
                 "r"(x), "r"(FAR - rows + row), "r"(start + rows), "r"(FAR), "r"(from)
                 : "memory");
}

// Makes the stores since the last call a group. It may be empty.
inline void end_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LEFT> void wait_until_stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

// ---- Shared memory and registers ------------------------------------------------------------------------------------

inline void store_shared(u32 address, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

inline void store_shared_8(u32 address, float2 x) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x.x), "f"(x.y) : "memory");
}

inline float2 load_shared_8(u32 address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
    return x;
}

// Makes earlier stores to shared memory visible to TMA and wgmma.
inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int COUNT> void keep_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

inline void fail() { asm volatile("trap;"); }

// ---- Products -------------------------------------------------------------------------------------------------------

inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }

// Keeps the compiler from reading the results of asynchronous products before this point.
template <int N> void settle(float (&d)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// A matrix in boxes. 8 lines further are 1024 bytes. `leading` are the bytes to the next 64 columns, for a matrix that
// does not lie along the sum.
inline u64 descriptor(u32 address, u32 leading) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define F64(i) F16(i), F16(i + 16), F16(i + 32), F16(i + 48)
#define SUMS                                                                                                 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "       \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "        \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "        \
    "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "        \
    "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "        \
    "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "          \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
#define MULTIPLY(types, modes)                                                                     \
    "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %130, 0;\n\t"                                    \
    "wgmma.mma_async.sync.aligned.m64n256k" types " " SUMS "%128, %129, add, 1, 1" modes ";\n\t}"

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

// The 8-bit floating types.
struct e4m3 {
    u8 bits;
};
struct e5m2 {
    u8 bits;
};

// d (64, 256) (+)= a (64, 32 bytes) @ b (32 bytes, 256). Only bf16 may lie along M or N. With an `a` in 8 bits `b` is
// e4m3.
template <class A, int A_ALONG_M, int B_ALONG_N> void multiply(float (&d)[128], u64 a, u64 b, u32 add) {
    if constexpr (sizeof(A) == 2)
        asm volatile(MULTIPLY("16.f32.bf16.bf16", ", %131, %132")
                     : F64(0), F64(64)
                     : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
    else if constexpr (is_same<A, e5m2>)
        asm volatile(MULTIPLY("32.f32.e5m2.e4m3", "") : F64(0), F64(64) : "l"(a), "l"(b), "r"(add));
    else
        asm volatile(MULTIPLY("32.f32.e4m3.e4m3", "") : F64(0), F64(64) : "l"(a), "l"(b), "r"(add));
}
