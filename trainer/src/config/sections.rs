//! The sections of a configuration, and the enums of their settings with choices.
//!
//! The option table ([`options`](crate::config::options::options)) documents every field, so the fields have no docs here.

use std::collections::BTreeMap;

use common::choice;
use data::{DataConfig, RecordKind};
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::config::optimizers::OptimizerChoice;
use crate::families::Preset;

/// The configuration of a run with every option present. Names, types and words are checked, values are not.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the option table documents every field")]
pub struct RunConfig {
    pub model: ModelConfig,
    pub data: DataConfig,
    pub dpo: DpoConfig,
    pub train: TrainConfig,
    pub optimizer: OptimizerConfig,
    pub precision: PrecisionConfig,
    pub parallel: ParallelConfig,
    pub recompute: RecomputeConfig,
    pub offload: OffloadConfig,
    pub cuda_graph: CudaGraphConfig,
    pub checkpoint: CheckpointConfig,
    pub logging: LoggingConfig,
    #[serde(default, skip_serializing_if = "OwnSettings::is_empty")]
    pub own: OwnSettings,
}

impl RunConfig {
    /// Whether the run goes on with a trained model, or learns from answers.
    pub fn fine_tunes(&self) -> bool {
        self.model.init_from.is_some() || self.data.kind() != RecordKind::Documents
    }

    /// Samples of a batch, if batches have conversations of like length. Without shorter steps that gains nothing.
    pub fn grouped_batch(&self) -> Option<usize> {
        let is_grouped = self.data.group_by_length && self.data.seq_length_buckets.len() > 1;
        is_grouped.then_some(self.train.global_batch_size)
    }

    /// See [`by_key`].
    pub fn by_key(&self) -> BTreeMap<String, Value> {
        by_key(toml::Table::try_from(self).unwrap_or_default())
    }
}

/// The values of a configuration by their keys, such as `optimizer.lr`. Unset options are absent.
pub fn by_key(config: toml::Table) -> BTreeMap<String, Value> {
    let sections = config.into_iter().filter_map(|(section, content)| match content {
        Value::Table(content) => Some((section, content)),
        _ => None,
    });
    let keyed = |(section, content): (String, toml::Table)| {
        content.into_iter().map(move |(name, value)| (format!("{section}.{name}"), value))
    };
    sections.flat_map(keyed).collect()
}

/// A section of the configuration.
macro_rules! section {
    ($name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        #[doc = "A section of the configuration. The option table documents its fields."]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs, reason = "the option table documents every field")]
        pub struct $name { $(pub $field: $type),* }
    };
}

mod checkpoint;
mod cuda_graph;
mod dpo;
mod own;
mod precision;

pub use checkpoint::{CheckpointConfig, Resume};
pub use cuda_graph::{CudaGraphConfig, GraphMempool, GraphScope, VerifyMemory};
pub use dpo::{DpoConfig, PreferenceLoss};
pub use own::OwnSettings;
pub use precision::{AmaxAlgo, Fp8Choice, FrozenWeights, PrecisionConfig};

section!(ModelConfig {
    preset: Preset,
    init_from: Option<String>,
    kind: ModelKind,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    ffn: Option<usize>,
    vocab: usize,
    seq_length: usize,
    max_position_embeddings: Option<usize>,
    attention: bool,
    sliding_window: Option<usize>,
    window_pattern: Vec<usize>,
    query_pre_attn_scalar: Option<f64>,
    attention_soft_cap: Option<f64>,
    attention_sinks: bool,
    kv_latent: Option<usize>,
    query_latent: Option<usize>,
    rotary_head_dim: usize,
    value_head_dim: Option<usize>,
    logit_soft_cap: Option<f64>,
    norm: Normalization,
    norm_eps: f64,
    norm_placement: NormPlacement,
    activation: Activation,
    experts: usize,
    experts_per_token: usize,
    expert_groups: usize,
    expert_groups_per_token: usize,
    expert_group_score: ExpertGroupScore,
    expert_ffn: Option<usize>,
    shared_expert_ffn: usize,
    expert_pattern: Vec<usize>,
    expert_capacity_factor: Option<f64>,
    token_drop_policy: TokenDropPolicy,
    router_score: RouterScore,
    router_normalise: bool,
    router_scale: f64,
    router_bias: bool,
    position: PositionEmbedding,
    rope_base: f64,
    rope_scaling: Vec<f64>,
    rope_scaling_type: RopeScalingType,
    rope_window_base: Option<f64>,
    bias: bool,
    qkv_bias: bool,
    qk_norm: bool,
    qk_norm_over: QkNormOver,
    init_std: f64,
    residual_init: ResidualInit,
    tie_embeddings: bool,
    scale_embeddings: bool,
    mtp_layers: usize,
    hidden_dropout: f64,
    attention_dropout: f64,
    lora_rank: usize,
    lora_alpha: f64,
    lora_dropout: f64,
    lora_target_modules: Vec<String>,
    loss_pieces: Option<usize>,
    layer_sizes: Vec<usize>,
    dropouts: Vec<f64>,
});

