//! The table of Megatron's flags.

use crate::config::RunConfig;

/// What a flag of Megatron's means here.
#[derive(Clone, Copy, Debug)]
pub enum Meaning {
    /// It sets this key to this value.
    Sets(&'static str, &'static str),
    /// Each of these values sets these keys. For other values: the rule and the fix.
    SetsByValue(&'static [(&'static str, &'static [(&'static str, &'static str)])], &'static str, &'static str),
    /// It sets the first key to the value beside it. Where the second key has its value, the user is told.
    SetsTelling((&'static str, &'static str), (&'static str, &'static str), &'static str),
    /// It sets this key to this value. Its own value has no effect, which the user is told with the reason.
    SetsWhateverValue(&'static str, &'static str, &'static str),
    /// Its value, a number, makes this key's value: the formula in words, and itself. `None` where the number is not known.
    Computes(&'static str, &'static str, fn(f64, &RunConfig) -> Option<f64>),
    /// Its value is this item, counted from 0, of the list that is this key's value.
    SetsItem(&'static str, usize),
    /// Its value must equal this key's.
    Equals(&'static str),
    /// It has no effect with these values. For other values: the rule and the fix.
    OnlyValues(&'static [&'static str], &'static str, &'static str),
    /// It says that this key is unset, and must not contradict it; why.
    OnlyWithout(&'static str, &'static str),
    /// It has no effect, which the user is told with the reason.
    NotNeeded(&'static str),
    /// Its value has no effect, which the user is told with the reason.
    IgnoresValue(&'static str),
    /// It is refused: the rule and the fix.
    Unsupported(&'static str, &'static str),
}

use Meaning::{
    Computes, Equals, IgnoresValue, NotNeeded, OnlyValues, OnlyWithout, Sets, SetsByValue, SetsItem, SetsTelling,
    SetsWhateverValue, Unsupported,
};

const PRECISION: &str = "layers compute in bf16, tf32 or f32";
const OWN_GRAPHS: &str = "the trainer captures its own graphs, in one way";
const TOKENIZERS: &str = "a tokenizer is `byte`, a Hugging Face tokenizer.json, or a folder with one";
const GRID: &str = "ranks are divided into tensor, pipeline and data parallelism";
const WEIGHTS_TOGETHER: &str = "resuming restores all of a checkpoint's state; a new run can start from weights alone";
const ONE_WAY: &str = "the trainer has one way to do this";
const KERNELS: &str = "the trainer has its own kernels, and no others to choose between";
const LOSS_SCALE: &str = "only fp16 needs loss scaling, and the trainer has no fp16";
const COLLECTOR: &str = "there is no garbage collector";
const CAUSAL: &str = "a token sees all tokens before it in its sample, across documents, and every token has a loss";
const STOP: &str = "a run ends after train.steps steps, or after the step in which a signal comes, with a checkpoint";
const BY_SIGNAL: &str = "leave it out and send SIGUSR1, as schedulers do before a time limit; a smaller --steps would also end the decay of the learning rate";
const LOGS: &str = "metrics.jsonl has a line for every step; TensorBoard's files go into logging.dir too";
const WANDB: &str = "--wandb writes files into logging.dir, and the client of Weights & Biases, if Python has it, reads its own variables";
const WITHIN_CHECKPOINT: &str = "a checkpoint always holds weights, optimizer and the place in the data";
const RATE_OF_GROUPS: &str = "parameters of their own rate have a multiple of the learning rate";
const DECOUPLED: &str =
    "--param-groups wte.*=M lm_head.*=M, with M its value over --lr; without lm_head where it is tied";
const ONE_DECAY: &str = "weight decay stays the same";
const TOGETHER: &str = "--tensor-model-parallel-size with --sequence-parallel";

const GRAPH_IMPL: &[(&str, &[(&str, &str)])] = &[
    ("none", &[("cuda_graph.enable", "false")]),
    ("local", &[("cuda_graph.enable", "true"), ("cuda_graph.scope", "per_layer")]),
    ("full_iteration", &[("cuda_graph.enable", "true"), ("cuda_graph.scope", "full_iteration")]),
];

/// The steps that have so many samples, where all have the same number.
fn steps_of(samples: f64, run: &RunConfig) -> Option<f64> {
    run.train.rampup_batch_size.is_empty().then(|| samples / run.train.global_batch_size as f64)
}

/// The flags, without dashes in front.
#[rustfmt::skip]
pub const FLAGS: &[(&str, Meaning)] = &[
    ("bf16", Sets("precision.compute", "bf16")),
    ("fp8-hybrid", Sets("precision.fp8", "hybrid")),
    ("first-last-layers-bf16", Sets("precision.bf16_blocks", "[1, 1]")),
    ("openai-gelu", Sets("model.activation", "gelu")),
    ("swiglu", Sets("model.activation", "swiglu")),
    ("untie-embeddings-and-output-weights", Sets("model.tie_embeddings", "false")),
    ("use-rotary-position-embeddings", Sets("model.position", "rotary")),
    ("recompute-activations", Sets("recompute.granularity", "selective")),
    ("cuda-graph-use-single-mempool", Sets("cuda_graph.mempool", "single")),
    ("grad-reduce-in-bf16", Sets("parallel.grad_reduce", "bf16")),

    ("cuda-graph-impl", SetsByValue(GRAPH_IMPL, OWN_GRAPHS, "--cuda-graph-impl local, full_iteration or none")),

    ("disable-bias-linear", SetsTelling(("model.bias", "false"), ("model.norm", "layernorm"), "LayerNorms have no biases then either")),
    ("profile", Sets("logging.trace", "trace.json")),
    ("tensorboard-dir", SetsWhateverValue("logging.tensorboard", "true", "TensorBoard's files go into logging.dir")),

    ("train-samples", Computes("train.steps", "VALUE / train.global_batch_size", steps_of)),
    ("lr-warmup-samples", Computes("optimizer.warmup_steps", "VALUE / train.global_batch_size", steps_of)),
    ("lr-warmup-fraction", Computes("optimizer.warmup_steps", "VALUE x train.steps", |share, run| Some(share * run.train.steps as f64))),
    ("distributed-timeout-minutes", Computes("parallel.distributed_timeout_seconds", "60 x VALUE", |minutes, _| Some(60.0 * minutes))),
    ("profile-step-end", Computes("logging.trace_steps", "VALUE - logging.trace_after", |end, run| Some(end - run.logging.trace_after? as f64))),

    ("max-position-embeddings", Equals("model.seq_length")),

    ("context-parallel-size", OnlyValues(&["1"], GRID, TOGETHER)),
    ("expert-model-parallel-size", OnlyValues(&["1"], GRID, "leave it out")),
    ("expert-tensor-parallel-size", OnlyValues(&["1"], GRID, "leave it out")),
    ("fp8-interval", OnlyValues(&["1"], "scales are made in every step", "leave it out")),
    ("tokenizer-type", OnlyValues(&["HuggingFaceTokenizer", "NullTokenizer"], TOKENIZERS, "--tokenizer; token files need none")),
    ("rotary-percent", OnlyValues(&["1"], "rotary positions turn all channels of a head", "leave it out")),
    ("lr-warmup-init", OnlyValues(&["0"], "warm-up starts above 0, with the first of its equal increments", "leave it out")),
    ("weight-decay-incr-style", OnlyValues(&["constant"], ONE_DECAY, "--weight-decay")),
    ("lr-wsd-decay-style", OnlyValues(&["linear"], "wsd's decay is linear", "leave it out")),

    ("mock-data", OnlyWithout("data.path", "without data.path the trainer makes its own data")),

    ("te-rng-tracker", NotNeeded("randomness is a function of step, sample and place, and always safe to capture")),
    ("overlap-grad-reduce", NotNeeded("gradients are always reduced during backward")),
    ("overlap-param-gather", NotNeeded("a distributed optimizer's weights are always gathered during forward")),
    ("no-check-for-nan-in-loss-and-grad", NotNeeded("the check runs on the device, inside the graph")),
    ("accumulate-allreduce-grads-in-fp32", NotNeeded("gradients always accumulate in f32")),
    ("attention-softmax-in-fp32", NotNeeded("softmax is always in f32")),
    ("group-query-attention", NotNeeded("--num-query-groups is enough")),
    ("use-flash-attn", NotNeeded("attention is always one operation")),
    ("use-mcore-models", NotNeeded("there is one kind of transformer")),
    ("exit-signal-handler", NotNeeded("signals always end a run after a step, with a checkpoint")),
    ("log-throughput", NotNeeded("throughput is logged for every step")),
    ("log-validation-ppl-to-tensorboard", NotNeeded("perplexity is always logged beside the loss")),
    ("log-memory-to-tensorboard", NotNeeded("memory is always logged")),
    ("no-bias-gelu-fusion", NotNeeded(KERNELS)),
    ("no-bias-swiglu-fusion", NotNeeded(KERNELS)),
    ("no-bias-dropout-fusion", NotNeeded(KERNELS)),
    ("no-masked-softmax-fusion", NotNeeded(KERNELS)),
    ("no-rope-fusion", NotNeeded(KERNELS)),
    ("no-persist-layer-norm", NotNeeded(KERNELS)),
    ("no-gradient-accumulation-fusion", NotNeeded(KERNELS)),
    ("cross-entropy-loss-fusion", NotNeeded("the loss is always one operation")),
    ("calculate-per-token-loss", NotNeeded("all samples have the same number of tokens, and the loss is always their mean")),
    ("apply-layernorm-1p", NotNeeded("norms have no weight decay, so both forms train alike")),
    ("manual-gc", NotNeeded(COLLECTOR)),
    ("no-manual-gc-eval", NotNeeded(COLLECTOR)),
    ("no-create-attention-mask-in-dataloader", NotNeeded("attention is causal without a mask in memory")),
    ("no-async-tensor-model-parallel-allreduce", NotNeeded("transfers of backward run beside products wherever they can")),
    ("tp-comm-overlap", NotNeeded("transfers of backward run beside products wherever they can")),
    ("disable-gloo-process-groups", NotNeeded("there are none")),
    ("ckpt-fully-parallel-save", NotNeeded("each rank always writes its part of weights and optimizer")),
    ("use-dist-ckpt", NotNeeded("any layout resumes from a checkpoint of any other")),
    ("auto-detect-ckpt-format", NotNeeded("there is one format")),
    ("exit-on-missing-checkpoint", NotNeeded("a missing checkpoint that was asked for is always an error")),
    ("no-one-logger", NotNeeded("nothing is sent anywhere")),
    ("use-cpu-initialization", NotNeeded("weights start the same on every layout")),
    ("no-mmap-bin-files", NotNeeded("token files are never mapped into memory")),
    ("async-save", NotNeeded("a run continues when its checkpoint is on disk")),
    ("log-timers-to-tensorboard", NotNeeded("a timeline (--trace) has the time of every operation")),
    ("log-params-norm", NotNeeded("the norm of gradients is logged, not of weights")),
    ("log-num-zeros-in-grad", NotNeeded("the norm of gradients is logged, not their zeros")),
    ("log-progress", NotNeeded(LOGS)),
    ("use-legacy-models", NotNeeded(ONE_WAY)),
    ("use-pytorch-profiler", NotNeeded("the trainer writes its own timeline")),
    ("no-save-rng", NotNeeded("randomness is a function, and no state to save")),
    ("no-load-rng", NotNeeded("randomness is a function, not a state to load")),

    ("attention-backend", IgnoresValue(KERNELS)),
    ("distributed-backend", IgnoresValue("ranks talk over NCCL on GPUs and over MPI on the host")),
    ("empty-unused-memory-level", IgnoresValue("memory is planned once, before the first step")),
    ("manual-gc-interval", IgnoresValue(COLLECTOR)),
    ("initial-loss-scale", IgnoresValue(LOSS_SCALE)),
    ("min-loss-scale", IgnoresValue(LOSS_SCALE)),
    ("loss-scale-window", IgnoresValue(LOSS_SCALE)),
    ("hysteresis", IgnoresValue(LOSS_SCALE)),
    ("data-cache-path", IgnoresValue("the order of samples is computed; nothing is cached")),
    ("dataloader-type", IgnoresValue("every sample comes once an epoch, in an order that data.seed decides")),
    ("make-vocab-size-divisible-by", IgnoresValue("the vocabulary is padded to a multiple of 128 x parallel.tensor, with tokens that never train")),
    ("dist-ckpt-format", IgnoresValue("checkpoints are safetensors")),
    ("ckpt-format", IgnoresValue("checkpoints are safetensors")),
    ("tensorboard-log-interval", IgnoresValue(LOGS)),
    ("tensorboard-queue-size", IgnoresValue(LOGS)),
    ("timing-log-level", IgnoresValue("a timeline (--trace) has the time of every operation")),
    ("timing-log-option", IgnoresValue("a timeline (--trace) has the time of every operation")),
    ("DDP-impl", IgnoresValue(ONE_WAY)),
    ("transformer-impl", IgnoresValue(ONE_WAY)),
    ("num-workers", IgnoresValue("one thread makes the batches")),

    ("num-layers-at-start-in-bf16", Unsupported("blocks at both ends are set together", "--bf16-blocks")),
    ("num-layers-at-end-in-bf16", Unsupported("blocks at both ends are set together", "--bf16-blocks")),
    ("fp16", Unsupported(PRECISION, "--bf16, or leave it out for f32")),
    ("loss-scale", Unsupported(LOSS_SCALE, "leave it out")),
    ("fp16-lm-cross-entropy", Unsupported("the loss is computed in f32", "leave it out")),
    ("fp32-residual-connection", Unsupported(PRECISION, "leave it out, or leave out --bf16 for f32 everywhere")),
    ("apply-query-key-layer-scaling", Unsupported("softmax runs in f32, which needs no such scaling", "leave it out")),
    ("squared-relu", Unsupported("feed-forward layers have GELU or SwiGLU", "--activation gelu or swiglu")),
    ("external-cuda-graph", Unsupported(OWN_GRAPHS, "--enable-cuda-graph")),
    ("adam-beta1", SetsItem("optimizer.betas", 0)),
    ("adam-beta2", SetsItem("optimizer.betas", 1)),
    ("exit-interval", Unsupported(STOP, BY_SIGNAL)),
    ("exit-duration-in-mins", Unsupported(STOP, BY_SIGNAL)),
    ("lr-decay-iters", Unsupported("a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("lr-decay-samples", Unsupported("a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("decoupled-lr", Unsupported(RATE_OF_GROUPS, DECOUPLED)),
    ("decoupled-min-lr", Unsupported(RATE_OF_GROUPS, DECOUPLED)),
    ("start-weight-decay", Unsupported(ONE_DECAY, "--weight-decay")),
    ("end-weight-decay", Unsupported(ONE_DECAY, "--weight-decay")),
    ("override-opt_param-scheduler", Unsupported("a resumed run has the schedule of its options, and says what changed", "leave it out")),
    ("use-checkpoint-opt_param-scheduler", Unsupported("a resumed run has the schedule of its options, and says what changed", "leave it out, and give the options as before")),
    ("embedding-init-method-std", Unsupported("embeddings start like other matrices", "--init-std for all")),
    ("init-method-xavier-uniform", Unsupported("matrices start from a normal distribution", "--init-std")),
    ("reset-position-ids", Unsupported(CAUSAL, "leave it out")),
    ("reset-attention-mask", Unsupported(CAUSAL, "leave it out")),
    ("eod-mask-loss", Unsupported(CAUSAL, "leave it out")),
    ("vocab-file", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("merge-file", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("tiktoken-pattern", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("train-data-path", Unsupported("training data have one option", "--data-path")),
    ("test-data-path", Unsupported("there are training and validation data, no test data", "--validation-path, or leave it out")),
    ("no-position-embedding", Unsupported("positions are learned, rotary or none", "leave it out beside --position rotary, or --position none")),
    ("window-size", Unsupported("a window counts the token itself", "--sliding-window with the first number plus 1")),
    ("window-attn-skip-freq", Unsupported("the blocks with a window are given as a list that repeats", "--window-pattern [1,1,0] for two with, one without")),
    ("use-rope-scaling", Unsupported("the scaling is given as numbers", "--rope-scaling [8,1,4,8192]")),
    ("num-experts", Unsupported("models are dense", "leave it out")),
    ("ddp-bucket-size", Unsupported("buckets are counted in MiB of gradients, not in parameters", "--bucket-mib 153 for 40 million parameters in f32")),
    ("num-layers-per-virtual-pipeline-stage", Unsupported("the option counts chunks of a stage, not layers of a chunk", "--virtual-pipeline-model-parallel-size")),
    ("use-torch-fsdp2", Unsupported(GRID, "--use-distributed-optimizer")),
    ("finetune", Unsupported(WEIGHTS_TOGETHER, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-load-optim", Unsupported(WEIGHTS_TOGETHER, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-save-optim", Unsupported(WITHIN_CHECKPOINT, "leave it out")),
    ("use-checkpoint-args", Unsupported("a run has the options that it is given", "--config with the checkpoint's config.toml")),
    ("ckpt-step", Unsupported("a checkpoint is named by its folder", "--resume with the step's folder")),
    ("wandb-project", Unsupported(WANDB, "--wandb with WANDB_PROJECT set")),
    ("wandb-exp-name", Unsupported(WANDB, "--wandb with WANDB_NAME set")),
    ("wandb-entity", Unsupported(WANDB, "--wandb with WANDB_ENTITY set")),
    ("wandb-save-dir", Unsupported(WANDB, "--wandb with --log-dir")),
    ("profile-ranks", Unsupported("every rank writes a timeline", "--trace")),
    ("checkpoint-activations", Unsupported("recompute has a granularity", "--recompute-granularity full")),
    ("recompute-modules", Unsupported("selective recompute runs norms and activations again", "--recompute-granularity selective")),
    ("moe-grouped-gemm", Unsupported("models are dense", "leave it out")),
    ("moe-router-topk", Unsupported("models are dense", "leave it out")),
];
