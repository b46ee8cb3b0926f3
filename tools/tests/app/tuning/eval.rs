//! `trainer eval`: the losses of a model on data sets.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Folder, bits, expect, logged_steps, mpirun, printed, run};

/// Text of so many samples of 16 tokens.
fn text(folder: &Path, name: &str, samples: usize) {
    let text: String = (0..).map(|n| format!("{} bottles on the wall, {n} in all; ", n * n % 97)).take(200).collect();
    std::fs::write(folder.join(name), &text[..16 * samples + 1]).unwrap();
}

/// The output of `trainer eval ARGUMENTS` on so many ranks: an object for each data set.
fn eval(folder: &Folder, ranks: usize, arguments: &str) -> Vec<Value> {
    let arguments: Vec<&str> = ["eval"].into_iter().chain(arguments.split_whitespace()).collect();
    let output = mpirun(ranks, &folder.0, &arguments);
    expect(&output, 0, &["\"loss\":"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

fn loss(result: &Value) -> f64 {
    result["loss"].as_f64().unwrap()
}

#[test]
fn eval_has_the_validation_loss_of_training_in_any_layout_and_of_any_number_of_samples() {
    let folder = Folder::new("eval");
    for (name, samples) in [("train.txt", 60), ("held-out.txt", 40), ("begin.txt", 13)] {
        text(&folder.0, name, samples);
    }
    let path = |name: &str| folder.path(name).display().to_string();
    let data = format!("--data-path {} --validation-path {}", path("train.txt"), path("held-out.txt"));
    expect(&run(1, &folder.0, &format!("--layers 2 --steps 6 --eval-iters 5 {data}")), 0, &["done: loss"]);
    let expected = logged_steps(&folder.path("log")).last().unwrap()["validation_loss"].as_f64().unwrap();

    let sizes = "--global-batch-size 8";
    let results = eval(&folder, 1, &format!("saved held-out.txt begin.txt {sizes}"));
    assert_eq!(loss(&results[0]), expected);
    let named: Vec<_> = results.iter().map(|set| (set["data"].as_str(), set["samples"].as_u64())).collect();
    assert_eq!(named, [(Some("held-out.txt"), Some(40)), (Some("begin.txt"), Some(13))]);
    assert_eq!(results[1]["tokens"], 13 * 16);
    assert_eq!(results[0]["perplexity"].as_f64(), Some(expected.exp()));

    // The last batch of 13 samples is not full. The first 13 samples of a larger set are the same.
    for arguments in [
        "saved begin.txt --global-batch-size 2",
        "saved begin.txt --global-batch-size 16 --micro-batch-size 4",
        "saved held-out.txt --samples 13 --global-batch-size 8 --enable-cuda-graph=false",
        "saved/step-00000006 held-out.txt --samples 13 --global-batch-size 8 --cuda-graph-scope full_iteration",
    ] {
        let result = eval(&folder, 1, arguments);
        assert!((loss(&result[0]) / loss(&results[1]) - 1.0).abs() < 1e-6, "{arguments}");
    }
    for (ranks, layout) in [
        (2, ""),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (4, "--pipeline-model-parallel-size 2 --use-distributed-optimizer"),
    ] {
        let result = eval(&folder, ranks, &format!("saved begin.txt {sizes} {layout}"));
        assert!((loss(&result[0]) / loss(&results[1]) - 1.0).abs() < 1e-6, "{layout}");
    }
    let convert = ["convert", "--to", "hf", "saved/step-00000006", "exported"];
    expect(&mpirun(1, &folder.0, &convert), 0, &[]);
    let exported = eval(&folder, 1, &format!("exported begin.txt {sizes}"));
    assert_eq!(loss(&exported[0]), loss(&results[1]));
}

#[test]
fn further_validation_sets_have_the_losses_of_eval_and_change_no_bit() {
    let folder = Folder::new("validation-sets");
    for (name, samples) in [("train.txt", 60), ("held-out.txt", 40), ("begin.txt", 13)] {
        text(&folder.0, name, samples);
    }
    let path = |name: &str| folder.path(name).display().to_string();
    let trained = |name: &str, ranks: usize, flags: &str| {
        let place = folder.path(name);
        std::fs::create_dir(&place).unwrap();
        let data = format!("--data-path {} --validation-path {}", path("train.txt"), path("held-out.txt"));
        let output =
            run(ranks, &place, &format!("--layers 2 --steps 6 --eval-interval 3 --eval-iters 5 {data} {flags}"));
        expect(&output, 0, &["done: loss"]);
        let rows = logged_steps(&place.join("log"));
        (place, printed(&output), rows)
    };
    let sets = format!("--validation-sets same={} few={} --tensorboard", path("held-out.txt"), path("begin.txt"));
    let (plain, _, _) = trained("plain", 1, "");
    let (place, said, rows) = trained("sets", 1, &sets);
    assert_eq!(bits(&place, 6), bits(&plain, 6));
    for row in &rows {
        let evaluated = row["step"].as_u64().unwrap() % 3 == 0;
        assert_eq!(row.get("validation_sets").is_some(), evaluated, "{row}");
    }
    let last = &rows[5];
    assert_eq!(last["validation_sets"]["same"], last["validation_loss"]);
    let results = eval(&folder, 1, "sets/saved begin.txt --global-batch-size 8");
    assert_eq!(last["validation_sets"]["few"].as_f64(), Some(loss(&results[0])));
    let line = format!("validation of few {:.4}  perplexity ", loss(&results[0]));
    assert!(said.contains(&line), "{line}: {said}");
    let (_, _, two) = trained("two", 2, &sets);
    let few = |row: &Value| row["validation_sets"]["few"].as_f64().unwrap();
    assert!((few(&two[5]) / few(last) - 1.0).abs() < 1e-3, "{} {}", few(&two[5]), few(last));

    let (data, held_out) = (format!("--data-path {}", path("train.txt")), path("held-out.txt"));
    for (flags, parts) in [
        ("--validation-sets held-out.txt", ["data.validation_sets = \"held-out.txt\"", "a set is NAME=PATH"]),
        ("--validation-sets a=HELD a=HELD", ["data.validation_sets = \"a=", "each set has a name of its own"]),
        ("--validation-sets a=absent.txt", ["a: `absent.txt`", "check the path"]),
        ("--validation-sets a=HELD --eval-interval 0", ["with train.eval_interval = 0", "leave the sets out"]),
    ] {
        let flags = flags.replace("HELD", &held_out);
        expect(&run(1, &folder.0, &format!("{data} {flags}")), 2, &parts);
    }
}

#[test]
fn the_validation_loss_has_each_sample_of_a_small_set_once() {
    let folder = Folder::new("small-set");
    // Answers of very different lengths: a sample that comes twice moves the mean.
    let answers = ["a", "bbbbbbbbbbbbbbbbbbbbbbbb", "ccc dd e", "fgh", "ijklmnopqrstuvw"];
    let line = |answer: &str| format!("{{\"prompt\": \"p\", \"completion\": \"{answer}\"}}\n");
    let write = |name: &str, answers: &[&str]| {
        std::fs::write(folder.path(name), answers.iter().map(|answer| line(answer)).collect::<String>()).unwrap();
    };
    write("all.jsonl", &answers);
    answers.iter().enumerate().for_each(|(number, answer)| write(&format!("{number}.jsonl"), &[answer]));
    let path = folder.path("all.jsonl").display().to_string();
    let validation = |ranks: usize, flags: &str| {
        let flags = format!(
            "--sft --data-path {path} --validation-path {path} --validation-sets same={path} --seq-length 32 --steps 1 \
             --init-std 0.3 --lr 1e-9 --eval-interval 1 {flags}"
        );
        let _ = ["log", "saved"].map(|name| std::fs::remove_dir_all(folder.path(name)));
        expect(&run(ranks, &folder.0, &flags), 0, &["done: loss"]);
        let row = logged_steps(&folder.path("log")).pop().unwrap();
        assert_eq!(row["validation_sets"]["same"], row["validation_loss"], "{flags}");
        row["validation_loss"].as_f64().unwrap()
    };
    let first = validation(1, "--global-batch-size 8 --eval-iters 1");
    // The value of each conversation alone.
    let files: Vec<String> = (0..answers.len()).map(|number| format!("{number}.jsonl")).collect();
    let alone = eval(&folder, 1, &format!("saved {} --sft --seq-length 32 --global-batch-size 2", files.join(" ")));
    let mean = |of: &[Value]| {
        let tokens = |result: &Value| result["tokens"].as_f64().unwrap();
        let sum: f64 = of.iter().map(|result| loss(result) * tokens(result)).sum();
        sum / of.iter().map(tokens).sum::<f64>()
    };
    let near = |loss: f64, of: &[Value], what: &str| assert!((loss / mean(of) - 1.0).abs() < 1e-5, "{what}: {loss}");
    near(first, &alone, "first");
    for (ranks, flags, of) in [
        (1, "--global-batch-size 8 --eval-iters 100", &alone[..]),
        (1, "--global-batch-size 2 --eval-iters 3", &alone),
        (1, "--global-batch-size 2 --eval-iters 100", &alone),
        // A larger set: its first samples.
        (1, "--global-batch-size 2 --eval-iters 1", &alone[..2]),
        (1, "--global-batch-size 4 --eval-iters 3 --sft-packing 2", &alone),
        (1, "--global-batch-size 4 --eval-iters 3 --seq-length-buckets 8,16,32", &alone),
        (2, "--global-batch-size 2 --micro-batch-size 1 --eval-iters 3", &alone),
        (2, "--global-batch-size 8 --eval-iters 1", &alone),
    ] {
        near(validation(ranks, flags), of, flags);
    }
}

#[test]
fn questions_and_conversations_are_evaluated_together() {
    let folder = Folder::new("eval-both");
    expect(&run(1, &folder.0, "--steps 1 --seq-length 32"), 0, &["done: loss"]);
    std::fs::write(folder.path("talk.jsonl"), "{\"prompt\": \"p\", \"completion\": \"abc\"}\n").unwrap();
    std::fs::write(folder.path("q.jsonl"), "{\"query\": \"p\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n").unwrap();
    let flags = "--sft --seq-length 32 --global-batch-size 2";
    let talk = eval(&folder, 1, &format!("saved talk.jsonl {flags}"));
    let both = mpirun(
        1,
        &folder.0,
        &format!("eval saved talk.jsonl {flags} --multiple-choice q.jsonl").split_whitespace().collect::<Vec<_>>(),
    );
    expect(&both, 0, &[&format!("\"loss\":{}", talk[0]["loss"]), "\"acc\""]);
}

#[test]
fn a_dry_evaluation_evaluates_nothing_and_a_wrong_one_says_what_is_wrong() {
    let folder = Folder::new("eval-dry");
    text(&folder.0, "text.txt", 20);
    expect(&run(1, &folder.0, "--steps 1"), 0, &["done: loss"]);
    let dry = mpirun(1, &folder.0, &["eval", "saved", "text.txt", "--dry-run"]);
    expect(&dry, 0, &[]);
    assert!(!printed(&dry).contains("loss"));
    std::fs::write(folder.path("short.txt"), "short").unwrap();
    for (arguments, parts) in [
        ("eval saved short.txt", ["short.txt", "holds 6 tokens"]),
        ("eval saved none.txt", ["none.txt", "cannot be read"]),
        ("eval none text.txt", ["none", "does not exist"]),
        ("eval saved text.txt --data-path x", ["eval with data.path", "the argument DATA names it"]),
        ("eval saved text.txt --samples 0", ["--samples", "0"]),
        ("eval saved text.txt --fp8-format hybrid --bf16 --fp8-recipe delayed", ["delayed", "earlier training steps"]),
    ] {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        expect(&mpirun(1, &folder.0, &arguments), 2, &parts);
    }
}
