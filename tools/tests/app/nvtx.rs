//! Ranges for NVIDIA's profilers: a library stands in for the profiler's, and writes down its input.

use std::process::Command;

use crate::harness::{Folder, expect};

/// The library that a profiler injects: it takes the place of NVTX's functions for ranges of a thread.
const PROFILER: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*function)(void);
typedef struct { size_t size; int (*functions)(int module, function ***table, unsigned *entries); } callbacks;

static FILE *file;
static int push(const char *name) { fprintf(file, "push %s\n", name); fflush(file); return 0; }
static int pop(void) { fprintf(file, "pop\n"); fflush(file); return 0; }

int InitializeInjectionNvtx2(const void *(*tables)(unsigned)) {
    const callbacks *table = tables(1);
    function **core;
    unsigned entries;
    file = fopen(getenv("RANGES"), "w");
    if (!file || !table || !table->functions(1, &core, &entries)) return 0;
    *core[9] = (function)push;
    *core[11] = (function)pop;
    return 1;
}
"#;

#[test]
fn steps_and_regions_are_ranges_for_a_profiler() {
    let folder = Folder::new("nvtx");
    std::fs::write(folder.path("profiler.c"), PROFILER).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "profiler.so", "profiler.c"])
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
    // The last step replays graphs: its ranges are the same.
    for step in ["push step 1", "push step 3"] {
        let (_, of_step) = ranges.split_once(&format!("{step}\n")).unwrap_or_else(|| panic!("{ranges}"));
        let of_step = of_step.split("push step").next().unwrap();
        let forward = "push forward of layer 2, microbatch 1";
        for (name, times) in [(forward, 1), ("push backward of layer 0, microbatch 1", 1), ("push optimizer", 1)] {
            assert_eq!(of_step.lines().filter(|line| *line == name).count(), times, "{name}: {of_step}");
        }
    }
}
