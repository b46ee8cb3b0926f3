//! From text to tokens: bytes, or any Hugging Face `tokenizer.json`.

mod begin;
mod check;
mod config;
mod copy;
mod expression;
mod normalizer;
mod other_files;
mod pre_tokenizer;
mod text_stream;
mod vocab_and_merges;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::files::read_file;
use common::{Choice, UserError, caught};
use tokenizers::{DecoderWrapper, Encoding, ModelWrapper, PostProcessorWrapper, Token, TokenizerImpl};

use crate::text::copied_file::CopiedFile;
use crate::text::watched::{Limits, watched};
use begin::begun_as_configured;
pub(crate) use check::MOST_TOKENS;
use check::{Refusal, check};
use config::LARGEST;
pub(crate) use config::{END_OF_TEXT, LARGEST_CONFIG, read_config};
pub use copy::TokenizerCopy;
use normalizer::BoundedNormalizer;
use other_files::refuse_other;
pub(crate) use pre_tokenizer::CheckedPreTokenizer;
pub use text_stream::TextStream;
use vocab_and_merges::{MERGES, VOCAB, from_vocab_and_merges};

/// Limits for reading a tokenizer.json: some seconds, and a time for each of its bytes.
const READING: Limits = Limits { stack: 64 << 20, time: Duration::from_secs(3) };
/// See [`READING`].
const TIME_OF_BYTE: Duration = Duration::from_micros(1);

/// A text that shows at the start whether a tokenizer works at all.
const PROBE: &str = "A text, of 2 lines.\n\tCafé ▁ <s> 日本語 😀\r\n";

/// Usual names of the token that ends a document, in the order of search.
const USUAL_ENDS: [&str; 6] = [END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]"];

/// A tokenizer.
pub enum Tokenizer {
    /// One token per byte. Byte 0 ends a document, because text does not contain it.
    Bytes,
    /// One read from a `tokenizer.json`.
    HuggingFace(Box<HuggingFace>),
}

/// A tokenizer that was read from a `tokenizer.json`.
pub struct HuggingFace {
    /// Without truncation and padding.
    tokenizer: LibraryTokenizer,
    /// The file that the tokenizer was read from.
    json: Arc<[u8]>,
    /// The tokens that begin a document: its post-processor or its folder's settings put them before a text. Empty for many.
    begin: Vec<u32>,
    /// The token that ends a document.
    end: u32,
    /// The same token as text.
    end_of_text: String,
    /// The tokenizer's largest id, plus 1.
    vocab: usize,
}

type LibraryTokenizer =
    TokenizerImpl<ModelWrapper, BoundedNormalizer, CheckedPreTokenizer, PostProcessorWrapper, DecoderWrapper>;

/// Reads a `tokenizer.json`. `shown` stands for it in messages. The library panics on some files that are wrong, and
/// computes for ever on others.
fn read(json: Arc<[u8]>, shown: &str) -> Result<LibraryTokenizer, Refusal> {
    check(&json, shown)?;
    let time = READING.time + TIME_OF_BYTE * u32::try_from(json.len()).unwrap_or(u32::MAX);
    let read = watched(Limits { time, ..READING }, move |_| Ok(parts(&json)));
    Ok(read.map_err(|problem| format!("reading it fails: {problem}"))??)
}

/// The tokenizer in a `tokenizer.json`.
fn parts(bytes: &[u8]) -> Result<LibraryTokenizer, String> {
    let mut tokenizer: LibraryTokenizer = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    // Documents are not cut or filled, whatever the tokenizer does for its own model.
    let _ = tokenizer.with_truncation(None);
    tokenizer.with_padding(None);
    let tried = caught(|| {
        // An error is due to that text, for instance to a character without a token. A panic is due to the tokenizer.
        let tokens = tokenizer.encode_fast(PROBE, true).map(|encoding| encoding.get_ids().to_vec());
        tokenizer.decode(&tokens.unwrap_or_default(), false).map(|_| ())
    });
    tried.map_err(|panic| format!("it fails on a short text: {panic}"))?.ok();
    Ok(tokenizer)
}

