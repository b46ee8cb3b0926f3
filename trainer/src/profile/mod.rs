//! Where the time of a step goes, and what graphs change: what `trainer profile` measures, predicts and prints.
//!
//! A few steps run without graphs, and a few in each scope ([`measure()`]). From the timeline of each come the busy share of
//! the GPU, its kernels and the gaps between them ([`Activity`]), and the operations that take most of the time
//! ([`operations::Total`]). What each scope should gain is predicted from the steps without graphs alone ([`Expected`]), and
//! printed next to what was measured.

mod activity;
mod expected;
mod measure;
mod operations;
mod page;
mod result;
mod table;

pub use activity::{Activity, Histogram};
pub use expected::Expected;
pub use measure::measure;
pub use page::page;
pub use result::{Profile, RankProfile, ScopeProfile};
pub use table::table;
