//! `trainer tokenizer train`: from text files to a byte-level BPE in a `tokenizer.json`.
//!
//! The library counts words and merges the most frequent pair again and again. Of equally frequent pairs it takes the one
//! with the smaller tokens, so the same text gives the same tokenizer, whatever the number of threads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use common::files::write_file;
use common::format::{bytes, counted};
use common::{Mistakes, Stop, UserError};
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Trainer,
};

use super::files::{Records, read_files};
use super::tokenizer::{CheckedPreTokenizer, END_OF_TEXT, MOST_TOKENS};
use crate::error::DataError;
use crate::interrupt::ensure_not_interrupted;
use crate::text::tokenize::{TokenizeError, named_files, progress};
use crate::text::tokenizer::Tokenizer;

/// GPT-2's words, but numbers of at most three digits, as in GPT-4, and line ends with the tabs that follow: code is
/// indented.
const WORDS: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[\r\n]+\t*|\t+|\s+(?!\S)|\s+";

/// How often a pair occurs at least that becomes a token.
const LEAST: u64 = 2;

/// Texts that wait to be counted.
const WAITING: usize = 64;

/// The longest word that is counted, in bytes. The time of merges grows with the square of a word's length, and longer runs of
/// line ends, spaces or dashes teach nothing.
const LONGEST_WORD: usize = 1 << 10;

/// The number of words that are too long, by the number of the words' file.
type LongWords = Mutex<BTreeMap<usize, u64>>;

/// A request to make a tokenizer.
#[derive(Clone, Debug)]
pub struct TokenizerRequest {
    /// Files of text, or folders of such files.
    pub files: Vec<PathBuf>,
    /// The key of the text in JSON lines, or the text's column in Parquet files.
    pub text_key: String,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Special tokens behind the one that ends a document.
    pub special: Vec<String>,
    /// The file to write.
    pub output: PathBuf,
}

/// Makes a byte-level BPE of the texts of a request. Returns a message for the user. Ends early when `stop` is asked for.
///
/// # Errors
/// Input that is wrong, or output that cannot be written.
pub fn train_tokenizer(request: &TokenizerRequest, stop: &Stop) -> Result<String, TokenizeError> {
    check(request)?;
    let started = Instant::now();
    let (files, mut notices) = named_files(&request.files, &request.text_key)?;
    let special: Vec<AddedToken> = special_tokens(request).map(|token| AddedToken::from(token, true)).collect();
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(request.vocab_size)
        .min_frequency(LEAST)
        .special_tokens(special)
        .initial_alphabet(alphabet)
        .show_progress(false)
        .build();
    let bar = progress(&files);
    let words: CheckedPreTokenizer = serde_json::from_value(word_splits())
        .unwrap_or_else(|error| unreachable!("the splits are a pre-tokenizer: {error}"));
    let (sender, texts) = sync_channel::<String>(WAITING);
    let long = LongWords::default();
    let (read, counted_words) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // Moved, so that the last text is followed by the channel's end.
            let sender = sender;
            let (mut size, key) = (0, Records::Documents(&request.text_key));
            let mut paths: Vec<Arc<Path>> = Vec::new();
            let of_files = read_files(&files, &Tokenizer::Bytes, key, |segments| -> Result<(), TokenizeError> {
                ensure_not_interrupted(stop, &request.output)?;
                for segment in segments {
                    let text = segment.document(&request.text_key)?.unwrap_or_default().into_owned();
                    size += text.len();
                    if paths.last() != Some(&segment.path) {
                        paths.push(segment.path.clone());
                    }
                    // If nobody receives, counting has failed, and says so.
                    // The library hands the text alone to the function that counts words, so the text names its file.
                    let _ = sender.send(format!("{}\n{text}", paths.len() - 1));
                }
                bar.set_position(size as u64);
                Ok(())
            })?;
            Ok::<_, TokenizeError>((size, of_files, paths))
        });
        let counted = trainer.feed(texts.into_iter(), |numbered| {
            let (number, text) = numbered.split_once('\n').unwrap_or_default();
            let (words, too_long) = words_of(text, &words)?;
            if too_long > 0 {
                let mut long = long.lock().unwrap_or_else(PoisonError::into_inner);
                *long.entry(number.parse().unwrap_or_default()).or_default() += too_long;
            }
            Ok(words)
        });
        (reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), counted)
    });
    let (size, of_files, paths) = read?;
    counted_words.map_err(|error| {
        UserError::new(
            format!("FILES: {error}"),
            "a text divides into words",
            "take that text out: it has a run of a million spaces or alike",
        )
    })?;
    if size == 0 {
        let what = format!("there is no UTF-8 text in {}", counted(files.len(), "file"));
        return Err(UserError::new(what, "a tokenizer is made of text", "name files with text").into());
    }
    bar.finish_and_clear();
    let mut model = BPE::default();
    let json = trainer.train(&mut model).and_then(|special| tokenizer_json(model, special)).map_err(|error| {
        let fix = "report it with the text, if you can share it";
        DataError { what: format!("merging words fails: {error}"), fix: fix.into() }
    })?;
    ensure_not_interrupted(stop, &request.output)?;
    let output = request.output.display();
    let made = Tokenizer::from_json(json.as_bytes().into(), &output.to_string(), Some(END_OF_TEXT))?;
    write(&request.output, &json)?;
    notices.extend(of_files);
    let long = described(&long.into_inner().unwrap_or_else(PoisonError::into_inner), &paths);
    let mut notices: String = notices.lines().iter().chain(&long).map(|notice| format!("\n{notice}")).collect();
    if made.vocab() < request.vocab_size {
        notices += &format!(
            "\nnotice: fewer than --vocab-size {}: no other pair occurs {LEAST} times in this text",
            request.vocab_size
        );
    }
    Ok(format!(
        "{} of {} -> {} tokens, {output}\n{:.2} s{notices}",
        bytes(size),
        counted(files.len(), "file"),
        made.vocab(),
        started.elapsed().as_secs_f64()
    ))
}

