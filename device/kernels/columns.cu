// Column sums in two steps: chunks of rows, then the chunks in order. Reads the matrix once; the partial sums are
// (chunks, columns) f32.
#include "common.cuh"

// Rows in flight for each thread.
const int UNROLL = 4;

// partial[chunk, c] = sum of input[r, c] over the chunk's rows. A block is 32 packs of N columns by 8 rows.
template <class T, int N> void column_sums(const T* input, float* partial, u32 rows, u32 columns, u32 chunk_rows) {
    __shared__ float sums[8][32 * N];
    u32 lane = threadIdx.x % 32, part = threadIdx.x / 32;
    u64 column = ((u64)blockIdx.x * 32 + lane) * N;
    u32 start = blockIdx.y * chunk_rows, end = min(rows, start + chunk_rows);
    float total[N] = {};
    if (column < columns) {
        for (u32 base = start + part; base < end; base += 8 * UNROLL) {
            Raw<T, N> raw[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                u32 row = base + 8 * u;
                raw[u] = row < end ? fetch<N>(input + (u64)row * columns + column) : Raw<T, N>{};
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                float x[N];
                unpack(raw[u], x);
#pragma unroll
                for (int i = 0; i < N; i++) total[i] += x[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) sums[part][lane * N + i] = total[i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < 32 * N; i += blockDim.x) {
        u64 at = (u64)blockIdx.x * 32 * N + i;
        if (at >= columns) continue;
        float sum = 0.0f;
        for (int p = 0; p < 8; p++) sum += sums[p][i];
        partial[(u64)blockIdx.y * columns + at] = sum;
    }
}
#define COLUMN_SUMS(T, N, suffix)                                                                               \
    KERNEL(column_sums_##suffix)(const T* input, float* partial, u32 rows, u32 columns, u32 chunk_rows) { \
        begin_kernel();                                                                                   \
        column_sums<T, N>(input, partial, rows, columns, chunk_rows);                                           \
    }
FOR_EACH_FLOAT(COLUMN_SUMS)

struct PartialColumns {
    const float* partial; // (parts, columns)
    float* output;        // (columns)
    u32 parts;
    u32 columns;
};

struct PartialSums {
    PartialColumns sums[16];
    u32 accumulate;
    u32 reserved;
};

// output[c] (+)= sum of partial[part, c] over the parts, for each of as many sums as the grid has rows. A block is 32
// columns by 32 threads. Each of the 32 has every 32nd part.
KERNEL(add_partial_columns)(const __grid_constant__ PartialSums op) {
    begin_kernel();
    __shared__ float sums[32][32];
    const PartialColumns& entry = op.sums[blockIdx.y];
    const float* partial = entry.partial;
    u32 parts = entry.parts, columns = entry.columns;
    u32 lane = threadIdx.x % 32, part = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float total = 0.0f;
    if (column < columns) {
        const u32 LOADS = 8; // in flight
        u32 p = part;
        for (; p + (LOADS - 1) * 32 < parts; p += LOADS * 32) {
            float x[LOADS];
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) x[i] = partial[(u64)(p + i * 32) * columns + column];
#pragma unroll
            for (u32 i = 0; i < LOADS; i++) total += x[i];
        }
        for (; p < parts; p += 32) total += partial[(u64)p * columns + column];
    }
    sums[part][lane] = total;
    __syncthreads();
    if (part != 0 || column >= columns) return;
    float sum = 0.0f;
    for (int p = 0; p < 32; p++) sum += sums[p][lane];
    entry.output[column] = op.accumulate ? entry.output[column] + sum : sum;
}
