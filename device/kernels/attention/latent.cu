// Latent attention: queries, keys and values of heads packed as attention reads them, and back. A thread has a channel, or a
// pair of neighbours that turn together.
#include "turn.cuh"

struct Latent {
    void* queries;     // rows that begin with (heads, plain + rotated)
    void* keys_values; // (heads, plain + value)
    void* rotated;     // rows that end with the keys' rotated channels, the same ones for all heads
    void* packed;      // (3, heads, width): queries, keys, values, with zeros behind each
    const float* table; // (seq, rotated / 2, 2)
    u32 rows;
    u32 seq;
    u32 heads;
    u32 plain;
    u32 turned; // rotated channels
    u32 value;
    u32 width;
    u32 query_columns; // of a row of `queries`
    u32 rotated_columns;
    u32 reserved;
};

// x covers the packed channels of a row, y distributes the rows.
template <class T> void pack_latent(const Latent& op) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, query = op.plain + op.turned;
    if (column >= 3 * op.heads * op.width) return;
    u32 group = column / (op.heads * op.width), head = column / op.width % op.heads, at = column % op.width;
    for (u64 row = blockIdx.y; row < op.rows; row += gridDim.y) {
        const float* angles = op.table + row % op.seq * op.turned;
        const T* keys = (const T*)op.keys_values + (row * op.heads + head) * (op.plain + op.value);
        float x = 0.0f;
        if (group == 0 && at < query) {
            const T* from = (const T*)op.queries + row * op.query_columns + head * query;
            x = at < op.plain ? value(from + at) : turned(from + op.plain, angles, at - op.plain, 1.0f);
        } else if (group == 1 && at < query) {
            const T* shared = (const T*)op.rotated + (row + 1) * op.rotated_columns - op.turned;
            x = at < op.plain ? value(keys + at) : turned(shared, angles, at - op.plain, 1.0f);
        } else if (group == 2 && at < op.value) {
            x = value(keys + op.plain + at);
        }
        set((T*)op.packed + row * 3 * op.heads * op.width + column, x);
    }
}

// x covers the columns of `queries`, then those of `keys_values`, then those of `rotated` unless these are the last ones of
// `queries`; y distributes the rows.
template <class T> void pack_latent_backward(const Latent& op) {
    u32 column = blockIdx.x * blockDim.x + threadIdx.x, query = op.plain + op.turned;
    bool same = op.rotated == op.queries;
    u32 of_keys = op.heads * (op.plain + op.value), all = op.query_columns + of_keys + (same ? 0 : op.rotated_columns);
    if (column >= all) return;
    for (u64 row = blockIdx.y; row < op.rows; row += gridDim.y) {
        const float* angles = op.table + row % op.seq * op.turned;
        const T* grads = (const T*)op.packed + row * 3 * op.heads * op.width;
        if (column >= op.query_columns && column < op.query_columns + of_keys) {
            u32 at = column - op.query_columns, head = at / (op.plain + op.value), channel = at % (op.plain + op.value);
            u32 from = channel < op.plain ? (op.heads + head) * op.width + channel
                                          : (2 * op.heads + head) * op.width + channel - op.plain;
            set((T*)op.keys_values + row * of_keys + at, value(grads + from));
            continue;
        }
        bool of_queries = column < op.query_columns;
        u32 at = of_queries ? column : column - op.query_columns - of_keys;
        u32 columns = of_queries ? op.query_columns : op.rotated_columns;
        float x = 0.0f;
        if (of_queries && at < op.heads * query) {
            const T* grad = grads + at / query * op.width;
            u32 channel = at % query;
            x = channel < op.plain ? value(grad + channel) : turned(grad + op.plain, angles, channel - op.plain, -1.0f);
        } else if ((same || !of_queries) && at >= columns - op.turned) {
            u32 channel = at - (columns - op.turned), pair = channel / 2;
            float a = 0.0f, b = 0.0f, cos = angles[2 * pair], sin = -angles[2 * pair + 1];
            for (u32 head = 0; head < op.heads; head++) {
                const T* grad = grads + (op.heads + head) * op.width + op.plain + 2 * pair;
                a += value(grad), b += value(grad + 1);
            }
            x = channel % 2 ? a * sin + b * cos : a * cos - b * sin;
        }
        set((T*)(of_queries ? op.queries : op.rotated) + row * columns + at, x);
    }
}

// output[head] = the first channels of input[head], then zeros
template <class T> void resize_heads(const T* input, T* output, u64 heads, u32 from, u32 to) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < heads * to; at += step) {
        u32 channel = (u32)(at % to);
        set(output + at, channel < from ? value(input + at / to * from + channel) : 0.0f);
    }
}

#define LATENT(T, suffix)                                                                                  \
    KERNEL(pack_latent_##suffix)(Latent op) { begin_kernel(); pack_latent<T>(op); }                        \
    KERNEL(pack_latent_backward_##suffix)(Latent op) { begin_kernel(); pack_latent_backward<T>(op); }      \
    KERNEL(resize_heads_##suffix)(const T* input, T* output, u64 heads, u32 from, u32 to) {                \
        begin_kernel();                                                                                    \
        resize_heads<T>(input, output, heads, from, to);                                                   \
    }
LATENT(float, f32)
LATENT(bf16, bf16)
