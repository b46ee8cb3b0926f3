//! Texts that the model writes while it trains.

use serde_json::Value;

use crate::harness::{Folder, cases, expect, metrics, printed, run, trainer};

/// Every line of `samples.jsonl`.
fn samples(folder: &Folder) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.path("log/samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn with_prompts(name: &str, prompts: &str) -> Folder {
    let folder = Folder::new(name);
    std::fs::write(folder.path("prompts.txt"), prompts).unwrap();
    folder
}

/// The flags of a run that writes samples.
fn flags(folder: &Folder, more: &str) -> String {
    format!("--sample-interval 2 --sample-prompts {} {more}", folder.path("prompts.txt").display())
}

#[test]
fn samples_are_logged_and_change_no_bit_of_the_training() {
    let without = Folder::new("samples-without");
    expect(&run(1, &without.0, "--steps 5"), 0, &["done: loss"]);
    for (ranks, graphs) in [(1, ""), (1, "--enable-cuda-graph --check-graphs"), (2, "--enable-cuda-graph")] {
        let folder = with_prompts("samples", "ab\n\ncd \n");
        let output = run(ranks, &folder.0, &flags(&folder, &format!("--steps 5 {graphs}")));
        expect(&output, 0, &["done: loss", "  sample: ab -> ", "  sample: cd  -> "]);
        assert_eq!(printed(&output).matches("  sample: ").count(), 6, "{}", printed(&output));
        let lines = samples(&folder);
        assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4, 5]);
        for line in &lines {
            let texts = line["samples"].as_array().unwrap();
            assert_eq!(texts.iter().map(|text| text["prompt"].as_str().unwrap()).collect::<Vec<_>>(), ["ab", "cd "]);
            assert!(texts.iter().all(|text| !text["text"].as_str().unwrap().is_empty()), "{line}");
        }
        if ranks == 1 {
            assert_eq!(metrics(&folder.0), metrics(&without.0), "{graphs}");
        }
        expect(&trainer(&folder.0, "report log --output page.html"), 0, &[]);
        let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
        assert!(page.contains("<h2 id=\"samples-heading\">Samples</h2>") && page.contains("After &quot;ab&quot;"));
    }
}

#[test]
fn a_plan_counts_the_memory_of_samples() {
    let folder = with_prompts("samples-plan", "ab\n");
    let memory = |flags: &str| {
        let output = run(1, &folder.0, &format!("--dry-run --steps 5 {flags}"));
        expect(&output, 0, &["memory"]);
        let text = printed(&output);
        let line = text.lines().find(|line| line.contains(" memory ")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let kib: f64 = words[2].parse().unwrap();
        assert_eq!(words[3], "KiB", "{line}");
        kib
    };
    let (without, with) = (memory(""), memory(&flags(&folder, "")));
    assert!(with > without, "{with} KiB with samples and {without} without");
}

#[test]
fn the_last_sample_is_the_text_of_trainer_sample_and_a_resumed_run_has_each_once() {
    for adapters in ["", "--lora-rank 4 --lr 1e-2"] {
        last_sample_and_resumed_run(adapters);
    }
}

fn last_sample_and_resumed_run(adapters: &str) {
    let folder = with_prompts("samples-resumed", "ab\n");
    let more = |steps: usize| flags(&folder, &format!("--steps {steps} --save-interval 3 {adapters}"));
    expect(&run(1, &folder.0, &more(4)), 0, &["done: loss"]);
    let written = trainer(&folder.0, "sample --prompt ab --tokens 64 --threads 1 --checkpoint saved");
    let text = samples(&folder)[1]["samples"][0]["text"].as_str().unwrap().to_string();
    assert_eq!(String::from_utf8_lossy(&written.stdout), format!("ab{text}\n"));
    std::fs::remove_dir_all(folder.path("saved/step-00000004")).unwrap();
    expect(&run(1, &folder.0, &more(6)), 0, &["at step 3", "done: loss"]);
    let lines = samples(&folder);
    assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4, 6]);
    assert_eq!(lines[1]["samples"][0]["text"], text);
}

#[test]
fn a_run_that_cannot_write_samples_is_refused_with_the_reason() {
    let folder = with_prompts("samples-refused", "ab\n");
    for (line, parts) in cases("samples") {
        let (ranks, more) = line.split_once(' ').unwrap();
        let flags = format!("--sample-prompts {} --steps 1 {more}", folder.path("prompts.txt").display());
        expect(&run(ranks.parse().unwrap(), &folder.0, &flags), 2, &parts);
    }
    std::fs::write(folder.path("prompts.txt"), "\n \n").unwrap();
    expect(&run(1, &folder.0, &flags(&folder, "--steps 1")), 2, &["prompts.txt has 0 lines with text"]);
    std::fs::write(folder.path("prompts.txt"), "a prompt of more than sixteen bytes").unwrap();
    expect(&run(1, &folder.0, &flags(&folder, "--steps 1")), 2, &["`a prompt of more", "the prompt has 35 tokens"]);
    std::fs::remove_file(folder.path("prompts.txt")).unwrap();
    expect(&run(1, &folder.0, &flags(&folder, "--steps 1")), 2, &["prompts.txt cannot be read"]);
}
