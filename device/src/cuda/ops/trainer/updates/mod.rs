//! First values, the control block, gradient norms and updates of weights.

mod control;
mod first_values;
mod muon;
mod optimizer;
mod reduce;
mod skip_step;
