#![doc = include_str!("../README.md")]

pub mod checkpoint;
pub mod commands;
pub mod config;
pub mod error;
pub mod families;
pub mod hf;
pub mod page;
pub mod predict;
pub mod process_group;
pub mod profile;
pub mod report;
pub mod run;
