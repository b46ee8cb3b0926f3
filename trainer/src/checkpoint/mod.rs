//! Checkpoints: all that a run needs to resume as if it had never stopped.
//!
//! `checkpoint.dir` holds a folder for each, `step-00001000` after 1000 steps:
//!
//! - `model.safetensors`: the f32 master weights. Frozen weights have the type that they have in memory. Tensors have their
//!   parameters' names. These follow GPT-2 for every model (`h.0.attn.c_attn.weight`). Hugging Face's files differ;
//!   `trainer convert --to hf` makes them. Here linear weights are `(out features, in features)`, the transpose of GPT-2's
//!   `Conv1D`, and a Llama's queries, keys and values are one tensor, as are its gate and up projection. Padding rows of
//!   the vocabulary are absent.
//! - `optimizer.safetensors`: the optimizer's state, named `<parameter>.exp_avg`, `.exp_avg_sq`, `.momentum` or `.momentum_buffer`,
//!   in the type that it has in memory: f32, or bf16 for moments that are kept so.
//!   With delayed 8-bit scaling also the history of largest magnitudes, `<weight>.input_amax` and `.grad_output_amax`.
//! - `config.toml`: the resolved configuration.
//! - `tokens.json` and `tokenizer.json`: the meaning of the tokens ([`TokenizerCopy`](data::TokenizerCopy)), if the
//!   data have it.
//! - `chat_template.jinja` and `tokenizer_config.json`: the chat template and the tokens that it names, after training on
//!   conversations.
//! - `hf-config.json`, `hf-tokenizer.json` and so on ([`SourceFile`]): files of the Hugging Face model that training began with.
//! - If several ranks have different parts of the state, each writes its own files, `model-00001-of-00004.safetensors`
//!   and so on. These are the ranks that share layers, the stages, and with a distributed optimizer all ranks. A file
//!   has slabs of a divided tensor.
//! - `manifest.json`: a [`Manifest`]: counters, the data's position and identities, every file's size and hash, and
//!   for every tensor its global shape and the part that each file has.
//!
//! - `metrics.jsonl`, only if the run could not write its metrics elsewhere: the lines that are missing there.
//!
//! Between checkpoints a supervised run may keep its state in shared memory, in folders of the same form: see `in_memory.rs`.
//!
//! `file.rs` has the list of all files. They are regular files with plain names. Links are not followed: nothing outside of
//! the folder is read.
//!
//! A folder of that name is complete, at whatever moment a process dies: see [`save`]. Randomness and data are functions of
//! step and sample, so there is no generator state to save.
//!
//! Start with [`Session`]: the training loop uses nothing else.

mod changes;
mod content_hash;
mod data_type;
mod file;
mod folder;
mod header;
mod in_memory;
mod layout;
mod lock;
mod manifest;
mod other_formats;
mod output;
mod read;
mod session;
mod step_name;
mod tensor_file;
mod unfinished;
mod validated;
mod write;
mod writers;

pub use changes::{Change, ChangedSettings, changed_meaning};
pub use data_type::DataType;
pub use file::{KeptFile, SourceFile};
pub(crate) use folder::newest_in;
pub use folder::{list, named, named_tokenizer};
pub(crate) use header::{FileHeader, TensorHeader, beginning};
pub(crate) use in_memory::{MOST_STATES, states_to_come};
pub use in_memory::{copy_newest_state, state_folder};
pub use manifest::{Damage, Extent, FileEntry, MANIFEST, Manifest, Progress, TensorEntry};
pub use other_formats::refuse_other_formats;
pub use read::{LARGEST_SOURCE_FILE, load, verify};
pub(crate) use read::{copy_overlap, read_ahead};
pub(crate) use session::LOG_LOCK;
pub use session::{Place, Session, is_in_use, missing_checkpoint, newest_step, start_folder};
pub use validated::{Validated, ValidationEntry};
pub(crate) use write::rank_bytes;
pub use write::{Occasion, Origin, SaveRequest, save};
pub use writers::Writers;
