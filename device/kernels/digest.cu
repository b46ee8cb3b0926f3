// The digest of bytes: device/src/digest.rs computes the same on the host. `digest` is 0 before. The sum is of whole
// numbers, so it does not depend on the order of blocks.
#include "common.cuh"

inline u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

KERNEL(digest)(const unsigned char* bytes, u64 count, u64* digest) {
    begin_kernel();
    bool is_aligned = (u64)bytes % 8 == 0;
    u64 whole = is_aligned ? count / 8 : 0, words = (count + 7) / 8, stride = (u64)gridDim.x * blockDim.x, sum = 0;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += stride) {
        u64 word = 0;
        if (at < whole) {
            word = ((const u64*)bytes)[at];
        } else {
            for (u64 byte = 8 * at; byte < 8 * at + 8 && byte < count; ++byte) word |= (u64)bytes[byte] << (byte % 8 * 8);
        }
        sum += mixed(word + (at + 1) * 0x9e3779b97f4a7c15ull);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) atomicAdd(digest, sum);
}
