//! The list of a checkpoint's files. Writing, reading and removal use it.

use common::{Choice, choice};
use data::CopiedFile;

choice! {
    /// The tensors of a file, by the first word of the file's name.
    pub enum Tensors {
        /// Weights.
        Model = "model",
        /// State of the optimizer.
        Optimizer = "optimizer",
    }
}

choice! {
    /// A file that the rank that leads writes about the whole checkpoint.
    pub enum Single {
        /// The description of all other files.
        Manifest = "manifest.json",
        /// The configuration of the run.
        Config = "config.toml",
        /// Metrics that the run could not write elsewhere.
        Metrics = "metrics.jsonl",
    }
}

choice! {
    /// A file of the Hugging Face model that training began with. It has this name wherever the weights are in our format.
    pub enum SourceFile {
        /// The model.
        Config = "hf-config.json",
        /// How the model generates text.
        Generation = "hf-generation_config.json",
        /// The model's tokenizer.
        Tokenizer = "hf-tokenizer.json",
        /// How `transformers` uses that.
        TokenizerConfig = "hf-tokenizer_config.json",
        /// The special tokens with their roles.
        SpecialTokens = "hf-special_tokens_map.json",
        /// Tokens beyond the tokenizer's own.
        AddedTokens = "hf-added_tokens.json",
        /// The tokens of a tokenizer without `tokenizer.json`.
        Vocabulary = "hf-vocab.json",
        /// The tokenizer's merges.
        Merges = "hf-merges.txt",
        /// A tokenizer of SentencePiece.
        SentencePiece = "hf-tokenizer.model",
        /// The chat template.
        ChatTemplate = "hf-chat_template.jinja",
        /// The adapters of PEFT that training began with, if any.
        Adapters = "hf-adapter_config.json",
    }
}

/// A file of the Hugging Face model, and the file's content.
pub type KeptFile = (SourceFile, Vec<u8>);

impl SourceFile {
    /// The file's name in a folder of Hugging Face.
    pub fn at_hugging_face(self) -> &'static str {
        self.word().trim_start_matches("hf-")
    }

    /// Whether the file belongs to the tokenizer, and not to the weights.
    pub(crate) fn is_of_tokenizer(self) -> bool {
        ![SourceFile::Config, SourceFile::Generation, SourceFile::Adapters].contains(&self)
    }
}

/// A file of a checkpoint. A checkpoint is written with these files only, so removal knows every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckpointFile {
    /// Tensors: all, or those of one of several ranks that write, by its number from 0 and how many these are.
    Tensors(Tensors, Option<(usize, usize)>),
    /// About the whole checkpoint.
    Single(Single),
    /// The meaning of the run's tokens.
    Copied(CopiedFile),
    /// Of the model that training began with.
    Source(SourceFile),
    /// One rank's entries for the manifest, read by the rank that leads. It is gone when the checkpoint is complete.
    Note(usize),
}

impl CheckpointFile {
    pub(super) fn name(self) -> String {
        match self {
            CheckpointFile::Tensors(of, None) => format!("{of}.safetensors"),
            CheckpointFile::Tensors(of, Some((rank, ranks))) => {
                format!("{of}-{:05}-of-{ranks:05}.safetensors", rank + 1)
            }
            CheckpointFile::Single(file) => file.word().into(),
            CheckpointFile::Copied(file) => file.word().into(),
            CheckpointFile::Source(file) => file.word().into(),
            CheckpointFile::Note(rank) => format!("rank-{rank:05}.json"),
        }
    }

    /// The file of exactly that name.
    pub(super) fn named(name: &str) -> Option<CheckpointFile> {
        let single = Single::from_word(name).map(CheckpointFile::Single);
        let copied = || CopiedFile::from_word(name).map(CheckpointFile::Copied);
        let source = || SourceFile::from_word(name).map(CheckpointFile::Source);
        let found = single.or_else(copied).or_else(source).or_else(|| numbered(name));
        found.filter(|file| file.name() == name)
    }
}

/// The file for a name with numbers, if the numbers have no superfluous zeros.
fn numbered(name: &str) -> Option<CheckpointFile> {
    if let Some(rank) = name.strip_prefix("rank-").and_then(|rest| rest.strip_suffix(".json")) {
        return rank.parse().ok().map(CheckpointFile::Note);
    }
    let stem = name.strip_suffix(".safetensors")?;
    let Some((of, part)) = stem.split_once('-') else {
        return Tensors::from_word(stem).map(|of| CheckpointFile::Tensors(of, None));
    };
    let (rank, ranks) = part.split_once("-of-")?;
    let rank = rank.parse::<usize>().ok()?.checked_sub(1)?;
    Some(CheckpointFile::Tensors(Tensors::from_word(of)?, Some((rank, ranks.parse().ok()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_found_by_its_name_and_no_other_name_is_one() {
        let tensors = |part| Tensors::ALL.iter().map(move |of| CheckpointFile::Tensors(*of, part));
        let all = tensors(None).chain(tensors(Some((0, 2)))).chain(tensors(Some((123_455, 1_000_000))));
        let all = all.chain(Single::ALL.iter().map(|file| CheckpointFile::Single(*file)));
        let all = all.chain(CopiedFile::ALL.iter().map(|file| CheckpointFile::Copied(*file)));
        let all = all.chain(SourceFile::ALL.iter().map(|file| CheckpointFile::Source(*file)));
        for file in all.chain([CheckpointFile::Note(0), CheckpointFile::Note(123_456)]) {
            assert_eq!(CheckpointFile::named(&file.name()), Some(file));
        }
        for other in [
            "notes.txt",
            "model.bin",
            "models.safetensors",
            "model-00000-of-00002.safetensors",
            "model-1-of-2.safetensors",
            "model-00001.safetensors",
            "model-+0001-of-00002.safetensors",
            "rank-1.json",
            "rank-x.json",
            "hf-notes.txt",
            "config.json",
            "",
        ] {
            assert_eq!(CheckpointFile::named(other), None, "{other}");
        }
    }
}
