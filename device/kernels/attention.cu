// Causal attention over packed QKV, with or without a window, within documents, forward and backward. The scores are
// never held in memory (Dao et al., 2022).
//
// For the cases that cuDNN does not do: f32, dropout with our masks, soft caps, odd head sizes. It multiplies in f32 on
// the CUDA cores.
//
// A rank may have some queries of a sequence only: its first `part` ones follow each other, and so do the others. Keys and
// values then lie in rows of their own: of whole sequences, or of another rank's tokens.
//
// Memory: qkv and grad_qkv (batch, seq, (heads + 2 kv_heads) dim), output and grad_output (batch, seq, heads dim),
// stats and delta (batch, heads, seq), keys and grad_keys (batch, key_seq, 2 kv_heads dim). A block of 256 threads, seen as 16 x 16, holds tiles of TILE rows in shared
// memory as f32. Thread (ty, tx) computes the scores of rows ty + 16 i and columns tx + 16 j, and of a result the rows
// ty + 16 i and the columns 4 (tx + 16 j) .. + 4.
//
// Everything is added up in a fixed order: the gradients of queries and those of keys and values come from two kernels,
// one block for each tile of the result, and a key head's query heads are taken one after the other. No atomics.
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

// ------------------------------------------------------------------------------------------------------------ forward

// One tile of queries of one head. Shared: queries, keys and then values, weights.
template <class T, int TILE, int WIDTH>
__device__ void forward(const Arguments& a) {
    constexpr int R = TILE / 16, C = WIDTH / 64;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int head = blockIdx.x % a.heads, batch = blockIdx.x / a.heads, kv = head / (a.heads / a.kv_heads);
    int first = a.first_query + (gridDim.y - 1 - blockIdx.y) * TILE; // the longest rows first
    const T* qkv = (const T*)a.qkv;
    const T* whole = (const T*)a.keys;
    auto keys = of_keys(whole, qkv, a, batch, kv), values = of_keys(whole, qkv, a, batch, a.kv_heads + kv);
    Sample sample = read_sample(a, batch);

    float* queries = (float*)shared_memory;
    float* other = queries + TILE * pitch_of(a);
    float* weights = other + TILE * pitch_of(a);
    load_tile<TILE>(queries, packed(qkv, a, batch, head), first, a.seq, a);

    float highest[R], total[R];
    int seen_from[R];
    float4 sums[R][C];
    clear(sums);
    for (int i = 0; i < R; i++) {
        seen_from[i] = first_key(a, batch, first + ty + 16 * i);
        highest[i] = -infinity();
        total[i] = 0.0f;
    }
    int last = last_position<TILE>(a, first);
    for (int start = first_key(a, batch, first) / TILE * TILE; start <= last; start += TILE) {
        __syncthreads(); // the pass before is done with `other` and `weights`
        load_tile<TILE>(other, keys, start, a.key_seq, a);
        __syncthreads();
        float scores[R][R];
        multiply(scores, queries, other, a);
        __syncthreads(); // nobody reads the keys any more
        load_tile<TILE>(other, values, start, a.key_seq, a);
#pragma unroll
        for (int i = 0; i < R; i++) {
            int row = first + ty + 16 * i, position = position_of(a, row);
            float top = highest[i];
#pragma unroll
            for (int j = 0; j < R; j++) {
                int column = start + tx + 16 * j;
                bool seen = column <= position && column >= seen_from[i];
                scores[i][j] = seen ? score_of(a, scores[i][j]) : -infinity();
                top = fmaxf(top, scores[i][j]);
            }
            top = row_max(top);
            // While all scores are -inf, the difference of two infinities would be NaN.
            float base = top == -infinity() ? 0.0f : top;
            float shrink = expf(highest[i] - base), sum = 0.0f;
#pragma unroll
            for (int j = 0; j < R; j++) {
                int column = start + tx + 16 * j;
                float p = column <= position && column >= seen_from[i] ? expf(scores[i][j] - base) : 0.0f;
                sum += p;
                if (a.record) p *= mask_factor(a, sample, row, (a.first_head + head) * a.seq + column);
                weights[(ty + 16 * i) * (TILE + 4) + tx + 16 * j] = p;
            }
            total[i] = total[i] * shrink + row_sum(sum);
            highest[i] = top;
#pragma unroll
            for (int j = 0; j < C; j++) {
                sums[i][j].x *= shrink;
                sums[i][j].y *= shrink;
                sums[i][j].z *= shrink;
                sums[i][j].w *= shrink;
            }
        }
        __syncthreads();
        accumulate<TILE, false>(sums, weights, other, a);
    }
    float factors[R];
    for (int i = 0; i < R; i++) {
        int row = first + ty + 16 * i;
        factors[i] = 1.0f / total[i];
        if (tx == 0 && row < a.seq)
            a.stats[((u64)batch * a.heads + head) * a.seq + row] = highest[i] + logf(total[i]);
    }
    store_tile(of_head((T*)a.output, a, batch, head), first, a.seq, sums, factors, a);
}

