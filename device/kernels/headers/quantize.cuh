// The sources of quantisation. Shared by the kernels that make 8-bit copies.
#pragma once
#include "fp8.cuh"
#include "gates.cuh"

struct Quantize {
    const void* input;
    const void* grad;           // the sources with a gradient
    const void* weight;         // a norm's: (width)
    const void* bias;           // (width), or null
    const float* mean;          // (rows), or null
    const float* rstd;          // (rows)
    u8* rows_out;               // (rows, columns), or null
    u8* columns_out;            // (columns, rows), or null
    float* rows_scale;          // (1), or (rows) written by the row kernel
    const float* columns_scale; // (1)
    u32* amax;                  // (1), or null: the bits of an f32 that is not negative
    float* partial;             // (row tiles, columns), or null
    u32 rows;
    u32 width;        // threads walk along it: the columns, or half of them for GatedBackward
    u32 rows_e5m2;    // types: e5m2, else e4m3
    u32 columns_e5m2;
    u32 same_bytes;   // both copies have one type and one scale
    u32 wide_columns; // the rows of `columns_out` are stored 16 bytes at a time
    u32 kept;         // the row kernel keeps a row in shared memory; `largest` leaves a scale that is known
    u32 bf16_inputs;  // for the path of odd sizes and addresses; it takes both types
    u32 groups;       // the kernel of both copies: warps of a block that share columns
    float weight_offset; // added to a norm's weight
};

// ---- Sources ------------------------------------------------------------------------------------------------------

// Each source computes OUTPUTS values from LOADS loaded ones, for inputs of type T. BLOCKS of the tile kernel fit a
// multiprocessor at once with bf16 inputs: its registers are bounded so, and none spills. Load `l` of a row and column is
// element `at(..., l)` of `matrix(..., l)`; output `o` is column `o * width + column`. A norm also has values that belong
// to a row or to a column.

template <class T> struct Stored {
    static constexpr int LOADS = 1, OUTPUTS = 1, BLOCKS = 6;
    static constexpr bool NORM = false;
    static const void* matrix(const Quantize& q, int) { return q.input; }
    static u64 at(const Quantize& q, u64 row, u32 column, int) { return row * q.width + column; }
    static void compute(const float (&in)[1], float (&out)[1]) { out[0] = in[0]; }
};

template <class T> struct Rounded : Stored<T> {
    static void compute(const float (&in)[1], float (&out)[1]) { out[0] = low_bf16(pack_bf16x2(in[0], 0.0f)); }
};

// The output of a norm. Its statistics are known.
template <class T> struct Normed : Stored<T> {
    static constexpr bool NORM = true;
    static constexpr int BLOCKS = 4;
};

// NaN stays NaN, so that it shows.
struct ReluFunction {
    template <class T> static float value(float x) { return x <= 0.0f ? 0.0f : x; }
    template <class T> static float derivative(float x, float grad) { return x > 0.0f ? grad : 0.0f; }
};

template <class F, class T> struct Activated : Stored<T> {
    static void compute(const float (&in)[1], float (&out)[1]) { out[0] = F::template value<T>(in[0]); }
};

template <class F, class T> struct ActivatedBackward {
    static constexpr int LOADS = 2, OUTPUTS = 1, BLOCKS = 5;
    static constexpr bool NORM = false;
    static const void* matrix(const Quantize& q, int l) { return l == 0 ? q.input : q.grad; }
    static u64 at(const Quantize& q, u64 row, u32 column, int) { return row * q.width + column; }
    static void compute(const float (&in)[2], float (&out)[1]) { out[0] = F::template derivative<T>(in[0], in[1]); }
};

// [gate | up] has 2 `width` columns.
template <class F, class T> struct Gated {
    static constexpr int LOADS = 2, OUTPUTS = 1, BLOCKS = 4;
    static constexpr bool NORM = false;
    static const void* matrix(const Quantize& q, int) { return q.input; }
    static u64 at(const Quantize& q, u64 row, u32 column, int l) { return (row * 2 + l) * q.width + column; }
    static void compute(const float (&in)[2], float (&out)[1]) { out[0] = F::template value<T>(in[0]) * in[1]; }
};

