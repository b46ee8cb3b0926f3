// Clusters of blocks, and messages between their blocks. They need compute capability 9.0. The host starts kernels with
// clusters nowhere else.
#pragma once
#include "common.cuh"

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

// All threads of all blocks meet. That waits for every store to memory, so it is slow: for the start of a kernel alone.
inline void cluster_meet() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// So many warps of a block meet at the barrier of this number, 0 to 15. The other warps go on.
inline void meet_warps(u32 barrier, u32 warps) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * 32) : "memory");
}

// ---- Messages: they count their bytes at a barrier in the shared memory of the block that gets them ---------------

// A phase of the barrier is over once as many bytes have come as its block expects. Then the next one begins.
typedef u64 Arrivals;

inline u32 shared_address(const void* here) { return (u32)__cvta_generic_to_shared(here); }

// The address in another block of the variable that lies at `here` in this block.
inline u32 address_in_block(const void* here, u32 block) {
    u32 there = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
#endif
    return there;
}

// One thread does it before the cluster meets.
inline void start_arrivals(Arrivals* arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrivals)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// One thread says it once a phase. The bytes may come before or after.
inline void expect_bytes(Arrivals* arrivals, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrivals)), "r"(bytes)
                 : "memory");
#endif
}

// Waits for the end of a phase: of the first one with parity 0, of the second one with 1, and so on in turn.
inline void wait_for_bytes(Arrivals* arrivals, u32 parity) {
#if __CUDA_ARCH__ >= 900
    u32 over = 0;
    while (!over) {
        asm volatile("{ .reg .pred over; mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2; selp.u32 %0, 1, 0, over; }"
                     : "=r"(over)
                     : "r"(shared_address(arrivals)), "r"(parity)
                     : "memory");
    }
#endif
}

// Raises the number of another block that is `here` in this one to at least x, and counts 4 bytes at its barrier.
inline void raise_in_block(u32* here, Arrivals* arrivals, u32 block, u32 x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32 [%0], %1, [%2];" ::"r"(
                     address_in_block(here, block)),
                 "r"(x), "r"(address_in_block(arrivals, block))
                 : "memory");
#endif
}
