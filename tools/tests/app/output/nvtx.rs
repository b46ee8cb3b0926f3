//! Ranges for NVIDIA's profilers: a library stands in for the profiler's, and writes down its input.

use std::process::Command;

use crate::harness::{Folder, expect};

/// The library that a profiler injects: it takes the place of NVTX's functions for ranges of a thread.
const PROFILER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../device/tests/nvtx_profiler.c");

#[test]
fn steps_and_regions_are_ranges_for_a_profiler() {
    let folder = Folder::new("nvtx");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "profiler.so", PROFILER])
        .current_dir(&folder.0)
        .status()
        .unwrap();
    assert!(compiled.success());
    let flags = "--device host --layers 2 --hidden 32 --heads 2 --seq-length 32 --threads 1 --steps 3 --eval-interval 0 \
                 --micro-batch-size 2 --global-batch-size 4 --enable-cuda-graph";
    let output = Command::new(env!("CARGO_BIN_EXE_trainer"))
        .args(flags.split_whitespace())
        .env("NVTX_INJECTION64_PATH", folder.path("profiler.so"))
        .env("RANGES", folder.path("ranges.txt"))
        .current_dir(&folder.0)
        .output()
        .unwrap();
    expect(&output, 0, &["done"]);
    let ranges = std::fs::read_to_string(folder.path("ranges.txt")).unwrap();
    let depth = ranges.lines().try_fold(0, |depth, line| match line {
        "pop" => (depth > 0).then(|| depth - 1),
        _ => Some(depth + 1),
    });
    assert_eq!(depth, Some(0), "{ranges}");
    // The last step replays graphs: it has the ranges of the same regions.
    for step in ["push step 1", "push step 3"] {
        let (_, of_step) = ranges.split_once(&format!("{step}\n")).unwrap_or_else(|| panic!("{ranges}"));
        let of_step = of_step.split("push step").next().unwrap();
        let forward = "push forward of layer 2, microbatch 1";
        for (name, times) in [(forward, 1), ("push backward of layer 0, microbatch 1", 1), ("push optimizer", 1)] {
            assert_eq!(of_step.lines().filter(|line| *line == name).count(), times, "{name}: {of_step}");
        }
    }
    let times = |name: &str| ranges.lines().filter(|line| *line == name).count();
    let graph = "forward of layer 1, microbatch 0";
    assert_eq!(times(&format!("push capture {graph}")), 1, "{ranges}");
    // Two microbatches in two steps: that of the capture and one more.
    assert_eq!(times(&format!("push launch {graph}")), 4, "{ranges}");
    let (start, _) = ranges.split_once("push step 1\n").unwrap();
    assert!(start.starts_with("push record Train\n"), "the list is made before the first step: {start}");
}
