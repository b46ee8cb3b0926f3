// Declarations shared by all kernels. No CUDA header is included, so that a node needs NVRTC alone. Functions without a
// specifier are device functions (NVRTC's -default-device).
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Declares a kernel under an unmangled name: KERNEL(name)(arguments) { begin_kernel(); ... }.
#define KERNEL(name) extern "C" __global__ void name

// The first statement of every kernel of ours (device/tests/device/kernels_compile.rs checks it). In graphs the blocks
// of a kernel may start while the kernel before it still runs. That hides the time of the launch (programmatic dependent
// launch, device/src/cuda/rewrite/early_starts.rs). Here they allow the next kernel to do so, and then wait until all work
// that this kernel depends on is done. No memory is touched before, and no block ends before: so a kernel that is done
// is after all the work before it, as with a full dependency.
inline void begin_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

// Declares a kernel for each type and path: 16 bytes at a time, or one value at a time for odd sizes and addresses.
// INSTANCE(type, values at a time, suffix of the name).
#define FOR_EACH_FLOAT(INSTANCE) \
    INSTANCE(float, 4, f32)      \
    INSTANCE(bf16, 8, bf16)      \
    INSTANCE(float, 1, f32_scalar) \
    INSTANCE(bf16, 1, bf16_scalar)

// ---- Loading and storing: f32 or bf16 in memory, f32 in registers -------------------------------------------------

struct bf16 {
    u16 bits;
};

// The two bf16 nearest to `low` and `high` (ties to even), `low` in the lower half. NaN stays NaN.
inline u32 pack_bf16x2(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

inline float low_bf16(u32 packed) { return __uint_as_float(packed << 16); }
inline float high_bf16(u32 packed) { return __uint_as_float(packed & 0xffff0000u); }

// As many bytes as one load or store moves.
template <int BYTES> struct Word;
template <> struct Word<2> { typedef u16 Type; };
template <> struct Word<4> { typedef u32 Type; };
template <> struct Word<8> { typedef uint2 Type; };
template <> struct Word<16> { typedef uint4 Type; };

// N values as they lie in memory.
template <class T, int N> struct Raw {
    typename Word<sizeof(T) * N>::Type word;
};

// One load; `from` is a multiple of the size of the whole.
template <int N, class T> Raw<T, N> fetch(const T* from) {
    return *reinterpret_cast<const Raw<T, N>*>(from);
}

template <int N, class T> void put(T* to, const Raw<T, N>& raw) { *reinterpret_cast<Raw<T, N>*>(to) = raw; }

inline void unpack(const Raw<float, 1>& raw, float (&x)[1]) { x[0] = __uint_as_float(raw.word); }
inline void unpack(const Raw<float, 4>& raw, float (&x)[4]) {
    x[0] = __uint_as_float(raw.word.x), x[1] = __uint_as_float(raw.word.y);
    x[2] = __uint_as_float(raw.word.z), x[3] = __uint_as_float(raw.word.w);
}
inline void unpack(const Raw<bf16, 1>& raw, float (&x)[1]) { x[0] = low_bf16(raw.word); }
inline void unpack(const Raw<bf16, 4>& raw, float (&x)[4]) {
    x[0] = low_bf16(raw.word.x), x[1] = high_bf16(raw.word.x);
    x[2] = low_bf16(raw.word.y), x[3] = high_bf16(raw.word.y);
}
inline void unpack(const Raw<bf16, 8>& raw, float (&x)[8]) {
    x[0] = low_bf16(raw.word.x), x[1] = high_bf16(raw.word.x);
    x[2] = low_bf16(raw.word.y), x[3] = high_bf16(raw.word.y);
    x[4] = low_bf16(raw.word.z), x[5] = high_bf16(raw.word.z);
    x[6] = low_bf16(raw.word.w), x[7] = high_bf16(raw.word.w);
}

inline void pack(Raw<float, 1>& raw, const float (&x)[1]) { raw.word = __float_as_uint(x[0]); }
inline void pack(Raw<float, 4>& raw, const float (&x)[4]) {
    raw.word.x = __float_as_uint(x[0]), raw.word.y = __float_as_uint(x[1]);
    raw.word.z = __float_as_uint(x[2]), raw.word.w = __float_as_uint(x[3]);
}
inline void pack(Raw<bf16, 1>& raw, const float (&x)[1]) { raw.word = (u16)pack_bf16x2(x[0], 0.0f); }
inline void pack(Raw<bf16, 4>& raw, const float (&x)[4]) {
    raw.word.x = pack_bf16x2(x[0], x[1]), raw.word.y = pack_bf16x2(x[2], x[3]);
}
inline void pack(Raw<bf16, 8>& raw, const float (&x)[8]) {
    raw.word.x = pack_bf16x2(x[0], x[1]), raw.word.y = pack_bf16x2(x[2], x[3]);
    raw.word.z = pack_bf16x2(x[4], x[5]), raw.word.w = pack_bf16x2(x[6], x[7]);
}

// N values from memory. f32 goes 16 bytes at a time whatever N is, so that it can accompany N values of bf16.
template <int N, class T> void load(const T* from, float (&x)[N]) { unpack(fetch<N>(from), x); }
template <int N> void load_f32(const float* from, float (&x)[N]) {
    if constexpr (N == 1) {
        x[0] = *from;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 four = *reinterpret_cast<const float4*>(from + i);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
        }
    }
}

