//! From the `[data]` section to a source: opens the files of its paths and checks them.

use std::path::Path;
use std::rc::Rc;

use common::format::{count, counted};
use common::{Choice, UserError};

use crate::config::{DataConfig, RecordKind};
use crate::file_notices::{FileNotices, Told};
use crate::formats::token_file::token_file;
use crate::formats::tokens::{Storage, TokenType, Tokens};
use crate::found::{Found, expanded, found};
use crate::one_tokenizer::OneTokenizer;
use crate::paths::Paths;
use crate::sources::blend::Blend;
use crate::sources::conversations::{Builder, Conversations};
use crate::sources::corpus::{Corpus, Windows};
use crate::sources::dataset::Dataset;
use crate::sources::document_ends::DocumentEnds;
use crate::sources::order::Order;
use crate::sources::token_source::{Mixture, TokenSource};
use crate::splits::{Purpose, named_otherwise};
use crate::text::conversation::{ChatTemplate, ReadConversations, encode_conversations, markers};
use crate::text::files::{Records, TextFile, encode_files};
use crate::text::tokenizer::{Tokenizer, TokenizerCopy};
use crate::vocabulary::Configured;

/// Opens the files of `paths` (`data.path`) and `data.validation_path` for samples of `seq` tokens below `vocab`, and
/// checks all files. If names of files mark some as validation data, the dataset validates on these. Otherwise
/// `data.split` divides the dataset.
///
/// # Errors
/// Anything wrong with the files.
pub fn open(paths: &Paths, data: &DataConfig, seq: usize, vocab: usize) -> Result<TokenSource, UserError> {
    let mut reader = Reader::new(data, seq, vocab);
    let Some(apart) = &data.validation_path else {
        let (weights, all) = reader.datasets("data.path", paths, Purpose::TrainAndValidate)?;
        let mut training = Vec::new();
        let mut validation = (Vec::new(), Vec::new());
        for (number, (weight, Samples { samples, validation: named })) in weights.iter().zip(all).enumerate() {
            let (train, rest) = match named {
                Some(named) => (samples, Some(named)),
                None => divided(samples, data.split, number)?,
            };
            training.push(train);
            validation.0.extend(rest.is_some().then_some(*weight));
            validation.1.extend(rest);
        }
        let mixture = |weights: &[f64], datasets| Ok(Mixture { blend: Blend::new(weights, "data.path")?, datasets });
        let validates = !validation.1.is_empty();
        let validation = validates.then(|| mixture(&validation.0, validation.1)).transpose()?;
        return reader.source(paths, mixture(&weights, training)?, validation);
    };
    let training = reader.mixture("data.path", paths, Purpose::Train)?;
    let validation = reader.mixture("data.validation_path", apart, Purpose::Evaluate)?;
    reader.source(paths, training, Some(validation))
}

/// Opens the files of `paths` to evaluate on: all their samples, in order, are [`Split::Validation`](crate::Split::Validation).
///
/// # Errors
/// Anything wrong with the files.
pub fn open_to_evaluate(paths: &Paths, data: &DataConfig, seq: usize, vocab: usize) -> Result<TokenSource, UserError> {
    let mut reader = Reader::new(data, seq, vocab);
    let all = reader.mixture("data.path", paths, Purpose::Evaluate)?;
    reader.source(paths, Mixture { blend: Blend::new(&[1.0], "data.path")?, datasets: Vec::new() }, Some(all))
}

/// The first `share` of a dataset's samples to train on, and, for a share below 1, the rest to validate on.
fn divided(samples: Dataset, share: f64, number: usize) -> Result<(Dataset, Option<Dataset>), UserError> {
    let all = samples.count();
    let (train, rest) = samples.split(share);
    if train.count() > 0 && (share == 1.0 || rest.count() > 0) {
        return Ok((train, (share < 1.0).then_some(rest)));
    }
    Err(UserError::new(
        format!("data.path: dataset {} has {}, and data.split = {share}", number + 1, counted(all as usize, "sample")),
        "every dataset has at least one sample to train on and one to validate on",
        "give more text, a smaller model.seq_length, data.split = 1, or data.validation_path",
    ))
}

