// The arguments of attention, the pairs that it sees, dropout, and tiles of its matrices: see `attention.cu`.
#pragma once
#include "soft_cap.cuh"

struct Arguments {
    const void* qkv;
    const void* keys; // and values, in rows of their own; null if qkv has them
    void* output;
    float* stats;
    const void* grad_output;
    void* grad_qkv;
    void* grad_keys;
    float* delta;       // row sums of output * grad_output, written by the queries' kernel, read by the keys'
    const void* record; // the dropout's step and first sample; null without dropout
    const int* position_ids; // (batch, key_seq): of each token in its document; null if a sample is one document
    int seq;
    int key_seq;
    int part; // queries that follow each other; seq if all do
    int first_shift; // added to the number of such a query to get its position
    int second_shift; // and of the others
    int heads;
    int kv_heads;
    int dim;
    float scale; // of products
    u32 key_low; // of Philox
    u32 key_high;
    u32 threshold;   // words below it are dropped
    float keep_scale; // 1 / (1 - rate)
    int vector;       // dim is a multiple of 4 and all addresses of 16
    u32 first_head;   // the number of heads on lower ranks, for dropout
    int window;       // keys that a query sees at most, its own among them; larger than seq for all
    float soft_cap;   // of scores, or 0
    u32 first_query;  // queries before it see no keys
    int last_key;     // of another rank's, all of which every query sees; or -1: a query sees those up to its own
    u32 reserved;
};

constexpr int THREADS = 256;

// --------------------------------------------------------------------------------------------------------------- mask

// The last key that a query sees: the position of the query in its sequence. A later query's is no earlier one.
__device__ inline int position_of(const Arguments& a, int row) {
    if (a.last_key >= 0) return a.last_key;
    return row + (row < a.part ? a.first_shift : a.second_shift);
}

// The first key that a query sees: it sees all from there to its own. A later query's is the same or a later one.
__device__ inline int first_key(const Arguments& a, int batch, int row) {
    int position = position_of(a, row), first = max(position - a.window + 1, 0);
    if (a.position_ids && row < a.seq)
        first = max(first, position - max(a.position_ids[(u64)batch * a.key_seq + position], 0));
    return first;
}

// The position of the last query of a tile.
template <int TILE> __device__ inline int last_position(const Arguments& a, int first) {
    return position_of(a, min(first + TILE, a.seq) - 1);
}

// ------------------------------------------------------------------------------------------------------------- scores

// The score of a product of a query and a key.
__device__ inline float score_of(const Arguments& a, float product) {
    float score = product * a.scale;
    return a.soft_cap > 0.0f ? soft_cap<float>(score, a.soft_cap) : score;
}

// The derivative of a score by its product.
__device__ inline float score_slope(const Arguments& a, float score) {
    return a.soft_cap > 0.0f ? soft_cap_slope(score, a.soft_cap) * a.scale : a.scale;
}

// ------------------------------------------------------------------------------------------------------------ dropout

struct Sample {
    u32 number;
    u32 step;
};

__device__ inline Sample read_sample(const Arguments& a, int batch) {
    if (!a.record) return {0, 0};
    const u32* record = (const u32*)a.record; // u64 first sample, u32 step
    return {record[0] + (u32)batch, record[2]};
}

// The factor of a probability, from Philox4x32-10 (Salmon et al., 2011): word channel % 4 of the counter (channel / 4,
// token, sample, step).
__device__ inline float mask_factor(const Arguments& a, Sample sample, u32 token, u32 channel) {
    u32 c0 = channel / 4, c1 = token, c2 = sample.number, c3 = sample.step;
    u32 k0 = a.key_low, k1 = a.key_high;
    for (int round = 0; round < 10; round++) {
        u32 low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
        u32 low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    u32 word = channel & 2 ? (channel & 1 ? c3 : c2) : (channel & 1 ? c1 : c0);
    return word >= a.threshold ? a.keep_scale : 0.0f;
}

// -------------------------------------------------------------------------------------------------------------- tiles

// A (seq, dim) matrix of one head: its start and the distance of its rows, in elements.
template <class T>
struct Rows {
    T* start;
    u64 stride;
    __device__ T* row(int row) const { return start + row * stride; }
};

// Of qkv or grad_qkv: query heads are groups 0.., then come the keys, then the values.
template <class T>
__device__ inline Rows<T> packed(T* qkv, const Arguments& a, int batch, int group) {
    u64 width = (u64)(a.heads + 2 * a.kv_heads) * a.dim;
    return {qkv + (u64)batch * a.seq * width + (u64)group * a.dim, width};
}

// Of keys, then values, with their gradients: a head of each is a group.
template <class T>
__device__ inline Rows<T> of_keys(T* keys, T* qkv, const Arguments& a, int batch, int group) {
    if (!keys) return packed(qkv, a, batch, a.heads + group);
    u64 width = (u64)2 * a.kv_heads * a.dim;
    return {keys + (u64)batch * a.key_seq * width + (u64)group * a.dim, width};
}

// Of output or grad_output.
template <class T>
__device__ inline Rows<T> of_head(T* output, const Arguments& a, int batch, int head) {
    u64 width = (u64)a.heads * a.dim;
    return {output + (u64)batch * a.seq * width + (u64)head * a.dim, width};
}

// Four neighbours; the address is a multiple of their size.
template <class T>
__device__ inline float4 load4(const T* from) {
    float x[4];
    load<4>(from, x);
    return make_float4(x[0], x[1], x[2], x[3]);
}
template <class T>
__device__ inline void store4(T* to, float4 x) {
    float values[4] = {x.x, x.y, x.z, x.w};
    store<4>(to, values);
}

// Floats of a row in shared memory: dim rounded up to 4, and 4 more so that neighbouring rows lie in other banks.
__device__ inline int padded(const Arguments& a) { return (a.dim + 3) / 4 * 4; }
__device__ inline int pitch_of(const Arguments& a) { return padded(a) + 4; }

// Copies rows first .. first + TILE of `rows` to shared memory. Outside of the matrix values are 0.
template <int TILE, class T>
__device__ void load_tile(float* tile, Rows<const T> from, int first, int rows, const Arguments& a) {
    int chunks = padded(a) / 4, pitch = pitch_of(a);
    for (int i = threadIdx.x; i < TILE * chunks; i += THREADS) {
        int row = i / chunks, column = i % chunks * 4;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first + row < rows) {
            const T* at = from.row(first + row) + column;
            if (a.vector) {
                x = load4(at);
            } else {
                x.x = value(at);
                if (column + 1 < a.dim) x.y = value(at + 1);
                if (column + 2 < a.dim) x.z = value(at + 2);
                if (column + 3 < a.dim) x.w = value(at + 3);
            }
        }
        *(float4*)(tile + row * pitch + column) = x;
    }
}

