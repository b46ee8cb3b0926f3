//! Runs with 8-bit products, as users start them: their output, and checkpoints that go on to the same bits, in another
//! layout, and in 16 bits and back.

use serde_json::Value;

use crate::harness::{Folder, assert_same, expect, metrics, resume_at, run, saved};

/// Sizes that are multiples of 16 for two ranks that share layers too.
const SIZES: &str = "--bf16 --heads 4 --hidden 64 --seq-length 16 --micro-batch-size 2";
const TENSORWISE: &str = "--fp8-format e4m3 --fp8-recipe tensorwise";
const DELAYED: &str = "--fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 3";
const ROWWISE: &str = "--fp8-format hybrid --fp8-recipe rowwise --fp8-amax-history-len 3";
const BLOCKWISE: &str = "--fp8-format e4m3 --fp8-recipe blockwise";

fn flags(rest: &str) -> String {
    format!("--steps 8 --save-interval 4 {SIZES} {rest}")
}

fn loss(lines: &[Value], step: usize) -> f64 {
    lines[step][0].as_f64().unwrap()
}

#[test]
fn a_run_resumes_to_the_same_bits_with_each_recipe() {
    let graphs = "--enable-cuda-graph";
    for (ranks, kind) in [
        (1, TENSORWISE.to_string()),
        (1, "--fp8-format hybrid".to_string()),
        (1, ROWWISE.to_string()),
        (2, format!("{BLOCKWISE} --tensor-model-parallel-size 2 --sequence-parallel")),
        (1, DELAYED.to_string()),
        (2, format!("{DELAYED} --use-distributed-optimizer")),
    ] {
        let unbroken = Folder::new("fp8-unbroken");
        expect(&run(ranks, &unbroken.0, &flags(&kind)), 0, &["8-bit products (", " in 8 bits", "done: loss"]);
        assert_eq!(saved(&unbroken.0), [4, 8]);
        let resumed = resume_at(&unbroken, 4, ranks, &flags(&format!("{kind} {graphs}")));
        assert_same(&resumed, &unbroken, &kind);
    }
}

#[test]
fn a_checkpoint_goes_on_in_another_layout_and_in_16_bits_and_back() {
    let first = Folder::new("fp8-first");
    expect(&run(1, &first.0, &flags(DELAYED)), 0, &["done: loss"]);
    let tensor = format!("{DELAYED} --tensor-model-parallel-size 2");
    let longer = DELAYED.replace("len 3", "len 5");
    for (ranks, kind) in
        [(2, tensor.as_str()), (1, longer.as_str()), (1, TENSORWISE), (1, ROWWISE), (1, BLOCKWISE), (1, "")]
    {
        let resumed = resume_at(&first, 4, ranks, &flags(kind));
        let (before, after) = (metrics(&first.0), metrics(&resumed.0));
        assert_eq!((before.len(), after.len()), (8, 8), "{kind}");
        for step in 4..8 {
            let gap = (loss(&after, step) / loss(&before, step) - 1.0).abs();
            assert!(gap < 0.01, "{kind}, step {step}: {} and {}", loss(&before, step), loss(&after, step));
        }
        // And back.
        let again = flags(DELAYED).replace("--steps 8", "--steps 12");
        resume_at(&resumed, 8, 1, &again);
    }
}

#[test]
fn some_steps_measure_what_8_bits_lose_and_no_step_changes() {
    for (ranks, layout) in [(1, ""), (2, "--tensor-model-parallel-size 2")] {
        let (plain, measured) = (Folder::new("fp8-plain"), Folder::new("fp8-measured"));
        let kind = format!("{DELAYED} --enable-cuda-graph {layout}");
        expect(&run(ranks, &plain.0, &flags(&kind)), 0, &["done: loss"]);
        let measure = format!("{kind} --fp8-metrics-interval 2 --wandb --log-interval 1");
        let line = "8 bits (input weight grad): saturated ";
        expect(&run(ranks, &measured.0, &flags(&measure)), 0, &[line, "for measuring", "done: loss"]);
        assert_same(&plain, &measured, layout);
        let read = |file: &str| std::fs::read_to_string(measured.0.join("log").join(file)).unwrap();
        for (line, step) in read("metrics.jsonl").lines().zip(1..) {
            let fp8 = &serde_json::from_str::<Value>(line).unwrap()["fp8"];
            assert_eq!(fp8.is_null(), step % 2 == 1, "step {step}: {line}");
            for kind in ["input", "weight", "grad_output"].iter().filter(|_| step % 2 == 0) {
                for share in ["saturated", "underflowed"].map(|name| fp8[kind][name].as_f64().unwrap()) {
                    assert!((0.0..0.2).contains(&share), "step {step}: {line}");
                }
            }
            if step > 2 && step % 2 == 0 {
                assert!(fp8["input"]["saturated"].as_f64() > Some(0.0), "some values outgrow their history: {line}");
            }
        }
        assert!(read("wandb-history.jsonl").contains("\"fp8/grad_output_underflowed\":"));
    }
}