choice! {
    /// The architecture of a model.
    pub enum ModelKind {
        /// A decoder-only transformer.
        Gpt = "gpt",
        /// A multi-layer perceptron.
        Mlp = "mlp",
    }
}

choice! {
    /// The scores by which a router chooses experts.
    pub enum RouterScore {
        /// Softmax over all experts.
        Softmax = "softmax",
        /// The logistic function of each logit.
        Sigmoid = "sigmoid",
    }
}

choice! {
    /// The score of a group of experts, from those of its experts.
    pub enum ExpertGroupScore {
        /// The highest.
        Highest = "highest",
        /// The sum of the two highest.
        TwoHighest = "two_highest",
    }
}

choice! {
    /// The choices that an expert keeps, if it has more than its capacity.
    pub enum TokenDropPolicy {
        /// The choices with the highest weights.
        Probs = "probs",
        /// The choices of the first tokens.
        Position = "position",
    }
}

choice! {
    /// The tokens whose loads a balance loss compares.
    pub enum BalanceLossOver {
        /// The tokens of a microbatch.
        Microbatch = "microbatch",
        /// The tokens of each sequence.
        Sequence = "sequence",
        /// The tokens of all ranks' microbatches of the step, up to this one.
        GlobalBatch = "global_batch",
    }
}

choice! {
    /// The normalization before attention, feed-forward and head.
    pub enum Normalization {
        /// Subtracts the mean and divides by the standard deviation.
        LayerNorm = "layernorm",
        /// Divides by the root mean square.
        RmsNorm = "rmsnorm",
        /// The same, times 1 + weight.
        RmsNorm1p = "rmsnorm_1p",
    }
}

choice! {
    /// The places of norms in blocks.
    pub enum NormPlacement {
        /// Before attention and feed-forward.
        Pre = "pre",
        /// After each of them, before the sum with the residual stream.
        Post = "post",
        /// Before and after.
        Sandwich = "sandwich",
    }
}

choice! {
    /// The heads that one norm of queries or keys covers.
    pub enum QkNormOver {
        /// Each head by itself.
        EachHead = "each_head",
        /// All query heads together, and all key heads.
        AllHeads = "all_heads",
    }
}

choice! {
    /// The non-linearity of the feed-forward layer.
    pub enum Activation {
        /// GELU in its tanh form.
        Gelu = "gelu",
        /// SwiGLU. It has a third matrix.
        SwiGlu = "swiglu",
        /// GeGLU, likewise.
        GeGlu = "geglu",
        /// The SwiGLU of gpt-oss, with bounds, likewise.
        ClampedSwiGlu = "clamped_swiglu",
    }
}

choice! {
    /// How rotary frequencies are lowered for contexts longer than the first one.
    pub enum RopeScalingType {
        /// Llama 3.1's: long wavelengths alone.
        Llama3 = "llama3",
        /// YaRN: by the turns over the original context, and a factor of queries and keys.
        Yarn = "yarn",
        /// YaRN without rounding the numbers of pairs, as gpt-oss has it.
        YarnExact = "yarn_exact",
        /// All by the same factor.
        Linear = "linear",
    }
}

choice! {
    /// How the model knows the positions of tokens.
    pub enum PositionEmbedding {
        /// A learned vector for each position.
        Learned = "learned",
        /// Rotated queries and keys.
        Rotary = "rotary",
        /// The causal mask alone.
        None = "none",
    }
}

choice! {
    /// The first values of the matrices that write to the residual stream.
    pub enum ResidualInit {
        /// With a standard deviation of `init_std / sqrt(2 layers)`, as in GPT-2.
        Scaled = "scaled",
        /// With a standard deviation of `init_std`, as other matrices.
        Plain = "plain",
    }
}

section!(TrainConfig {
    device: DeviceChoice,
    steps: usize,
    epochs: Option<f64>,
    seed: u64,
    global_batch_size: usize,
    rampup_batch_size: Vec<usize>,
    micro_batch_size: usize,
    z_loss_multiplier: f64,
    mtp_loss_factor: f64,
    balance_loss_multiplier: f64,
    balance_loss_over: BalanceLossOver,
    router_z_loss_multiplier: f64,
    router_bias_update_rate: f64,
    force_expert_balance: bool,
    deterministic: bool,
    sync_debug: SyncDebugChoice,
    eval_interval: usize,
    eval_steps: usize,
    early_stop_patience: usize,
    exit_interval: usize,
    exit_duration_minutes: Option<f64>,
    threads: Option<usize>,
});

choice! {
    /// The device that the user asks for.
    pub enum DeviceChoice {
        /// A GPU if each rank has one, else the host.
        Auto = "auto",
        /// The CPU.
        Host = "host",
        /// A GPU.
        Cuda = "cuda",
    }
}

choice! {
    /// The reaction to a call that waits for the device or allocates, in a steady step.
    pub enum SyncDebugChoice {
        /// Nothing.
        Off = "off",
        /// A warning names it.
        Warn = "warn",
        /// The call fails.
        Error = "error",
    }
}

