// Philox4x32-10 (Salmon et al., 2011), the same words as `device/src/philox.rs`.
#pragma once
#include "common.cuh"

inline uint4 philox4x32_10(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 high_a = __umulhi(counter.x, 0xD2511F53u), low_a = counter.x * 0xD2511F53u;
        u32 high_b = __umulhi(counter.z, 0xCD9E8D57u), low_b = counter.z * 0xCD9E8D57u;
        counter = make_uint4(high_b ^ counter.y ^ key.x, low_b, high_a ^ counter.w ^ key.y, low_a);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}
