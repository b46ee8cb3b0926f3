//! Mixtures of experts: each token passes `k` of a layer's experts, which a router chooses (Shazeer et al., 2017).
//!
//! A **pair** is a token with one of its choices: pair `t * k + j` is choice `j` of token `t`. **Rows** are pairs in the
//! order of their experts. So the rows of an expert lie together. How many it has is known to the device alone.
//! Pairs that are dropped come after all others, and nothing of their rows is read or written.

mod bias;
mod exchange;
mod glu;
mod grouped_gemm;
mod limit;
mod load;
mod route;
mod rows;

pub use bias::{AddExpertBias, ExpertBiasDots, ExpertBiasGradient, RowWeights};
pub use exchange::{ExpertsOfSlots, SlotsOfPairs};
pub use glu::{ExpertGlu, ExpertGluBackward};
pub use grouped_gemm::{GroupedGemm, GroupedProduct};
pub use limit::LimitLoad;
pub use load::{CountLoad, UpdateSelectionBias};
pub use route::{Balance, CountedLoads, ExpertGroups, GroupScore, Route, RouteBackward, Router, SampleTokens, Score};
pub use rows::{CombineRows, ExpertRows, GatherRows, SortByExpert};
