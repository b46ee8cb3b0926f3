//! The page of `trainer report`: one HTML document about runs, made from the files that they wrote.
//!
//! - [`run`] reads a run's folder: `metrics.rs`, `expert_loads.rs`, `events.rs` and `trace.rs` read its files.
//! - `live.rs` reads it again and again, for `trainer top`.
//! - [`document`] puts the page together from sections. The sections are in `overview.rs`, `curves.rs`, `experts.rs`,
//!   `graphs.rs`, `memory.rs`, `timeline.rs` and `tables.rs`.
//! - `html.rs` and `drawing.rs` have the pieces of sections. `page.js` draws the curves with uPlot, and lets the
//!   keyboard walk through each figure.
//!
//! The page needs no network: style, scripts, library and data are in it.

mod curves;
pub mod document;
mod drawing;
pub(crate) mod events;
mod expert_loads;
mod experts;
mod graphs;
pub(crate) mod html;
mod ideal;
pub(crate) mod live;
mod memory;
pub(crate) mod metrics;
mod overview;
pub mod run;
mod tables;
mod timeline;
pub(crate) mod trace;
