//! `trainer doctor` on the host device.

use std::process::{Command, Output};

use device::cuda::gpu_count;

use crate::harness::{Folder, expect, printed, set_mpi};
use crate::pages::documents::read;

fn trainer(folder: &Folder, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    set_mpi(&mut command, &folder.0);
    command.args(line.split(' ')).output().unwrap()
}

#[test]
fn what_passes_is_a_line_a_group_or_a_finding_each_and_why_no_gpu_is_used_is_said_with_a_fix() {
    let folder = Folder::new("doctor");
    let json = trainer(&folder, "doctor --device host --json");
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&json.stdout).unwrap();
    let version = findings.iter().find(|finding| finding["name"] == "MPI").unwrap();
    assert_eq!(version["verdict"], "ok", "{version}");
    let gemm = findings.iter().find(|finding| finding["name"] == "gemm, linear + bias, f32").unwrap();
    assert_eq!(gemm["value"], "relative error 0.0e0, the same bits replayed");
    let operations = findings.iter().filter(|finding| finding["about"] == "operation").count();
    // A page has the words. Its numbers are those of the day on which it was written.
    let page = read("docs/performance.md");
    assert!(page.contains("doctor --quick") && page.contains(" are right, eagerly and in a graph"));

    let line = "launch -n 2 -- doctor --quick";
    assert!(read("docs/several-gpus.md").contains(&format!("trainer {line}\n")));
    let short = trainer(&folder, line);
    expect(&short, 0, &["ok     machine    ", "ok     ranks      ", " checks passed"]);
    expect(&short, 0, &[&format!("ok     operation  {operations} of {operations} are right, eagerly and in a graph")]);
    let lines = if gpu_count() == 0 { 5 } else { 4 };
    assert_eq!(printed(&short).lines().count(), lines, "{}", printed(&short));
    if gpu_count() == 0 {
        expect(&short, 0, &["lacks  machine    GPU: none is used: ", ". Fix: "]);
    }
}
