//! `--trace`: the events that a viewer of Chrome's traces gets.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::checkpoints::disk_shim::{Fault, break_file};
use crate::harness::{Folder, command, expect, run};

/// An operation, launch or call.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    row: String,
    name: String,
    category: String,
    start: f64,
    end: f64,
}

/// The events of a trace by time of start, each with its row's name.
fn events(path: &Path) -> Vec<Event> {
    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let all = trace["traceEvents"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let row = |event: &Value| {
        let named = all.iter().find(|meta| meta["name"] == "thread_name" && meta["tid"] == event["tid"]);
        text(&named.unwrap_or_else(|| panic!("no row is named for {event}"))["args"]["name"])
    };
    let complete = all.iter().filter(|event| event["ph"] == "X").map(|event| {
        let (start, duration) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        Event {
            row: row(event),
            name: text(&event["name"]),
            category: text(&event["cat"]),
            start,
            end: start + duration,
        }
    });
    complete.collect()
}

fn names<'a>(events: &'a [Event], category: &str) -> Vec<&'a str> {
    events.iter().filter(|event| event.category == category).map(|event| &*event.name).collect()
}

/// The events of a run with these flags, of three steps after the fourth.
fn traced(name: &str, flags: &str) -> Vec<Event> {
    let folder = Folder::new(name);
    // In the run's own folder. It does not exist before.
    let path = folder.path("log/trace.json");
    let flags = format!(
        "--steps 8 --eval-interval 0 --trace {} --trace-after 4 --trace-steps 3 {flags}",
        path.to_str().unwrap()
    );
    expect(&run(1, &folder.0, &flags), 0, &["timeline: ", "trace.json"]);
    events(&path)
}

#[test]
fn a_trace_of_graphs_shows_the_operations_of_a_trace_without_in_the_same_order_under_the_same_names() {
    let eager = traced("trace-eager", "");
    let eager = names(&eager, "operation");
    assert_eq!(eager.len() % 3, 0, "three steps");
    let step = &eager[..eager.len() / 3];
    assert_eq!(step.repeat(3), eager, "steps differ");

    // Four microbatches, each through embedding, block and head and back, and then the update.
    let mut regions: Vec<&str> =
        step.iter().map(|name| name.rsplit_once('/').map_or("", |(region, _)| region)).collect();
    regions.dedup();
    let layers: Vec<&str> = regions.iter().copied().filter(|region| region.contains("layer")).collect();
    let forward = |m: usize| (0..3).map(move |layer| format!("forward of layer {layer}, microbatch {m}"));
    let backward = |m: usize| (0..3).rev().map(move |layer| format!("backward of layer {layer}, microbatch {m}"));
    let expected: Vec<String> = (0..4).flat_map(|m| forward(m).chain(backward(m))).collect();
    assert_eq!(layers, expected);
    for op in ["attention", "attention_backward", "gemm"] {
        let name = |direction: &str| format!("{direction} of layer 1, microbatch 2/{op}");
        assert!(step.contains(&&*name("forward")) || step.contains(&&*name("backward")), "no {op} in {step:?}");
    }
    assert!(step.contains(&"optimizer/adamw"), "{step:?}");

    for flags in ["--enable-cuda-graph", "--enable-cuda-graph --cuda-graph-scope full_iteration"] {
        let trace = traced("trace-graphs", flags);
        assert_eq!(names(&trace, "operation"), eager, "{flags}");
    }
}

#[test]
fn a_launch_is_named_after_its_region_and_lasts_as_long_as_its_operations() {
    let trace = traced("trace-launches", "--enable-cuda-graph");
    let launches: Vec<&Event> = trace.iter().filter(|event| event.category == "launch").collect();
    // A forward and a backward for each of 3 layers and 4 microbatches, and the optimizer, in each of 3 steps.
    assert_eq!(launches.len(), 3 * (2 * 3 * 4 + 1));
    assert!(launches.iter().all(|launch| launch.row == "host"));
    let operations: Vec<&Event> = trace.iter().filter(|event| event.category == "operation").collect();
    for pair in operations.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?} overlap, but the host runs one after the other");
    }
    for launch in launches {
        let within = |event: &&&Event| launch.start <= event.start && event.end <= launch.end;
        let inside: Vec<&&Event> = operations.iter().filter(within).collect();
        assert!(!inside.is_empty() || launch.name == "reduce", "nothing in {launch:?}");
        for operation in inside {
            // Weight gradients have a queue of their own.
            let rows: &[&str] = match operation.name.rsplit('/').next() {
                Some("bias_grad") => &["stream weight gradients"],
                Some("gemm") => &["stream compute", "stream weight gradients"],
                _ => &["stream compute"],
            };
            assert!(rows.contains(&&*operation.row), "{operation:?}");
            assert!(operation.name.starts_with(&format!("{}/", launch.name)), "{operation:?} in {launch:?}");
        }
    }
}

