// Sums over parts of the keys of attention: of outputs, weighted by their rows' sums, and of gradients.
#include "common.cuh"

// A warp takes a head of a row, N channels a lane and iteration. Outputs are (batch, seq, heads dim), statistics
// (batch, heads, seq). Tokens before `first_query` saw no key of the second part. The results may replace the first part:
// a warp reads its statistics before it writes them, and each lane its values.
template <class First, class Second, class To, int N>
void merge_attention(const First* first, const float* first_stats, const Second* second, const float* second_stats,
                     To* merged, float* merged_stats, u64 rows, u32 seq, u32 heads, u32 dim, u32 first_query) {
    u32 lane = threadIdx.x % 32;
    u64 warps = (u64)gridDim.x * (blockDim.x / 32);
    for (u64 warp = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; warp < rows * heads; warp += warps) {
        u64 row = warp / heads, sample = row / seq;
        u32 head = (u32)(warp % heads), token = (u32)(row % seq);
        u64 stat = (sample * heads + head) * seq + token;
        bool seen = token >= first_query;
        float a = first_stats[stat], b = seen ? second_stats[stat] : a;
        float top = fmaxf(a, b), of_first = expf(a - top), of_second = seen ? expf(b - top) : 0.0f;
        float sum = of_first + of_second;
        of_first /= sum, of_second /= sum;
        __syncwarp();
        if (lane == 0) merged_stats[stat] = top + logf(sum);
        for (u32 channel = lane * N; channel < dim; channel += 32 * N) {
            u64 at = warp * dim + channel;
            float x[N], y[N];
            load<N>(first + at, x);
            if (seen) load<N>(second + at, y);
#pragma unroll
            for (int i = 0; i < N; i++) x[i] = of_first * x[i] + (seen ? of_second * y[i] : 0.0f);
            store<N>(merged + at, x);
        }
    }
}
#define MERGE_ATTENTION(First, Second, To, N, suffix)                                                                   \
    KERNEL(merge_attention_##suffix)(const First* first, const float* first_stats, const Second* second,                \
                                     const float* second_stats, To* merged, float* merged_stats, u64 rows, u32 seq,     \
                                     u32 heads, u32 dim, u32 first_query) {                                             \
        begin_kernel();                                                                                                 \
        merge_attention<First, Second, To, N>(first, first_stats, second, second_stats, merged, merged_stats, rows, seq, \
                                              heads, dim, first_query);                                                 \
    }

// to[row, c] = a[row, c] + b[row, c] in the rows `begin` to `end` of each sample, and a[row, c] in the others. `a` may be
// null, for zeros, and may be `to`. N columns a thread; y distributes the rows.
template <class To, class B, int N>
void add_rows(const To* a, u64 a_width, const B* b, u64 b_width, To* to, u64 to_width, u32 rows, u32 tokens,
              u32 columns, u32 begin, u32 end) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= columns) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        u32 token = row % tokens;
        float x[N], y[N];
        for (int i = 0; i < N; i++) x[i] = 0.0f;
        if (a) load<N>(a + row * a_width + column, x);
        if (token >= begin && token < end) {
            load<N>(b + row * b_width + column, y);
            for (int i = 0; i < N; i++) x[i] += y[i];
        }
        store<N>(to + row * to_width + column, x);
    }
}
#define ADD_ROWS(To, B, N, suffix)                                                                                     \
    KERNEL(add_rows_##suffix)(const To* a, u64 a_width, const B* b, u64 b_width, To* to, u64 to_width, u32 rows,        \
                              u32 tokens, u32 columns, u32 begin, u32 end) {                                            \
        begin_kernel();                                                                                                 \
        add_rows<To, B, N>(a, a_width, b, b_width, to, to_width, rows, tokens, columns, begin, end);                    \
    }

// Types in the order of the arguments; four values at a time, or one.
#define BOTH_WIDTHS(N, suffix)                                           \
    MERGE_ATTENTION(float, float, float, N, f32_f32_f32##suffix)         \
    MERGE_ATTENTION(bf16, bf16, bf16, N, bf16_bf16_bf16##suffix)         \
    MERGE_ATTENTION(bf16, bf16, float, N, bf16_bf16_f32##suffix)         \
    MERGE_ATTENTION(float, bf16, float, N, f32_bf16_f32##suffix)         \
    MERGE_ATTENTION(float, bf16, bf16, N, f32_bf16_bf16##suffix)         \
    ADD_ROWS(float, float, N, f32_f32##suffix)                           \
    ADD_ROWS(float, bf16, N, f32_bf16##suffix)                           \
    ADD_ROWS(bf16, float, N, bf16_f32##suffix)                           \
    ADD_ROWS(bf16, bf16, N, bf16_bf16##suffix)
BOTH_WIDTHS(4, )
BOTH_WIDTHS(1, _scalar)
