//! A run sends its rows to Weights & Biases by their own Python module, here one that writes down its input.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Folder, command, expect, metrics, printed};

/// A module `wandb`. It appends its calls to `calls.jsonl` beside it, and ends at the step `END`.
const MODULE: &str = r#"
import json, os, pathlib, sys

def note(name, value):
    with open(pathlib.Path(__file__).with_name("calls.jsonl"), "a") as file:
        print(json.dumps([name, value]), file=file)

class Run:
    def log(self, row, step):
        note("log", [step, row])
        if step == END:
            sys.exit(7)

    def finish(self, exit_code):
        note("finish", exit_code)

def init(**arguments):
    note("init", {**arguments, "mode": os.environ.get("WANDB_MODE")})
    print("wandb: a line that nobody needs")
    return Run()
"#;

/// Trains with that module, and returns the output, and the module's calls.
fn train(folder: &Folder, end: &str, mode: &str, flags: &str) -> (String, Vec<Value>) {
    let module = folder.path("module");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::write(module.join("wandb.py"), MODULE.replace("END", end)).unwrap();
    let mut command = command(1, &folder.0, &format!("--wandb {flags}"));
    let output = command.env("PYTHONPATH", &module).env("WANDB_MODE", mode).output().unwrap();
    expect(&output, 0, &["done: loss"]);
    let calls = std::fs::read_to_string(module.join("calls.jsonl")).unwrap_or_default();
    (printed(&output), calls.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn losses(calls: &[Value]) -> Vec<(u64, Value)> {
    let rows = calls.iter().filter(|call| call[0] == "log").map(|call| &call[1]);
    rows.map(|row| (row[0].as_u64().unwrap(), row[1]["train/loss"].clone())).collect()
}

fn expected(folder: &Path, steps: impl Iterator<Item = u64>) -> Vec<(u64, Value)> {
    let metrics = metrics(folder);
    steps.map(|step| (step, metrics[step as usize - 1][0].clone())).collect()
}

#[test]
fn every_step_is_sent_with_its_number_and_a_resumed_run_is_the_same_run_there() {
    let folder = Folder::new("wandb-live");
    let (text, calls) = train(&folder, "None", "", "--steps 4");
    assert_eq!(losses(&calls), expected(&folder.0, 1..5));
    assert_eq!(calls.last().unwrap(), &serde_json::json!(["finish", 0]));
    let begin = &calls[0][1];
    assert_eq!(
        (&calls[0][0], &begin["resume"], &begin["project"]),
        (&"init".into(), &"allow".into(), &"trainer".into())
    );
    assert_eq!(begin["config"]["model"]["layers"], 1);
    assert!(begin["name"].as_str().unwrap().starts_with("gpt-1x32-") && begin["id"].as_str().unwrap().len() == 16);
    assert!(!text.contains("nobody needs"), "{text}");
    let log = std::fs::read_to_string(folder.path("log/wandb-client.log")).unwrap();
    assert!(log.contains("nobody needs"), "{log}");
    let (_, all) = train(&folder, "None", "online", "--steps 6");
    let (first, second) = all.split_at(calls.len());
    assert_eq!((first, losses(second)), (&calls[..], expected(&folder.0, 5..7)));
    assert_eq!(second[0][1]["id"], begin["id"]);
}

#[test]
fn a_client_that_ends_costs_the_run_a_notice_and_no_row_of_its_files() {
    let folder = Folder::new("wandb-dies");
    let (text, calls) = train(&folder, "2", "", "--steps 300 --eval-interval 0");
    assert_eq!((losses(&calls).len(), calls.last().unwrap()[0].as_str()), (2, Some("log")));
    let notice = "notice: the client of Weights & Biases ";
    assert!(text.matches(notice).count() == 1 && text.contains("exit status: 7"), "{text}");
    let rows = std::fs::read_to_string(folder.path("log/wandb-history.jsonl")).unwrap();
    assert_eq!((rows.lines().count(), metrics(&folder.0).len()), (300, 300));
}

#[test]
fn offline_the_module_itself_writes_the_run_into_its_folder() {
    let folder = Folder::new("wandb-offline");
    let (_, calls) = train(&folder, "None", "offline", "--steps 2");
    assert_eq!(losses(&calls), expected(&folder.0, 1..3));
    // The module knows its mode from the environment, and where to write from here.
    assert_eq!(calls[0][1]["dir"], folder.path("log").display().to_string());
    assert_eq!(calls[0][1]["mode"], "offline");
}

#[test]
fn nothing_is_sent_where_the_environment_says_so_or_python_has_no_such_module() {
    let folder = Folder::new("wandb-off");
    assert!(train(&folder, "None", "disabled", "--steps 2").1.is_empty());
    assert!(folder.path("log/wandb-history.jsonl").exists() && !folder.path("log/wandb-client.log").exists());
    let folder = Folder::new("wandb-missing");
    let hidden = folder.path("hidden");
    std::fs::create_dir_all(&hidden).unwrap();
    std::fs::write(hidden.join("wandb.py"), "raise ImportError('no module')").unwrap();
    let mut command = command(1, &folder.0, "--wandb --steps 2");
    let output = command.env("PYTHONPATH", &hidden).output().unwrap();
    expect(&output, 0, &["done: loss"]);
    assert!(!printed(&output).contains("notice: the client"), "{}", printed(&output));
    assert_eq!(std::fs::read_to_string(folder.path("log/wandb-history.jsonl")).unwrap().lines().count(), 2);
}
