//! `trainer data inspect` shows the contents of data.

use std::process::Command;

use crate::data_files::{Folder, llmc, small_tokenizer};
use crate::harness::{expect, stdout_of};

#[test]
fn text_and_tokens_are_counted_and_their_first_documents_are_shown() {
    let folder = Folder::new("inspect");
    let lines = folder.file("lines.jsonl", "{\"text\": \"one\\ntwo\"}\n{\"text\": \"three\"}\n{\"text\": \"four\"}\n");
    let shown = stdout_of(&["data", "inspect", &lines, "--samples", "2"]);
    let expected = [
        format!("{lines}: 1 file of text, 56 B, 3 documents, 19 tokens, the largest 119"),
        "  tokenizer: byte".into(),
        "  document 1: one\\ntwo".into(),
        "  document 2: three".into(),
    ];
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);

    // Token files that say their tokenizer are shown as text; others as numbers.
    let json = folder.path("tokenizer.json");
    small_tokenizer(json.as_ref(), "one two three four");
    let tokens = folder.path("tokens");
    stdout_of(&["tokenize", "--tokenizer", &json, "--output", &tokens, &lines]);
    let shown = stdout_of(&["data", "inspect", &tokens]);
    assert!(shown.starts_with(&format!("{tokens}: 1 token file, 3 documents, ")), "{shown}");
    for part in ["  tokenizer: the tokenizer.json with SHA-256 ", "  document 1: one\\ntwo\n", "  document 3: four"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let bin = folder.file("other.bin", llmc(20240520, 1, &[7, 300, 2], 2));
    let shown = stdout_of(&["data", "inspect", &bin]);
    assert!(shown.starts_with(&format!("{bin}: 1 token file, 3 tokens, the largest 300\n")), "{shown}");
    assert!(shown.contains("not known: name it with --tokenizer") && shown.contains("[7, 300, 2]"), "{shown}");
}

#[test]
fn several_paths_have_a_total() {
    let folder = Folder::new("inspect-total");
    folder.file("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"three\"}\n");
    folder.file("b.txt", "four");
    let last =
        |arguments: &[&str]| stdout_of(&[&["data", "inspect"], arguments].concat()).lines().last().unwrap().to_string();
    let pattern = folder.path("*");
    assert_eq!(last(&[&pattern]), "in all: 2 files, 3 documents, 15 tokens");
    // Not in token files of a tokenizer that is not known.
    let bin = folder.file("other.bin", llmc(20240520, 1, &[7, 300, 2], 2));
    assert_eq!(last(&[&folder.path("a.jsonl"), &bin]), "in all: 2 files, 13 tokens");
    assert!(!last(&[&folder.path("b.txt")]).contains("in all"));
    let talk = "{\"prompt\": \"a\", \"completion\": \"bc\"}\n";
    let talks = [folder.file("c.jsonl", talk), folder.file("d.jsonl", talk.repeat(2))];
    let total = "in all: 2 files, 3 conversations, 12 tokens; the loss is on 9 of them";
    assert_eq!(last(&["--sft", &talks[0], &talks[1], "--samples", "0"]), total);
}

#[test]
fn what_holds_no_data_is_an_error() {
    let folder = Folder::new("inspect-nothing");
    let empty = folder.file("empty.txt", "");
    for (path, says) in [(empty, "holds no UTF-8 text"), (folder.path("missing"), "cannot be read")] {
        let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(["data", "inspect", &path]).output().unwrap();
        expect(&output, 2, &["PATH = ", &path, says]);
    }
}
