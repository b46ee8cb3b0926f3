//! `trainer doctor` on the host device.

use std::process::{Command, Output};

use device::cuda::gpu_count;

use crate::harness::{expect, printed};

fn doctor(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).arg("doctor").args(flags).output().unwrap()
}

#[test]
fn what_passes_is_a_line_a_group_and_all_lines_are_there_if_asked_for() {
    let short = doctor(&["--device", "host"]);
    expect(
        &short,
        0,
        &["ok     machine    ", "ok     operation  ", " are right, eagerly and in a graph", " checks passed"],
    );
    assert_eq!(printed(&short).lines().count(), 3, "{}", printed(&short));
    let long = doctor(&["--device", "host", "--verbose"]);
    expect(&long, 0, &["ok     operation  gemm, linear + bias, f32: relative error 0.0e0, the same bits replayed"]);
    let json = doctor(&["--device", "host", "--json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(printed(&long).lines().count(), findings.len() + 1);
}

#[test]
fn why_no_gpu_is_used_is_said_with_a_fix() {
    if gpu_count() == 0 {
        expect(&doctor(&["--quick"]), 0, &["lacks  machine    GPU: none is used: ", ". Fix: "]);
    }
}
