//! Models of Hugging Face, in and out.

mod configs;
mod experts;
mod export_configs;
mod exports;
pub mod models;
mod peft;
mod unfit_weights;