/// The tokens that a tokenizer's post-processor puts before a text.
fn begin(tokenizer: &LibraryTokenizer) -> Vec<u32> {
    // A text of one token shows the tokens before it. Tokens behind it are not used: a document has an end of its own.
    let text = Encoding::from_tokens(vec![Token::new(0, "a".into(), (0, 1))], 0);
    let processed = caught(|| tokenizer.post_process(text, None, true));
    let Ok(Ok(processed)) = processed else { return Vec::new() };
    let added = processed.get_special_tokens_mask().iter().take_while(|added| **added == 1).count();
    // A post-processor that marks nothing added nothing.
    let added = if added < processed.len() { added } else { 0 };
    processed.get_ids()[..added].to_vec()
}

/// The error for something that is no tokenizer.
fn no_tokenizer(what: String) -> UserError {
    let rule = "it is `byte`, a Hugging Face tokenizer.json, or a folder with one, or with vocab.json and merges.txt";
    UserError::new(what, rule, "check the path, or save the tokenizer with save_pretrained")
}

impl Tokenizer {
    /// Opens `byte`, the `tokenizer.json` at `name`, or the one in a folder of that name, or that folder's `vocab.json` and
    /// `merges.txt`. `end` is the token that ends a
    /// document. `None`: the usual names are tried.
    ///
    /// # Errors
    /// A file that is missing or not a tokenizer, a token that it does not have.
    pub fn open(name: &str, end: Option<&str>) -> Result<Tokenizer, UserError> {
        if name == "byte" {
            return match end {
                None => Ok(Tokenizer::Bytes),
                Some(end) => Err(UserError::new(
                    format!("end_of_text = `{end}` with the byte tokenizer"),
                    "its documents end with byte 0",
                    "leave data.end_of_text unset",
                )),
            };
        }
        let path = Path::new(name);
        // A folder of tokens or a checkpoint says how the documents of its tokenizer begin and end.
        if path.is_dir()
            && let Some(copy) = TokenizerCopy::read(path)?
        {
            return copy.open(end);
        }
        refuse_other(path)?;
        if let Some(json) = from_vocab_and_merges(path)? {
            let shown = format!("{VOCAB} with {MERGES} in {name}");
            return Tokenizer::from_json(json.into_bytes().into(), &shown, end);
        }
        let path = if path.is_dir() { CopiedFile::Tokenizer.at(path) } else { path.into() };
        let shown = path.display().to_string();
        let json = read_file(&path, LARGEST)
            .map_err(|error| no_tokenizer(format!("data.tokenizer = `{name}`: {shown} cannot be read: {error}")))?;
        let tokenizer = Tokenizer::from_json(json.into(), &shown, end)?;
        match path.parent().filter(|_| path.file_name() == Some(CopiedFile::Tokenizer.word().as_ref())) {
            Some(folder) => begun_as_configured(tokenizer, folder),
            None => Ok(tokenizer),
        }
    }

    /// Whether a folder has a tokenizer that [`Tokenizer::open`] reads.
    pub fn is_in(folder: &Path) -> bool {
        let has = |name: &str| folder.join(name).is_file();
        CopiedFile::Tokenizer.at(folder).is_file() || (has(VOCAB) && has(MERGES))
    }

    /// The tokenizer of a `tokenizer.json`. `shown` stands for the file in messages. `end` as in [`Tokenizer::open`].
    ///
    /// # Errors
    /// A file that is not a tokenizer, a token that it does not have.
    pub fn from_json(json: Arc<[u8]>, shown: &str, end: Option<&str>) -> Result<Tokenizer, UserError> {
        let tokenizer = read(json.clone(), shown).map_err(|refusal| match refusal {
            Refusal::NoTokenizer(why) => no_tokenizer(format!("{shown} is not a tokenizer: {why}")),
            Refusal::Mistake(error) => error,
        })?;
        let usual = USUAL_ENDS.iter().copied();
        let tried: Vec<&str> = end.map_or_else(|| usual.collect(), |end| vec![end]);
        let found = tried.iter().find_map(|end| Some((tokenizer.token_to_id(end)?, end.to_string())));
        let Some((end, end_of_text)) = found else {
            let what = match end {
                Some(end) => format!("end_of_text = `{end}`: {shown} has no such token"),
                None => format!("{shown} has none of the tokens {}", USUAL_ENDS.join(" ")),
            };
            let rule = "a token of the tokenizer ends each document";
            return Err(UserError::new(what, rule, "name one with data.end_of_text (--end-of-text)"));
        };
        let vocab = tokenizer.get_vocab(true).into_values().max().unwrap_or(0) as usize + 1;
        let begin = begin(&tokenizer);
        Ok(Tokenizer::HuggingFace(Box::new(HuggingFace { tokenizer, json, begin, end, end_of_text, vocab })))
    }

