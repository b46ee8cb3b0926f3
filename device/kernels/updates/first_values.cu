// Random numbers that parameters begin with: the bits of `device/src/philox.rs`. So no product and sum may become one
// operation here: every one is rounded by itself, in the host's order.
#include "philox.cuh"

inline double times(double a, double b) { return __dmul_rn(a, b); }
inline double plus(double a, double b) { return __dadd_rn(a, b); }

// As `ln_of_fraction` there.
inline double ln_of_fraction(double x) {
    u64 bits = (u64)__double_as_longlong(x);
    long long exponent = (long long)(bits >> 52) - 1023;
    double mantissa = __longlong_as_double((long long)(bits & 0xfffffffffffffull | 0x3ff0000000000000ull));
    if (mantissa > 1.41421356237309504880) {
        mantissa = times(0.5, mantissa);
        exponent += 1;
    }
    double s = __ddiv_rn(plus(mantissa, -1.0), plus(mantissa, 1.0));
    double z = times(s, s);
    double series = 1.0 / 23.0;
    const double terms[] = {1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0,
                            1.0 / 11.0, 1.0 / 9.0,  1.0 / 7.0,  1.0 / 5.0,  1.0 / 3.0};
#pragma unroll
    for (int i = 0; i < 10; i++) series = plus(times(series, z), terms[i]);
    double twice = times(2.0, s);
    return plus(times((double)exponent, 0.693147180559945309417), plus(twice, times(times(twice, z), series)));
}

// As `cos_of_turns` there.
inline double cos_of_turns(double x) {
    double quarter = floor(plus(times(4.0, x), 0.5));
    double rest = times(plus(x, -times(0.25, quarter)), 6.28318530717958647693);
    double z = times(rest, rest);
    double cos = 1.0, sin = 1.0;
#pragma unroll
    for (int n = 7; n >= 1; n--) {
        double even = 2.0 * n;
        cos = plus(1.0, -__ddiv_rn(times(cos, z), even * (even - 1.0)));
        sin = plus(1.0, -__ddiv_rn(times(sin, z), even * (even + 1.0)));
    }
    switch ((long long)quarter & 3) {
        case 0: return cos;
        case 1: return times(-rest, sin);
        case 2: return -cos;
        default: return times(rest, sin);
    }
}

// A number between 0 and 1, from 53 random bits.
inline double uniform(u32 high, u32 low) {
    return times(plus((double)((u64)high << 21 | low >> 11), 0.5), 1.0 / 9007199254740992.0);
}

// `output`, `remainders` or `rounded` may be null; `remainders` come with `rounded`, which is then rounded with ties away from 0.
// Numbers of a normal distribution (1) have the standard deviation `scale`, those of a uniform one (0) that bound, constants (2)
// that value.
KERNEL(first_values)(float* output, u16* remainders, bf16* rounded, u64 count, u64 seed, u64 stream, u64 first, u64 row,
                     u64 pitch, u32 distribution, float scale) {
    begin_kernel();
    uint2 key = make_uint2((u32)seed, (u32)(seed >> 32));
    u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        u64 element = first + at / row * pitch + at % row;
        uint4 words = philox4x32_10(
            make_uint4((u32)element, (u32)(element >> 32), (u32)stream, (u32)(stream >> 32)), key);
        double u = uniform(words.x, words.y);
        float value;
        if (distribution == 1) {
            double v = uniform(words.z, words.w);
            value = (float)times(__dsqrt_rn(times(-2.0, ln_of_fraction(u))), cos_of_turns(v));
        } else {
            value = __fadd_rn(__fmul_rn(2.0f, (float)u), -1.0f);
        }
        value = distribution == 2 ? scale : __fmul_rn(scale, value);
        if (output) output[at] = value;
        if (remainders) {
            u32 bits = __float_as_uint(value);
            remainders[at] = (u16)bits;
            rounded[at].bits = (u16)((bits + 0x8000u) >> 16);
        } else if (rounded) {
            set(rounded + at, value);
        }
    }
}
