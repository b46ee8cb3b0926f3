//! `trainer tokenize`: from text files to a folder of token files.

use std::path::{Path, PathBuf};
use std::time::Instant;

use common::format::{bytes, count, counted};
use common::{Choice, Mistakes, Stop, UserError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::files::{Records, TextFile, encode_files, text_files, unpacked_name};
use super::tokenizer::TokenizerCopy;
use crate::error::DataError;
use crate::file_notices::FileNotices;
use crate::formats::shards::ShardWriter;
use crate::formats::tokens::TokenType;
use crate::found::expanded;
use crate::interrupt::ensure_not_interrupted;
use crate::splits::Purpose;
use crate::text::tokenizer::Tokenizer;

/// A request to tokenise files.
#[derive(Clone, Debug)]
pub struct TokenizeRequest {
    /// `byte`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// The token that ends a document. `None`: one of the usual names.
    pub end_of_text: Option<String>,
    /// The key of the text in JSON lines, or the text's column in Parquet files.
    pub text_key: String,
    /// The folder to write.
    pub output: PathBuf,
    /// Tokens of each file, at least 1.
    pub shard_tokens: u64,
    /// Files of text, or folders of such files.
    pub files: Vec<PathBuf>,
}

impl TokenizeRequest {
    /// Whether the request for token files can be carried out. What is wrong is added to `mistakes`.
    pub fn check(&self, mistakes: &mut Mistakes) -> bool {
        self.opened(mistakes).is_some()
    }

    fn opened(&self, mistakes: &mut Mistakes) -> Option<(Tokenizer, (Vec<TextFile>, FileNotices))> {
        let tokenizer = mistakes.keep(Tokenizer::open(&self.tokenizer, self.end_of_text.as_deref()));
        if occupied(&self.output) {
            let what = format!("--output {} exists and is not an empty folder", self.output.display());
            mistakes.add(UserError::new(what, "nothing is overwritten", "name another folder, or remove it"));
        }
        let files = mistakes.keep(named_files(&self.files, &self.text_key));
        tokenizer.zip(files)
    }
}

/// Why files were not tokenised.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// The user's input is wrong.
    #[error(transparent)]
    User(#[from] UserError),
    /// Files cannot be read or written.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// Writes the token files of a request. Returns a message for the user. Ends early when `stop` is asked for.
///
/// # Errors
/// Input that is wrong, or output that cannot be written. No output is left behind then.
pub fn tokenize(request: &TokenizeRequest, stop: &Stop) -> Result<String, TokenizeError> {
    let mut mistakes = Mistakes::default();
    let opened = request.opened(&mut mistakes);
    mistakes.end()?;
    let Some((tokenizer, (files, mut notices))) = opened else { unreachable!("a request without mistakes has files") };
    let output = request.output.display();
    let bar = progress(&files);
    let started = Instant::now();
    let kind = TokenType::for_vocab(tokenizer.vocab());
    let mut writer = ShardWriter::create(&request.output, kind, request.shard_tokens).map_err(|error| {
        UserError::new(
            error.what,
            "--output names a folder that can be created",
            "name another folder, or change permissions",
        )
    })?;
    let (totals, of_files) = encode_files(&files, &tokenizer, &request.text_key, |tokens, so_far| {
        bar.set_position(so_far.bytes);
        ensure_not_interrupted(stop, &request.output)?;
        writer.push(tokens).map_err(TokenizeError::from)
    })?;
    if totals.is_empty() {
        let what = format!("there is no UTF-8 text in {}", counted(files.len(), "file"));
        return Err(UserError::new(what, "there is text to tokenise", "name files with text").into());
    }
    for (name, content) in TokenizerCopy::of(&tokenizer).files() {
        writer.add(name.word(), &content)?;
    }
    let shards = writer.shards;
    let foreign: String = writer
        .foreign
        .iter()
        .map(|path| format!("\n{} stays: trainer tokenize did not make it", path.display()))
        .collect();
    writer.finish()?;
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    notices.extend(of_files);
    let notices: String = notices.lines().iter().map(|notice| format!("\n{notice}")).collect();
    Ok(format!(
        "{} of {}, {} -> {} tokens in {}, {output}\n{seconds:.2} s, {:.1} MB/s{notices}{foreign}",
        counted(totals.documents as usize, "document"),
        counted(files.len(), "file"),
        bytes(totals.bytes as usize),
        count(totals.tokens as f64),
        counted(shards, "token file"),
        totals.bytes as f64 / 1e6 / seconds,
    ))
}

/// The files of text that a command names, and notices about the files.
///
/// # Errors
/// As [`expanded`] and [`text_files`].
pub(crate) fn named_files(names: &[PathBuf], key: &str) -> Result<(Vec<TextFile>, FileNotices), UserError> {
    let (mut files, mut notices) = (Vec::new(), FileNotices::default());
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in names {
        match path.to_str() {
            Some(path) => paths.extend(expanded("FILES", &[path])?.into_iter().map(PathBuf::from)),
            None => paths.push(path.clone()),
        }
    }
    for path in &paths {
        let found = text_files(&path.display().to_string(), path, Records::Documents(key), Purpose::Train)?;
        files.extend(found.files);
        notices.extend(found.notices);
    }
    Ok((files, notices))
}

/// A bar over the bytes of text. How many packed files have is not known before they are unpacked.
pub(crate) fn progress(files: &[TextFile]) -> ProgressBar {
    let is_packed = |file: &TextFile| unpacked_name(&file.path) != file.path;
    let sizes = files.iter().filter_map(|file| std::fs::metadata(&file.path).ok()).map(|meta| meta.len());
    let (total, template) = match files.iter().any(is_packed) {
        true => (None, "{bytes}  {bytes_per_sec}  {elapsed}"),
        false => (Some(sizes.sum()), "{bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left"),
    };
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Whether something exists there that would be lost.
fn occupied(path: &Path) -> bool {
    match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => std::fs::symlink_metadata(path).is_ok(),
    }
}