#[test]
fn each_rank_writes_a_trace_of_its_own_with_its_collectives() {
    let folder = Folder::new("trace-ranks");
    let path = folder.path("trace.json");
    let flags = format!("--steps 4 --enable-cuda-graph --trace {} --trace-steps 1", path.to_str().unwrap());
    expect(&run(2, &folder.0, &flags), 0, &["timeline: "]);
    let of = |file: &str| events(&folder.path(file));
    let (first, second) = (of("trace.json"), of("trace-rank1.json"));
    assert_eq!(names(&first, "operation").len(), names(&second, "operation").len());
    for trace in [first, second] {
        let reduced = trace.iter().filter(|event| event.name.ends_with("/all_reduce")).count();
        assert!(reduced > 0, "no all-reduce among {:?}", names(&trace, "operation"));
    }
    let text = std::fs::read_to_string(folder.path("trace-rank1.json")).unwrap();
    assert!(text.contains("\"rank 1, host, 1 thread a rank\""), "{}", &text[..300]);
}

#[test]
fn a_trace_that_cannot_be_is_refused_before_training_and_one_that_comes_too_late_is_told_of() {
    let folder = Folder::new("trace-refused");
    expect(&run(1, &folder.0, "--trace /nowhere/trace.json"), 2, &["logging.trace = /nowhere/trace.json", "Fix: "]);
    expect(&run(1, &folder.0, "--trace x.json --trace-steps 0"), 2, &["logging.trace_steps = 0", "at least 1"]);
    let path = folder.path("late.json");
    let late = format!("--steps 3 --trace {} --trace-after 5", path.to_str().unwrap());
    expect(&run(1, &folder.0, &late), 0, &["no timeline: the run ended 3 steps before its first"]);
    // Steps count from the run's first, not from the first of this start.
    let late = format!("--steps 7 --trace {} --trace-after 5 --trace-steps 1", path.to_str().unwrap());
    expect(&run(1, &folder.0, &late), 0, &["at step 3, ", "timeline: "]);
    // A run that ends within the timeline writes the steps that it has.
    let folder = Folder::new("trace-cut");
    let path = folder.path("cut.json");
    let cut = format!("--steps 3 --trace {} --trace-after 2 --trace-steps 9", path.to_str().unwrap());
    expect(&run(1, &folder.0, &cut), 0, &["timeline: "]);
    assert!(names(&events(&path), "operation").contains(&"optimizer/adamw"));
}

#[test]
fn a_run_that_never_comes_to_write_its_trace_and_report_leaves_those_that_are_there() {
    let folder = Folder::new("trace-kept");
    std::fs::create_dir_all(folder.path("log")).unwrap();
    let path = folder.path("kept.json");
    std::fs::write(&path, "of an earlier run").unwrap();
    for flag in ["--trace", "--graph-report"] {
        // The disk has no space for the resolved configuration, so the run fails at its first step.
        let mut command = command(1, &folder.0, &format!("{flag} {}", path.display()));
        break_file(&mut command, &folder.0, &folder.path("log/config.toml"), &Fault::Full);
        expect(&command.output().unwrap(), 3, &["config.toml in"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of an earlier run", "{flag}");
    }
}

#[test]
fn a_drawing_of_a_timeline_without_matplotlib_is_refused_in_one_line() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let python = std::env::var_os("PARITY_PYTHON").map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
    // Without the packages installed beside Python.
    let mut command = Command::new(&python);
    let output =
        command.args(["-I", "-S"]).arg(root.join("bench/timeline.py")).args(["t.json", "--svg", "t.svg"]).output();
    let output = output.unwrap_or_else(|e| panic!("{} cannot be started ({e}): run `./x test`", python.display()));
    expect(&output, 2, &["error: --svg needs matplotlib. Fix: "]);
    assert_eq!(crate::harness::printed(&output).lines().count(), 1);
}
