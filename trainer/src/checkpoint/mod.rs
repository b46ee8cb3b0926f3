//! Checkpoints: what a run needs to go on as if it had never stopped.
//!
//! `checkpoint.dir` holds a folder for each, `step-00001000` after 1000 steps:
//!
//! - `model.safetensors`: the f32 master weights. Tensors have their parameters' names, for every model in GPT-2's
//!   manner (`h.0.attn.c_attn.weight`). They are not Hugging Face's files, which `trainer convert --to hf` makes: linear
//!   weights are `(out features, in features)`, the transpose of GPT-2's `Conv1D`, and a Llama's queries, keys and values
//!   are one tensor, as gate and up are. Rows that only pad the vocabulary are absent.
//! - `optimizer.safetensors`: the moments, named `<parameter>.exp_avg`, `.exp_avg_sq` or `.momentum`.
//! - `config.toml`: the resolved configuration.
//! - Where several ranks have parts of the state (those that share layers, all with a distributed optimizer) each writes
//!   files of its own, `model-00001-of-00004.safetensors` and so on. Of a divided tensor a file has dense blocks.
//! - `manifest.json`: a [`Manifest`]: counters, the data position and by what the data are known again, every file's size
//!   and SHA-256, and for every tensor its global shape and which part of it each file has.
//!
//! Whatever moment a process dies at, a folder of that name is complete: see [`save`]. Randomness and data are
//! functions of step and sample, so there is no generator state to keep.
//!
//! Start with [`Session`], which is all a run sees.

mod folder;
mod layout;
mod lock;
mod manifest;
mod meaning;
mod read;
mod session;
mod tokenizer;
mod write;
mod writers;

pub use folder::{list, newest_in};
pub use manifest::{Damage, FileEntry, MANIFEST, Manifest, Progress, TensorEntry};
pub use meaning::changed_meaning;
pub(crate) use read::copy_overlap;
pub use read::{load, verify};
pub use session::{Session, at_a_glance, newest_step};
pub use tokenizer::tokenizer_of;
pub use write::{Origin, Tight, save};
pub use writers::Writers;
