//! The application as users meet it: the binary, and the parts of the library that only a run uses.

mod harness;

#[path = "../../../data/tests/data_files/mod.rs"]
mod data_files;
#[path = "../../../engine/tests/steps/models/mod.rs"]
mod models;
#[path = "../../../data/tests/mutations/mod.rs"]
mod mutations;

mod all_mistakes;
mod async_save;
mod bad_data;
mod batch_ramp;
mod batches;
mod best_checkpoint;
mod buckets;

mod checkpoint;
mod choices;
mod completions;
mod configs;
mod container;
mod damage;
mod default_run;
mod directions;
mod disk_shim;
mod distributed_run;
mod doctor;
mod documents;
mod earlier_format;
mod eval;
mod everywhere;
mod experts;
mod export_configs;
mod exports;
mod faults;
mod fine_tuning;
mod fp8_run;
mod freeze;
mod full_disk;
mod fuzz;
mod grad_reduce;
mod graph_report;
mod guides;
mod hf;
mod hf_experts;
mod hostile;
mod import;
mod inspect;
mod job;
mod kill;
mod launch;
mod lora;
mod memory_states;
mod mistakes;
mod mpirun;
mod network;
mod nvtx;
mod param_groups;
mod pipeline_run;
mod plan;
mod profile;
mod rank_mistakes;
mod recompute;
mod report;
mod resume;
mod run_log;
mod sample;
mod samples;
mod sft;
mod shown_output;
mod signals;
mod splits;
mod supervise;
mod tensor_run;
mod terminal;
mod text_training;
mod tokenizers;
mod top;
mod trace;
mod unfit_weights;
mod used_names;
mod verify;
mod walks;
mod wandb_client;
mod watch;
