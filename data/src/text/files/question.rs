//! A multiple-choice question from a line of JSON, in HellaSwag's form or in a plain one.
//!
//! Context and endings of a HellaSwag line are changed as EleutherAI's lm-evaluation-harness does it, so accuracies can
//! be compared with published ones. A plain line is taken as it is.

use serde::Deserialize;
use serde_json::Value;

/// A question and the endings to choose from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The text before the ending. It may be empty.
    pub(crate) context: String,
    /// At least two and at most [`MOST_ENDINGS`] endings, none empty.
    pub(crate) endings: Vec<String>,
    /// The right ending, from 0.
    pub(crate) label: usize,
}

/// The most endings: each is tokenised with the whole context before it.
const MOST_ENDINGS: usize = 100;

/// The keys that are read; lines may have others.
#[derive(Deserialize)]
struct Line {
    activity_label: Option<String>,
    ctx_a: Option<String>,
    ctx_b: Option<String>,
    ctx: Option<String>,
    context: Option<String>,
    question: Option<String>,
    query: Option<String>,
    endings: Option<Vec<String>>,
    choices: Option<Vec<String>>,
    label: Option<Value>,
    gold: Option<Value>,
    answer: Option<Value>,
}

impl Question {
    /// Whether a record with the given fields is a question.
    pub(crate) fn is_in(fields: &[String]) -> bool {
        let has = |names: &[&str]| fields.iter().any(|field| names.contains(&&**field));
        has(&["endings", "choices"]) && has(&["label", "gold", "answer"])
    }

    /// The question of a line.
    ///
    /// # Errors
    /// The mistake in the line, as the end of a sentence that begins with the line's name.
    pub(crate) fn of_line(line: &str) -> Result<Question, String> {
        let line: Line =
            serde_json::from_str(line).map_err(|error| format!("is no multiple-choice question: {error}"))?;
        let label = line.label.or(line.gold).or(line.answer).ok_or("has no `label`, `gold` or `answer`")?;
        let plain = line.context.or(line.question).or(line.query);
        let endings = line.endings.or(line.choices).ok_or("has no `endings` or `choices`")?;
        let of_hella_swag = match (line.ctx_a, line.ctx) {
            (Some(begin), _) => Some(format!("{begin} {}", capitalized(&line.ctx_b.unwrap_or_default()))),
            (None, ctx) => ctx,
        };
        let (context, endings) = match (of_hella_swag, plain) {
            (Some(ctx), _) => {
                let topic = line.activity_label.map_or(String::new(), |label| format!("{label}: "));
                let endings = endings.iter().map(|ending| without_artifacts(ending)).collect();
                (without_artifacts(&format!("{topic}{ctx}")), endings)
            }
            (None, Some(context)) => (context, endings),
            (None, None) => return Err("has no `ctx`, `ctx_a`, `context`, `question` or `query`".into()),
        };
        if !(2..=MOST_ENDINGS).contains(&endings.len()) {
            return Err(format!("has {} to choose from", common::format::counted(endings.len(), "ending")));
        }
        if let Some(empty) = endings.iter().position(String::is_empty) {
            return Err(format!("has an ending, number {}, without text", empty + 1));
        }
        let label = index(&label)
            .filter(|label| *label < endings.len())
            .ok_or_else(|| format!("has the label {label}, and endings are counted from 0 to {}", endings.len() - 1))?;
        Ok(Question { context, endings, label })
    }
}

/// A number from 0. It may be written as text.
fn index(label: &Value) -> Option<usize> {
    match label {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64()?.try_into().ok(),
    }
}

/// The first letter large and all others small, as Python's `str.capitalize`.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let mut first = letters.next().into_iter().flat_map(char::to_uppercase);
    let begin: String = first.next().into_iter().chain(first.flat_map(char::to_lowercase)).collect();
    begin + &letters.as_str().to_lowercase()
}

