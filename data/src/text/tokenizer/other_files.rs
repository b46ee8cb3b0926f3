//! Tokenizers in files that are not read: `SentencePiece` and tiktoken. The message says how they become a `tokenizer.json`.

use std::io::Read;
use std::path::{Path, PathBuf};

use common::UserError;
use common::files::open_file;

use crate::text::copied_file::CopiedFile;

/// How `transformers` writes a `tokenizer.json` of what it reads.
pub(crate) const SAVE: &str = "make its tokenizer.json with Python's transformers: \
    AutoTokenizer.from_pretrained(\"FOLDER\").save_pretrained(\"NEW\")";

/// Refuses a path that names a tokenizer in another form: such a file, or a folder that has one and no `tokenizer.json`.
///
/// # Errors
/// It does; with how to convert it.
pub(crate) fn refuse_other(path: &Path) -> Result<(), UserError> {
    let is_other = |path: &Path| path.extension().is_some_and(|found| found == "model" || found == "tiktoken");
    let file = match path.is_dir() {
        true if CopiedFile::Tokenizer.at(path).exists() => None,
        true => in_folder(path, is_other),
        false => Some(path.to_path_buf()).filter(|path| is_other(path) && path.is_file()),
    };
    let Some(file) = file else { return Ok(()) };
    let shown = file.display();
    let rule = "a tokenizer is `byte`, or a Hugging Face tokenizer.json";
    if is_tiktoken(&file) {
        let fix = "make its tokenizer.json with Python: from transformers.integrations.tiktoken import \
                   convert_tiktoken_to_fast; convert_tiktoken_to_fast(tiktoken.get_encoding(\"NAME\"), \"NEW\"). For \
                   Llama 3 AutoTokenizer.from_pretrained(\"FOLDER\").save_pretrained(\"NEW\") does it";
        return Err(UserError::new(format!("{shown} is a tiktoken file"), rule, fix));
    }
    let fix = format!("{SAVE}. It needs the packages sentencepiece and protobuf");
    Err(UserError::new(format!("{shown} is a SentencePiece model"), rule, fix))
}

/// The first such file of a folder, by name.
fn in_folder(folder: &Path, is_other: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files.into_iter().find(|path| is_other(path))
}

/// Whether a file has tiktoken's lines: a token in base 64, a space, a number.
fn is_tiktoken(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read = open_file(path).and_then(|file| file.take(256).read_to_end(&mut begin));
    let text = begin.split(|byte| *byte == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
    let is_base64 = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c));
    read.is_ok()
        && text.and_then(|line| line.trim_end().split_once(' ')).is_some_and(|(token, rank)| {
            is_base64(token) && !rank.is_empty() && rank.chars().all(|c| c.is_ascii_digit())
        })
}
