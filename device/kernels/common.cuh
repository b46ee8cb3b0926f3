// What every kernel shares. No CUDA header is included, so that a node needs NVRTC alone.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Declares a kernel under an unmangled name: KERNEL(name)(arguments) { ... }. Keep it at the start of a line: the host
// finds the names of a source's kernels by it.
#define KERNEL(name) extern "C" __global__ void name
