// 8-bit copies with a scale for each row, and the scales. A block is a row. If the inputs' row fits, it stays in
// shared memory, so that memory is read once; each thread reads only its own loads there. If it does not fit it is
// read again.
#include "quantize.cuh"

// Declared once for all kernels.
extern __shared__ uint4 kept[];

// The pack of 8 columns that this thread has kept: word by word, a warp's words side by side.
template <class S, class T> Pack<T, S::LOADS> kept_pack(u32 pack, u32 packs) {
    Pack<T, S::LOADS> loaded;
#pragma unroll
    for (int l = 0; l < S::LOADS; l++) {
#pragma unroll
        for (int w = 0; w < loaded.WORDS; w++) loaded.words[l][w] = kept[(l * loaded.WORDS + w) * packs + pack];
    }
    return loaded;
}

template <class S, class T, bool VECTOR> Pack<T, S::LOADS> row_pack(const Quantize& q, u64 row, u32 pack, u32 packs) {
    if constexpr (VECTOR) {
        if (q.kept) return kept_pack<S, T>(pack, packs);
    }
    return fetch_pack<S, T, VECTOR>(q, row, pack * 8);
}

// Over the block, on every thread.
inline u32 block_largest(u32 x) {
    __shared__ u32 parts[32];
    x = __reduce_max_sync(0xffffffffu, x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0);
}

template <class S, class T, bool VECTOR> void quantize_row(const Quantize& q) {
    u64 row = blockIdx.x;
    u32 packs = (q.width + 7) / 8;
    if constexpr (VECTOR) {
        if (q.kept) {
            constexpr int WORDS = Pack<T, S::LOADS>::WORDS;
            for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
#pragma unroll
                for (int l = 0; l < S::LOADS; l++) {
                    const uint4* from = reinterpret_cast<const uint4*>((const T*)S::matrix(q, l) + S::at(q, row, pack * 8, l));
#pragma unroll
                    for (int w = 0; w < WORDS; w++) copy_ahead(&kept[(l * WORDS + w) * packs + pack], from + w);
                }
            }
            end_copies();
            wait_for_copies(0);
        }
    }
    u32 peak = 0;
    auto of_row = fetch_row<S>(q, row);
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        float x[S::OUTPUTS][8];
        auto of_columns = fetch_columns<S, T, VECTOR>(q, pack * 8);
        evaluate<S, T>(row_pack<S, T, VECTOR>(q, row, pack, packs), of_row, of_columns, x);
#pragma unroll
        for (int o = 0; o < S::OUTPUTS; o++) {
#pragma unroll
            for (int i = 0; i < 8; i++) peak = max(peak, magnitude(x[o][i]));
        }
    }
    peak = block_largest(peak);
    float scale = scale_of(__uint_as_float(peak), q.rows_e5m2 ? 57344.0f : 448.0f), inverse = 1.0f / scale;
    if (threadIdx.x == 0) {
        q.rows_scale[row] = scale;
        if (q.amax) atomicMax(q.amax, peak);
    }
    for (u32 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
        float x[S::OUTPUTS][8];
        auto of_columns = fetch_columns<S, T, VECTOR>(q, pack * 8);
        evaluate<S, T>(row_pack<S, T, VECTOR>(q, row, pack, packs), of_row, of_columns, x);
#pragma unroll
        for (int o = 0; o < S::OUTPUTS; o++) {
            store_row<S, VECTOR>(q, row, pack * 8, o, quantized(x[o], inverse, q.rows_e5m2));
        }
    }
}

#define QUANTIZE_ROWS(source, name, T, VECTOR, suffix)                                             \
    extern "C" __global__ void __launch_bounds__(256) quantize_rows_##name##_##suffix(Quantize q) { \
        begin_kernel();                                                                             \
        quantize_row<source, T, VECTOR>(q);                                                        \
    }
FOR_EACH_SOURCE(QUANTIZE_ROWS)
