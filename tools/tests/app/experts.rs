//! Runs of models with experts, as users start them: they learn, go on from checkpoints, are evaluated and sampled, and have
//! the numbers of one rank in every layout.

use serde_json::Value;

use crate::harness::{
    Folder, assert_same, cases, expect, logged_steps, metrics, mpirun, printed, resume_at, run, saved, stdout_of,
    trainer,
};
use crate::mistakes::refused;

/// Three blocks: a dense one, and two with four experts and a shared one.
const MIXTURE: &str = "--layers 3 --swiglu --disable-bias-linear --norm rmsnorm --num-experts 4 --moe-router-topk 2 \
                       --moe-ffn-hidden-size 24 --moe-shared-expert-intermediate-size 16 --moe-layer-freq [0]*1+[1]*2 \
                       --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.01 --moe-z-loss-coeff 1e-3";

fn flags(rest: &str) -> String {
    format!("--steps 8 --save-interval 4 {MIXTURE} {rest}")
}

fn loss(lines: &[Value], step: usize) -> f64 {
    lines[step][0].as_f64().unwrap()
}

/// The loss and those of routers of each step.
fn losses(folder: &Folder) -> Vec<[f64; 3]> {
    let of = |step: &Value| ["loss", "balance_loss", "router_z_loss"].map(|name| step[name].as_f64().unwrap());
    logged_steps(&folder.path("log")).iter().map(of).collect()
}

/// The largest relative difference, from a step on.
fn apart(ours: &[[f64; 3]], theirs: &[[f64; 3]], step: usize) -> f64 {
    assert_eq!((ours.len(), theirs.len()), (8, 8));
    let pairs = ours.iter().zip(theirs).skip(step).flat_map(|(ours, theirs)| ours.iter().zip(theirs));
    pairs.map(|(ours, theirs)| (ours / theirs - 1.0).abs()).fold(0.0, f64::max)
}

#[test]
fn a_mixture_learns_resumes_to_the_same_bits_and_shows_the_losses_of_its_routers() {
    for precision in ["", "--bf16"] {
        let unbroken = Folder::new("experts-unbroken");
        let flags = flags(&format!("{precision} --lr 0.01"));
        let output = run(1, &unbroken.0, &flags);
        expect(&output, 0, &[" of them active", "balance-loss ", "router-z-loss ", "done: loss"]);
        let lines = metrics(&unbroken.0);
        assert!(loss(&lines, 7) < loss(&lines, 0) - 0.1, "{precision}: {lines:?}");
        assert_eq!(saved(&unbroken.0), [4, 8]);
        let resumed = resume_at(&unbroken, 4, 1, &format!("{flags} --enable-cuda-graph"));
        assert_same(&resumed, &unbroken, precision);
        if !precision.is_empty() {
            continue;
        }

        // Two layers have each loss. A balance loss is near 1 times its factor if loads are alike.
        for [_, balance, z_loss] in losses(&unbroken) {
            assert!((0.015..0.06).contains(&balance) && (1e-4..0.1).contains(&z_loss), "{balance} {z_loss}");
        }
        expect(&trainer(&unbroken.0, "report log --output page.html"), 0, &[]);
        let page = std::fs::read_to_string(unbroken.path("page.html")).unwrap();
        assert!(["balance-loss", "router-z-loss"].iter().all(|id| page.contains(&format!("data-curve=\"{id}\""))));
        assert!(!page.contains("data-curve=\"z-loss\""), "the head has none");
        assert_eq!(page.matches("<svg class=\"loads\"").count(), 2, "a map for each block with experts");

        std::fs::write(unbroken.path("held-out.txt"), "a bottle on the wall; ".repeat(40)).unwrap();
        expect(&mpirun(1, &unbroken.0, &["eval", "saved", "held-out.txt"]), 0, &["\"perplexity\":"]);
        let from = unbroken.path("saved");
        let text = stdout_of(&["sample", "--checkpoint", from.to_str().unwrap(), "--prompt", "a", "--tokens", "4"]);
        assert!(!text.is_empty());
    }
}