// As fetch and load, of values that are not read again: they leave the cache before others.
template <int N, class T> Raw<T, N> fetch_once(const T* from) {
    Raw<T, N> raw;
    raw.word = __ldcs(reinterpret_cast<const typename Word<sizeof(T) * N>::Type*>(from));
    return raw;
}
template <int N, class T> void load_once(const T* from, float (&x)[N]) { unpack(fetch_once<N>(from), x); }

// N values to memory, rounded to its type.
template <int N, class T> void store(T* to, const float (&x)[N]) {
    Raw<T, N> raw;
    pack(raw, x);
    put(to, raw);
}
template <int N> void store_f32(float* to, const float (&x)[N]) {
    if constexpr (N == 1) {
        *to = x[0];
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            *reinterpret_cast<float4*>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        }
    }
}

// ---- Asynchronous copies from global to shared memory -------------------------------------------------------------

// Copies 16 bytes. The thread sees them after it has waited for them, other threads after a barrier besides.
inline void copy_ahead(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
}
// As copy_ahead if it is `inside`, else 16 bytes of zeros, and nothing is read.
inline void copy_ahead_or_zero(void* shared, const void* global, bool inside) {
    u32 to = (u32)__cvta_generic_to_shared(shared), bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
// Makes the copies since the last call a group.
inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last `groups` groups are under way. A constant, at most 3.
inline void wait_for_copies(int groups) {
    if (groups == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
    else if (groups == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (groups == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
    else asm volatile("cp.async.wait_group 3;" ::: "memory");
}

inline float value(const float* from) { return *from; }
inline float value(const bf16* from) { return low_bf16(from->bits); }
inline void set(float* to, float x) { *to = x; }
inline void set(bf16* to, float x) { to->bits = (u16)pack_bf16x2(x, 0.0f); }

// ---- Functions ----------------------------------------------------------------------------------------------------

// Not a literal: the macro is in a header we do not include.
inline float infinity() { return __int_as_float(0x7f800000); }

// e^x for results of type T: precise to the last bits for f32, within 1e-5 for bf16 (it rounds at 4e-3). For bf16
// results below the smallest normal number are 0: to round them correctly would take three more instructions.
template <class T> float exponential(float x);
template <> inline float exponential<float>(float x) { return expf(x); }
template <> inline float exponential<bf16>(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950409f));
    return y;
}

// 1 / (1 + e^-x), likewise.
template <class T> float sigmoid(float x);
template <> inline float sigmoid<float>(float x) { return 1.0f / (1.0f + expf(-x)); }
template <> inline float sigmoid<bf16>(float x) { return __fdividef(1.0f, 1.0f + exponential<bf16>(-x)); }

// ---- Sums over threads, always in the same order ------------------------------------------------------------------

// Over the 32 threads of a warp, on every one.
template <class F> F warp_sum(F x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

inline float warp_max(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// Over a block of whole warps, on every thread. All threads of the block call it.
template <class F> F block_sum(F x) {
    __shared__ F parts[32];
    x = warp_sum(x);
    if (blockDim.x == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : F(0));
}

// The largest value. A NaN counts only if all values are NaN.
inline float block_max(float x) {
    __shared__ float parts[32];
    x = warp_max(x);
    if (blockDim.x == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : parts[0]);
}

// ---- Blocks the host and the kernels share, as in `device/src/ops/trainer/updates/control.rs` -----------------------

struct Control {
    u64 first_sample;
    u32 step;
    u32 microbatches;
    u32 tokens;
    u32 documents;
    float learning_rate;
    float clip;
    float grad_scale;
    float inverse_loss_scale;
};

struct Status {
    u32 applied;
    u32 skipped;
    u32 spikes;
    u32 recorded;
    u32 finite;
    u32 applies;
    float grad_norm;
    float grad_factor;
};

struct SampleRecord {
    u64 first_sample;
    u32 step;
    u32 reserved;
};
