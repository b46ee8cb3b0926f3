// Rotary position embedding in place, half-split form: channel i of a head pairs with i + head_dim / 2.
#include "common.cuh"

// A thread takes N pairs. `rotated` heads of a row (queries and keys) turn; values, after them, are left alone.
template <class T, int N>
void rotary(T* qkv, const float* table, u32 rows, u32 seq, u32 width, u32 rotated, u32 half, float sign) {
    u32 pack = blockIdx.x * blockDim.x + threadIdx.x, packs = half / N;
    if (pack >= rotated * packs) return;
    u32 head = pack / packs, channel = pack % packs * N;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        T* first = qkv + row * width + head * 2 * half + channel;
        const float* angles = table + (row % seq * half + channel) * 2;
        float a[N], b[N], angle[2 * N];
        if constexpr (N == 1) angle[0] = angles[0], angle[1] = angles[1];
        else load_f32<2 * N>(angles, angle);
        load<N>(first, a);
        load<N>(first + half, b);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float cos = angle[2 * i], sin = sign * angle[2 * i + 1], x = a[i], y = b[i];
            a[i] = x * cos - y * sin;
            b[i] = x * sin + y * cos;
        }
        store<N>(first, a);
        store<N>(first + half, b);
    }
}
#define ROTARY(T, N, suffix)                                                                                           \
    KERNEL(rotary_##suffix)                                                                                            \
    (T* qkv, const float* table, u32 rows, u32 seq, u32 width, u32 rotated, u32 half, float sign) {                    \
        begin_kernel();                                                                                                \
        rotary<T, N>(qkv, table, rows, seq, width, rotated, half, sign);                                               \
    }
FOR_EACH_FLOAT(ROTARY)
