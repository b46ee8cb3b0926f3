//! Trains models: configuration, data, models, the step, and the run around it.
//!
//! Start with [`step::Stage::train_step`]; the layers it runs are in [`model`].

pub mod model;
pub mod optimizer;
pub mod params;
pub mod reducer;
pub mod step;