    /// The same tokenizer with the given texts as special tokens too. They have the ids that `tokenizers` gives to added
    /// tokens. `shown` stands for it in messages.
    ///
    /// # Errors
    /// Its library does not take them.
    pub(crate) fn with_special_tokens(self, texts: &[String], shown: &str) -> Result<Tokenizer, UserError> {
        let Tokenizer::HuggingFace(read) = self else { return Ok(self) };
        let refused = |problem: &str| {
            UserError::new(
                format!("{shown} takes no special tokens {}: {problem}", texts.join(" ")),
                "new tokens have ids behind all others",
                "add them with transformers (add_special_tokens), and save the tokenizer",
            )
        };
        let mut json: serde_json::Value =
            serde_json::from_slice(&read.json).map_err(|error| refused(&error.to_string()))?;
        let added = read.tokenizer.get_added_tokens_decoder();
        let last = added.keys().max().map_or(0, |id| *id as usize + 1);
        let mut next = read.tokenizer.get_vocab_size(false).max(last) as u32;
        let mut all = json["added_tokens"].as_array().cloned().unwrap_or_default();
        let mut ids = Vec::new();
        for text in texts {
            let id = read.tokenizer.token_to_id(text).unwrap_or(next);
            next = next.max(id + 1);
            ids.push(id);
            all.push(serde_json::json!({
                "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true,
            }));
        }
        json["added_tokens"] = all.into();
        let json = serde_json::to_vec_pretty(&json).map_err(|error| refused(&error.to_string()))?;
        let made = Tokenizer::from_json(json.into(), shown, Some(&read.end_of_text))?;
        if !texts.iter().zip(&ids).all(|(text, id)| made.added_token(text) == Some(*id)) {
            return Err(refused("its ids are not one after the other"));
        }
        let Tokenizer::HuggingFace(made) = made else { unreachable!("it was read from JSON") };
        Ok(Tokenizer::HuggingFace(Box::new(HuggingFace { begin: read.begin, ..*made })))
    }

    /// The same tokenizer for documents that this text begins, or none. A text of several tokens is that of its own file.
    pub(crate) fn beginning_with(mut self, text: Option<&str>) -> Tokenizer {
        let is_other = self.begin_as_text().as_deref() != text;
        if let (true, Tokenizer::HuggingFace(read)) = (is_other, &mut self) {
            match text.map(|text| read.tokenizer.token_to_id(text)) {
                None => read.begin.clear(),
                Some(Some(token)) => read.begin = vec![token],
                Some(None) => {}
            }
        }
        self
    }

    /// Whether documents begin as the tokenizer's `tokenizer.json` alone says.
    pub fn begins_as_its_file(&self) -> bool {
        match self {
            Tokenizer::Bytes => true,
            Tokenizer::HuggingFace(read) => begin(&read.tokenizer) == read.begin,
        }
    }

    /// The `tokenizer.json` that the tokenizer was read from, and the token that ends a document as text. `None` for
    /// bytes.
    pub(crate) fn json(&self) -> Option<(&Arc<[u8]>, &str)> {
        match self {
            Tokenizer::Bytes => None,
            Tokenizer::HuggingFace(read) => Some((&read.json, &read.end_of_text)),
        }
    }

