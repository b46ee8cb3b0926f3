// y[i] = a * x[i] + y[i], f32, one element a thread.
extern "C" __global__ void axpy(float a, const float* x, float* y, unsigned long long count) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = fmaf(a, x[i], y[i]);
}
