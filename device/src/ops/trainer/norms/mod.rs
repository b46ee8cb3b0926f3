//! Norms of rows and of heads.

mod head_norm;
mod joint_norm;
mod norm;

pub use head_norm::{HeadNorm, HeadNormBackward};
pub use joint_norm::{HeadSums, JointNorm, JointNormBackward, WeightedGradient};
pub(crate) use norm::check_mean;
pub use norm::{Norm, NormBackward, NormKind, RowSums};