// products[i][j] = the dot product of row ty + 16 i of `left` and row tx + 16 j of `right`
template <int R>
__device__ void multiply(float (&products)[R][R], const float* left, const float* right, const Arguments& a) {
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16, pitch = pitch_of(a);
    for (int i = 0; i < R; i++)
        for (int j = 0; j < R; j++) products[i][j] = 0.0f;
    for (int c = 0; c < padded(a); c += 4) {
        float4 x[R], y[R];
#pragma unroll
        for (int i = 0; i < R; i++) x[i] = *(const float4*)(left + (ty + 16 * i) * pitch + c);
#pragma unroll
        for (int j = 0; j < R; j++) y[j] = *(const float4*)(right + (tx + 16 * j) * pitch + c);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                products[i][j] += x[i].x * y[j].x;
                products[i][j] += x[i].y * y[j].y;
                products[i][j] += x[i].z * y[j].z;
                products[i][j] += x[i].w * y[j].w;
            }
    }
}

// sums[i][j] += the sum over k of weight(ty + 16 i, k) * columns 4 (tx + 16 j) .. of row k of `rows`. The weights are a
// (TILE, TILE) matrix of pitch TILE + 4; TRANSPOSED takes weight(k, ty + 16 i) instead.
template <int TILE, bool TRANSPOSED, int R, int C>
__device__ void accumulate(float4 (&sums)[R][C], const float* weights, const float* rows, const Arguments& a) {
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16, pitch = pitch_of(a), width = padded(a);
    for (int k = 0; k < TILE; k++) {
        float4 x[C];
#pragma unroll
        for (int j = 0; j < C; j++) {
            int column = 4 * (tx + 16 * j);
            x[j] = column < width ? *(const float4*)(rows + k * pitch + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < R; i++) {
            int row = ty + 16 * i;
            float w = TRANSPOSED ? weights[k * (TILE + 4) + row] : weights[row * (TILE + 4) + k];
#pragma unroll
            for (int j = 0; j < C; j++) {
                sums[i][j].x += w * x[j].x;
                sums[i][j].y += w * x[j].y;
                sums[i][j].z += w * x[j].z;
                sums[i][j].w += w * x[j].w;
            }
        }
    }
}

template <int R, int C>
__device__ inline void clear(float4 (&sums)[R][C]) {
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) sums[i][j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Writes the block's rows, each times its factor.
template <class T, int R, int C>
__device__ void store_tile(Rows<T> to, int first, int rows, const float4 (&sums)[R][C], const float (&factors)[R],
                           const Arguments& a) {
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int row = first + ty + 16 * i;
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < C; j++) {
            int column = 4 * (tx + 16 * j);
            float4 x = sums[i][j];
            x = make_float4(x.x * factors[i], x.y * factors[i], x.z * factors[i], x.w * factors[i]);
            T* at = to.row(row) + column;
            if (a.vector) {
                if (column < a.dim) store4(at, x);
            } else {
                if (column < a.dim) set(at, x.x);
                if (column + 1 < a.dim) set(at + 1, x.y);
                if (column + 2 < a.dim) set(at + 2, x.z);
                if (column + 3 < a.dim) set(at + 3, x.w);
            }
        }
    }
}

// Over the 16 threads that share rows: half a warp.
__device__ inline float row_sum(float x) {
    for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}
__device__ inline float row_max(float x) {
    for (int offset = 8; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

extern __shared__ float4 shared_memory[];
