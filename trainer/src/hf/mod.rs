//! Weights from and to Hugging Face, in the files that `transformers` saves and loads.
//!
//! [`Pretrained`] is a folder of weights, theirs or ours. [`convert`] writes one from the other, with one tensor at a time
//! in memory. The other files of a Hugging Face model, [`SourceFiles`], go with its weights and come back with an export.
//! [`crate::families`] describes a family's files; `names.rs` applies that to all parameters of a model.

mod adapters;
mod convert;
mod expert_tensors;
mod export;
mod layout;
mod names;
mod peft;
mod peft_config;
mod pretrained;
mod read;
mod source;
mod weights;
mod write;

pub use crate::checkpoint::DataType;
pub use convert::{Direction, check, convert};
pub use pretrained::Pretrained;
pub use source::SourceFiles;
