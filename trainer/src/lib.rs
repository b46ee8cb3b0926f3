#![doc = include_str!("../README.md")]

pub mod checkpoint;
pub mod config;
pub mod error;
pub mod extensions;
pub mod families;
pub mod generation;
pub mod hf;
pub mod process_group;
pub mod report;
pub mod run;
pub mod told;
