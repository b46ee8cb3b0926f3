// A progress mark: how far a stream has come. A thread of the host reads it, even while the driver does not answer.
// `words` is host memory: the mark's sequence number, counted over all tracks; its value; the number of the track's
// marks.
#include "common.cuh"

KERNEL(mark)(volatile u64* words, u64* all, u64* own, unsigned value) {
    begin_kernel();
    u64 sequence = atomicAdd((unsigned long long*)all, 1ull) + 1;
    u64 count = *own + 1;  // a track belongs to one stream
    *own = count;
    words[1] = value;
    words[2] = count;
    words[0] = sequence;  // travels to the host; the stream does not wait for it
}
