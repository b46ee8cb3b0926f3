//! The interface for a step's code: regions, buffers, random numbers, and work under a condition.

mod context;
#[cfg(feature = "trainer-ops")]
mod random;
mod region;
mod when;

pub use context::StepContext;
#[cfg(feature = "trainer-ops")]
pub use random::{Masks, RandomState};
pub use when::WhenBody;
