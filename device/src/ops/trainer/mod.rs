//! Operations of a trainer of transformers.

mod attention;
mod experts;
mod losses;
mod low_precision;
mod norms;
mod products;
mod updates;

pub use attention::{
    AddRows, AddSinks, Attention, AttentionBackward, CachedAttention, CachedLatentAttention, Documents, KeyPart,
    KeysOf, LatentHead, LatentTensors, Mask, MergeAttention, PackLatent, PackLatentBackward, RankKeys,
    RankKeysBackward, ResizeHeads, Rotary, Scores, SinkGradients, TakeRows,
};
pub(crate) use attention::{AttentionSizes, CachedLatentSizes, LatentSizes, SinkSizes};
pub use experts::{
    AddExpertBias, Balance, CombineRows, CountLoad, CountedLoads, ExpertBiasDots, ExpertBiasGradient, ExpertGlu,
    ExpertGluBackward, ExpertGroups, ExpertRows, ExpertsOfSlots, GatherRows, GroupScore, GroupedGemm, GroupedProduct,
    LimitLoad, Route, RouteBackward, Router, RowWeights, SampleTokens, Score, SlotsOfPairs, SortByExpert,
    UpdateSelectionBias,
};
pub(crate) use losses::check_cap;
pub use losses::{
    CrossEntropy, CrossEntropyJoin, CrossEntropyPart, Embedding, EmbeddingBackward, FurtherTokens, MismatchedRewards,
    Mse, PairLoss, Preference, SoftCap, SumInto, VocabPart, ZLoss,
};
pub(crate) use low_precision::BLOCK;
pub use low_precision::{
    CODE_BLOCK, CodeForm, CodedValues, CodesOfValues, CountQuantized, Fp8Matrix, MakeScale, Quantize, QuantizeCounts,
    QuantizeSource, Scale, SumCounts, TransposeFp8, UpdateScales,
};
pub use norms::{
    HeadNorm, HeadNormBackward, HeadSums, JointNorm, JointNormBackward, Norm, NormBackward, NormKind, RowSums,
    WeightedGradient,
};
pub(crate) use products::MatrixPlace;
pub use products::{
    Activation, ActivationBackward, ActivationKind, Columns, Dropout, DropoutPart, DropoutSite, Epilogue, Fp8Scales,
    Gate, Gemm, GemmColumns, Glu, GluBackward, ReluDropout, ReluDropoutBackward,
};
pub use updates::{
    ClipScale, Control, Corner, DecayedStep, DecayedTensors, Distribution, FirstValues, MatrixPolynomial,
    MomentumTensors, NesterovMomentum, Rule, RuleState, SampleRecord, ScaleBlock, SkipStep, SquareSum, StateValues,
    Status, Update, UpdateTensors, VoidStep, WriteControl, WriteSampleRecord, join_master, split_master,
};
