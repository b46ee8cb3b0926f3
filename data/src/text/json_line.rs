//! The text of a JSON line. The rest of the line is checked and not kept: a line of many small values would take a hundred
//! times its size in memory.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::text::conversation_files::MESSAGES;

/// What a line has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonLine {
    /// It is an object.
    pub(crate) is_object: bool,
    /// The text under the key.
    pub(crate) text: Option<String>,
    /// It has a conversation.
    pub(crate) has_messages: bool,
}

impl JsonLine {
    /// Reads a line, and its text under `key`.
    ///
    /// # Errors
    /// It is not JSON.
    pub(crate) fn read(line: &[u8], key: &str) -> serde_json::Result<JsonLine> {
        let mut json = serde_json::Deserializer::from_slice(line);
        let line = Line { key }.deserialize(&mut json)?;
        json.end()?;
        Ok(line)
    }
}

/// Reads the value of a line.
struct Line<'k> {
    key: &'k str,
}

/// Reads a value that is text, or drops it.
struct Text;

/// Takes what is neither wanted nor kept.
macro_rules! dropped {
    ($($visit:ident: $kind:ty),*) => {
        $(fn $visit<E>(self, _: $kind) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        })*

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Self::Value::default())
        }

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("JSON")
        }
    };
}

impl<'de> DeserializeSeed<'de> for Line<'_> {
    type Value = JsonLine;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<JsonLine, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Line<'_> {
    type Value = JsonLine;

    dropped!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonLine, A::Error> {
        let mut line = JsonLine { is_object: true, ..JsonLine::default() };
        while let Some(key) = entries.next_key::<String>()? {
            line.has_messages |= key == MESSAGES;
            match key == self.key {
                true => line.text = entries.next_value_seed(Text)?,
                false => _ = entries.next_value::<IgnoredAny>()?,
            }
        }
        Ok(line)
    }
}

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Option<String>, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Option<String>;

    dropped!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64);

    fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
        Ok(Some(text.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Option<String>, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_under_a_key_is_read_and_all_else_is_checked_and_dropped() {
        let read = |line: &str| JsonLine::read(line.as_bytes(), "text");
        let text = |text: &str| Some(text.to_string());
        assert_eq!(read(r#"{"a": [1, {"b": null}], "text": "x\n\u00e9"}"#).unwrap().text, text("x\né"));
        assert_eq!(read(r#"{"text": "first", "text": "last"}"#).unwrap().text, text("last"));
        for other in ["{}", r#"{"text": 1}"#, r#"{"text": {"text": "x"}}"#, r#"{"text": ["x"]}"#, r#"{"text": null}"#] {
            assert_eq!(read(other).unwrap(), JsonLine { is_object: true, ..JsonLine::default() }, "{other}");
        }
        for other in ["[1, 2]", "1", "-1", "1.5", "true", "null", r#""text""#] {
            assert_eq!(read(other).unwrap(), JsonLine::default(), "{other}");
        }
        assert!(read(r#"{"messages": []}"#).unwrap().has_messages);
        for wrong in ["", "{", "{} {}", "words", r#"{"a": }"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
