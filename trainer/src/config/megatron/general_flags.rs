//! The table of Megatron's flags, but for the flags about experts.

use super::meaning::Meaning::{
    self, Agrees, Computes, IgnoredIf, Sets, SetsByValue, SetsItem, SetsTelling, SetsWhateverValue,
};
use super::meaning::Takes::Nothing;
use crate::config::RunConfig;

const OWN_GRAPHS: &str = "the trainer captures its own graphs, in one way";

const GRAPH_IMPL: &[(&str, &[(&str, &str)])] = &[
    ("none", &[("cuda_graph.enable", "false")]),
    ("local", &[("cuda_graph.enable", "true")]),
    // Graphs of single layers, as here.
    ("transformer_engine", &[("cuda_graph.enable", "true")]),
    ("full_iteration", &[("cuda_graph.enable", "true"), ("cuda_graph.scope", "full_iteration")]),
];

const GRAPH_GRANULARITY: &[(&str, &[(&str, &str)])] =
    &[("layer", &[("cuda_graph.scope", "per_layer")]), ("chunk", &[("cuda_graph.scope", "per_chunk")])];

/// The number of steps for so many samples; `None` if the steps have different numbers of samples.
fn steps_of(samples: f64, run: &RunConfig) -> Option<f64> {
    run.train.rampup_batch_size.is_empty().then(|| samples / run.train.global_batch_size as f64)
}

/// The chunks of a stage for so many layers in each; `None` if layers are left over.
fn chunks_of(layers: f64, run: &RunConfig) -> Option<f64> {
    let chunks = run.model.layers as f64 / (run.parallel.pipeline as f64 * layers);
    (chunks >= 1.0 && chunks.fract() == 0.0).then_some(chunks)
}

/// The flags, without dashes in front.
#[rustfmt::skip]
pub const GENERAL_FLAGS: &[(&str, Meaning)] = &[
    ("bf16", Sets("precision.compute", "bf16")),
    ("fp8-hybrid", Sets("precision.fp8", "hybrid")),
    ("fp8-e4m3", Sets("precision.fp8", "e4m3")),
    ("first-last-layers-bf16", Sets("precision.bf16_blocks", "[1, 1]")),
    ("openai-gelu", Sets("model.activation", "gelu")),
    ("swiglu", Sets("model.activation", "swiglu")),
    ("softmax-type", SetsByValue(&[
        ("vanilla", &[("model.attention_sinks", "false")]), ("learnable", &[("model.attention_sinks", "true")]),
    ], "the softmax is over the tokens, or a learnt score of each head too", "--softmax-type learnable")),
    ("untie-embeddings-and-output-weights", Sets("model.tie_embeddings", "false")),
    ("use-rotary-position-embeddings", Sets("model.position", "rotary")),
    ("recompute-activations", Sets("recompute.granularity", "selective")),
    ("fine-grained-activation-offloading", SetsTelling(("offload.activation_layers", "1000000"), ("recompute.granularity", "none"), "all that backward reads of a block leaves, which may take longer than the block")),
    ("cuda-graph-use-single-mempool", Sets("cuda_graph.mempool", "single")),
    ("grad-reduce-in-bf16", Sets("parallel.grad_reduce", "bf16")),

    ("non-persistent-ckpt-type", IgnoredIf(&["local", "in_memory"], "states in memory are in /dev/shm, as long as `trainer supervise` lives", "states between checkpoints are in the machine's shared memory", "give local, or --save-interval for checkpoints in the folder of --save")),

    ("cuda-graph-impl", SetsByValue(GRAPH_IMPL, OWN_GRAPHS, "--cuda-graph-impl local, transformer_engine, full_iteration or none")),

    ("cuda-graph-granularity", SetsByValue(GRAPH_GRANULARITY, "a graph has one layer, or a chunk of layers", "--cuda-graph-granularity layer or chunk")),

    ("disable-bias-linear", SetsTelling(("model.bias", "false"), ("model.norm", "layernorm"), "LayerNorms have no biases then either")),
    ("profile", Sets("logging.trace", "trace.json")),
    ("tensorboard-dir", SetsWhateverValue("logging.tensorboard", "true", "TensorBoard's files go into logging.dir")),

    ("qk-head-dim", Computes("model.head_dim", "VALUE + model.rotary_head_dim", |plain, run| Some(plain + run.model.rotary_head_dim as f64))),
    ("train-samples", Computes("train.steps", "VALUE / train.global_batch_size", steps_of)),
    ("lr-warmup-samples", Computes("optimizer.warmup_steps", "VALUE / train.global_batch_size", steps_of)),
    ("lr-wsd-decay-samples", Computes("optimizer.decay_steps", "VALUE / train.global_batch_size", steps_of)),
    ("lr-warmup-fraction", Computes("optimizer.warmup_steps", "VALUE x train.steps", |share, run| run.train.epochs.is_none().then_some(share * run.train.steps as f64))),
    ("distributed-timeout-minutes", Computes("parallel.distributed_timeout_seconds", "60 x VALUE", |minutes, _| Some(60.0 * minutes))),
    ("num-layers-per-virtual-pipeline-stage", Computes("parallel.virtual_pipeline", "model.layers / (parallel.pipeline x VALUE)", chunks_of)),
    ("profile-step-end", Computes("logging.trace_steps", "VALUE - logging.trace_after", |end, run| Some(end - run.logging.trace_after? as f64))),

    ("mock-data", Agrees(Nothing, "data.path", "without data.path the trainer makes its own data")),

    ("adam-beta1", SetsItem("optimizer.betas", 0)),
    ("adam-beta2", SetsItem("optimizer.betas", 1)),
    ("use-torch-fsdp2", Sets("parallel.data_parallel_sharding", "optim_grads_params")),
    ("recompute-modules", IgnoredIf(&["core_attn", "layernorm", "moe_act"], "attention saves no scores in any case, and --recompute-granularity selective runs norms and activations again, all of them", "selective recompute runs norms and activations again, full recompute whole blocks", "--recompute-granularity full, with --recompute-keep-attention to leave attention out, or --recompute-blocks")),
];