/// The text without the titles and brackets that WikiHow's pages left in HellaSwag. It is `preprocess` of the harness's
/// task.
fn without_artifacts(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let mut kept = String::new();
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        let Some(end) = rest[open..].find([']', '\n']) else { break };
        let end = open + end;
        // Brackets close on their line. If this one does not, no other before that end does: each character is read once.
        let is_pair = rest[end..].starts_with(']');
        kept.push_str(&rest[..if is_pair { open } else { end + 1 }]);
        rest = &rest[end + 1..];
    }
    kept.push_str(rest);
    kept.replace("  ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(line: &str) -> Question {
        Question::of_line(line).unwrap_or_else(|what| panic!("{line} {what}"))
    }

    #[test]
    fn lines_of_hella_swag_become_what_the_harness_makes_of_them() {
        // Expected values are those of the harness's own Python.
        let found = question(
            r#"{"ind": 1, "activity_label": "Home and Garden", "ctx_a": "[header] How to mow [title] Wait for sun. [step] It is dry.", "ctx_b": "then YOU", "ctx": "unused", "endings": [" walk [substeps] on.  Go.", "stop [title] Rest"], "label": "1"}"#,
        );
        assert_eq!(found.context, "Home and Garden: How to mow. Wait for sun. It is dry. Then you");
        assert_eq!(found.endings, ["walk on. Go.", "stop. Rest"]);
        assert_eq!(found.label, 1);
        let without_b =
            question(r#"{"activity_label": "A", "ctx_a": "b.", "ctx_b": "", "endings": ["x", "y"], "label": 0}"#);
        assert_eq!(without_b.context, "A: b.");
        let only_ctx = question(r#"{"ctx": "A man is on a roof. he", "endings": ["x", "y"], "label": 0}"#);
        assert_eq!(only_ctx.context, "A man is on a roof. he");
    }

    #[test]
    fn brackets_go_and_what_is_no_pair_of_them_stays() {
        for (text, expected) in [
            ("a [b] c", "a c"),
            ("a [b c", "a [b c"),
            ("a ] b [c] [d", "a ] b [d"),
            ("[a\nb] [c]d", "[a\nb] d"),
            ("[a[b[\n[c] [d", "[a[b[\n [d"),
            ("[[a] b]", " b]"),
            ("   x    y ", "x  y"),
        ] {
            assert_eq!(without_artifacts(text), expected, "{text}");
        }
        assert_eq!(["he IS", "", "élan", "ß"].map(capitalized), ["He is", "", "Élan", "Ss"]);
    }

    #[test]
    fn plain_lines_are_taken_as_they_are() {
        let expected = Question { context: " 2 + [2] =".into(), endings: vec!["4".into(), " 5".into()], label: 0 };
        for line in [
            r#"{"context": " 2 + [2] =", "choices": ["4", " 5"], "gold": 0}"#,
            r#"{"question": " 2 + [2] =", "endings": ["4", " 5"], "answer": "0"}"#,
            r#"{"query": " 2 + [2] =", "choices": ["4", " 5"], "label": 0}"#,
        ] {
            assert_eq!(question(line), expected);
        }
    }

    #[test]
    fn lines_that_are_no_question_say_why() {
        for (line, what) in [
            ("{", "is no multiple-choice question: EOF"),
            (r#"{"text": "x"}"#, "has no `label`, `gold` or `answer`"),
            (r#"{"ctx": "x", "label": 0}"#, "has no `endings` or `choices`"),
            (r#"{"endings": ["a", "b"], "label": 0}"#, "has no `ctx`, `ctx_a`, `context`"),
            (r#"{"ctx": "x", "endings": ["a"], "label": 0}"#, "has 1 ending to choose from"),
            (r#"{"ctx": "x", "endings": ["a", "[b]"], "label": 0}"#, "has an ending, number 2, without text"),
            (
                r#"{"ctx": "x", "endings": ["a", "b"], "label": 2}"#,
                "has the label 2, and endings are counted from 0 to 1",
            ),
            (r#"{"ctx": "x", "endings": ["a", "b"], "label": ""}"#, "has the label \"\", and"),
            (r#"{"ctx": "x", "endings": ["a", 1], "label": 0}"#, "invalid type"),
        ] {
            let found = Question::of_line(line).unwrap_err();
            assert!(found.contains(what), "{line}: {found}");
        }
    }
}
