//! The text of a JSON line. The rest of the line is checked and not kept: a line of many small values would take a hundred
//! times its size in memory.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use common::escape::one_line;
use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};

/// The most fields whose names are kept.
const MOST_FIELDS: usize = 64;
/// The longest name of a field that is kept, in bytes.
const LONGEST_NAME: usize = 100;

/// The parts of a line that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonLine {
    /// The line is an object.
    pub(crate) is_object: bool,
    /// The text under the key.
    pub(crate) text: Option<String>,
    /// What stands under the key is `null`.
    pub(crate) is_null: bool,
    /// The first key that stands twice in one object of the line.
    pub(crate) twice: Option<String>,
    /// The names of the line's fields, in order.
    pub(crate) fields: Vec<String>,
}

impl JsonLine {
    /// Reads a line, and the line's text under `key`, if any.
    ///
    /// # Errors
    /// The line is not JSON.
    pub(crate) fn read(line: &[u8], key: Option<&str>) -> serde_json::Result<JsonLine> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let line = LineSeed::Line { key }.deserialize(&mut json)?;
        json.end()?;
        Ok(line)
    }

    /// The same for a record that is trained on.
    ///
    /// # Errors
    /// The record is not JSON, or an object has a key twice, as the end of a sentence that begins with the record's name.
    pub(crate) fn of_record(record: &str, key: Option<&str>) -> Result<JsonLine, String> {
        let line = JsonLine::read(record.as_bytes(), key).map_err(|error| format!("is not JSON: {error}"))?;
        match &line.twice {
            Some(twice) => Err(format!("has the key `{}` twice in one object", one_line(twice))),
            None => Ok(line),
        }
    }
}

/// What is read: a line, the value under its key, or any other value.
enum LineSeed<'k> {
    Line { key: Option<&'k str> },
    Value,
    Other,
}

impl<'de> DeserializeSeed<'de> for LineSeed<'_> {
    type Value = JsonLine;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<JsonLine, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LineSeed<'_> {
    type Value = JsonLine;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonLine, E> {
        Ok(JsonLine { is_null: matches!(self, LineSeed::Value), ..JsonLine::default() })
    }

    fn visit_bool<E>(self, _: bool) -> Result<JsonLine, E> {
        Ok(JsonLine::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<JsonLine, E> {
        Ok(JsonLine::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<JsonLine, E> {
        Ok(JsonLine::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<JsonLine, E> {
        Ok(JsonLine::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonLine, E> {
        let text = matches!(self, LineSeed::Value).then(|| text.to_string());
        Ok(JsonLine { text, ..JsonLine::default() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonLine, A::Error> {
        let mut twice = None;
        while let Some(item) = items.next_element_seed(LineSeed::Other)? {
            twice = twice.or(item.twice);
        }
        Ok(JsonLine { twice, ..JsonLine::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonLine, A::Error> {
        let mut line = JsonLine { is_object: true, ..JsonLine::default() };
        let (wanted, is_line) = match self {
            LineSeed::Line { key } => (key, true),
            LineSeed::Value | LineSeed::Other => (None, false),
        };
        // Hashes take less memory than keys, of which a line may have millions.
        let (hasher, mut seen) = (RandomState::new(), HashSet::new());
        while let Some(key) = entries.next_key::<Cow<'_, str>>()? {
            let is_wanted = Some(&*key) == wanted;
            let value = entries.next_value_seed(if is_wanted { LineSeed::Value } else { LineSeed::Other })?;
            if is_wanted {
                (line.text, line.is_null) = (value.text, value.is_null);
            }
            let is_new = seen.insert(hasher.hash_one(&key));
            line.twice = line.twice.or(value.twice).or_else(|| (!is_new).then(|| key.to_string()));
            if is_line && line.fields.len() < MOST_FIELDS && key.len() <= LONGEST_NAME {
                line.fields.push(key.into_owned());
            }
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_in_an_object_is_found_at_any_depth() {
        let twice = |line: &str| JsonLine::of_record(line, Some("text")).err();
        let has = |key: &str| Some(format!("has the key `{key}` twice in one object"));
        assert_eq!(twice(r#"{"text": "first", "text": "last"}"#), has("text"));
        assert_eq!(twice(r#"{"text": "a", "meta": [1, {"b": {"c": 1, "\u0063": 2}}]}"#), has("c"));
        assert_eq!(twice(r#"{"text": "a", "b\n": 1, "b\n": 1}"#), has("b\\n"));
        assert_eq!(twice(r#"{"a": {"b": 1}, "b": [{"a": 1}, {"a": 1}]}"#), None);
    }

    #[test]
    fn the_text_under_a_key_is_read_and_all_else_is_checked_and_dropped() {
        let read = |line: &str| JsonLine::read(line.as_bytes(), Some("text"));
        let text = |text: &str| Some(text.to_string());
        assert_eq!(read(r#"{"a": [1, {"b": null}], "text": "x\n\u00e9"}"#).unwrap().text, text("x\né"));
        for other in [r#"{"text": 1}"#, r#"{"text": {"text": "x"}}"#, r#"{"text": ["x"]}"#, r#"{"text": null}"#] {
            let fields = vec!["text".to_string()];
            let is_null = other.contains("null");
            let expected = JsonLine { is_object: true, is_null, fields, ..JsonLine::default() };
            assert_eq!(read(other).unwrap(), expected, "{other}");
        }
        assert_eq!(read("{}").unwrap(), JsonLine { is_object: true, ..JsonLine::default() });
        for other in ["[1, 2]", "1", "-1", "1.5", "true", "null", r#""text""#] {
            assert_eq!(read(other).unwrap(), JsonLine::default(), "{other}");
        }
        assert_eq!(read(r#"{"messages": [{"role": 1}], "text": "x"}"#).unwrap().fields, ["messages", "text"]);
        for wrong in ["", "{", "{} {}", "words", r#"{"a": }"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
