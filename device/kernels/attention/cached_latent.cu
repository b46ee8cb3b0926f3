// Generating text with latent attention: attention over a cache of latents, in absorbed form.
#include "cache.cuh"
#include "soft_cap.cuh"
#include "turn.cuh"

struct CachedLatent {
    const void* queries; // rows that begin with (heads, plain + turned)
    const void* latents; // (rank)
    const void* rotated; // rows that end with the keys' channels to be turned
    const float* table;  // (rows, turned / 2, 2)
    const void* weight;  // (heads, plain + value, rank)
    void* cache;         // (capacity, rank + turned)
    const int* start;
    void* output; // (heads, value)
    u32 rows;
    u32 capacity;
    u32 heads;
    u32 rank;
    u32 plain;
    u32 turned; // channels that are turned
    u32 value;
    u32 query_columns; // of a row of `queries`
    u32 rotated_columns;
    u32 all_rows; // of all sequences
    u32 window;   // keys that a query sees at most, its own among them; larger than any position for all
    float scale;  // of products
    float soft_cap; // of scores, or 0
    u32 reserved;
};

// The vectors of new tokens to rows start .. start + rows of the cache. x covers a vector, y distributes the rows.
template <class T> void append_latents(const CachedLatent& a) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, width = a.rank + a.turned;
    if (column >= width) return;
    u64 first = position(a.start, a.rows, a.capacity);
    for (u64 row = blockIdx.y; row < a.all_rows; row += gridDim.y) {
        T* to = (T*)a.cache + (row / a.rows * a.capacity + first + row % a.rows) * width;
        const T* from = (const T*)a.rotated + (row + 1) * a.rotated_columns - a.turned;
        const float* angles = a.table + row % a.rows * a.turned;
        float x = column < a.rank ? value((const T*)a.latents + row * a.rank + column)
                                  : turned(from, angles, column - a.rank, 1.0f);
        set(to + column, x);
    }
}

// One block per query (x) and head (y), as `cached_attention` of cache.cu, but for what a query is multiplied by before,
// and a sum after. A key is read once: its latent is its value too. Lane l has channels l, l + 32, ... below 32 * LANES.
template <class T, int LANES> void cached_latent_attention(const CachedLatent& a) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = a.rank + a.turned;
    u32 sequence = blockIdx.x / a.rows, row = blockIdx.x % a.rows, head = blockIdx.y;
    u32 last = position(a.start, a.rows, a.capacity) + row;
    const T* of_query = (const T*)a.queries + (u64)blockIdx.x * a.query_columns + head * (a.plain + a.turned);
    const T* to_keys = (const T*)a.weight + (u64)head * (a.plain + a.value) * a.rank;
    const T* to_values = to_keys + (u64)a.plain * a.rank;
    const T* keys = (const T*)a.cache + (u64)sequence * a.capacity * width;
    __shared__ float vector[32 * LANES]; // the query as it meets cached vectors; then the sum of latents
    for (u32 channel = threadIdx.x; channel < width; channel += blockDim.x) {
        float x = 0.0f;
        if (channel < a.rank) {
#pragma unroll 8
            for (u32 i = 0; i < a.plain; i++) x += value(of_query + i) * value(to_keys + (u64)i * a.rank + channel);
        } else {
            x = turned(of_query + a.plain, a.table + row * a.turned, channel - a.rank, 1.0f);
        }
        vector[channel] = x * a.scale;
    }
    __syncthreads();
    float query[LANES], sum[LANES], highest = __int_as_float(0xff800000), total = 0.0f; // minus infinity
#pragma unroll
    for (int i = 0; i < LANES; i++) query[i] = lane + 32 * i < width ? vector[lane + 32 * i] : 0.0f, sum[i] = 0.0f;
    u32 first = last + 1 > a.window ? last + 1 - a.window : 0;
    for (u64 key = first + warp; key <= last; key += WARPS) {
        float latent[LANES], score = 0.0f;
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            u32 channel = lane + 32 * i;
            latent[i] = channel < width ? value(keys + key * width + channel) : 0.0f;
            score += query[i] * latent[i];
        }
        score = warp_sum(score);
        if (a.soft_cap > 0.0f) score = soft_cap<float>(score, a.soft_cap);
        float higher = fmaxf(highest, score), old = expf(highest - higher), weight = expf(score - higher);
        highest = higher;
        total = total * old + weight;
#pragma unroll
        for (int i = 0; i < LANES; i++) sum[i] = sum[i] * old + weight * latent[i];
    }
    __shared__ Found<LANES> found;
    found.put(highest, total, sum);
    float top = found.highest_of_all(), all = found.weights(top);
    for (u32 channel = threadIdx.x; channel < a.rank; channel += blockDim.x) {
        vector[channel] = found.sum(channel, top) / all;
    }
    __syncthreads();
    T* output = (T*)a.output + ((u64)blockIdx.x * a.heads + head) * a.value;
    for (u32 channel = warp; channel < a.value; channel += WARPS) {
        float x = 0.0f;
        for (u32 i = lane; i < a.rank; i += 32) x += vector[i] * value(to_values + (u64)channel * a.rank + i);
        x = warp_sum(x);
        if (lane == 0) set(output + channel, x);
    }
}

#define CACHED_LATENT(T, suffix)                                                                                       \
    KERNEL(append_latents_##suffix)(CachedLatent a) { begin_kernel(); append_latents<T>(a); }                          \
    CACHED_LATENT_ATTENTION(T, 2, suffix##_64)                                                                         \
    CACHED_LATENT_ATTENTION(T, 10, suffix##_320)                                                                       \
    CACHED_LATENT_ATTENTION(T, 18, suffix##_576)
#define CACHED_LATENT_ATTENTION(T, LANES, suffix)                                                                      \
    KERNEL(cached_latent_attention_##suffix)(CachedLatent a) { begin_kernel(); cached_latent_attention<T, LANES>(a); }
CACHED_LATENT(float, f32)
CACHED_LATENT(bf16, bf16)
