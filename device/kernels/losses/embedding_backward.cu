// Gradient of the embedding: sums of gradient rows over runs of equal tokens in a sorted list, whatever their lengths.
//
// The list is split into chunks of 32 entries. A run that lies inside a chunk is complete and is added to the table.
// The chunk's first and last runs may continue in the neighbouring chunks: their sums become two entries of a shorter
// list, sorted like this one. That list is treated the same way, until one chunk is left. So a list of equal tokens
// costs only a few more small launches.
#include "common.cuh"

// Entries of a list that one block adds up; `CHUNK` in `device/src/ops/trainer/losses/embedding/launch.rs`.
const u32 CHUNK = 32;
// Rows in flight for each thread.
const u32 UNROLL = 4;
const u64 NOTHING = ~0ull;

// Entries of `list` are (token, row of `rows`), or NOTHING; `next_list` has two for each chunk, with rows of
// `next_rows` of the same numbers. Sums times `scale` are added to `table`. A block is a chunk, and blockIdx.y a part
// of the columns.
template <class T, int N>
void add_runs(const u64* list, const T* rows, u64* next_list, float* next_rows, float* table, u32 count, u32 hidden, u32 vocab,
              float scale) {
    __shared__ u64 entries[CHUNK];
    const bool last_list = gridDim.x == 1;
    u32 length = min(CHUNK, count - blockIdx.x * CHUNK);
    if (threadIdx.x < CHUNK) entries[threadIdx.x] = threadIdx.x < length ? list[blockIdx.x * CHUNK + threadIdx.x] : NOTHING;
    __syncthreads();
    const u32 column = (blockIdx.y * blockDim.x + threadIdx.x) * N;
    const bool inside = column < hidden;
    const bool writes_list = threadIdx.x == 0 && blockIdx.y == 0 && !last_list;
    // The first entry of a chunk is never NOTHING: chunks have an even size, and the first of each pair of entries
    // exists.
    u32 token = (u32)(entries[0] >> 32);
    bool first_run = true;
    float sum[N] = {};

    // Ends the run: to the table, or to entry `slot` of the next list.
    auto to_table = [&]() {
        if (!inside || token >= vocab) return; // another rank's token
        float* row = table + (u64)token * hidden + column;
        float old[N];
        load_f32<N>(row, old);
#pragma unroll
        for (int i = 0; i < N; i++) old[i] += sum[i] * scale;
        store_f32<N>(row, old);
    };
    auto to_next = [&](u32 slot) {
        u32 at = blockIdx.x * 2 + slot;
        if (writes_list) next_list[at] = (u64)token << 32 | at;
        if (inside) store_f32<N>(next_rows + (u64)at * hidden + column, sum);
    };

    for (u32 base = 0; base < CHUNK; base += UNROLL) {
        Raw<T, N> raw[UNROLL];
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u64 entry = entries[base + u];
            if (entry != NOTHING && inside) raw[u] = fetch<N>(rows + (u64)(u32)entry * hidden + column);
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; u++) {
            u64 entry = entries[base + u];
            if (entry == NOTHING) continue;
            if ((u32)(entry >> 32) != token) {
                if (first_run && !last_list) to_next(0);
                else to_table();
                first_run = false;
                token = (u32)(entry >> 32);
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] = 0.0f;
            }
            if (!inside) continue;
            float x[N];
            unpack(raw[u], x);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += x[i];
        }
    }
    if (last_list) {
        to_table();
    } else if (first_run) {
        to_next(0);
        if (writes_list) next_list[blockIdx.x * 2 + 1] = NOTHING;
    } else {
        to_next(1);
    }
}
#define ADD_RUNS(T, N, suffix)                                                                                         \
    KERNEL(add_runs_##suffix)                                                                                          \
    (const u64* list, const T* rows, u64* next_list, float* next_rows, float* table, u32 count, u32 hidden, u32 vocab, float scale) { \
        begin_kernel();                                                                                                           \
        add_runs<T, N>(list, rows, next_list, next_rows, table, count, hidden, vocab, scale);                                        \
    }
FOR_EACH_FLOAT(ADD_RUNS)

// grad_positions[s] += sum of grad_output[b, s] over the batch.
template <class T, int N>
void add_positions(const T* grad_output, float* grad_positions, u32 batch, u32 seq, u32 hidden) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= hidden) return;
    for (u32 position = blockIdx.y; position < seq; position += gridDim.y) {
        float sum[N] = {};
#pragma unroll 4
        for (u32 b = 0; b < batch; b++) {
            float x[N];
            load<N>(grad_output + ((u64)b * seq + position) * hidden + column, x);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += x[i];
        }
        float* at = grad_positions + (u64)position * hidden + column;
        float old[N];
        load_f32<N>(at, old);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += old[i];
        store_f32<N>(at, sum);
    }
}
#define ADD_POSITIONS(T, N, suffix)                                                                                    \
    KERNEL(add_positions_##suffix)(const T* grad_output, float* grad_positions, u32 batch, u32 seq, u32 hidden) {      \
        begin_kernel();                                                                                                \
        add_positions<T, N>(grad_output, grad_positions, batch, seq, hidden);                                          \
    }
FOR_EACH_FLOAT(ADD_POSITIONS)
