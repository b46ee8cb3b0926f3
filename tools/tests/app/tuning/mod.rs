//! Tuning, evaluation and text of trained models.

mod choices;
mod dpo;
mod eval;
mod fine_tuning;
mod freeze;
mod kto;
pub mod lora;
mod param_groups;
mod sample;
mod samples;
mod sft;
