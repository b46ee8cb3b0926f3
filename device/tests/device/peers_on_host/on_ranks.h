// Threads for the threads of blocks, on all ranks at once.
#pragma once
#include <memory>
#include <vector>

static const u32 THREADS = 8;  // at least as many as ranks

// Calls `kernel(rank)` on every thread of so many blocks of each rank.
template <class Kernel> static void on_ranks(u32 ranks, u32 blocks, const Kernel& kernel) {
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    for (u32 rank = 0; rank < ranks; rank++) {
        for (u32 block = 0; block < blocks; block++) {
            barriers.emplace_back(new std::barrier<>(THREADS));
            for (u32 thread = 0; thread < THREADS; thread++) {
                threads.emplace_back([&, rank, block, thread, barrier = barriers.back().get()] {
                    threadIdx = {thread}, blockIdx = {block}, blockDim = {THREADS}, gridDim = {blocks};
                    threads_of_block = barrier;
                    kernel(rank);
                });
            }
        }
    }
    for (std::thread& thread : threads) thread.join();
}
