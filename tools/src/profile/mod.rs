//! The time of a step by parts, and the effect of graphs: the measurements, predictions and output of `trainer profile`.
//!
//! A few steps run without graphs, and a few in each scope ([`measure()`]). From the timeline of each come the busy
//! share of the GPU, its kernels and the gaps between them ([`Activity`]), the operations that take most of the time
//! ([`operations::Total`]), on the device and on the host, and the host's time for launches ([`Launches`]). The gain of
//! each scope is predicted from the steps without graphs alone ([`Expected`]), and printed next to the measured one.

mod activity;
mod expected;
mod launches;
mod measure;
mod op_memory;
mod operations;
mod page;
mod result;
mod table;

pub use activity::{Activity, Histogram};
pub use expected::Expected;
pub use launches::Launches;
pub use measure::measure;
pub use op_memory::OpMemory;
pub use page::page;
pub use result::{Profile, RankProfile, ScopeProfile};
pub use table::table;
