//! Runs with a part of the model frozen.

use std::path::Path;

use safetensors::SafeTensors;

use crate::harness::{Folder, expect, losses, metrics, resume_at, run};

const FROZEN: &str = "--freeze wte.weight h.0.attn.* *.bias";

fn is_frozen(name: &str) -> bool {
    name == "wte.weight" || name.starts_with("h.0.attn.") || name.ends_with(".bias")
}

/// Eight steps with a checkpoint after every fourth.
fn flags(layout: &str) -> String {
    format!("--layers 2 --steps 8 --save-interval 4 {layout} {FROZEN}")
}

/// The bytes of the tensors of one rank's checkpoint, from one of its files, by name.
fn tensors(folder: &Path, step: usize, file: &str) -> Vec<(String, Vec<u8>)> {
    let bytes = std::fs::read(folder.join(format!("saved/step-{step:08}/{file}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().into_iter().map(|(name, tensor)| (name, tensor.data().to_vec())).collect()
}

#[test]
fn a_partly_frozen_model_is_saved_whole_without_moments_of_frozen_parts_and_goes_on_in_any_layout() {
    let (alone, plain) = (Folder::new("frozen"), Folder::new("frozen-not"));
    expect(&run(1, &alone.0, &flags("")), 0, &["frozen", "done: loss"]);
    expect(&run(1, &plain.0, "--layers 2 --steps 8 --save-interval 4"), 0, &["done: loss"]);
    assert_ne!(metrics(&alone.0), metrics(&plain.0));
    let (first, last) = (tensors(&alone.0, 4, "model"), tensors(&alone.0, 8, "model"));
    assert_eq!(first.len(), tensors(&plain.0, 4, "model").len());
    for (name, values) in &first {
        let after = &last.iter().find(|(other, _)| other == name).unwrap().1;
        assert_eq!(values == after, is_frozen(name), "{name}");
    }
    let mut moments: Vec<String> = tensors(&alone.0, 8, "optimizer").into_iter().map(|(name, _)| name).collect();
    let mut expected: Vec<String> = first
        .iter()
        .filter(|(name, _)| !is_frozen(name))
        .flat_map(|(name, _)| ["exp_avg", "exp_avg_sq"].map(|moment| format!("{name}.{moment}")))
        .collect();
    moments.sort();
    expected.sort();
    assert_eq!(moments, expected);
    let layouts =
        [(2, "--use-distributed-optimizer"), (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2")];
    for (ranks, layout) in layouts {
        let folder = resume_at(&alone, 4, ranks, &flags(layout));
        let resumed = resume_at(&folder, 8, 1, &flags("--steps 12").replacen("--steps 8", "", 1));
        let (ours, theirs) = (losses(&folder), losses(&alone));
        assert_eq!(ours.len(), 8);
        let close = ours.iter().zip(&theirs).all(|(a, b)| (a / b - 1.0).abs() < 1e-5);
        assert!(close, "{layout}: {ours:?} and {theirs:?}");
        for (name, values) in tensors(&resumed.0, 12, "model").iter().filter(|(name, _)| is_frozen(name)) {
            assert!(*values == first.iter().find(|(other, _)| other == name).unwrap().1, "{layout}: {name}");
        }
    }
    // Other parameters frozen, other moments.
    for (flags, missing) in
        [("--layers 2 --steps 12", "it has no `"), ("--layers 2 --steps 12 --freeze wte.weight h.* *.bias", "its `")]
    {
        expect(&run(1, &alone.0, flags), 2, &["does not fit", missing, "exp_avg"]);
    }
}
