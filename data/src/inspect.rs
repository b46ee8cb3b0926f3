//! A summary of data: numbers of documents and tokens, and the beginnings of the first documents.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use common::escape::one_line;
use common::format::{bytes, count, counted};
use common::{Choice, Stop, UserError};

use crate::config::{RawTokens, RecordKind};
use crate::error::DataError;
use crate::formats::token_file::token_file;
use crate::formats::tokens::Tokens;
use crate::found::{Found, expanded, found};
use crate::splits::{Chosen, Purpose};
use crate::text::conversation::{ChatTemplate, Conversation, ReadConversations, encode_conversations, markers};
use crate::text::files::{Records, TextFile, encode_files};
use crate::text::tokenize::TokenizeError;
use crate::text::tokenizer::{Tokenizer, TokenizerCopy};

/// Tokens of a document that are shown as text.
const SHOWN_TOKENS: usize = 256;

/// Characters of a document that are shown.
const SHOWN_CHARACTERS: usize = 160;

/// Tokens that are read at a time.
const PART: usize = 1 << 20;

/// The data to inspect, and how the data are read.
#[derive(Clone, Debug)]
pub struct InspectRequest {
    /// Files, folders and patterns, as in `data.path`.
    pub paths: Vec<String>,
    /// The tokenizer. `None`: token files name their own, and text is read as bytes.
    pub tokenizer: Option<String>,
    /// The token that ends a document. `None`: the tokenizer's.
    pub end_of_text: Option<String>,
    /// The key of the text in JSON lines, or the text's column in Parquet files.
    pub text_key: String,
    /// The type of tokens in files without a header.
    pub raw_tokens: RawTokens,
    /// What the records of text are.
    pub kind: RecordKind,
    /// The template of conversations: see [`ChatTemplate::open`].
    pub chat_template: Option<String>,
    /// Whether the markers of the template become tokens, as with `data.add_special_tokens`.
    pub add_special_tokens: bool,
    /// For each path, the number of documents or conversations whose beginning is shown.
    pub samples: usize,
}

impl InspectRequest {
    /// The records of the paths.
    fn records(&self) -> Records<'_> {
        Records::of(self.kind, &self.text_key)
    }
}

/// A summary of each path of a request, and of all if there are several, as text to print. Reads all files. Ends early when `stop` is asked for.
///
/// # Errors
/// A path that cannot be read, or holds no data; the process was asked to end.
pub fn inspect(request: &InspectRequest, stop: &Stop) -> Result<String, TokenizeError> {
    let paths: Vec<&str> = request.paths.iter().map(String::as_str).collect();
    let (mut report, mut total) = (String::new(), Total::default());
    let paths = expanded("PATH", &paths)?;
    for path in &paths {
        let records = request.records();
        let is_text = request.kind == RecordKind::Documents;
        let (summary, of_path) = match found("PATH", path, records, Purpose::Train)? {
            Found::Tokens(_) if !is_text => {
                let flag = request.kind.option();
                let what = format!("--{flag} with PATH = `{path}`, which has tokens");
                let rule = "conversations and judged answers are records of JSON or Parquet";
                return Err(UserError::new(what, rule, format!("leave --{flag} out")).into());
            }
            Found::Text(texts) if !is_text => conversations(request, stop, path, texts)?,
            Found::Tokens(bins) => tokens(request, stop, path, bins)?,
            Found::Text(texts) => text(request, stop, path, texts)?,
        };
        report += &summary;
        total.add(of_path);
    }
    if paths.len() > 1 {
        report += &total.describe(request.kind.word());
    }
    Ok(report)
}

/// Counts over some files.
#[derive(Clone, Copy)]
struct Total {
    files: usize,
    /// Documents or conversations. `None` if the token that ends a document is not known.
    documents: Option<u64>,
    tokens: u64,
    /// Tokens that the loss of conversations is on.
    learned: u64,
}

impl Default for Total {
    fn default() -> Total {
        Total { files: 0, documents: Some(0), tokens: 0, learned: 0 }
    }
}

impl Total {
    fn add(&mut self, other: Total) {
        self.files += other.files;
        self.documents = self.documents.zip(other.documents).map(|(a, b)| a + b);
        self.tokens += other.tokens;
        self.learned += other.learned;
    }

    /// The counts in words, of documents of that name.
    fn describe(self, document: &str) -> String {
        let documents = self.documents.map_or(String::new(), |all| format!("{}, ", counted(all as usize, document)));
        let learned = match self.learned {
            0 => String::new(),
            learned => format!("; the loss is on {} of them", count(learned as f64)),
        };
        let tokens = count(self.tokens as f64);
        format!("in all: {}, {documents}{tokens} tokens{learned}\n", counted(self.files, "file"))
    }
}

/// The text printed about a path, and the path's counts.
type Summary = (String, Total);

