#![doc = include_str!("../README.md")]

pub mod commands;
pub mod page;
pub mod predict;
pub mod profile;
mod verify;
