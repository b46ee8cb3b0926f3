//! First values, the control block, gradient norms and updates of weights.

mod control;
mod first_values;
mod muon;
mod optimizer;
mod skip_step;
mod update;
