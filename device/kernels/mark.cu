// How far a stream has come, for a thread of the host to read while nothing else answers: `words` is host memory,
// (when it was marked, counted over all lanes; the mark's value; the lane's number of marks).
#include "common.cuh"

KERNEL(mark)(volatile u64* words, u64* all, u64* own, unsigned value) {
    u64 sequence = atomicAdd((unsigned long long*)all, 1ull) + 1;
    u64 count = *own + 1;  // a lane belongs to one stream
    *own = count;
    words[1] = value;
    words[2] = count;
    words[0] = sequence;  // on its way to the host without the stream waiting for that
}
