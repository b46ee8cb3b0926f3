//! Samples of several lengths: a step is as long as its longest conversation, and trains as if all were filled.

use std::path::Path;

use serde_json::Value;

use crate::harness::{
    Folder, assert_like, assert_same, bits, copy_run, expect, metrics, printed, run, stdout_of, trainer,
};
use crate::mistakes::all_refused;

/// `Q question A answer;`
const TEMPLATE: &str =
    "{% for m in messages %}{{ 'Q ' + m.content + ' ' if m.role == 'user' else 'A ' + m.content + ';' }}{% endfor %}";

/// Writes 40 conversations: most are short, some of up to 70 tokens.
fn write_chats(folder: &Path) {
    let line = |number: usize| {
        let words = if number % 5 == 4 { 3 + number % 14 } else { 1 + number % 3 };
        let answer = ["abc", "de", "fgh"].iter().cycle().take(words).copied().collect::<Vec<_>>().join(" ");
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"q{number}\"}}, \
             {{\"role\": \"assistant\", \"content\": \"{answer}\"}}]}}\n"
        )
    };
    std::fs::write(folder.join("chats.jsonl"), (0..40).map(line).collect::<String>()).unwrap();
    std::fs::write(folder.join("template.jinja"), TEMPLATE).unwrap();
}

const LENGTHS: &str = "--seq-length-buckets 20,36,64";

/// The flags of a run on the conversations in `folder`.
fn flags(folder: &Path, more: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        "--data-path {} --chat-template {} --sft --split 0.8 --eval-interval 4 --seq-length 64 --hidden-dropout 0 \
         --attention-dropout 0 --lr 3e-3 --global-batch-size 4 --layers 2 --steps 12 {more}",
        at("chats.jsonl"),
        at("template.jinja")
    )
}

/// A folder with the conversations after a run, and what the run printed.
fn trained(ranks: usize, more: &str) -> (Folder, String) {
    let folder = Folder::new("buckets");
    write_chats(&folder.0);
    let output = run(ranks, &folder.0, &flags(&folder.0, more));
    expect(&output, 0, &["done: loss"]);
    let text = printed(&output);
    (folder, text)
}

/// The length of each step in the metrics.
fn lengths(folder: &Folder) -> Vec<u64> {
    let text = std::fs::read_to_string(folder.path("log/metrics.jsonl")).unwrap();
    let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["seq_length"].as_u64().unwrap();
    text.lines().map(step).collect()
}

