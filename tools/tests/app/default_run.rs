//! The run a newcomer starts first: it reaches its data's entropy, and only because the model has attention.

use data::MarkovSource;
use device::{Device, HostOptions};
use tools::commands::cli::{Request, parse};
use trainer::config::plan::RunPlan;
use trainer::config::request::TrainRequest;
use trainer::process_group::ProcessGroup;
use trainer::report::reporter::Outcome;
use trainer::run::source::source;
use trainer::run::train;

/// Runs the trainer in this process, as `trainer FLAGS` would.
fn run(name: &str, flags: &[&str]) -> Outcome {
    let folder = std::env::temp_dir().join(format!("default-run-{name}-{}", std::process::id()));
    let arguments = ["trainer", "--log-dir", folder.to_str().unwrap()];
    let request = match parse(arguments.iter().chain(flags).map(|text| (*text).into())).unwrap() {
        Request::Train(request) => request,
        other => panic!("not a training run: {other:?}"),
    };
    let TrainRequest { config, .. } = &*request;
    let plan = RunPlan::new(config.clone(), 1).unwrap();
    let device = Device::host(HostOptions { threads: 2, check: false, dry: false }).unwrap();
    let group = ProcessGroup::single(2);
    let outcome = train(&plan, &request, &group, &device, (source(&plan).unwrap(), &[], &[])).unwrap().unwrap();
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), plan.config.train.steps, "one line a step");
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let written = last["loss"].as_f64().unwrap();
    assert!((written / outcome.loss - 1.0).abs() < 1e-14, "{written}, {}", outcome.loss); // JSON's reader may round
    std::fs::remove_dir_all(&folder).unwrap();
    outcome
}

#[test]
fn the_default_run_with_graphs_ends_within_5_percent_of_the_entropy() {
    // The bound holds long before the default number of steps, at which the loss is 0.3 % above the floor.
    let outcome = run("default", &["--enable-cuda-graph", "--steps", "700"]);
    let (loss, floor) = (outcome.validation_loss.unwrap(), outcome.floor.unwrap());
    assert!(loss > 0.99 * floor, "{loss} is below what is possible, {floor}");
    assert!(loss < 1.05 * floor, "{loss} is more than 5 % above the floor of {floor}");
}

#[test]
fn the_same_model_without_attention_misses_the_floor_by_more_than_20_percent() {
    // The entropy after one letter bounds every model that sees one letter at a time; this bound is exact.
    let source = MarkovSource::new(1234, 64);
    assert!(source.last_letter_entropy() > 1.2 * source.entropy_rate());
    let outcome = run("blind", &["--attention=false", "--steps", "200", "--enable-cuda-graph"]);
    let (loss, floor) = (outcome.validation_loss.unwrap(), outcome.floor.unwrap());
    assert!(loss > 1.2 * floor, "without attention {loss} comes within 20 % of {floor}");
    assert!(loss < 2.5, "the model without attention did not even learn the letters: {loss}");
}
