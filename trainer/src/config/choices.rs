//! The words and other values that settings choose from.

use common::choice;
use device::ops::CodeForm;
pub use engine::model::{BalanceGroup, FeedForward, Keeps, NormPlacement, QkNorm};
use serde::{Deserialize, Serialize};

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
    /// The score of a group of experts, from the experts' scores.
    pub enum ExpertGroupScore {
        /// The highest.
        Highest = "highest",
        /// The sum of the two highest.
        TwoHighest = "two_highest",
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
    /// How rotary frequencies are lowered for contexts longer than the first one.
    pub enum RopeScalingType {
        /// Llama 3.1's: long wavelengths alone.
        Llama3 = "llama3",
        /// YaRN: by the turns over the original context, and a factor of queries and keys.
        Yarn = "yarn",
        /// YaRN without rounding the numbers of pairs, as in gpt-oss.
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
        /// A warning names the call.
        Warn = "warn",
        /// The call fails.
        Error = "error",
    }
}

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
        /// A forward, then a backward, in turn.
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

choice! {
    /// The loss of a pair of answers.
    pub enum PreferenceLoss {
        /// DPO's loss (Rafailov et al., 2023).
        Sigmoid = "sigmoid",
        /// IPO's loss (Azar et al., 2023).
        Ipo = "ipo",
    }
}

choice! {
    /// The extent of one graph.
    pub enum GraphScope {
        /// Each layer's forward and backward.
        PerLayer = "per_layer",
        /// The forward and the backward of each chunk of layers.
        PerChunk = "per_chunk",
        /// All microbatches of a step.
        FullIteration = "full_iteration",
        /// The fastest scope, measured at the run's start.
        Auto = "auto",
    }
}

choice! {
    /// How microbatches share memory.
    pub enum GraphMempool {
        /// A separate slot for each microbatch in flight.
        PerMicrobatch = "per_microbatch",
        /// One plan over the whole step.
        Single = "single",
    }
}

choice! {
    /// The memory of the eager step of a verification.
    pub enum VerifyMemory {
        /// Memory apart from that of the graphs.
        Apart = "apart",
        /// The memory of the graphs.
        Shared = "shared",
    }
}

choice! {
    /// The memory of frozen weights of linear layers in blocks.
    pub enum FrozenWeights {
        /// In the type that layers compute in.
        Compute = "compute",
        /// As codes of 4 bits: see [`CodeForm::Nf4`].
        Nf4 = "nf4",
        /// As codes of 8 bits: see [`CodeForm::Int8`].
        Int8 = "int8",
    }
}

impl FrozenWeights {
    /// The form of codes; `None` for weights that are no codes.
    pub fn codes(self) -> Option<CodeForm> {
        match self {
            FrozenWeights::Compute => None,
            FrozenWeights::Nf4 => Some(CodeForm::Nf4),
            FrozenWeights::Int8 => Some(CodeForm::Int8),
        }
    }
}

choice! {
    /// The types of the factors of 8-bit products.
    pub enum Fp8Choice {
        /// There are no 8-bit products.
        None = "none",
        /// See [`Fp8Format::Hybrid`](engine::fp8::Fp8Format::Hybrid).
        Hybrid = "hybrid",
        /// See [`Fp8Format::E4m3`](engine::fp8::Fp8Format::E4m3).
        E4m3 = "e4m3",
    }
}

choice! {
    /// The magnitude in the history that determines a delayed scale.
    pub enum AmaxAlgo {
        /// The largest.
        Max = "max",
        /// The newest.
        MostRecent = "most_recent",
    }
}

/// The checkpoint that a run continues. Any text is one: a word, or else a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Resume {
    /// The newest in `checkpoint.dir`, if there is one.
    Auto,
    /// None.
    Never,
    /// A checkpoint, or the newest in a folder of checkpoints.
    From(String),
}

impl From<String> for Resume {
    fn from(text: String) -> Resume {
        match text.as_str() {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            _ => Resume::From(text),
        }
    }
}

impl From<Resume> for String {
    fn from(resume: Resume) -> String {
        match resume {
            Resume::Auto => "auto".into(),
            Resume::Never => "never".into(),
            Resume::From(path) => path,
        }
    }
}
