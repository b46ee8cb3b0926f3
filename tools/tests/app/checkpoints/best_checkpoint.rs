//! The checkpoint with the lowest validation loss, and runs that end when it does not fall any more.

use std::path::Path;

use crate::harness::{Folder, expect, metrics, run, saved, trainer};

/// A folder with data to train on, and with other data to validate on: the more a model learns of these, the less it expects
/// of those.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    std::fs::write(folder.path("train.txt"), "abcd".repeat(500)).unwrap();
    std::fs::write(folder.path("other.txt"), "wxyz".repeat(100)).unwrap();
    folder
}

/// The flags of a run on these data.
fn flags(folder: &Folder, more: &str) -> String {
    let [train, other] = ["train.txt", "other.txt"].map(|name| folder.path(name).display().to_string());
    format!(
        "--data-path {train} --validation-path {other} --eval-interval 2 --eval-iters 1 --lr 1e-1 --checkpoint-keep 1 \
         --save-interval 3 {more}"
    )
}

/// The validation losses by step, and the step of the lowest.
fn validation(folder: &Path) -> (Vec<(usize, f64)>, usize) {
    let losses: Vec<(usize, f64)> =
        metrics(folder).iter().enumerate().filter_map(|(at, step)| Some((at + 1, step[3].as_f64()?))).collect();
    let lowest = losses.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    (losses, lowest)
}

#[test]
fn the_checkpoint_with_the_lowest_validation_loss_stays_and_is_named_best() {
    let folder = folder("best");
    // The run is cut in two: a resumed run knows the lowest loss of the run before.
    for steps in [7, 12] {
        let output = run(1, &folder.0, &flags(&folder, &format!("--save-best --steps {steps}")));
        expect(&output, 0, &["done: loss", "lowest validation loss"]);
        let (_, lowest) = validation(&folder.0);
        assert!(lowest < steps, "the last evaluation is the lowest: the test shows nothing");
        assert_eq!(saved(&folder.0), [lowest, steps]);
        expect(&output, 0, &[&format!("after step {lowest}: "), "saved/best"]);
    }
    let (losses, lowest) = validation(&folder.0);
    let best = losses.iter().find(|(step, _)| *step == lowest).unwrap().1;
    let listed = trainer(&folder.0, "checkpoint list saved");
    expect(&listed, 0, &[&format!("validation loss {best:.4}, the best\n")]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout).matches("the best").count(), 1);
    let name = format!("step-{lowest:08}");
    expect(&trainer(&folder.0, "sample --checkpoint saved/best --tokens 2 --threads 1"), 0, &[&name]);
    expect(&trainer(&folder.0, "convert --to hf saved/best exported"), 0, &["parameters"]);
    let [away, best] = ["away", "saved/best"].map(|name| folder.path(name).display().to_string());
    let more = format!("--steps {} --save {away} --log-dir {away} --resume {best}", lowest + 1);
    let resumed = run(1, &folder.0, &flags(&folder, &more));
    expect(&resumed, 0, &[&format!("step-{lowest:08} at step {lowest}")]);
}

#[test]
fn the_best_checkpoint_is_written_while_training_goes_on_without_an_interval_too() {
    let folder = folder("best-alone");
    let flags = flags(&folder, "--save-best --steps 8").replace("--save-interval 3", "--save-interval 0");
    let output = run(1, &folder.0, &flags);
    expect(&output, 0, &["saves", "while training goes on", "lowest validation loss"]);
    let (_, lowest) = validation(&folder.0);
    assert_eq!(saved(&folder.0), [lowest, 8]);
}

#[test]
fn a_run_ends_when_its_validation_loss_has_not_fallen_for_as_many_evaluations_as_it_may() {
    let whole = folder("early-stop");
    let patient = |folder: &Folder, patience: usize, steps: usize| {
        flags(folder, &format!("--early-stop-patience {patience} --steps {steps}"))
    };
    let output = run(1, &whole.0, &patient(&whole, 2, 40));
    expect(&output, 0, &["has not fallen for 2 evaluations", "of 40, saved"]);
    let (losses, lowest) = validation(&whole.0);
    let stopped = lowest + 4;
    assert_eq!(losses.last().unwrap().0, stopped, "{losses:?}");
    // Started again, it is still at its end.
    expect(
        &run(1, &whole.0, &patient(&whole, 2, 40)),
        0,
        &[&format!("ended before, after step {stopped}"), "early_stop_patience"],
    );
    assert_eq!(metrics(&whole.0).len(), stopped);
    // With more patience it goes on.
    expect(
        &run(1, &whole.0, &patient(&whole, 3, 40)),
        0,
        &[&format!("at step {stopped}"), "has not fallen for 3 evaluations"],
    );

    // The same on two ranks, cut in two.
    let parts = folder("early-stop-parts");
    expect(&run(2, &parts.0, &patient(&parts, 2, lowest + 2)), 0, &["done: loss"]);
    expect(&run(2, &parts.0, &patient(&parts, 2, 40)), 0, &["has not fallen for 2 evaluations"]);
    assert_eq!(metrics(&parts.0).len(), stopped);
}

#[test]
fn what_goes_by_the_validation_loss_needs_evaluations() {
    let folder = Folder::new("best-refused");
    for flags in ["--save-best", "--early-stop-patience 2"] {
        let output = run(1, &folder.0, &format!("{flags} --eval-interval 0 --steps 1"));
        expect(&output, 2, &["without evaluations. Rule: it goes by the validation loss"]);
    }
}
