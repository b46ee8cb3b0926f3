// What a matrix product could not do to its own result: bias, bias and GELU, the gradient of GELU.
//
// In place on `out`, (rows, columns) row-major. Reads and writes every tensor once; the bias stays in cache.
#include "numeric.cuh"

struct Epilogue {
    void* out;         // (rows, columns)
    void* pre;         // (rows, columns), of out's type, written by bias_gelu alone
    const void* other; // the bias, (columns), or the kept input of the GELU, (rows, columns)
    u64 count;         // rows * columns
    u64 columns;
    int other_is_bf16;
    int vector; // columns are a multiple of 4 and all addresses of 16
};

__device__ inline float load_any(const void* from, int is_bf16, u64 at) {
    return is_bf16 ? to_float(((const bf16*)from)[at]) : ((const float*)from)[at];
}

__device__ inline float4 load_any4(const void* from, int is_bf16, u64 at) {
    return is_bf16 ? load4((const bf16*)from + at) : load4((const float*)from + at);
}

// out += bias
struct AddBias {
    static constexpr bool per_column = true;
    static constexpr bool keeps = false;
    template <class T> static __device__ float apply(float product, float bias, float&) { return product + bias; }
};

// pre = out + bias, out = gelu(pre), with pre as it was rounded
struct BiasGelu {
    static constexpr bool per_column = true;
    static constexpr bool keeps = true;
    template <class T> static __device__ float apply(float product, float bias, float& pre) {
        T rounded;
        store(&rounded, product + bias);
        pre = to_float(rounded);
        return gelu(pre);
    }
};

// out *= gelu'(kept input)
struct GeluBackward {
    static constexpr bool per_column = false;
    static constexpr bool keeps = false;
    template <class T> static __device__ float apply(float product, float input, float&) {
        return product * gelu_derivative(input);
    }
};

template <class T, class Kind>
__device__ void epilogue(const Epilogue& e) {
    T *out = (T*)e.out, *pre = (T*)e.pre;
    u64 start = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    if (e.vector) {
        for (u64 i = start; i < e.count / 4; i += stride) {
            float4 x = load4(out + 4 * i), kept;
            float4 y = load_any4(e.other, e.other_is_bf16, Kind::per_column ? 4 * i % e.columns : 4 * i);
            x.x = Kind::template apply<T>(x.x, y.x, kept.x);
            x.y = Kind::template apply<T>(x.y, y.y, kept.y);
            x.z = Kind::template apply<T>(x.z, y.z, kept.z);
            x.w = Kind::template apply<T>(x.w, y.w, kept.w);
            if (Kind::keeps) store4(pre + 4 * i, kept);
            store4(out + 4 * i, x);
        }
        return;
    }
    for (u64 i = start; i < e.count; i += stride) {
        float kept;
        float y = load_any(e.other, e.other_is_bf16, Kind::per_column ? i % e.columns : i);
        float x = Kind::template apply<T>(to_float(out[i]), y, kept);
        if (Kind::keeps) store(pre + i, kept);
        store(out + i, x);
    }
}

KERNEL(epilogue_bias_f32)(Epilogue e) { epilogue<float, AddBias>(e); }
KERNEL(epilogue_bias_bf16)(Epilogue e) { epilogue<bf16, AddBias>(e); }
KERNEL(epilogue_bias_gelu_f32)(Epilogue e) { epilogue<float, BiasGelu>(e); }
KERNEL(epilogue_bias_gelu_bf16)(Epilogue e) { epilogue<bf16, BiasGelu>(e); }
KERNEL(epilogue_gelu_backward_f32)(Epilogue e) { epilogue<float, GeluBackward>(e); }
KERNEL(epilogue_gelu_backward_bf16)(Epilogue e) { epilogue<bf16, GeluBackward>(e); }
