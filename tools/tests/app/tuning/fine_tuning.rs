//! The length and the usual settings of fine-tuning: epochs, learning rates, and options that follow the model.

use std::process::Command;

use serde_json::Value;
use tokenizers::AddedToken;

use super::lora::values;
use super::sft::{flags, write_chats};
use crate::data_files::{LICENSES, small_tokenizer};
use crate::harness::{Folder, expect, logged_steps, metrics, mpirun, printed, run, trainer};

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
    let line = "--init-from llama-hf --sft --chat-template template.jinja --data-path chats.jsonl --split 1 --eval-interval 0 \
                --epochs 1 --log-dir log --device host";
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
    for (name, tokens) in [
        ("gemma", &["<start_of_turn>", "<end_of_turn>"][..]),
        ("llama3", &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
        ("none", &["<|other|>"]),
    ] {
        let token = tokens[0];
        std::fs::create_dir(folder.path(name)).unwrap();
        let mut tokenizer = small_tokenizer(&folder.path(name).join("tokenizer.json"), "some words");
        tokenizer.add_special_tokens(tokens.iter().map(|token| AddedToken::from(*token, true))).unwrap();
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

#[test]
fn a_model_is_the_same_by_every_name_of_its_folder_in_every_command() {
    let folder = with_model("names");
    let sft = "--sft --data-path chats.jsonl --seq-length 64 --global-batch-size 4 --device host";
    let line = format!(
        "--init-from llama-hf {sft} --chat-template template.jinja --split 0.8 --eval-interval 2 --eval-iters 1 --save-best \
         --save saved --steps 2 --log-dir first-log"
    );
    expect(&trainer(&folder.0, &line), 0, &["done: loss"]);
    let newest = "saved/step-00000002";
    let mut results = Vec::new();
    for name in [newest, "saved", "saved/best"] {
        let outputs: Vec<String> = [
            format!("eval {name} chats.jsonl --sft --device host"),
            format!("data inspect --sft --tokenizer {name} chats.jsonl"),
            format!("sample --checkpoint {name} --prompt sky --tokens 5 --device host"),
            format!("sample --checkpoint {name} --tokenizer {name} --prompt sky --tokens 5 --device host"),
            format!("convert --to hf {name} converted"),
        ]
        .iter()
        .map(|line| {
            let output = trainer(&folder.0, line);
            assert!(output.status.success(), "{line}: {}", printed(&output));
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
        assert!(outputs[1].contains(&format!("tokenizer: {newest}\n")), "{}", outputs[1]);
        assert!(outputs[1].contains(" »yellow;«\n"), "{}", outputs[1]);
        let files =
            ["model.safetensors", "tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"];
        let files = files.map(|file| std::fs::read(folder.path("converted").join(file)).ok());
        assert!(files[..3].iter().all(Option::is_some), "{name}");
        std::fs::remove_dir_all(folder.path("converted")).unwrap();
        let chat = Command::new("sh")
            .args(["-c", "echo sky | $0 chat --checkpoint $1 --tokens 5 --device host"])
            .args([env!("CARGO_BIN_EXE_trainer"), name])
            .current_dir(&folder.0)
            .output()
            .unwrap();
        assert!(chat.status.success(), "{name}: {}", printed(&chat));
        let _ = std::fs::remove_dir_all(folder.path("log"));
        for tokenizer in ["", "--tokenizer saved"] {
            let line =
                format!("--init-from {name} {tokenizer} {sft} --split 1 --eval-interval 0 --steps 1 --log-dir log");
            let output = trainer(&folder.0, &line);
            expect(&output, 0, &["done: loss"]);
            let config = std::fs::read_to_string(folder.path("log/config.toml")).unwrap();
            for line in [format!("init_from = \"{newest}\""), format!("tokenizer = \"{newest}\"")] {
                assert!(config.contains(&line), "{name}: {config}");
            }
        }
        results.push((outputs, files, chat.stdout, metrics(&folder.0)));
    }
    assert!(results.iter().all(|result| *result == results[0]), "the names differ");
}

#[test]
fn markers_that_are_no_tokens_are_refused_or_become_tokens_that_the_model_and_its_export_have() {
    let folder = with_model("markers");
    let sft =
        "--sft --data-path chats.jsonl --seq-length 64 --global-batch-size 4 --split 1 --eval-interval 0 --device host";
    let chatml = format!("--init-from llama-hf {sft} --chat-template chatml");
    let refused = [
        "the chat template chatml has <|im_start|> <|im_end|>, no tokens of llama-hf",
        "Fix: add them (--add-special-tokens)",
    ];
    expect(&trainer(&folder.0, &format!("{chatml} --dry-run")), 2, &refused);
    let inspect = "data inspect --sft --tokenizer llama-hf --samples 1 chats.jsonl --chat-template";
    expect(&trainer(&folder.0, &format!("{inspect} chatml")), 2, &refused);
    let adds = "llama-hf gets the special tokens <|im_start|> (400), <|im_end|> (401). Their rows begin as the mean";
    expect(&trainer(&folder.0, &format!("{inspect} chatml --add-special-tokens")), 0, &[adds, "<|im_end|>"]);
    // Of a template that is not built in, only the marker that ends an answer has to be a token.
    for (file, end, code, says) in [
        ("pieces.jinja", "{{ eos_token }}", 0, "the chat template has <|user|> <|assistant|>, no tokens of llama-hf"),
        ("endless.jinja", "<|end|>", 2, "has <|user|> <|end|> <|assistant|>, no tokens of llama-hf"),
    ] {
        let text = format!("{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content }}}}{end}{{% endfor %}}");
        std::fs::write(folder.path(file), text).unwrap();
        expect(
            &trainer(&folder.0, &format!("--init-from llama-hf {sft} --chat-template {file} --dry-run")),
            code,
            &[says],
        );
        expect(&trainer(&folder.0, &format!("{inspect} {file}")), code, &[says]);
    }

    let added = format!("{chatml} --add-special-tokens");
    for (flags, says) in [
        ("--lora-rank 2", "data.add_special_tokens with wte.weight frozen"),
        ("--freeze lm_head.*", "data.add_special_tokens with lm_head.weight frozen"),
        ("--vocab 401", "has token 401, and model.vocab = 401"),
    ] {
        expect(&trainer(&folder.0, &format!("{added} --steps 1 {flags}")), 2, &[says]);
    }
    expect(
        &trainer(&folder.0, "--init-from llama-hf --data-path text.txt --add-special-tokens"),
        2,
        &["without data.sft"],
    );
    // A step that changes nothing shows the first values of the rows.
    let line = format!("{added} --steps 1 --lr 1e-30 --min-lr 1e-31 --save begun --log-dir begun");
    expect(
        &trainer(&folder.0, &line),
        0,
        &[adds, "model.vocab = 402: the tokens of llama-hf, 2 of them new", "done: loss"],
    );
    for (ours, theirs) in [("wte.weight", "model.embed_tokens.weight"), ("lm_head.weight", "lm_head.weight")] {
        let before = values(&folder.path("llama-hf/model.safetensors"), theirs);
        let after = values(&folder.path("begun/step-00000001/model.safetensors"), ours);
        let width = before.len() / 400;
        assert_eq!(after.len(), 402 * width, "{ours}");
        let same = before.iter().zip(&after).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(same, "{ours}: rows of known tokens changed");
        for (at, value) in after[400 * width..].iter().enumerate() {
            let mean =
                before.iter().skip(at % width).step_by(width).map(|value| f64::from(*value)).sum::<f64>() / 400.0;
            assert!((f64::from(*value) - mean).abs() < 1e-6, "{ours}: {value} and {mean}");
        }
    }
    // Ranks that share the table begin with the same rows.
    let first = metrics_in(&folder, "begun")[0].clone();
    let shared = format!("{added} --steps 1 --lr 1e-30 --min-lr 1e-31 --log-dir shared --tensor-model-parallel-size 2");
    let shared = mpirun(2, &folder.0, &split(&shared));
    expect(&shared, 0, &["done: loss"]);
    let loss = metrics_in(&folder, "shared")[0].as_f64().unwrap();
    assert!((loss / first.as_f64().unwrap() - 1.0).abs() < 1e-5, "{loss} and {first}");

    // The run goes on, also when the model is gone, and so does a run that begins with its checkpoint.
    let more = "--save begun --log-dir begun --lr 1e-3";
    expect(&trainer(&folder.0, &format!("{added} --steps 2 {more}")), 0, &["at step 1", "step 2/2"]);
    std::fs::rename(folder.path("llama-hf"), folder.path("moved")).unwrap();
    expect(
        &trainer(&folder.0, &format!("{added} --steps 3 {more}")),
        0,
        &["at step 2", "step 3/3", "data.add_special_tokens adds none"],
    );
    expect(
        &trainer(&folder.0, &format!("--init-from begun {sft} --steps 1 --lora-rank 2 --log-dir next")),
        0,
        &["done: loss"],
    );
    let export = trainer(&folder.0, "convert --to hf begun exported");
    expect(&export, 0, &["generation_config.json has <|im_end|> in eos_token_id too"]);
    let json = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path("exported").join(name)).unwrap()).unwrap()
    };
    assert_eq!(json("config.json")["vocab_size"], 402);
    assert!(json("generation_config.json")["eos_token_id"].as_array().unwrap().contains(&401.into()));
    let tokens = json("tokenizer.json")["added_tokens"].as_array().unwrap().clone();
    assert!(
        tokens.iter().any(|token| token["content"] == "<|im_end|>" && token["id"] == 401 && token["special"] == true)
    );
    assert_eq!(json("tokenizer_config.json")["added_tokens_decoder"]["401"]["content"], "<|im_end|>");
}

fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The losses of a run, by step.
fn metrics_in(folder: &Folder, log: &str) -> Vec<Value> {
    logged_steps(&folder.path(log)).iter().map(|step| step["loss"].clone()).collect()
}
