//! Tokenizers that take long to read, ask for much memory, or make other tokens of a text in every run.

use crate::harness::Folder;
use crate::hostile::refused;

/// A tokenizer with parts. Its model has these fields beside its vocabulary.
fn tokenizer(parts: &str, model: &str) -> String {
    let vocab = r#"{"a": 0, "b": 1, "ab": 2, "</s>": 3}"#;
    format!(
        r#"{{"version": "1.0", {parts} "model": {{"type": "BPE", {model} "vocab": {vocab}, "merges": [["a", "b"]]}}}}"#
    )
}

/// A part that is a sequence of steps.
fn sequence(part: &str, list: &str, steps: &str) -> String {
    format!(r#""{part}": {{"type": "Sequence", "{list}": [{steps}]}},"#)
}

#[test]
fn a_tokenizer_has_bounded_steps_and_ids_and_leaves_nothing_to_chance() {
    let many = |step: &str| vec![step; 20_000].join(",");
    let nested = |list: &str, innermost: &str, depth: usize| {
        format!("{}{innermost}{}", format!(r#"{{"type": "Sequence", "{list}": ["#).repeat(depth), "]}".repeat(depth))
    };
    let split = r#"{"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": false}"#;
    let large =
        r#"{"type": "Split", "pattern": {"Regex": "(\\p{L}{1,60}){1,60}"}, "behavior": "Isolated", "invert": false}"#;
    let added = |id: u64| {
        format!(
            r#""added_tokens": [{{"id": {id}, "content": "x", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],"#
        )
    };
    let cases = [
        ("dropout", tokenizer("", r#""dropout": 0.1,"#), "has dropout = 0.1"),
        ("certain dropout", tokenizer("", r#""dropout": 1.0,"#), "set \"dropout\" to null"),
        (
            "many normalizers",
            tokenizer(&sequence("normalizer", "normalizers", &many(r#"{"type": "NFC"}"#)), ""),
            "20001 steps",
        ),
        ("many splits", tokenizer(&sequence("pre_tokenizer", "pretokenizers", &many(split)), ""), "20001 steps"),
        ("many decoders", tokenizer(&sequence("decoder", "decoders", &many(r#"{"type": "Fuse"}"#)), ""), "20001 steps"),
        (
            "large expressions",
            tokenizer(&sequence("pre_tokenizer", "pretokenizers", &vec![large; 99].join(",")), ""),
            "is not a tokenizer: ",
        ),
        (
            "nested splits",
            tokenizer(&format!(r#""pre_tokenizer": {},"#, nested("pretokenizers", split, 60)), ""),
            "its pre_tokenizer is nested more than 12 deep",
        ),
        (
            "nested normalizers",
            tokenizer(&format!(r#""normalizer": {},"#, nested("normalizers", r#"{"type": "NFC"}"#, 60)), ""),
            "its normalizer is nested more than 12 deep",
        ),
        (
            "nested decoders",
            tokenizer(&format!(r#""decoder": {},"#, nested("decoders", r#"{"type": "Fuse"}"#, 60)), ""),
            "its decoder is nested more than 12 deep",
        ),
        (
            "nested beyond all reason",
            tokenizer(&format!(r#""decoder": {},"#, nested("decoders", r#"{"type": "Fuse"}"#, 100_000)), ""),
            "recursion limit exceeded",
        ),
        ("an added token", tokenizer(&added(1_000_000_000), ""), "id 1000000000, and ids are below 4194304"),
        ("a token", tokenizer("", "").replace("\"ab\": 2", "\"ab\": 4000000000"), "id 4000000000, and ids are below"),
    ];
    let folder = Folder::new("hostile-tokenizers");
    std::fs::write(folder.path("text.txt"), "ab ".repeat(1000)).unwrap();
    for (name, tokenizer, says) in cases {
        std::fs::write(folder.path("tokenizer.json"), tokenizer).unwrap();
        let arguments = ["tokenize", "--tokenizer", "tokenizer.json", "--output", "tokens", "text.txt"];
        refused(name, &folder.0, &arguments, &["tokenizer.json", says]);
    }
}
