//! Megatron's flags that nothing here takes the place of, and those about what is always so here: in groups, with the reason.
//! A name that ends in `*` stands for all flags that begin so. Flags of Megatron-LM of August 2026, and of releases before it.

use super::meaning::Meaning::{self, Ignored, Refused};
use super::meaning::Takes::{Nothing, Value, Values};

const OUT: &str = "leave it out";

/// The flags of each group, without dashes in front.
#[rustfmt::skip]
pub const ABSENT_FLAGS: &[(Meaning, &[&str])] = &[
    // Models of other kinds.
    (Refused(&[], "models are GPTs, which continue text", OUT), &[
        "bert-*", "output-bert-embeddings", "vision-*", "dino-*", "biencoder-*", "ict-*", "retriever-*",
        "indexer-*", "encoder-num-layers", "decoder-num-layers", "encoder-seq-length", "decoder-seq-length",
        "mask-prob", "mask-type", "mask-factor", "short-seq-prob", "titles-data-path", "query-in-block-prob",
        "use-one-sent-docs", "evidence-data-path", "block-data-path", "embedding-path", "num-classes", "img-h",
        "img-w", "num-channels", "patch-dim", "classes-fraction", "data-per-class-fraction", "no-data-sharding",
        "head-lr-mult", "swin-backbone-type", "iter-per-epoch", "mrope-section", "vocab-extra-ids", "sample-rate",
        "onnx-safe", "retro-*", "pipeline-model-parallel-split-rank", "encoder-tensor-model-parallel-size",
        "encoder-pipeline-model-parallel-size",
    ]),
    (Refused(&[], "blocks have softmax attention, over all earlier tokens or a window", "--sliding-window, or leave it out"), &[
        "mamba-*", "linear-*", "gdp-*", "dsa-*", "no-dsa-*", "disable-dsa-*", "hybrid-attention-ratio",
        "hybrid-mlp-ratio", "is-hybrid-model", "hybrid-layer-pattern", "hybrid-override-pattern",
        "disable-mamba-mem-eff-path", "experimental-attention-variant", "attention-output-gate",
        "relative-attention-*",
    ]),
    (Refused(&[], "attention is latent if its width is given, which has no value of its own", "--kv-lora-rank"), &[
        "multi-latent-attention",
    ]),
    (Refused(&[], "YaRN is a list of numbers, and its scale of scores a setting of its own", "--rope-scaling-type yarn with --rope-scaling, and --query-pre-attn-scalar"), &[
        "rotary-scaling-factor", "mscale", "mscale-all-dim",
    ]),
    (Refused(&[], "keys and values of latent attention are made and cached whole", OUT), &[
        "cache-mla-latents", "mla-down-proj-fusion",
    ]),
    (Refused(&[], "each layer that predicts a further token has a block of its own, like the model's last", "--mtp-num-layers"), &["mtp-use-*", "mtp-hybrid-*"]),
    (Refused(&[], "all blocks are of one kind, but for experts and windows", "--expert-pattern, --window-pattern or --layer-sizes"), &[
        "heterogeneous-layers-*", "spec",
    ]),
    (Refused(&[], "blocks add to one residual stream, behind or after a norm", "--norm-placement"), &[
        "apply-residual-connection-post-layernorm", "enable-mhc-connections", "mhc-*",
    ]),
    (Refused(&[], "a feed-forward layer has an activation alone, without offset or bound", "--activation"), &[
        "quick-geglu", "glu-linear-offset", "activation-func-clamp-value", "use-fused-weighted-squared-relu",
    ]),
    (Refused(&[], "queries and keys have a norm with weights, and no clip", "--qk-norm"), &[
        "qk-l2-norm", "qk-clip", "qk-clip-alpha", "qk-clip-threshold",
    ]),
    (Refused(&[], "rates and sizes at the start do not follow from the width", "--lr, --init-std and --param-groups"), &[
        "use-mup", "mup-*",
    ]),
    (Refused(&[], "every rank starts from the same weights", OUT), &["data-parallel-random-init"]),
    // Positions.
    (Refused(&[], "positions have a kind, and a scaling of numbers", "--rope-scaling-type and --rope-scaling"), &[
        "yarn-*", "no-yarn-correction-range-round-to-int", "rope-scaling-factor",
        "rotary-seq-len-interpolation-factor",
    ]),
    (Refused(&["rope"], "positions have a kind, and a scaling of numbers", "--position rotary; --rope-scaling-type yarn with --rope-scaling"), &[
        "rope-type",
    ]),
    (Refused(&[], "a channel turns with that half a head away", OUT), &["rotary-interleaved"]),
    (Refused(&[], "all blocks have the same positions", OUT), &["no-rope-freq"]),
    // Where weights, gradients and the state of the optimizer lie.
    (Ignored(Nothing, "--data-parallel-sharding-strategy says what data-parallel ranks divide"), &[
        "use-megatron-fsdp", "use-custom-fsdp",
    ]),
    (Refused(&["no_shard"], "all data-parallel ranks divide alike", "--data-parallel-sharding-strategy"), &[
        "outer-dp-sharding-strategy",
    ]),
    (Refused(&[], "ranks divide the blocks one by one, in one way", "--data-parallel-sharding-strategy"), &[
        "keep-fp8-transpose-cache-when-using-custom-fsdp",
        "megatron-fsdp-*", "fsdp-*", "torch-fsdp2-*",
        "suggested-communication-unit-size", "keep-fp8-transpose-cache",
        "enable-full-sharding-in-hsdp", "create-all-gather-group", "no-strict-fsdp-dtensor-load",
        "disable-strict-fsdp-dtensor-load", "init-model-with-meta-device",
    ]),
    (Refused(&[], "weights stay on the GPU; all large activations of a block leave it, and whole parameters' state of the optimizer, which the GPU updates", "--offload-activation-layers, or --offload-optimizer"), &[
        "use-torch-optimizer-for-cpu-offload",
        "overlap-cpu-optimizer-d2h-h2d", "no-pin-cpu-grads", "no-pin-cpu-params", "cpu-offloading-*",
        "fine-grained-offloading-*", "offload-modules", "min-offloaded-tensor-size", "delay-offload-until-cuda-graph",
        "delta-offload-bytes-across-pp-ranks", "activation-offload-fraction",
    ]),
    (Refused(&[], "tensor-parallel ranks share each layer, and gather no weights of it", "--tensor-model-parallel-size"), &[
        "gtp-*", "tensor-parallel-num-weight-shards",
    ]),
    (Refused(&["fp32"], "master weights are f32, whole or in two halves", "--store-param-remainders"), &[
        "main-params-dtype",
    ]),
    (Refused(&[], "ranks divide all sequences alike, with the transfers of --context-parallel-transfers", "--context-parallel-size"), &[
        "hierarchical-context-parallel-sizes", "hybrid-context-parallel", "max-seqlen-per-dp-cp-rank",
    ]),
    (Refused(&[], "the blocks of the stages are one list", "--pipeline-layers"), &[
        "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout",
        "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split",
    ]),
    // Numbers.
    (Refused(&[], "linear layers multiply in bf16, tf32 or f32, or in 8 bits", "--fp8-format with --fp8-recipe"), &[
        "fp4-*", "kitchen-*", "use-kitchen-attention", "te-precision-config-file", "fp8-quantizer-factory",
        "no-fp8-wgrad", "disable-fp8-wgrad", "fp8-output-proj", "reuse-grad-buf-for-mxfp8-param-ag",
    ]),
    (Refused(&["fp32"], "the loss is computed in f32", OUT), &["output-logit-dtype"]),
    // The optimizer and the schedule.
    (Refused(&[], "Muon is that of --optimizer muon, with two numbers", "--muon-momentum and --muon-num-ns-steps"), &[
        "muon-*",
    ]),
    (Refused(&[], "the two betas are one option", "--betas"), &["lion-beta1", "lion-beta2"]),
    (Refused(&[], "norms and biases have no weight decay", "--param-groups"), &[
        "apply-wd-to-qk-layernorm", "no-weight-decay-cond-type",
    ]),
    (Refused(&[], "the phases of a run are steps of one schedule", OUT), &[
        "phase-transition-iterations", "iterations-to-skip",
    ]),
    (Refused(&[], "steps have one batch size, or ramp up to it", "--rampup-batch-size"), &["step-batch-size-schedule"]),
    (Refused(&[], "a batch is divided evenly among ranks", "--global-batch-size"), &["decrease-batch-size-if-needed"]),
    (Refused(&[], "parameters that keep their values are named", "--freeze"), &["freeze-all-layers"]),
    // Data and tokenizers.
    (Refused(&[], "training learns from texts, not from rewards", OUT), &[
        "rl-*", "grpo-*", "perform-rl-step", "langrl-*", "refit-method",
    ]),
    (Refused(&[], "the loss is against the tokens of the data", OUT), &["logits-*"]),
    (Refused(&[], "samples are texts in their order", OUT), &["fim-*"]),
    (Refused(&[], "the files are named by options", "--data-path and --validation-path"), &[
        "data-args-path", "per-split-data-args-path", "per-dataset-sequences-path",
    ]),
    (Refused(&[], "several sets for validation have names", "--validation-sets"), &[
        "multiple-validation-sets", "validation-set-names",
    ]),
    (Refused(&[], "an evaluation has the microbatches of training", "--eval-iters"), &[
        "eval-global-batch-size", "eval-micro-batch-size", "full-validation",
    ]),
    (Refused(&[], "evaluations come at an interval", "--eval-interval"), &["start-eval-at-iter"]),
    (Refused(&[], "a run trains", "trainer eval for a checkpoint"), &["skip-train"]),
    (Refused(&[], "the thread that reads data makes no masks", OUT), &["dataloader-inter-document-masking"]),
    (Refused(&[], "conversations have a chat template", "--sft with --chat-template"), &[
        "sft-tokenizer-prompt-format", "allow-ambiguous-pad-tokens",
    ]),
    (Refused(&[], "a tokenizer is `byte`, a Hugging Face tokenizer.json, or a folder with one", "--tokenizer; token files need none"), &[
        "tokenizer-*", "no-tokenizer-*", "disable-tokenizer-*", "legacy-tokenizer", "tiktoken-special-tokens",
        "null-tokenizer-*", "tiktoken-num-special-tokens",
    ]),
    (Refused(&[], "the vocabulary is padded to a multiple of 128 x parallel.tensor, with tokens that never train", "--vocab"), &[
        "padded-vocab-size", "no-pad-vocab-size", "disable-pad-vocab-size",
    ]),
    // Checkpoints and faults.
    (Refused(&[], "a run that fails is restarted as a whole, from its newest checkpoint", "trainer supervise"), &[
        "inprocess-*", "enable-ft-package", "calc-ft-timeouts", "ft-num-warmup-iters", "adlr-autoresume",
        "adlr-autoresume-interval", "replication", "replication-jump", "replication-factor",
    ]),
    (Refused(&[], "faults are not made on purpose", OUT), &[
        "fault-injector-*", "error-injection-rate", "error-injection-type",
    ]),
    (Refused(&[], "GPUs are tried before a run", "trainer doctor"), &["gpu-sniff-test-interval"]),
    (Refused(&[], "replicas of weights are not compared while a run goes on", OUT), &[
        "check-weight-hash-across-dp-replicas-interval",
    ]),
    (Refused(&["disabled"], "a step runs once", "leave it out; --verify-cuda-graph compares a step with and without graphs"), &[
        "rerun-mode",
    ]),
    (Refused(&[], "a step that is far off is skipped, if an option says so", "--skip-step-sigma-factor"), &[
        "check-for-spiky-loss", "check-for-large-grads", "result-rejected-tracker-filename",
    ]),
    (Refused(&[], "checkpoints are saved at an interval, and the newest are kept", "--save-interval and --checkpoint-keep"), &[
        "persistent-save-interval", "save-retain-interval",
    ]),
    (Refused(&[], "resuming restores all of a checkpoint's state; a new run can start from weights alone", "--resume, or --init-from"), &[
        "override-ckpt-iteration", "load-main-params-from-ckpt", "use-mp-args-from-checkpoint-args",
        "no-initialization",
    ]),
    (Refused(&["SIGTERM", "SIGINT", "SIGUSR1"], "a run ends after a step on SIGTERM, SIGINT and SIGUSR1, and on no other signal", OUT), &[
        "exit-signal",
    ]),
    // Looking inside.
    (Refused(&[], "outputs of layers are printed as numbers, weights and gradients are in checkpoints alone", "--print-activations"), &[
        "save-params-interval", "save-activations-interval", "save-wgrads-interval", "save-dgrads-interval",
        "dump-param-to-param-group-map", "log-max-attention-logit",
    ]),
    (Refused(&[], "the same bits on every run are one option", "--deterministic"), &[
        "batch-invariant-mode", "batch-invariant-backend",
    ]),
    (Refused(&[], "settings are TOML", "--config"), &["yaml-cfg"]),
    (Refused(&[], "plans are made without a group of ranks", "trainer plan"), &[
        "fake-process-group", "test-mode",
    ]),
    (Refused(&[], "the program is a trainer", "trainer sample, trainer chat, or trainer convert for a server"), &[
        "inference-*", "max-tokens-to-oom", "use-legacy-static-engine", "decode-only-cuda-graphs",
        "enable-chunked-prefill", "disable-chunked-prefill", "num-speculative-tokens",
        "use-same-sampling-seed-across-dp-ranks", "flash-decode", "mlp-chunks-for-prefill",
        "nccl-all-reduce-for-prefill",
    ]),
    (Refused(&[], "it is an old name", "--global-batch-size, --lr-warmup-steps or --tensor-model-parallel-size"), &[
        "batch-size", "warmup", "model-parallel-size",
    ]),
    // Without effect.
    (Ignored(Nothing, "the trainer has its own kernels, and no others to choose between"), &[
        "no-query-key-layer-scaling", "fused-residual-rmsnorm", "use-transformer-engine-op-fuser",
        "use-te-activation-func", "disable-jit-fuser",
    ]),
    (Ignored(Value, "the trainer has its own kernels, and no others to choose between"), &[
        "flash-attention-version", "cross-entropy-fusion-impl",
    ]),
    (Ignored(Nothing, "products of bf16 accumulate in f32"), &["disable-bf16-reduced-precision-matmul"]),
    (Ignored(Nothing, "tensor-parallel ranks share each expert, unless --expert-tensor-parallel-size is 1"), &["moe-extended-tp"]),
    (Ignored(Nothing, "transfers run beside products wherever they can"), &[
        "no-tp-comm-bulk-wgrad", "disable-tp-comm-bulk-wgrad", "no-tp-comm-bulk-dgrad",
        "disable-tp-comm-bulk-dgrad", "no-tp-comm-overlap-ag", "disable-tp-comm-overlap-ag",
        "no-tp-comm-overlap-rs", "disable-tp-comm-overlap-rs", "tp-comm-overlap-rs-dgrad", "no-tp-comm-split-ag",
        "disable-tp-comm-split-ag", "no-tp-comm-split-rs", "disable-tp-comm-split-rs",
        "no-overlap-p2p-communication", "overlap-p2p-communication-warmup-flush", "defer-embedding-wgrad-compute",
        "high-priority-a2a-comm-stream", "no-clone-scatter-output-in-embedding",
        "disable-clone-scatter-output-in-embedding", "distribute-saved-activations",
    ]),
    (Ignored(Value, "transfers run beside products wherever they can"), &[
        "tp-comm-overlap-cfg", "tp-comm-bootstrap-backend", "wgrad-deferral-limit",
    ]),
    (Ignored(Values, "transfers run beside products wherever they can"), &["high-priority-stream-groups"]),
    (Ignored(Nothing, "ranks talk over NCCL on GPUs, set up in one way, and over MPI on the host"), &[
        "use-ring-exchange-p2p", "use-nccl-ub", "disable-symmetric-registration", "use-sharp",
        "use-tp-pp-dp-mapping", "lazy-mpu-init", "no-flight-recorder-dump-on-timeout",
        "no-flight-recorder-include-only-active", "no-flight-recorder-extra-dump-on-exec",
        "disable-flight-recorder-dump-on-timeout", "disable-flight-recorder-include-only-active",
        "disable-flight-recorder-extra-dump-on-exec", "flight-recorder-include-stack-trace",
    ]),
    (Ignored(Value, "ranks talk over NCCL on GPUs, set up in one way, and over MPI on the host"), &[
        "pipeline-model-parallel-comm-backend", "symmetric-ar-type", "nccl-communicator-config-path",
        "sharp-enabled-group", "local-rank", "distributed-timeout-seconds-after-init", "flight-recorder-dump-path",
        "flight-recorder-trace-buffer-size",
    ]),
    (Ignored(Nothing, "gradients are always reduced in buckets, during backward"), &[
        "ddp-pad-buckets-for-high-nccl-busbw", "ddp-reduce-scatter-with-fp32-accumulation",
        "ddp-average-in-collective", "overlap-param-gather-with-optimizer-step", "no-align-param-gather",
        "no-align-grad-reduce", "disable-align-grad-reduce", "no-use-layer-wise-param-layout",
        "no-gradient-reduce-div-fusion", "delay-param-gather", "no-delay-grad-reduce",
        "no-contiguous-buffers-in-local-ddp",
    ]),
    (Ignored(Value, "gradients are always reduced in buckets, during backward"), &["ddp-num-buckets"]),
    (Ignored(Values, "gradients are always reduced in buckets, during backward"), &[
        "ddp-param-name-patterns-for-fp32-local-accumulation",
    ]),
    (Ignored(Nothing, "--exp-avg-dtype and --exp-avg-sq-dtype are enough"), &["use-precision-aware-optimizer"]),
    (Ignored(Nothing, "options need no switch before them"), &["enable-experimental"]),
    (Ignored(Nothing, "checkpoints are written and read in one way"), &[
        "ckpt-drop-redundant-extra-state", "ckpt-convert-update-legacy-dist-opt-format", "async-ckpt-use-cpu-shm",
        "ckpt-fully-parallel-load-per-rank-objects", "ckpt-pg-tensors-cache-create", "dist-ckpt-save-pre-mcore-014",
        "dist-ckpt-optim-fully-reshardable", "distrib-optim-fully-reshardable-mem-efficient",
        "no-ckpt-load-validate-sharding-integrity", "disable-ckpt-load-validate-sharding-integrity",
        "no-save-tokenizer-assets", "disable-save-tokenizer-assets", "no-use-tokenizer-model-from-checkpoint-args",
        "disable-use-tokenizer-model-from-checkpoint-args",
    ]),
    (Ignored(Value, "checkpoints are written and read in one way"), &[
        "dist-ckpt-workers", "async-strategy", "async-ckpt-cpu-priority", "async-ckpt-io-priority",
        "ckpt-fully-parallel-load-exchange-algo", "ckpt-fully-parallel-save-process-group",
        "ckpt-fully-parallel-load-process-group", "ckpt-pg-tensors-cache-path",
    ]),
    (Ignored(Nothing, "files of checkpoints always have hashes, which are compared"), &["verify-integrity"]),
    (Ignored(Nothing, "nothing is sent to a service"), &[
        "one-logger-async", "enable-one-logger", "otel-enabled", "run-workload-inspector-server",
    ]),
    (Ignored(Value, "nothing is sent to a service"), &[
        "one-logger-project", "one-logger-run-name", "one-logger-entity", "app-tag-run-name", "app-tag-run-version",
        "otel-service-name", "otel-span-groups",
    ]),
    (Ignored(Nothing, "data are read by one thread, and nothing is cached"), &[
        "dataloader-fast-cache-load", "dataloader-defer-npy-index-mmap", "enable-msc", "disable-msc",
        "use-gigatoken", "mmap-warmup",
    ]),
    (Ignored(Value, "data are read by one thread, and nothing is cached"), &[
        "num-dataset-builder-threads", "object-storage-cache-path", "mid-level-dataset-surplus", "s3-cache-path",
        "data-impl",
    ]),
    (Ignored(Nothing, "no code comes with a model or a tokenizer"), &["trust-remote-code"]),
    (Ignored(Nothing, "every rank is watched, and the one at fault is named"), &[
        "log-straggler", "disable-straggler-on-startup",
    ]),
    (Ignored(Value, "every rank is watched, and the one at fault is named"), &[
        "straggler-ctrlr-port", "straggler-minmax-count",
    ]),
    (Ignored(Nothing, "metrics.jsonl and a timeline (--trace) have what is measured"), &[
        "no-log-loss-scale-to-tensorboard", "disable-log-loss-scale-to-tensorboard", "log-device-memory-used",
        "no-barrier-with-level-1-timing", "log-world-size-to-tensorboard", "log-energy",
        "pytorch-profiler-collect-shapes", "pytorch-profiler-collect-callstack", "pytorch-profiler-collect-chakra",
        "record-memory-history", "record-shapes", "nvtx-ranges", "log-batch-size-to-tensorboard",
        "no-log-learnig-rate-to-tensorboard",
    ]),
    (Ignored(Value, "metrics.jsonl and a timeline (--trace) have what is measured"), &[
        "log-memory-interval", "memory-snapshot-path", "config-logger-dir", "logging-level",
    ]),
    (Ignored(Nothing, "the numbers are the same without it"), &[
        "standalone-embedding-stage", "no-scatter-gather-tensors-in-pipeline", "renormalize-blend-weights",
    ]),
    (Ignored(Value, "the numbers are the same without it"), &["train-sync-interval"]),
    (Ignored(Nothing, "there is no garbage collector"), &["disable-manual-gc-eval"]),
    (Ignored(Nothing, "signals always end a run after a step, with a checkpoint"), &[
        "exit-signal-handler-for-dataloader", "exit-signal-handler-for-training",
    ]),
    (Ignored(Nothing, "randomness is a function of step, sample and place, and always safe to capture"), &[
        "inference-rng-tracker",
    ]),];
