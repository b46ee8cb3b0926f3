// Threads for the threads of blocks, on all ranks at once.
#pragma once
#include <memory>
#include <vector>

static const u32 THREADS = 8;  // at least as many as ranks

// What the threads of a block tell each other, each twice over: see of_lane.
struct Told {
    u32 turns[THREADS], values[THREADS][2];
};
inline thread_local Told* told;

// As in system.cuh: the thread tells its value, and waits until all of its group have told theirs.
inline u32 of_lane(u32 value, u32 lane, u32 lanes) {
    const u32 group = threadIdx.x & ~(lanes - 1), turn = told->turns[threadIdx.x] + 1;
    told->values[threadIdx.x][turn % 2] = value;
    store_release(&told->turns[threadIdx.x], turn);
    for (u32 other = group; other < group + lanes; other++) {
        while ((int)(load_acquire(&told->turns[other]) - turn) < 0) {}
    }
    return told->values[group + lane][turn % 2];
}

// Calls `kernel(rank)` on every thread of so many blocks of each rank.
template <class Kernel> static void on_ranks(u32 ranks, u32 blocks, const Kernel& kernel) {
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    std::vector<std::unique_ptr<Told>> of_blocks;
    for (u32 rank = 0; rank < ranks; rank++) {
        for (u32 block = 0; block < blocks; block++) {
            barriers.emplace_back(new std::barrier<>(THREADS));
            of_blocks.emplace_back(new Told());
            for (u32 thread = 0; thread < THREADS; thread++) {
                threads.emplace_back([&, rank, block, thread, barrier = barriers.back().get(), of_block = of_blocks.back().get()] {
                    threadIdx = {thread}, blockIdx = {block}, blockDim = {THREADS}, gridDim = {blocks};
                    threads_of_block = barrier, told = of_block;
                    kernel(rank);
                });
            }
        }
    }
    for (std::thread& thread : threads) thread.join();
}
