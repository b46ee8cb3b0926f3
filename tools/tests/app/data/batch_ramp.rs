//! A batch that grows while the run begins: the same bits with every kind of graphs, before and after a stop.

use crate::harness::{Folder, assert_same, expect, losses, metrics, resume_at, run};

/// Chunks with groups of microbatches that are larger than the stages: of 5 microbatches, 4 are in flight on the first
/// chunk of the last stage and 2 on its second; of 6, 4 and 1.
const LARGE_GROUPS: &str = "--layers 4 --pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2 \
    --microbatch-group-size-per-virtual-pipeline-stage 3 --steps 6 --micro-batch-size 1 --global-batch-size 6 \
    --rampup-batch-size [5,1,20] --eval-interval 0";

/// Batches of 2, 4, 6 and then 8 samples, 12 samples of each but the last: 6 steps of 2, 3 of 4, 2 of 6, 1 of 8.
const RAMP: &str = "--steps 12 --save-interval 7 --micro-batch-size 1 --rampup-batch-size [2,2,36]";

const GRAPHS: &[&str] = &[
    "--enable-cuda-graph --check-graphs",
    "--enable-cuda-graph --cuda-graph-use-single-mempool",
    "--enable-cuda-graph --cuda-graph-scope full_iteration --check-graphs",
    "--cuda-graph-impl local --cuda-graph-granularity chunk --cuda-graph-dynamic-microbatches --check-graphs",
];

#[test]
fn a_growing_batch_has_the_same_bits_with_every_kind_of_graphs_and_after_a_stop() {
    let plain = Folder::new("ramp");
    let first = run(1, &plain.0, RAMP);
    expect(&first, 0, &["grows from 2 by 2 at a time over 36 samples", "done: loss"]);
    for graphs in GRAPHS {
        let whole = Folder::new("ramp-graphs");
        expect(&run(1, &whole.0, &format!("{RAMP} {graphs}")), 0, &["done: loss"]);
        assert_same(&whole, &plain, graphs);
        let resumed = resume_at(&plain, 7, 1, &format!("{RAMP} {graphs}"));
        assert_same(&resumed, &plain, graphs);
    }
}

#[test]
fn two_ranks_and_a_pipeline_of_two_share_a_growing_batch() {
    for (flags, microbatches) in [("", 4), ("--pipeline-model-parallel-size 2 --layers 2", 8)] {
        let reference = Folder::new("ramp-reference");
        let layers = if flags.contains("--layers") { "--layers 2" } else { "" };
        expect(&run(1, &reference.0, &format!("{RAMP} {layers}")), 0, &[]);
        for graphs in [GRAPHS[0], GRAPHS[2]] {
            let shared = Folder::new("ramp-shared");
            let said = format!("x {microbatches} microbatches x 1");
            expect(&run(2, &shared.0, &format!("{RAMP} {flags} {graphs}")), 0, &[&said]);
            for (a, b) in losses(&shared).iter().zip(losses(&reference)) {
                assert!((a / b - 1.0).abs() < 1e-5, "{a} on two ranks, {b} on one: {flags} {graphs}");
            }
        }
    }
}

#[test]
fn a_ramp_whose_smaller_step_has_more_in_flight_is_planned_for() {
    let mut all = Vec::new();
    for graphs in ["", GRAPHS[0], GRAPHS[2], GRAPHS[3]] {
        let folder = Folder::new("ramp-groups");
        expect(&run(2, &folder.0, &format!("{LARGE_GROUPS} {graphs}")), 0, &["done: loss"]);
        all.push(metrics(&folder.0));
    }
    assert!(all.iter().all(|one| *one == all[0]), "graphs change numbers");
}
