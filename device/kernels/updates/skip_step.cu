// Skips the update of a step if its loss or gradient norm is a spike: more than so many standard deviations above the
// mean of the last steps. One warp. The history is a ring of `interval` losses, then as many norms.
#include "common.cuh"

struct SkipStep {
    const float* loss_sum;
    float* history;
    const Control* control;
    Status* status;
    float sigma_factor;
    u32 interval;
    u32 least; // steps that must be known
};

// The threads add the values in the order of their steps, whatever columns of the ring these have.
inline bool is_spike(float value, const float* ring, u32 interval, u32 recorded, u32 known, float sigma_factor) {
    double sum = 0.0, squares = 0.0;
    for (u32 i = threadIdx.x; i < known; i += 32) sum += ring[(recorded - known + i) % interval];
    double mean = warp_sum(sum) / known;
    for (u32 i = threadIdx.x; i < known; i += 32) {
        double x = ring[(recorded - known + i) % interval] - mean;
        squares += x * x;
    }
    double deviation = sqrt(warp_sum(squares) / (known - 1));
    return value - mean > sigma_factor * deviation;
}

KERNEL(skip_step)(const SkipStep op) {
    begin_kernel();
    Status* status = op.status;
    float loss = *op.loss_sum * op.control->grad_scale * op.control->inverse_loss_scale;
    float norm = status->grad_norm;
    u32 recorded = status->recorded, known = min(recorded, op.interval);
    bool finite = status->finite && fabsf(loss) <= 3.4028235e38f;
    if (!finite) return;
    bool spike = false;
    if (known >= op.least) {
        spike = is_spike(loss, op.history, op.interval, recorded, known, op.sigma_factor);
        spike |= is_spike(norm, op.history + op.interval, op.interval, recorded, known, op.sigma_factor);
    }
    __syncwarp();
    if (threadIdx.x > 0) return;
    if (spike) {
        status->applies = 0;
        status->applied -= 1;
        status->spikes += 1;
    }
    op.history[recorded % op.interval] = loss;
    op.history[op.interval + recorded % op.interval] = norm;
    status->recorded = recorded + 1;
}

// Takes a step back whose rows had no room. One thread.
KERNEL(void_step)(const float* beyond, Status* status) {
    begin_kernel();
    if (!(*beyond > 0.0f)) return;
    status->applied -= status->finite;
    status->skipped -= 1 - status->finite;
    status->finite = status->applies = 0;
    status->grad_factor = 0.0f;
}
