// Epilogues that the library did not fuse into its product: bias; bias and GELU; the gradient of GELU, with or without
// the GELU itself.
//
// In place on `out`, (rows, columns) row-major. Reads and writes every tensor once; the bias stays in cache.
#include "gelu.cuh"

struct Epilogue {
    void* out;         // (rows, columns)
    void* also;        // (rows, columns), of out's type: the epilogue's second output, or null
    const void* other; // the bias, (columns), or the saved input of the GELU, (rows, columns)
    u64 count;         // rows * columns
    u64 columns;
    int other_is_bf16;
    int vector; // 16 bytes of `out` at a time
};

// N values of a tensor. The arguments give its type.
template <int N> void load_any(const void* from, int is_bf16, u64 at, float (&x)[N]) {
    if (is_bf16) load<N>((const bf16*)from + at, x);
    else load_f32<N>((const float*)from + at, x);
}

// out += bias
struct AddBias {
    static constexpr bool per_column = true;
    static constexpr bool keeps = false;
    template <class T> static float apply(float product, float bias, float&) { return product + bias; }
};

// also = out + bias, out = gelu(also), with `also` as it was rounded
struct BiasGelu {
    static constexpr bool per_column = true;
    static constexpr bool keeps = true;
    template <class T> static float apply(float product, float bias, float& pre) {
        T rounded;
        set(&rounded, product + bias);
        pre = value(&rounded);
        return gelu<T>(pre);
    }
};

// out *= gelu'(saved input)
struct GeluBackward {
    static constexpr bool per_column = false;
    static constexpr bool keeps = false;
    template <class T> static float apply(float product, float input, float&) {
        return product * gelu_derivative<T>(input);
    }
};

// out *= gelu'(saved input), also = gelu(saved input)
struct GeluBackwardActivated {
    static constexpr bool per_column = false;
    static constexpr bool keeps = true;
    template <class T> static float apply(float product, float input, float& activated) {
        activated = gelu<T>(input);
        return product * gelu_derivative<T>(input);
    }
};

// N values at a time.
template <class T, class Kind, int N> void over_packs(const Epilogue& e) {
    T *out = (T*)e.out, *also = (T*)e.also;
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 pack = (u64)blockIdx.x * blockDim.x + threadIdx.x; pack < e.count / N; pack += stride) {
        u64 at = pack * N;
        float x[N], y[N], kept[N];
        load<N>(out + at, x);
        load_any<N>(e.other, e.other_is_bf16, Kind::per_column ? at % e.columns : at, y);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = Kind::template apply<T>(x[i], y[i], kept[i]);
        if constexpr (Kind::keeps) store<N>(also + at, kept);
        store<N>(out + at, x);
    }
}

template <class T, class Kind> void epilogue(const Epilogue& e) {
    if (e.vector) over_packs<T, Kind, 16 / sizeof(T)>(e);
    else over_packs<T, Kind, 1>(e);
}

KERNEL(epilogue_bias_f32)(Epilogue e) { begin_kernel(); epilogue<float, AddBias>(e); }
KERNEL(epilogue_bias_bf16)(Epilogue e) { begin_kernel(); epilogue<bf16, AddBias>(e); }
KERNEL(epilogue_bias_gelu_f32)(Epilogue e) { begin_kernel(); epilogue<float, BiasGelu>(e); }
KERNEL(epilogue_bias_gelu_bf16)(Epilogue e) { begin_kernel(); epilogue<bf16, BiasGelu>(e); }
KERNEL(epilogue_gelu_backward_f32)(Epilogue e) { begin_kernel(); epilogue<float, GeluBackward>(e); }
KERNEL(epilogue_gelu_backward_bf16)(Epilogue e) { begin_kernel(); epilogue<bf16, GeluBackward>(e); }
KERNEL(epilogue_gelu_backward_activated_f32)(Epilogue e) { begin_kernel(); epilogue<float, GeluBackwardActivated>(e); }
KERNEL(epilogue_gelu_backward_activated_bf16)(Epilogue e) { begin_kernel(); epilogue<bf16, GeluBackwardActivated>(e); }
