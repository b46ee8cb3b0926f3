//! Norms of rows and of heads.

mod head_norm;
mod joint_norm;
mod norm;

pub use head_norm::*;
pub use joint_norm::*;
pub use norm::*;
