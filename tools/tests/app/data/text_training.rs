//! Runs on real text, read as bytes, through a tokenizer, and from token files.

use device::{Device, HostOptions};
use tools::commands::cli::{Request, parse};
use trainer::config::plan::RunPlan;
use trainer::process_group::ProcessGroup;
use trainer::report::reporter::Outcome;
use trainer::run::source::source;
use trainer::run::train;

use crate::data_files::{Folder, LICENSES, small_tokenizer};

/// Runs `trainer FLAGS` in this process: how it ended, and the metrics of each step.
fn run(folder: &Folder, flags: &[&str]) -> (Outcome, Vec<serde_json::Value>) {
    let logs = folder.path("run");
    let common = ["trainer", "--log-dir", &logs, "--eval-interval", "60", "--lr-warmup-steps", "5"];
    let request = match parse(common.iter().chain(flags).map(|text| (*text).into())).unwrap() {
        Request::Train(request) => request,
        other => panic!("{other:?}"),
    };
    let plan = RunPlan::new(request.config.clone(), 1).unwrap();
    let group = ProcessGroup::single(2);
    let device = Device::host(HostOptions { threads: 2, check: false, dry: false }).unwrap();
    let outcome = train(&plan, &request, &group, &device, (source(&plan).unwrap(), &[], &[])).unwrap().unwrap();
    let lines = std::fs::read_to_string(folder.path("run/metrics.jsonl")).unwrap();
    (outcome, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn a_run_on_the_licenses_as_bytes_learns_and_says_what_it_waited_for_data() {
    let folder = Folder::new("licenses-bytes");
    let (outcome, metrics) = run(&folder, &["--data-path", LICENSES, "--steps", "60", "--enable-cuda-graph"]);
    // Bytes at random have 5.5 nats; to know how frequent each is leaves a little more than 3.
    assert!(outcome.validation_loss.unwrap() < 3.5, "{outcome:?}");
    assert_eq!(metrics.len(), 60);
    // As a decimal number and back. This may cost the last bit.
    let perplexity = metrics[59]["validation_perplexity"].as_f64().unwrap();
    assert!((perplexity / outcome.validation_loss.unwrap().exp() - 1.0).abs() < 1e-12, "{perplexity}");
    for step in &metrics {
        let (wait, host) = (step["data_wait_ms"].as_f64().unwrap(), step["host_ms"].as_f64().unwrap());
        assert!((0.0..=host).contains(&wait), "a step waited {wait} of its {host} ms");
    }
    let resolved = std::fs::read_to_string(folder.path("run/config.toml")).unwrap();
    assert!(resolved.contains(LICENSES) && resolved.contains("tokenizer = \"byte\""), "{resolved}");
}

#[test]
fn text_through_a_tokenizer_and_the_token_files_made_of_it_train_to_the_same_bits() {
    let folder = Folder::new("licenses-tokens");
    let json = folder.path("tokenizer.json");
    let gpl = format!("{LICENSES}/GPL-3");
    small_tokenizer(json.as_ref(), &std::fs::read_to_string(&gpl).unwrap());
    let output = folder.path("tokens");
    let arguments = ["tokenize", "--tokenizer", &json, "--output", &output, "--shard-tokens", "5000", &gpl];
    let tokenize = std::process::Command::new(env!("CARGO_BIN_EXE_trainer")).args(arguments).output().unwrap();
    assert!(tokenize.status.success(), "{}", String::from_utf8_lossy(&tokenize.stderr));
    assert!(String::from_utf8_lossy(&tokenize.stdout).contains("1 document of 1 file, "));
    let sizes = ["--vocab", "400", "--steps", "20"];
    let run = |flags: &[&str]| run(&folder, &[flags, &sizes].concat());
    let (text, steps) = run(&["--data-path", &gpl, "--tokenizer", &json]);
    let (tokens, _) = run(&["--data-path", &output]);
    assert_eq!(text, tokens);
    assert!(text.loss < steps[0]["loss"].as_f64().unwrap() - 0.3, "nothing was learnt: {text:?}");
    let (blend, _) = run(&["--data-path", "0.3", &gpl, "0.7", &output, "--tokenizer", &json]);
    assert_ne!(blend.loss, text.loss);
}
