//! Runs with the optimizer's state divided among ranks, as users start them: the numbers of plain data parallelism, and
//! checkpoints that any layout goes on from.

use std::process::Command;

use crate::harness::{Folder, assert_like, assert_same, bits, expect, metrics, printed, resume_at, run, saved};

const DIVIDED: &str = "--use-distributed-optimizer --enable-cuda-graph";
/// Gradients and weights are divided too.
const ZERO_3: &str = "--data-parallel-sharding-strategy optim_grads_params";
/// Ranks divide sequences, and the state too.
const LONG: &str = "--use-distributed-optimizer --context-parallel-size 2";
/// Four ranks as two by two, each pair with halves of layers, and each layer halved again.
const BOTH: &str = "--data-parallel-sharding-strategy optim_grads_params --tensor-model-parallel-size 2 --compute bf16";

/// Eight steps with a checkpoint after every fourth. Four ranks divide embedding and head too.
fn flags(layout: &str) -> String {
    format!("--steps 8 --save-interval 4 --attention-dropout 0 --untie-embeddings-and-output-weights {layout}")
}

#[test]
fn a_checkpoint_of_divided_state_goes_on_under_any_layout_and_any_goes_on_divided() {
    let layouts = [(1, ""), (2, "--enable-cuda-graph"), (2, DIVIDED), (4, ZERO_3), (2, LONG)];
    let unbroken: Vec<Folder> = (0..layouts.len())
        .map(|at| {
            let folder = Folder::new(&format!("divided-{at}"));
            expect(&run(layouts[at].0, &folder.0, &flags(layouts[at].1)), 0, &["done: loss"]);
            assert_eq!(saved(&folder.0), [4, 8]);
            folder
        })
        .collect();
    for (at, from) in unbroken.iter().enumerate() {
        assert_like(8, &metrics(&unbroken[0].0), &metrics(&from.0), layouts[at].1);
    }
    for (from, to) in [(0, 2), (1, 2), (2, 0), (2, 1), (2, 2), (2, 3), (3, 2), (2, 4), (4, 0)] {
        let (ranks, layout) = layouts[to];
        let resumed = resume_at(&unbroken[from], 4, ranks, &flags(layout));
        let what = format!("{:?} to {:?}", layouts[from], layouts[to]);
        assert_like(8, &metrics(&unbroken[from].0), &metrics(&resumed.0), &what);
        if from == to {
            assert_same(&resumed, &unbroken[from], "the same layout");
        }
    }
}

#[test]
fn ranks_that_share_layers_and_divide_state_resume_to_the_same_bits_and_write_a_file_each() {
    let whole = Folder::new("both");
    expect(&run(4, &whole.0, &flags(BOTH)), 0, &["done: loss", "the part of one of 2 ranks"]);
    assert_eq!(bits(&whole.0, 8).len(), 2 * 4, "weights and moments of each rank");
    assert_same(&resume_at(&whole, 4, 4, &flags(BOTH)), &whole, "resumed");
}

#[test]
fn two_ranks_under_mpirun_have_the_losses_of_plain_data_parallelism_with_and_without_graphs() {
    let runs = ["", "--use-distributed-optimizer", DIVIDED].map(|layout| {
        let folder = Folder::new(&format!("alike-{}", layout.len()));
        expect(&run(2, &folder.0, &format!("--steps 8 --clip-grad 0 {layout}")), 0, &["done: loss"]);
        folder
    });
    // Put together from its parts, the model writes the same text as the whole one.
    let texts = runs.each_ref().map(|folder| {
        let (saved, trainer) = (folder.path("saved"), env!("CARGO_BIN_EXE_trainer"));
        let sample = ["sample", "--prompt", "ab", "--tokens", "12", "--device", "host", "--checkpoint"];
        let output = Command::new(trainer).args(sample).arg(saved).output().unwrap();
        assert!(output.status.success(), "{}", printed(&output));
        output.stdout
    });
    assert!(texts[0].len() > 12 && texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let [plain, divided, graphs] = runs.map(|folder| metrics(&folder.0));
    assert_eq!(divided, graphs, "graphs change numbers");
    for (step, (plain, divided)) in plain.iter().zip(&divided).enumerate() {
        // A sum of two has the same bits in either order; without clipping the norm enters nothing.
        assert_eq!((&plain[0], &plain[3]), (&divided[0], &divided[3]), "losses of step {step}");
    }
}

#[test]
fn a_dry_run_tells_each_ranks_part_and_what_is_saved() {
    let folder = Folder::new("dry");
    let preset = "--dry-run --preset gpt2-124m --compute bf16 --seq-length 64";
    let plain = printed(&run(2, &folder.0, preset));
    let divided = printed(&run(2, &folder.0, &format!("{preset} --use-distributed-optimizer")));
    // The row of weights begins with the master weights, in MiB.
    let master = |text: &str| -> f64 {
        let row = text.lines().find(|line| line.contains(" master, ")).unwrap_or_else(|| panic!("{text}"));
        row.split_whitespace().filter_map(|word| word.parse().ok()).next().unwrap()
    };
    let ratio = master(&plain) / master(&divided);
    assert!((ratio - 2.0).abs() < 0.02, "{ratio}: {plain} {divided}");
    assert!(divided.contains("the part of one of 2 ranks") && !plain.contains("the part of one"), "{divided}");
}
