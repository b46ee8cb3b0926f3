//! Predicts a run on GPUs that this machine lacks: whether it fits, and how long a step takes.
//!
//! A rank's step is recorded on the dry host device, as before every run, with communicators on paper (`paper.rs`). So the
//! memory is the plan's, and the work is the list of operations that would run. Each operation gets a price from the GPU's
//! file (`price.rs`, `network.rs`, `card.rs`). Then the operations of one rank of each pipeline stage run in simulated time
//! (`simulate.rs`): streams, events and transfers order them as they do on a GPU.
//!
//! [`forecast`] is a layout's prediction. `layouts.rs` lists layouts to try, and `rough.rs` ranks them cheaply, so that only
//! the best are recorded whole. `limits.rs` says how far the memory goes.

mod card;
mod forecast;
mod layouts;
mod limits;
mod network;
mod paper;
mod price;
mod rough;
mod simulate;
mod step_graph;
mod timeline;

pub use card::{AttentionRates, Card, Products};
pub use forecast::{Fit, Forecast, Memory, fitting, forecast, with_state_as_needed};
pub use layouts::{Found, Search, search};
pub use limits::{Largest, Limit, limits};
pub use timeline::{picture, timeline_picture};
