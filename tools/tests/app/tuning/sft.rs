//! Supervised fine-tuning: training on the answers of conversations, and talking with the model.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::harness::{
    Folder, cases, checkpoint, copy_folder, expect, metrics, printed, run, saved, stdout_of, trainer,
};

/// A model learns four answers. All conversations are short, so that they fit the model's context of 48 bytes.
const TAUGHT: [(&str, &str); 4] = [("sky", "blue"), ("sun", "yellow"), ("grass", "green"), ("snow", "white")];

/// The template of these tests: `Q sky A blue;`.
pub const TEMPLATE: &str = "{% for m in messages %}{{ 'Q ' + m.content + ' ' if m.role == 'user' else 'A ' + m.content + ';' }}\
                        {% endfor %}{% if add_generation_prompt %}A {% endif %}";

/// A conversation of questions and the answers that are taught, as a line.
fn line(questions: &[usize]) -> String {
    let turn = |&at: &usize| {
        let (question, answer) = TAUGHT[at];
        format!(
            "{{\"role\": \"user\", \"content\": \"{question}\"}}, {{\"role\": \"assistant\", \"content\": \"{answer}\"}}"
        )
    };
    format!("{{\"messages\": [{}]}}\n", questions.iter().map(turn).collect::<Vec<_>>().join(", "))
}

/// Writes the chat set, of one and of two turns, and the template.
pub fn write_chats(folder: &Path) {
    let pairs = (0..4).flat_map(|a| (0..4).map(move |b| line(&[a, b])));
    let lines: String = (0..4).map(|a| line(&[a])).chain(pairs).collect();
    std::fs::write(folder.join("chats.jsonl"), lines).unwrap();
    std::fs::write(folder.join("template.jinja"), TEMPLATE).unwrap();
}

/// The flags of a run on the chat set in `folder`.
pub fn flags(folder: &Path, more: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        "--data-path {} --chat-template {} --sft --split 1 --eval-interval 0 --seq-length 48 --hidden-dropout 0 \
         --attention-dropout 0 {more}",
        at("chats.jsonl"),
        at("template.jinja")
    )
}

/// A conversation with the model of a checkpoint, always with the likeliest token.
fn chat(checkpoint: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.args([
        "chat",
        "--temperature",
        "0",
        "--tokens",
        "12",
        "--threads",
        "1",
        "--device",
        "host",
        "--checkpoint",
    ]);
    command.arg(checkpoint);
    command
}

