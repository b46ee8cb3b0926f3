//! The time and memory that recording a long step of a deep model takes.

use std::time::Instant;

use device::{Device, HostOptions};
use engine::graph_options::{GraphOptions, Scope};
use engine::model::GptShape;
use engine::precision::Precision;

use crate::models::{Kind, Run, tiny_gpt};

/// The most memory that this process has had so far, in MiB.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn record(scope: Scope) {
    let device = Device::host(HostOptions { threads: 1, check: false, dry: true }).unwrap();
    let run = Run::new(Kind::Gpt, 512, GraphOptions { scope, ..GraphOptions::default() });
    let shape = Some(GptShape { layers: 80, ..tiny_gpt(0.0, Precision::Bf16) });
    let run = Run { check: false, precision: Precision::Bf16, shape, ..run };
    let mut stage = run.stage(&device);
    let (before, began) = (peak_mib(), Instant::now());
    stage.record(run.microbatches, false).unwrap();
    let seconds = began.elapsed().as_secs_f64();
    let mib = peak_mib() - before;
    let operations: usize = stage.graphs().report().steps.iter().map(|step| step.operations).sum();
    println!("{scope:?}: {operations} operations recorded in {seconds:.1} s and {mib:.0} MiB");
}

/// Run it with `cargo test --release -p engine --test steps recording_size -- --ignored --nocapture --test-threads 1`.
#[test]
#[ignore = "it measures: 80 layers and 512 microbatches, with graphs per layer"]
fn a_long_step_is_recorded_with_graphs_per_layer() {
    record(Scope::PerLayer);
}

#[test]
#[ignore = "it measures: 80 layers and 512 microbatches, as one graph"]
fn a_long_step_is_recorded_as_one_graph() {
    record(Scope::FullIteration);
}
