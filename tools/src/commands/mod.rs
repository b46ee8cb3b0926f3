//! The command line and the commands of the trainer.
//!
//! Each command has a file with its flags (`command`), the task made from them (`request`) and the code that carries it
//! out. [`cli`] puts the flags together, [`execute`] runs the task.

mod args;
pub mod batches;
pub mod bench;
mod chat;
pub mod cli;
mod completions;
mod configs;
mod convert;
pub mod doctor;
mod eval;
mod execute;
mod import;
mod inspect;
mod interruption;
mod job;
mod launch;
mod manual;
mod plan;
pub mod profile;
mod report;
pub mod sample;
mod supervise;
mod tokenize;
mod tokenizer;
mod top;
mod train;
mod verify;

pub use execute::{execute, request};
