//! Checkpoints of other trainers in the folder of a run's own.

use std::process::Command;

use super::refused;
use crate::harness::{Folder, arguments, expect};

/// Files that other trainers leave in the folder of their checkpoints, and the trainers' names.
const LEFT: &[(&str, &str)] = &[
    ("latest_checkpointed_iteration.txt", "Megatron-LM"),
    ("iter_0000100/mp_rank_00/model_optim_rng.pt", "Megatron-LM"),
    ("global_step100/mp_rank_00_model_states.pt", "DeepSpeed"),
    ("step-100/.metadata", "torch.distributed"),
    ("step-100/__0_0.distcp", "torch.distributed"),
    (".metadata", "torch.distributed"),
    ("checkpoint-500/trainer_state.json", "transformers' Trainer"),
];

#[test]
fn a_checkpoint_of_another_trainer_is_named_and_no_run_starts_at_step_0_beside_it() {
    for (left, trainer) in LEFT {
        for flags in ["--load theirs --save theirs", "--load theirs", "--save theirs", "--save theirs --resume never"] {
            for dry in ["", "--dry-run"] {
                let folder = Folder::new("hostile-theirs");
                let path = folder.path("theirs").join(left);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, "100").unwrap();
                let arguments: Vec<&str> = flags.split(' ').chain(["--steps", "1", "--device", "host"]).collect();
                let arguments = [&arguments[..], if dry.is_empty() { &[] } else { &["--dry-run"] }].concat();
                let shown = left.split("/m").next().unwrap().split("/t").next().unwrap();
                let needles = ["= theirs has a checkpoint of", trainer, shown, "--init-from", "--save"];
                refused(&format!("{left} with {flags} {dry}"), &folder.0, &arguments, &needles);
                let there = std::fs::read_dir(folder.path("theirs")).unwrap().count();
                assert_eq!(there, 1, "nothing was written beside {left}");
            }
        }
    }
}

#[test]
fn names_that_only_look_like_another_trainers_and_folders_with_our_own_checkpoints_are_taken() {
    let folder = Folder::new("theirs-and-ours");
    for name in ["iter_notes", "global_steps", "checkpoint-best", "checkpoint-1", "latest", "iter_"] {
        std::fs::create_dir_all(folder.path("saved").join(name)).unwrap();
    }
    let start = |steps: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.args(arguments(&folder.0, &format!("--steps {steps}"))).output().unwrap()
    };
    expect(&start("1"), 0, &["done: loss"]);
    std::fs::create_dir(folder.path("saved").join("iter_0000100")).unwrap();
    expect(&start("2"), 0, &["at step 1", "done: loss"]);
}
