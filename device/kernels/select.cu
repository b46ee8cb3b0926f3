// A choice between two tensors: a loop over the grid, up to 16 bytes per thread and iteration. With a flag only the
// chosen tensor is read; with a mask both are.
#include "common.cuh"

// N neighbouring values, moved at once.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T of[N];
};

// output[i] = (mask ? mask[i] : *flag) ? a[i] : b[i]; `output` may be `a` or `b`. Values are moved as they are.
template <class T, int N> void select(const int* flag, const u8* mask, const T* a, const T* b, T* output, u64 count) {
    u64 stride = (u64)gridDim.x * blockDim.x;
    const T* chosen = mask ? nullptr : *flag ? a : b;
    if (chosen == output) return;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < count / N; pack += stride) {
        u64 at = pack * N;
        if (chosen) {
            *(Pack<T, N>*)(output + at) = *(const Pack<T, N>*)(chosen + at);
            continue;
        }
        Pack<u8, N> yes = *(const Pack<u8, N>*)(mask + at);
        Pack<T, N> x = *(const Pack<T, N>*)(a + at), y = *(const Pack<T, N>*)(b + at);
#pragma unroll
        for (int i = 0; i < N; i++) x.of[i] = yes.of[i] ? x.of[i] : y.of[i];
        *(Pack<T, N>*)(output + at) = x;
    }
}

#define SELECT(T, N, suffix)                                                                                         \
    KERNEL(select_##suffix)(const int* flag, const u8* mask, const T* a, const T* b, T* output, u64 count) {         \
        begin_kernel();                                                                                              \
        select<T, N>(flag, mask, a, b, output, count);                                                               \
    }
// By the size of a value in bits.
SELECT(u8, 16, 8)
SELECT(u16, 8, 16)
SELECT(u32, 4, 32)
SELECT(u8, 1, 8_scalar)
SELECT(u16, 1, 16_scalar)
SELECT(u32, 1, 32_scalar)