/// All special tokens of a request: first the one that ends a document.
fn special_tokens(request: &TokenizerRequest) -> impl Iterator<Item = String> {
    let further = request.special.iter().filter(|token| *token != END_OF_TEXT).cloned();
    std::iter::once(END_OF_TEXT.to_string()).chain(further)
}

/// Everything that is wrong with a request, without a look at the files of text.
fn check(request: &TokenizerRequest) -> Result<(), UserError> {
    let mut mistakes = Mistakes::default();
    let special: Vec<String> = special_tokens(request).collect();
    for (index, token) in special.iter().enumerate() {
        let rule = "special tokens differ, and have two characters or more: single ones are bytes";
        if token.chars().count() < 2 || special[..index].contains(token) {
            mistakes.add(UserError::new(format!("--special {token}"), rule, "for example --special \"<|user|>\""));
        }
    }
    let (asked, least) = (request.vocab_size, 256 + special.len());
    if !(least..=MOST_TOKENS as usize).contains(&asked) {
        mistakes.add(UserError::new(
            format!("--vocab-size {asked}"),
            format!(
                "256 bytes and {} come first, and there are at most {MOST_TOKENS}",
                counted(special.len(), "special token")
            ),
            "for example --vocab-size 32000",
        ));
    }
    let output = request.output.display();
    if std::fs::symlink_metadata(&request.output).is_ok() {
        let what = format!("--output {output} exists");
        mistakes.add(UserError::new(what, "nothing is overwritten", "name another file, or remove it"));
    } else if !std::path::absolute(&request.output).is_ok_and(|path| path.parent().is_some_and(Path::is_dir)) {
        let what = format!("--output {output}: its folder does not exist");
        mistakes.add(UserError::new(what, "it is a new file in a folder that is there", "make the folder"));
    }
    mistakes.end()
}

/// The steps that divide text into words of bytes.
fn word_splits() -> Value {
    let split = json!({"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": false});
    let to_bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({"type": "Sequence", "pretokenizers": [split, to_bytes]})
}

/// A line about words that are too long.
fn described(long: &BTreeMap<usize, u64>, paths: &[Arc<Path>]) -> Option<String> {
    const NAMED: usize = 3;
    let all: u64 = long.values().sum();
    let in_file = |(number, count): (&usize, &u64)| format!("{count} in {}", paths[*number].display());
    let named: Vec<String> = long.iter().take(NAMED).map(in_file).collect();
    let more = match long.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and others in {more} more"),
    };
    (all > 0).then(|| {
        let words = counted(all as usize, "word");
        format!("notice: {words} of more than {} left out: {}{more}", bytes(LONGEST_WORD), named.join(", "))
    })
}

/// The words of a text, and the number of others, which are too long.
fn words_of(text: &str, words: &CheckedPreTokenizer) -> tokenizers::Result<(Vec<String>, u64)> {
    let mut divided = PreTokenizedString::from(text);
    words.pre_tokenize(&mut divided).map_err(|error| {
        let begin: String = text.chars().take(40).collect();
        format!("the text that begins with {begin:?}: {error}")
    })?;
    let words = divided.get_splits(OffsetReferential::Original, OffsetType::Byte);
    let all = words.len();
    let kept = words.into_iter().filter(|(_, (begin, end), _)| end - begin <= LONGEST_WORD);
    let kept: Vec<String> = kept.map(|(word, _, _)| word.to_string()).collect();
    let too_long = all - kept.len();
    Ok((kept, too_long as u64))
}

/// The file of a tokenizer with this model.
fn tokenizer_json(model: BPE, special: Vec<AddedToken>) -> tokenizers::Result<String> {
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(serde_json::from_value::<PreTokenizerWrapper>(word_splits())?));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.add_special_tokens(special)?;
    Ok(tokenizer.to_string(true)? + "\n")
}

/// Writes the file, or leaves none.
fn write(output: &Path, json: &str) -> Result<(), DataError> {
    write_file(output, json).map_err(|error| {
        let _ = std::fs::remove_file(output);
        DataError {
            what: format!("{} cannot be written: {error}", output.display()),
            fix: "name another --output".into(),
        }
    })
}
