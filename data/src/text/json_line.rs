//! The text of a JSON line. The rest of the line is checked and not kept: a line of many small values would take a hundred
//! times its size in memory.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The most fields whose names are kept.
const MOST_FIELDS: usize = 64;
/// The longest name of a field that is kept, in bytes.
const LONGEST_NAME: usize = 100;

/// The parts of a line that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonLine {
    /// It is an object.
    pub(crate) is_object: bool,
    /// The text under the key.
    pub(crate) text: Option<String>,
    /// The names of its fields, in their order.
    pub(crate) fields: Vec<String>,
}

impl JsonLine {
    /// Reads a line, and its text under `key` if there is one.
    ///
    /// # Errors
    /// It is not JSON.
    pub(crate) fn read(line: &[u8], key: Option<&str>) -> serde_json::Result<JsonLine> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let line = Part::Line { key }.deserialize(&mut json)?;
        json.end()?;
        Ok(line)
    }
}

/// The part being read: a line, or the value under its key.
enum Part<'k> {
    Line { key: Option<&'k str> },
    Value,
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = JsonLine;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<JsonLine, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = JsonLine;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonLine, E> {
        Ok(JsonLine::default())
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
        let text = matches!(self, Part::Value).then(|| text.to_string());
        Ok(JsonLine { text, ..JsonLine::default() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonLine, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(JsonLine::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonLine, A::Error> {
        let mut line = JsonLine { is_object: true, ..JsonLine::default() };
        let Part::Line { key: wanted } = self else {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(line);
        };
        while let Some(key) = entries.next_key::<String>()? {
            match Some(&*key) == wanted {
                true => line.text = entries.next_value_seed(Part::Value)?.text,
                false => _ = entries.next_value::<IgnoredAny>()?,
            }
            if line.fields.len() < MOST_FIELDS && key.len() <= LONGEST_NAME {
                line.fields.push(key);
            }
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_under_a_key_is_read_and_all_else_is_checked_and_dropped() {
        let read = |line: &str| JsonLine::read(line.as_bytes(), Some("text"));
        let text = |text: &str| Some(text.to_string());
        assert_eq!(read(r#"{"a": [1, {"b": null}], "text": "x\n\u00e9"}"#).unwrap().text, text("x\né"));
        assert_eq!(read(r#"{"text": "first", "text": "last"}"#).unwrap().text, text("last"));
        for other in [r#"{"text": 1}"#, r#"{"text": {"text": "x"}}"#, r#"{"text": ["x"]}"#, r#"{"text": null}"#] {
            let fields = vec!["text".to_string()];
            assert_eq!(read(other).unwrap(), JsonLine { is_object: true, text: None, fields }, "{other}");
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
