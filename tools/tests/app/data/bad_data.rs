//! Data that cannot be trained on are refused at the start, with the problem, the rule and the fix, and exit code 2.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::data_files::{Folder, llmc, megatron_index, packed, small_tokenizer};
use crate::mistakes::{all_refused, refused};

const TRAINER: &str = env!("CARGO_BIN_EXE_trainer");

#[test]
fn data_that_cannot_be_trained_on_are_refused_with_the_rule_and_the_fix() {
    let folder = Folder::new("bad-data");
    let ids: Vec<i32> = (0..300).map(|i| i % 250).collect();
    let good = llmc(20240520, 1, &ids, 2);
    let index = megatron_index(8, &[100, 200], 2);
    let mut moved = index.clone();
    moved[34 + 8 + 8] = 2;
    for (name, index, tokens) in [
        ("kind", b"MZ".to_vec(), &ids[..]),
        ("head", index[..20].to_vec(), &ids),
        ("cut", index[..60].to_vec(), &ids),
        ("v2", [&index[..9], &[2], &index[10..]].concat(), &ids),
        ("float", megatron_index(7, &[300], 2), &ids),
        ("hole", moved, &ids),
        ("other", index.clone(), &ids[..299]),
        ("minus", megatron_index(3, &[300], 2), &[-1; 300]),
    ] {
        folder.file(&format!("{name}.idx"), index);
        folder.file(&format!("{name}.bin"), packed(tokens, 2));
    }
    for name in ["nothing", "hub"] {
        std::fs::create_dir(folder.path(name)).unwrap();
    }
    for (name, content) in [
        ("good.bin", &good[..]),
        ("header.bin", &good[..700]),
        ("tokens.bin", &good[..good.len() - 1]),
        ("v9.bin", &llmc(20240520, 9, &ids, 2)),
        ("raw.bin", &packed(&ids, 2)),
        ("big.bin", &llmc(20240520, 1, &[50256; 300], 2)),
        ("empty.bin", b""),
        ("odd.bin", &[1; 301]),
        ("text.txt", "text ".repeat(100).as_bytes()),
        ("empty.txt", b""),
        ("blank.txt", b""),
        ("short.txt", b"short"),
        ("one.txt", &[b'x'; 70]),
        ("x.txt", &[0xff; 99]),
        ("x.abc", &[0xff; 99]),
        ("program", b"\x7fELF\xff\0"),
        ("x.parquet", &[b"PAR1", &[0xff; 99][..]].concat()),
        ("hub/README.md", "words ".repeat(100).as_bytes()),
        ("hub/part.parquet", b"PAR1"),
        ("cut.gz", &[0x1f, 0x8b, 8, 0, 0]),
        ("b.jsonl", &[0xff; 9]),
        ("l.json", b"\"some words\""),
        ("t.json", b"[\"some words\",\n\"more words\"]"),
        ("e.jsonl", "{\"text\": \"\"}\n".repeat(200).as_bytes()),
        ("x.jsonl", b"{\"text\": \"a\"}\n{"),
        ("y.jsonl", b"{\"content\": \"a\"}"),
    ] {
        folder.file(name, content);
    }
    for name in ["pipe", "pipe.bin"] {
        assert!(Command::new("mkfifo").arg(folder.path(name)).status().unwrap().success());
    }
    let tokenizer = small_tokenizer(folder.path("tokenizer.json").as_ref(), "some text").to_string(false).unwrap();
    folder.file("no-end.json", tokenizer.replace("<|endoftext|>", "<|separator|>"));
    all_refused(&folder.0, "data");
    assert!(!folder.0.join("never").exists());
}

#[test]
fn tokenizers_that_panic_or_make_texts_explode_are_refused_in_bounded_time() {
    let folder = Folder::new("bad-tokenizer");
    folder.file("text.txt", "a text of words ".repeat(1000));
    let good = folder.path("good.json");
    small_tokenizer(good.as_ref(), "some text");
    let good: serde_json::Value = serde_json::from_slice(&std::fs::read(good).unwrap()).unwrap();
    let replace =
        |from: &str, to: &str| serde_json::json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let chain = |steps: Vec<serde_json::Value>| serde_json::json!({"type": "Sequence", "normalizers": steps});
    let long = "a".repeat(60);
    let cases: Vec<(&str, &str, serde_json::Value, &str)> = vec![
        ("chain", "normalizer", chain(vec![replace("a", &long); 40]), "its normalizer makes a text of "),
        ("nested chain", "normalizer", chain(vec![chain(vec![replace("a", &long)]); 40]), "are allowed"),
        ("long replacement", "normalizer", replace("a", &"x".repeat(1 << 20)), "a replacement has at most 64"),
        ("long decoding", "decoder", replace("a", &"x".repeat(1 << 20)), "a replacement has at most 64"),
        (
            "pieces of no length",
            "pre_tokenizer",
            serde_json::json!({"type": "FixedLength", "length": 0}),
            "it fails on a short text: ",
        ),
        (
            "search of words of any length",
            "model",
            serde_json::json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 1_000_000_000, "vocab": {"[UNK]": 0, "a": 1}}),
            "max_input_chars_per_word = 1000000000",
        ),
        ("a model of another kind", "model", serde_json::json!({"type": "\u{1b}[2J"}), "is not a tokenizer"),
    ];
    for (name, part, value, needle) in cases {
        let mut tokenizer = good.clone();
        tokenizer[part] = value;
        folder.file("tokenizer.json", tokenizer.to_string());
        let began = std::time::Instant::now();
        let flags = "--data-path text.txt --tokenizer tokenizer.json --vocab 400";
        refused(&folder.0, flags, &[], &["tokenizer", needle]);
        assert!(began.elapsed().as_secs() < 60, "{name} took {:?}", began.elapsed());
    }
    refused(&folder.0, "--data-path text.txt --tokenizer /dev/zero", &[], &["it is not a regular file"]);
}

#[test]
fn a_folder_within_the_data_that_cannot_be_read_is_named() {
    let folder = Folder::new("bad-folder");
    let inner = folder.path("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = Command::new(TRAINER);
    if std::fs::read_dir(&inner).is_ok() {
        command.uid(65534); // root may read anything
    }
    let output = command.args(["--data-path", folder.0.to_str().unwrap()]).output().unwrap();
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o700)).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(&format!("cannot be read: {inner}: Permission denied")), "{text}");
}