/// An error for each file or folder that is named and is not there: data, and the tokenizer of text.
pub fn missing_files(data: &DataConfig) -> Vec<UserError> {
    let named = [("data.path", &data.path), ("data.validation_path", &data.validation_path)];
    let names =
        named.into_iter().flat_map(|(key, paths)| paths.iter().flat_map(Paths::names).map(move |name| (key, name)));
    let is_there = |name: &String| Path::new(name).exists() || Path::new(&format!("{name}.bin")).exists();
    let datasets = names.filter_map(|(key, name)| match expanded(key, &[name]) {
        Err(error) => Some(error),
        Ok(names) => {
            let missing = names.into_iter().find(|name| !is_there(name))?;
            found(key, &missing, records(data), Purpose::Train).err()
        }
    });
    let reads_text = data.path.is_some() && !forms(data).1;
    let has_tokenizer = data.tokenizer == "byte" || Path::new(&data.tokenizer).exists();
    let tokenizer = (reads_text && !has_tokenizer).then(|| Tokenizer::open(&data.tokenizer, None).err()).flatten();
    datasets.chain(tokenizer).collect()
}

/// The records of text to train on.
fn records(data: &DataConfig) -> Records<'_> {
    Records::of(data.kind(), &data.text_key)
}

/// Whether any of the configured data is text, and whether any is token files. Paths that cannot be read are neither.
pub fn forms(data: &DataConfig) -> (bool, bool) {
    let (mut text, mut tokens) = (false, false);
    for paths in [&data.path, &data.validation_path].into_iter().flatten() {
        let datasets = paths.datasets("data").unwrap_or_default();
        let all = datasets.iter().flat_map(|(_, paths)| paths);
        for path in all.flat_map(|path| expanded("data", &[path]).unwrap_or_default()) {
            match found("data", &path, records(data), Purpose::Train) {
                Ok(Found::Text(_)) => text = true,
                Ok(Found::Tokens(_)) => tokens = true,
                Err(_) => {}
            }
        }
    }
    (text, tokens)
}

struct Reader<'d> {
    data: &'d DataConfig,
    seq: usize,
    vocab: usize,
    /// Notices about the files of folders.
    of_files: FileNotices,
    /// The tokenizer of `data.tokenizer`, once needed. Reading one may take a second.
    configured: Option<Rc<Tokenizer>>,
    /// The template of conversations, once needed.
    template: Option<Rc<ChatTemplate>>,
    /// The tokenizer of the data opened so far.
    of_data: OneTokenizer,
    /// A line for each set of conversations.
    notices: Vec<String>,
}

/// The samples of a dataset.
struct Samples<S> {
    /// All samples, or all but the samples to validate on.
    samples: S,
    /// Samples of files that are named as validation data.
    validation: Option<S>,
}

impl<S> Samples<S> {
    fn map<T>(self, form: impl Fn(S) -> T) -> Samples<T> {
        Samples { samples: form(self.samples), validation: self.validation.map(form) }
    }
}

