//! First values, the control block, gradient norms and updates of weights.

mod control;
mod first_values;
mod muon;
mod optimizer;
mod remainder;
mod rule;
mod skip_step;
mod update;
mod void_step;

pub use control::{Control, SampleRecord, Status, WriteControl, WriteSampleRecord};
pub use first_values::{Distribution, FirstValues};
pub use muon::{Corner, DecayedStep, DecayedTensors, MatrixPolynomial, MomentumTensors, NesterovMomentum, ScaleBlock};
pub use optimizer::{ClipScale, SquareSum};
pub use remainder::{join_master, split_master};
pub use rule::{Rule, RuleState, StateValues};
pub use skip_step::SkipStep;
pub use update::{Update, UpdateTensors};
pub use void_step::VoidStep;
