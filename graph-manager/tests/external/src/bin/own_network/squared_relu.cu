// relu(x)^2 and its gradient, f32.

extern "C" __global__ void squared_relu(const float *input, float *output, unsigned long long count) {
    unsigned long long i = blockIdx.x * 256ull + threadIdx.x;
    if (i < count) {
        float x = fmaxf(input[i], 0.0f);
        output[i] = x * x;
    }
}

extern "C" __global__ void squared_relu_backward(const float *input, const float *grad_output, float *grad_input,
                                                 unsigned long long count) {
    unsigned long long i = blockIdx.x * 256ull + threadIdx.x;
    if (i < count) {
        grad_input[i] = 2.0f * fmaxf(input[i], 0.0f) * grad_output[i];
    }
}