/// A stream of tokens, as far as read.
#[derive(Default)]
struct Seen {
    /// The first token that begins a document, if there is one.
    begin: Option<u32>,
    /// The token that ends a document, if known.
    end: Option<u32>,
    tokens: u64,
    documents: u64,
    largest: u32,
    /// The beginnings of the first documents. The last one may still grow.
    first: Vec<Vec<u32>>,
    /// Whether the next token begins a document.
    begins: bool,
}

impl Seen {
    fn new(tokenizer: Option<&Tokenizer>) -> Seen {
        let begin = tokenizer.and_then(|tokenizer| tokenizer.begin().first().copied());
        Seen { begin, end: tokenizer.map(Tokenizer::end_of_text), begins: true, ..Seen::default() }
    }

    /// Adds the tokens that follow. The first `samples` documents are kept.
    fn push(&mut self, tokens: &[u32], samples: usize) {
        self.tokens += tokens.len() as u64;
        for &token in tokens {
            self.largest = self.largest.max(token);
            if self.begins && (self.documents as usize) < samples {
                self.first.push(Vec::new());
            }
            // Some tokenizers begin and end documents with the same token.
            let is_first = self.begins && Some(token) == self.begin;
            self.begins = Some(token) == self.end && !is_first;
            if self.begins {
                self.documents += 1;
            } else if self.first.len() as u64 > self.documents
                && let Some(document) = self.first.last_mut().filter(|document| document.len() < SHOWN_TOKENS)
            {
                document.push(token);
            }
        }
    }

    fn total(&self, files: usize) -> Total {
        Total { files, documents: self.end.map(|_| self.documents), tokens: self.tokens, learned: 0 }
    }

    /// Numbers of documents and tokens.
    fn summary(&self) -> String {
        let tokens = format!("{} tokens, the largest {}", count(self.tokens as f64), self.largest);
        match self.end {
            None => tokens,
            Some(_) => format!("{}, {tokens}", counted(self.documents as usize, "document")),
        }
    }

    /// A line for each document that is kept.
    fn samples(&self, tokenizer: Option<&Tokenizer>) -> String {
        let lines = self.first.iter().enumerate().map(|(number, tokens)| match tokenizer {
            Some(tokenizer) => {
                let text = tokenizer.decode(tokens);
                let shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
                let more = if shown.len() < text.len() || tokens.len() == SHOWN_TOKENS { " ..." } else { "" };
                format!("  document {}: {}{more}\n", number + 1, one_line(&shown))
            }
            None => format!("  tokens: {tokens:?} ...\n"),
        });
        lines.collect()
    }
}

/// A summary of token files.
fn tokens(request: &InspectRequest, stop: &Stop, path: &str, bins: Chosen<PathBuf>) -> Result<Summary, TokenizeError> {
    let notices = indented(bins.notices.lines());
    let bins = bins.files;
    let files: Vec<Tokens> = bins.iter().map(|bin| token_file(bin, request.raw_tokens)).collect::<Result<_, _>>()?;
    let folder = bins.first().and_then(|bin| bin.parent()).unwrap_or(Path::new(""));
    let end = request.end_of_text.as_deref();
    let (tokenizer, whose) = match &request.tokenizer {
        Some(name) => (Some(Tokenizer::open(name, end)?), name.clone()),
        None => match TokenizerCopy::read(folder)? {
            Some(copy) => (Some(copy.open(end)?), copy.describe()),
            None => (None, "not known: name it with --tokenizer to see text and documents".into()),
        },
    };
    let mut seen = Seen::new(tokenizer.as_ref());
    for file in &files {
        read(file, stop, |tokens| seen.push(tokens, request.samples))?;
    }
    let (total, files) = (seen.total(files.len()), counted(files.len(), "token file"));
    let samples = seen.samples(tokenizer.as_ref());
    Ok((format!("{path}: {files}, {}\n  tokenizer: {whose}\n{notices}{samples}", seen.summary()), total))
}

/// Passes all tokens of a file on, in parts.
fn read(file: &Tokens, stop: &Stop, mut each: impl FnMut(&[u32])) -> Result<(), TokenizeError> {
    let mut row = vec![0i32; PART.min(file.len as usize)];
    let mut at = 0;
    while at < file.len {
        ensure_goes_on(stop)?;
        let part = &mut row[..(file.len - at).min(PART as u64) as usize];
        file.read(at, part, i32::MAX as usize)?;
        let ids: Vec<u32> = part.iter().map(|id| *id as u32).collect();
        each(&ids);
        at += part.len() as u64;
    }
    Ok(())
}

