//! The samples of a step: their number, their lengths, and passes over the data.

mod batch;
pub mod bucket_shares;
mod buckets;
pub mod epochs;

pub use batch::{BatchPlan, BatchShare};
pub use buckets::BucketPlan;
pub use epochs::{in_steps, plan_in_steps};
