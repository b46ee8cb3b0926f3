//! First values, the control block, gradient norms and updates of weights.

mod clip_scale;
mod control;
mod first_values;
mod muon;
mod parameters;
mod reduce;
mod remainder;
mod rule;
mod skip_step;
mod update;

pub use clip_scale::*;
pub use control::*;
pub use first_values::*;
pub use muon::*;
pub use reduce::*;
pub use remainder::*;
pub use rule::*;
pub use skip_step::*;
pub use update::*;