template <class F, class T> struct GatedBackward {
    static constexpr int LOADS = 3, OUTPUTS = 2, BLOCKS = 3;
    static constexpr bool NORM = false;
    static const void* matrix(const Quantize& q, int l) { return l == 2 ? q.grad : q.input; }
    static u64 at(const Quantize& q, u64 row, u32 column, int l) {
        return (l == 2 ? row : row * 2 + l) * q.width + column;
    }
    static void compute(const float (&in)[3], float (&out)[2]) {
        float gate = in[0], up = in[1], dy = in[2];
        out[0] = F::template derivative<T>(gate, dy * up);
        out[1] = dy * F::template value<T>(gate);
    }
};

// ---- Eight columns of a row ---------------------------------------------------------------------------------------

// Eight values of each load, as they lie in memory.
template <class T, int LOADS> struct Pack {
    static constexpr int WORDS = sizeof(T) / 2; // of 16 bytes
    uint4 words[LOADS][WORDS];
};

inline void unpack_pack(const uint4 (&words)[1], float (&x)[8]) { unpack(Raw<bf16, 8>{words[0]}, x); }
inline void unpack_pack(const uint4 (&words)[2], float (&x)[8]) {
#pragma unroll
    for (int w = 0; w < 2; w++) {
        x[4 * w] = __uint_as_float(words[w].x), x[4 * w + 1] = __uint_as_float(words[w].y);
        x[4 * w + 2] = __uint_as_float(words[w].z), x[4 * w + 3] = __uint_as_float(words[w].w);
    }
}

inline void pack_floats(const float (&x)[8], uint4 (&words)[2]) {
#pragma unroll
    for (int w = 0; w < 2; w++) {
        words[w].x = __float_as_uint(x[4 * w]), words[w].y = __float_as_uint(x[4 * w + 1]);
        words[w].z = __float_as_uint(x[4 * w + 2]), words[w].w = __float_as_uint(x[4 * w + 3]);
    }
}

// Columns `column` to `column + 8` of a row, 16 bytes at a time; `width` is a multiple of 8. Without VECTOR they come one
// by one from either type, as f32, and are 0 beyond `width`.
template <class S, class T, bool VECTOR> Pack<T, S::LOADS> fetch_pack(const Quantize& q, u64 row, u32 column) {
    Pack<T, S::LOADS> pack;
#pragma unroll
    for (int l = 0; l < S::LOADS; l++) {
        const void* matrix = S::matrix(q, l);
        u64 at = S::at(q, row, column, l);
        if constexpr (VECTOR) {
            const uint4* from = reinterpret_cast<const uint4*>((const T*)matrix + at);
#pragma unroll
            for (int w = 0; w < pack.WORDS; w++) pack.words[l][w] = from[w];
        } else {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = column + i >= q.width ? 0.0f
                       : q.bf16_inputs       ? value((const bf16*)matrix + at + i)
                                             : value((const float*)matrix + at + i);
            }
            pack_floats(x, pack.words[l]);
        }
    }
    return pack;
}

// Values of a source for a row, beside the loaded ones. The default is for a row beyond the matrix: its values are 0.
template <bool NORM> struct RowValues {};
template <> struct RowValues<true> {
    float mean = 0.0f, rstd = 0.0f;
    bool inside = false;
};

// The same for N columns. Zeros beyond `width`.
template <bool NORM, int N = 8> struct ColumnValues {};
template <int N> struct ColumnValues<true, N> {
    float weight[N] = {}, bias[N] = {};
};

template <class S> RowValues<S::NORM> fetch_row(const Quantize& q, u64 row) {
    RowValues<S::NORM> values;
    if constexpr (S::NORM) {
        values.mean = q.mean ? q.mean[row] : 0.0f;
        values.rstd = q.rstd[row];
        values.inside = true;
    }
    return values;
}

template <class T, bool VECTOR> void fetch_vector(const Quantize& q, const void* from, u32 column, float (&x)[8]) {
    if constexpr (VECTOR) {
        uint4 words[sizeof(T) / 2];
#pragma unroll
        for (int w = 0; w < sizeof(T) / 2; w++) words[w] = reinterpret_cast<const uint4*>((const T*)from + column)[w];
        unpack_pack(words, x);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = column + i >= q.width ? 0.0f
                   : q.bf16_inputs       ? value((const bf16*)from + column + i)
                                         : value((const float*)from + column + i);
        }
    }
}

// Adds its offset to the weight of N columns.
template <int N> void offset_weight(const Quantize& q, float (&weight)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) weight[i] += q.weight_offset;
}

