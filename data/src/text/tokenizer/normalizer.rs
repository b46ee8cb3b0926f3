//! The part of a tokenizer.json that changes text before tokenising. A text may not grow without limit there: a few
//! replacements in a row, each by a longer text, would fill any memory.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer, Result};

use super::expression::Expression;

/// The longest text, in bytes, that may replace a piece of text.
pub(crate) const LONGEST_REPLACEMENT: usize = 64;

/// How many times as long a text may become.
const GROWTH: usize = 16;

/// How many bytes a text may grow in any case.
const ALLOWANCE: usize = 4096;

/// The steps of a tokenizer's normalizer. It panics if a text grows too much, or if an expression gives up: see
/// [`caught`](common::caught).
pub(crate) struct BoundedNormalizer {
    steps: Vec<Step>,
}

enum Step {
    /// Each match of an expression becomes this text.
    Replace(Expression, String),
    /// A step of the library that has no expression that may give up.
    Library(NormalizerWrapper),
}

impl<'de> Deserialize<'de> for BoundedNormalizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<BoundedNormalizer, D::Error> {
        let wrong = <D::Error as serde::de::Error>::custom::<String>;
        let value = Value::deserialize(deserializer)?;
        check_replacements(&value).map_err(wrong)?;
        let mut steps = Vec::new();
        flatten(&value, &mut steps).map_err(wrong)?;
        Ok(BoundedNormalizer { steps })
    }
}

/// The steps of nested sequences of normalizers, in order.
fn flatten(part: &Value, steps: &mut Vec<Step>) -> std::result::Result<(), String> {
    let library = NormalizerWrapper::deserialize(part).map_err(|error| error.to_string())?;
    let text = |value: &Value| value.as_str().map(String::from);
    match (library, text(&part["pattern"]["Regex"]), text(&part["content"])) {
        (NormalizerWrapper::Sequence(_), ..) => {
            let mut inner = part["normalizers"].as_array().into_iter().flatten();
            inner.try_for_each(|part| flatten(part, steps))
        }
        (NormalizerWrapper::Replace(_), Some(source), Some(content)) => {
            steps.push(Step::Replace(Expression::new(&source)?, content));
            Ok(())
        }
        (library, ..) => {
            steps.push(Step::Library(library));
            Ok(())
        }
    }
}

impl Normalizer for BoundedNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let most = GROWTH * text.len() + ALLOWANCE;
        for step in &self.steps {
            let before = text.len();
            let done = match step {
                Step::Replace(expression, content) => text.replace(expression, content),
                Step::Library(step) => step.normalize(text),
            };
            // The library drops errors of normalizers and goes on with the text as it is. Callers catch panics.
            if let Err(error) = done {
                panic!("{error}");
            }
            if text.len() > most {
                panic!("its normalizer makes a text of {before} bytes one of {}; {most} are allowed", text.len());
            }
        }
        Ok(())
    }
}

/// Fails, in words, if a normalizer or decoder has a replacement that is longer than any tokenizer needs.
pub(crate) fn check_replacements(part: &Value) -> std::result::Result<(), String> {
    let too_long = |name: &str, bytes: usize| {
        let text = format!("its {name} has {bytes} bytes, and a replacement has at most {LONGEST_REPLACEMENT}");
        if bytes > LONGEST_REPLACEMENT { Err(text) } else { Ok(()) }
    };
    match part {
        Value::Array(items) => items.iter().try_for_each(check_replacements),
        Value::Object(fields) => {
            for name in ["content", "prepend"] {
                too_long(name, fields.get(name).and_then(Value::as_str).map_or(0, str::len))?;
            }
            if let Some(text) = fields.get("precompiled_charsmap").and_then(Value::as_str) {
                too_long("precompiled_charsmap", longest_in_charsmap(text))?;
            }
            fields.values().try_for_each(check_replacements)
        }
        _ => Ok(()),
    }
}

/// The longest replacement in SentencePiece's compiled table. The table is in base64: the size of an index in bytes, as
/// u32, the index, and the replacements, each ended by a zero.
fn longest_in_charsmap(text: &str) -> usize {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let bytes: Vec<u8> = digits
        .chunks_exact(4)
        .flat_map(|four| four.iter().fold(0u32, |all, digit| all << 6 | u32::from(*digit)).to_be_bytes()[1..].to_vec())
        .collect();
    let index = bytes.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
    let replacements = bytes.get(4 + index..).unwrap_or_default();
    replacements.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(normalizer: &str, text: &str) -> std::result::Result<String, String> {
        let normalizer: BoundedNormalizer = serde_json::from_str(normalizer).map_err(|error| error.to_string())?;
        let mut text = NormalizedString::from(text);
        common::caught(|| normalizer.normalize(&mut text))?.map_err(|error| error.to_string())?;
        Ok(text.get().into())
    }

    fn replace(from: &str, to: &str) -> String {
        format!(r#"{{"type":"Replace","pattern":{{"String":"{from}"}},"content":"{to}"}}"#)
    }

    fn sequence(steps: &[String]) -> String {
        format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, steps.join(","))
    }

    #[test]
    fn steps_run_in_order_also_of_sequences_within_sequences() {
        let inner = sequence(&[replace("b", "c"), replace("c", "▁")]);
        assert_eq!(normalized(&sequence(&[replace("a", "b"), inner, replace("x", "")]), "axa"), Ok("▁▁".into()));
    }

    #[test]
    fn a_chain_of_replacements_ends_when_the_text_grew_too_much() {
        let began = std::time::Instant::now();
        let chain = sequence(&vec![replace("a", &"a".repeat(LONGEST_REPLACEMENT)); 100]);
        let error = normalized(&chain, &"a".repeat(1000)).unwrap_err();
        assert_eq!(error, "its normalizer makes a text of 1000 bytes one of 64000; 20096 are allowed");
        assert!(began.elapsed().as_secs() < 10);
        assert_eq!(normalized(&replace("a", &"▁".repeat(5)), &"a".repeat(1000)).unwrap().len(), 15_000);
    }

    #[test]
    fn a_replacement_whose_expression_gives_up_fails() {
        let spaces = r#"{"type":"Replace","pattern":{"Regex":"\\s+(?!\\S)"},"content":"_"}"#;
        assert_eq!(normalized(spaces, "a  b   c"), Ok("a_ b_ c".into()));
        let error = normalized(spaces, &(" ".repeat(1_100_000) + "x")).unwrap_err();
        assert!(error.starts_with("its regular expression gives up in a text of 1100001 bytes: "), "{error}");
    }

    #[test]
    fn a_replacement_that_is_long_by_itself_is_refused_before_any_text() {
        let long = "x".repeat(LONGEST_REPLACEMENT + 1);
        let too_long = "a replacement has at most 64";
        assert!(normalized(&sequence(&[sequence(&[replace("a", &long)])]), "").unwrap_err().contains(too_long));
        assert!(normalized(&format!(r#"{{"type":"Prepend","prepend":"{long}"}}"#), "").unwrap_err().contains(too_long));
        // No index, and one replacement of 66 bytes.
        let table = format!(
            r#"{{"type":"Precompiled","precompiled_charsmap":"AAAA{}"}}"#,
            "AHh4".to_string() + &"eHh4".repeat(22)
        );
        assert!(normalized(&table, "").unwrap_err().contains(too_long));
    }
}
