//! The error of wrong input.

use crate::escape::one_line;

/// The user's input is wrong: what was given, the rule, and the fix. Exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}. Rule: {rule}. Fix: {fix}")]
pub struct UserError {
    /// The thing and its value.
    pub what: String,
    /// The rule it breaks.
    pub rule: String,
    /// What to change.
    pub fix: String,
}

impl UserError {
    /// A new error. It is one line, and what a terminal would act on is escaped: the texts may come from files.
    pub fn new(what: impl Into<String>, rule: impl Into<String>, fix: impl Into<String>) -> UserError {
        let [what, rule, fix] = [what.into(), rule.into(), fix.into()].map(|text: String| one_line(&text));
        UserError { what, rule, fix }
    }
}

/// The most similar word, if one is similar at all.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    scored.filter(|(score, _)| *score > 0.7).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}
