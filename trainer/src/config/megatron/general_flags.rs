//! The table of Megatron's flags, but for those about experts.

use super::meaning::Meaning::{
    self, Agrees, Computes, Ignored, IgnoredIf, Refused, Sets, SetsByValue, SetsItem, SetsTelling, SetsWhateverValue,
};
use super::meaning::Takes::{Nothing, Value};
use crate::config::RunConfig;

const PRECISION: &str = "layers compute in bf16, tf32 or f32";
const OWN_GRAPHS: &str = "the trainer captures its own graphs, in one way";
const TOKENIZERS: &str = "a tokenizer is `byte`, a Hugging Face tokenizer.json, or a folder with one";
const WEIGHTS_TOGETHER: &str = "resuming restores all of a checkpoint's state; a new run can start from weights alone";
const ONE_WAY: &str = "the trainer has one way to do this";
const KERNELS: &str = "the trainer has its own kernels, and no others to choose between";
const LOSS_SCALE: &str = "only fp16 needs loss scaling, and the trainer has no fp16";
const COLLECTOR: &str = "there is no garbage collector";
const LOGS: &str = "metrics.jsonl has a line for every step; TensorBoard's files go into logging.dir too";
const WANDB: &str = "--wandb writes files into logging.dir, and the client of Weights & Biases, if Python has it, reads its own variables";
const WITHIN_CHECKPOINT: &str = "a checkpoint always holds weights, optimizer and the place in the data";
const RATE_OF_GROUPS: &str = "parameters of their own rate have a multiple of the learning rate";
const DECOUPLED: &str =
    "--param-groups wte.*=M lm_head.*=M, with M its value over --lr; without lm_head where it is tied";
