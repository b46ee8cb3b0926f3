// The choice of each token's experts, and its gradient. A warp takes a token, and thread l the experts l, l + 32 and so
// on: V of them. All in f32. Each logit is read once, but for those of the chosen experts.
#include "places.cuh"

const u32 ALL = 0xffffffffu;

// From logits to scores: the softmax over a token's logits, or the logistic function of each.
struct Scores {
    float highest;
    float sum; // of exponentials of distances from the highest
    u32 sigmoid;
    float softmax(float logit) const { return expf(logit - highest) / sum; }
    float of(float logit) const { return sigmoid ? ::sigmoid<float>(logit) : softmax(logit); }
    float log_sum() const { return highest + logf(sum); }
};

// The logits of a token, as far as this thread has them.
template <int V> void load_logits(const float* logits, u32 experts, float (&x)[V]) {
#pragma unroll
    for (int i = 0; i < V; i++) {
        u32 expert = threadIdx.x % 32 + 32 * i;
        x[i] = expert < experts ? logits[expert] : 0.0f;
    }
}

template <int V> Scores scores_of(const float (&x)[V], u32 experts, u32 sigmoid) {
    float highest = -infinity(), sum = 0.0f;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (threadIdx.x % 32 + 32 * i < experts) highest = fmaxf(highest, x[i]);
    }
    highest = warp_max(highest);
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (threadIdx.x % 32 + 32 * i < experts) sum += expf(x[i] - highest);
    }
    return {highest, warp_sum(sum), sigmoid};
}

struct Route {
    const float* logits; // (tokens, experts)
    const float* bias;   // (experts), or null
    int* chosen;         // (tokens, k)
    float* weights;      // (tokens, k)
    u32 tokens;
    u32 experts;
    u32 k; // at most 32
    u32 sigmoid;
    u32 normalise;
    u32 forces_balance;
    u32 groups;        // neighbouring experts form groups of equal size, at most 32; 1 for no groups
    u32 of_groups;     // the groups that a token chooses from
    u32 two_highest;   // a group's score is the sum of its two highest keys, and not the highest
    u32 reserved;
    float scale;
    Places places;
};

// A number that orders as the key does. It is above 0. NaN counts as minus infinity, and -0 as 0.
inline u32 order(float key) {
    u32 bits = __float_as_uint(key == key ? key + 0.0f : -infinity());
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The key that has this order.
inline float key_of(u32 order) { return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order); }

// An expert, and the order of its key.
struct Best {
    u32 order;
    u32 expert;
};

// The expert from `first` to `end` with the highest key, of equal ones the lowest. Its key becomes 0.
template <int V> Best take(u32 (&keys)[V], u32 first, u32 end) {
    const u32 lane = threadIdx.x % 32;
    u32 best = 0, expert = ALL;
#pragma unroll
    for (int i = 0; i < V; i++) {
        bool is_there = lane + 32 * i >= first && lane + 32 * i < end;
        if (is_there && keys[i] > best) best = keys[i], expert = lane + 32 * i;
    }
    u32 highest = __reduce_max_sync(ALL, best);
    expert = __reduce_min_sync(ALL, best == highest ? expert : ALL);
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (lane + 32 * i == expert) keys[i] = 0;
    }
    return {highest, expert};
}

// Keys of experts outside of the groups with the highest scores become 0. Of equal scores that of the lowest group is
// taken.
template <int V> void keep_groups(u32 (&keys)[V], const Route& op) {
    const u32 lane = threadIdx.x % 32, size = op.experts / op.groups;
    u32 left[V], scores[1] = {0}, kept = 0;
#pragma unroll
    for (int i = 0; i < V; i++) left[i] = keys[i];
    for (u32 group = 0; group < op.groups; group++) {
        float score = key_of(take<V>(left, group * size, (group + 1) * size).order);
        if (op.two_highest) score += key_of(take<V>(left, group * size, (group + 1) * size).order);
        if (lane == group) scores[0] = order(score);
    }
    for (u32 j = 0; j < op.of_groups; j++) kept |= 1u << take<1>(scores, 0, op.groups).expert;
#pragma unroll
    for (int i = 0; i < V; i++) {
        u32 expert = lane + 32 * i;
        if (expert < op.experts && !(kept >> expert / size & 1)) keys[i] = 0;
    }
}

