//! Operations of a trainer of transformers.

mod activation;
mod attention;
mod attention_parts;
mod cache;
mod codes;
mod control;
mod dropout;
mod embedding;
mod experts;
mod first_values;
mod further_tokens;
mod gemm;
mod head_norm;
mod joint_norm;
mod latent;
mod loss;
mod loss_parallel;
mod mask;
mod muon;
mod norm;
mod optimizer;
mod pair_loss;
mod quantize;
mod quantize_blocks;
mod quantize_counts;
mod remainder;
mod rotary;
mod rule;
mod scores;
mod sinks;
mod skip_step;
mod soft_cap;
mod transpose_fp8;
mod update;
mod void_step;

pub use activation::{Activation, ActivationBackward, ActivationKind, Gate, Glu, GluBackward};
pub(crate) use attention::AttentionSizes;
pub use attention::{Attention, AttentionBackward, Documents, KeysOf, RankKeys, RankKeysBackward};
pub use attention_parts::{AddRows, KeyPart, MergeAttention};
pub use cache::{CachedAttention, TakeRows};
pub use codes::{CODE_BLOCK, CodeForm, CodedValues, CodesOfValues};
pub use control::{Control, SampleRecord, Status, WriteControl, WriteSampleRecord};
pub use dropout::{Dropout, DropoutPart, DropoutSite, ReluDropout, ReluDropoutBackward};
pub use embedding::{Embedding, EmbeddingBackward};
pub use experts::{
    AddExpertBias, Balance, CombineRows, CountLoad, CountedLoads, ExpertBiasDots, ExpertBiasGradient, ExpertGlu,
    ExpertGluBackward, ExpertGroups, ExpertRows, ExpertsOfSlots, GatherRows, GroupScore, GroupedGemm, GroupedProduct,
    LimitLoad, Route, RouteBackward, Router, RowWeights, SampleTokens, Score, SlotsOfPairs, SortByExpert,
    UpdateSelectionBias,
};
pub use first_values::{Distribution, FirstValues};
pub use further_tokens::FurtherTokens;
pub(crate) use gemm::MatrixPlace;
pub use gemm::{Columns, Epilogue, Fp8Scales, Gemm, GemmColumns};
pub use head_norm::{HeadNorm, HeadNormBackward};
pub use joint_norm::{HeadSums, JointNorm, JointNormBackward, WeightedGradient};
pub(crate) use latent::LatentSizes;
pub use latent::{LatentHead, LatentTensors, PackLatent, PackLatentBackward, ResizeHeads};
pub use loss::{CrossEntropy, Mse, SumInto, ZLoss};
pub use loss_parallel::{CrossEntropyJoin, CrossEntropyPart, VocabPart};
pub use mask::Mask;
pub use muon::{Corner, DecayedStep, DecayedTensors, MatrixPolynomial, MomentumTensors, NesterovMomentum, ScaleBlock};
pub use norm::{Norm, NormBackward, NormKind, RowSums};
pub use optimizer::{ClipScale, SquareSum};
pub use pair_loss::{MismatchedRewards, PairLoss, Preference};
pub use quantize::{Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales};
pub(crate) use quantize_blocks::BLOCK;
pub use quantize_counts::{CountQuantized, QuantizeCounts, SumCounts};
pub use remainder::{join_master, split_master};
pub use rotary::Rotary;
pub use rule::{Rule, RuleState, StateValues};
pub use scores::Scores;
pub(crate) use sinks::SinkSizes;
pub use sinks::{AddSinks, SinkGradients};
pub use skip_step::SkipStep;
pub use soft_cap::SoftCap;
pub(crate) use soft_cap::check_cap;
pub use transpose_fp8::TransposeFp8;
pub use update::{Update, UpdateTensors};
pub use void_step::VoidStep;
