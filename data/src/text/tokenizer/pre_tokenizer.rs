//! The part of a tokenizer.json that splits text into words before tokenising.

use serde::{Deserialize, Deserializer};
use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Result, SplitDelimiterBehavior};

use super::expression::Expression;

/// GPT-2's words, split as by the library's `ByteLevel` (`tokenizers/src/pre_tokenizers/byte_level.rs`).
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The steps of a tokenizer's pre-tokenizer. It fails if an expression gives up: see [`Expression`]. The library would
/// leave the rest of the text unsplit then, and drop it if the tokenizer keeps only matches.
pub(crate) struct CheckedPreTokenizer {
    steps: Vec<Step>,
}

enum Step {
    /// A space before a text without one, for `ByteLevel`.
    PrefixSpace,
    /// A split at the matches of an expression, or between matches.
    Split { expression: Expression, behavior: SplitDelimiterBehavior, invert: bool },
    /// A step of the library that has no expression that may give up.
    Library(PreTokenizerWrapper),
}

impl<'de> Deserialize<'de> for CheckedPreTokenizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<CheckedPreTokenizer, D::Error> {
        let mut steps = Vec::new();
        flatten(PreTokenizerWrapper::deserialize(deserializer)?, &mut steps).map_err(serde::de::Error::custom)?;
        Ok(CheckedPreTokenizer { steps })
    }
}

/// The steps of nested sequences of pre-tokenizers, in order.
fn flatten(part: PreTokenizerWrapper, steps: &mut Vec<Step>) -> std::result::Result<(), String> {
    match part {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.into_iter().try_for_each(|part| flatten(part, steps))?;
        }
        PreTokenizerWrapper::Split(Split { pattern: SplitPattern::Regex(source), behavior, invert, .. }) => {
            steps.push(Step::Split { expression: Expression::new(&source)?, behavior, invert });
        }
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex => {
            if bytes.add_prefix_space {
                steps.push(Step::PrefixSpace);
            }
            let (expression, behavior) = (Expression::new(WORDS)?, SplitDelimiterBehavior::Isolated);
            steps.push(Step::Split { expression, behavior, invert: false });
            steps.push(Step::Library(ByteLevel::new(false, bytes.trim_offsets, false).into()));
        }
        other => steps.push(Step::Library(other)),
    }
    Ok(())
}

impl PreTokenizer for CheckedPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        self.steps.iter().try_for_each(|step| match step {
            Step::PrefixSpace => text.split(|_, mut part| {
                if !part.get().starts_with(' ') {
                    part.prepend(" ");
                }
                Ok(vec![part])
            }),
            Step::Split { expression, behavior, invert: false } => {
                text.split(|_, part| part.split(expression, *behavior))
            }
            Step::Split { expression, behavior, invert: true } => {
                text.split(|_, part| part.split(Invert(expression), *behavior))
            }
            Step::Library(step) => step.pre_tokenize(text),
        })
    }
}
