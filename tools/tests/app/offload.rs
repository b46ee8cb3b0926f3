//! Tensors on the host, as users put them there.

use crate::harness::{Folder, bits, copy_run, expect, run};

const RUN: &str = "--steps 8 --save-interval 4 --bf16 --layers 3 --enable-cuda-graph --use-distributed-optimizer";
const AWAY: &str = "--offload-activation-layers 9 --offload-optimizer";

#[test]
fn a_run_has_the_same_bits_and_its_checkpoints_serve_both_ways() {
    let (plain, away, resumed) = (Folder::new("plain"), Folder::new("away"), Folder::new("resumed"));
    expect(&run(2, &plain.0, RUN), 0, &[]);
    // Steps 4, 6 and 8: the state that is put aside lies on the host too.
    let parts = [" on the host", "verified: 3 steps with the same bits with graphs and without ("];
    expect(&run(2, &away.0, &format!("{RUN} {AWAY} --verify-cuda-graph 2")), 0, &parts);
    assert_eq!(bits(&away.0, 8), bits(&plain.0, 8));
    copy_run(&plain.0, &resumed.0, 4);
    expect(&run(2, &resumed.0, &format!("{RUN} {AWAY} --recompute-granularity full")), 0, &[]);
    assert_eq!(bits(&resumed.0, 8), bits(&plain.0, 8));
}

#[test]
fn megatron_s_flags_do_the_same_and_what_cannot_be_is_refused_or_told() {
    let folder = Folder::new("flags");
    let megatron = "--fine-grained-activation-offloading --optimizer-cpu-offload --optimizer-offload-fraction 1.0";
    let parts = ["activations", " on the host", "optimizer", "notice: "];
    expect(&run(1, &folder.0, &format!("--dry-run --layers 3 {megatron}")), 0, &parts);
    for (flags, parts) in [
        (
            "--offload-optimizer --optimizer muon",
            ["offload.optimizer = true with optimizer.kind = \"muon\"", "in parts"],
        ),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", ["--optimizer-offload-fraction", "or none"]),
    ] {
        expect(&run(1, &folder.0, &format!("--dry-run {flags}")), 2, &parts);
    }
}
