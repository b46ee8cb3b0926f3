//! The files of a Hugging Face model beside its weights come back after training: its generation settings and its
//! tokenizer.

use std::path::Path;
use std::process::Output;

use trainer::hf::{DataType, Direction, convert};

use super::models::{python, trained};
use crate::data_files::LICENSES;
use crate::harness::{Folder, expect, printed, trainer};

/// Small models of `exports.py`: Qwen 3, one without a chat template, one without its markers too, Llama 3, Gemma 3.
const MODELS: [&str; 5] = ["qwen3", "qwen3-base", "plain", "llama", "gemma"];

/// Trains the model of a folder on conversations, with the tokenizer of a folder, and saves to `saved`.
fn fine_tune(folder: &Path, (model, tokenizer, saved): (&str, &str, &str), more: &str) -> Output {
    trainer(
        folder,
        &format!(
            "--init-from {model} --tokenizer {tokenizer} --save {saved} --log-dir {saved}-log --data-path chats.jsonl --sft \
             --split 1 --eval-interval 0 --device host --threads 1 --seq-length 64 --global-batch-size 4 \
             --micro-batch-size 4 --hidden-dropout 0 --attention-dropout 0 {more}"
        ),
    )
}

#[test]
fn an_export_generates_until_the_end_of_an_answer_and_has_the_tokenizer_of_the_model_that_training_began_with() {
    let folder = Folder::new("exports");
    python("exports.py", "make", &folder.0);
    for name in MODELS {
        for (flags, source, target) in [("--from hf", "", "-ours"), ("--to hf", "-ours", "-back")] {
            let output = trainer(&folder.0, &format!("convert {flags} {name}{source} {name}{target}"));
            expect(&output, 0, &["parameters"]);
            assert!(!printed(&output).contains("notice"), "{}", printed(&output));
        }
        let template = match name {
            "qwen3-base" => "--chat-template chatml",
            "plain" => "--chat-template chatml --add-special-tokens",
            _ => "",
        };
        let training = format!("--lr 5e-3 --min-lr 5e-4 --lr-warmup-steps 2 --save-interval 30 {template}");
        let saved = format!("{name}-saved");
        let started = fine_tune(&folder.0, (name, name, &saved), &format!("--steps 30 {training}"));
        expect(&started, 0, &["done: loss"]);
        // A run that goes on has the files from its checkpoint.
        std::fs::rename(folder.path(name), folder.path("away")).unwrap();
        let resumed = fine_tune(&folder.0, (name, "away", &saved), &format!("--steps 60 {training}"));
        expect(&resumed, 0, &["at step 30", "done: loss"]);
        std::fs::rename(folder.path("away"), folder.path(name)).unwrap();
        let exported = trainer(&folder.0, &format!("convert --to hf {name}-saved {name}-trained"));
        expect(&exported, 0, &["parameters"]);
        let added = "notice: generation_config.json has <|im_end|> in eos_token_id too";
        let says = printed(&exported);
        assert_eq!(says.contains(added), !template.is_empty(), "{says}");
        assert_eq!(says.matches("notice: ").count(), usize::from(!template.is_empty()), "{says}");
    }
    python("exports.py", "check", &folder.0);
}

#[test]
fn data_of_another_tokenizer_than_the_models_are_told_of_when_training_begins_and_when_it_is_exported() {
    let folder = Folder::new("exports-other");
    python("exports.py", "make", &folder.0);
    let started = fine_tune(&folder.0, ("llama", "qwen3", "saved"), "--steps 1 --chat-template chatml");
    expect(&started, 0, &["notice: the data have another tokenizer than llama", "done: loss"]);
    let exported = trainer(&folder.0, "convert --to hf saved trained");
    expect(&exported, 0, &["notice: the tokenizer is that of the training data. It differs from"]);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.path("trained").join(name)).unwrap()).unwrap()
    };
    // Of the tokenizer of Qwen 3: a text ends with token 0, an answer with token 2.
    assert_eq!(
        (&json("config.json")["bos_token_id"], &json("config.json")["eos_token_id"]),
        (&serde_json::Value::Null, &0.into())
    );
    assert_eq!(json("generation_config.json")["eos_token_id"], serde_json::json!([0, 2]));
    assert_eq!(
        std::fs::read(folder.path("qwen3/tokenizer.json")).unwrap(),
        std::fs::read(folder.path("trained/tokenizer.json")).unwrap()
    );
}

#[test]
fn transformers_generates_from_the_tokens_that_an_exports_own_tokenizer_makes_for_every_family() {
    let folder = Folder::new("exports-generate");
    std::fs::copy(format!("{LICENSES}/GPL-3"), folder.path("text.txt")).unwrap();
    let made = trainer(&folder.0, "tokenizer train --input text.txt --vocab-size 300 --output tokenizer.json");
    expect(&made, 0, &["300 tokens"]);
    let sizes = "--layers 1 --hidden 64 --heads 4 --ffn 96 --vocab 300 --seq-length 64 --init-std 0.1";
    for (preset, more) in [
        ("tiny", ""),
        ("tiny-llama", ""),
        ("mistral-7b", "--kv-heads 2"),
        ("mixtral-8x7b", "--kv-heads 2 --experts 4"),
        ("qwen2.5-0.5b", "--kv-heads 2"),
        ("qwen3-0.6b", "--kv-heads 2 --head-dim 16"),
        ("qwen3-30b-a3b", "--kv-heads 2 --head-dim 16 --experts 8 --expert-ffn 32"),
        ("olmo2-7b", "--kv-heads 4"),
        ("olmoe-1b-7b", "--kv-heads 4 --experts 8"),
        ("gemma2-2b", "--kv-heads 2 --head-dim 16"),
        ("gemma3-1b", "--kv-heads 2 --head-dim 16"),
    ] {
        let saved = folder.path(&format!("{preset}-saved"));
        let flags = format!("--preset {preset} {sizes} {more}");
        trained(&saved, &flags.split_whitespace().collect::<Vec<_>>());
        std::fs::copy(folder.path("tokenizer.json"), saved.join("tokenizer.json")).unwrap();
        let exported = folder.path(&format!("{preset}-exported"));
        convert(&saved, &exported, Direction::ToHuggingFace(DataType::F32)).unwrap();
    }
    python("exports.py", "generate", &folder.0);
}

#[test]
fn a_chat_template_that_is_wrong_is_left_out_of_a_conversion_and_a_notice_says_why() {
    let folder = Folder::new("exports-template");
    python("exports.py", "make", &folder.0);
    std::fs::write(folder.path("llama/chat_template.jinja"), "{% if").unwrap();
    let converted = trainer(&folder.0, "convert --from hf llama ours");
    expect(&converted, 0, &["notice: the chat template is left out: the chat template of llama/chat_template.jinja"]);
}
