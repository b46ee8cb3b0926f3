//! `trainer doctor` on the host device.

use std::process::{Command, Output};

use device::cuda::gpu_count;

use crate::documents::read;
use crate::harness::{expect, printed};

fn doctor(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trainer")).arg("doctor").args(flags).output().unwrap()
}

#[test]
fn what_passes_is_a_line_a_group_or_a_finding_each_and_why_no_gpu_is_used_is_said_with_a_fix() {
    let short = doctor(&["--quick"]);
    expect(
        &short,
        0,
        &["ok     machine    ", "ok     operation  ", " are right, eagerly and in a graph", " checks passed"],
    );
    let lines = if gpu_count() == 0 { 4 } else { 3 };
    assert_eq!(printed(&short).lines().count(), lines, "{}", printed(&short));
    if gpu_count() == 0 {
        expect(&short, 0, &["lacks  machine    GPU: none is used: ", ". Fix: "]);
    }
    let json = doctor(&["--device", "host", "--json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&json.stdout).unwrap();
    let version = findings.iter().find(|finding| finding["name"] == "MPI").unwrap();
    assert_eq!(version["verdict"], "ok", "{version}");
    let gemm = findings.iter().find(|finding| finding["name"] == "gemm, linear + bias, f32").unwrap();
    assert_eq!(gemm["value"], "relative error 0.0e0, the same bits replayed");
    let operations = findings.iter().filter(|finding| finding["about"] == "operation").count();
    let all = format!("{operations} of {operations} are right, eagerly and in a graph");
    expect(&short, 0, &[&all]);
    // The page has the words. Its numbers are those of the day on which it was written.
    let page = read("docs/performance.md");
    assert!(page.contains("doctor --quick") && page.contains(" are right, eagerly and in a graph"));
}
