//! The table of Megatron's flags about mixtures of experts. Those that take the same values as an option of ours are its
//! aliases in the option table.

use super::layer_pattern::expert_pattern;
use super::meaning::Meaning::{self, Ignored, Refused, SetsByValue, SetsUnless, Translates};
use super::meaning::Takes::{Nothing, Value};
use crate::config::RunConfig;

const DISPATCH: &str =
    "rows go to the ranks of their experts in the one way that the hardware has, and their numbers stay on the device";
const BESIDE: &str = "rows of experts travel beside products that do not need them, wherever there are any";
const ALL_EXPERTS: &str = "a token takes the experts with the highest scores of all";
const GROUPED: &str = "one product has all experts of a layer, and one tensor all their weights";
const KERNELS: &str = "the trainer has its own kernels, and no others to choose between";
const ANY_ROWS: &str = "products of experts take any numbers of rows";
const PLANNED: &str = "memory is planned once, before the first step";
const WHOLE: &str = "a new run starts from the experts that its weights have";
const CHOICES: &str = "the choices of routers are not recorded";
const OUT: &str = "leave it out";

const BALANCING: &[(&str, &[(&str, &str)])] = &[
    ("aux_loss", &[("train.balance_loss_over", "microbatch")]),
    ("seq_aux_loss", &[("train.balance_loss_over", "sequence")]),
    ("global_aux_loss", &[("train.balance_loss_over", "global_batch")]),
    ("none", &[("train.balance_loss_multiplier", "0.0")]),
];

/// The groups that a token chooses from. `None` if Megatron's scores of groups are sums of other than two.
fn groups_per_token(text: &str, run: &RunConfig) -> Option<String> {
    let groups: usize = text.parse().ok()?;
    let has_one = run.model.expert_groups == 1 && groups == 1;
    (has_one || groups > 0 && run.model.experts_per_token / groups == 2).then(|| groups.to_string())
}