// Thread j gets choice j. Of equal keys that of the lowest expert is taken.
template <int V> u32 choose(const float (&x)[V], const Scores& scores, const Route& op) {
    const u32 lane = threadIdx.x % 32;
    u32 keys[V], mine = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        u32 expert = lane + 32 * i;
        keys[i] = expert < op.experts ? order(scores.of(x[i]) + (op.bias ? op.bias[expert] : 0.0f)) : 0;
    }
    if (op.groups > 1) keep_groups<V>(keys, op);
    for (u32 j = 0; j < op.k; j++) {
        u32 expert = take<V>(keys, 0, op.experts).expert;
        if (lane == j) mine = expert;
    }
    return mine;
}

template <int V> void route(const Route& op) {
    const u32 lane = threadIdx.x % 32;
    const u64 token = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (token >= op.tokens) return;
    const float* logits = op.logits + token * op.experts;
    float x[V];
    load_logits<V>(logits, op.experts, x);
    Scores scores = scores_of<V>(x, op.experts, op.sigmoid);
    u32 expert = op.forces_balance ? (u32)((number_of(op.places, token) * op.k + lane) % op.experts) : choose<V>(x, scores, op);
    bool has = lane < op.k;
    float weight = has ? scores.of(logits[expert]) : 0.0f;
    float sum = op.normalise ? warp_sum(weight) : 1.0f;
    if (!has) return;
    op.chosen[token * op.k + lane] = (int)expert;
    op.weights[token * op.k + lane] = op.scale * (weight / sum);
}

struct RouteBackward {
    const float* logits;       // (tokens, experts)
    const int* chosen;         // (tokens, k)
    const float* grad_weights; // (tokens, k)
    const float* load;         // (groups, experts), or null without a balance loss
    float* balance_losses;     // (tokens)
    float* z_losses;           // (tokens), or null without a z-loss
    const int* real;           // (samples), or null: tokens of each whole sample that are no padding
    const int* position_ids;   // (tokens), or null unless groups are documents, whose rows are those of first tokens
    const Control* control;
    float* grad_logits;        // (tokens, experts)
    u32 tokens;
    u32 experts;
    u32 k; // at most 32
    u32 groups; // 1 or samples; tokens of whole samples, if they are documents
    u32 samples;
    u32 of_step; // the loads are those of the step so far
    Places places;
    u32 sigmoid;
    u32 normalise;
    u32 adds_gradient; // of the losses
    float scale;
    float balance_multiplier;
    float z_multiplier;
    u32 reserved;
};

// Whether a token is no padding.
inline bool counts(const RouteBackward& op, u64 token) { return is_real(op.real, op.places, token); }

// Tokens of whole samples that are no padding.
inline float counted(const RouteBackward& op) {
    if (!op.real) return (float)(op.samples * op.places.whole);
    int sum = 0;
    for (u32 i = 0; i < op.samples; i++) sum += op.real[i];
    return (float)sum;
}

// Adds the gradient of scores by way of the weights. Thread j begins with choice j.
template <int V>
void through_weights(float (&grad)[V], const float* logits, const Scores& scores, const RouteBackward& op, u64 token) {
    const u32 lane = threadIdx.x % 32;
    bool has = lane < op.k;
    u32 expert = has ? min((u32)op.chosen[token * op.k + lane], op.experts - 1) : 0;
    float of_weight = has ? op.grad_weights[token * op.k + lane] : 0.0f, sum = 1.0f, mean = 0.0f;
    if (op.normalise) {
        float score = has ? scores.of(logits[expert]) : 0.0f;
        sum = warp_sum(score);
        mean = warp_sum(of_weight * (score / sum));
    }
    float of_score = op.scale * (of_weight - mean) / sum;
    for (u32 j = 0; j < op.k; j++) {
        u32 chosen = __shfl_sync(ALL, expert, j);
        float add = __shfl_sync(ALL, of_score, j);
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (lane + 32 * i == chosen) grad[i] += add;
        }
    }
}

