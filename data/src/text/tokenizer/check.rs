//! Checks of a tokenizer.json before the library reads the file. On some files the library computes for ever. With others
//! the same text has other tokens in every run.

use std::fmt;

use common::UserError;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::normalizer::check_replacements;

/// The longest word that WordPiece may search for pieces, in characters. The time grows with the cube of it.
const LONGEST_WORD: u64 = 1000;
/// The most steps in each part of a tokenizer. Those of models have up to ten.
const MOST_STEPS: usize = 100;
/// How deep the steps of a part nest: a level takes two of these. The library tries many ways to read each level.
const DEEPEST: usize = 12;
/// All ids are below this. The largest vocabularies have a million tokens.
pub(crate) const MOST_TOKENS: u64 = 1 << 22;

/// The parts of a tokenizer.json that are checked.
#[derive(Deserialize)]
struct Checked {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
}

#[derive(Deserialize)]
struct Model {
    max_input_chars_per_word: Option<u64>,
    dropout: Option<f64>,
    #[serde(default)]
    vocab: LargestId,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
}

/// The largest id of a vocabulary that maps tokens to ids. One that is a list counts from 0.
#[derive(Default)]
struct LargestId(u64);

impl<'de> Deserialize<'de> for LargestId {
    fn deserialize<D: Deserializer<'de>>(vocab: D) -> Result<LargestId, D::Error> {
        vocab.deserialize_any(Ids)
    }
}

struct Ids;

impl<'de> Visitor<'de> for Ids {
    type Value = LargestId;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut tokens: A) -> Result<LargestId, A::Error> {
        let mut largest = 0;
        while let Some((_, id)) = tokens.next_entry::<IgnoredAny, u64>()? {
            largest = largest.max(id);
        }
        Ok(LargestId(largest))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<LargestId, A::Error> {
        let mut count = 0_u64;
        while tokens.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(LargestId(count.saturating_sub(1)))
    }
}

/// Why a tokenizer is refused.
pub(crate) enum Refusal {
    /// The file is no tokenizer that can be read, for this reason.
    NoTokenizer(String),
    /// Another mistake.
    Mistake(UserError),
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::NoTokenizer(reason)
    }
}

/// Checks the content of a tokenizer.json. `shown` stands for the file in messages.
///
/// # Errors
/// It is no JSON of a tokenizer, or has a part that no tokenizer may have.
pub(crate) fn check(bytes: &[u8], shown: &str) -> Result<(), Refusal> {
    let checked: Checked = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let Checked { model, added_tokens, normalizer, pre_tokenizer, post_processor, decoder } = checked;
    if let Some(longest) = model.max_input_chars_per_word.filter(|longest| *longest > LONGEST_WORD) {
        return Err(format!("max_input_chars_per_word = {longest}, and words are searched up to {LONGEST_WORD}").into());
    }
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(Refusal::Mistake(UserError::new(
            format!("the model of {shown} has dropout = {dropout}: it leaves out merges by chance"),
            "a text has the same tokens in every run",
            "set \"dropout\" to null there",
        )));
    }
    let largest = added_tokens.iter().map(|token| token.id).max().unwrap_or(0).max(model.vocab.0);
    if largest >= MOST_TOKENS {
        return Err(format!("it has a token with id {largest}, and ids are below {MOST_TOKENS}").into());
    }
    let parts = [
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("post_processor", post_processor),
        ("decoder", decoder),
    ];
    for (name, part) in parts {
        let part = part.unwrap_or_default();
        let steps = steps(&part, 0).ok_or_else(|| format!("its {name} is nested more than {DEEPEST} deep"))?;
        if steps > MOST_STEPS {
            return Err(format!("its {name} has {steps} steps, and may have {MOST_STEPS}").into());
        }
        if name == "decoder" {
            check_replacements(&part)?;
        }
    }
    Ok(())
}

/// How many steps a part has. `None` if it is nested too deep.
fn steps(part: &Value, depth: usize) -> Option<usize> {
    if depth > DEEPEST {
        return None;
    }
    let within: Vec<&Value> = match part {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    let this = usize::from(part.get("type").is_some());
    within.into_iter().try_fold(this, |sum, value| Some(sum + steps(value, depth + 1)?))
}
