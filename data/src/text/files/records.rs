//! The kinds of records that are read from files.

use super::json_line::JsonLine;
use super::question::Question;
use crate::config::RecordKind;
use crate::text::conversation::ChatForm;

/// The records that are read from files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Records<'k> {
    /// Documents: text under this key.
    Documents(&'k str),
    /// Conversations, in one of the forms of [`ChatForm`].
    Conversations,
    /// Pairs of answers, likewise.
    Pairs,
    /// Answers with a label, likewise.
    Labelled,
    /// Multiple-choice questions.
    Questions,
}

impl<'k> Records<'k> {
    /// Records of that kind; documents have the text under `key`.
    pub(crate) fn of(kind: RecordKind, key: &'k str) -> Records<'k> {
        match kind {
            RecordKind::Documents => Records::Documents(key),
            RecordKind::Conversations => Records::Conversations,
            RecordKind::Pairs => Records::Pairs,
            RecordKind::Labelled => Records::Labelled,
        }
    }

    /// Whether a line of JSON is such a record.
    pub(crate) fn include(self, line: &JsonLine) -> bool {
        match self {
            Records::Documents(_) => line.text.is_some() || line.is_null,
            Records::Conversations => ChatForm::is_in(&line.fields),
            Records::Pairs => ChatForm::is_pair(&line.fields),
            Records::Labelled => ChatForm::is_labelled(&line.fields),
            Records::Questions => Question::is_in(&line.fields),
        }
    }

    /// The key of a document's text. Other records have none.
    pub(crate) fn text_key(self) -> Option<&'k str> {
        match self {
            Records::Documents(key) => Some(key),
            Records::Conversations | Records::Pairs | Records::Labelled | Records::Questions => None,
        }
    }

    /// What makes a record one of that kind, for rules.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            Records::Documents(_) => "a document is text",
            Records::Conversations => {
                "a conversation is `messages` ([{\"role\": ..., \"content\": ...}, ...]), `conversations` ([{\"from\": \
                 ..., \"value\": ...}, ...], as ShareGPT has it), `prompt` and `completion`, or `instruction`, `input` \
                 and `output` (as Alpaca has it)"
            }
            Records::Pairs => {
                "a pair is `prompt`, `chosen` and `rejected`, each text or a list of messages ([{\"role\": ..., \
                 \"content\": ...}, ...]); without `prompt` it is what both answers begin with"
            }
            Records::Labelled => {
                "an answer with a label is `prompt` and `completion`, both texts or both lists of messages \
                 ([{\"role\": ..., \"content\": ...}, ...]), and `label`, true or false"
            }
            Records::Questions => {
                "each line is {\"ctx\": ..., \"endings\": [...], \"label\": n} as in HellaSwag, or {\"context\": ..., \
                 \"choices\": [...], \"gold\": n}"
            }
        }
    }

    /// The fields that are read of a record that is no document.
    pub(crate) fn fields(self) -> Vec<&'static str> {
        let names = match self {
            Records::Documents(_) => "",
            Records::Conversations => {
                "messages conversations prompt completion instruction input output history system tools weight"
            }
            Records::Pairs => "prompt chosen rejected tools",
            Records::Labelled => "prompt completion label tools",
            Records::Questions => {
                "activity_label ctx_a ctx_b ctx context question query endings choices label gold answer"
            }
        };
        names.split_whitespace().collect()
    }
}

/// The place of a record in a file, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordPlace {
    /// The line that the record begins in.
    Line(usize),
    /// The record's row, in a Parquet file.
    Row(usize),
}

impl RecordPlace {
    /// The number of the line or row.
    pub(crate) fn number(self) -> usize {
        match self {
            RecordPlace::Line(number) | RecordPlace::Row(number) => number,
        }
    }
}

impl std::fmt::Display for RecordPlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RecordPlace::Line(number) => write!(out, "line {number}"),
            RecordPlace::Row(number) => write!(out, "row {number}"),
        }
    }
}
