//! The application as users meet it: the binary, and the parts of the library that only a run uses.

mod harness;

#[path = "../../../data/tests/data_files/mod.rs"]
mod data_files;
#[path = "../../../engine/tests/steps/models/mod.rs"]
mod models;
#[path = "../../../data/tests/mutations/mod.rs"]
mod mutations;

mod all_mistakes;

mod checkpoints;
mod data;
mod default_run;
mod directions;
mod doctor;
mod everywhere;
mod experts;
mod faults;
mod fp8_run;
mod fuzz;
mod grad_reduce;
mod hostile;
mod hugging_face;
mod import;
mod installed;
mod mistakes;
mod offload;
mod output;
mod pages;
mod plan;
mod ranks;
mod recompute;
mod signals;
mod tuning;
mod used_names;
mod verify;
