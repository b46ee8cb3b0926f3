//! Graphs as drawings, and the driver's memory for them.

use device::ops::{Add, Fill};
use device::{DType, Graph};

use crate::common::{Bench, bench, checked_bench, cuda_bench, on_gpu};

/// `sum = 2 + 3` on two streams.
fn two_streams(t: &Bench) -> Graph {
    let [a, b, sum] = [0; 3].map(|_| t.empty(&[8], DType::F32));
    let (side, fork, join) = (t.device.stream("side"), t.device.event(), t.device.event());
    t.device.set_scope("a \"quoted\" region");
    t.stream.begin_capture().unwrap();
    t.run(Fill { output: a, value: 2.0 });
    t.stream.record(&fork).unwrap();
    side.wait(&fork).unwrap();
    side.submit(Fill { output: b, value: 3.0 }).unwrap();
    side.record(&join).unwrap();
    t.stream.wait(&join).unwrap();
    t.run(Add { a, b, output: sum });
    t.stream.end_capture("two streams").unwrap()
}

#[test]
fn the_host_s_drawing_has_each_operation_with_its_region_its_stream_and_what_it_waits_for() {
    let graph = two_streams(&bench(1));
    let expected = r#"digraph "two streams" {
  label="two streams";
  rankdir=LR;
  node [shape=box];
  n0 [label="a \"quoted\" region/fill\nstream ops"];
  n1 [label="a \"quoted\" region/fill\nstream side"];
  n0 -> n1;
  n2 [label="a \"quoted\" region/add\nstream ops"];
  n1 -> n2;
  n0 -> n2;
}
"#;
    let (mut lines, dot) = (expected.lines().collect::<Vec<_>>(), graph.dot().unwrap());
    let mut drawn: Vec<&str> = dot.lines().collect();
    // The order of edges is free.
    lines.sort_unstable();
    drawn.sort_unstable();
    assert_eq!(drawn, lines, "{dot}");
}

#[test]
fn a_drawing_is_one_digraph_with_the_graph_s_name_on_every_device() {
    let t = checked_bench();
    let dot = two_streams(&t).dot().unwrap();
    assert!(dot.lines().next().unwrap().contains("two streams"), "{dot}");
    assert_eq!(dot.lines().filter(|line| line.trim_start().starts_with("digraph")).count(), 1, "{dot}");
    let kernel = if on_gpu() { "fill_f32" } else { "region/fill" };
    assert!(dot.contains(kernel) && dot.contains("->"), "{dot}");
    assert_eq!(dot.matches('{').count(), dot.matches('}').count(), "{dot}");
}

#[test]
fn the_host_has_no_memory_of_a_driver() {
    assert_eq!(two_streams(&bench(1)).driver_bytes(), None);
}

#[test]
#[ignore = "needs a GPU"]
fn on_a_gpu_the_driver_takes_memory_for_many_graphs() {
    let t = cuda_bench();
    let output = t.empty(&[8], DType::F32);
    t.run(Fill { output, value: 1.0 });
    let graph = |name: usize| {
        t.stream.begin_capture().unwrap();
        (0..500).for_each(|value| t.run(Fill { output, value: value as f32 }));
        t.stream.end_capture(&format!("graph {name}")).unwrap()
    };
    let graphs: Vec<Graph> = (0..40).map(graph).collect();
    let bytes: i64 = graphs.iter().map(|graph| graph.driver_bytes().unwrap()).sum();
    println!("{bytes} bytes for 40 graphs of 500 nodes: {} a node", bytes / (40 * 500));
    assert!(bytes > 0, "{bytes}");
}
