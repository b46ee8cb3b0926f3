// Does the hardware clip boxes of a ragged map (hopper.cuh) at a segment's end? One box is loaded and written to
// `loaded` line by line. Then a box of other values is stored. One block of 128 threads.
#include "hopper.cuh"

struct Arguments {
    TensorMap from, to;
    // (64, 64).
    u16* loaded;
    u32 x, start, rows, row;
};

extern "C" __global__ void __launch_bounds__(128) probe(const __grid_constant__ Arguments arguments) {
    __shared__ __align__(1024) u8 box[BOX_BYTES];
    __shared__ u64 barrier;
    u32 here = shared_address(box), done = shared_address(&barrier);
    auto word = [&](u32 i) {
        u32 at = here + i * 2;
        return reinterpret_cast<u16*>(box + ((at ^ (at >> 7 & 7) << 4) - here));
    };
    for (u32 i = threadIdx.x; i < 4096; i += 128) *word(i) = 0x7fff;
    if (threadIdx.x == 0) barrier_start(done, 1), barriers_started();
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_expect(done, BOX_BYTES);
        load_ragged_box<false>(here, &arguments.from, arguments.x, arguments.start, arguments.rows, arguments.row,
                               done);
    }
    barrier_wait(done, 0);
    for (u32 i = threadIdx.x; i < 4096; i += 128) arguments.loaded[i] = *word(i);
    __syncthreads();
    for (u32 i = threadIdx.x; i < 4096; i += 128) *word(i) = (u16)(i + 1);
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        store_ragged_box(&arguments.to, arguments.x, arguments.start, arguments.rows, arguments.row, here);
        end_stores();
        wait_until_stores_have_read<0>();
    }
}
