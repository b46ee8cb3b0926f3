//! The length and the usual settings of fine-tuning: epochs, learning rates, and options that follow the model.

use std::path::Path;
use std::process::{Command, Output};

use tokenizers::AddedToken;

use crate::data_files::{LICENSES, small_tokenizer};
use crate::harness::{Folder, expect, metrics, printed, run};
use crate::sft::{flags, write_chats};

fn trainer(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.args(line.split_whitespace()).current_dir(folder).output().unwrap()
}

#[test]
fn epochs_become_the_steps_that_have_as_many_samples() {
    let (folder, steps) = (Folder::new("epochs"), Folder::new("epochs-as-steps"));
    for folder in [&folder, &steps] {
        write_chats(&folder.0);
    }
    // 2.5 passes over 20 conversations are 50 samples: 7 steps of 8.
    let more = "--global-batch-size 8 --micro-batch-size 2 --lr 1e-3 --save-interval 4";
    let output = run(1, &folder.0, &flags(&folder.0, &format!("{more} --epochs 2.5")));
    expect(&output, 0, &[", 2.8 epochs of 20 conversations", "step 7/7", "done: loss"]);
    let output = run(1, &steps.0, &flags(&steps.0, &format!("{more} --steps 7")));
    expect(&output, 0, &["2.8 epochs of 20 conversations", "done: loss"]);
    assert_eq!((metrics(&folder.0), metrics(&folder.0).len()), (metrics(&steps.0), 7));
    let config = std::fs::read_to_string(folder.path("log/config.toml")).unwrap();
    assert!(config.contains("steps = 7") && !config.contains("\nepochs"), "{config}");
    let output = run(1, &folder.0, &flags(&folder.0, &format!("{more} --epochs 2.5")));
    expect(&output, 0, &["done before: 7 of 7 steps"]);
    let output = run(2, &folder.0, &flags(&folder.0, &format!("{more} --epochs 4")));
    expect(&output, 0, &["4.0 epochs of 20 conversations", "step 10/10", "done: loss"]);

    let chats = "--data-path chats.jsonl --chat-template template.jinja --sft --seq-length 48 --device host";
    for (line, says) in [
        ("--epochs 1", "train.epochs = 1, and passes over these data cannot be counted: "),
        ("--epochs 0 --data-path chats.jsonl", "train.epochs = 0. Rule: a run has more than 0 epochs"),
        ("--epochs 1 --steps 5", "train.steps = 5 with train.epochs = 1"),
        ("--epochs 1 --data-path none.jsonl --dry-run", "cannot be counted: data.path = none.jsonl is missing"),
    ] {
        expect(&trainer(&folder.0, line), 2, &[says, "Fix: "]);
    }
    let line = format!("plan --gpu h200 --ranks 1 -- {chats} --epochs 2 --split 1 --global-batch-size 4");
    expect(&trainer(&folder.0, &line), 0, &["the run   10 steps, 2.0 epochs of 20 conversations, in "]);
    std::fs::write(folder.path("text.txt"), "some words ".repeat(100)).unwrap();
    let line = "--data-path text.txt --seq-length 16 --steps 2 --eval-interval 0 --split 1 --dry-run --device host";
    expect(&trainer(&folder.0, line), 0, &[" epochs of ", " samples"]);
}

/// A folder with tokens, a tokenizer, a model of Hugging Face with that tokenizer, and conversations.
fn with_model(name: &str) -> Folder {
    let folder = Folder::new(name);
    write_chats(&folder.0);
    let text = std::fs::read_to_string(format!("{LICENSES}/GPL-3")).unwrap();
    std::fs::create_dir(folder.path("gpt2")).unwrap();
    std::fs::write(folder.path("text.txt"), &text).unwrap();
    small_tokenizer(&folder.path("gpt2/tokenizer.json"), &text);
    for line in [
        "tokenize --tokenizer gpt2 --output tokens text.txt",
        "--preset tiny-llama --seq-length 64 --steps 1 --eval-interval 0 --data-path tokens --save first --log-dir first \
         --device host",
        "convert --to hf first llama-hf",
    ] {
        let output = trainer(&folder.0, line);
        assert!(output.status.success(), "{line}: {}", printed(&output));
    }
    folder
}

