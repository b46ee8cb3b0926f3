//! Norms of rows and of heads.

mod head_norm;
mod joint_norm;
mod norm;
