//! The error of wrong input.

use crate::escape::one_line;

/// The user's input is wrong: the input, the rule, and the fix. Exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}. Rule: {rule}. Fix: {fix}{}", indented(.each))]
pub struct UserError {
    /// The thing and its value.
    pub what: String,
    /// The rule that the thing breaks.
    pub rule: String,
    /// The change that makes the input right.
    pub fix: String,
    /// A line for each wrong thing, if there are several.
    pub each: Vec<String>,
    /// The errors that this error tells together, if made of several.
    pub together: Box<[UserError]>,
}

impl UserError {
    /// A new error. It is one line, unless lines [for each thing](UserError::with_each) follow. Characters that a
    /// terminal would act on are escaped: the texts may come from files.
    pub fn new(what: impl Into<String>, rule: impl Into<String>, fix: impl Into<String>) -> UserError {
        let [what, rule, fix] = [what.into(), rule.into(), fix.into()].map(|text: String| one_line(&text));
        UserError { what, rule, fix, each: Vec::new(), together: Box::default() }
    }

    /// The same error with a line for each of several things that are wrong.
    #[must_use]
    pub fn with_each(self, lines: impl IntoIterator<Item = String>) -> UserError {
        UserError { each: lines.into_iter().map(|line| one_line(&line)).collect(), ..self }
    }
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// The most similar word, if one is similar at all.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    scored.filter(|(score, _)| *score > 0.7).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}
