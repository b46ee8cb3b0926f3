//! A run's reports about its graphs: the `graphs:` line and `--graph-report`.

use serde_json::Value;

use crate::harness::{Folder, expect, printed, run};

/// The `graphs:` line of a run with these flags, and its report of rank 0.
fn line_and_report(name: &str, flags: &str) -> (String, Value) {
    let folder = Folder::new(name);
    let path = folder.path("graphs.json");
    let output = run(1, &folder.0, &format!("--steps 3 --enable-cuda-graph --graph-report {} {flags}", path.display()));
    expect(&output, 0, &[]);
    let text = printed(&output);
    let line = text.lines().find(|line| line.starts_with("graphs: ")).unwrap_or_else(|| panic!("{text}"));
    let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    (line.into(), report["ranks"][0].clone())
}

/// The recorded step of a mode: its operations, those that are not captured, and the nodes that its graphs launch.
fn operations(report: &Value, mode: &str) -> (u64, u64, u64) {
    let step = report["steps"].as_array().unwrap().iter().find(|step| step["mode"] == mode).unwrap();
    let graphs = step["order"].as_array().unwrap().iter().filter_map(|launch| launch["graph"].as_u64());
    let nodes = graphs.map(|graph| report["graphs"][graph as usize]["nodes"].as_array().unwrap().len() as u64).sum();
    (step["operations"].as_u64().unwrap(), step["eager_operations"].as_u64().unwrap(), nodes)
}

#[test]
fn the_graphs_line_and_the_report_say_which_share_of_a_step_is_not_captured_and_why() {
    for (flags, reason) in [
        ("", "inputs (it reads another address for each microbatch)"),
        ("--cuda-graph-modules attention", "(the head is not among the chosen modules)"),
        ("--cuda-graph-capture-optimizer=false", "optimizer (capture_optimizer is off)"),
    ] {
        let (line, report) = line_and_report("graph-share", flags);
        let (all, eager, nodes) = operations(&report, "Train");
        assert!(eager > 0 && eager + nodes == all, "{flags}: {eager} and {nodes} of {all}");
        let share =
            format!("; eager: {:.1} % of Train ({eager} of {all} operations)", 100.0 * eager as f64 / all as f64);
        assert!(line.contains(&share) && line.contains(reason), "{flags}: {line}");
    }
}

#[test]
fn the_drawings_beside_the_report_are_those_of_its_graphs() {
    let folder = Folder::new("graph-drawings");
    let flags = format!("--steps 3 --enable-cuda-graph --graph-report {}", folder.path("graphs.json").display());
    expect(&run(1, &folder.0, &flags), 0, &[]);
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path("graphs.json")).unwrap()).unwrap();
    let dot = std::fs::read_to_string(folder.path("graphs.dot")).unwrap();
    let drawn: Vec<&str> =
        dot.lines().filter_map(|line| line.strip_prefix("digraph \"")?.strip_suffix("\" {")).collect();
    let graphs = report["ranks"][0]["graphs"].as_array().unwrap();
    assert_eq!(drawn, graphs.iter().map(|graph| graph["name"].as_str().unwrap()).collect::<Vec<_>>());
    assert_eq!(report["ranks"][0]["driver_bytes"], Value::Null, "not measured on the host");
}

#[test]
fn the_graphs_line_of_a_whole_iteration_names_nothing_that_is_not_captured() {
    let (line, report) = line_and_report("graph-whole", "--cuda-graph-scope full_iteration");
    let (all, eager, nodes) = operations(&report, "Train");
    assert_eq!((eager, nodes), (0, all));
    assert!(!line.contains("eager"), "{line}");
}

#[test]
fn a_chunk_has_a_graph_for_each_direction_whatever_the_number_of_layers_and_the_report_names_them() {
    for (blocks, flags) in [(1, ""), (5, "--layers 5")] {
        let (line, report) = line_and_report("graph-chunk", &format!("--cuda-graph-scope per_chunk {flags}"));
        let (all, eager, nodes) = operations(&report, "Train");
        assert!(eager > 0 && eager + nodes == all, "{eager} and {nodes} of {all}");
        let graphs = report["graphs"].as_array().unwrap();
        let names: Vec<&str> = graphs.iter().map(|graph| graph["name"].as_str().unwrap()).collect();
        // The first microbatch overwrites gradients, and the head belongs to the backward.
        let forward = format!("forward of layers 0 to {blocks}, microbatch 0");
        let [first, second] = [0, 1].map(|m| format!("backward of layers 0 to {}, microbatch {m}", blocks + 1));
        assert_eq!(names, [forward.as_str(), &first, &second, "optimizer"], "{line}");
        let nodes = graphs[0]["nodes"].as_array().unwrap();
        assert!(nodes.iter().any(|node| node == "forward of layer 1, microbatch 0/gemm"), "{nodes:?}");
        assert!(line.starts_with("graphs: 4 graphs, ") && line.contains("inputs (it reads another address"), "{line}");
    }
}
