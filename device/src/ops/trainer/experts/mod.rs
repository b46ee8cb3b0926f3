//! Mixtures of experts: each token passes `k` of a layer's experts, which a router chooses (Shazeer et al., 2017).
//!
//! A **pair** is a token with one of its choices: pair `t * k + j` is choice `j` of token `t`. **Rows** are pairs in the
//! order of their experts. So the rows of an expert lie together. How many it has is known to the device alone.
//! Pairs that are dropped come after all others, and nothing of their rows is read or written.

mod bias;
mod exchange;
mod glu;
mod grouped_gemm;
mod kernels;
mod limit;
mod load;
mod route;
mod rows;
mod sort;

pub use bias::*;
pub use exchange::*;
pub use glu::*;
pub use grouped_gemm::*;
pub use limit::*;
pub use load::*;
pub use route::*;
pub use rows::*;
pub use sort::*;