impl<'d> Reader<'d> {
    fn new(data: &'d DataConfig, seq: usize, vocab: usize) -> Reader<'d> {
        Reader {
            data,
            seq,
            vocab,
            of_files: FileNotices::default(),
            configured: None,
            template: None,
            of_data: OneTokenizer::default(),
            notices: Vec::new(),
        }
    }

    /// The source of the given samples, read from `paths`.
    fn source(
        mut self,
        paths: &Paths,
        training: Mixture,
        validation: Option<Mixture>,
    ) -> Result<TokenSource, UserError> {
        let samples = |mixture: &Mixture| count(mixture.datasets.iter().map(|samples| samples.count() as f64).sum());
        let name = format!(
            "{}; {} samples per epoch, {} to validate",
            paths.in_words(),
            samples(&training),
            validation.as_ref().map_or("none".into(), samples)
        );
        // If token files do not name their tokenizer, it is the user's. It may be missing: training works without it.
        if self.data.tokenizer != "byte"
            && self.configured.is_none()
            && let Ok(tokenizer) = self.configured()
        {
            let named = format!("data.tokenizer = `{}`", self.data.tokenizer);
            self.of_data.add_of_user(&named, TokenizerCopy::of(&tokenizer))?;
        }
        let tokenizer = self.of_data.known();
        let ends = match (self.data.divides(), &tokenizer) {
            (None, _) => None,
            (Some(_), Some(copy)) => {
                let end = copy.open(self.data.end_of_text.as_deref())?.end_of_text();
                Some(DocumentEnds::new(self.data, end))
            }
            (Some(key), None) => {
                return Err(UserError::new(
                    format!("{key}: {} does not name its tokenizer", paths.in_words()),
                    "documents end where the tokenizer's token for it stands",
                    "name the tokenizer that made the tokens with --tokenizer",
                ));
            }
        };
        let tokenizer_vocab = match (&self.configured, &tokenizer) {
            (Some(configured), _) => Some(configured.vocab()),
            (None, Some(copy)) => Some(copy.open(None)?.vocab()),
            (None, None) => None,
        };
        let notices = self.of_files.lines().into_iter().chain(self.notices).collect();
        Ok(TokenSource {
            training: training.datasets,
            order: Order::new(training.blend, self.data.seed),
            validation,
            seq: self.seq,
            name,
            notices,
            tokenizer,
            tokenizer_vocab,
            chat_template: self.template.map(Rc::unwrap_or_clone),
            ends,
        })
    }

    /// All samples of the datasets of an option, for a purpose that divides no dataset.
    fn mixture(&mut self, key: &str, paths: &Paths, purpose: Purpose) -> Result<Mixture, UserError> {
        let (weights, all) = self.datasets(key, paths, purpose)?;
        let datasets = all.into_iter().map(|Samples { samples, .. }| samples).collect();
        Ok(Mixture { blend: Blend::new(&weights, key)?, datasets })
    }

    /// Weights and samples of the datasets of an option.
    fn datasets(
        &mut self,
        key: &str,
        paths: &Paths,
        purpose: Purpose,
    ) -> Result<(Vec<f64>, Vec<Samples<Dataset>>), UserError> {
        let datasets = paths.datasets(key)?;
        let weights: Vec<f64> = datasets.iter().map(|(weight, _)| *weight).collect();
        // Weights are checked first: reading files takes longer.
        Blend::new(&weights, key)?;
        let opened = datasets.iter().map(|(_, paths)| match self.data.kind() {
            RecordKind::Conversations | RecordKind::Pairs | RecordKind::Labelled => {
                Ok(self.conversations(key, paths, purpose)?.map(Dataset::Conversations))
            }
            RecordKind::Documents => Ok(self.windows(key, paths, purpose)?.map(Dataset::Windows)),
        });
        Ok((weights, opened.collect::<Result<_, _>>()?))
    }

    /// The paths that the given paths and patterns name.
    fn paths(&mut self, key: &str, paths: &[&str], purpose: Purpose) -> Result<Vec<String>, UserError> {
        let all = expanded(key, paths)?;
        if purpose != Purpose::Evaluate {
            self.of_files.add(Told::TrainedOnAnyway, named_otherwise(&all));
        }
        Ok(all)
    }

    /// All windows of paths that are read as one stream.
    fn windows(&mut self, key: &str, paths: &[&str], purpose: Purpose) -> Result<Samples<Windows>, UserError> {
        let (mut files, mut validation) = (Vec::new(), Vec::new());
        for path in self.paths(key, paths, purpose)? {
            match found(key, &path, Records::Documents(&self.data.text_key), purpose)? {
                Found::Tokens(bins) => {
                    self.of_files.extend(bins.notices);
                    for (bins, into) in [(bins.files, &mut files), (bins.validation, &mut validation)] {
                        for bin in bins {
                            into.push(token_file(&bin, self.data.raw_tokens)?);
                            self.of_data.add_folder_of(&bin)?;
                        }
                    }
                }
                Found::Text(texts) => {
                    self.of_files.extend(texts.notices);
                    files.push(self.text(&path, &texts.files)?);
                    if !texts.validation.is_empty() {
                        validation.push(self.text(&path, &texts.validation)?);
                    }
                }
            }
        }
        let name = format!("{key} = `{}`", paths.join(", "));
        let validates = !validation.is_empty();
        let of_validation = || self.stream(&format!("{name}, the files to validate on,"), validation);
        let validation = validates.then(of_validation).transpose()?;
        Ok(Samples { samples: self.stream(&name, files)?, validation })
    }

    /// All windows of a stream of files. `name` stands for them in messages.
    fn stream(&self, name: &str, files: Vec<Tokens>) -> Result<Windows, UserError> {
        let corpus = Corpus::new(files, self.vocab)?;
        if corpus.is_empty() {
            let what = format!("{name} is empty");
            return Err(UserError::new(what, "data contain tokens", "name files that contain text or tokens"));
        }
        let tokens = corpus.len();
        let windows = Windows::all(corpus, self.seq);
        if windows.count == 0 {
            return Err(UserError::new(
                format!("{name} holds {}", counted(tokens as usize, "token")),
                format!("a sample is model.seq_length + 1 = {} tokens", self.seq + 1),
                "give more text, or a smaller model.seq_length",
            ));
        }
        Ok(windows)
    }

    /// All conversations of paths.
    fn conversations(
        &mut self,
        key: &str,
        paths: &[&str],
        purpose: Purpose,
    ) -> Result<Samples<Conversations>, UserError> {
        let tokenizer = self.configured()?;
        let (mut files, mut validation) = (Vec::new(), Vec::new());
        for path in self.paths(key, paths, purpose)? {
            let Found::Text(texts) = found(key, &path, records(self.data), purpose)? else {
                return Err(UserError::new(
                    format!("{key} = `{path}` has tokens, with data.{}", self.data.kind().option()),
                    "answers are in records of JSON or Parquet: tokens do not say which of them are answers",
                    format!("name .jsonl, .json or .parquet files, or leave --{} out", self.data.kind().option()),
                ));
            };
            self.of_files.extend(texts.notices);
            self.of_data.add(&format!("`{path}`"), TokenizerCopy::of(&tokenizer))?;
            files.extend(texts.files);
            validation.extend(texts.validation);
        }
        let name = paths.join(", ");
        let samples = self.talks(key, &name, &files)?;
        let validates = !validation.is_empty();
        let of_validation = || self.talks(key, &format!("{name}, to validate on"), &validation);
        Ok(Samples { samples, validation: validates.then(of_validation).transpose()? })
    }

    /// All conversations of files. `name` stands for them in messages.
    fn talks(&mut self, key: &str, name: &str, files: &[TextFile]) -> Result<Conversations, UserError> {
        let tokenizer = self.configured()?;
        let kind = self.data.kind();
        let mut all = Builder::new(kind, self.seq, self.data.sft_packing, tokenizer.end_of_text());
        let read = encode_conversations(
            files,
            records(self.data),
            &tokenizer,
            || self.template(),
            |conversations| {
                all.push(&conversations);
                Ok::<(), UserError>(())
            },
        )?;
        let ReadConversations { form, notices, lost } = read;
        self.of_files.extend(notices);
        if all.counts.targets == 0 {
            let of = counted(all.counts.read as usize, kind.word());
            return Err(match all.counts.needed {
                0 => UserError::new(
                    format!("{key} = `{name}` has {of}, and no answer that is learned"),
                    "the loss is on answers of the assistant, but for those with a `weight` of 0 or a `train` of false",
                    "give conversations with answers that are learned",
                ),
                needed => UserError::new(
                    format!("{key} = `{name}` has {of}, and no answer within {}", counted(self.seq + 1, "token")),
                    "the loss is on answers of the assistant that begin within model.seq_length",
                    format!(
                        "set model.seq_length = {needed} (--seq-length) for all answers, or give shorter conversations"
                    ),
                ),
            });
        }
        let largest = all.largest();
        if largest as usize >= self.vocab {
            return Err(UserError::new(
                format!("{key} = `{name}` has token {largest}, and model.vocab = {}", self.vocab),
                "tokens are below the size of the vocabulary",
                format!("set model.vocab to {} or more (--vocab), or name the model's tokenizer", largest + 1),
            ));
        }
        let counts = all.counts;
        let conversations = all.finish();
        self.notices.extend(form.map(|form| format!("{name}: read as {}", form.describe())));
        self.notices.extend(lost.map(|lost| format!("{name}: {lost}")));
        self.notices.push(format!("{name}: {}", counts.describe(kind, conversations.count(), self.seq)));
        Ok(conversations)
    }

    /// The template of conversations.
    fn template(&mut self) -> Result<Rc<ChatTemplate>, UserError> {
        if let Some(template) = &self.template {
            return Ok(template.clone());
        }
        let tokenizer = self.configured()?;
        let named = self.data.chat_template.as_deref();
        let (template, notice) = ChatTemplate::to_train(named, &self.data.tokenizer, &tokenizer)?;
        self.notices.extend(notice);
        self.notices.extend(markers::check(&template, &self.data.tokenizer, &tokenizer)?);
        Ok(self.template.insert(template.into()).clone())
    }

    /// `data.tokenizer`.
    fn configured(&mut self) -> Result<Rc<Tokenizer>, UserError> {
        if let Some(tokenizer) = &self.configured {
            return Ok(tokenizer.clone());
        }
        let Configured { tokenizer, line, .. } = Configured::open(self.data)?;
        self.notices.extend(line);
        Ok(self.configured.insert(tokenizer.into()).clone())
    }

    /// Tokenises text into memory.
    fn text(&mut self, path: &str, files: &[TextFile]) -> Result<Tokens, UserError> {
        let tokenizer = self.configured()?;
        let kind = match *tokenizer {
            Tokenizer::Bytes => TokenType::U8,
            _ => TokenType::for_vocab(tokenizer.vocab()),
        };
        let mut bytes = Vec::new();
        self.of_data.add(&format!("`{path}`"), TokenizerCopy::of(&tokenizer))?;
        let (totals, notices) = encode_files(files, &tokenizer, &self.data.text_key, |tokens, _| {
            kind.encode(tokens, &mut bytes);
            Ok::<(), UserError>(())
        })?;
        self.of_files.extend(notices);
        if totals.is_empty() {
            return Err(UserError::new(
                format!("`{path}` holds no UTF-8 text"),
                "data contain tokens",
                "name files with text",
            ));
        }
        let name = format!("`{path}` as tokens of {}", self.data.tokenizer);
        Ok(Tokens { name, storage: Storage::Memory(bytes), kind, offset: 0, len: totals.tokens, largest: None })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn opened(path: &str) -> Result<TokenSource, UserError> {
        let data = DataConfig { path: Some(Paths::One(path.into())), ..DataConfig::for_tests() };
        open(data.path.as_ref().unwrap(), &data, 8, 256)
    }

    #[test]
    fn a_folder_of_packed_and_plain_files_is_read_and_what_is_no_text_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all("{\"text\": \"some words\"}\n".repeat(10).as_bytes()).unwrap();
        std::fs::write(at("part.jsonl.gz"), packed.finish().unwrap()).unwrap();
        std::fs::write(at("plain.jsonl"), "{\"text\": \"other words\"}").unwrap();
        let folder = folder.path().display().to_string();
        let source = opened(&folder).unwrap();
        assert_eq!(source.notices, [""; 0]);
        let tokens = source.training[0].identity().unwrap().unwrap().tokens;
        assert_eq!(tokens, 10 * ("some words".len() as u64 + 1) + "other words".len() as u64 + 1);

        std::fs::write(at("README.md"), "some other words").unwrap();
        let notices = opened(&folder).unwrap().notices;
        let why = "their folder has JSON lines or Parquet files, and these are not";
        assert_eq!(notices, [format!("1 file left out, because {why}: {folder}/README.md")]);

        let pattern = opened(&format!("{folder}/p*[zl]")).unwrap();
        assert_eq!(pattern.training[0].identity().unwrap().unwrap().tokens, tokens);
        let problem = opened(&format!("{folder}/*.txt")).err().unwrap().to_string();
        assert!(problem.contains("matches nothing"), "{problem}");

        std::fs::create_dir(at("mixed")).unwrap();
        std::fs::write(at("mixed/a.txt"), "words of a text").unwrap();
        std::fs::write(at("mixed/picture.png"), [0xff; 9]).unwrap();
        let notices = opened(&format!("{folder}/mixed")).unwrap().notices;
        let why = "neither UTF-8 text nor JSON lines";
        assert_eq!(notices, [format!("1 file left out, because {why}: {folder}/mixed/picture.png")]);

        // A dataset of two files is one.
        for name in ["a.bin", "a.idx", "b.idx"] {
            std::fs::write(at(name), "").unwrap();
        }
        let pattern = format!("{folder}/[ab].*");
        let expected = ["a.bin", "b.idx"].map(|name| format!("{folder}/{name}"));
        assert_eq!(expanded("x", &[&pattern]).unwrap(), expected);
    }
}
