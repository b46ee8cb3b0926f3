// Loads and stores of memory that other GPUs write and read.
#pragma once

// Not from the L1 cache: another GPU may have written the memory.
inline uint4 load_uncached(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}

inline u32 load_uncached(const u32* from) {
    u32 x;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

inline u64 load_uncached(const u64* from) {
    u64 x;
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}

// A value of another of the threads that move a row: a group of so many neighbours, a power of two. All of the group call it.
inline u32 of_lane(u32 value, u32 lane, u32 lanes) {
    const u32 group = threadIdx.x % 32 & ~(lanes - 1);
    const u32 mask = (lanes == 32 ? ~0u : (1u << lanes) - 1) << group;
    return __shfl_sync(mask, value, lane, lanes);
}

// A thread that sees the value also sees all earlier writes of this thread and of those that met it at a barrier.
inline void store_release(u32* to, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// See store_release.
inline u32 load_acquire(const u32* from) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}
