//! Runs with parameters that have a learning rate of their own.

use crate::harness::{Folder, bits, expect, losses, resume_at, run};

const GROUPS: &str = "--param-groups wte.*=0.1 h.0.*=0.5,0.0 *.bias=2";

/// Eight steps with a checkpoint after every fourth.
fn flags(more: &str) -> String {
    format!("--layers 2 --steps 8 --save-interval 4 {more}")
}

#[test]
fn a_run_with_groups_continues_to_the_same_bits_and_in_any_layout() {
    let (alone, plain) = (Folder::new("groups"), Folder::new("groups-none"));
    let shown = ["wte.* at 0.1 x lr (1 parameter)", "h.0.* at 0.5 x lr and weight decay 0 (", "*.bias at 2 x lr ("];
    expect(&run(1, &alone.0, &flags(GROUPS)), 0, &[&shown[..], &["done: loss"]].concat());
    expect(&run(1, &plain.0, &flags("")), 0, &["done: loss"]);
    assert_ne!(bits(&alone.0, 8), bits(&plain.0, 8));
    for (ranks, layout) in [
        (1, "--enable-cuda-graph"),
        (2, "--use-distributed-optimizer --enable-cuda-graph"),
        (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    ] {
        let folder = resume_at(&alone, 4, ranks, &flags(&format!("{GROUPS} {layout}")));
        if ranks == 1 {
            assert_eq!(bits(&folder.0, 8), bits(&alone.0, 8));
        }
        let (ours, theirs) = (losses(&folder), losses(&alone));
        assert_eq!(ours.len(), 8);
        assert!(ours.iter().zip(&theirs).all(|(a, b)| (a / b - 1.0).abs() < 1e-5), "{layout}: {ours:?} and {theirs:?}");
    }
}