// Writes the balance loss of a token, and adds its gradient with respect to the scores.
template <int V>
void balance(float (&grad)[V], const float (&score)[V], float of_losses, const RouteBackward& op, u64 token) {
    u64 group = op.groups == 1 ? 0 : token / op.places.length;
    if (op.position_ids) {
        u64 number = number_of(op.places, token);
        group = number - min((u64)op.position_ids[token], number);
    }
    const float* loads = op.load + group * op.experts;
    float load[V], sum = 0.0f, total = 0.0f, mean = 0.0f;
    load_logits<V>(loads, op.experts, load);
#pragma unroll
    for (int i = 0; i < V; i++) sum += score[i], total += load[i];
    sum = warp_sum(sum);
    total = warp_sum(total);
    bool has = counts(op, token) && total > 0.0f;
    // The groups of the step, and the tokens of this one.
    float groups = (float)(op.position_ids ? op.control->documents : op.control->microbatches * op.groups);
    float tokens = op.of_step ? counted(op) : total / op.k;
    float of_token = has ? 1.0f / (groups * tokens * total) : 0.0f;
    float of_loads = op.balance_multiplier * op.experts * of_token;
#pragma unroll
    for (int i = 0; i < V; i++) mean += load[i] * (score[i] / sum);
    mean = warp_sum(mean);
    if (threadIdx.x % 32 == 0) op.balance_losses[token] = of_losses * of_loads * mean;
    if (!op.adds_gradient) return;
    float factor = of_losses * op.control->grad_scale * of_loads / sum;
#pragma unroll
    for (int i = 0; i < V; i++) grad[i] += factor * (load[i] - mean);
}

template <int V> void route_backward(const RouteBackward& op) {
    const u32 lane = threadIdx.x % 32;
    const u64 token = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (token >= op.tokens) return;
    const float* logits = op.logits + token * op.experts;
    float x[V], score[V], grad[V] = {};
    load_logits<V>(logits, op.experts, x);
    Scores scores = scores_of<V>(x, op.experts, op.sigmoid);
#pragma unroll
    for (int i = 0; i < V; i++) score[i] = lane + 32 * i < op.experts ? scores.of(x[i]) : 0.0f;
    through_weights<V>(grad, logits, scores, op, token);
    const Control* control = op.control;
    // The number of targets.
    float of_losses = 1.0f / (control->grad_scale * control->inverse_loss_scale);
    if (op.load) balance<V>(grad, score, of_losses, op, token);
    // Through the scores.
    float mean = 0.0f;
    if (!op.sigmoid) {
#pragma unroll
        for (int i = 0; i < V; i++) mean += lane + 32 * i < op.experts ? grad[i] * score[i] : 0.0f;
        mean = warp_sum(mean);
    }
    float log_sum = scores.log_sum(), of_z = 0.0f;
    bool has_z = op.z_losses && op.adds_gradient;
    if (op.z_losses) {
        float of_token = counts(op, token) ? of_losses * op.z_multiplier / (float)control->tokens : 0.0f;
        of_z = of_token * control->grad_scale * 2.0f * log_sum;
        if (lane == 0) op.z_losses[token] = of_token * log_sum * log_sum;
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        u32 expert = lane + 32 * i;
        if (expert >= op.experts) continue;
        float y = op.sigmoid ? grad[i] * score[i] * (1.0f - score[i]) : score[i] * (grad[i] - mean);
        if (has_z) y += of_z * scores.softmax(x[i]);
        op.grad_logits[token * op.experts + expert] = y;
    }
}

#define ROUTE(V)                                                                                  \
    KERNEL(route_##V)(const Route op) { begin_kernel(); route<V>(op); }                           \
    KERNEL(route_backward_##V)(const RouteBackward op) { begin_kernel(); route_backward<V>(op); }
ROUTE(1)
ROUTE(2)
ROUTE(4)
ROUTE(8)
ROUTE(16)