// ----------------------------------------------------------------------------------------------------------- backward

// The gradient of a product from that of its (dropped) probability p, and p after dropout.
struct ScoreGrad {
    float dropped;
    float grad;
};

__device__ inline ScoreGrad score_grad(const Arguments& a, Sample sample, int head, int row, int seen_from, int column,
                                       float product, float grad, float stat, float delta) {
    if (column > position_of(a, row) || column < seen_from || row >= a.seq) return {0.0f, 0.0f};
    float score = score_of(a, product), p = expf(score - stat), factor = 1.0f;
    if (a.record) factor = mask_factor(a, sample, row, (a.first_head + head) * a.seq + column);
    return {p * factor, p * (grad * factor - delta) * score_slope(a, score)};
}

// The gradient of one tile of queries of one head; writes delta. Shared: queries, their output's gradients, keys,
// values, weights.
template <class T, int TILE, int WIDTH>
__device__ void backward_queries(const Arguments& a) {
    constexpr int R = TILE / 16, C = WIDTH / 64;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int head = blockIdx.x % a.heads, batch = blockIdx.x / a.heads, kv = head / (a.heads / a.kv_heads);
    int first = a.first_query + (gridDim.y - 1 - blockIdx.y) * TILE; // the longest rows first
    const T* qkv = (const T*)a.qkv;
    const T* whole = (const T*)a.keys;
    auto all_keys = of_keys(whole, qkv, a, batch, kv), all_values = of_keys(whole, qkv, a, batch, a.kv_heads + kv);
    Sample sample = read_sample(a, batch);

    int size = TILE * pitch_of(a);
    float* queries = (float*)shared_memory;
    float* grads = queries + size;
    float* keys = grads + size;
    float* values = keys + size;
    float* weights = values + size;
    load_tile<TILE>(queries, packed(qkv, a, batch, head), first, a.seq, a);
    load_tile<TILE>(grads, of_head((const T*)a.grad_output, a, batch, head), first, a.seq, a);
    __syncthreads();

    float stat[R], delta[R];
    int seen_from[R];
    auto output = of_head((const T*)a.output, a, batch, head);
    for (int i = 0; i < R; i++) {
        int row = first + ty + 16 * i;
        u64 at = ((u64)batch * a.heads + head) * a.seq + row;
        seen_from[i] = first_key(a, batch, row);
        float sum = 0.0f;
        if (row < a.seq)
            for (int c = tx; c < a.dim; c += 16) sum += grads[(ty + 16 * i) * pitch_of(a) + c] * value(output.row(row) + c);
        delta[i] = row_sum(sum);
        stat[i] = row < a.seq ? a.stats[at] : 0.0f;
        if (tx == 0 && row < a.seq) a.delta[at] = delta[i];
    }

    float4 sums[R][C];
    clear(sums);
    int last = last_position<TILE>(a, first);
    for (int start = first_key(a, batch, first) / TILE * TILE; start <= last; start += TILE) {
        __syncthreads(); // the pass before is done with keys, values and weights
        load_tile<TILE>(keys, all_keys, start, a.key_seq, a);
        load_tile<TILE>(values, all_values, start, a.key_seq, a);
        __syncthreads();
        float scores[R][R], probability_grads[R][R];
        multiply(scores, queries, keys, a);
        multiply(probability_grads, grads, values, a);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                int row = ty + 16 * i, column = tx + 16 * j;
                ScoreGrad s = score_grad(a, sample, head, first + row, seen_from[i], start + column, scores[i][j],
                                         probability_grads[i][j], stat[i], delta[i]);
                weights[row * (TILE + 4) + column] = s.grad;
            }
        __syncthreads();
        accumulate<TILE, false>(sums, weights, keys, a);
    }
    float ones[R];
    for (int i = 0; i < R; i++) ones[i] = 1.0f;
    store_tile(packed((T*)a.grad_qkv, a, batch, head), first, a.seq, sums, ones, a);
}