#[test]
fn a_mixture_has_the_losses_of_one_rank_in_every_layout() {
    for optimizer in ["adamw", "muon --moe-router-enable-expert-bias --moe-router-bias-update-rate 0.01"] {
        let flags = |layout: &str| flags(&format!("--optimizer {optimizer} {layout}"));
        let alone = Folder::new("experts-alone");
        expect(&run(1, &alone.0, &flags("")), 0, &["done: loss"]);
        let expected = losses(&alone);
        for (ranks, layout) in [
            (2, "--tensor-model-parallel-size 2"),
            (2, "--tensor-model-parallel-size 2 --sequence-parallel --enable-cuda-graph"),
            (2, "--pipeline-model-parallel-size 2"),
            (2, "--use-distributed-optimizer"),
            (2, "--expert-model-parallel-size 2 --use-distributed-optimizer --enable-cuda-graph"),
            (2, "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"),
        ] {
            let folder = Folder::new("experts-layout");
            expect(&run(ranks, &folder.0, &flags(layout)), 0, &["done: loss"]);
            let (ours, what) = (losses(&folder), format!("{optimizer} {layout}"));
            assert!(apart(&ours, &expected, 0) < 1e-4, "{what}: {ours:?} and {expected:?}");
            // A checkpoint of it goes on alone.
            let resumed = losses(&resume_at(&folder, 4, 1, &flags("")));
            assert!(apart(&resumed, &expected, 4) < 1e-4, "{what}, resumed alone: {resumed:?} and {expected:?}");
        }
    }
}

#[test]
fn padding_changes_no_loss_of_routers_however_the_step_is_cut() {
    let answers = ["b", "bcdefghijklmnopqrstuvwxyz", "bcd", "bcdefghij", "bc", "bcdefghijklmnopq", "b", "bcdefg"];
    let line = |answer: &&str| format!("{{\"prompt\": \"a\", \"completion\": \"{answer}\"}}\n");
    let of = |ranks: usize, flags: &str| {
        let folder = Folder::new("experts-padding");
        std::fs::write(folder.path("chats.jsonl"), answers.iter().map(line).collect::<String>()).unwrap();
        let data = format!("--sft --data-path {} --split 1", folder.path("chats.jsonl").display());
        let model = MIXTURE.replace("--moe-z-loss-coeff 1e-3", "--moe-z-loss-coeff 0.1");
        let dropout = "--hidden-dropout 0 --attention-dropout 0";
        let line = format!("{model} {data} {dropout} --seq-length 128 --eval-interval 0 --steps 1 {flags}");
        expect(&run(ranks, &folder.0, &line), 0, &["done: loss"]);
        losses(&folder)[0]
    };
    // With weights near zero all logits are: in each of two layers the logarithm of the sum is ln 4.
    let [_, balance, z_loss] = of(1, "--init-std 1e-6");
    let expected = 0.1 * 2.0 * 4f64.ln().powi(2);
    assert!((z_loss / expected - 1.0).abs() < 1e-4 && (balance / 0.02 - 1.0).abs() < 1e-4, "{balance} {z_loss}");
    let whole = of(1, "--init-std 0.3 --micro-batch-size 8");
    for (ranks, cut) in [
        (1, "--micro-batch-size 1"),
        (1, "--micro-batch-size 2"),
        (2, "--micro-batch-size 2"),
        (1, "--sft-packing 8 --micro-batch-size 1 --global-batch-size 1"),
    ] {
        let ours = of(ranks, &format!("--init-std 0.3 {cut}"));
        let close = ours.iter().zip(&whole).all(|(a, b)| (a / b - 1.0).abs() < 1e-4);
        assert!(close, "{cut}: {ours:?} and {whole:?}");
    }
}

#[test]
fn data_parallel_ranks_share_a_balance_loss_over_the_global_batch() {
    let flags = |rest: &str| flags(&format!("--moe-router-load-balancing-type global_aux_loss {rest}"));
    let line = |rest: &str| flags(rest).replace("--moe-router-load-balancing-type seq_aux_loss ", "");
    let (plain, graphs, local) = (Folder::new("balance"), Folder::new("balance-graphs"), Folder::new("balance-local"));
    expect(&run(2, &plain.0, &line("")), 0, &["balance-loss ", "done: loss"]);
    expect(&run(2, &graphs.0, &line("--enable-cuda-graph --cuda-graph-scope full_iteration")), 0, &["done: loss"]);
    assert_same(&graphs, &plain, "");
    expect(&run(2, &local.0, &line("").replace("global_aux_loss", "aux_loss")), 0, &["done: loss"]);
    assert!(losses(&local)[0][1] > losses(&plain)[0][1], "the loads of a part are less alike than those of all");
}