section!(OptimizerConfig {
    kind: OptimizerChoice,
    lr: f64,
    min_lr: Option<f64>,
    warmup_steps: Option<usize>,
    decay_steps: usize,
    schedule: DecayStyle,
    betas: Vec<f64>,
    eps: f64,
    exp_avg_dtype: MomentDtype,
    exp_avg_sq_dtype: MomentDtype,
    store_param_remainders: bool,
    main_grads_dtype: MomentDtype,
    momentum: f64,
    muon_momentum: f64,
    muon_num_ns_steps: usize,
    weight_decay: f64,
    decay_embeddings: bool,
    freeze: Vec<String>,
    param_groups: Vec<String>,
    clip: f64,
    skip_step_sigma_factor: f64,
    skip_step_interval: usize,
});

choice! {
    /// The type of a moment, in Megatron's words.
    pub enum MomentDtype {
        /// 32 bits.
        F32 = "fp32",
        /// bf16.
        Bf16 = "bf16",
    }
}

choice! {
    /// The learning rate after warm-up.
    pub enum DecayStyle {
        /// A constant rate.
        Constant = "constant",
        /// Half a cosine.
        Cosine = "cosine",
        /// A linear fall.
        Linear = "linear",
        /// A fall with the root of the number of steps.
        InverseSqrt = "inverse_sqrt",
        /// Warm-up, stable, decay: it stays the same, and falls linearly at the end.
        Wsd = "wsd",
    }
}

section!(ParallelConfig {
    tensor: usize,
    expert: usize,
    expert_tensor: Option<usize>,
    expert_row_budget: Option<f64>,
    sequence_parallel: bool,
    tensor_transfers: TensorTransfers,
    context: usize,
    context_transfers: ContextTransfersChoice,
    pipeline: usize,
    pipeline_schedule: PipelineSchedule,
    virtual_pipeline: usize,
    microbatch_group: Option<usize>,
    pipeline_layers: Vec<usize>,
    distributed_optimizer: bool,
    data_parallel_sharding: DataParallelSharding,
    optimizer_instances: usize,
    grad_reduce: GradReduce,
    bucket_mib: usize,
    heartbeat_seconds: f64,
    distributed_timeout_seconds: f64,
    setup_timeout_seconds: f64,
    monitor_address: Option<String>,
});

choice! {
    /// What ranks that divide sequences exchange in attention.
    pub enum ContextTransfersChoice {
        /// Keys go round if attention of a layer sees whole samples of one document. Of samples with documents, heads
        /// if all ranks get some. Else keys.
        Auto = "auto",
        /// A rank gathers the keys and values of whole sequences.
        Keys = "keys",
        /// Keys and values travel round the ranks.
        Ring = "ring",
        /// A rank gets all tokens of some heads.
        Heads = "heads",
    }
}

choice! {
    /// The code that transfers data between ranks that share layers.
    pub enum TensorTransfers {
        /// Kernels of our own if the ranks' GPUs reach each other's memory, else NCCL.
        Auto = "auto",
        /// NCCL.
        Nccl = "nccl",
    }
}

choice! {
    /// The order of a pipeline stage's work.
    pub enum PipelineSchedule {
        /// One forward, one backward.
        OneForwardOneBackward = "1f1b",
        /// 1F1B with the weight gradients put off until a stage would wait for others.
        ZeroBubble = "zero_bubble",
    }
}

choice! {
    /// What data-parallel ranks divide.
    pub enum DataParallelSharding {
        /// As `distributed_optimizer` says.
        Auto = "auto",
        /// Nothing.
        NoShard = "no_shard",
        /// Master weights and moments.
        Optim = "optim",
        /// Gradients of blocks too.
        OptimGrads = "optim_grads",
        /// Weights of blocks too.
        OptimGradsParams = "optim_grads_params",
    }
}

choice! {
    /// The type of the sums of gradients over data-parallel ranks.
    pub enum GradReduce {
        /// f32.
        F32 = "f32",
        /// bf16.
        Bf16 = "bf16",
    }
}

section!(RecomputeConfig {
    granularity: RecomputeGranularity,
    layers: usize,
    blocks: Option<usize>,
    keep_attention: bool,
    mlp_tiles: usize,
});

section!(OffloadConfig { activation_layers: usize, optimizer: bool, optimizer_fraction: Option<f64> });

choice! {
    /// The extent of recomputation in the backward pass.
    pub enum RecomputeGranularity {
        /// Nothing.
        None = "none",
        /// Norms and activation functions.
        Selective = "selective",
        /// Whole blocks.
        Full = "full",
    }
}

section!(LoggingConfig {
    dir: String,
    interval: usize,
    tensorboard: bool,
    wandb: bool,
    sample_prompts: Option<String>,
    sample_interval: usize,
    print_activations: Vec<String>,
    trace: Option<String>,
    trace_after: Option<usize>,
    trace_steps: usize,
});
