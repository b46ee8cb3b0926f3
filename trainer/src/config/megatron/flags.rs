//! The table of Megatron's flags.

/// What a flag of Megatron's means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It sets this key to this value.
    Sets(&'static str, &'static str),
    /// Each of these values sets these keys. For other values: the rule and the fix.
    SetsByValue(&'static [(&'static str, &'static [(&'static str, &'static str)])], &'static str, &'static str),
    /// Its value is this item, counted from 0, of the list that is this key's value.
    SetsItem(&'static str, usize),
    /// Its value must equal this key's.
    Equals(&'static str),
    /// It has no effect with this value. For other values: the rule and the fix.
    OnlyValue(&'static str, &'static str, &'static str),
    /// It says that this key is unset, and must not contradict it; why.
    OnlyWithout(&'static str, &'static str),
    /// It has no effect, which the user is told with the reason.
    NotNeeded(&'static str),
    /// It is refused: the rule and the fix.
    Unsupported(&'static str, &'static str),
}

use Meaning::{Equals, NotNeeded, OnlyValue, OnlyWithout, Sets, SetsByValue, SetsItem, Unsupported};

const PRECISION: &str = "layers compute in bf16, tf32 or f32";
const OWN_GRAPHS: &str = "the trainer captures its own graphs, in one way";
const IN_STEPS: &str = "the length of a run, and of everything in it, is counted in steps";
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
const NOTHING_SENT: &str = "nothing is sent; files for Weights & Biases go into logging.dir";
const WITHIN_CHECKPOINT: &str = "a checkpoint always holds weights, optimizer and the place in the data";
const ONE_RATE: &str = "all weights have one learning rate";
const ONE_DECAY: &str = "weight decay stays the same";
const TOGETHER: &str = "--tensor-model-parallel-size with --sequence-parallel";

const GRAPH_IMPL: &[(&str, &[(&str, &str)])] = &[
    ("none", &[("cuda_graph.enable", "false")]),
    ("local", &[("cuda_graph.enable", "true"), ("cuda_graph.scope", "per_layer")]),
    ("full_iteration", &[("cuda_graph.enable", "true"), ("cuda_graph.scope", "full_iteration")]),
];

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

    ("max-position-embeddings", Equals("model.seq_length")),

    ("context-parallel-size", OnlyValue("1", GRID, TOGETHER)),
    ("expert-model-parallel-size", OnlyValue("1", GRID, "leave it out")),
    ("expert-tensor-parallel-size", OnlyValue("1", GRID, "leave it out")),
    ("fp8-interval", OnlyValue("1", "scales are made in every step", "leave it out")),
    ("rotary-percent", OnlyValue("1", "rotary positions turn all channels of a head", "leave it out")),
    ("attention-backend", OnlyValue("auto", KERNELS, "leave it out")),
    ("distributed-backend", OnlyValue("nccl", "ranks talk over NCCL on GPUs and over MPI on the host", "leave it out")),
    ("empty-unused-memory-level", OnlyValue("0", "memory is planned once, before the first step", "leave it out")),
    ("manual-gc-interval", OnlyValue("0", COLLECTOR, "leave it out")),
    ("lr-warmup-init", OnlyValue("0", "warm-up starts above 0, with the first of its equal increments", "leave it out")),
    ("weight-decay-incr-style", OnlyValue("constant", ONE_DECAY, "--weight-decay")),
    ("lr-wsd-decay-style", OnlyValue("linear", "wsd's decay is linear", "leave it out")),

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

    ("num-layers-at-start-in-bf16", Unsupported("blocks at both ends are set together", "--bf16-blocks")),
    ("num-layers-at-end-in-bf16", Unsupported("blocks at both ends are set together", "--bf16-blocks")),
    ("fp16", Unsupported(PRECISION, "--bf16, or leave it out for f32")),
    ("loss-scale", Unsupported(LOSS_SCALE, "leave it out")),
    ("initial-loss-scale", Unsupported(LOSS_SCALE, "leave it out")),
    ("min-loss-scale", Unsupported(LOSS_SCALE, "leave it out")),
    ("loss-scale-window", Unsupported(LOSS_SCALE, "leave it out")),
    ("hysteresis", Unsupported(LOSS_SCALE, "leave it out")),
    ("fp16-lm-cross-entropy", Unsupported("the loss is computed in f32", "leave it out")),
    ("fp32-residual-connection", Unsupported(PRECISION, "leave it out, or leave out --bf16 for f32 everywhere")),
    ("apply-query-key-layer-scaling", Unsupported("softmax runs in f32, which needs no such scaling", "leave it out")),
    ("squared-relu", Unsupported("feed-forward layers have GELU or SwiGLU", "--activation gelu or swiglu")),
    ("disable-bias-linear", Unsupported("linear layers and LayerNorms have biases together or not at all", "--bias=false")),
    ("external-cuda-graph", Unsupported(OWN_GRAPHS, "--enable-cuda-graph")),
    ("adam-beta1", SetsItem("optimizer.betas", 0)),
    ("adam-beta2", SetsItem("optimizer.betas", 1)),
    ("train-samples", Unsupported(IN_STEPS, "--steps")),
    ("exit-interval", Unsupported(STOP, BY_SIGNAL)),
    ("exit-duration-in-mins", Unsupported(STOP, BY_SIGNAL)),
    ("lr-warmup-fraction", Unsupported(IN_STEPS, "--lr-warmup-steps")),
    ("lr-warmup-samples", Unsupported(IN_STEPS, "--lr-warmup-steps")),
    ("lr-decay-iters", Unsupported("a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("lr-decay-samples", Unsupported("a decay ends with the run", "--steps; --lr-decay-steps is how long wsd's decay takes")),
    ("decoupled-lr", Unsupported(ONE_RATE, "leave it out")),
    ("decoupled-min-lr", Unsupported(ONE_RATE, "leave it out")),
    ("start-weight-decay", Unsupported(ONE_DECAY, "--weight-decay")),
    ("end-weight-decay", Unsupported(ONE_DECAY, "--weight-decay")),
    ("override-opt_param-scheduler", Unsupported("a resumed run has the schedule of its options, and says what changed", "leave it out")),
    ("use-checkpoint-opt_param-scheduler", Unsupported("a resumed run has the schedule of its options, and says what changed", "leave it out, and give the options as before")),
    ("embedding-init-method-std", Unsupported("embeddings start like other matrices", "--init-std for all")),
    ("init-method-xavier-uniform", Unsupported("matrices start from a normal distribution", "--init-std")),
    ("use-cpu-initialization", Unsupported("weights start the same on every layout", "leave it out")),
    ("reset-position-ids", Unsupported(CAUSAL, "leave it out")),
    ("reset-attention-mask", Unsupported(CAUSAL, "leave it out")),
    ("eod-mask-loss", Unsupported(CAUSAL, "leave it out")),
    ("data-cache-path", Unsupported("the order of samples is computed; nothing is cached", "leave it out")),
    ("no-mmap-bin-files", Unsupported("token files are never mapped into memory", "leave it out")),
    ("dataloader-type", Unsupported("every sample comes once an epoch, in an order that data.seed decides", "leave it out")),
    ("vocab-file", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("merge-file", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("tokenizer-type", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("tiktoken-pattern", Unsupported(TOKENIZERS, "--tokenizer; token files need none")),
    ("make-vocab-size-divisible-by", Unsupported("the vocabulary is padded to a multiple of 128 x parallel.tensor", "leave it out")),
    ("train-data-path", Unsupported("training data have one option", "--data-path")),
    ("test-data-path", Unsupported("there are training and validation data, no test data", "--validation-path, or leave it out")),
    ("no-position-embedding", Unsupported("positions are learned, rotary or none", "leave it out beside --position rotary, or --position none")),
    ("use-rope-scaling", Unsupported("the scaling is given as numbers", "--rope-scaling [8,1,4,8192]")),
    ("num-experts", Unsupported("models are dense", "leave it out")),
    ("ddp-bucket-size", Unsupported("buckets are counted in MiB of gradients, not in parameters", "--bucket-mib 153 for 40 million parameters in f32")),
    ("num-layers-per-virtual-pipeline-stage", Unsupported("the option counts chunks of a stage, not layers of a chunk", "--virtual-pipeline-model-parallel-size")),
    ("use-torch-fsdp2", Unsupported(GRID, "--use-distributed-optimizer")),
    ("finetune", Unsupported(WEIGHTS_TOGETHER, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-load-optim", Unsupported(WEIGHTS_TOGETHER, "--init-from with a checkpoint or a Hugging Face folder")),
    ("no-load-rng", Unsupported("randomness is a function, not a state to load", "leave it out, or set another --seed")),
    ("no-save-optim", Unsupported(WITHIN_CHECKPOINT, "leave it out")),
    ("no-save-rng", Unsupported(WITHIN_CHECKPOINT, "leave it out")),
    ("use-checkpoint-args", Unsupported("a run has the options that it is given", "--config with the checkpoint's config.toml")),
    ("dist-ckpt-format", Unsupported("checkpoints are safetensors", "leave it out")),
    ("ckpt-step", Unsupported("a checkpoint is named by its folder", "--resume with the step's folder")),
    ("ckpt-format", Unsupported("checkpoints are safetensors", "leave it out")),
    ("async-save", Unsupported("a run continues when its checkpoint is on disk", "leave it out")),
    ("tensorboard-log-interval", Unsupported(LOGS, "--tensorboard with --log-dir")),
    ("tensorboard-queue-size", Unsupported(LOGS, "--tensorboard with --log-dir")),
    ("log-timers-to-tensorboard", Unsupported("a timeline has the time of every operation", "--trace")),
    ("timing-log-level", Unsupported("a timeline has the time of every operation", "--trace")),
    ("timing-log-option", Unsupported("a timeline has the time of every operation", "--trace")),
    ("log-params-norm", Unsupported("the norm of gradients is logged, not of weights", "leave it out")),
    ("log-num-zeros-in-grad", Unsupported("the norm of gradients is logged, not their zeros", "leave it out")),
    ("log-progress", Unsupported(LOGS, "leave it out")),
    ("tensorboard-dir", Unsupported("TensorBoard's files go into logging.dir", "--tensorboard with --log-dir")),
    ("wandb-project", Unsupported(NOTHING_SENT, "--wandb with --log-dir")),
    ("wandb-exp-name", Unsupported(NOTHING_SENT, "--wandb with --log-dir")),
    ("wandb-entity", Unsupported(NOTHING_SENT, "--wandb with --log-dir")),
    ("wandb-save-dir", Unsupported(NOTHING_SENT, "--wandb with --log-dir")),
    ("profile", Unsupported("a timeline is a file", "--trace")),
    ("use-pytorch-profiler", Unsupported("a timeline is a file", "--trace")),
    ("profile-ranks", Unsupported("every rank writes a timeline", "--trace")),
    ("profile-step-end", Unsupported("the length of a timeline is a number of steps", "--trace-steps")),
    ("checkpoint-activations", Unsupported("recompute has a granularity", "--recompute-granularity full")),
    ("recompute-modules", Unsupported("selective recompute runs norms and activations again", "--recompute-granularity selective")),
    ("DDP-impl", Unsupported(ONE_WAY, "leave it out")),
    ("use-legacy-models", Unsupported(ONE_WAY, "leave it out")),
    ("moe-grouped-gemm", Unsupported("models are dense", "leave it out")),
    ("moe-router-topk", Unsupported("models are dense", "leave it out")),
    ("transformer-impl", Unsupported(ONE_WAY, "leave it out")),
    ("num-workers", Unsupported("one thread makes the batches", "leave it out")),
];
