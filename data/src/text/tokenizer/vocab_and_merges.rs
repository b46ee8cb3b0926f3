//! A tokenizer in two files, `vocab.json` and `merges.txt`, as in GPT-2 and Qwen2 without a `tokenizer.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use common::UserError;
use common::files::{read_file, read_text};
use serde_json::{Map, Value, json};

use super::config::{END_OF_TEXT, LARGEST};
use super::other_files::SAVE;
use crate::text::copied_file::CopiedFile;

/// The tokens, with ids.
pub(crate) const VOCAB: &str = "vocab.json";
/// The pairs of tokens that are merged, in the order of merging.
pub(crate) const MERGES: &str = "merges.txt";
/// Tokens beside the vocabulary, in older folders.
const ADDED: &str = "added_tokens.json";
/// The names of special tokens.
const SPECIAL: &str = "special_tokens_map.json";

/// Qwen2's words.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The settings of special tokens.
const NAMES: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

/// The `tokenizer.json` that `transformers` makes of a folder's two files. `None` if the folder has a `tokenizer.json`, or
/// not both files.
///
/// # Errors
/// Files that cannot be read; a tokenizer of another class, which divides words otherwise.
pub(crate) fn from_vocab_and_merges(folder: &Path) -> Result<Option<String>, UserError> {
    let there = |name: &str| folder.join(name).is_file();
    if CopiedFile::Tokenizer.at(folder).exists() || !there(VOCAB) || !there(MERGES) {
        return Ok(None);
    }
    let config = object(folder, "tokenizer_config.json")?;
    let vocab: HashMap<String, u32> =
        serde_json::from_slice(&read(folder, VOCAB)?).map_err(|error| wrong(folder, VOCAB, error))?;
    let merges = merges(folder)?;
    if let Some(word) = merges.iter().find_map(|(left, right)| {
        [left.clone(), right.clone(), format!("{left}{right}")].into_iter().find(|word| !vocab.contains_key(word))
    }) {
        return Err(wrong(folder, MERGES, format!("`{word}` is no token of {VOCAB}")));
    }
    let added = added_tokens(folder, &config, &vocab)?;
    let post_processor = match config.get("add_bos_token") == Some(&Value::Bool(true)) {
        true => begins_with(folder, &token(&config, "bos_token").unwrap_or(END_OF_TEXT.into()), &vocab, &added)?,
        false => Value::Null,
    };
    let (normalizer, pre_tokenizer) = word_splits(folder, &config)?;
    let to_bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    let all = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": to_bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": merges},
    });
    Ok(Some(all.to_string()))
}

/// The normalizer and the pre-tokenizer of the folder's class of tokenizers.
fn word_splits(folder: &Path, config: &Map<String, Value>) -> Result<(Value, Value), UserError> {
    let prefix = config.get("add_prefix_space") == Some(&Value::Bool(true));
    let bytes = |words: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": words});
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or("GPT2Tokenizer");
    match class.trim_end_matches("Fast") {
        "GPT2Tokenizer" | "CodeGenTokenizer" => Ok((Value::Null, bytes(true))),
        "Qwen2Tokenizer" => {
            let split = json!({"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false});
            Ok((json!({"type": "NFC"}), json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})))
        }
        other => Err(UserError::new(
            format!("{} has {VOCAB} and {MERGES} of a {other}", folder.display()),
            "these two files are read as GPT-2's or Qwen2's",
            SAVE,
        )),
    }
}

/// The pairs of the file of merges.
fn merges(folder: &Path) -> Result<Vec<(String, String)>, UserError> {
    let text = read_text(&folder.join(MERGES), LARGEST).map_err(|error| wrong(folder, MERGES, error))?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(index, line)| !(line.is_empty() || *index == 0 && line.starts_with("#version")));
    let pair = |(index, line): (usize, &str)| match line.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok((left.into(), right.into()))
        }
        _ => Err(wrong(folder, MERGES, format!("line {} is not two tokens", index + 1))),
    };
    lines.map(pair).collect()
}

/// The tokens that the tokenizer finds in a text before all others, with ids in order.
fn added_tokens(
    folder: &Path,
    config: &Map<String, Value>,
    vocab: &HashMap<String, u32>,
) -> Result<Vec<Value>, UserError> {
    let mut found = BTreeMap::new();
    let flag = |token: &Value, name: &str| token.get(name) == Some(&Value::Bool(true));
    let mut add = |id: u64, content: &str, token: &Value, special: bool| {
        found.entry(id).or_insert_with(|| {
            json!({"id": id, "content": content, "single_word": flag(token, "single_word"), "lstrip": flag(token, "lstrip"),
                   "rstrip": flag(token, "rstrip"), "normalized": flag(token, "normalized"), "special": special})
        });
    };
    for (id, token) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let content = token.get("content").and_then(Value::as_str);
        let (Ok(id), Some(content)) = (id.parse(), content) else {
            return Err(wrong(folder, "tokenizer_config.json", format!("added token {id} has no id or no content")));
        };
        add(id, content, token, flag(token, "special"));
    }
    for (content, id) in &object(folder, ADDED)? {
        add(
            id.as_u64().ok_or_else(|| wrong(folder, ADDED, format!("`{content}` has no id")))?,
            content,
            &Value::Null,
            false,
        );
    }
    let map = object(folder, SPECIAL)?;
    let named = NAMES.iter().flat_map(|name| [token(config, name), token(&map, name)]).flatten();
    for content in named.chain([END_OF_TEXT.to_string()]) {
        if let Some(id) = vocab.get(&content) {
            add((*id).into(), &content, &Value::Null, true);
        }
    }
    Ok(found.into_values().collect())
}

/// A setting that is a token: its text, or an object with that.
fn token(config: &Map<String, Value>, name: &str) -> Option<String> {
    let value = config.get(name)?;
    Some(value.as_str().or_else(|| value.get("content")?.as_str())?.to_string())
}

/// A post-processor that puts a token before each text.
fn begins_with(folder: &Path, token: &str, vocab: &HashMap<String, u32>, added: &[Value]) -> Result<Value, UserError> {
    let added = || added.iter().find(|known| known["content"] == token)?["id"].as_u64();
    let id = vocab.get(token).map(|id| u64::from(*id)).or_else(added);
    let id = id.ok_or_else(|| wrong(folder, "tokenizer_config.json", format!("bos_token `{token}` is no token")))?;
    let (begin, text) =
        (json!({"SpecialToken": {"id": token, "type_id": 0}}), json!({"Sequence": {"id": "A", "type_id": 0}}));
    let second = json!({"Sequence": {"id": "B", "type_id": 1}});
    Ok(json!({"type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text, second],
              "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}}))
}

/// A file of settings; empty if there is none.
fn object(folder: &Path, name: &str) -> Result<Map<String, Value>, UserError> {
    if !folder.join(name).exists() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&read(folder, name)?).map_err(|error| wrong(folder, name, error))
}

fn read(folder: &Path, name: &str) -> Result<Vec<u8>, UserError> {
    read_file(&folder.join(name), LARGEST).map_err(|error| wrong(folder, name, error))
}

fn wrong(folder: &Path, name: &str, problem: impl std::fmt::Display) -> UserError {
    let what = format!("{}: {problem}", folder.join(name).display());
    UserError::new(what, format!("a folder with {VOCAB} and {MERGES} is a tokenizer as GPT-2's"), SAVE)
}
