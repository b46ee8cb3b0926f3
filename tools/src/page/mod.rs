//! The page of `trainer report`: one HTML document about runs, made from the files that they wrote.
//!
//! - [`run`] reads a run's folder: `metrics.rs`, `settings.rs`, `expert_loads.rs`, `events.rs`, `trace.rs` and `made_files.rs` read its files.
//! - `live.rs` reads it again and again, for `trainer top`.
//! - [`document`] puts the page together from sections. Each section has a file: `overview.rs`, `curves.rs`, `experts.rs`, `samples.rs`,
//!   `graphs.rs`, `memory.rs`, `timeline.rs`, `operations.rs` and `history.rs`.
//! - `html.rs` and `drawing.rs` have the pieces of sections. `page.js` draws the curves with uPlot, and lets the
//!   keyboard walk through each figure.
//!
//! The page needs no network: style, scripts, library and data are in it. Text from files is escaped.

mod curves;
pub mod document;
mod drawing;
pub(crate) mod events;
mod expert_loads;
mod experts;
mod graphs;
mod history;
pub(crate) mod html;
mod ideal;
pub(crate) mod live;
mod made_files;
mod memory;
pub(crate) mod metrics;
mod operations;
mod overview;
pub mod run;
mod samples;
mod settings;
mod timeline;
pub(crate) mod trace;
