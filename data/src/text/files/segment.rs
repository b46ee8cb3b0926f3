//! The segments of text that threads tokenise: documents, parts of long ones, and records.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use common::UserError;
use common::format::bytes;

use super::json_line::JsonLine;
use super::records::RecordPlace;
use crate::text::conversation::ChatForm;
use crate::text::tokenizer::Tokenizer;

/// The longest line of which all values are kept, in bytes: many small ones take a hundred times as much.
const LONGEST_RECORD: usize = 16 << 20;

/// A document, or a part of a long one.
pub(crate) struct Segment {
    pub(crate) path: Arc<Path>,
    pub(crate) text: String,
    pub(crate) holds: Holds,
    /// The place of the record, if the file has several.
    pub(crate) place: Option<RecordPlace>,
    pub(crate) ends_document: bool,
}

/// What a segment holds as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The text of a document, or of a part of the document.
    Text,
    /// JSON: a record.
    Json,
    /// Nothing: the text is missing in its row.
    Null,
}

impl Segment {
    /// A record of JSON.
    pub(crate) fn record(path: &Arc<Path>, place: RecordPlace, text: String) -> Segment {
        Segment { path: path.clone(), text, holds: Holds::Json, place: Some(place), ends_document: true }
    }

    /// The name of the segment's file, with the segment's place.
    pub(crate) fn name(&self) -> String {
        let place = self.place.map_or(String::new(), |place| format!(" {place}"));
        format!("{}{place}", self.path.display())
    }

    /// Fails if the text is too long for a conversation or a question, as the end of a sentence that begins with the
    /// segment's place.
    ///
    /// # Errors
    /// The text is too long.
    pub(crate) fn ensure_record(&self) -> Result<(), String> {
        match self.text.len() {
            0..=LONGEST_RECORD => Ok(()),
            length => Err(format!("has {}, and a record has at most {}", bytes(length), bytes(LONGEST_RECORD))),
        }
    }

    /// The text of the document, or of the document's part: of a record, what stands under `key`. `None` if that is
    /// `null`.
    ///
    /// # Errors
    /// A record that is not JSON, has a key twice, or has no such text.
    pub(crate) fn document(&self, key: &str) -> Result<Option<Cow<'_, str>>, UserError> {
        match self.holds {
            Holds::Text => return Ok(Some(Cow::Borrowed(&self.text))),
            Holds::Null => return Ok(None),
            Holds::Json => {}
        }
        let wrong = |what: String, fix: &str| {
            let rule = format!("each line is a JSON object with text under `{key}`");
            UserError::new(format!("{} {what}", self.name()), rule, fix)
        };
        let JsonLine { text, is_null, fields, .. } =
            JsonLine::of_record(&self.text, Some(key)).map_err(|what| wrong(what, "correct that line"))?;
        if is_null {
            return Ok(None);
        }
        let text = text.ok_or_else(|| {
            let fix = match ChatForm::is_in(&fields) {
                true => "add --sft to train on the answers of conversations, or name a key: --text-key KEY",
                false => "correct that line, or name another key: --text-key KEY",
            };
            wrong("has no such text".into(), fix)
        })?;
        Ok(Some(Cow::Owned(text)))
    }

    /// The tokens of the document, or of the document's part. `None` if its text is `null`.
    pub(crate) fn encode(&self, tokenizer: &Tokenizer, key: &str) -> Result<Option<Vec<u32>>, UserError> {
        let Some(text) = self.document(key)? else { return Ok(None) };
        if matches!(tokenizer, Tokenizer::Bytes) && text.contains('\0') {
            return Err(UserError::new(
                format!("{} has a NUL character, and the tokenizer is bytes", self.name()),
                "among bytes NUL ends a document, so texts have none",
                "take it out, for example with tr -d '\\000', or name another tokenizer: --tokenizer FILE",
            ));
        }
        tokenizer.encode(&text).map(Some).map_err(|error| {
            UserError::new(
                format!("{}: the tokenizer fails: {error}", self.name()),
                "a tokenizer accepts any text",
                "take that text out, or use another tokenizer.json: one with an unknown token, or a byte-level one",
            )
        })
    }
}
