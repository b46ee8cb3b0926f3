//! The binary as users run it: under mpirun with several ranks, and alone with input that is wrong.

use std::process::{Command, Output};

use serde_json::Value;

use crate::checkpoints::disk_shim::{Fault, break_file};
use crate::harness::{Folder, cases, logged_steps, mpirun, mpirun_command, printed};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

/// A short run with dropout, so that randomness that depends on the rank would show.
const SHORT: [&str; 8] =
    ["--steps", "20", "--eval-interval", "0", "--hidden-dropout", "0.1", "--attention-dropout", "0.1"];

/// The path in a folder, as an argument.
fn path(folder: &Folder, name: &str) -> String {
    folder.path(name).to_str().unwrap().into()
}

/// Writes a file; returns its path.
fn file(folder: &Folder, name: &str, content: &[u8]) -> String {
    std::fs::write(folder.path(name), content).unwrap();
    path(folder, name)
}

/// Runs the trainer on two ranks, each with arguments of its own.
fn unlike(folder: &Folder, first: &[&str], second: &[&str]) -> Output {
    let mut command = mpirun_command(&folder.0);
    command.args(["-n", "1", TRAINER]).args(first).args([":", "-n", "1", TRAINER]).args(second).output().unwrap()
}

#[test]
fn ranks_that_were_told_different_things_do_not_train() {
    let folder = Folder::new("unlike");
    let (log, whole) = (path(&folder, "log"), file(&folder, "whole.txt", &b"to be or not to be ".repeat(200)));
    let short = file(&folder, "short.txt", &b"to be or not to be ".repeat(150));
    let common = ["--steps", "2", "--log-dir", &log];
    for (own, said) in [
        (["--layers", "3"], "rank 1 has model.layers = 3, rank 0 has model.layers = "),
        (["--lr", "0.5"], "rank 1 has optimizer.lr = 0.5, rank 0 has optimizer.lr = "),
        (["--eval-interval", "1"], "rank 1 has train.eval_interval = 1, "),
        (["--global-batch-size", "32"], "rank 1 has train.global_batch_size = 32, "),
    ] {
        let output = unlike(&folder, &common, &[&common[..], &own].concat());
        let text = printed(&output);
        assert!(output.status.code() == Some(2) && text.contains(said) && text.contains("Fix: "), "{own:?}: {text}");
    }
    let on = |data: &'static str| [&common[..], &["--data-path", data]].concat();
    let (whole, short): (&'static str, &'static str) = (whole.leak(), short.leak());
    let blend =
        |weights: [&'static str; 2]| [&common[..], &["--data-path", weights[0], whole, weights[1], short]].concat();
    for (first, second, said) in [
        (on(whole), common.to_vec(), "rank 1 has no such setting, rank 0 has data.path = one dataset"),
        (
            on(whole),
            [&on(whole)[..], &["--validation-path", short]].concat(),
            "rank 1 has data.validation_path = one dat",
        ),
        (
            blend(["0.9", "0.1"]),
            blend(["0.1", "0.9"]),
            "weights 0.1, 0.9, rank 0 has data.path = datasets of weights 0.9",
        ),
    ] {
        let text = printed(&unlike(&folder, &first, &second));
        assert!(text.contains(said), "{said}: {text}");
    }
    let output = unlike(&folder, &on(whole), &on(short));
    let text = printed(&output);
    let said = "error on rank 1: rank 1 has other data: data of data.path = ";
    assert!(output.status.code() == Some(2) && text.contains(said) && text.contains("(rank 0: "), "{text}");
}

/// Loss and gradient norm of each step.
fn train(ranks: usize, graphs: bool) -> Vec<(f64, f64)> {
    let folder = Folder::new(&format!("train-{ranks}-{graphs}"));
    let enable = format!("--enable-cuda-graph={graphs}");
    let log_dir = path(&folder, "run");
    let output = mpirun(ranks, &folder.0, &[&SHORT[..], &[enable.as_str(), "--log-dir", &log_dir]].concat());
    assert!(output.status.success(), "{ranks} ranks, graphs {graphs}: {}", printed(&output));
    let steps = logged_steps(&folder.path("run"));
    let numbers: Vec<_> =
        steps.iter().map(|step| (step["loss"].as_f64().unwrap(), step["grad_norm"].as_f64().unwrap())).collect();
    assert_eq!(numbers.len(), 20, "every step is logged once");
    numbers
}

#[test]
fn one_two_and_four_ranks_train_alike_and_graphs_change_no_bit() {
    let alone = train(1, false);
    assert!(alone[19].0 < alone[0].0 - 0.5, "nothing is learnt: {alone:?}");
    for ranks in [1, 2, 4] {
        let eager = if ranks == 1 { alone.clone() } else { train(ranks, false) };
        // Ranks add the same f32 numbers in another order: the first losses differ by rounding only; then the
        // difference grows.
        for (step, (mine, theirs)) in eager.iter().zip(&alone).enumerate() {
            let difference = (mine.0 / theirs.0 - 1.0).abs();
            let allowed = if step == 0 { 1e-6 } else { 2e-4 };
            assert!(difference <= allowed, "{ranks} ranks, step {step}: {mine:?} is not {theirs:?}");
        }
        // Both are f32 numbers, so equal decimals mean equal bits.
        assert_eq!(train(ranks, true), eager, "graphs change numbers on {ranks} ranks");
    }
}

#[test]
fn eight_ranks_on_fewer_cores_finish() {
    let folder = Folder::new("eight");
    let output = mpirun(8, &folder.0, &["--enable-cuda-graph", "--steps", "5", "--log-dir", &path(&folder, "run")]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
}

#[test]
fn a_captured_iteration_of_two_ranks_passes_the_checker() {
    let folder = Folder::new("check");
    let full = ["--enable-cuda-graph", "--cuda-graph-scope", "full_iteration", "--check-graphs"];
    let output = mpirun(2, &folder.0, &[&full[..], &["--steps", "5", "--log-dir", &path(&folder, "run")]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
}

#[test]
fn a_batch_that_four_ranks_cannot_share_is_refused_once_before_training() {
    let folder = Folder::new("split");
    let output = mpirun(4, &folder.0, &["--global-batch-size", "10", "--log-dir", &path(&folder, "run")]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "one rank speaks for all: {text}");
    for part in
        ["train.global_batch_size = 10", "on 4 ranks", "a multiple of", "= 8", "set train.global_batch_size = 8 or 16"]
    {
        assert!(errors[0].contains(part), "{part:?} is not in {:?}", errors[0]);
    }
    assert!(!folder.0.join("run").exists(), "training began");
}

/// Fails unless the trainer, run alone, refuses `arguments` with one error that holds value, rule and fix.
fn assert_refused(arguments: &[&str], [value, rule, fix]: [&str; 3]) {
    let folder = Folder::new("refused");
    let output = Command::new(TRAINER).current_dir(&folder.0).args(arguments).output().unwrap();
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert!(text.starts_with("error: "), "{arguments:?}: {text}");
    let parts = text.split_once(". Rule: ").and_then(|(what, rest)| Some((what, rest.split_once(". Fix: ")?)));
    let Some((what, (rules, fixes))) = parts else { panic!("{arguments:?} names no rule or no fix: {text}") };
    for (part, of) in [(value, what), (rule, rules), (fix, fixes)] {
        assert!(of.contains(part), "{arguments:?}: {part:?} is not in {of:?}");
    }
    assert!(!folder.0.join("runs").exists(), "{arguments:?}: training began");
}

#[test]
fn a_fault_of_one_rank_ends_all_of_them_with_one_line() {
    let folder = Folder::new("fault");
    // Only rank 0 writes metrics, so only rank 0 meets this, after MPI has started; the others wait for its gradients.
    std::fs::create_dir(folder.0.join("run")).unwrap();
    let mut command = mpirun_command(&folder.0);
    command.args(["-n", "2", TRAINER, "--enable-cuda-graph", "--steps", "100000", "--log-dir", &path(&folder, "run")]);
    break_file(&mut command, &folder.0, &folder.0.join("run/metrics.jsonl"), &Fault::Full);
    let output = command.output().unwrap();
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error on rank")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    assert!(errors[0].contains("rank 0") && errors[0].contains("the metrics in "), "{errors:?}");
}

#[test]
fn a_run_keeps_its_lines_and_a_log_of_each_rank() {
    let folder = Folder::new("logs");
    let quick = ["--enable-cuda-graph", "--steps", "3", "--eval-interval", "0", "--log", "debug"];
    let output = mpirun(2, &folder.0, &[&quick[..], &["--log-dir", &path(&folder, "run")]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let log = std::fs::read_to_string(folder.0.join("run/run.log")).unwrap();
    assert!(log.contains("plan of a rank") && log.contains("done: loss"), "{log}");
    for rank in 0..2 {
        let json = std::fs::read_to_string(folder.0.join(format!("run/rank-{rank}.jsonl"))).unwrap();
        let events: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let captured = events.iter().find(|event| event["fields"]["message"] == "captured").unwrap();
        let spans: Vec<&str> =
            captured["spans"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(spans, ["step", "region"], "rank {rank}: {captured}");
        assert!(captured["span"]["region"].as_str().unwrap().contains(" of layer "), "rank {rank}: {captured}");
    }
}

#[test]
fn wrong_flags_and_values_are_refused_with_value_rule_and_fix() {
    for (arguments, expected) in cases("values") {
        let parts = expected.try_into().unwrap_or_else(|_| panic!("{arguments} needs a value, a rule and a fix"));
        assert_refused(&arguments.split(' ').collect::<Vec<_>>(), parts);
    }
}

#[test]
fn absurd_sizes_are_refused_before_anything_overflows() {
    let huge = i64::MAX.to_string();
    for (flag, key) in [
        ("--layers", "model.layers"),
        ("--hidden", "model.hidden"),
        ("--ffn", "model.ffn"),
        ("--vocab", "model.vocab"),
        ("--seq-length", "model.seq_length"),
        ("--steps", "train.steps"),
        ("--global-batch-size", "train.global_batch_size"),
        ("--micro-batch-size", "train.micro_batch_size"),
        ("--threads", "train.threads"),
        ("--bucket-mib", "parallel.bucket_mib"),
    ] {
        assert_refused(&[flag, &huge], [&format!("{key} = {huge}"), "at most", key]);
    }
    let large = (1 << 30).to_string();
    assert_refused(&["--vocab", &large, "--hidden", &large], ["model.vocab x hidden", "2^44", "smaller"]);
    let sizes = format!("[{huge}, 2]");
    assert_refused(&["--kind", "mlp", "--layer-sizes", &sizes], ["model.layer_sizes", "2^44", "smaller"]);
}

#[test]
fn files_that_are_missing_or_wrong_are_refused_with_path_rule_and_fix() {
    let folder = Folder::new("files");
    let missing = path(&folder, "missing");
    let short = file(&folder, "short.txt", b"ten bytes.");
    let long = file(&folder, "long.txt", &[b'a'; 10_000]);
    let latin = file(&folder, "latin.txt", &[0xe4, 0xf6]);
    let key = file(&folder, "key.toml", b"[model]\nlayerz = 3\n");
    let kind = file(&folder, "kind.toml", b"[train]\nsteps = \"ten\"\n");
    let broken = file(&folder, "broken.toml", b"[model]\nlayers = [\n");
    for (arguments, expected) in [
        (vec!["--data-path", &missing], [missing.as_str(), "files or folders", "check the path"]),
        (vec!["--data-path", &short], ["holds 11 tokens", "model.seq_length + 1 = 65", "give more text"]),
        (vec!["--data-path", &latin], ["latin.txt is not UTF-8", "data are UTF-8 text", "convert it with iconv"]),
        (vec!["--data-path", &long, "--split", "1"], ["data.split = 1", "not trained on", "set data.split = 0.9"]),
        (vec!["--config", &missing], [missing.as_str(), "a TOML file", "check the path"]),
        (vec!["--config", &key], ["`model.layerz`", "a key is one that", "`model.layers`"]),
        (vec!["--config", &kind], ["train.steps = \"ten\"", "a whole number", "set train.steps"]),
        (vec!["--config", &broken], ["broken.toml is not TOML", "a TOML file", "correct that line"]),
    ] {
        assert_refused(&arguments, expected);
    }
}

#[test]
fn a_dry_run_of_a_benchmark_prints_its_plan_and_measures_nothing() {
    let folder = Folder::new("dry-bench");
    let flags = ["bench", "--dry-run", "--device", "host", "--layers", "3", "--steps", "3"];
    let output = Command::new(TRAINER).args(flags).current_dir(&folder.0).output().unwrap();
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("plan of a rank") && !text.contains("tokens_per_s"), "{text}");
    assert!(folder.0.read_dir().unwrap().next().is_none(), "it left files");
}

#[test]
fn a_benchmark_makes_its_own_data_and_does_not_miss_those_of_the_configuration() {
    let folder = Folder::new("bench-data");
    let flags = ["bench", "--device", "host", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq-length", "32"];
    let data = ["--data-path", "nowhere", "--vocab", "64", "--steps", "2"];
    let output = Command::new(TRAINER).args(flags).args(data).current_dir(&folder.0).output().unwrap();
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("tokens_per_s"), "{text}");
}

#[test]
fn a_benchmark_with_graphs_times_eager_steps_too_and_on_the_host_device_no_gpu_is_the_limit() {
    let folder = Folder::new("bench-graphs");
    let flags = "bench --device host --layers 1 --hidden 32 --heads 2 --seq-length 32 --steps 3 --enable-cuda-graph";
    let output = Command::new(TRAINER).args(flags.split(' ')).current_dir(&folder.0).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(result["eager_issue_us"].as_f64().unwrap() > 0.0, "{result}");
    assert_eq!(result["graphs"], "per_layer");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("graphs gain nothing"), "{}", printed(&output));
}
