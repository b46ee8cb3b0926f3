//! The application: configuration, the run around the engine's step, checkpoints, reports, and the commands.
//!
//! A configuration goes from [`config::options`] (the table) through [`config`] (raw) to [`config::plan`] (checked), and
//! [`run`] does it with the `engine`'s step.

pub mod checkpoint;
pub mod commands;
pub mod config;
pub mod error;
pub mod families;
pub mod hf;
pub mod ranks;
pub mod report;
pub mod run;
