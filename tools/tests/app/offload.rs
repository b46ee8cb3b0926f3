//! Tensors on the host, as users put them there.

use crate::harness::{Folder, bits, expect, resume_at, run, start, steps_done, wait_for};

const RUN: &str = "--steps 8 --save-interval 4 --bf16 --layers 3 --enable-cuda-graph --use-distributed-optimizer";
const AWAY: &str = "--offload-activation-layers 9 --offload-optimizer --offload-optimizer-fraction 0.6";

#[test]
fn a_run_has_the_same_bits_and_its_checkpoints_serve_both_ways() {
    let (plain, away) = (Folder::new("plain"), Folder::new("away"));
    expect(&run(2, &plain.0, RUN), 0, &[]);
    // Steps 4, 6 and 8: the state that is put aside lies on the host too.
    let parts = [" on the host", "verified: 3 steps with the same bits with graphs and without ("];
    expect(&run(2, &away.0, &format!("{RUN} {AWAY} --verify-cuda-graph 2")), 0, &parts);
    assert_eq!(bits(&away.0, 8), bits(&plain.0, 8));
    let resumed = resume_at(&plain, 4, 2, &format!("{RUN} {AWAY} --recompute-granularity full"));
    assert_eq!(bits(&resumed.0, 8), bits(&plain.0, 8));
}

#[test]
fn megatron_s_flags_do_the_same_and_what_has_no_effect_is_told() {
    let folder = Folder::new("flags");
    let megatron = "--fine-grained-activation-offloading --optimizer-cpu-offload --optimizer-offload-fraction 1.0";
    let parts = ["activations", " on the host", "optimizer", "notice: "];
    expect(&run(1, &folder.0, &format!("--dry-run --layers 3 {megatron}")), 0, &parts);
    // On the host device nothing is short.
    expect(&run(1, &folder.0, "--dry-run --optimizer-cpu-offload"), 0, &["notice: offload.optimizer moves nothing"]);
}

/// Bytes of a process's memory.
fn resident(process: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib << 10)
}

#[test]
fn memory_does_not_grow_over_a_thousand_steps_with_tensors_on_the_host() {
    let folder = Folder::new("flat");
    let sizes = "--layers 2 --hidden-size 16 --num-attention-heads 1 --seq-length 16 --micro-batch-size 1 \
                 --global-batch-size 1 --eval-interval 0 --threads 1 --enable-cuda-graph";
    let mut run = start(1, &folder.0, &format!("{sizes} {AWAY}"));
    let after = |steps: usize| {
        wait_for("the steps end", || (steps_done(&folder.0) >= steps).then_some(()));
        resident(run.id()).unwrap()
    };
    let (early, late) = (after(100), after(1000));
    run.kill().unwrap();
    // A log that is read along, and the allocator's own.
    assert!(late <= early + (1 << 20), "{early} bytes after 100 steps, {late} after 1,000");
}
