// The condition of a conditional node in a graph.
//
// The compiler and the driver know cudaGraphSetConditional: the driver resolves it when it loads the machine code. No
// library has it.
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);

// One thread. The node of `handle` runs its body if the flag is not 0. Kernels that come before this one are done when
// it begins.
extern "C" __global__ void set_condition(unsigned long long handle, const int* flag) {
    cudaGraphSetConditional(handle, *flag != 0);
}
