//! Numbers and layouts of ranks that cannot be: each is one line with the value, the rule and the fix.

use crate::harness::{Folder, cases, expect, mpirun, printed};
use crate::mistakes::refused;

#[test]
fn ranks_that_cannot_be_are_refused() {
    let folder = Folder::new("mistakes-ranks");
    let launched = |rank, size, local| {
        [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size), ("OMPI_COMM_WORLD_LOCAL_RANK", local)]
            .into_iter()
            .chain([("OMPI_COMM_WORLD_LOCAL_SIZE", size)])
            .collect::<Vec<_>>()
    };
    for (rank, size, local, needles) in [
        ("0", "0", "0", &["OMPI_COMM_WORLD_RANK", "not below OMPI_COMM_WORLD_SIZE = 0"][..]),
        ("5", "2", "0", &["OMPI_COMM_WORLD_RANK is 5", "not below OMPI_COMM_WORLD_SIZE = 2"]),
        ("0", "2", "7", &["OMPI_COMM_WORLD_LOCAL_RANK is 7", "not below OMPI_COMM_WORLD_LOCAL_SIZE = 2"]),
        ("0", "two", "0", &["OMPI_COMM_WORLD_SIZE is `two`, not a number"]),
        ("-1", "2", "0", &["OMPI_COMM_WORLD_RANK is `-1`, not a number"]),
    ] {
        refused(&folder.0, "--steps 1", &launched(rank, size, local), needles);
    }
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")];
    refused(
        &folder.0,
        "--steps 1",
        &torchrun,
        &["WORLD_SIZE is 2", "torchrun", "start with trainer launch, mpirun or srun"],
    );
}

/// A configuration that two ranks refuse; alone a rank refuses it for the number of ranks.
fn on_two_ranks(text: &str) -> String {
    let sources = trainer::config::ConfigSources::of_pairs(text).unwrap();
    match trainer::config::plan::RunPlan::new(sources.resolve(), 2) {
        Ok(_) => panic!("{text} is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn pipelines_that_cannot_be_are_refused_with_the_value_the_rule_and_the_fix() {
    for (text, needles) in cases("pipelines") {
        let error = on_two_ranks(text);
        let [value, rule, fix] = needles[..] else { panic!("{text} needs a value, a rule and a fix") };
        let (what, rest) = error.split_once(". Rule: ").unwrap();
        let (rules, fixes) = rest.split_once(". Fix: ").unwrap();
        assert!(what.contains(value) && rules.contains(rule) && fixes.contains(fix), "{text}: {error}");
    }
}

#[test]
fn tokenize_is_the_work_of_one_process() {
    let folder = Folder::new("mistakes-tokenize");
    std::fs::write(folder.path("file"), "some text").unwrap();
    let output = mpirun(2, &folder.0, &["tokenize", "--output", "out", "file"]);
    expect(&output, 2, &["error: tokenize on 2 ranks. Rule: one process", "Fix: start it without mpirun"]);
    assert_eq!(printed(&output).matches("error: ").count(), 1);
    assert!(!folder.path("out").exists());
}

#[test]
fn expert_ranks_that_cannot_be_are_refused_with_sizes_that_work() {
    let model = "model.preset=tiny-llama model.experts=6 model.experts_per_token=2";
    for (text, needles) in cases("expert_ranks") {
        let error = on_two_ranks(&text.replace("MODEL", model));
        assert!(needles.iter().all(|needle| error.contains(needle)), "{text}: {error}");
    }
}
