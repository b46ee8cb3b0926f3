//! From the `[data]` section to a source: finds the files of a path, opens and checks them.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use common::UserError;
use common::format::{count, counted};

use crate::config::{DataConfig, RawTokens};
use crate::formats::data_file::DataFile;
use crate::formats::tokens::{Storage, TokenType, Tokens};
use crate::formats::{llmc, megatron};
use crate::one_tokenizer::OneTokenizer;
use crate::paths::Paths;
use crate::sources::blend::Blend;
use crate::sources::conversations::{Builder, Conversations};
use crate::sources::corpus::{Corpus, Windows};
use crate::sources::dataset::Dataset;
use crate::sources::token_source::{Mixture, TokenSource};
use crate::text::chat_template::ChatTemplate;
use crate::text::conversation_files::{MESSAGES, encode_conversations};
use crate::text::documents::encode_files;
use crate::text::text_files::{LeftOut, TextFile, text_files};
use crate::text::tokenizer::Tokenizer;
use crate::text::tokenizer_copy::TokenizerCopy;

/// Opens the files of `paths` (`data.path`) and `data.validation_path` for samples of `seq` tokens below `vocab`, and checks
/// all of them.
///
/// # Errors
/// Whatever is wrong with the files.
pub fn open(paths: &Paths, data: &DataConfig, seq: usize, vocab: usize) -> Result<TokenSource, UserError> {
    let mut reader = Reader {
        data,
        seq,
        vocab,
        left_out: LeftOut::default(),
        configured: None,
        template: None,
        of_data: OneTokenizer::default(),
        notices: Vec::new(),
    };
    let (weights, all) = reader.datasets("data.path", paths)?;
    let blend = || Blend::new(&weights, "data.path");
    let (training, validation) = match &data.validation_path {
        Some(paths) => {
            let (weights, validation) = reader.datasets("data.validation_path", paths)?;
            (all, Some(Mixture { blend: Blend::new(&weights, "data.validation_path")?, datasets: validation }))
        }
        None => {
            let (training, rest): (Vec<_>, Vec<_>) = all.into_iter().map(|samples| samples.split(data.split)).unzip();
            if let Some(short) =
                (0..rest.len()).find(|&d| training[d].count() == 0 || (data.split < 1.0 && rest[d].count() == 0))
            {
                let samples = training[short].count() + rest[short].count();
                return Err(UserError::new(
                    format!(
                        "data.path: dataset {} has {}, and data.split = {}",
                        short + 1,
                        counted(samples as usize, "sample"),
                        data.split
                    ),
                    "every dataset has at least one sample to train on and one to validate on",
                    "give more text, a smaller model.seq_length, data.split = 1, or data.validation_path",
                ));
            }
            let validation = (data.split < 1.0).then(|| blend().map(|blend| Mixture { blend, datasets: rest }));
            (training, validation.transpose()?)
        }
    };
    let training = Mixture { blend: blend()?, datasets: training };
    let samples = |mixture: &Mixture| count(mixture.datasets.iter().map(|samples| samples.count() as f64).sum());
    let name = format!(
        "{}; {} samples per epoch, {} to validate",
        reader.described(paths),
        samples(&training),
        validation.as_ref().map_or("none".into(), samples)
    );
    // Token files that do not say it have the tokenizer that the user names. It need not be there: training works without.
    if data.tokenizer != "byte"
        && reader.configured.is_none()
        && let Ok(tokenizer) = reader.configured()
    {
        reader.of_data.add(&format!("data.tokenizer = `{}`", data.tokenizer), TokenizerCopy::of(&tokenizer))?;
    }
    let tokenizer = reader.of_data.known();
    let mut notices = reader.left_out.notices();
    notices.extend(reader.notices);
    if tokenizer == Some(TokenizerCopy::Bytes) && vocab > 256 {
        notices.push(format!(
            "the data are bytes, tokens 0 to 255, and model.vocab = {vocab}: name a tokenizer with --tokenizer, or set \
             --vocab 256"
        ));
    }
    Ok(TokenSource {
        training,
        validation,
        seq,
        seed: data.seed,
        name,
        notices,
        tokenizer,
        chat_template: reader.template.map(Rc::unwrap_or_clone),
    })
}