// The gradients of one tile of keys and values of one key head, over its query heads in order; reads delta. Shared: as
// the queries' kernel.
template <class T, int TILE, int WIDTH>
__device__ void backward_keys(const Arguments& a) {
    constexpr int R = TILE / 16, C = WIDTH / 64;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    int kv = blockIdx.x % a.kv_heads, batch = blockIdx.x / a.kv_heads, group = a.heads / a.kv_heads;
    int first = blockIdx.y * TILE; // the keys that most queries see come first
    const T* qkv = (const T*)a.qkv;
    Sample sample = read_sample(a, batch);

    int size = TILE * pitch_of(a);
    float* queries = (float*)shared_memory;
    float* grads = queries + size;
    float* keys = grads + size;
    float* values = keys + size;
    float* weights = values + size;
    const T* whole = (const T*)a.keys;
    load_tile<TILE>(keys, of_keys(whole, qkv, a, batch, kv), first, a.key_seq, a);
    load_tile<TILE>(values, of_keys(whole, qkv, a, batch, a.kv_heads + kv), first, a.key_seq, a);

    float4 key_sums[R][C], value_sums[R][C];
    clear(key_sums);
    clear(value_sums);
    for (int head = kv * group; head < (kv + 1) * group; head++) {
        auto all_queries = packed(qkv, a, batch, head);
        auto all_grads = of_head((const T*)a.grad_output, a, batch, head);
        // Until no query sees the tile's last key any more.
        for (int start = a.first_query; start < a.seq && first_key(a, batch, start) < first + TILE; start += TILE) {
            if (last_position<TILE>(a, start) < first) continue; // these queries come before its first key
            __syncthreads(); // the pass before is done with queries and weights
            load_tile<TILE>(queries, all_queries, start, a.seq, a);
            load_tile<TILE>(grads, all_grads, start, a.seq, a);
            __syncthreads();
            float scores[R][R], probability_grads[R][R];
            multiply(scores, queries, keys, a);
            multiply(probability_grads, grads, values, a);
#pragma unroll
            for (int i = 0; i < R; i++) {
                int row = start + ty + 16 * i;
                u64 at = ((u64)batch * a.heads + head) * a.seq + row;
                float stat = row < a.seq ? a.stats[at] : 0.0f, delta = row < a.seq ? a.delta[at] : 0.0f;
                int seen_from = first_key(a, batch, row);
#pragma unroll
                for (int j = 0; j < R; j++) {
                    int column = tx + 16 * j;
                    ScoreGrad s = score_grad(a, sample, head, row, seen_from, first + column, scores[i][j],
                                             probability_grads[i][j], stat, delta);
                    weights[(ty + 16 * i) * (TILE + 4) + column] = s.dropped;
                    scores[i][j] = s.grad;
                }
            }
            __syncthreads();
            accumulate<TILE, true>(value_sums, weights, grads, a);
            __syncthreads(); // everybody has read the probabilities
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < R; j++) weights[(ty + 16 * i) * (TILE + 4) + tx + 16 * j] = scores[i][j];
            __syncthreads();
            accumulate<TILE, true>(key_sums, weights, queries, a);
        }
    }
    float ones[R];
    for (int i = 0; i < R; i++) ones[i] = 1.0f;
    T *grad_keys = (T*)a.grad_keys, *grad_qkv = (T*)a.grad_qkv;
    store_tile(of_keys(grad_keys, grad_qkv, a, batch, kv), first, a.key_seq, key_sums, ones, a);
    store_tile(of_keys(grad_keys, grad_qkv, a, batch, a.kv_heads + kv), first, a.key_seq, value_sums, ones, a);
}

// A name has the type and the widest head that the kernel takes. The host knows the tiles.
KERNEL(attention_f32_64)(Arguments a) { begin_kernel(); forward<float, 64, 64>(a); }
KERNEL(attention_f32_128)(Arguments a) { begin_kernel(); forward<float, 64, 128>(a); }
KERNEL(attention_f32_256)(Arguments a) { begin_kernel(); forward<float, 32, 256>(a); }
KERNEL(attention_bf16_64)(Arguments a) { begin_kernel(); forward<bf16, 64, 64>(a); }
KERNEL(attention_bf16_128)(Arguments a) { begin_kernel(); forward<bf16, 64, 128>(a); }
KERNEL(attention_bf16_256)(Arguments a) { begin_kernel(); forward<bf16, 32, 256>(a); }
KERNEL(attention_backward_queries_f32_64)(Arguments a) { begin_kernel(); backward_queries<float, 64, 64>(a); }
KERNEL(attention_backward_queries_f32_128)(Arguments a) { begin_kernel(); backward_queries<float, 32, 128>(a); }
KERNEL(attention_backward_queries_f32_256)(Arguments a) { begin_kernel(); backward_queries<float, 16, 256>(a); }
KERNEL(attention_backward_queries_bf16_64)(Arguments a) { begin_kernel(); backward_queries<bf16, 64, 64>(a); }
KERNEL(attention_backward_queries_bf16_128)(Arguments a) { begin_kernel(); backward_queries<bf16, 32, 128>(a); }
KERNEL(attention_backward_queries_bf16_256)(Arguments a) { begin_kernel(); backward_queries<bf16, 16, 256>(a); }
KERNEL(attention_backward_keys_f32_64)(Arguments a) { begin_kernel(); backward_keys<float, 64, 64>(a); }
KERNEL(attention_backward_keys_f32_128)(Arguments a) { begin_kernel(); backward_keys<float, 32, 128>(a); }
KERNEL(attention_backward_keys_f32_256)(Arguments a) { begin_kernel(); backward_keys<float, 16, 256>(a); }
KERNEL(attention_backward_keys_bf16_64)(Arguments a) { begin_kernel(); backward_keys<bf16, 64, 64>(a); }
KERNEL(attention_backward_keys_bf16_128)(Arguments a) { begin_kernel(); backward_keys<bf16, 32, 128>(a); }
KERNEL(attention_backward_keys_bf16_256)(Arguments a) { begin_kernel(); backward_keys<bf16, 16, 256>(a); }