    /// The tokens of a text, with none added before or after.
    ///
    /// # Errors
    /// The tokenizer's error, also if it panics. The byte tokenizer has no errors.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).collect()),
            Tokenizer::HuggingFace(read) => {
                let encoded =
                    caught(|| read.tokenizer.encode_fast(text, false).map(|encoding| encoding.get_ids().to_vec()));
                encoded?.map_err(|error| error.to_string())
            }
        }
    }

    /// The tokens of a text that begins a document: those that begin one, then those of [`Tokenizer::encode`]. With the
    /// token that ends a document, `transformers` gives the same tokens for `add_special_tokens=True`.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_document(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok([self.begin(), &self.encode(text)?].concat())
    }

    /// The tokens of a text that a chat template made, as of [`Tokenizer::encode_document`]. Many templates write the tokens
    /// that begin a document themselves: then none are added.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(self.encode_chat_with_ends(text)?.into_iter().map(|(token, _)| token).collect())
    }

    /// The tokens of [`Tokenizer::encode_chat`], each with the byte of the text behind the token's own bytes.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(crate) fn encode_chat_with_ends(&self, text: &str) -> Result<Vec<(u32, usize)>, String> {
        match self {
            Tokenizer::Bytes => Ok(text.bytes().map(u32::from).zip(1..).collect()),
            Tokenizer::HuggingFace(read) => {
                let encoded = caught(|| read.tokenizer.encode(text, false))?.map_err(|error| error.to_string())?;
                let ends = encoded.get_offsets().iter().map(|(_, end)| *end);
                let begin = if encoded.get_ids().starts_with(&read.begin) { &[][..] } else { &read.begin };
                let begin = begin.iter().map(|token| (*token, 0));
                Ok(begin.chain(encoded.get_ids().iter().copied().zip(ends)).collect())
            }
        }
    }

    /// The text of tokens. Bytes that are not a character and unknown tokens are left out, or become U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Tokenizer::Bytes => {
                let bytes: Vec<u8> = tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Tokenizer::HuggingFace(read) => {
                caught(|| read.tokenizer.decode(tokens, false).unwrap_or_default()).unwrap_or_default()
            }
        }
    }

    /// The tokens that begin a document.
    pub(crate) fn begin(&self) -> &[u32] {
        match self {
            Tokenizer::Bytes => &[],
            Tokenizer::HuggingFace(read) => &read.begin,
        }
    }

    /// The tokens that begin a document as text. `None` if there are none.
    pub(crate) fn begin_as_text(&self) -> Option<String> {
        let Tokenizer::HuggingFace(read) = self else { return None };
        let text = |token: &u32| read.tokenizer.id_to_token(*token).unwrap_or_default();
        (!read.begin.is_empty()).then(|| read.begin.iter().map(text).collect())
    }

    /// The token that ends a document.
    pub fn end_of_text(&self) -> u32 {
        match self {
            Tokenizer::Bytes => 0,
            Tokenizer::HuggingFace(read) => read.end,
        }
    }

    /// The text that is tokenised as the token that ends a document.
    pub fn end_of_text_as_text(&self) -> String {
        match self {
            Tokenizer::Bytes => "\0".into(),
            Tokenizer::HuggingFace(read) => read.end_of_text.clone(),
        }
    }

    /// The token that a text is, if the tokenizer never makes several tokens of the text: a special token, or another
    /// added one.
    pub fn added_token(&self, text: &str) -> Option<u32> {
        let Tokenizer::HuggingFace(read) = self else { return None };
        let token = read.tokenizer.token_to_id(text)?;
        read.tokenizer.get_added_tokens_decoder().contains_key(&token).then_some(token)
    }

    /// Whether a text is the text of a token.
    pub(crate) fn has_token(&self, text: &str) -> bool {
        matches!(self, Tokenizer::HuggingFace(read) if read.tokenizer.token_to_id(text).is_some())
    }

    /// Size of the vocabulary: all ids are below it.
    pub fn vocab(&self) -> usize {
        match self {
            Tokenizer::Bytes => 256,
            Tokenizer::HuggingFace(read) => read.vocab,
        }
    }

    /// Whether text may be cut at byte `at`, the start of a line: the two lines there have the same tokens apart and together.
    pub fn separates(&self, text: &str, at: usize) -> bool {
        let Tokenizer::HuggingFace(_) = self else { return true };
        let before = text[..at - 1].rfind('\n').map_or(0, |end| end + 1);
        let after = text[at..].find('\n').map_or(text.len(), |end| at + end + 1);
        let encoded = [before..after, before..at, at..after].map(|range| self.encode(&text[range]));
        let [Ok(both), Ok(mut left), Ok(right)] = encoded else { return false };
        left.extend(right);
        both == left
    }
}
