//! `trainer eval --multiple-choice`: how often a model finds the right ending likeliest.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Folder, cases, expect, mpirun};
use crate::hugging_face::models::python;

/// The output of `trainer eval ARGUMENTS` on so many ranks, and the lines of the file `choices.jsonl`.
fn eval(folder: &Folder, ranks: usize, arguments: &str) -> (Vec<Value>, Vec<Value>) {
    let flags = format!("eval {arguments} --write-choices choices.jsonl");
    let output = mpirun(ranks, &folder.0, &flags.split_whitespace().collect::<Vec<_>>());
    expect(&output, 0, &["\"acc\":"]);
    let lines = |text: &str| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let written = std::fs::read_to_string(folder.path("choices.jsonl")).unwrap();
    (lines(std::str::from_utf8(&output.stdout).unwrap()), lines(&written))
}

fn sums(answer: &Value) -> Vec<f64> {
    answer["log_likelihoods"].as_array().unwrap().iter().map(|sum| sum.as_f64().unwrap()).collect()
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn sums_and_accuracies_are_those_of_transformers_in_every_layout_with_and_without_graphs() {
    let folder = Folder::new("choices");
    python("choices.py", "make", &folder.0);
    let expected = read(&folder.path("expected.json"));
    let theirs = expected["answers"].as_array().unwrap();
    for (ranks, flags) in [
        (1, ""),
        (1, "--enable-cuda-graph=false --global-batch-size 4 --micro-batch-size 1"),
        (1, "--cuda-graph-scope full_iteration --global-batch-size 24 --micro-batch-size 3"),
        (2, "--use-distributed-optimizer"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, "--context-parallel-size 2"),
        (2, "--pipeline-model-parallel-size 2"),
        (4, "--pipeline-model-parallel-size 2 --enable-cuda-graph=false"),
        (4, "--tensor-model-parallel-size 2 --cuda-graph-scope full_iteration"),
    ] {
        let (printed, answers) = eval(&folder, ranks, &format!("model --multiple-choice questions.jsonl {flags}"));
        let [result] = &printed[..] else { panic!("{printed:?}") };
        assert_eq!((result["data"].as_str(), result["questions"].as_u64()), (Some("questions.jsonl"), Some(25)));
        for key in ["acc", "acc_stderr", "acc_norm", "acc_norm_stderr"] {
            let [ours, theirs] = [result, &expected].map(|from| from[key].as_f64().unwrap());
            assert!((ours - theirs).abs() < 1e-12, "{flags}: {key} is {ours} here, {theirs} there");
        }
        assert_eq!(answers.len(), theirs.len());
        for (number, (ours, theirs)) in answers.iter().zip(theirs).enumerate() {
            assert_eq!(ours["line"], number + 1);
            for key in ["label", "chosen", "chosen_norm"] {
                assert_eq!(ours[key], theirs[key], "{flags}, question {number}: {key}");
            }
            for (ours, theirs) in sums(ours).iter().zip(sums(theirs)) {
                assert!((ours / theirs - 1.0).abs() < 2e-6, "{flags}, question {number}: {ours} and {theirs}");
            }
        }
    }
}

#[test]
fn data_and_questions_are_evaluated_together_and_of_both_as_many_as_asked_for() {
    let folder = Folder::new("choices-and-data");
    python("choices.py", "make", &folder.0);
    std::fs::write(folder.path("text.txt"), "a man is seen on the roof and he begins to pull up wood. ".repeat(40))
        .unwrap();
    let both = "model text.txt --samples 6 --multiple-choice questions.jsonl questions.jsonl";
    let (printed, answers) = eval(&folder, 2, both);
    let names: Vec<_> = printed.iter().map(|result| result["data"].as_str().unwrap()).collect();
    assert_eq!(names, ["text.txt", "questions.jsonl", "questions.jsonl"]);
    assert_eq!((&printed[0]["samples"], &printed[1]["questions"], answers.len()), (&6.into(), &6.into(), 12));
    assert_eq!(answers[..6], answers[6..]);
    let alone = mpirun(2, &folder.0, &["eval", "model", "text.txt", "--samples", "6"]);
    expect(&alone, 0, &[]);
    assert_eq!(serde_json::from_slice::<Value>(&alone.stdout).unwrap(), printed[0]);
}

#[test]
fn wrong_questions_are_refused_with_their_line() {
    let folder = Folder::new("choices-wrong");
    expect(&crate::harness::run(1, &folder.0, "--steps 1"), 0, &["done: loss"]);
    let write = |name: &str, text: &str| std::fs::write(folder.path(name), text).unwrap();
    let right = "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 0}\n";
    write("right.jsonl", right);
    write("no-label.jsonl", &format!("{right}\n{{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]}}\n"));
    write("long.jsonl", &right.replace("\"b\"", &format!("\"{}\"", "b".repeat(16))));
    write("letters.jsonl", &right.replace("\"b\"", "\"z\""));
    write("text.txt", "text");
    write("empty.jsonl", "");
    for (arguments, parts) in cases("choices") {
        let words: Vec<&str> = ["eval"].into_iter().chain(arguments.split_whitespace()).collect();
        let output = mpirun(1, &folder.0, &words);
        expect(&output, 2, &parts);
        expect(&output, 2, &["Rule: ", "Fix: "]);
    }
    let dry = mpirun(
        1,
        &folder.0,
        &["eval", "saved", "--multiple-choice", "right.jsonl", "--dry-run", "--write-choices", "x"],
    );
    expect(&dry, 0, &[]);
    assert!(!folder.path("x").exists());
}