#[test]
fn the_tokenizer_follows_the_model_and_the_vocabulary_follows_the_tokenizer() {
    let folder = with_model("followed");
    for line in ["--tokenizer gpt2 --data-path text.txt", "--data-path tokens"] {
        let output = trainer(&folder.0, &format!("{line} --hidden-size 64 --dry-run --device host"));
        expect(&output, 0, &["model.vocab = 400: the tokens of ", "has so many rows, 100.00 KiB in f32 (--vocab)"]);
    }
    // Bytes, a preset and a number of the user stay.
    for line in [
        "--data-path text.txt",
        "--tokenizer gpt2 --data-path text.txt --vocab 500",
        "--tokenizer gpt2 --data-path text.txt --preset gpt2-124m --seq-length 64",
    ] {
        let output = trainer(&folder.0, &format!("{line} --dry-run --device host"));
        assert!(output.status.success() && !printed(&output).contains("model.vocab = 400"), "{}", printed(&output));
    }
    let follows = "data.tokenizer = llama-hf: the tokenizer of the model that training starts from";
    let output = trainer(&folder.0, "--init-from llama-hf --data-path text.txt --steps 1 --device host --save text");
    expect(
        &output,
        0,
        &[
            follows,
            "fine-tuning takes optimizer.lr = 2e-5 for all weights (--lr) and a warm-up of 1 step, 3 %",
            "done: loss",
        ],
    );
    // A resumed run finds the tokenizer in its checkpoint.
    std::fs::rename(folder.path("llama-hf"), folder.path("moved")).unwrap();
    let output = trainer(&folder.0, "--init-from llama-hf --data-path text.txt --steps 2 --device host --save text");
    expect(&output, 0, &["the tokenizer of the model that training starts from", "step 2/2", "done: loss"]);
    std::fs::rename(folder.path("moved"), folder.path("llama-hf")).unwrap();
    for line in ["--data-path tokens", "--data-path text.txt --tokenizer gpt2"] {
        let output = trainer(&folder.0, &format!("--init-from llama-hf {line} --dry-run --device host"));
        assert!(output.status.success() && !printed(&output).contains("data.tokenizer"), "{}", printed(&output));
    }
}

#[test]
fn conversations_and_adapters_have_rates_of_their_own() {
    let folder = with_model("rates");
    let line = "--init-from llama-hf --sft --chat-template chatml --data-path chats.jsonl --split 1 --eval-interval 0 --epochs 1 \
                --log-dir log --device host";
    let output = trainer(&folder.0, line);
    expect(
        &output,
        0,
        &["fine-tuning takes optimizer.lr = 2e-5 for all weights (--lr)", "1.6 epochs of 20 conversations"],
    );
    // A warm-up of one step: the first has half of the rate.
    assert!((metrics(&folder.0)[0][2].as_f64().unwrap() / 1e-5 - 1.0).abs() < 1e-6);
    let output = trainer(&folder.0, &format!("{line} --lora-rank 2 --steps 1").replace("--epochs 1", ""));
    expect(&output, 0, &["fine-tuning takes optimizer.lr = 2e-4 for adapters (--lr)"]);
    let output = trainer(&folder.0, &format!("{line} --lr 1e-3 --lr-warmup-steps 0 --dry-run"));
    assert!(output.status.success() && !printed(&output).contains("fine-tuning takes"), "{}", printed(&output));
}

#[test]
fn a_model_without_a_template_trains_with_that_of_its_family() {
    let folder = Folder::new("family");
    write_chats(&folder.0);
    for (name, token) in [("gemma", "<start_of_turn>"), ("llama3", "<|start_header_id|>"), ("none", "<|other|>")] {
        std::fs::create_dir(folder.path(name)).unwrap();
        let mut tokenizer = small_tokenizer(&folder.path(name).join("tokenizer.json"), "some words");
        tokenizer.add_special_tokens([AddedToken::from(token, true)]).unwrap();
        tokenizer.save(folder.path(name).join("tokenizer.json"), false).unwrap();
        let shown = trainer(&folder.0, &format!("data inspect --sft --tokenizer {name} --samples 1 chats.jsonl"));
        let run = format!("--sft --tokenizer {name} --data-path chats.jsonl --seq-length 256 --dry-run --device host");
        let run = trainer(&folder.0, &run);
        if name == "none" {
            let needed = ["none has no chat template", "(chatml, llama3, gemma, mistral): --chat-template chatml"];
            expect(&shown, 2, &needed);
            expect(&run, 2, &needed);
            continue;
        }
        let line = format!(
            "{name} has no chat template: the built-in one of {name} is used, because its tokenizer has {token}."
        );
        expect(&shown, 0, &[&line, "read as messages", "»blue<"]);
        expect(&run, 0, &[&line, "read as messages"]);
        // A template of the folder counts first.
        std::fs::copy(folder.path("template.jinja"), folder.path(name).join("chat_template.jinja")).unwrap();
        let shown = trainer(&folder.0, &format!("data inspect --sft --tokenizer {name} --samples 1 chats.jsonl"));
        expect(&shown, 0, &["Q sky A »blue;«"]);
    }
}
