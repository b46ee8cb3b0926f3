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