#[test]
fn steps_of_every_length_train_as_samples_of_the_whole_length_do_in_every_layout() {
    let (whole, _) = trained(1, "");
    for (ranks, more) in [
        (1, ""),
        (1, "--micro-batch-size 2 --enable-cuda-graph --cuda-graph-scope full_iteration"),
        (2, "--enable-cuda-graph"),
        (2, "--pipeline-model-parallel-size 2 --enable-cuda-graph --cuda-graph-scope per_chunk"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    ] {
        let (folder, said) = trained(ranks, &format!("{LENGTHS} {more}"));
        assert_like(12, &metrics(&folder.0), &metrics(&whole.0), more);
        let lengths = lengths(&folder);
        assert!([20, 36, 64].iter().all(|length| lengths.contains(length)), "{more}: {lengths:?}");
        assert!(said.contains("of steps; ") && said.contains("% of the tokens of filled samples"), "{said}");
    }
}

#[test]
fn every_scope_has_the_bits_of_graphs_off_and_verified_steps_differ_nowhere() {
    let (plain, _) = trained(1, &format!("{LENGTHS} --save-interval 12"));
    for more in [
        "--cuda-graph-scope per_layer --verify-cuda-graph 1",
        "--cuda-graph-scope per_chunk",
        "--cuda-graph-scope full_iteration --verify-cuda-graph 1",
        "--cuda-graph-mempool single --check-graphs",
    ] {
        let (folder, said) = trained(1, &format!("{LENGTHS} --save-interval 12 --enable-cuda-graph {more}"));
        assert_same(&folder, &plain, more);
        // The graphs of each length are told when they are captured.
        assert_eq!(said.matches("\ngraphs: those of samples of ").count(), 2, "{more}: {said}");
        assert!(said.contains(" for evaluation; as many for"), "{more}: {said}");
        assert!(!more.contains("verify") || said.contains("verified: "), "{more}: {said}");
    }
}

#[test]
fn conversations_of_like_length_in_a_batch_make_steps_short() {
    let of = |more: &str| {
        let (folder, _) = trained(1, &format!("{LENGTHS} {more}"));
        lengths(&folder)
    };
    let (random, grouped) = (of(""), of("--group-by-length"));
    // Eight steps are an epoch of 32 conversations.
    let tokens = |lengths: &[u64]| lengths[..8].iter().sum::<u64>();
    assert!(tokens(&grouped) < tokens(&random), "{grouped:?} and {random:?}");
    assert!(!grouped[..8].is_sorted(), "{grouped:?}");
    let [one, two] = [1, 2].map(|ranks| trained(ranks, &format!("{LENGTHS} --group-by-length")).0);
    assert_like(12, &metrics(&two.0), &metrics(&one.0), "two ranks");
    // Without lengths it has no effect, and says so.
    let ((plain, _), (unused, said)) = (trained(1, ""), trained(1, "--group-by-length"));
    assert_eq!(metrics(&unused.0), metrics(&plain.0));
    assert!(said.contains("data.group_by_length = true has no effect"), "{said}");
}

#[test]
fn a_run_that_goes_on_within_a_batch_of_like_lengths_is_told() {
    let more = format!("{LENGTHS} --group-by-length --save-interval 6");
    let (unbroken, _) = trained(1, &more);
    for (batch, is_told) in [(16, true), (8, false)] {
        let resumed = Folder::new("buckets-split");
        write_chats(&resumed.0);
        copy_run(&unbroken.0, &resumed.0, 6);
        let flags = flags(&resumed.0, &more).replace("--global-batch-size 4", &format!("--global-batch-size {batch}"));
        let output = run(1, &resumed.0, &flags);
        expect(&output, 0, &["at step 6", "done: loss"]);
        let said = printed(&output);
        assert_eq!(said.contains("continues at sample 24, within one"), is_told, "{batch}: {said}");
        let other_order = format!("data.group_by_length = true in batches of {batch} (was true in batches of 4)");
        assert!(said.contains(&other_order), "{said}");
    }
}

#[test]
fn a_run_that_goes_on_in_another_order_says_what_it_reads_again_and_never() {
    let grouped = format!("{LENGTHS} --group-by-length --save-interval 6");
    let plain = format!("{LENGTHS} --save-interval 6");
    let [of_grouped, of_plain] = [&grouped, &plain].map(|flags| trained(1, flags).0);
    for (first, then, told) in [
        (&grouped, grouped.clone(), None),
        (&grouped, format!("{grouped} --micro-batch-size 1"), None),
        (&plain, format!("{plain} --threads 2"), None),
        (&grouped, format!("{grouped} --data-seed 9"), Some("(data.seed = 9 (was 1234))")),
        (&plain, grouped.clone(), Some("(data.group_by_length = true in batches of 4 (was false))")),
        (&grouped, plain.clone(), Some("(data.group_by_length = false (was true in batches of 4))")),
    ] {
        let unbroken = if first == &plain { &of_plain } else { &of_grouped };
        let resumed = Folder::new("buckets-order");
        write_chats(&resumed.0);
        copy_run(&unbroken.0, &resumed.0, 6);
        let output = run(1, &resumed.0, &flags(&resumed.0, &then));
        expect(&output, 0, &["at step 6", "done: loss"]);
        let said = printed(&output);
        let line = said.lines().find(|line| line.contains("the order of samples is another"));
        assert_eq!(line.is_some(), told.is_some(), "{then}: {said}");
        for part in [told.unwrap_or_default(), "sample 24 of it. So this pass reads ", " again, and leaves out "] {
            assert!(line.is_none_or(|line| line.contains(part)), "{part}: {said}");
        }
    }
}

#[test]
fn a_run_that_stopped_goes_on_with_the_same_lengths_and_bits() {
    for (ranks, more) in [(1, ""), (2, "--enable-cuda-graph"), (1, "--group-by-length")] {
        let more = format!("{LENGTHS} --save-interval 6 {more}");
        let (unbroken, _) = trained(ranks, &more);
        let resumed = Folder::new("buckets-resumed");
        write_chats(&resumed.0);
        copy_run(&unbroken.0, &resumed.0, 6);
        expect(&run(ranks, &resumed.0, &flags(&resumed.0, &more)), 0, &["at step 6", "done: loss"]);
        assert_eq!(metrics(&resumed.0), metrics(&unbroken.0), "{ranks} ranks");
        assert_eq!(lengths(&resumed), lengths(&unbroken), "{ranks} ranks");
        assert_eq!(bits(&resumed.0, 12), bits(&unbroken.0, 12), "{ranks} ranks");
    }
}

#[test]
fn an_evaluation_reads_every_sample_whole() {
    let (folder, _) = trained(1, &format!("{LENGTHS} --save-interval 12"));
    let [saved, chats, template] = ["saved", "chats.jsonl", "template.jinja"].map(|name| folder.path(name));
    let [saved, chats, template] = [&saved, &chats, &template].map(|path| path.to_str().unwrap());
    let common = ["--sft", "--chat-template", template, "--seq-length", "64", "--device", "host"];
    let of = |more: &[&str]| {
        let printed = stdout_of(&[&["eval", saved, chats][..], &common, more].concat());
        serde_json::from_str::<Value>(printed.lines().last().unwrap()).unwrap()["loss"].as_f64().unwrap()
    };
    assert_eq!(of(&["--seq-length-buckets", "20,36,64"]), of(&["--seq-length-buckets", "64"]));
}

#[test]
fn wrong_lengths_are_refused_by_name_before_any_work() {
    let folder = Folder::new("buckets-refused");
    write_chats(&folder.0);
    all_refused(&folder.0, "buckets");
    let twice_wrong = "--data-path chats.jsonl --sft --chat-template template.jinja --seq-length 64 --sft-packing 4 \
                       --seq-length-buckets 20,64,32";
    expect(&trainer(&folder.0, twice_wrong), 2, &["[20, 32, 64]", "packed samples are full"]);
}