/// The answers of the model of a checkpoint to lines of input.
pub fn answers(checkpoint: &Path, input: &str) -> String {
    let mut command = chat(checkpoint);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = command.spawn().unwrap();
    chat.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = chat.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a terminal of [`chat`] shows. Each of the keys is typed when the text before it has come, after that of the one before.
fn on_a_terminal(checkpoint: &Path, keys: &[(&str, &str)]) -> String {
    let mut terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map(File::from).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let end = || Stdio::from(File::options().read(true).write(true).open(&path).unwrap());
    let mut command = chat(checkpoint);
    let mut child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop(command); // it holds the other end too
    let (mut shown, mut buffer, mut seen, mut next) = (String::new(), [0; 4096], 0, keys.iter().peekable());
    while let Ok(read @ 1..) = terminal.read(&mut buffer) {
        shown += &String::from_utf8_lossy(&buffer[..read]);
        while let Some((awaited, keys)) = next.peek()
            && let Some(at) = shown[seen..].find(awaited)
        {
            seen += at + awaited.len();
            terminal.write_all(keys.as_bytes()).unwrap();
            next.next();
        }
    }
    assert!(child.wait().unwrap().success(), "{shown}");
    shown
}

#[test]
fn greedy_answers_become_those_that_were_taught_also_in_a_second_turn() {
    let (folder, untaught) = (Folder::new("sft"), Folder::new("sft-untaught"));
    for folder in [&folder, &untaught] {
        write_chats(&folder.0);
    }
    expect(&run(1, &untaught.0, &flags(&untaught.0, "--steps 1")), 0, &["done: loss"]);
    let more = "--steps 150 --hidden-size 64 --num-attention-heads 4 --lr 5e-3 --min-lr 5e-4 --save-interval 1000";
    let output = run(1, &folder.0, &flags(&folder.0, more));
    // Of `Q sky A blue;` the loss is on `blue;`.
    expect(&output, 0, &["read as messages: ", "20 conversations, 0 cut to 48 tokens", "the loss is on", "done: loss"]);
    assert_ne!(answers(&untaught.path("saved"), "sky\n"), "blue\n");
    assert_eq!(answers(&folder.path("saved"), "sky\n\nsnow\n"), "blue\nwhite\n");
    assert_eq!(answers(&folder.path("saved"), "grass\nsun\n"), "green\nyellow\n");
    // On a terminal a key takes a letter back, and the arrow key brings back the line before.
    let keys = [("> ", "skx\u{7f}y\r"), ("blue", ""), ("> ", "\u{1b}[A\r"), ("blue", ""), ("> ", "\u{4}")];
    let shown = on_a_terminal(&folder.path("saved"), &keys);
    assert!(shown.contains("2 answers") && shown.matches("blue").count() == 2, "{shown}");
    // The checkpoint has the template, so `chat` was not told of one.
    let saved = std::fs::read_to_string(folder.path("saved/step-00000150/chat_template.jinja")).unwrap();
    assert_eq!(saved, TEMPLATE);
}

#[test]
fn every_layout_has_the_loss_of_one_rank_though_microbatches_have_different_numbers_of_answers() {
    let steps = |ranks: usize, more: &str| {
        let folder = Folder::new("sft-layout");
        write_chats(&folder.0);
        let more = format!("--steps 4 --lr 3e-3 --global-batch-size 8 --layers 2 {more}");
        expect(&run(ranks, &folder.0, &flags(&folder.0, &more)), 0, &["done: loss"]);
        metrics(&folder.0)
    };
    let one = steps(1, "--micro-batch-size 1");
    for (ranks, more) in [
        (1, "--micro-batch-size 4 --enable-cuda-graph --cuda-graph-scope full_iteration"),
        (2, "--micro-batch-size 1 --enable-cuda-graph"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (2, "--pipeline-model-parallel-size 2"),
    ] {
        for (step, (ours, theirs)) in one.iter().zip(steps(ranks, more)).enumerate() {
            let loss = |line: &serde_json::Value| line[0].as_f64().unwrap();
            assert!((loss(&theirs) / loss(ours) - 1.0).abs() < 1e-5, "{more}, step {step}: {ours} and {theirs}");
        }
    }
}

#[test]
fn packed_conversations_teach_the_same_answers_and_train_alike_in_every_layout() {
    let (folder, resumed) = (Folder::new("sft-packed"), Folder::new("sft-packed-resumed"));
    for folder in [&folder, &resumed] {
        write_chats(&folder.0);
    }
    // 4 conversations of 15 to 17 tokens, and 16 of about twice as many.
    let packing = "--sft-packing 3 --global-batch-size 4 --micro-batch-size 2";
    let more = format!("{packing} --steps 250 --hidden-size 64 --num-attention-heads 4 --lr 5e-3 --min-lr 5e-4");
    let output = run(1, &folder.0, &flags(&folder.0, &format!("{more} --save-interval 1000")));
    expect(&output, 0, &["20 conversations, 0 cut to 48 tokens, packed into ", "done: loss"]);
    assert_eq!(answers(&folder.path("saved"), "sky\n\nsnow\n"), "blue\nwhite\n");
    let steps = |ranks: usize, more: &str| {
        let folder = Folder::new("sft-packed-layout");
        write_chats(&folder.0);
        let more = format!("--sft-packing 3 --lr 3e-3 --global-batch-size 8 --steps 4 --layers 4 {more}");
        expect(&run(ranks, &folder.0, &flags(&folder.0, &more)), 0, &["done: loss"]);
        metrics(&folder.0)
    };
    let one = steps(1, "--micro-batch-size 2");
    for (ranks, more) in [
        (1, "--micro-batch-size 4 --enable-cuda-graph --cuda-graph-scope full_iteration"),
        (2, "--micro-batch-size 1 --enable-cuda-graph"),
        (4, "--micro-batch-size 1 --pipeline-model-parallel-size 4 --enable-cuda-graph"),
    ] {
        for (step, (ours, theirs)) in one.iter().zip(steps(ranks, more)).enumerate() {
            let loss = |line: &serde_json::Value| line[0].as_f64().unwrap();
            assert!((loss(&theirs) / loss(ours) - 1.0).abs() < 1e-5, "{more}, step {step}: {ours} and {theirs}");
        }
    }
    let first = format!("{packing} --steps 4 --save-interval 4");
    expect(&run(1, &resumed.0, &flags(&resumed.0, &first)), 0, &["done: loss"]);
    let other = "--sft-packing 2 --global-batch-size 4 --micro-batch-size 2 --steps 8";
    expect(&run(1, &resumed.0, &flags(&resumed.0, other)), 0, &["data.sft_packing = 2 (was 3)", "at step 4"]);
}

#[test]
fn checkpoints_with_a_chat_template_are_pruned_and_one_that_was_not_finished_does_not_stop_the_next_start() {
    for ranks in [1, 2] {
        let folder = Folder::new("sft-pruned");
        write_chats(&folder.0);
        let run = |steps: usize| {
            let more = format!("--steps {steps} --save-interval 1 --checkpoint-keep 2 --sft-packing 3");
            run(ranks, &folder.0, &flags(&folder.0, &more))
        };
        expect(&run(4), 0, &["done: loss"]);
        assert_eq!(saved(&folder.0), [3, 4]);
        // The remains of a checkpoint after a kill, and of one that was being removed.
        std::fs::rename(checkpoint(&folder.0, 4), folder.path("saved/step-00000005.tmp")).unwrap();
        std::fs::remove_file(folder.path("saved/step-00000005.tmp/manifest.json")).unwrap();
        copy_folder(&checkpoint(&folder.0, 3), &folder.path("saved/step-00000002.old.tmp"));
        expect(&run(6), 0, &["at step 3", "done: loss"]);
        assert_eq!(saved(&folder.0), [5, 6]);
    }
}

#[test]
fn an_evaluation_of_packed_conversations_has_the_loss_of_each_alone() {
    let folder = Folder::new("sft-packed-eval");
    write_chats(&folder.0);
    expect(&run(1, &folder.0, &flags(&folder.0, "--steps 1 --save-interval 1")), 0, &["done: loss"]);
    let at = |name: &str| folder.path(name).display().to_string();
    let (saved, chats, template) = (at("saved"), at("chats.jsonl"), at("template.jinja"));
    let result = |packing: &str| -> serde_json::Value {
        // The last global batch of eight has places without a sample.
        let sft = ["--sft", "--chat-template", &template, "--seq-length", "48", "--sft-packing", packing];
        let run = ["--global-batch-size", "8", "--micro-batch-size", "2", "--device", "host"];
        let printed = stdout_of(&[&["eval", &saved, &chats][..], &sft, &run].concat());
        serde_json::from_str(printed.lines().last().unwrap()).unwrap()
    };
    let alone = result("1");
    assert_eq!(alone["samples"], 20);
    for packing in ["2", "3"] {
        let packed = result(packing);
        assert!(
            packed["samples"].as_u64().unwrap() < 20 && packed["tokens"] == alone["tokens"],
            "{packed} and {alone}"
        );
        let loss = |of: &serde_json::Value| of["loss"].as_f64().unwrap();
        assert!((loss(&packed) / loss(&alone) - 1.0).abs() < 1e-6, "{packed} and {alone}");
    }
}

#[test]
fn inspect_shows_which_tokens_count() {
    let folder = Folder::new("sft-inspect");
    write_chats(&folder.0);
    let at = |name: &str| folder.path(name).display().to_string();
    let (chats, template) = (at("chats.jsonl"), at("template.jinja"));
    let shown = stdout_of(&["data", "inspect", "--sft", "--chat-template", &template, "--samples", "6", &chats]);
    assert!(shown.starts_with(&format!("{chats}: 20 conversations, ")), "{shown}");
    for part in ["  conversation 1: Q sky A »blue;«\n", "  conversation 6: Q sky A »blue;«Q sun A »yellow;«"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_template_that_leaves_out_or_cuts_answers_is_refused_and_one_that_does_so_at_times_is_told() {
    let folder = Folder::new("sft-lost-answers");
    write_chats(&folder.0);
    let inspect = |name: &str, template: &str, data: &str| {
        std::fs::write(folder.path(name), template).unwrap();
        trainer(&folder.0, &format!("data inspect --sft --chat-template {name} {data}"))
    };
    // ShareGPT's name for a content; the first letters of answers; a template that marks something else.
    for (name, template, says) in [
        ("value.jinja", TEMPLATE.replace("'A ' + m.content", "'A ' + (m.value or '')"), "what is learned is \";\""),
        ("cuts.jinja", TEMPLATE.replace("'A ' + m.content", "'A ' + m.content[:3]"), "what is learned is \"blu;\""),
        (
            "marks.jinja",
            "{% for m in messages %}{{ m.content }}{% generation %};{% endgeneration %}{% endfor %}".into(),
            "what is learned is \";\" and \";\"",
        ),
    ] {
        let refused = format!("the chat template of {name} leaves out or changes an answer of each of the first 16 ");
        let example = format!("chats.jsonl line 1 message 2, \"blue\", and {says}");
        expect(&inspect(name, &template, "chats.jsonl"), 2, &[&refused, &example, "Fix: correct the template"]);
    }
    let flags = flags(&folder.0, "--steps 1").replace("template.jinja", "value.jinja");
    expect(&trainer(&folder.0, &flags), 2, &["value.jinja leaves out or changes an answer", "message 2, \"blue\""]);

    // Of 20 conversations 1 + 7 have the answer that it changes.
    let at_times = TEMPLATE.replace("'A ' + m.content", "'A ' + m.content.replace('green', 'red')");
    let told = "the chat template of at-times.jinja leaves out or changes an answer in 8 of 20 conversations (40 %): \
                chats.jsonl line 3 message 2, \"green\", and what is learned is \"red;\"";
    expect(&inspect("at-times.jinja", &at_times, "chats.jsonl"), 0, &[told]);

    // White space around answers, thoughts, answers of weight 0 and those without text are no loss.
    let thinks = TEMPLATE.replace("'A ' + m.content", "'A ' + m.content.split('</think>')[-1] | trim");
    let line = |more: &str| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"a\"}}, {{\"role\": \"assistant\", {more}}}, \
             {{\"role\": \"user\", \"content\": \"a\"}}, {{\"role\": \"assistant\", \"content\": \"b\"}}]}}\n"
        )
    };
    let whole = ["\"content\": \" b \\n\"", "\"content\": \"<think>c</think>\\n\\nb\"", "\"content\": \"\""];
    std::fs::write(folder.path("whole.jsonl"), whole.map(line).concat()).unwrap();
    let output = inspect("thinks.jinja", &thinks, "whole.jsonl");
    expect(&output, 0, &["3 conversations"]);
    assert!(!printed(&output).contains("leaves out"), "{}", printed(&output));
    std::fs::write(folder.path("read.jsonl"), line("\"content\": \"xyz\", \"weight\": 0")).unwrap();
    let drops = TEMPLATE.replace("'A ' + m.content", "'A ' + m.content.replace('xyz', '')");
    let output = inspect("drops.jinja", &drops, "read.jsonl");
    assert!(!printed(&output).contains("leaves out"), "{}", printed(&output));
}

#[test]
fn conversations_that_cannot_be_used_are_refused_by_name() {
    let folder = Folder::new("sft-refused");
    write_chats(&folder.0);
    let write = |name: &str, text: &str| std::fs::write(folder.path(name), text).unwrap();
    write("texts.jsonl", "{\"text\": \"words\"}\n");
    write("questions.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
    let talk = |answer: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "x"}}, {{"role": "assistant", "content": "y"{answer}}}]}}"#
        )
    };
    write("read.jsonl", &talk(r#", "weight": 0"#));
    write("long.jsonl", &talk(""));
    write("counts.jinja", "{{ messages | length }}{{ messages[-1].content }}");
    for (flags, says) in cases("conversations") {
        let output = trainer(&folder.0, &format!("{flags} --steps 1"));
        expect(&output, 2, &says);
        expect(&output, 2, &["Rule: ", "Fix: "]);
    }
}