fn text(request: &InspectRequest, stop: &Stop, path: &str, texts: Chosen<TextFile>) -> Result<Summary, TokenizeError> {
    let Chosen { files, mut notices, .. } = texts;
    let name = request.tokenizer.as_deref().unwrap_or("byte");
    let tokenizer = Tokenizer::open(name, request.end_of_text.as_deref())?;
    let mut seen = Seen::new(Some(&tokenizer));
    let (totals, of_files) = encode_files(&files, &tokenizer, &request.text_key, |tokens, _| {
        ensure_goes_on(stop)?;
        seen.push(tokens, request.samples);
        Ok::<(), TokenizeError>(())
    })?;
    notices.extend(of_files);
    if totals.is_empty() {
        let what = format!("PATH = `{path}` holds no UTF-8 text");
        return Err(UserError::new(what, "it names text or tokens", "name files with text").into());
    }
    let notices = indented(notices.lines());
    let summary = format!(
        "{path}: {} of text, {}, {}\n  tokenizer: {name}\n{notices}{}",
        counted(files.len(), "file"),
        bytes(totals.bytes as usize),
        seen.summary(),
        seen.samples(Some(&tokenizer))
    );
    Ok((summary, seen.total(files.len())))
}

/// A summary of files of conversations. In those that are shown, » and « enclose the tokens that have a loss.
fn conversations(
    request: &InspectRequest,
    stop: &Stop,
    path: &str,
    texts: Chosen<TextFile>,
) -> Result<Summary, TokenizeError> {
    let Chosen { files, mut notices, .. } = texts;
    let name = request.tokenizer.as_deref().unwrap_or("byte");
    let mut tokenizer = Tokenizer::open(name, request.end_of_text.as_deref())?;
    let (named, mut lines) = (request.chat_template.as_deref(), Vec::new());
    if request.add_special_tokens {
        let added = markers::add(&ChatTemplate::to_train(named, name, &tokenizer)?.0, name, tokenizer)?;
        (tokenizer, lines) = (added.tokenizer, vec![added.line]);
    }
    let template = || {
        let (template, notice) = ChatTemplate::to_train(named, name, &tokenizer)?;
        lines.extend(notice.into_iter().chain(markers::check(&template, name, &tokenizer)?));
        Ok(Rc::new(template))
    };
    let (mut lengths, mut counted_tokens, mut shown) = (Vec::new(), 0, String::new());
    let mut all = 0;
    let read = encode_conversations(&files, request.records(), &tokenizer, template, |conversations| {
        ensure_goes_on(stop)?;
        all += 1;
        let names = match request.kind {
            RecordKind::Pairs => ["chosen", "rejected"].map(|name| format!("pair {all}, {name}")).to_vec(),
            RecordKind::Labelled => {
                let is_desirable = conversations.first().is_some_and(|answer| answer.is_desirable);
                vec![format!("answer {all}, {}", if is_desirable { "desirable" } else { "undesirable" })]
            }
            _ => vec![format!("conversation {all}")],
        };
        for (name, conversation) in names.into_iter().zip(&conversations) {
            lengths.push(conversation.tokens.len());
            counted_tokens += conversation.counts.iter().filter(|counts| **counts).count();
            if all <= request.samples {
                shown += &format!("  {name}: {}\n", marked(conversation, &tokenizer));
            }
        }
        Ok::<(), TokenizeError>(())
    })?;
    let ReadConversations { form, notices: of_files, lost } = read;
    notices.extend(of_files);
    let form = form.map(|form| format!("read as {}", form.describe()));
    let notices = indented(form.into_iter().chain(lines).chain(lost).chain(notices.lines()).collect());
    lengths.sort_unstable();
    let at = |share: usize| lengths.get(lengths.len().saturating_sub(1) * share / 100).copied().unwrap_or(0);
    let tokens = lengths.iter().sum::<usize>();
    let summary = format!(
        "{path}: {}, {} tokens; the loss is on {} of them, which stand between » and «\n  lengths: half have up to {} tokens, \
         90 % up to {}, the longest has {}\n  tokenizer: {name}\n{notices}{shown}",
        counted(all, request.kind.word()),
        count(tokens as f64),
        count(counted_tokens as f64),
        at(50),
        at(90),
        at(100),
    );
    let (documents, tokens, learned) = (Some(all as u64), tokens as u64, counted_tokens as u64);
    Ok((summary, Total { files: files.len(), documents, tokens, learned }))
}

/// Lines below the name of a path.
fn indented(lines: Vec<String>) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

/// A conversation on one line, with » and « around the tokens that count.
fn marked(conversation: &Conversation, tokenizer: &Tokenizer) -> String {
    let tokens: Vec<(u32, bool)> =
        conversation.tokens.iter().copied().zip(conversation.counts.iter().copied()).take(4 * SHOWN_TOKENS).collect();
    let parts = tokens.chunk_by(|a, b| a.1 == b.1).map(|part| {
        let text = tokenizer.decode(&part.iter().map(|(token, _)| *token).collect::<Vec<_>>());
        if part[0].1 { format!("»{text}«") } else { text }
    });
    let more = if tokens.len() < conversation.tokens.len() { " ..." } else { "" };
    format!("{}{more}", one_line(&parts.collect::<String>()))
}

fn ensure_goes_on(stop: &Stop) -> Result<(), DataError> {
    match stop.is_asked() {
        false => Ok(()),
        true => Err(DataError { what: "interrupted".into(), fix: "start again".into() }),
    }
}