/// Whether any of the configured data is text, and whether any is token files. Paths that cannot be read are neither.
pub fn forms(data: &DataConfig) -> (bool, bool) {
    let (mut text, mut tokens) = (false, false);
    let key = if data.sft { MESSAGES } else { &data.text_key };
    for paths in [&data.path, &data.validation_path].into_iter().flatten() {
        let datasets = paths.datasets("data").unwrap_or_default();
        let all = datasets.iter().flat_map(|(_, paths)| paths);
        for path in all.flat_map(|path| expanded("data", &[path]).unwrap_or_default()) {
            match found("data", &path, key) {
                Ok(Found::Text(..)) => text = true,
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
    /// Files of folders that are not read.
    left_out: LeftOut,
    /// `data.tokenizer`, once it was needed. Reading one may take a second.
    configured: Option<Rc<Tokenizer>>,
    /// The template of conversations, once it was needed.
    template: Option<Rc<ChatTemplate>>,
    /// The tokenizer of what was opened.
    of_data: OneTokenizer,
    /// A line for each set of conversations.
    notices: Vec<String>,
}

impl Reader<'_> {
    /// Weights and samples of the datasets of an option.
    fn datasets(&mut self, key: &str, paths: &Paths) -> Result<(Vec<f64>, Vec<Dataset>), UserError> {
        let datasets = paths.datasets(key)?;
        let weights: Vec<f64> = datasets.iter().map(|(weight, _)| *weight).collect();
        // Weights are checked first: reading files takes longer.
        Blend::new(&weights, key)?;
        let opened = datasets.iter().map(|(_, paths)| match self.data.sft {
            true => self.conversations(key, paths).map(Dataset::Conversations),
            false => self.windows(key, paths).map(Dataset::Windows),
        });
        Ok((weights, opened.collect::<Result<_, _>>()?))
    }

    /// All windows of paths that are read as one stream.
    fn windows(&mut self, key: &str, paths: &[&str]) -> Result<Windows, UserError> {
        let mut files = Vec::new();
        for path in expanded(key, paths)? {
            match found(key, &path, &self.data.text_key)? {
                Found::Tokens(bins) => {
                    for bin in bins {
                        files.push(token_file(&bin, self.data.raw_tokens)?);
                        self.of_data.add_folder_of(&bin)?;
                    }
                }
                Found::Text(texts, left_out) => {
                    self.left_out.extend(left_out);
                    files.push(self.text(&path, &texts)?);
                }
            }
        }
        let corpus = Corpus::new(files, self.vocab)?;
        if corpus.is_empty() {
            let what = format!("{key} = `{}` is empty", paths.join(", "));
            return Err(UserError::new(what, "data contain tokens", "name files that contain text or tokens"));
        }
        let tokens = corpus.len();
        let windows = Windows::all(corpus, self.seq);
        if windows.count == 0 {
            return Err(UserError::new(
                format!("{key} = `{}` holds {}", paths.join(", "), counted(tokens as usize, "token")),
                format!("a sample is model.seq_length + 1 = {} tokens", self.seq + 1),
                "give more text, or a smaller model.seq_length",
            ));
        }
        Ok(windows)
    }

    /// All conversations of paths.
    fn conversations(&mut self, key: &str, paths: &[&str]) -> Result<Conversations, UserError> {
        let (tokenizer, template) = (self.configured()?, self.template()?);
        let name = paths.join(", ");
        let mut all = Builder::new(self.seq, self.data.sft_packing, tokenizer.end_of_text());
        for path in expanded(key, paths)? {
            let Found::Text(files, left_out) = found(key, &path, MESSAGES)? else {
                return Err(UserError::new(
                    format!("{key} = `{path}` has tokens, with data.sft"),
                    "conversations are JSON lines with `messages`: tokens do not say which of them are answers",
                    "name .jsonl files, or leave --sft out",
                ));
            };
            self.left_out.extend(left_out);
            self.of_data.add(&format!("`{path}`"), TokenizerCopy::of(&tokenizer))?;
            let not_text = encode_conversations(&files, &tokenizer, &template, |conversation| {
                all.push(&conversation);
                Ok::<(), UserError>(())
            })?;
            self.left_out.not_text.extend(not_text);
        }
        if all.counts.targets == 0 {
            return Err(UserError::new(
                format!(
                    "{key} = `{name}` has {}, and no answer within {}",
                    counted(all.counts.read as usize, "conversation"),
                    counted(self.seq + 1, "token")
                ),
                "the loss is on answers of the assistant that begin within model.seq_length",
                "give conversations with answers, or a larger model.seq_length",
            ));
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
        self.notices.push(format!("{name}: {}", counts.describe(conversations.count(), self.seq)));
        Ok(conversations)
    }

    /// The template of conversations.
    fn template(&mut self) -> Result<Rc<ChatTemplate>, UserError> {
        if let Some(template) = &self.template {
            return Ok(template.clone());
        }
        let tokenizer = self.configured()?;
        let template = Rc::new(ChatTemplate::of(self.data.chat_template.as_deref(), &self.data.tokenizer, &tokenizer)?);
        Ok(self.template.insert(template).clone())
    }

    /// `data.tokenizer`.
    fn configured(&mut self) -> Result<Rc<Tokenizer>, UserError> {
        if let Some(tokenizer) = &self.configured {
            return Ok(tokenizer.clone());
        }
        let tokenizer = Rc::new(Tokenizer::open(&self.data.tokenizer, self.data.end_of_text.as_deref())?);
        Ok(self.configured.insert(tokenizer).clone())
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
        let (totals, not_text) = encode_files(files, &tokenizer, &self.data.text_key, |tokens, _| {
            kind.encode(tokens, &mut bytes);
            Ok::<(), UserError>(())
        })?;
        self.left_out.not_text.extend(not_text);
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

    fn described(&self, paths: &Paths) -> String {
        match paths {
            Paths::One(path) => path.clone(),
            Paths::Several(_) => match paths.datasets("data.path").as_deref() {
                Ok([(_, joined)]) => joined.join(", "),
                Ok(blend) => {
                    let total: f64 = blend.iter().map(|(weight, _)| weight).sum();
                    let share = |(weight, paths): &(f64, Vec<&str>)| format!("{:.3} {}", weight / total, paths[0]);
                    blend.iter().map(share).collect::<Vec<_>>().join(" + ")
                }
                Err(_) => String::new(),
            },
        }
    }
}

/// Opens a `.bin` file of any known format.
pub(crate) fn token_file(path: &Path, raw_tokens: RawTokens) -> Result<Tokens, UserError> {
    let index = path.with_extension("idx");
    if index.exists() {
        return megatron::open(path, &index);
    }
    let name = path.display().to_string();
    let file = DataFile::open(path).map_err(|error| unreadable(&name, &error))?;
    let length = file.len();
    let mut begin = vec![0; length.min(llmc::HEADER_BYTES as u64) as usize];
    file.read(&mut begin, 0).map_err(|error| unreadable(&name, &error))?;
    let wrong = |what: &str, rule: &str, fix: &str| Err(UserError::new(format!("{name} {what}"), rule, fix));
    if length == 0 {
        return wrong("is empty", "a token file contains tokens", "write it again");
    }
    if let Some(llmc::Header { kind, len, largest }) = llmc::read_header(&name, &begin, length)? {
        return Ok(Tokens { name, storage: Storage::File(file), kind, offset: llmc::HEADER_BYTES, len, largest });
    }
    let kind = match raw_tokens {
        RawTokens::U16 => TokenType::U16,
        RawTokens::U32 => TokenType::U32,
        RawTokens::None => {
            return wrong(
                "has no .idx file beside it, and does not start with the magic number 20240520 or 20240801",
                "a .bin is a token file of llm.c or Megatron, or raw tokens if data.raw_tokens is set",
                "for nanoGPT files set data.raw_tokens = \"u16\" (--raw-tokens u16)",
            );
        }
    };
    if !length.is_multiple_of(kind.size() as u64) {
        let what = format!("has {length} bytes");
        return wrong(&what, &format!("tokens have {} bytes each", kind.size()), "copy it completely");
    }
    let len = length / kind.size() as u64;
    Ok(Tokens { name, storage: Storage::File(file), kind, offset: 0, len, largest: None })
}

/// What a path names.
pub(crate) enum Found {
    /// `.bin` files.
    Tokens(Vec<PathBuf>),
    /// Text, and what of a folder is left out.
    Text(Vec<TextFile>, LeftOut),
}

/// Paths, with patterns such as `data/*.jsonl`, which no shell has expanded, replaced by what they match, sorted. What exists
/// is no pattern. Of a Megatron dataset whose two files match, the index is left out.
///
/// # Errors
/// A pattern that matches nothing, or is none; a folder that cannot be read.
pub(crate) fn expanded(key: &str, paths: &[&str]) -> Result<Vec<String>, UserError> {
    let is_there = |path: &str| Path::new(path).exists() || Path::new(&format!("{path}.bin")).exists();
    let mut all = Vec::new();
    for path in paths {
        if !path.contains(['*', '?', '[']) || is_there(path) {
            all.push(path.to_string());
            continue;
        }
        let refuse = |problem: String| {
            let what = format!("{key} = `{path}`{problem}");
            UserError::new(what, "a path with *, ? or [ is a pattern of paths that exist", "check the path")
        };
        let found = glob::glob(path).map_err(|error| refuse(format!(" is no pattern: {error}")))?;
        let found: Vec<PathBuf> =
            found.collect::<Result<_, _>>().map_err(|error| refuse(format!(" cannot be read: {error}")))?;
        if found.is_empty() {
            return Err(refuse(" matches nothing".into()));
        }
        let is_index = |path: &PathBuf| {
            path.extension().is_some_and(|extension| extension == "idx") && found.contains(&path.with_extension("bin"))
        };
        all.extend(found.iter().filter(|path| !is_index(path)).map(|path| path.display().to_string()));
    }
    Ok(all)
}

/// A file, a folder of `.bin` files, a folder of text, or a Megatron prefix: `NAME` for `NAME.bin` and `NAME.idx`. Text is
/// under `text_key` in records. `key` is the option that has the name.
///
/// # Errors
/// What cannot be read, or holds no data.
pub(crate) fn found(key: &str, name: &str, text_key: &str) -> Result<Found, UserError> {
    let path = Path::new(name);
    let is = |extension: &str| path.extension().is_some_and(|found| found == extension);
    let prefixed = PathBuf::from(format!("{name}.bin"));
    if !path.exists() && prefixed.exists() && prefixed.with_extension("idx").exists() {
        return Ok(Found::Tokens(vec![prefixed]));
    }
    if is("idx") {
        return Ok(Found::Tokens(vec![path.with_extension("bin")]));
    }
    let unreadable = |error: std::io::Error| unreadable(&format!("{key} = `{name}`"), &error);
    if is("bin") {
        std::fs::metadata(path).map_err(unreadable)?;
        return Ok(Found::Tokens(vec![path.into()]));
    }
    if path.is_dir() {
        let entries = std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(unreadable)?;
        let bin = |path: &PathBuf| path.is_file() && path.extension().is_some_and(|found| found == "bin");
        let mut bins: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).filter(bin).collect();
        if !bins.is_empty() {
            bins.sort();
            return Ok(Found::Tokens(bins));
        }
    }
    let (files, left_out) = text_files(&format!("{key} = `{name}`"), path, text_key)?;
    Ok(Found::Text(files, left_out))
}

fn unreadable(what: &str, error: &std::io::Error) -> UserError {
    UserError::new(format!("{what} cannot be read: {error}"), "it names files or folders of data", "check the path")
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
        let tokens = source.training.datasets[0].identity().unwrap().unwrap().tokens;
        assert_eq!(tokens, 10 * ("some words".len() as u64 + 1) + "other words".len() as u64 + 1);

        std::fs::write(at("README.md"), "some other words").unwrap();
        let notices = opened(&folder).unwrap().notices;
        let why = "their folder has JSON lines or Parquet files, and these are not";
        assert_eq!(notices, [format!("1 file left out, because {why}: {folder}/README.md")]);

        let pattern = opened(&format!("{folder}/p*[zl]")).unwrap();
        assert_eq!(pattern.training.datasets[0].identity().unwrap().unwrap().tokens, tokens);
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