/// The flags, without dashes in front.
#[rustfmt::skip]
pub const EXPERT_FLAGS: &[(&str, Meaning)] = &[
    ("moe-layer-freq", Translates(
        "model.expert_pattern",
        "1 for every VALUE-th block from the first, or to VALUE, a list with 1 or 0 for each block of the model",
        "--moe-layer-freq 2, or --moe-layer-freq ([0]*1+[1]*3) for four blocks",
        expert_pattern,
    )),
    ("moe-router-load-balancing-type", SetsByValue(BALANCING, "a balance loss compares the loads of a microbatch, of each sequence, or of the global batch", "--moe-router-load-balancing-type aux_loss, seq_aux_loss, global_aux_loss or none")),
    ("moe-router-pre-softmax", SetsUnless(
        ("model.router_normalise", "false"),
        ("model.router_score", "sigmoid"),
        "weights from sigmoids are divided by their sum, as in Megatron; --router-normalise=false leaves them as they are",
    )),

    ("moe-router-dtype", Refused(&["fp32"], "routers compute in f32", OUT)),
    ("moe-router-group-topk", Translates(
        "model.expert_groups_per_token",
        "VALUE, which is half of --moe-router-topk: a group's score is the sum of its two highest, and Megatron's of as many as \
         a token takes from a group",
        "--moe-router-topk 8 --moe-router-group-topk 4",
        groups_per_token,
    )),

    ("moe-grouped-gemm", Ignored(Nothing, GROUPED)),
    ("moe-use-legacy-grouped-gemm", Ignored(Nothing, GROUPED)),
    ("moe-use-grouped-tensor", Ignored(Nothing, GROUPED)),
    ("moe-single-grouped-weight", Ignored(Nothing, GROUPED)),
    ("use-grouped-gemm-for-shared-expert", Ignored(Nothing, KERNELS)),
    ("use-grouped-gemm-for-dense-mlp", Ignored(Nothing, KERNELS)),
    ("moe-permute-fusion", Ignored(Nothing, KERNELS)),
    ("moe-router-fusion", Ignored(Nothing, KERNELS)),
    ("inference-moe-disable-fused-quant-kernels", Ignored(Nothing, KERNELS)),
    ("moe-mlp-glu-interleave-size", Ignored(Value, KERNELS)),
    ("moe-shared-expert-glu-interleave-size", Ignored(Value, KERNELS)),
    ("moe-router-padding-for-fp8", Ignored(Nothing, ANY_ROWS)),
    ("moe-router-padding-for-quantization", Ignored(Nothing, ANY_ROWS)),
    ("moe-pad-experts-for-cuda-graph-inference", Ignored(Nothing, ANY_ROWS)),
    ("moe-pad-expert-input-to-capacity", Ignored(Nothing, ANY_ROWS)),
    ("moe-token-dispatcher-type", Ignored(Value, DISPATCH)),
    ("moe-flex-dispatcher-backend", Ignored(Value, DISPATCH)),
    ("moe-flex-dispatcher-num-sms", Ignored(Value, DISPATCH)),
    ("moe-enable-deepep", Ignored(Nothing, DISPATCH)),
    ("moe-deepep-num-sms", Ignored(Value, DISPATCH)),
    ("moe-hybridep-num-sms", Ignored(Value, DISPATCH)),
    ("moe-hybridep-num-sms-preprocessing", Ignored(Value, DISPATCH)),
    ("moe-hybridep-num-blocks-permute", Ignored(Value, DISPATCH)),
    ("moe-hybridep-num-blocks-unpermute", Ignored(Value, DISPATCH)),
    ("moe-hybridep-pad-uneven-dispatch-inputs", Ignored(Nothing, DISPATCH)),
    ("moe-permute-fusion-into-hybridep", Ignored(Nothing, DISPATCH)),
    ("moe-ncclep-zero-copy", Ignored(Nothing, DISPATCH)),
    ("moe-dispatch-fwd-dtype", Ignored(Value, DISPATCH)),
    ("moe-combine-bwd-dtype", Ignored(Value, DISPATCH)),
    ("inference-moe-token-dispatcher-type", Ignored(Value, DISPATCH)),
    ("moe-shared-expert-overlap", Ignored(Nothing, BESIDE)),
    ("overlap-moe-expert-parallel-comm", Ignored(Nothing, BESIDE)),
    ("overlap-dispatch-backward-with-experts-wgrad", Ignored(Nothing, BESIDE)),
    ("ep-overlap-early-attn-memory-release", Ignored(Nothing, BESIDE)),
    ("delay-wgrad-compute", Ignored(Nothing, "gradients of weights have a queue of their own, and no other layer waits for them")),
    ("moe-paged-stash", Ignored(Nothing, PLANNED)),
    ("moe-paged-stash-page-size", Ignored(Value, PLANNED)),
    ("moe-paged-stash-buffer-size-factor-cuda", Ignored(Value, PLANNED)),
    ("moe-paged-stash-buffer-size-factor-cpu", Ignored(Value, PLANNED)),
    ("moe-per-layer-logging", Ignored(Nothing, "the losses of routers are logged as sums over all layers")),

    ("moe-router-quantile-balancing-ema", Refused(&[], "biases of routers follow the loads by steps of one size", "--moe-router-bias-update-rate 1e-3")),
    ("moe-router-topk-limited-devices", Refused(&[], ALL_EXPERTS, OUT)),
    ("moe-router-force-biased", Refused(&[], "loads are those that routers choose, or all alike", "--moe-router-force-load-balancing")),
    ("moe-input-jitter-eps", Refused(&[], "routers read tokens without noise", OUT)),
    ("moe-apply-probs-on-input", Refused(&[], "weights multiply the activation of experts, not their input", OUT)),
    ("moe-latent-size", Refused(&[], "experts read and write the residual stream in its whole width", OUT)),
    ("moe-shared-expert-gate", Refused(&[], "the shared expert has no gate over its output", OUT)),
    ("moe-single-grouped-bias", Refused(&[], "experts have no biases", "--bias=false")),
    ("moe-layer-recompute", Refused(&[], "recompute has a granularity", "--recompute-granularity full")),
    ("moe-use-upcycling", Refused(&[], WHOLE, "--init-from with a model that has experts")),
    ("moe-upcycling-granularity", Refused(&[], WHOLE, "--init-from with a model that has experts")),
    ("moe-enable-routing-replay", Refused(&[], CHOICES, OUT)),
    ("moe-routing-trace-path", Refused(&[], CHOICES, OUT)),
    ("moe-routing-trace-max-training-iters", Refused(&[], CHOICES, OUT)),
    ("moe-routing-trace-capture-logits", Refused(&[], CHOICES, OUT)),
    ("moe-routing-trace-capture-hidden-states", Refused(&[], CHOICES, OUT)),
    ("moe-routing-trace-dump-weights", Refused(&[], CHOICES, OUT)),
    ("save-tokens-per-expert-interval", Refused(&[], CHOICES, OUT)),
    ("expert-tensor-parallel-num-weight-shards", Refused(&[], "tensor-parallel ranks share each expert, and gather no weights of it", OUT)),
    ("gtp-expert-remat-nccl-ub", Refused(&[], "tensor-parallel ranks share each expert, and gather no weights of it", OUT)),
    ("rl-inference-expert-model-parallel-size", Refused(&[], "text is generated on one rank", OUT)),
    ("rl-inference-expert-tensor-model-parallel-size", Refused(&[], "text is generated on one rank", OUT)),
];
