//! `trainer tokenizer train`, and tokenizers in other files than a tokenizer.json.

use std::path::Path;
use std::process::{Command, Output};

use crate::data_files::LICENSES;
use crate::harness::{Folder, expect};
use crate::hugging_face::models::python;

/// Words, numbers, spaces and tokens that a tokenizer has to divide.
const PROBE: &str = "You may not, don't 12345 <|endoftext|> Café\n\n\t  x <|im_start|>日本 ";

fn trainer(folder: &Path, threads: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    command.current_dir(folder).env("RAYON_NUM_THREADS", threads).args(arguments).output().unwrap()
}

/// A folder with a text, a probe, and a tokenizer of the text.
fn with_tokenizer(name: &str) -> Folder {
    let folder = Folder::new(name);
    std::fs::copy(format!("{LICENSES}/GPL-3"), folder.path("text.txt")).unwrap();
    std::fs::write(folder.path("probe.txt"), PROBE).unwrap();
    expect(&train(&folder.0, "2", "600", "tokenizer.json"), 0, &["1 file -> 600 tokens, tokenizer.json"]);
    folder
}

fn train(folder: &Path, threads: &str, size: &str, output: &str) -> Output {
    let special = ["--special", "<|im_start|>", "<|im_end|>"];
    let arguments = ["tokenizer", "train", "--input", "text.txt", "--vocab-size", size, "--output", output];
    trainer(folder, threads, &[&arguments[..], &special].concat())
}

#[test]
fn a_text_makes_the_same_tokenizer_on_any_number_of_threads_and_in_python() {
    let folder = with_tokenizer("tokenizer-train");
    let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
    expect(&train(&folder.0, "1", "600", "one.json"), 0, &["600 tokens"]);
    assert!(read("one.json") == read("tokenizer.json"));
    python("tokenizer_files.py", "check", &folder.0);
    let run = ["--data-path", "text.txt", "--tokenizer", "tokenizer.json", "--steps", "1", "--device", "host"];
    expect(&trainer(&folder.0, "1", &run), 0, &["model.vocab = 600", "done: loss"]);
    expect(&train(&folder.0, "2", "30000", "all.json"), 0, &["notice: fewer than --vocab-size 30000"]);
}

#[test]
fn words_that_are_too_long_to_merge_are_left_out_and_said() {
    let folder = Folder::new("tokenizer-long-words");
    let words = "some words and other words\n".repeat(50);
    let text = format!("{words}{}{words}{}{}", "\n".repeat(60_000), "-".repeat(60_000), "ab".repeat(30_000));
    std::fs::write(folder.path("long.txt"), text).unwrap();
    std::fs::write(folder.path("short.txt"), format!("{words}{} {}", "-".repeat(1024), "é".repeat(600))).unwrap();
    let arguments = ["tokenizer", "train", "--input", "short.txt", "long.txt", "--vocab-size", "280"];
    let output = trainer(&folder.0, "2", &[&arguments[..], &["--output", "long.json"]].concat());
    let says = "notice: 4 words of more than 1.00 KiB left out: 1 in short.txt, 3 in long.txt";
    expect(&output, 0, &[says, "2 files -> 280 tokens"]);
}

#[test]
fn a_folder_with_vocab_json_and_merges_txt_gives_the_tokens_of_transformers() {
    let folder = with_tokenizer("tokenizer-merges");
    python("tokenizer_files.py", "make", &folder.0);
    for name in ["gpt2", "qwen2", "begins"] {
        let output = format!("{name}-tokens");
        let arguments = ["tokenize", "--tokenizer", name, "--output", &output, "probe.txt"];
        expect(&trainer(&folder.0, "1", &arguments), 0, &["1 document"]);
        let expected = std::fs::read(folder.path(name).join("expected.json")).unwrap();
        let expected: Vec<u16> = serde_json::from_slice(&expected).unwrap();
        let shard = std::fs::read_dir(folder.path(&output)).unwrap().map(|entry| entry.unwrap().path());
        let shard = shard.into_iter().find(|path| path.extension().is_some_and(|found| found == "bin")).unwrap();
        let tokens = std::fs::read(shard).unwrap()[1024..]
            .chunks(2)
            .map(|two| u16::from_le_bytes([two[0], two[1]]))
            .collect::<Vec<_>>();
        assert_eq!(tokens, expected, "{name}");
    }
    let write = |name: &str, text: &str| std::fs::write(folder.path("gpt2").join(name), text).unwrap();
    let refused = |parts: &[&str]| {
        let arguments = ["tokenize", "--tokenizer", "gpt2", "--output", "tokens", "probe.txt"];
        expect(&trainer(&folder.0, "1", &arguments), 2, parts);
    };
    write("tokenizer_config.json", r#"{"tokenizer_class": "RobertaTokenizer"}"#);
    refused(&["of a RobertaTokenizer", "save_pretrained"]);
    write("tokenizer_config.json", "{}");
    for (merges, problem) in [("a", "line 1 is not two tokens"), ("Q Q", "`QQ` is no token of vocab.json")] {
        write("merges.txt", merges);
        refused(&["gpt2/merges.txt: ", problem]);
    }
    write("vocab.json", "[]");
    refused(&["gpt2/vocab.json: "]);
}

#[test]
fn wrong_requests_for_a_tokenizer_and_tokenizers_in_other_files_are_refused_with_the_fix() {
    let folder = with_tokenizer("tokenizer-refused");
    let request = ["tokenizer", "train", "--input", "text.txt", "--vocab-size", "200", "--output", "tokenizer.json"];
    let all = [
        "mistakes",
        "--vocab-size 200. Rule: 256 bytes and 3 special tokens",
        "--special a.",
        "--output tokenizer.json exists",
    ];
    expect(&trainer(&folder.0, "1", &[&request[..], &["--special", "a", "a"]].concat()), 2, &all);
    std::fs::write(folder.path("empty.txt"), "").unwrap();
    let empty = ["tokenizer", "train", "--input", "empty.txt", "--vocab-size", "300", "--output", "none.json"];
    expect(&trainer(&folder.0, "1", &empty), 2, &["there is no UTF-8 text in 1 file"]);
    let lacking = ["tokenizer", "train", "--input", "absent", "--vocab-size", "300", "--output", "away/none.json"];
    expect(&trainer(&folder.0, "1", &lacking), 2, &["--output away/none.json: its folder does not exist"]);
    std::fs::create_dir(folder.path("llama")).unwrap();
    std::fs::write(folder.path("llama/tokenizer.model"), b"\n\x0e\n\x05<unk>").unwrap();
    std::fs::write(folder.path("words.tiktoken"), "aGVsbG8= 12\n").unwrap();
    for (name, parts) in [
        ("llama", ["llama/tokenizer.model is a SentencePiece model", "save_pretrained"]),
        ("words.tiktoken", ["words.tiktoken is a tiktoken file", "convert_tiktoken_to_fast"]),
    ] {
        let arguments = ["tokenize", "--tokenizer", name, "--output", "tokens", "text.txt"];
        expect(&trainer(&folder.0, "1", &arguments), 2, &parts);
    }
}
