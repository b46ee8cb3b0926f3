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
// stats and delta (batch, heads, seq), keys and grad_keys (batch, key_seq, 2 kv_heads dim). A block of 256 threads, seen as
// 16 x 16, holds tiles of TILE rows in shared memory as f32. Thread (ty, tx) computes the scores of rows ty + 16 i and
// columns tx + 16 j, and of a result the rows ty + 16 i and the columns 4 (tx + 16 j) .. + 4.
//
// Everything is added up in a fixed order: the gradients of queries and those of keys and values come from two kernels,
// one block for each tile of the result, and a key head's query heads are taken one after the other. No atomics.
#include "attention.cuh"

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
    int end = a.last_key >= 0 ? a.last_key + 1 : a.key_seq; // the gradients of keys that no query sees are left alone
    store_tile(of_keys(grad_keys, grad_qkv, a, batch, kv), first, end, key_sums, ones, a);
    store_tile(of_keys(grad_keys, grad_qkv, a, batch, a.kv_heads + kv), first, end, value_sums, ones, a);
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
