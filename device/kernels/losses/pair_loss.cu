// Losses of pairs of answers of which one is preferred.
#include "common.cuh"

struct PairLoss {
    const float* losses; // (samples, tokens)
    const int* targets;  // (samples, tokens)
    const int* pairs;    // (samples, most, 4)
    const float* references; // (samples, most, 6), or null: those in `pairs`
    const float* mismatched; // the sum of mismatched rewards, or null
    const Control* control;  // with `mismatched`
    float* results;          // (samples, most, 6)
    float* weights;          // (samples, tokens), or null
    u32 tokens;
    u32 most;
    u32 kind;
    float beta;
    float label_smoothing;
    float desirable;   // the weight of such answers
    float undesirable; // of others
    u32 padding;
};

// Values of `kind`; 0 is DPO.
constexpr u32 IPO = 1, KTO = 2;

inline float minus_log_sigmoid(float x) { return fmaxf(-x, 0.0f) + log1pf(expf(-fabsf(x))); }

// The sum of the losses of an answer, and the number of its targets. All threads of the block call it.
inline double answer_loss(const float* losses, const int* targets, u32 begin, u32 end, double& counted) {
    double sum = 0.0, count = 0.0;
    for (u32 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        sum += losses[i];
        count += targets[i] >= 0 ? 1.0 : 0.0;
    }
    counted = block_sum(count);
    return block_sum(sum);
}

inline void fill(float* weights, u32 begin, u32 end, float value) {
    for (u32 i = begin + threadIdx.x; i < end; i += blockDim.x) weights[i] = value;
}

// A block for each pair. That of a sample's last one also clears the weights behind all pairs.
KERNEL(pair_loss)(const PairLoss op) {
    begin_kernel();
    const u32 sample = blockIdx.x / op.most, pair = blockIdx.x % op.most;
    const float* losses = op.losses + (u64)sample * op.tokens;
    const int* targets = op.targets + (u64)sample * op.tokens;
    const int* all = op.pairs + (u64)sample * op.most * 4;
    const int* own = all + pair * 4;
    float* results = op.results + (u64)blockIdx.x * 6;
    float* weights = op.weights ? op.weights + (u64)sample * op.tokens : nullptr;
    if (weights && pair + 1 == op.most) {
        u32 last = 0;
        for (u32 i = 0; i < op.most; i++) last = max(last, (u32)all[i * 4 + 1]);
        fill(weights, last, op.tokens, 0.0f);
    }
    u32 begin = pair > 0 ? own[-3] : 0, middle = own[0], end = own[1];
    if (end == 0) {
        if (threadIdx.x < 6) results[threadIdx.x] = 0.0f;
        return;
    }
    double counts[2];
    float chosen = (float)-answer_loss(losses, targets, begin, middle, counts[0]);
    float rejected = (float)-answer_loss(losses, targets, middle, end, counts[1]);
    const float* reference = op.references ? op.references + (u64)blockIdx.x * 6 + 4 : (const float*)(own + 2);
    float of_chosen = chosen - reference[0], of_rejected = rejected - reference[1];
    float shares[2] = {1.0f, 1.0f}, loss, derivative;
    bool is_right = op.beta * of_chosen > op.beta * of_rejected;
    if (op.kind == KTO) {
        float z = 0.0f;
        if (op.mismatched) z = fmaxf(op.mismatched[0] * (op.control->grad_scale * op.control->inverse_loss_scale), 0.0f);
        // A desirable answer is a pair whose rejected answer has no tokens.
        is_right = middle == end;
        float weight = is_right ? op.desirable : op.undesirable;
        float x = op.beta * (of_chosen - of_rejected) + (is_right ? -z : z);
        loss = weight * sigmoid<float>(-x);
        derivative = -weight * op.beta * sigmoid<float>(x) * sigmoid<float>(-x);
    } else if (op.kind == IPO) {
        shares[0] = 1.0f / fmaxf((float)counts[0], 1.0f);
        shares[1] = 1.0f / fmaxf((float)counts[1], 1.0f);
        float x = of_chosen * shares[0] - of_rejected * shares[1] - 0.5f / op.beta;
        loss = x * x;
        derivative = 2.0f * x;
    } else {
        float x = op.beta * (of_chosen - of_rejected), s = op.label_smoothing;
        loss = (1.0f - s) * minus_log_sigmoid(x) + s * minus_log_sigmoid(-x);
        derivative = op.beta * (s * sigmoid<float>(x) - (1.0f - s) * sigmoid<float>(-x));
    }
    if (threadIdx.x == 0) {
        results[0] = loss;
        results[1] = op.beta * of_chosen;
        results[2] = op.beta * of_rejected;
        results[3] = is_right ? 1.0f : 0.0f;
        results[4] = chosen;
        results[5] = rejected;
    }
    if (!weights) return;
    // A target's loss is its log-probability with the other sign.
    fill(weights, begin, middle, -derivative * shares[0]);
    fill(weights, middle, end, derivative * shares[1]);
}
