//! `kill -9` at any moment costs no more than the steps since the last checkpoint, and never a bit.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use launch::watch::activity::Activity;
use trainer::checkpoint::verify;

use crate::harness::{
    Folder, assert_same, checkpoint, command, expect, named, output_of, rank_ids, run, saved, signal, start, wait_for,
};

const KILLS: usize = 5;
const FLAGS: &str = "--steps 60 --save-interval 2 --checkpoint-keep 2";
/// A run that goes on may do so with any.
/// In the first two activations and state are on their way to the host and back when the run is killed.
const GRAPHS: [&str; 3] = [
    "--offload-activation-layers 9 --offload-optimizer --offload-optimizer-fraction 0.6",
    "--enable-cuda-graph --offload-activation-layers 9 --offload-optimizer --offload-optimizer-fraction 1",
    "--enable-cuda-graph --cuda-graph-scope full_iteration",
];

/// Numbers in [0, 1) from `KILL_SEED`, or from the clock; the seed is printed.
fn random() -> impl FnMut() -> f64 {
    let seed = std::env::var("KILL_SEED").ok().and_then(|seed| seed.parse().ok());
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let mut state: u64 = seed.unwrap_or_else(clock) | 1;
    eprintln!("KILL_SEED={state}");
    move || {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[test]
fn a_run_killed_five_times_at_random_ends_with_the_bits_of_one_that_was_not() {
    let unbroken = Folder::new("kill-unbroken");
    let begun = Instant::now();
    expect(&run(1, &unbroken.0, FLAGS), 0, &[]);
    let whole = begun.elapsed();
    let mut random = random();
    let mut folder = Folder::new("killed");
    let mut kills = 0;
    while kills < KILLS {
        let flags = format!("{FLAGS} {}", GRAPHS[kills % 3]);
        let mut child = command(1, &folder.0, &flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(random() * whole.as_secs_f64() / 3.0));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        kills += usize::from(status.signal() == Some(9));
        for step in named(&folder.0) {
            verify(&checkpoint(&folder.0, step), &Activity::default())
                .unwrap_or_else(|damage| panic!("step {step}: {damage}"));
        }
        if status.success() {
            assert_unbroken(&folder, &unbroken);
            folder = Folder::new("killed"); // it was faster than the kills: once more
        }
    }
    expect(&run(1, &folder.0, FLAGS), 0, &[]);
    assert_unbroken(&folder, &unbroken);
}

fn assert_unbroken(folder: &Folder, unbroken: &Folder) {
    // The save of step 60 is the last that removes older checkpoints. A kill right after it leaves step 56 too.
    let saved = saved(&folder.0);
    assert!(saved == [58, 60] || saved == [56, 58, 60], "nothing unfinished stays: {saved:?}");
    assert_same(folder, unbroken, "killed");
}

/// Two ranks that exchange rows of experts for most of a step.
const DIVIDED_EXPERTS: &str = "--swiglu --disable-bias-linear --norm rmsnorm --num-experts 4 --moe-router-topk 2 \
                               --moe-ffn-hidden-size 24 --expert-model-parallel-size 2 \
                               --data-parallel-sharding-strategy optim_grads_params";

#[test]
fn a_killed_rank_ends_the_others_and_all_go_on_with_the_same_bits() {
    let ring = "--attention-dropout 0 --context-parallel-size 2 --context-parallel-transfers ring";
    for (ranks, model, graphs) in [(2, ring, GRAPHS[2]), (4, "", GRAPHS[1]), (2, DIVIDED_EXPERTS, GRAPHS[2])] {
        let (folder, unbroken) = (Folder::new("kill-rank"), Folder::new("kill-rank-unbroken"));
        let child = start(ranks, &folder.0, &format!("--save-interval 2 --checkpoint-keep 2 {model} {graphs}"));
        wait_for("no checkpoint is saved", || (!named(&folder.0).is_empty()).then_some(()));
        signal(rank_ids(&child)[1], "KILL");
        assert!(!output_of(child).status.success());
        let last = named(&folder.0).pop().unwrap();
        let flags = format!("--steps {} {model}", last + 3);
        expect(&run(ranks, &folder.0, &format!("{flags} {graphs}")), 0, &[&format!("at step {last}, ")]);
        expect(&run(ranks, &unbroken.0, &flags), 0, &[]);
        assert_same(&folder, &unbroken, &format!("{ranks} ranks, `{model} {graphs}`"));
    }
}
