// The parts of system.cuh that kernels/transfers/peers.cu and peer_rows.cu use, for a CPU.
#pragma once
#include <thread>

inline uint4 load_uncached(const uint4* from) { return *from; }
inline u32 load_uncached(const u32* from) { return *from; }
inline u64 load_uncached(const u64* from) { return *from; }

inline void store_release(u32* to, u32 value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }

inline u32 load_acquire(const u32* from) {
    u32 value = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    std::this_thread::yield();
    return value;
}