const ONE_DECAY: &str = "weight decay stays the same";

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
    ("non-persistent-global-ckpt-dir", Refused(&[], "states between checkpoints are in the machine's shared memory", "leave it out; --save-interval for checkpoints in the folder of --save")),

    ("cuda-graph-impl", SetsByValue(GRAPH_IMPL, OWN_GRAPHS, "--cuda-graph-impl local, transformer_engine, full_iteration or none")),

    ("cuda-graph-granularity", SetsByValue(GRAPH_GRANULARITY, "a graph has one layer, or a chunk of layers", "--cuda-graph-granularity layer or chunk")),
    ("cuda-graph-dynamic-microbatches", Ignored(Nothing, "steps may have any number of microbatches: every number that the run has is planned before its first step")),
    ("cuda-graph-num-microbatch-slots", Ignored(Value, "a chunk has as many slots as the schedule has microbatches in flight")),
    ("inference-cuda-graph-scope", Ignored(Value, "trainer sample makes each token with one graph of the whole model")),

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


    ("fp8-interval", Refused(&["1"], "scales are made in every step", "leave it out")),
    ("tokenizer-type", Refused(&["HuggingFaceTokenizer", "NullTokenizer"], TOKENIZERS, "--tokenizer; token files need none")),
    ("rotary-percent", Refused(&["1"], "rotary positions turn all channels of a head", "leave it out")),
    ("lr-warmup-init", Refused(&["0"], "warm-up starts above 0, with the first of its equal increments", "leave it out")),
    ("weight-decay-incr-style", Refused(&["constant"], ONE_DECAY, "--weight-decay")),
    ("lr-wsd-decay-style", Refused(&["linear"], "wsd's decay is linear", "leave it out")),

    ("mock-data", Agrees(Nothing, "data.path", "without data.path the trainer makes its own data")),

    ("te-rng-tracker", Ignored(Nothing, "randomness is a function of step, sample and place, and always safe to capture")),
    ("overlap-grad-reduce", Ignored(Nothing, "gradients are always reduced during backward")),
    ("overlap-param-gather", Ignored(Nothing, "a distributed optimizer's weights are always gathered during forward")),
    ("no-check-for-nan-in-loss-and-grad", Ignored(Nothing, "the check runs on the device, inside the graph")),
    ("accumulate-allreduce-grads-in-fp32", Ignored(Nothing, "gradients always accumulate in f32")),
    ("attention-softmax-in-fp32", Ignored(Nothing, "softmax is always in f32")),
    ("group-query-attention", Ignored(Nothing, "--num-query-groups is enough")),
    ("use-flash-attn", Ignored(Nothing, "attention is always one operation")),
    ("use-mcore-models", Ignored(Nothing, "there is one kind of transformer")),
    ("exit-signal-handler", Ignored(Nothing, "signals always end a run after a step, with a checkpoint")),
    ("log-throughput", Ignored(Nothing, "throughput is logged for every step")),
    ("log-validation-ppl-to-tensorboard", Ignored(Nothing, "perplexity is always logged beside the loss")),
    ("log-memory-to-tensorboard", Ignored(Nothing, "memory is always logged")),
    ("no-bias-gelu-fusion", Ignored(Nothing, KERNELS)),
    ("no-bias-swiglu-fusion", Ignored(Nothing, KERNELS)),
    ("no-bias-dropout-fusion", Ignored(Nothing, KERNELS)),
    ("no-masked-softmax-fusion", Ignored(Nothing, KERNELS)),
    ("no-rope-fusion", Ignored(Nothing, KERNELS)),
    ("no-persist-layer-norm", Ignored(Nothing, KERNELS)),
    ("no-gradient-accumulation-fusion", Ignored(Nothing, KERNELS)),
    ("cross-entropy-loss-fusion", Ignored(Nothing, "the loss is always one operation")),
    ("calculate-per-token-loss", Ignored(Nothing, "the loss is always the mean over the targets of a step")),
    ("apply-layernorm-1p", Ignored(Nothing, "norms have no weight decay, so both forms train alike")),
    ("manual-gc", Ignored(Nothing, COLLECTOR)),
    ("no-manual-gc-eval", Ignored(Nothing, COLLECTOR)),
    ("no-create-attention-mask-in-dataloader", Ignored(Nothing, "attention is causal without a mask in memory")),
    ("no-async-tensor-model-parallel-allreduce", Ignored(Nothing, "transfers of backward run beside products wherever they can")),
    ("tp-comm-overlap", Ignored(Nothing, "transfers of backward run beside products wherever they can")),
    ("disable-gloo-process-groups", Ignored(Nothing, "there are none")),
    ("ckpt-fully-parallel-save", Ignored(Nothing, "each rank always writes its part of weights and optimizer")),
    ("ckpt-fully-parallel-load", Ignored(Nothing, "each rank always reads the parts that it needs")),
    ("ckpt-assume-constant-structure", Ignored(Nothing, "a checkpoint's files are planned once")),
    ("use-persistent-ckpt-worker", Ignored(Nothing, "threads write a checkpoint while training goes on")),
    ("use-dist-ckpt", Ignored(Nothing, "any layout resumes from a checkpoint of any other")),
    ("auto-detect-ckpt-format", Ignored(Nothing, "there is one format")),
    ("exit-on-missing-checkpoint", Ignored(Nothing, "a missing checkpoint that was asked for is always an error")),
    ("no-one-logger", Ignored(Nothing, "nothing is sent anywhere")),
    ("use-cpu-initialization", Ignored(Nothing, "weights start the same on every layout")),
    ("no-mmap-bin-files", Ignored(Nothing, "token files are never mapped into memory")),
    ("log-timers-to-tensorboard", Ignored(Nothing, "a timeline (--trace) has the time of every operation")),
    ("log-params-norm", Ignored(Nothing, "the norm of gradients is logged, not of weights")),
    ("log-num-zeros-in-grad", Ignored(Nothing, "the norm of gradients is logged, not their zeros")),
    ("log-progress", Ignored(Nothing, LOGS)),
    ("use-legacy-models", Ignored(Nothing, ONE_WAY)),
    ("use-pytorch-profiler", Ignored(Nothing, "the trainer writes its own timeline")),
    ("no-save-rng", Ignored(Nothing, "randomness is a function, and no state to save")),
    ("no-load-rng", Ignored(Nothing, "randomness is a function, not a state to load")),

    ("attention-backend", Ignored(Value, KERNELS)),
    ("distributed-backend", Ignored(Value, "ranks talk over NCCL on GPUs and over MPI on the host")),
    ("empty-unused-memory-level", Ignored(Value, "memory is planned once, before the first step")),
    ("manual-gc-interval", Ignored(Value, COLLECTOR)),
    ("initial-loss-scale", Ignored(Value, LOSS_SCALE)),
    ("min-loss-scale", Ignored(Value, LOSS_SCALE)),
    ("loss-scale-window", Ignored(Value, LOSS_SCALE)),
    ("hysteresis", Ignored(Value, LOSS_SCALE)),
    ("data-cache-path", Ignored(Value, "the order of samples is computed; nothing is cached")),
    ("dataloader-type", Ignored(Value, "every sample comes once an epoch, in an order that data.seed decides")),
    ("make-vocab-size-divisible-by", Ignored(Value, "the vocabulary is padded to a multiple of 128 x parallel.tensor, with tokens that never train")),
    ("dist-ckpt-format", Ignored(Value, "checkpoints are safetensors")),
    ("ckpt-format", Ignored(Value, "checkpoints are safetensors")),
    ("dist-ckpt-strictness", Ignored(Value, "a checkpoint that lacks a tensor, or has one too many, is refused")),
    ("non-persistent-local-ckpt-dir", Ignored(Value, "`trainer supervise` makes a folder in /dev/shm")),
    ("non-persistent-local-ckpt-algo", Ignored(Value, "each rank always writes its part of weights and optimizer")),
    ("tensorboard-log-interval", Ignored(Value, LOGS)),
    ("tensorboard-queue-size", Ignored(Value, LOGS)),
    ("timing-log-level", Ignored(Value, "a timeline (--trace) has the time of every operation")),
    ("timing-log-option", Ignored(Value, "a timeline (--trace) has the time of every operation")),
    ("DDP-impl", Ignored(Value, ONE_WAY)),
    ("transformer-impl", Ignored(Value, ONE_WAY)),
    ("num-workers", Ignored(Value, "one thread makes the batches")),

    ("num-layers-at-start-in-bf16", Refused(&[], "blocks at both ends are set together", "--bf16-blocks")),
    ("num-layers-at-end-in-bf16", Refused(&[], "blocks at both ends are set together", "--bf16-blocks")),
    ("fp16", Refused(&[], PRECISION, "--bf16, or leave it out for f32")),
    ("loss-scale", Refused(&[], LOSS_SCALE, "leave it out")),
    ("fp16-lm-cross-entropy", Refused(&[], "the loss is computed in f32", "leave it out")),
    ("fp32-residual-connection", Refused(&[], PRECISION, "leave it out, or leave out --bf16 for f32 everywhere")),
    ("apply-query-key-layer-scaling", Refused(&[], "softmax runs in f32, which needs no such scaling", "leave it out")),
    ("squared-relu", Refused(&[], "feed-forward layers have GELU or SwiGLU", "--activation gelu or swiglu")),
    ("external-cuda-graph", Refused(&[], OWN_GRAPHS, "--enable-cuda-graph")),
    ("adam-beta1", SetsItem("optimizer.betas", 0)),
    ("adam-beta2", SetsItem("optimizer.betas", 1)),
    ("lr-decay-iters", Refused(&[], "a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("lr-decay-samples", Refused(&[], "a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("decoupled-lr", Refused(&[], RATE_OF_GROUPS, DECOUPLED)),
    ("decoupled-min-lr", Refused(&[], RATE_OF_GROUPS, DECOUPLED)),
    ("start-weight-decay", Refused(&[], ONE_DECAY, "--weight-decay")),
    ("end-weight-decay", Refused(&[], ONE_DECAY, "--weight-decay")),
    ("override-opt-param-scheduler", Refused(&[], "a resumed run has the schedule of its options, and says what changed", "leave it out")),
    ("use-checkpoint-opt-param-scheduler", Refused(&[], "a resumed run has the schedule of its options, and says what changed", "leave it out, and give the options as before")),
    ("embedding-init-method-std", Refused(&[], "embeddings start like other matrices", "--init-std for all")),
    ("init-method-xavier-uniform", Refused(&[], "matrices start from a normal distribution", "--init-std")),
    ("vocab-file", Refused(&[], TOKENIZERS, "--tokenizer; token files need none")),
    ("merge-file", Refused(&[], TOKENIZERS, "--tokenizer; token files need none")),
    ("tiktoken-pattern", Refused(&[], TOKENIZERS, "--tokenizer; token files need none")),
    ("train-data-path", Refused(&[], "training data have one option", "--data-path")),
    ("test-data-path", Refused(&[], "there are training and validation data, no test data", "--validation-path, or leave it out")),
    ("no-position-embedding", Refused(&[], "positions are learned, rotary or none", "leave it out beside --position rotary, or --position none")),
    ("window-size", Refused(&[], "a window counts the token itself", "--sliding-window with the first number plus 1")),
    ("window-attn-skip-freq", Refused(&[], "the blocks with a window are given as a list that repeats", "--window-pattern [1,1,0] for two with, one without")),
    ("use-rope-scaling", Refused(&[], "the scaling is given as numbers", "--rope-scaling [8,1,4,8192]")),
    ("ddp-bucket-size", Refused(&[], "buckets are counted in MiB of gradients, not in parameters", "--bucket-mib 153 for 40 million parameters in f32")),
    ("use-torch-fsdp2", Sets("parallel.data_parallel_sharding", "optim_grads_params")),
    ("finetune", Refused(&[], WEIGHTS_TOGETHER, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-load-optim", Refused(&[], WEIGHTS_TOGETHER, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-save-optim", Refused(&[], WITHIN_CHECKPOINT, "leave it out")),
    ("use-checkpoint-args", Refused(&[], "a run has the options that it is given", "--config with the checkpoint's config.toml")),
    ("ckpt-step", Refused(&[], "a checkpoint is named by its folder", "--resume with the step's folder")),
    ("no-ckpt-fully-parallel-save", Refused(&[], "each rank always writes its part of weights and optimizer", "leave it out")),
    ("ckpt-convert-format", Refused(&[], "checkpoints have one format", "leave it out")),
    ("ckpt-convert-save", Refused(&[], "checkpoints have one format", "leave it out; trainer convert for Hugging Face")),
    ("wandb-project", Refused(&[], WANDB, "--wandb with WANDB_PROJECT set")),
    ("wandb-exp-name", Refused(&[], WANDB, "--wandb with WANDB_NAME set")),
    ("wandb-entity", Refused(&[], WANDB, "--wandb with WANDB_ENTITY set")),
    ("wandb-save-dir", Refused(&[], WANDB, "--wandb with --log-dir")),
    ("profile-ranks", Refused(&[], "every rank writes a timeline", "--trace")),
    ("checkpoint-activations", Refused(&[], "recompute has a granularity", "--recompute-granularity full")),
    ("recompute-method", Refused(&["uniform"], "full recompute is of groups of blocks of the same size; of the first blocks of a stage alone it is an option of its own", "--recompute-blocks; leave it out")),
    ("recompute-modules", IgnoredIf(&["core_attn", "layernorm", "moe_act"], "attention saves no scores in any case, and --recompute-granularity selective runs norms and activations again, all of them", "selective recompute runs norms and activations again, full recompute whole blocks", "--recompute-granularity full, with --recompute-keep-attention to leave attention out, or --recompute-blocks")),
];
