//! The operations. Each is a plain value that names its tensors: submitting it to a stream runs it there, or records it
//! while the stream captures. The tensors it reads and writes are part of its value, so the same list serves the host
//! kernels, the CUDA kernels, the memory plan and the graph checker. Operations can be compared, and mapped to other
//! tensors.
//!
//! Shapes are written `(batch, seq, hidden)`; matrices are row-major. Floating operations load f32 or bf16,
//! compute in f32 and round once when storing, unless their documentation says otherwise.

mod accesses;
mod activation;
mod attention;
mod cache;
mod checks;
mod collective;
mod control;
mod custom;
mod dropout;
mod elementwise;
mod embedding;
mod experts;
mod first_values;
mod gemm;
mod head_norm;
mod joint_norm;
mod launcher;
mod loss;
mod loss_parallel;
mod mask;
mod move_bytes;
mod muon;
mod norm;
mod op;
mod operation;
mod optimizer;
mod order_rows;
mod pair_loss;
mod partial_columns;
mod progress_mark;
mod quantize;
mod quantize_blocks;
mod quantize_counts;
mod rotary;
mod rule;
mod scores;
mod select;
mod sequence_share;
mod skip_step;
mod soft_cap;
mod transpose_fp8;
mod update;
mod visit;
mod void_step;
mod when;
mod work;

pub use accesses::Accesses;
pub use activation::{Activation, ActivationBackward, ActivationKind, Gate, Glu, GluBackward};
pub(crate) use attention::AttentionSizes;
pub use attention::{Attention, AttentionBackward, Documents, WholeKeys, WholeKeysBackward};
pub use cache::{CachedAttention, TakeRows};
pub(crate) use checks::{
    ensure, ensure_apart, ensure_dtype, ensure_elements, ensure_float, ensure_heads, ensure_shape,
};
pub use collective::Collective;
pub use control::{Control, SampleRecord, Status, WriteControl, WriteSampleRecord};
pub use custom::{Custom, CustomOp};
pub use dropout::{Dropout, DropoutPart, DropoutSite, ReluDropout, ReluDropoutBackward};
pub use elementwise::{Add, BiasGrad, ColumnRange, Copy, CopyColumns, Fill, Multiply, Poison};
pub use embedding::{Embedding, EmbeddingBackward};
pub use experts::{
    Balance, CombineRows, CountLoad, ExpertGlu, ExpertGluBackward, ExpertRows, ExpertsOfSlots, GatherRows, GroupedGemm,
    GroupedProduct, LimitLoad, PlaceRows, Route, RouteBackward, Router, RowsOfRanks, RowsWay, Score, SlotsOfPairs,
    SortByExpert, UpdateSelectionBias,
};
pub use first_values::{Distribution, FirstValues};
pub(crate) use gemm::MatrixPlace;
pub use gemm::{Columns, Epilogue, Fp8Scales, Gemm, GemmColumns};
pub use head_norm::{HeadNorm, HeadNormBackward};
pub use joint_norm::{HeadSums, JointNorm, JointNormBackward, WeightedGradient};
pub use launcher::Launcher;
pub use loss::{CrossEntropy, Mse, SumInto, ZLoss};
pub use loss_parallel::{CrossEntropyJoin, CrossEntropyPart, VocabPart};
pub use mask::Mask;
pub use move_bytes::Move;
pub use muon::{Corner, DecayedStep, DecayedTensors, MatrixPolynomial, MomentumTensors, NesterovMomentum, ScaleBlock};
pub use norm::{Norm, NormBackward, NormKind};
pub use op::Op;
pub use operation::Operation;
pub use optimizer::{ClipScale, SquareSum};
pub use order_rows::{OrderRows, RowOrder};
pub use pair_loss::{PairLoss, Preference};
pub use partial_columns::{AddPartialColumns, PartialColumns};
pub use quantize::{Fp8Matrix, MakeScale, Quantize, QuantizeSource, Scale, UpdateScales};
pub(crate) use quantize_blocks::BLOCK;
pub use quantize_counts::{CountQuantized, QuantizeCounts, SumCounts};
pub use rotary::Rotary;
pub use rule::{Rule, RuleState, StateValues};
pub use scores::Scores;
pub use select::{Condition, Select};
pub use sequence_share::SequenceShare;
pub use skip_step::SkipStep;
pub use soft_cap::SoftCap;
pub(crate) use soft_cap::check_cap;
pub use transpose_fp8::TransposeFp8;
pub use update::{Update, UpdateTensors};
use visit::{Visit, visit_all};
pub use void_step::VoidStep;
pub use when::When;

pub use crate::communicator::CollectiveKind;
pub use crate::progress::ProgressMark;
