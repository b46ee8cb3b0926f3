// Generating text: attention over a cache of keys and values, and rows at a position that lies in device memory, so
// that one graph serves every token.
#include "cache.cuh"
#include "soft_cap.cuh"

// output[r] = table[start + r], rows of `width` values.
template <class T, int N>
void take_rows(const T* table, const int* start, T* output, u32 rows, u32 width, u32 capacity) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= width) return;
    u64 first = position(start, rows, capacity);
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        put(output + row * width + column, fetch<N>(table + (first + row) * width + column));
    }
}
#define TAKE_ROWS(T, N, suffix)                                                                                        \
    KERNEL(take_rows_##suffix)                                                                                         \
    (const T* table, const int* start, T* output, u32 rows, u32 width, u32 capacity) {                                 \
        begin_kernel();                                                                                                \
        take_rows<T, N>(table, start, output, rows, width, capacity);                                                  \
    }
FOR_EACH_FLOAT(TAKE_ROWS)

// Keys and values of qkv (batch, rows, queries + width) to rows start .. start + rows of cache (batch, capacity,
// width).
template <class T, int N>
void append_cache(const T* qkv, T* cache, const int* start, u32 all_rows, u32 rows, u32 queries, u32 width, u32 capacity) {
    u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (column >= width) return;
    u64 first = position(start, rows, capacity);
    for (u64 row = blockIdx.y; row < all_rows; row += gridDim.y) {
        u64 to = row / rows * capacity + first + row % rows;
        put(cache + to * width + column, fetch<N>(qkv + row * (queries + width) + queries + column));
    }
}
#define APPEND_CACHE(T, N, suffix)                                                                                     \
    KERNEL(append_cache_##suffix)                                                                                      \
    (const T* qkv, T* cache, const int* start, u32 all_rows, u32 rows, u32 queries, u32 width, u32 capacity) {         \
        begin_kernel();                                                                                                \
        append_cache<T, N>(qkv, cache, start, all_rows, rows, queries, width, capacity);                               \
    }
FOR_EACH_FLOAT(APPEND_CACHE)

struct CachedAttention {
    const void* qkv;
    const void* cache;
    const int* start;
    void* output;
    const float* sinks; // of heads; null without
    u32 rows;
    u32 capacity;
    u32 heads;
    u32 kv_heads;
    u32 dim;
    float scale; // of products
    u32 window;  // keys that a query sees at most, its own among them; larger than any position for all
    float soft_cap; // of scores, or 0
};

// One block per query (x) and head (y). Reading the cache bounds its speed. Warp w takes keys w, w + 8, ... of those that
// the query sees and keeps a running maximum, sum and weighted sum of values (Milakov and Gimelshein, 2018); its lane l has
// channels l, l + 32, ... At the end the warps' results are added up in order.
template <class T, int LANES> void cached_attention(const CachedAttention& a) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 sequence = blockIdx.x / a.rows, row = blockIdx.x % a.rows, head = blockIdx.y;
    u32 last = position(a.start, a.rows, a.capacity) + row;
    u32 width = 2 * a.kv_heads * a.dim;
    const T* query = (const T*)a.qkv + (u64)blockIdx.x * (a.heads * a.dim + width) + head * a.dim;
    const T* keys = (const T*)a.cache + (u64)sequence * a.capacity * width + head / (a.heads / a.kv_heads) * a.dim;
    const T* values = keys + a.kv_heads * a.dim;
    float q[LANES], sum[LANES], highest = __int_as_float(0xff800000), total = 0.0f; // minus infinity
#pragma unroll
    for (int i = 0; i < LANES; i++) {
        u32 channel = lane + 32 * i;
        q[i] = channel < a.dim ? value(query + channel) * a.scale : 0.0f;
        sum[i] = 0.0f;
    }
    u32 first = last + 1 > a.window ? last + 1 - a.window : 0;
    for (u64 key = first + warp; key <= last; key += WARPS) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            u32 channel = lane + 32 * i;
            if (channel < a.dim) score += q[i] * value(keys + key * width + channel);
        }
        score = warp_sum(score);
        if (a.soft_cap > 0.0f) score = soft_cap<float>(score, a.soft_cap);
        float higher = fmaxf(highest, score), old = expf(highest - higher), weight = expf(score - higher);
        highest = higher;
        total = total * old + weight;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            u32 channel = lane + 32 * i;
            if (channel < a.dim) sum[i] = sum[i] * old + weight * value(values + key * width + channel);
        }
    }
    __shared__ Found<LANES> found;
    found.put(highest, total, sum);
    float sink = a.sinks ? a.sinks[head] : __int_as_float(0xff800000);
    float top = fmaxf(found.highest_of_all(), sink), all = found.weights(top) + expf(sink - top);
    T* output = (T*)a.output + ((u64)blockIdx.x * a.heads + head) * a.dim;
    for (u32 channel = threadIdx.x; channel < a.dim; channel += blockDim.x) {
        set(output + channel, found.sum(channel, top) / all);
    }
}
#define CACHED_ATTENTION(T, LANES, suffix) \
    KERNEL(cached_attention_##suffix)(CachedAttention a) { begin_kernel(); cached_attention<T, LANES>(a); }
CACHED_ATTENTION(float, 2, f32_64)
CACHED_ATTENTION(float, 4, f32_128)
CACHED_ATTENTION(float, 8, f32_256)
CACHED_ATTENTION(bf16, 2, bf16_64)
CACHED_ATTENTION(bf16, 4, bf16_128)
CACHED_ATTENTION(bf16, 8, bf16_256)
