//! `--verify-cuda-graph` and `--sync-debug` as users run them: in a sound run they find nothing and change no bit.

use crate::harness::{Folder, bits, expect, run};

const GRAPHS: &str = "--steps 8 --enable-cuda-graph";

#[test]
fn verified_steps_are_counted_and_change_no_bit_on_one_rank_and_on_several() {
    for (ranks, layout, line) in [
        (1, "", "verified: 3 steps with the same bits with graphs and without ("),
        (
            2,
            "--pipeline-model-parallel-size 2 --layers 2 --cuda-graph-scope full_iteration --verify-cuda-graph-memory shared",
            "verified: 3 steps with the same bits",
        ),
        (2, "--tensor-model-parallel-size 2", "verified: 3 steps with the same bits"),
        (2, "--cuda-graph-scope per_chunk --use-distributed-optimizer", "verified: 3 steps with the same bits"),
    ] {
        let (plain, verified) = (Folder::new("plain"), Folder::new("verified"));
        let without = layout.replace("--verify-cuda-graph-memory shared", "");
        expect(&run(ranks, &plain.0, &format!("{GRAPHS} {without}")), 0, &[]);
        // Steps 4, 6 and 8: the first one is eager, the second one captures.
        let output = run(ranks, &verified.0, &format!("{GRAPHS} {layout} --verify-cuda-graph 2 --sync-debug error"));
        expect(&output, 0, &[line]);
        assert_eq!(bits(&verified.0, 8), bits(&plain.0, 8), "{layout}");
    }
}

#[test]
fn without_graphs_a_verification_has_no_effect_and_the_user_is_told() {
    let folder = Folder::new("no-graphs");
    let output = run(1, &folder.0, "--steps 3 --verify-cuda-graph 1 --sync-debug warn");
    expect(&output, 0, &["notice: cuda_graph.verify = 1 has no effect: without cuda_graph.enable"]);
}
