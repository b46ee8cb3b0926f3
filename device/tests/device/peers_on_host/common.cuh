// The parts of CUDA and common.cuh that kernels/transfers/peers.cu and peer_rows.cu use, for a CPU. A thread of a block is a thread.
#pragma once
#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
using std::max;
using std::min;

struct uint4 {
    u32 x, y, z, w;
};

struct Index {
    u32 x;
};
inline thread_local Index threadIdx, blockIdx, blockDim, gridDim;
inline thread_local std::barrier<>* threads_of_block;
inline void __syncthreads() { threads_of_block->arrive_and_wait(); }

#define __grid_constant__
#define KERNEL(name) void name
inline void begin_kernel() {}

struct bf16 {
    u16 bits;
};

template <class T, int N> struct Raw {
    uint4 word;
};

inline void unpack(const Raw<float, 4>& raw, float (&x)[4]) { memcpy(x, &raw, 16); }
inline void unpack(const Raw<bf16, 8>& raw, float (&x)[8]) {
    bf16 values[8];
    memcpy(values, &raw, 16);
    for (int i = 0; i < 8; i++) {
        u32 bits = (u32)values[i].bits << 16;
        memcpy(&x[i], &bits, 4);
    }
}

inline void store(float* to, const float (&x)[4]) { memcpy(to, x, 16); }
// The values of the test need no rounding.
inline void store(bf16* to, const float (&x)[8]) {
    for (int i = 0; i < 8; i++) {
        u32 bits;
        memcpy(&bits, &x[i], 4);
        to[i].bits = (u16)(bits >> 16);
    }
}