/// The first line of a run's log that begins with `graphs:`.
fn graphs_line(output: &std::process::Output) -> String {
    let printed = printed(output);
    printed.lines().find(|line| line.starts_with("graphs:")).unwrap_or_else(|| panic!("{printed}")).to_string()
}

#[test]
fn graphs_of_modules_of_experts_have_the_bits_of_a_run_without_graphs() {
    let plain = Folder::new("experts-eager");
    expect(&run(1, &plain.0, &flags("")), 0, &["done: loss"]);
    for (modules, reason) in [
        ("--cuda-graph-modules moe_router", "moe forward (it is not among the chosen modules)"),
        (
            "--cuda-graph-modules attn mlp moe_router moe_preprocess",
            "moe backward (it is not among the chosen modules)",
        ),
        ("--cuda-graph-modules moe", "attention forward (it is not among the chosen modules)"),
        (
            "--set cuda_graph.modules=[\"moe_router\",\"moe_preprocess\"]",
            "moe backward (it is not among the chosen modules)",
        ),
        ("--cuda-graph-scope moe_router", "moe forward (it is not among the chosen modules)"),
    ] {
        let folder = Folder::new("experts-graphs");
        let output = run(1, &folder.0, &flags(&format!("--cuda-graph-impl local {modules}")));
        expect(&output, 0, &["done: loss"]);
        let line = graphs_line(&output);
        assert!(line.contains(reason), "{modules}: {line}");
        assert_same(&folder, &plain, modules);
    }
}

#[test]
fn choices_beyond_the_capacity_are_dropped_counted_and_told() {
    let plain = Folder::new("experts-not-limited");
    expect(&run(1, &plain.0, &flags("")), 0, &["done: loss"]);
    assert!(!std::fs::read_to_string(plain.path("log/metrics.jsonl")).unwrap().contains("dropped"));
    for policy in ["", "--moe-token-drop-policy probs", "--moe-token-drop-policy position"] {
        let limited =
            |rest: &str| flags(&format!("--moe-expert-capacity-factor 0.75 {policy} --log-interval 1 {rest}"));
        let folder = Folder::new("experts-limited");
        let output = run(1, &folder.0, &limited("--moe-pad-expert-input-to-capacity"));
        expect(&output, 0, &["--moe-pad-expert-input-to-capacity has no effect", "dropped choices ", "done: loss"]);
        for step in logged_steps(&folder.path("log")) {
            let loads = step["expert_loads"].as_array().unwrap();
            let of_blocks = loads.iter().map(|load| load["dropped"].as_f64().unwrap());
            let dropped = step["dropped_choices"].as_f64().unwrap();
            assert!(dropped > 0.0 && dropped == of_blocks.sum::<f64>(), "{step}");
            for load in loads {
                let tokens: Vec<f64> = load["tokens"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
                let all = tokens.iter().sum::<f64>() + load["dropped"].as_f64().unwrap();
                assert!(tokens.iter().all(|tokens| *tokens <= (0.75 * all / 4.0).ceil()), "{step}");
            }
        }
        assert_ne!(metrics(&folder.0), metrics(&plain.0), "{policy}");
        // Checkpoints go on to the same bits, with graphs too.
        let resumed = resume_at(&folder, 4, 1, &limited("--enable-cuda-graph"));
        assert_same(&resumed, &folder, policy);
    }
}

#[test]
fn megatrons_flags_without_effect_on_experts_are_told_in_a_line_each() {
    let folder = Folder::new("experts-flags");
    let line = format!(
        "--dry-run {MIXTURE} --moe-grouped-gemm --moe-permute-fusion --moe-token-dispatcher-type alltoall \
         --moe-router-dtype fp32 --moe-shared-expert-overlap --expert-model-parallel-size 1 \
         --expert-tensor-parallel-size 1 --moe-router-force-load-balancing"
    );
    let output = trainer(&folder.0, &line);
    expect(&output, 0, &["--moe-grouped-gemm has no effect", "--moe-token-dispatcher-type has no effect"]);
    expect(&output, 0, &["train.force_expert_balance = true: tokens take experts in turn"]);
    assert_eq!(printed(&output).matches("notice: ").count(), 5, "{}", printed(&output));
}

#[test]
fn mistakes_about_experts_are_one_line_with_the_value_the_rule_and_the_fix() {
    let folder = Folder::new("experts-mistakes");
    let model = "--swiglu --disable-bias-linear --num-experts 4";
    for (flags, needles) in cases("experts") {
        refused(&folder.0, &flags.replace("MODEL", model), &[], &needles);
    }
}