template <class S, class T, bool VECTOR> ColumnValues<S::NORM> fetch_columns(const Quantize& q, u32 column) {
    ColumnValues<S::NORM> values;
    if constexpr (S::NORM) {
        if (column < q.width) {
            fetch_vector<T, VECTOR>(q, q.weight, column, values.weight);
            offset_weight(q, values.weight);
            if (q.bias) fetch_vector<T, VECTOR>(q, q.bias, column, values.bias);
        }
    }
    return values;
}

// The values that are quantised, of N columns.
template <class S, int N>
void compute_values(const float (&loaded)[S::LOADS][N], const RowValues<S::NORM>& row,
                    const ColumnValues<S::NORM, N>& columns, float (&x)[S::OUTPUTS][N]) {
    if constexpr (S::NORM) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            // The rounding is written out, so that every kernel has the same.
            float y = fmaf((loaded[0][i] - row.mean) * row.rstd, columns.weight[i], columns.bias[i]);
            x[0][i] = row.inside ? y : 0.0f;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            float in[S::LOADS], out[S::OUTPUTS];
#pragma unroll
            for (int l = 0; l < S::LOADS; l++) in[l] = loaded[l][i];
            S::compute(in, out);
#pragma unroll
            for (int o = 0; o < S::OUTPUTS; o++) x[o][i] = out[o];
        }
    }
}

template <class S, class T>
void evaluate(const Pack<T, S::LOADS>& pack, const RowValues<S::NORM>& row, const ColumnValues<S::NORM>& columns,
              float (&x)[S::OUTPUTS][8]) {
    float loaded[S::LOADS][8];
#pragma unroll
    for (int l = 0; l < S::LOADS; l++) unpack_pack(pack.words[l], loaded[l]);
    compute_values<S, 8>(loaded, row, columns, x);
}

// Eight bytes of the row copy, from column `o * width + column` on.
template <class S, bool VECTOR> void store_row(const Quantize& q, u64 row, u32 column, int o, uint2 bytes) {
    u8* to = q.rows_out + (row * S::OUTPUTS + o) * q.width + column;
    if constexpr (VECTOR) {
        *reinterpret_cast<uint2*>(to) = bytes;
    } else {
        u64 eight = bytes.x | (u64)bytes.y << 32;
#pragma unroll 1
        for (u32 i = 0; i < 8 && column + i < q.width; i++) to[i] = (u8)(eight >> 8 * i);
    }
}

// Declares three kernels for each source: 16 bytes at a time of each type, and one value at a time for odd sizes and
// addresses. DECLARE(source, its name, type that it computes for, 16 bytes at a time, suffix).
#define FOR_EACH_PATH(DECLARE, source, name)       \
    DECLARE(source<bf16>, name, bf16, true, bf16)  \
    DECLARE(source<float>, name, float, true, f32) \
    DECLARE(source<float>, name, float, false, scalar)

template <class T> using GeluSource = Activated<Gelu, T>;
template <class T> using ReluSource = Activated<ReluFunction, T>;
template <class T> using GeluBackwardSource = ActivatedBackward<Gelu, T>;
template <class T> using ReluBackwardSource = ActivatedBackward<ReluFunction, T>;
template <class T> using SwiGlu = Gated<Silu, T>;
template <class T> using GeGlu = Gated<Gelu, T>;
template <class T> using SwiGluBackward = GatedBackward<Silu, T>;
template <class T> using GeGluBackward = GatedBackward<Gelu, T>;

#define FOR_EACH_SOURCE(DECLARE)                              \
    FOR_EACH_PATH(DECLARE, Stored, stored)                    \
    FOR_EACH_PATH(DECLARE, Rounded, rounded)                  \
    FOR_EACH_PATH(DECLARE, Normed, norm)                      \
    FOR_EACH_PATH(DECLARE, GeluSource, gelu)                  \
    FOR_EACH_PATH(DECLARE, ReluSource, relu)                  \
    FOR_EACH_PATH(DECLARE, GeluBackwardSource, gelu_backward) \
    FOR_EACH_PATH(DECLARE, ReluBackwardSource, relu_backward) \
    FOR_EACH_PATH(DECLARE, SwiGlu, swiglu)                    \
    FOR_EACH_PATH(DECLARE, SwiGluBackward, swiglu_backward)   \
    FOR_EACH_PATH(DECLARE, GeGlu, geglu)                      \
    FOR_EACH_PATH(DECLARE, GeGluBackward, geglu_backward)
